package checker

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
)

// run is a stretch of consecutive IDs of one key that one instance handed to one client.
type run struct {
	first, last int64
	key         uint32
	instance    uint32
}

func compareRuns(a, b run) int {
	if c := cmp.Compare(a.key, b.key); c != 0 {
		return c
	}
	if c := cmp.Compare(a.first, b.first); c != 0 {
		return c
	}
	return cmp.Compare(a.last, b.last)
}

// sorter sorts any number of runs by key and first ID with a bounded amount of memory: full buffers are sorted and put into a
// temporary file, and merged at the end.
type sorter struct {
	limit  int // runs in memory
	buf    []run
	f      *os.File
	w      *bufio.Writer
	size   int64
	pieces []piece
}

type piece struct{ at, size int64 }

func (s *sorter) add(r run) error {
	s.buf = append(s.buf, r)
	if len(s.buf) >= s.limit {
		return s.spill()
	}
	return nil
}

func (s *sorter) spill() error {
	slices.SortFunc(s.buf, compareRuns)
	if s.f == nil {
		f, err := os.CreateTemp("", "redleaf-verify-")
		if err != nil {
			return err
		}
		// Without a name it goes away with this process, however that ends.
		if err := os.Remove(f.Name()); err != nil {
			return errors.Join(err, f.Close())
		}
		s.f, s.w = f, bufio.NewWriterSize(f, 1<<20)
	}
	at := s.size
	var b []byte
	var prev run
	for _, r := range s.buf {
		b = binary.AppendUvarint(b[:0], uint64(r.key-prev.key))
		b = binary.AppendVarint(b, r.first-prev.first)
		b = binary.AppendUvarint(b, uint64(r.last-r.first))
		b = binary.AppendUvarint(b, uint64(r.instance))
		prev = r
		n, err := s.w.Write(b)
		s.size += int64(n)
		if err != nil {
			return err
		}
	}
	s.pieces = append(s.pieces, piece{at, s.size - at})
	s.buf = s.buf[:0]
	return nil
}

func (s *sorter) close() {
	if s.f != nil {
		s.f.Close()
	}
}

// each calls f with every run in order.
func (s *sorter) each(f func(run)) error {
	if s.f == nil {
		slices.SortFunc(s.buf, compareRuns)
		for _, r := range s.buf {
			f(r)
		}
		return nil
	}
	if err := s.spill(); err != nil {
		return err
	}
	if err := s.w.Flush(); err != nil {
		return err
	}
	s.buf = nil
	var sources []*source
	for _, p := range s.pieces {
		src := &source{r: bufio.NewReaderSize(io.NewSectionReader(s.f, p.at, p.size), 64<<10)}
		ok, err := src.next()
		if err != nil {
			return err
		}
		if ok {
			sources = append(sources, src)
		}
	}
	h := heap[*source]{less: func(a, b *source) bool { return compareRuns(a.run, b.run) < 0 }}
	for _, src := range sources {
		h.push(src)
	}
	for len(h.items) > 0 {
		src := h.items[0]
		f(src.run)
		ok, err := src.next()
		if err != nil {
			return err
		}
		if ok {
			h.fix()
		} else {
			h.pop()
		}
	}
	return nil
}

// source is one sorted piece of the file.
type source struct {
	r *bufio.Reader
	run
}

func (s *source) next() (bool, error) {
	key, err := binary.ReadUvarint(s.r)
	if err == io.EOF {
		return false, nil
	}
	first, err1 := binary.ReadVarint(s.r)
	length, err2 := binary.ReadUvarint(s.r)
	instance, err3 := binary.ReadUvarint(s.r)
	if err := errors.Join(err, err1, err2, err3); err != nil {
		return false, err
	}
	s.key += uint32(key)
	s.first += first
	s.last = s.first + int64(length)
	s.instance = uint32(instance)
	return true, nil
}

// heap is a binary heap, the least item first.
type heap[E any] struct {
	items []E
	less  func(a, b E) bool
}

func (h *heap[E]) push(e E) {
	h.items = append(h.items, e)
	for i := len(h.items) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(h.items[i], h.items[up]) {
			return
		}
		h.items[i], h.items[up] = h.items[up], h.items[i]
		i = up
	}
}

func (h *heap[E]) pop() E {
	e := h.items[0]
	n := len(h.items) - 1
	h.items[0] = h.items[n]
	var none E
	h.items[n] = none
	h.items = h.items[:n]
	h.fix()
	return e
}

// fix puts the first item where it belongs after it has grown.
func (h *heap[E]) fix() {
	for i := 0; ; {
		least := i
		for _, c := range [2]int{2*i + 1, 2*i + 2} {
			if c < len(h.items) && h.less(h.items[c], h.items[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		h.items[i], h.items[least] = h.items[least], h.items[i]
		i = least
	}
}
