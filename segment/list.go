package segment

import (
	"context"
	"slices"
)

// mayCreate tells whether a Take may create the tag.
func (a *Allocator) mayCreate(tag string) bool {
	return slices.ContainsFunc(a.o.AutoCreate, func(p string) bool { return glob(p, tag) })
}

// Exists tells which of the tags the store has. A tag that is in use here is there; all others are asked for, and a store
// that can't be asked is an error, never "no".
func (a *Allocator) Exists(ctx context.Context, tags []string) (map[string]bool, error) {
	there := make(map[string]bool, len(tags))
	var ask []string
	for _, name := range tags {
		if t := a.tags.lookup(name); t != nil {
			t.mu.Lock()
			there[name] = t.known && !t.gone && t.trouble == nil
			t.mu.Unlock()
		}
		if !there[name] {
			ask = append(ask, name)
		}
	}
	if len(ask) == 0 {
		return there, nil
	}
	rows, err := a.store.Rows(ctx, ask)
	if err != nil {
		return nil, err
	}
	for _, name := range ask {
		_, there[name] = rows[name]
	}
	return there, nil
}

// listBatch is how many rows are read by one call for a list.
const listBatch = 1000

// List returns up to limit of the store's tags after the name after that match the pattern ("" matches all), in byte order. It
// reads at most ten times as many rows as limit, or 10,000 if that is more. next is where the following call goes on, "" at the
// end.
func (a *Allocator) List(ctx context.Context, match, after string, limit int) (rows []Row, next string, err error) {
	limit = max(limit, 1)
	for budget := max(10*limit, 10_000); budget > 0; {
		n := min(listBatch, budget)
		if match == "" {
			n = min(n, limit-len(rows))
		}
		page, err := a.store.List(ctx, after, n)
		if err != nil {
			return nil, "", err
		}
		for _, r := range page {
			after = r.Tag
			if match == "" || glob(match, r.Tag) {
				if rows = append(rows, r); len(rows) == limit {
					return rows, after, nil
				}
			}
		}
		if len(page) < n {
			return rows, "", nil
		}
		budget -= len(page)
	}
	return rows, after, nil
}

// Count is the number of tags in the store, at most 5 s old.
func (a *Allocator) Count(ctx context.Context) (int64, error) {
	c := &a.count
	select {
	case c.sem <- struct{}{}:
		defer func() { <-c.sem }()
	case <-ctx.Done():
		return 0, &UnavailableError{ctx.Err()}
	}
	if now := a.o.Now(); c.at < 0 || now-c.at >= countTime {
		n, err := a.store.Count(ctx)
		if err != nil {
			return 0, err
		}
		c.n.Store(n)
		c.at = now
	}
	return c.n.Load(), nil
}

// glob matches as Redis does: * any run, ? one byte, [abc] [a-c] [^a] one of a class, \ the next byte as it is. It takes time
// proportional to the product of the lengths at worst, whatever the pattern.
func glob(p, s string) bool {
	star, mark := -1, 0 // where to go back to: the pattern after the last *, and the byte it has swallowed up to
	i, j := 0, 0
	for j < len(s) {
		if i < len(p) && p[i] == '*' {
			i++
			star, mark = i, j
			continue
		}
		if n, ok := globOne(p[i:], s[j]); ok {
			i, j = i+n, j+1
			continue
		}
		if star < 0 {
			return false
		}
		mark++
		i, j = star, mark
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}

// globOne matches one byte with the head of p, and tells how long that head is.
func globOne(p string, c byte) (n int, ok bool) {
	if p == "" {
		return 0, false
	}
	switch p[0] {
	case '?':
		return 1, true
	case '\\':
		if len(p) > 1 {
			return 2, p[1] == c
		}
		return 1, c == '\\'
	case '[':
		i := 1
		not := i < len(p) && p[i] == '^'
		if not {
			i++
		}
		hit := false
		for ; i < len(p) && p[i] != ']'; i++ {
			switch {
			case p[i] == '\\' && i+1 < len(p):
				i++
				hit = hit || p[i] == c
			case i+2 < len(p) && p[i+1] == '-':
				lo, hi := min(p[i], p[i+2]), max(p[i], p[i+2])
				hit = hit || lo <= c && c <= hi
				i += 2
			default:
				hit = hit || p[i] == c
			}
		}
		return min(i+1, len(p)), hit != not
	}
	return 1, p[0] == c
}
