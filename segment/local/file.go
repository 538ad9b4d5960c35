package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"redleaf/conf/datadir"
	"redleaf/segment"
)

const (
	format   = "1"
	maxBatch = 4096 // jobs in one commit: bounds the time one of them waits and the pages one transaction holds
	retry    = time.Second
)

var (
	metaBucket = []byte("meta")
	formatKey  = []byte("format")
	dirKey     = []byte("data_dir") // id of the data directory this file belongs to
	countKey   = []byte("count")    // number of tags, so that DBSIZE does not walk the file
)

// file is one bbolt file of the data directory, with what bbolt leaves to its user: a commit shared by all who wait, a check
// of the whole file before anything in it is believed, and a rule for errors.
//
// The rule: an error of a commit is final for the process. What the kernel did with the pages after a write or fsync that
// went wrong nobody can ask, so nothing may be built on them. One case is proven: a write refused for want of space. bbolt
// writes to free pages first and to its meta page last, so the state on disk is the one before; once a test write succeeds,
// the file is closed, checked and opened as a restart would do it, and goes on.
type file struct {
	dir   *datadir.Dir
	name  string
	delay time.Duration
	log   zerolog.Logger

	buckets [][]byte       // those of a new file; meta is there by itself
	content func() content // judges the records of a file that is opened

	jobs chan *job
	quit chan struct{}
	stop sync.Once
	done chan struct{} // closed when the committer has ended

	// fault is set once something went wrong; every call is refused while it is.
	fault atomic.Pointer[fault]

	mu sync.RWMutex // held shared by readers; exclusively while db is replaced or closed
	db *bolt.DB
}

// content is asked about each record outside the meta bucket, then about the whole.
type content interface {
	record(path []string, k, v []byte) error
	end(meta map[string]string, records int64) error
}

// fault is why the file can't be used.
type fault struct {
	err     error
	full    bool // out of space: tried again at most every retry
	corrupt bool // the file's content is wrong: reading is refused too
	tried   time.Time
}

// job is one call that wants to change the file. wrote is set where do changed something.
type job struct {
	ctx   context.Context
	do    func(tx *bolt.Tx) (wrote bool, err error)
	err   error
	ready chan struct{}
}

// errNothing rolls a transaction back in which no job changed anything.
var errNothing = errors.New("nothing to write")

func openFile(f *file) (*file, error) {
	existed, err := f.dir.Expect(f.name)
	if err != nil {
		return nil, err
	}
	path := f.path()
	_, err = os.Lstat(path)
	made := false
	switch {
	case existed || err == nil:
	case errors.Is(err, fs.ErrNotExist):
		if err := f.create(); err != nil {
			return nil, fmt.Errorf("%s can't be made: %w. Free space in data_dir and make it writable", path, err)
		}
		made = true
	default:
		return nil, err
	}
	db, n, err := f.load()
	if err != nil {
		return nil, err
	}
	if !existed {
		// Left by a first start that ended before it could record the file: then nothing was granted from it.
		if n > 0 {
			db.Close()
			return nil, fmt.Errorf("%s has %d entries but identity.json does not list it: the two come from different times or places. Put back the identity.json that belongs to it, or move %s away", path, n, path)
		}
		if err := f.dir.Record(f.name); err != nil {
			db.Close()
			return nil, err
		}
	}
	if made {
		f.log.Warn().Str("file", path).Msgf("first start: made a new, empty %s; what was handed out from elsewhere before is not known here", f.name)
	}
	if fs := f.dir.Network(); fs != "" {
		f.log.Warn().Str("file", path).Msgf("data_dir is on %s: its lock may not keep out another machine, and a second instance on the same files repeats IDs. Prefer a local disk", fs)
	}
	f.db = db
	f.jobs, f.quit, f.done = make(chan *job, maxBatch), make(chan struct{}), make(chan struct{})
	go f.run()
	return f, nil
}

func (f *file) path() string { return f.dir.Path(f.name) }

func boltOptions() *bolt.Options {
	// The lock of the data directory came first; the timeout is for a file that somebody else inspects.
	return &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType, NoStatistics: true}
}

// create makes the file under another name first, so that a half-made one is never taken for a whole one.
func (f *file) create() error {
	temp := f.path() + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bolt.Open(temp, 0o600, boltOptions())
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucket(metaBucket)
		if err != nil {
			return err
		}
		if err := meta.Put(formatKey, []byte(format)); err != nil {
			return err
		}
		if err := meta.Put(dirKey, []byte(f.dir.ID())); err != nil {
			return err
		}
		if err := meta.Put(countKey, []byte("0")); err != nil {
			return err
		}
		for _, name := range f.buckets {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		os.Remove(temp)
		return err
	}
	if err := os.Rename(temp, f.path()); err != nil {
		return err
	}
	return datadir.SyncDir(f.dir.Path("."))
}

