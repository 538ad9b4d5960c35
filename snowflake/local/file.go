package local

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"

	"redleaf/conf/datadir"
	"redleaf/snowflake"
)

// fileName is the state's name in the data directory.
const fileName = "snowflake.db"

const format = 1

var (
	metaBucket   = []byte("meta")
	metaKey      = []byte("meta")
	workerBucket = []byte("workers")
)

// meta is written once, with the file.
type meta struct {
	Format  int       `json:"format"`
	Dir     string    `json:"dir"` // the data directory it was made in
	Bits    string    `json:"bits"`
	Epoch   int64     `json:"epoch"`
	Created time.Time `json:"created"`
}

// record is what is kept for a worker number.
type record struct {
	Bound int64  `json:"bound"` // highest timestamp that may have been issued, Unix ms
	Clean bool   `json:"clean"` // left by a clean stop: it is the last one issued
	Sum   uint32 `json:"sum"`   // see sum; bbolt has no checksum of its data
}

func (rec record) sum(worker int64) uint32 {
	b := binary.BigEndian.AppendUint64(nil, uint64(worker))
	b = binary.BigEndian.AppendUint64(b, uint64(rec.Bound))
	b = strconv.AppendBool(b, rec.Clean)
	return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
}

// file is snowflake.db, a bbolt file: each put is on disk when it returns.
type file struct {
	path string
	db   *bbolt.DB
	// commit stands for db.Update, for tests that need a disk to fail.
	commit func(func(*bbolt.Tx) error) error
}

// openFile opens the file, or makes it in a directory that never had one.
func openFile(d *datadir.Dir, l snowflake.Layout, log zerolog.Logger) (*file, error) {
	f := &file{path: d.Path(fileName)}
	existed, err := d.Expect(fileName)
	if err != nil {
		return nil, err
	}
	want := meta{Format: format, Dir: d.ID(), Bits: l.String(), Epoch: l.Epoch, Created: time.Now().UTC().Truncate(time.Second)}
	if existed {
		return f, f.open(want)
	}
	// One that is there but not recorded was left by a start that ended before its first use.
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w. It was left by a start that did not end well: remove it", err)
	}
	if err := f.make(want); err != nil {
		return nil, fmt.Errorf("%s can't be made: %w. Free space in data_dir and make it writable", f.path, err)
	}
	if err := d.Record(fileName); err != nil {
		f.close()
		return nil, err
	}
	log.Warn().Str("file", f.path).Str("bits", want.Bits).Int64("epoch", want.Epoch).
		Msg("first start: a new local snowflake state begins here. Keep this file; without it nobody knows which IDs were handed out")
	return f, nil
}

func (f *file) make(want meta) error {
	db, err := bbolt.Open(f.path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	f.use(db)
	err = db.Update(func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucket(workerBucket); err != nil {
			return err
		}
		b, err := tx.CreateBucket(metaBucket)
		if err != nil {
			return err
		}
		v, err := json.Marshal(want)
		if err != nil {
			return err
		}
		return b.Put(metaKey, v)
	})
	if err != nil {
		db.Close()
	}
	return err
}

func (f *file) use(db *bbolt.DB) { f.db, f.commit = db, db.Update }

func (f *file) damaged(why any) error {
	return fmt.Errorf("%s is damaged: %v. Put back the file as it was last; if it is lost, nobody knows which IDs were handed out: begin with another data_dir and another snowflake.worker_id", f.path, why)
}

// open opens and checks a file that was used before. Nothing in it is trusted: pages may be cut off or overwritten, which bbolt
// answers with panics and the memory map with faults.
func (f *file) open(want meta) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = f.damaged(p)
		}
		if err != nil && f.db != nil {
			func() {
				defer func() { recover() }()
				f.db.Close()
			}()
		}
	}()
	fi, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if fi.Size() < int64(4*os.Getpagesize()) {
		return f.damaged(fmt.Sprintf("it has %d bytes", fi.Size()))
	}
	db, err := bbolt.Open(f.path, 0o600, &bbolt.Options{Timeout: time.Second, PreLoadFreelist: true})
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w: make it readable and writable for this user", err)
		}
		return f.damaged(err)
	}
	f.use(db)
	var have meta
	err = db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > fi.Size() {
			return fmt.Errorf("it has %d bytes, not %d", fi.Size(), tx.Size())
		}
		b, workers := tx.Bucket(metaBucket), tx.Bucket(workerBucket)
		if b == nil || workers == nil {
			return errors.New("its buckets are missing")
		}
		// Every record is read once, so that damage stops the start and not some later change of the number. (tx.Check would
		// do it in a goroutine of its own, where nothing catches its panics.)
		if err := workers.ForEach(checkRecord); err != nil {
			return err
		}
		v := b.Get(metaKey)
		if v == nil {
			return errors.New("it has no meta")
		}
		return json.Unmarshal(v, &have)
	})
	switch {
	case err != nil:
		return f.damaged(err)
	case have.Format > format:
		return fmt.Errorf("%s has format %d and this version reads up to %d: it was written by a newer Redleaf. Start that version", f.path, have.Format, format)
	case have.Format < 1:
		return f.damaged("it has no format")
	case have.Dir != want.Dir:
		return fmt.Errorf("%s was made in another data_dir (%s, this one is %s). Put back this one's own file", f.path, have.Dir, want.Dir)
	case have.Bits != want.Bits:
		return fmt.Errorf("snowflake.bits is %s and %s was made with %s: IDs of both could be equal. Set it back, or begin with another data_dir and another epoch that no ID of the old layout reaches", want.Bits, f.path, have.Bits)
	case have.Epoch != want.Epoch:
		return fmt.Errorf("snowflake.epoch is %d and %s was made with %d: IDs of both could be equal. Set it back", want.Epoch, f.path, have.Epoch)
	}
	return nil
}

// get reads the record of a number; ok is false if there is none.
func (f *file) get(worker int64) (rec record, ok bool, err error) {
	err = f.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(workerBucket).Get(key(worker))
		if v == nil {
			return nil
		}
		ok = true
		rec, err = readRecord(worker, v)
		return err
	})
	if err != nil {
		err = f.damaged(err)
	}
	return rec, ok, err
}

func readRecord(worker int64, v []byte) (rec record, err error) {
	if err := json.Unmarshal(v, &rec); err != nil {
		return rec, fmt.Errorf("worker %d: %w", worker, err)
	}
	if rec.Sum != rec.sum(worker) || rec.Bound < 0 {
		return rec, fmt.Errorf("the record of worker %d does not match its checksum", worker)
	}
	return rec, nil
}

func checkRecord(k, v []byte) error {
	worker, err := strconv.ParseInt(string(k), 10, 64)
	if err != nil {
		return fmt.Errorf("%q is no worker number", k)
	}
	_, err = readRecord(worker, v)
	return err
}

func (f *file) put(worker int64, rec record) (err error) {
	defer func() {
		if p := recover(); p != nil { // bbolt meets damage with a panic
			err = f.damaged(p)
		}
	}()
	rec.Sum = rec.sum(worker)
	v, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return f.commit(func(tx *bbolt.Tx) error { return tx.Bucket(workerBucket).Put(key(worker), v) })
}

func (f *file) close() error { return f.db.Close() }

func key(worker int64) []byte { return strconv.AppendInt(nil, worker, 10) }
