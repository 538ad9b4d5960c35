// Package local is the worker registry of a single machine: one configured number, and its bound in data_dir/snowflake.db.
//
// The bound is the highest timestamp that may have been issued with the number. It is on disk before a timestamp is used (I7),
// some seconds ahead at a time, so that a disk write is no part of an ID. After a crash the next run starts above the bound and
// waits for the clock to get there; a clean stop leaves the last timestamp itself, and the next run need not wait.
//
// Each number keeps its own bound: changing snowflake.worker_id and changing it back repeats nothing. Layout and epoch stand
// beside them, since with others the same number and time make other bits.
//
// Nothing here can know of a copy of the data directory, or of an older state put back: then the same windows are granted twice.
package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"redleaf/conf/datadir"
	"redleaf/snowflake"
)

const (
	// reserve is how far beyond the timestamp it was asked for an extension goes. With the second that the generator asks
	// ahead, a crash leaves the bound at most three seconds ahead of the clock.
	reserve = 2 * time.Second
	// longStop is how far the clock may be past the bound at a start without the operator's word.
	longStop = 30 * 24 * time.Hour
)

// Options of Open.
type Options struct {
	Worker int64 // snowflake.worker_id
	Layout snowflake.Layout
	Clock  snowflake.Clock // nil: the machine's
	// AcceptClock lets a start through whose clock is more than 30 days past the bound (snowflake.accept_clock).
	AcceptClock bool
	Log         zerolog.Logger
}

// Registry implements snowflake.WorkerIDs with one number.
type Registry struct {
	o    Options
	dir  *datadir.Dir
	file *file

	// io is held over every call that reads or writes the file, and a disk may take its time or hang. So it is never needed to
	// say how things stand.
	io chan struct{}

	mu     sync.Mutex // guards the rest; changed with io held too
	since  time.Time
	held   *worker
	reason string // why it waits or refuses
	broken error  // the file can't be trusted any more; until a restart
	closed bool
}

// begin waits for the file and says whether it can be worked with; end follows in any case but an error.
func (r *Registry) begin(ctx context.Context) error {
	select {
	case r.io <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", r.file.path, ctx.Err())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	switch {
	case r.closed:
		err = snowflake.ErrClosed
	case r.broken != nil:
		err = &snowflake.NoWorkerError{Cause: r.broken, Permanent: true}
	default:
		return nil
	}
	r.end()
	return err
}

func (r *Registry) end() { <-r.io }

// set changes what Status tells.
func (r *Registry) set(held *worker, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if held != r.held {
		r.held, r.since = held, time.Now()
	}
	r.reason = reason
}

func (r *Registry) holds(w *worker) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held == w
}

var (
	_ snowflake.WorkerIDs = (*Registry)(nil)
	_ snowflake.Worker    = (*worker)(nil)
)

// Open opens data_dir/snowflake.db, or makes it if the directory never had one. An error names the file or setting and the way
// out, and nothing was changed.
func Open(d *datadir.Dir, o Options) (*Registry, error) {
	if err := o.Layout.Validate(); err != nil {
		return nil, err
	}
	if o.Worker < 0 || o.Worker >= o.Layout.Workers() {
		return nil, fmt.Errorf("snowflake.worker_id %d does not fit snowflake.bits %s: it must be 0 to %d", o.Worker, o.Layout, o.Layout.Workers()-1)
	}
	if o.Clock == nil {
		o.Clock = snowflake.SystemClock{}
	}
	f, err := openFile(d, o.Layout, o.Log)
	if err != nil {
		return nil, err
	}
	return &Registry{o: o, dir: d, file: f, io: make(chan struct{}, 1), since: time.Now(), reason: "no worker number claimed yet"}, nil
}

// Acquire claims the configured number. There is no other, so avoid is of no effect.
func (r *Registry) Acquire(ctx context.Context, avoid int64) (snowflake.Worker, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	defer r.end()
	if !r.holds(nil) {
		return nil, &snowflake.NoWorkerError{Cause: fmt.Errorf("worker %d is held already", r.o.Worker)}
	}
	now := r.o.Clock.Now()
	rec, ok, err := r.file.get(r.o.Worker)
	if err != nil {
		return nil, r.fail(err)
	}
	if !ok {
		// Only the operator's setting says that this number is ours, so it is said aloud; it begins now, not at the epoch.
		rec = record{Bound: max(now, 0)}
		if err := r.write(rec); err != nil {
			return nil, err
		}
		r.o.Log.Warn().Int64("worker", r.o.Worker).Str("file", r.file.path).
			Msg("this worker number was never used from this data directory: beginning its history. No other instance may use it")
	}
	if past := now - rec.Bound; past > longStop.Milliseconds() && !r.o.AcceptClock {
		err := fmt.Errorf("the clock (%s) is %d days past the last use of worker %d in %s (%s): if the instance really rested so long, set snowflake.accept_clock = true for one start; else set this machine's clock right",
			date(now), past/(24*time.Hour).Milliseconds(), r.o.Worker, r.file.path, date(rec.Bound))
		r.set(nil, err.Error())
		return nil, &snowflake.NoWorkerError{Cause: err, Permanent: true}
	}
	w := &worker{r: r, id: r.o.Worker, base: rec.Bound, lost: make(chan struct{})}
	w.until.Store(rec.Bound)
	r.set(w, "")
	return w, nil
}