// load opens the file after a check of everything in it, and answers how many records it has.
func (f *file) load() (db *bolt.DB, n int64, err error) {
	damaged := func(err error) error {
		return fmt.Errorf("%s is damaged: %w. Put back the file as it was last; if it is lost, nobody knows what was handed out: begin with another data_dir above every ID that was used", f.path(), err)
	}
	meta, content := map[string]string{}, f.content()
	err = checkFile(f.path(), func(path []string, k, v []byte) error {
		if len(path) == 1 && path[0] == string(metaBucket) {
			meta[string(k)] = string(v)
			return nil
		}
		n++
		return content.record(path, k, v)
	})
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return nil, 0, fmt.Errorf("%s can't be read: %w. Make it readable for this user", f.path(), pe.Err)
	}
	if err != nil {
		return nil, 0, damaged(err)
	}
	switch v := meta[string(formatKey)]; {
	case v == "":
		return nil, 0, damaged(errors.New("it has no format"))
	case v != format:
		return nil, 0, fmt.Errorf("%s has format %.20q and this version reads %s: it was written by another Redleaf. Start that version", f.path(), v, format)
	}
	if id := meta[string(dirKey)]; id != f.dir.ID() {
		return nil, 0, fmt.Errorf("%s belongs to another data directory (%.40q, this one is %q): put back its own file", f.path(), id, f.dir.ID())
	}
	if err := content.end(meta, n); err != nil {
		return nil, 0, damaged(err)
	}

	err = guarded(func() error {
		db, err = bolt.Open(f.path(), 0o600, boltOptions())
		return err
	})
	switch {
	case err == nil:
	case errors.Is(err, berrors.ErrTimeout):
		return nil, 0, fmt.Errorf("%s is locked by another process: end the program that has it open", f.path())
	case errors.As(err, &pe):
		return nil, 0, fmt.Errorf("%s can't be opened: %w. Make it readable and writable for this user", f.path(), pe.Err)
	default:
		return nil, 0, damaged(err)
	}
	err = guarded(func() error {
		return db.View(func(tx *bolt.Tx) error {
			for _, name := range f.buckets {
				if tx.Bucket(name) == nil {
					return fmt.Errorf("its bucket %s is missing", name)
				}
			}
			return nil
		})
	})
	if err != nil {
		closeQuietly(db)
		return nil, 0, damaged(err)
	}
	return db, n, nil
}

// closeQuietly closes a database that may have been left in the middle of a panic, where Close can wait for ever.
func closeQuietly(db *bolt.DB) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		guarded(db.Close)
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// guarded runs fn and answers a panic as an error, also that of touching a mapped page that is not in the file.
func guarded(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p}
		}
	}()
	return fn()
}

type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprint(e.value) }

