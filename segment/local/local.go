// Package local keeps the marks of every tag in one bbolt file of the data directory, for one instance without a database.
//
// A grant is durable before it is answered: the two fdatasyncs of a bbolt commit are paid once for all grants that wait, and
// never on the path of a request. Every record carries a checksum and the whole file is verified when it is opened, because a
// file that lost a commit or a digit repeats IDs, while one that is refused repeats none (I11).
//
// The records are text. `bbolt get segment.db tags order` shows
//
//	max=1001 step=1000 updated=1796074497156 sum=9f0b6c1d desc=orders
//
// max is exclusive, as in Leaf's table; updated is in Unix milliseconds.
package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	bolt "go.etcd.io/bbolt"

	"redleaf/conf/datadir"
	"redleaf/segment"
)

const storeName = "segment.db"

// maxTag bounds a key of the file; the key rules of the server are far stricter.
const maxTag = 1024

// maxDesc bounds a description, so that one record stays within a page.
const maxDesc = 1024

var tagsBucket = []byte("tags")

// Options of Open and OpenFloors.
type Options struct {
	Log zerolog.Logger
	// CommitDelay is how long a commit waits for company, 0 = not at all: grants that arrive during a commit share the next
	// one anyhow.
	CommitDelay time.Duration
}

// Store is the embedded segment.Store.
type Store struct{ f *file }

var _ segment.Store = (*Store)(nil)

// Open opens the store of the data directory, or makes it at the first start. Errors name the file and the cure. dir stays
// the caller's to close, after the Store.
func Open(dir *datadir.Dir, o Options) (*Store, error) {
	f, err := openFile(&file{dir: dir, name: storeName, delay: o.CommitDelay, log: o.Log,
		buckets: [][]byte{tagsBucket}, content: func() content { return tagRecords{} }})
	if err != nil {
		return nil, err
	}
	return &Store{f}, nil
}

type tagRecords struct{}

func (tagRecords) record(path []string, k, v []byte) error {
	if len(path) != 1 || path[0] != string(tagsBucket) {
		return fmt.Errorf("it has a record %.140q that is no tag", k)
	}
	_, err := parseRow(k, v)
	return err
}

func (tagRecords) end(meta map[string]string, records int64) error {
	if count := meta[string(countKey)]; count != strconv.FormatInt(records, 10) {
		return fmt.Errorf("it holds %d tags and counts %.20q", records, count)
	}
	return nil
}

