package segment

// TryLast is the last ID that the current span of a tag gave. It never waits, locks or allocates. Where ok is false, Last has
// the answer: the tag is not in memory, or its span has given nothing yet, or is used up or sealed.
func (a *Allocator) TryLast(tag []byte) (last int64, ok bool) {
	t := a.tags.find(tag)
	if t == nil {
		return 0, false
	}
	s := t.cur.Load()
	pos := s.pos.Load()
	if pos < 1 || pos > s.size {
		return 0, false
	}
	return s.lo + pos - 1, true
}
