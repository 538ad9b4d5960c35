package segment

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// SetMode says under what condition Set acts.
type SetMode uint8

// The modes of Set.
const (
	SetAlways    SetMode = iota
	SetIfAbsent          // NX: only if there is no such tag
	SetIfPresent         // XX: only if there is
)

// SetRefusedError says that N may be somebody's already. Last is the last ID given here (0: none), Bound the lowest number
// that the store would let a SET have.
type SetRefusedError struct {
	Tag            string
	N, Last, Bound int64
}

func (e *SetRefusedError) Error() string {
	last := "no ID was given here"
	if e.Last > 0 {
		last = fmt.Sprintf("the last ID here is %d", e.Last)
	}
	return fmt.Sprintf("tag '%s' can't be set to %d: it may have been handed out. %s, and numbers from %d on are free", e.Tag, e.N, last, e.Bound)
}

// Set makes n the caller's alone, and lets every later ID of this instance be larger; on a new tag exactly n+1 follows. So n
// must be new: an ID this instance holds and has not given, or one at or above the row's bound. Anything else is
// *SetRefusedError. done is false, with no error, where mode's condition is not met. 0 <= n < MaxID; 0 is for new tags only.
//
// Two callers who read a counter, add one and set it never both get done: within this instance what it holds is guarded by
// the tag's lock, and in the store the move is one conditional write.
func (a *Allocator) Set(ctx context.Context, tag string, n int64, mode SetMode) (done bool, err error) {
	if a.closed.Load() {
		return false, ErrClosed
	}
	if n < 0 || n >= MaxID {
		return false, &CountError{N: n, Max: MaxID - 1}
	}
	for {
		if mode != SetIfAbsent && a.setHeld(tag, n) {
			return true, nil
		}
		floor, err := a.floorOf(tag)
		if err != nil {
			return false, err
		}
		if floor > n {
			// Below what was granted here: nobody may have n, whatever the row says.
			return a.setRefused(ctx, tag, n, floor, mode)
		}
		if mode != SetIfAbsent {
			found, moved, err := a.store.Advance(ctx, tag, n)
			switch {
			case errors.Is(err, ErrNoTag):
				if mode == SetIfPresent {
					return false, nil
				}
			case err != nil:
				a.unsure(tag)
				return false, err
			case moved:
				a.wasSet(tag, n)
				return true, nil
			case a.setHeld(tag, n): // it was granted to us meanwhile
				return true, nil
			default:
				return a.setRefused(ctx, tag, n, found, mode)
			}
		}
		// There is no row. Making it is one conditional write, exclusive against all others who make it.
		_, created, err := a.store.Create(ctx, Row{Tag: tag, Max: n + 1, Step: a.stepOf(tag)}, false)
		if err != nil {
			a.unsure(tag)
			return false, err
		}
		if created {
			a.count.add()
			a.wasSet(tag, n)
			return true, nil
		}
		if mode == SetIfAbsent {
			return false, nil
		}
	}
}

// setHeld gives n to the caller if it is among the IDs that t holds and has not given.
func (a *Allocator) setHeld(tag string, n int64) bool {
	t := a.tags.lookup(tag)
	if t == nil || n == 0 {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return false
	}
	s := t.cur.Load()
	in := n < s.hi() && n >= s.lo && n-s.lo >= s.used()
	for sp := t.next; sp != nil && !in; sp = sp.next {
		in = n >= sp.lo && n < sp.hi()
	}
	if !in {
		return false
	}
	// The exchange decides: who takes IDs at this moment has them before, or not at all.
	from, left := a.retire(t)
	if n >= from && n < from+left {
		a.keep(t, s, from, left)
	} else if n < s.hi() && n >= s.lo { // somebody was quicker
		if left > 0 {
			a.keep(t, s, from, left)
			a.publish(t, a.shift(t))
		} else if t.next != nil {
			a.publish(t, a.shift(t))
		}
		return false
	} else if left > 0 {
		a.burn(t, left)
	}
	for n >= t.next.hi() {
		a.burn(t, t.next.size)
		t.next = t.next.next
	}
	a.setLast(t, n)
	sp := t.next
	if skipped := n - sp.lo; skipped > 0 {
		a.burn(t, skipped)
	}
	if rest := sp.hi() - (n + 1); rest > 0 {
		sp.lo, sp.size = n+1, rest
		sp.setMark()
	} else {
		t.next = sp.next
	}
	if t.next != nil {
		a.publish(t, a.shift(t))
	}
	return true
}

// keep puts what is left of the sealed span s before the spares. The caller holds t.mu.
func (a *Allocator) keep(t *tag, s *span, from, left int64) {
	k := newSpan(Span{from, from + left}, s.server, s.taint)
	k.next, t.next = t.next, k
}