func readCount(tx *bolt.Tx) (int64, error) {
	n, err := strconv.ParseInt(string(tx.Bucket(metaBucket).Get(countKey)), 10, 64)
	if err != nil {
		return 0, errors.New("its count of tags is unreadable")
	}
	return n, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sum(key []byte, parts ...[]byte) string {
	h := crc32.Update(0, castagnoli, key)
	for _, p := range parts {
		h = crc32.Update(h, castagnoli, []byte{0})
		h = crc32.Update(h, castagnoli, p)
	}
	return fmt.Sprintf("%08x", h)
}

func formatRow(r segment.Row) []byte {
	b := fmt.Appendf(nil, "max=%d step=%d updated=%d", r.Max, r.Step, r.Updated.UnixMilli())
	s := sum([]byte(r.Tag), b, []byte(r.Desc))
	return fmt.Appendf(b, " sum=%s desc=%s", s, r.Desc)
}

func parseRow(k, v []byte) (segment.Row, error) {
	r := segment.Row{Tag: string(k)}
	bad := func() (segment.Row, error) { return r, fmt.Errorf("the record of tag %.140q is unreadable", r.Tag) }
	head, tail, ok := bytes.Cut(v, []byte(" sum="))
	if !ok || len(tail) < 14 || string(tail[8:14]) != " desc=" {
		return bad()
	}
	desc := tail[14:]
	if sum(k, head, desc) != string(tail[:8]) {
		return r, fmt.Errorf("the checksum of tag %.140q is wrong", r.Tag)
	}
	bound, rest, ok1 := strings.Cut(strings.TrimPrefix(string(head), "max="), " step=")
	step, updated, ok2 := strings.Cut(rest, " updated=")
	if !ok1 || !ok2 {
		return bad()
	}
	ms, err3 := strconv.ParseInt(updated, 10, 64)
	var err1, err2 error
	r.Max, err1 = strconv.ParseInt(bound, 10, 64)
	r.Step, err2 = strconv.ParseInt(step, 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || r.Max < 1 || r.Step < 1 {
		return bad()
	}
	r.Updated, r.Desc = time.UnixMilli(ms), string(desc)
	return r, nil
}

func checkTag(tag string) error {
	if tag == "" || len(tag) > maxTag {
		return fmt.Errorf("a tag has 1 to %d bytes, this one has %d", maxTag, len(tag))
	}
	return nil
}

// row reads one record. ErrNoTag: there is none.
func row(tx *bolt.Tx, tag string) (segment.Row, error) {
	v := tx.Bucket(tagsBucket).Get([]byte(tag))
	if v == nil {
		return segment.Row{}, segment.ErrNoTag
	}
	r, err := parseRow([]byte(tag), v)
	if err != nil {
		panic(err) // it verified when the file was opened: the pages have changed under us, so nothing in here counts
	}
	return r, nil
}

func putRow(tx *bolt.Tx, r segment.Row) {
	r.Updated = time.Now()
	if err := tx.Bucket(tagsBucket).Put([]byte(r.Tag), formatRow(r)); err != nil {
		panic(err) // sizes were checked before
	}
}

func addRow(tx *bolt.Tx, r segment.Row) {
	putRow(tx, r)
	n, err := readCount(tx)
	if err == nil {
		err = tx.Bucket(metaBucket).Put(countKey, strconv.AppendInt(nil, n+1, 10))
	}
	if err != nil {
		panic(err)
	}
}

// Reserve: see segment.Store.
func (s *Store) Reserve(ctx context.Context, tag string, n, floor int64) (segment.Grant, error) {
	if n < 1 {
		return segment.Grant{}, fmt.Errorf("reserve of %d IDs: it must be at least 1", n)
	}
	if err := checkTag(tag); err != nil {
		return segment.Grant{}, err
	}
	g := segment.Grant{Server: s.f.dir.ID()}
	err := s.f.update(ctx, func(tx *bolt.Tx) (bool, error) {
		r, err := row(tx, tag)
		switch {
		case err != nil:
			return false, err
		case r.Max < floor:
			return false, &segment.RegressedError{Tag: tag, Row: r.Max, Floor: floor}
		case r.Max > math.MaxInt64-n:
			return false, segment.ErrExhausted
		}
		g.Span = segment.Span{Lo: r.Max, Hi: r.Max + n}
		r.Max += n
		putRow(tx, r)
		return true, nil
	})
	if err != nil {
		return segment.Grant{}, err
	}
	return g, nil
}

// Rows: see segment.Store.
func (s *Store) Rows(ctx context.Context, tags []string) (map[string]segment.Row, error) {
	rows := make(map[string]segment.Row, len(tags))
	err := s.f.view(ctx, func(tx *bolt.Tx) error {
		for _, tag := range tags {
			if r, err := row(tx, tag); err == nil {
				rows[tag] = r
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Create: see segment.Store. The base is 1: no row of this file was ever lost without the file.
func (s *Store) Create(ctx context.Context, r segment.Row, inherit bool) (now segment.Row, created bool, err error) {
	if err := checkTag(r.Tag); err != nil {
		return segment.Row{}, false, err
	}
	if err := checkRow(r); err != nil {
		return segment.Row{}, false, err
	}
	err = s.f.update(ctx, func(tx *bolt.Tx) (bool, error) {
		var err error
		if now, err = row(tx, r.Tag); err == nil {
			return false, nil
		}
		addRow(tx, r)
		now, err = row(tx, r.Tag)
		created = true
		return true, err
	})
	if err != nil {
		return segment.Row{}, false, err
	}
	return now, created, nil
}

func checkRow(r segment.Row) error {
	switch {
	case r.Max < 1:
		return &segment.StepError{Tag: r.Tag, Column: "max_id", Value: strconv.FormatInt(r.Max, 10), Want: "at least 1"}
	case r.Step < 1:
		return &segment.StepError{Tag: r.Tag, Column: "step", Value: strconv.FormatInt(r.Step, 10), Want: "at least 1"}
	case len(r.Desc) > maxDesc:
		return fmt.Errorf("tag '%s': the description has %d bytes, at most %d fit", r.Tag, len(r.Desc), maxDesc)
	}
	return nil
}

// Advance: see segment.Store.
func (s *Store) Advance(ctx context.Context, tag string, n int64) (found int64, moved bool, err error) {
	if n < 0 || n == math.MaxInt64 {
		return 0, false, fmt.Errorf("advance to %d: it must be from 0 to %d", n, int64(math.MaxInt64-1))
	}
	if err := checkTag(tag); err != nil {
		return 0, false, err
	}
	err = s.f.update(ctx, func(tx *bolt.Tx) (bool, error) {
		r, err := row(tx, tag)
		if err != nil {
			return false, err
		}
		if found = r.Max; r.Max > n {
			return false, nil
		}
		r.Max, moved = n+1, true
		putRow(tx, r)
		return true, nil
	})
	if err != nil {
		return 0, false, err
	}
	return found, moved, nil
}

// Fence: see segment.Store. found is 0 where the row was put back.
func (s *Store) Fence(ctx context.Context, tag string, floor int64, restore *segment.Row) (found int64, err error) {
	if err := checkTag(tag); err != nil {
		return 0, err
	}
	if restore != nil {
		if restore.Max < floor {
			return 0, fmt.Errorf("tag '%s': a row put back at %d would lie below its floor %d", tag, restore.Max, floor)
		}
		if err := checkRow(*restore); err != nil {
			return 0, err
		}
	}
	err = s.f.update(ctx, func(tx *bolt.Tx) (bool, error) {
		r, err := row(tx, tag)
		if err != nil && restore == nil {
			return false, err
		}
		if err != nil {
			r = *restore
			r.Tag = tag
			addRow(tx, r)
			return true, nil
		}
		if found = r.Max; r.Max >= floor {
			return false, nil
		}
		r.Max = floor
		putRow(tx, r)
		return true, nil
	})
	if err != nil {
		return 0, err
	}
	return found, nil
}

// GiveBack: see segment.Store.
func (s *Store) GiveBack(ctx context.Context, tag string, span segment.Span, server string) (bool, error) {
	if span.Lo < 1 || span.Hi <= span.Lo || server != s.f.dir.ID() {
		return false, nil
	}
	done := false
	err := s.f.update(ctx, func(tx *bolt.Tx) (bool, error) {
		r, err := row(tx, tag)
		if err != nil || r.Max != span.Hi {
			return false, nil
		}
		r.Max, done = span.Lo, true
		putRow(tx, r)
		return true, nil
	})
	return done && err == nil, err
}

// List: see segment.Store.
func (s *Store) List(ctx context.Context, after string, limit int) ([]segment.Row, error) {
	if limit <= 0 {
		return nil, nil
	}
	rows := make([]segment.Row, 0, min(limit, 1024))
	err := s.f.view(ctx, func(tx *bolt.Tx) error {
		c := tx.Bucket(tagsBucket).Cursor()
		k, v := c.Seek([]byte(after))
		if k != nil && string(k) == after {
			k, v = c.Next()
		}
		for ; k != nil && len(rows) < limit; k, v = c.Next() {
			r, err := parseRow(k, v)
			if err != nil {
				panic(err)
			}
			rows = append(rows, r)
			if len(rows)%1024 == 0 && ctx.Err() != nil {
				return &segment.UnavailableError{Cause: ctx.Err()}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Count: see segment.Store.
func (s *Store) Count(ctx context.Context) (n int64, err error) {
	err = s.f.view(ctx, func(tx *bolt.Tx) error {
		n, err = readCount(tx)
		return err
	})
	return n, err
}

// Pulse: see segment.Store. The history is the data directory's; a file that goes back is refused when it is opened, as far as
// that can be seen, so the epoch stands still.
func (s *Store) Pulse(ctx context.Context) (segment.Pulse, error) {
	if err := s.f.check(ctx); err != nil {
		return segment.Pulse{}, err
	}
	return segment.Pulse{History: s.f.dir.ID()}, nil
}

// Close waits for the commit in progress and closes the file.
func (s *Store) Close() error { return s.f.close() }