// write makes a record durable; io is held. Whatever it returns but nil, the record may or may not be on disk, and grants
// nothing.
func (r *Registry) write(rec record) error {
	if err := r.dir.Check(); err != nil {
		return r.fail(err)
	}
	err := r.file.put(r.o.Worker, rec)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &snowflake.NoWorkerError{Cause: fmt.Errorf("%s can't be written: %w. Free space there; IDs flow again then", r.file.path, err)}
	}
	return r.fail(fmt.Errorf("%s can't be written: %w", r.file.path, err))
}

// fail ends the work with the file until a restart reads it anew: after a failed write or sync nobody can tell what the disk
// has, and a later one that succeeds proves nothing about it.
func (r *Registry) fail(err error) error {
	err = fmt.Errorf("%w. Stopped for safety: cure it and restart", err)
	r.mu.Lock()
	r.broken, r.reason = err, err.Error()
	r.mu.Unlock()
	r.o.Log.Error().Err(err).Int64("worker", r.o.Worker).Msg("the local worker state is not used any more")
	return &snowflake.NoWorkerError{Cause: err, Permanent: true}
}

// Time is always ErrNoClock: a file has no clock.
func (r *Registry) Time(context.Context) (int64, error) { return 0, snowflake.ErrNoClock }

// Status tells what is held and why not.
func (r *Registry) Status() snowflake.RegistryStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := snowflake.RegistryStatus{
		Registry: "local", State: "waiting", Reason: r.reason, Worker: -1, Identity: r.dir.ID(),
		Since: r.since, Free: 1, Total: 1, Session: true,
	}
	if r.held != nil {
		st.State, st.Worker, st.Window, st.Free = "serving", r.held.id, r.held.Window(), 0
	}
	switch {
	case r.closed:
		st.State, st.Worker, st.Session = "stopped", -1, false
	case r.broken != nil:
		st.State, st.Session = "fenced", false
	}
	return st
}

// Close closes the file. The data directory stays open.
func (r *Registry) Close(ctx context.Context) error {
	select {
	case r.io <- struct{}{}:
		defer r.end()
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", r.file.path, ctx.Err())
	}
	r.mu.Lock()
	closed := r.closed
	r.closed, r.held = true, nil
	r.mu.Unlock()
	if closed {
		return nil
	}
	return r.file.close()
}

// worker is the number while it is held.
type worker struct {
	r     *Registry
	id    int64
	base  int64
	until atomic.Int64
	lost  chan struct{} // nobody takes it away, so it is never closed
}

func (w *worker) ID() int64 { return w.id }

func (w *worker) Window() snowflake.Window {
	return snowflake.Window{Base: w.base, Until: w.until.Load()}
}

func (w *worker) Lost() <-chan struct{} { return w.lost }

// Extend writes a bound beyond ts and grants it when it is on disk.
func (w *worker) Extend(ctx context.Context, ts int64) (snowflake.Window, error) {
	r := w.r
	if err := ctx.Err(); err != nil {
		return w.Window(), err
	}
	if err := w.begin(ctx); err != nil {
		return w.Window(), err
	}
	defer r.end()
	if ts <= w.until.Load() {
		return w.Window(), nil
	}
	until := min(ts+reserve.Milliseconds(), max(ts, r.o.Layout.Last()))
	if err := r.write(record{Bound: until}); err != nil {
		r.set(w, err.Error())
		return w.Window(), err
	}
	w.until.Store(until)
	r.set(w, "")
	return w.Window(), nil
}

// Release writes the last timestamp in place of the bound, so that the next start need not wait for it.
func (w *worker) Release(ctx context.Context, last int64) error {
	r := w.r
	if err := w.begin(ctx); err != nil {
		return err
	}
	defer r.end()
	if last > w.until.Load() {
		return r.fail(fmt.Errorf("worker %d was released at %d, beyond its window %v: this is a bug", w.id, last, w.Window()))
	}
	r.set(nil, "the worker number was given back") // whatever becomes of the write, it is not extended any more
	if last = max(last, w.base); last == w.until.Load() {
		return nil // nothing was reserved beyond it
	}
	return r.write(record{Bound: last, Clean: true})
}

// begin is the registry's, for a number that is still held.
func (w *worker) begin(ctx context.Context) error {
	if err := w.r.begin(ctx); err != nil {
		return err
	}
	if !w.r.holds(w) {
		w.r.end()
		return &snowflake.NoWorkerError{Cause: fmt.Errorf("worker %d was given back", w.id)}
	}
	return nil
}

func date(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