// shift takes the first spare out. The caller holds t.mu.
func (a *Allocator) shift(t *tag) *span {
	s := t.next
	t.next, s.next = s.next, nil
	return s
}

// setLast makes n the last number of t. The caller holds t.mu.
func (a *Allocator) setLast(t *tag, n int64) {
	t.last = max(t.last, n)
	t.sets++
	t.taints++
}

// wasSet makes t go on above n, which the store has given to the caller: what is held or in flight at or below n is dropped.
func (a *Allocator) wasSet(tag string, n int64) {
	a.neg.forget(tag)
	// The tag comes into memory if it was not there: from now on its row is compared with this floor.
	for again := true; again; {
		t, err := a.tag(tag)
		if err != nil {
			break
		}
		t.mu.Lock()
		if again = t.gone; !t.gone {
			t.floor = max(t.floor, n+1) // named in a SET here: it counts as granted
			a.dropSpans(t)              // the row stood at or below n, so all that is held lies below it
			a.setLast(t, n)
			a.resume(t)
			if t.job == nil {
				t.trouble = nil
			}
			if !t.known {
				t.known, t.step, t.row = true, a.o.Step, n+1
				t.stepAt = a.o.Now() - time.Hour // to be read with the first refill
				a.tags.promote(t)
			}
		}
		t.mu.Unlock()
	}
	if a.floors == nil {
		return
	}
	if b := a.saveLater(tag, n+1); b != nil && a.awaitSave(b, tag, n+1) {
		if t := a.tags.any(tag); t != nil {
			t.mu.Lock()
			t.saved = max(t.saved, min(n+1, t.floor))
			t.mu.Unlock()
		}
	}
}

// unsure notes that a write of this tag may or may not have happened.
func (a *Allocator) unsure(tag string) {
	if t := a.tags.any(tag); t != nil {
		t.mu.Lock()
		t.taints++
		t.mu.Unlock()
	}
	a.health.hint()
}

// setRefused says why n can't be had, and which numbers could.
func (a *Allocator) setRefused(ctx context.Context, tag string, n, bound int64, mode SetMode) (bool, error) {
	rows, err := a.store.Rows(ctx, []string{tag})
	if err != nil {
		return false, err
	}
	r, ok := rows[tag]
	if ok && r.Err != nil {
		return false, r.Err
	}
	if ok && mode == SetIfAbsent || !ok && mode == SetIfPresent {
		return false, nil
	}
	var last int64
	if t := a.tags.lookup(tag); t != nil {
		t.mu.Lock()
		last = t.lastLocked()
		t.mu.Unlock()
	}
	return false, &SetRefusedError{Tag: tag, N: n, Last: last, Bound: max(bound, r.Max)}
}

// floorOf is the tag's floor, from memory or from before.
func (a *Allocator) floorOf(tag string) (int64, error) {
	if t := a.tags.lookup(tag); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.gone {
			return t.floor, nil
		}
	}
	if !a.health.ready.Load() {
		return 0, nil
	}
	return a.storedFloor(tag)
}

// stepOf is the step for a row that is made, or made again.
func (a *Allocator) stepOf(tag string) int64 {
	if t := a.tags.lookup(tag); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.step > 0 {
			return t.step
		}
	}
	return a.o.Step
}

// Create makes a tag and reports whether it did: false means that there is one already. Max 0 is the lowest safe start: 1, or
// above what may have been given under a row that was lost. Step 0 is the default step. Where IDs of a lost row were given
// here it answers *RegressedError: only SET makes such a row again.
func (a *Allocator) Create(ctx context.Context, row Row) (created bool, err error) {
	if a.closed.Load() {
		return false, ErrClosed
	}
	inherit := row.Max == 0
	if inherit {
		row.Max = 1
	}
	if row.Step == 0 {
		row.Step = a.o.Step
	}
	if err := a.usable(row); err != nil {
		return false, err
	}
	floor, err := a.floorOf(row.Tag)
	if err != nil {
		return false, err
	}
	if floor > 0 {
		rows, err := a.store.Rows(ctx, []string{row.Tag})
		if err != nil {
			return false, err
		}
		if _, ok := rows[row.Tag]; !ok {
			return false, &RegressedError{Tag: row.Tag, Row: -1, Floor: floor}
		}
		return false, nil
	}
	_, created, err = a.store.Create(ctx, row, inherit)
	if err != nil {
		return false, err
	}
	if created {
		a.count.add()
		a.neg.forget(row.Tag)
	}
	return created, nil
}