// view reads. What it sees was committed.
func (f *file) view(ctx context.Context, fn func(tx *bolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return &segment.UnavailableError{Cause: err}
	}
	if ft := f.fault.Load(); ft != nil && ft.corrupt {
		return &segment.RefusedError{Cause: ft.err}
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.db == nil {
		return f.closedError()
	}
	err := guarded(func() error { return f.db.View(fn) })
	if pe := (*panicError)(nil); errors.As(err, &pe) {
		return f.fail(pe)
	}
	return err
}

func (f *file) closedError() error {
	if ft := f.fault.Load(); ft != nil {
		return &segment.RefusedError{Cause: ft.err}
	}
	return segment.ErrClosed
}

// update runs do in a transaction that is durable when update returns nil. do may share the transaction with others, runs in
// the committer's goroutine, and must not have written anything where it returns an error.
func (f *file) update(ctx context.Context, do func(tx *bolt.Tx) (wrote bool, err error)) error {
	if err := ctx.Err(); err != nil {
		return &segment.UnavailableError{Cause: err}
	}
	j := &job{ctx: ctx, do: do, ready: make(chan struct{})}
	select {
	case f.jobs <- j:
	case <-ctx.Done():
		return &segment.UnavailableError{Cause: ctx.Err()}
	case <-f.quit:
		return segment.ErrClosed
	}
	select {
	case <-j.ready:
		return j.err
	case <-ctx.Done(): // it may still be committed: then it is a hole (I3)
		return &segment.UnavailableError{Cause: ctx.Err()}
	case <-f.done:
		select {
		case <-j.ready:
			return j.err
		default:
			return segment.ErrClosed
		}
	}
}

// run is the committer: it takes all jobs that wait and commits them together, so the number of fsyncs follows the disk and
// not the number of tags.
func (f *file) run() {
	defer close(f.done)
	for {
		var batch []*job
		select {
		case j := <-f.jobs:
			batch = append(batch, j)
		case <-f.quit:
			return
		}
		if f.delay > 0 {
			t := time.NewTimer(f.delay)
			select {
			case <-t.C:
			case <-f.quit:
				t.Stop()
			}
		}
	more:
		for len(batch) < maxBatch {
			select {
			case j := <-f.jobs:
				batch = append(batch, j)
			default:
				break more
			}
		}
		f.commit(batch)
		for _, j := range batch {
			close(j.ready)
		}
	}
}

func (f *file) commit(batch []*job) {
	if ft := f.fault.Load(); ft != nil && !f.recover(ft) {
		for _, j := range batch {
			j.err = &segment.RefusedError{Cause: ft.err}
		}
		return
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	err := guarded(func() error {
		return f.db.Update(func(tx *bolt.Tx) error {
			any := false
			for _, j := range batch {
				if err := j.ctx.Err(); err != nil {
					j.err = &segment.UnavailableError{Cause: err}
					continue
				}
				wrote, err := j.do(tx)
				j.err = err
				any = any || wrote
			}
			if !any {
				return errNothing
			}
			return nil
		})
	})
	if err == nil || err == errNothing {
		return
	}
	refused := f.fail(err)
	for _, j := range batch {
		j.err = refused
	}
}

// fail notes what went wrong and answers it as a refusal.
func (f *file) fail(err error) error {
	ft := &fault{}
	var pe *fs.PathError
	var pnc *panicError
	switch {
	case errors.As(err, &pnc):
		ft.corrupt = true
		ft.err = fmt.Errorf("%s is damaged: %w. Stop, check the disk, put back the file as it was last", f.path(), err)
	case errors.As(err, &pe) && pe.Op == "write" && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)):
		ft.full = true
		ft.err = fmt.Errorf("%s can't grow: %w. Free space in data_dir; it goes on by itself then", f.path(), pe.Err)
	default:
		ft.err = fmt.Errorf("%s can't be written: %w. Check the disk, then restart: what was written since can't be trusted before", f.path(), err)
	}
	ft.tried = time.Now()
	if f.fault.Swap(ft) == nil {
		f.log.Error().Err(ft.err).Msg("no IDs are granted from here until this is cured")
	}
	return &segment.RefusedError{Cause: ft.err}
}

// recover tries to go on after a full disk, and says whether the file can be used. Only the committer calls it.
func (f *file) recover(ft *fault) bool {
	if !ft.full || time.Since(ft.tried) < retry {
		return false
	}
	ft = &fault{err: ft.err, full: true, tried: time.Now()}
	f.fault.Store(ft)
	if !f.hasSpace() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.db != nil {
		closeQuietly(f.db)
		f.db = nil
	}
	db, _, err := f.load()
	if err != nil {
		f.fault.Store(&fault{err: err, corrupt: true})
		f.log.Error().Err(err).Msg("the file can't be used after the disk was full")
		return false
	}
	f.db = db
	f.fault.Store(nil)
	f.log.Warn().Str("file", f.path()).Msg("there is space again: IDs are granted again")
	return true
}

// hasSpace writes and removes a small file: free blocks by statfs say nothing about quotas and reserved blocks.
func (f *file) hasSpace() bool {
	name := f.path() + ".space"
	defer os.Remove(name)
	w, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return false
	}
	defer w.Close()
	_, err = w.Write(make([]byte, 256<<10))
	return err == nil && w.Sync() == nil
}

// check is for the heartbeat: it notices a replaced directory, and ends a fault that has passed.
func (f *file) check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return &segment.UnavailableError{Cause: err}
	}
	if err := f.dir.Check(); err != nil {
		return f.fail(err)
	}
	if f.fault.Load() == nil {
		return nil
	}
	return f.update(ctx, func(*bolt.Tx) (bool, error) { return false, nil })
}

// close waits for the commit in progress; jobs that still wait are answered ErrClosed.
func (f *file) close() error {
	f.stop.Do(func() { close(f.quit) })
	<-f.done
	f.mu.Lock()
	defer f.mu.Unlock()
	db := f.db
	f.db = nil
	if db == nil {
		return nil
	}
	if ft := f.fault.Load(); ft != nil {
		closeQuietly(db)
		return nil
	}
	return db.Close()
}
