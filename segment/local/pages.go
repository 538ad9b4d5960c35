package local

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// bbolt trusts its file: a damaged page makes it panic, recurse for ever or touch memory that is not there, in goroutines where
// nobody can catch it, and a damaged meta page makes it answer the state before the last commit. So the file is read here
// first, page by page, with every number checked against the file. The format is bbolt's version 2, in the machine's byte
// order:
//
//	page     id 8, kind 2, count 2, overflow 4, content
//	meta     magic 4, version 4, page size 4, flags 4, root bucket 16, freelist page 8, pages in use 8, transaction 8, sum 8
//	branch   count × (offset 4, key size 4, child page 8), keys
//	leaf     count × (flags 4, offset 4, key size 4, value size 4), keys and values; flag 1: the value is a bucket
//	bucket   root page 8 (0: the page follows right here), sequence 8
//	free     count × page 8; count 65535: the true count stands first
const (
	pageHeader = 16
	metaSize   = 64
	element    = 16
	magic      = 0xED0CDAED

	branchPage = 0x01
	leafPage   = 0x02
	freePage   = 0x10

	maxDepth = 64 // of pages below each other; a tree of a billion records has 8
)

// visitor is called for each record, in the order of the tree. path names the buckets around it. Nothing of it may be kept.
type visitor func(path []string, k, v []byte) error

// checkFile reads the whole file and calls visit for every record. An error says what is wrong with it, *fs.PathError apart.
func checkFile(path string, visit visitor) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Size() < pageHeader+metaSize {
		return errors.New("its page 0 is missing")
	}
	// Mapped and not read, so that a large file costs no memory.
	b, err := unix.Mmap(int(f.Fd()), 0, int(fi.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return &os.PathError{Op: "mmap", Path: path, Err: err}
	}
	defer unix.Munmap(b)
	return guarded(func() error { return checkPages(b, visit) })
}

type tree struct {
	b        []byte
	pageSize uint64
	pages    uint64 // in use, free ones included
	seen     []bool
	visit    visitor
}

var native = binary.NativeEndian

func checkPages(b []byte, visit visitor) error {
	first, err := metaAt(b, 0, 0)
	if err != nil {
		return err
	}
	size := uint64(native.Uint32(first[8:]))
	if size < 512 || size > 1<<24 {
		return fmt.Errorf("its page size is %d", size)
	}
	second, err := metaAt(b, 1, size)
	if err != nil {
		return err
	}
	// bbolt goes on with the older of the two where the newer one is unreadable, which takes the last commit back: IDs of it
	// would be handed out again. A crash leaves no such page, since a meta page is written within one sector.
	last, one, two := first, native.Uint64(first[48:]), native.Uint64(second[48:])
	if two > one {
		last = second
	}
	if max(one, two)-min(one, two) != 1 {
		return fmt.Errorf("its two meta pages are of commits %d and %d, which do not follow each other", one, two)
	}
	t := &tree{b: b, pageSize: size, pages: native.Uint64(last[40:]), visit: visit}
	if have := uint64(len(b)) / size; t.pages > have || t.pages < 4 {
		return fmt.Errorf("it ends after %d of %d pages", have, t.pages)
	}
	t.seen = make([]bool, t.pages)
	t.seen[0], t.seen[1] = true, true
	if err := t.free(native.Uint64(last[32:])); err != nil {
		return err
	}
	return t.bucket(nil, native.Uint64(last[16:]))
}

// metaAt checks one of the two meta pages.
func metaAt(b []byte, page, pageSize uint64) ([]byte, error) {
	at := page*pageSize + pageHeader
	if at+metaSize > uint64(len(b)) {
		return nil, fmt.Errorf("its page %d is missing", page)
	}
	m := b[at : at+metaSize]
	sum := fnv.New64a()
	sum.Write(m[:metaSize-8])
	if native.Uint32(m) != magic || native.Uint64(m[metaSize-8:]) != sum.Sum64() {
		return nil, fmt.Errorf("the checksum of its page %d is wrong", page)
	}
	if v := native.Uint32(m[4:]); v != 2 {
		return nil, fmt.Errorf("its page format is %d and not 2", v)
	}
	return m, nil
}

