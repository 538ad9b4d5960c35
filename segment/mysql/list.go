package mysql

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"slices"
	"time"

	"redleaf/segment"
)

// Listing in byte order. On a column with a binary collation the index has that order, and a page is one short range of it. On
// any other one the server would sort the whole table for each page. So up to sortAtMost rows it sorts; above, the names are
// read once in the index's own order and the next windowSize names in byte order are kept for the pages that follow: a walk over
// a million rows reads the names ten times and keeps no more than windowSize of them.
const (
	sortAtMost = 20_000
	windowSize = 100_000
	windowLife = 5 * time.Second
)

// window is a run of names in byte order: all that lie above after, and, if more is set, no higher than its last name.
type window struct {
	after string
	names []string
	more  bool
	at    time.Time
}

// List: see segment.Store.
func (s *Store) List(ctx context.Context, after string, limit int) ([]segment.Row, error) {
	if limit <= 0 {
		return nil, nil
	}
	if s.columns() == (columns{}) { // nothing was looked at yet
		if err := s.do(ctx, func(context.Context, *session) error { return nil }); err != nil {
			return nil, s.classify(err)
		}
	}
	cols := s.columns()
	var rows []found
	err := s.do(ctx, func(ctx context.Context, c *session) (err error) {
		if cols.binary {
			rows, err = s.read(ctx, c, " WHERE biz_tag > ? ORDER BY biz_tag LIMIT ?", after, limit)
			return err
		}
		if cols.rows <= sortAtMost {
			rows, err = s.read(ctx, c, " WHERE CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) > CAST(? AS BINARY) ORDER BY CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) LIMIT ?", after, limit)
			return err
		}
		return errWindow
	})
	if errors.Is(err, errWindow) || isMix(err) {
		return s.listWindow(ctx, after, limit)
	}
	if err != nil {
		return nil, s.classify(err)
	}
	out := make([]segment.Row, len(rows))
	for i, r := range rows {
		out[i] = r.Row
	}
	return out, nil
}

var errWindow = errors.New("too many rows to sort for each page")

func (s *Store) columns() columns {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cols
}

func (s *Store) listWindow(ctx context.Context, after string, limit int) ([]segment.Row, error) {
	s.mu.Lock()
	w := s.window
	s.mu.Unlock()
	start, ok := w.find(after, limit)
	if !ok {
		names, more, err := s.namesAfter(ctx, after, max(windowSize, limit))
		if err != nil {
			return nil, s.classify(err)
		}
		w = window{after: after, names: names, more: more, at: time.Now()}
		start = 0
		s.mu.Lock()
		s.window = w
		s.mu.Unlock()
	}
	names := w.names[start:min(len(w.names), start+limit)]
	rows, err := s.Rows(ctx, names)
	if err != nil {
		return nil, err
	}
	out := make([]segment.Row, 0, len(names))
	for _, n := range names {
		if r, ok := rows[n]; ok {
			out = append(out, r)
		}
	}
	if len(out) == 0 && start+len(names) < len(w.names) { // all of the page were deleted meanwhile: an empty page would be the end
		return s.listWindow(ctx, names[len(names)-1], limit)
	}
	return out, nil
}

// find is where the names above after begin, if the window still holds a page of them.
func (w window) find(after string, limit int) (int, bool) {
	if w.at.IsZero() || time.Since(w.at) > windowLife || after < w.after {
		return 0, false
	}
	i, found := slices.BinarySearch(w.names, after)
	if found {
		i++
	}
	return i, !w.more || len(w.names)-i >= limit
}

// namesAfter reads every name in the index's order and keeps the lowest n above after, by bytes.
func (s *Store) namesAfter(ctx context.Context, after string, n int) (names []string, more bool, err error) {
	h := make(maxHeap, 0, n)
	last, first := "", true
	for {
		page := 0
		err := s.do(ctx, func(ctx context.Context, c *session) error {
			page = 0
			q, args := " ORDER BY biz_tag LIMIT 10000", []any{}
			if !first {
				q, args = " WHERE biz_tag > ?"+q, append(args, last)
			}
			rows, err := c.QueryContext(ctx, "SELECT biz_tag FROM "+s.table.String()+q, args...)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var name string
				if err := rows.Scan(&name); err != nil {
					return err
				}
				page++
				last, first = name, false
				switch {
				case name <= after:
				case len(h) < n:
					heap.Push(&h, name)
				default:
					more = true
					if name < h[0] {
						h[0] = name
						heap.Fix(&h, 0)
					}
				}
			}
			return rows.Err()
		})
		if err != nil {
			return nil, false, err
		}
		if page < 10000 {
			break
		}
	}
	slices.SortFunc(h, cmp.Compare[string])
	return h, more, nil
}

// maxHeap has its largest name on top.
type maxHeap []string

func (h maxHeap) Len() int           { return len(h) }
func (h maxHeap) Less(i, j int) bool { return h[i] > h[j] }
func (h maxHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *maxHeap) Push(x any)        { *h = append(*h, x.(string)) }
func (h *maxHeap) Pop() any          { x := (*h)[len(*h)-1]; *h = (*h)[:len(*h)-1]; return x }
