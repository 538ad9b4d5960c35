package server

// glob says whether s matches pattern by the rules of Redis' KEYS: * any bytes, ? one byte, [abc] [^abc] [a-z] one of a set,
// \x the byte x. Redis' own takes time that grows exponentially with the number of stars; this one goes back to the last star
// alone, which is enough, and so takes len(pattern) × len(s) steps at most (I14).
func glob[T string | []byte](pattern string, s T) bool {
	p, i := 0, 0
	star, from := -1, 0
	for i < len(s) {
		if p < len(pattern) && pattern[p] == '*' {
			star, from = p, i
			p++
			continue
		}
		if p < len(pattern) {
			if next, ok := globOne(pattern, p, s[i]); ok {
				p = next
				i++
				continue
			}
		}
		if star < 0 {
			return false
		}
		from++
		p, i = star+1, from
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// globOne matches one byte against the element at pattern[p] and returns where the next one begins.
func globOne(pattern string, p int, b byte) (next int, ok bool) {
	switch pattern[p] {
	case '?':
		return p + 1, true
	case '\\':
		if p+1 < len(pattern) {
			p++
		}
		return p + 1, pattern[p] == b
	case '[':
		p++
		not := p < len(pattern) && pattern[p] == '^'
		if not {
			p++
		}
		for p < len(pattern) && pattern[p] != ']' {
			switch {
			case pattern[p] == '\\' && p+1 < len(pattern):
				ok = ok || pattern[p+1] == b
				p += 2
			case p+2 < len(pattern) && pattern[p+1] == '-':
				lo, hi := min(pattern[p], pattern[p+2]), max(pattern[p], pattern[p+2])
				ok = ok || lo <= b && b <= hi
				p += 3
			default:
				ok = ok || pattern[p] == b
				p++
			}
		}
		if p < len(pattern) {
			p++ // the closing bracket; one that is missing stands at the end, as in Redis
		}
		return p, ok != not
	}
	return p + 1, pattern[p] == b
}