// page takes page id for one use, and answers it with its overflow pages. Each page has one use.
func (t *tree) page(id uint64) ([]byte, error) {
	if id < 2 || id >= t.pages {
		return nil, fmt.Errorf("page %d is referred to and lies outside", id)
	}
	p := t.b[id*t.pageSize:]
	n := 1 + uint64(native.Uint32(p[12:]))
	if native.Uint64(p) != id || id+n > t.pages {
		return nil, fmt.Errorf("page %d has the header of another one", id)
	}
	for i := id; i < id+n; i++ {
		if t.seen[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		t.seen[i] = true
	}
	return p[:n*t.pageSize], nil
}

// free takes the list of free pages, and the pages on it.
func (t *tree) free(id uint64) error {
	p, err := t.page(id)
	if err != nil {
		return err
	}
	n, at := uint64(native.Uint16(p[10:])), uint64(pageHeader)
	if n == 0xFFFF {
		n, at = native.Uint64(p[at:]), at+8
	}
	if native.Uint16(p[8:]) != freePage || n > (uint64(len(p))-at)/8 {
		return fmt.Errorf("page %d is not the list of free pages that it should be", id)
	}
	for ; n > 0; n, at = n-1, at+8 {
		id := native.Uint64(p[at:])
		if id < 2 || id >= t.pages || t.seen[id] {
			return fmt.Errorf("page %d is listed as free", id)
		}
		t.seen[id] = true
	}
	return nil
}

func (t *tree) bucket(path []string, root uint64) error {
	p, err := t.page(root)
	if err != nil {
		return err
	}
	return t.walk(path, root, p, nil, nil, 0)
}

// walk reads the records of a page and of all below it. Their keys increase and lie within [low, high); nil is no bound.
func (t *tree) walk(path []string, id uint64, p []byte, low, high []byte, depth int) error {
	broken := func() error { return fmt.Errorf("page %d is broken", id) }
	if len(p) < pageHeader || depth > maxDepth {
		return broken()
	}
	kind, n := native.Uint16(p[8:]), int(native.Uint16(p[10:]))
	if pageHeader+n*element > len(p) {
		return broken()
	}
	// part is a key or value of an element; offsets count from the element.
	part := func(i int, offset, size uint64) []byte {
		at := uint64(pageHeader+i*element) + offset
		if at < uint64(pageHeader+n*element) || at > uint64(len(p)) || size > uint64(len(p))-at {
			return nil
		}
		return p[at : at+size : at+size]
	}
	el := func(i, at int) uint64 { return uint64(native.Uint32(p[pageHeader+i*element+at:])) }
	key := func(i int) []byte {
		if kind == branchPage {
			return part(i, el(i, 0), el(i, 4))
		}
		return part(i, el(i, 4), el(i, 8))
	}
	prev := low
	for i := range n {
		k := key(i)
		if len(k) == 0 || prev != nil && bytes.Compare(k, prev) < 0 || i > 0 && bytes.Equal(k, prev) || high != nil && bytes.Compare(k, high) >= 0 {
			return broken()
		}
		prev = k
		switch kind {
		case branchPage:
			end := high
			if i+1 < n {
				if end = key(i + 1); len(end) == 0 {
					return broken()
				}
			}
			child := native.Uint64(p[pageHeader+i*element+8:])
			c, err := t.page(child)
			if err != nil {
				return err
			}
			if err := t.walk(path, child, c, k, end, depth+1); err != nil {
				return err
			}
		case leafPage:
			v := part(i, el(i, 4)+el(i, 8), el(i, 12))
			if v == nil {
				return broken()
			}
			if el(i, 0)&1 == 0 {
				if err := t.visit(path, k, v); err != nil {
					return err
				}
				continue
			}
			if len(v) < 16 {
				return broken()
			}
			inner := append(slices.Clone(path), string(k))
			root := native.Uint64(v)
			var err error
			if root != 0 {
				err = t.bucket(inner, root)
			} else {
				err = t.walk(inner, id, v[16:], nil, nil, depth+1)
			}
			if err != nil {
				return err
			}
		default:
			return broken()
		}
	}
	// A page of another kind is refused even if it is empty, and so is a branch that leads nowhere.
	if kind != leafPage && (kind != branchPage || n == 0) {
		return broken()
	}
	return nil
}
