package local

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	bolt "go.etcd.io/bbolt"

	"redleaf/conf/datadir"
	"redleaf/segment"
)

const floorsName = "floors.db"

var (
	floorsBucket = []byte("floors") // one bucket per history in it: tag → floor
	notesBucket  = []byte("notes")
)

// Floors keeps what a shared store granted to this instance, so that a restart does not forget it (I6):
//
//	floors / <history> / <tag> → floor=1001 sum=9f0b6c1d
//	notes  / <name>            → text that goes with the floors, such as the history a server had when it was last seen
type Floors struct{ f *file }

var _ segment.Floors = (*Floors)(nil)

// OpenFloors opens the floors of the data directory, or makes the file at the first start. Errors name the file and the cure.
func OpenFloors(dir *datadir.Dir, o Options) (*Floors, error) {
	f, err := openFile(&file{dir: dir, name: floorsName, delay: o.CommitDelay, log: o.Log,
		buckets: [][]byte{floorsBucket, notesBucket}, content: func() content { return floorRecords{} }})
	if err != nil {
		return nil, err
	}
	return &Floors{f}, nil
}

type floorRecords struct{}

func (floorRecords) record(path []string, k, v []byte) (err error) {
	switch {
	case len(path) == 2 && path[0] == string(floorsBucket):
		_, err = parseFloor([]byte(path[1]), k, v)
	case len(path) == 1 && path[0] == string(notesBucket):
		_, err = parseNote(k, v)
	default:
		err = fmt.Errorf("it has a record %.140q that is no floor", k)
	}
	return err
}

func (floorRecords) end(map[string]string, int64) error { return nil }

func formatFloor(history, tag []byte, floor int64) []byte {
	b := fmt.Appendf(nil, "floor=%d", floor)
	return fmt.Appendf(b, " sum=%s", sum(tag, history, b))
}

func parseFloor(history, k, v []byte) (int64, error) {
	head, check, ok := bytes.Cut(v, []byte(" sum="))
	text, ok2 := bytes.CutPrefix(head, []byte("floor="))
	floor, err := strconv.ParseInt(string(text), 10, 64)
	if !ok || !ok2 || err != nil || sum(k, history, head) != string(check) {
		return 0, fmt.Errorf("the floor of tag %.140q is unreadable", k)
	}
	return floor, nil
}

func formatNote(k, text []byte) []byte { return fmt.Appendf(nil, "%s %s", sum(k, text), text) }

func parseNote(k, v []byte) (string, error) {
	check, text, ok := bytes.Cut(v, []byte(" "))
	if !ok || sum(k, text) != string(check) {
		return "", fmt.Errorf("the note %.140q is unreadable", k)
	}
	return string(text), nil
}

func checkHistory(history string) error {
	if history == "" || len(history) > 1024 {
		return fmt.Errorf("a history is named by 1 to 1024 bytes, this one by %d", len(history))
	}
	return nil
}

// Floor is the floor kept for a tag, 0 where there is none.
func (s *Floors) Floor(history, tag string) (floor int64, err error) {
	err = s.f.view(context.Background(), func(tx *bolt.Tx) error {
		floor = floorOf(tx.Bucket(floorsBucket).Bucket([]byte(history)), history, tag)
		return nil
	})
	return floor, err
}

func floorOf(b *bolt.Bucket, history, tag string) int64 {
	if b == nil || tag == "" {
		return 0
	}
	v := b.Get([]byte(tag))
	if v == nil {
		return 0
	}
	floor, err := parseFloor([]byte(history), []byte(tag), v)
	if err != nil {
		panic(err)
	}
	return floor
}

// Save raises the floors named; one that is lower than what is kept changes nothing. Saves that wait share one commit.
func (s *Floors) Save(history string, floors map[string]int64) error {
	return s.put(history, floors, true)
}

// Lower sets one floor, also downwards: see segment.Floors.
func (s *Floors) Lower(history, tag string, floor int64) error {
	return s.put(history, map[string]int64{tag: floor}, false)
}

func (s *Floors) put(history string, floors map[string]int64, raise bool) error {
	if err := checkHistory(history); err != nil {
		return err
	}
	for tag, floor := range floors {
		if err := checkTag(tag); err != nil {
			return err
		}
		if floor < 0 {
			return fmt.Errorf("tag '%s': %d is no floor", tag, floor)
		}
	}
	return s.f.update(context.Background(), func(tx *bolt.Tx) (bool, error) {
		b, err := tx.Bucket(floorsBucket).CreateBucketIfNotExists([]byte(history))
		if err != nil {
			panic(err)
		}
		wrote := false
		for tag, floor := range floors {
			if was := floorOf(b, history, tag); was == floor || raise && was > floor {
				continue
			}
			if err := b.Put([]byte(tag), formatFloor([]byte(history), []byte(tag), floor)); err != nil {
				panic(err)
			}
			wrote = true
		}
		return wrote, nil
	})
}

// Each calls fn for every floor of a history, in byte order of the tags, and ends at fn's first error. fn may call any other
// method: no transaction is open then. Floors saved meanwhile may be seen or not.
func (s *Floors) Each(history string, fn func(tag string, floor int64) error) error {
	type entry struct {
		tag   string
		floor int64
	}
	after := ""
	for {
		page := make([]entry, 0, 1024)
		err := s.f.view(context.Background(), func(tx *bolt.Tx) error {
			b := tx.Bucket(floorsBucket).Bucket([]byte(history))
			if b == nil {
				return nil
			}
			c := b.Cursor()
			k, v := c.Seek([]byte(after))
			if k != nil && string(k) == after {
				k, v = c.Next()
			}
			for ; k != nil && len(page) < cap(page); k, v = c.Next() {
				floor, err := parseFloor([]byte(history), k, v)
				if err != nil {
					panic(err)
				}
				page = append(page, entry{string(k), floor})
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, e := range page {
			if err := fn(e.tag, e.floor); err != nil {
				return err
			}
		}
		if len(page) < cap(page) {
			return nil
		}
		after = page[len(page)-1].tag
	}
}

// Note keeps a text by name, durably. Read answers it, empty where there is none.
func (s *Floors) Note(name, text string) error {
	if name == "" || len(name) > 1024 || len(text) > 64<<10 {
		return fmt.Errorf("note %.100q of %d bytes is too large", name, len(text))
	}
	return s.f.update(context.Background(), func(tx *bolt.Tx) (bool, error) {
		b, v := tx.Bucket(notesBucket), formatNote([]byte(name), []byte(text))
		if bytes.Equal(b.Get([]byte(name)), v) {
			return false, nil
		}
		if err := b.Put([]byte(name), v); err != nil {
			panic(err)
		}
		return true, nil
	})
}

// Read answers the text kept under name, empty where there is none.
func (s *Floors) Read(name string) (text string, err error) {
	if name == "" {
		return "", nil
	}
	err = s.f.view(context.Background(), func(tx *bolt.Tx) error {
		v := tx.Bucket(notesBucket).Get([]byte(name))
		if v == nil {
			return nil
		}
		if text, err = parseNote([]byte(name), v); err != nil {
			panic(err)
		}
		return nil
	})
	return text, err
}

// Err is why floors can't be kept now, nil while they can. Asking it ends a fault that has passed.
func (s *Floors) Err() error { return s.f.check(context.Background()) }

// Close waits for the commit in progress and closes the file.
func (s *Floors) Close() error { return s.f.close() }
