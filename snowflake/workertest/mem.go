package workertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"redleaf/snowflake"
)

// Op is a call about to reach a Mem. Worker is -1 where none is known yet, At is Extend's or Release's timestamp.
type Op struct {
	Call   string // "acquire", "extend", "release", "time"
	Name   string // the instance
	Worker int64
	At     int64
}

// Mem is a registry in memory: a slot for each worker number with the bound granted so far, shared by the instances opened on
// it. It outlives them, as a disk or an ensemble would.
type Mem struct {
	// Reserve is what Extend adds to the timestamp it was asked for. 0: nothing.
	Reserve time.Duration
	// Most is the highest timestamp granted, Unix ms; an Extend that asks for more gets an error and what there is. 0: no limit.
	Most  int64
	mu    sync.Mutex
	slots []slot
	fault func(Op) (apply bool, err error)
	time  func() (int64, error)
	skew  time.Duration
}

type slot struct {
	until int64
	owner *memWorker // nil: free
}

// NewMem makes a registry of n worker numbers, none of them used before. It has no clock of its own until SetTime.
func NewMem(n int) *Mem { return &Mem{Reserve: 2 * time.Second, slots: make([]slot, n)} }

// SetFault sets a hook that runs before each call, without a lock held, so that it may block too. A nil error lets the call go
// on; otherwise the call returns it, and apply says whether the registry was changed all the same: failed and not applied, or
// failed but applied.
func (m *Mem) SetFault(f func(Op) (apply bool, err error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

// SetTime gives the registry a clock; nil takes it away.
func (m *Mem) SetTime(f func() (int64, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.time = f
}

// SetSkew sets what Status says about this machine's clock, as a renewal would have measured it.
func (m *Mem) SetSkew(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.skew = d
}

// SetUntil writes the bound of a number, as a former owner or an operator would have left it.
func (m *Mem) SetUntil(worker, until int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slots[worker].until = until
}

// Until is the bound of a number as the registry has it.
func (m *Mem) Until(worker int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slots[worker].until
}

// Lose takes a number away from its owner, as another's claim or an operator would.
func (m *Mem) Lose(worker int64) {
	m.mu.Lock()
	w := m.slots[worker].owner
	m.slots[worker].owner = nil
	m.mu.Unlock()
	if w != nil {
		w.lose()
	}
}

func (m *Mem) call(op Op) (apply bool, err error) {
	m.mu.Lock()
	f := m.fault
	m.mu.Unlock()
	if f == nil {
		return true, nil
	}
	apply, err = f(op)
	return apply || err == nil, err
}

// Open starts an instance. Two instances of one name are two instances.
func (m *Mem) Open(name string) *MemIDs { return &MemIDs{mem: m, name: name, since: time.Now()} }

// MemIDs is one instance's view of a Mem.
type MemIDs struct {
	mem    *Mem
	name   string
	since  time.Time
	mu     sync.Mutex
	held   *memWorker
	closed bool
}

var (
	_ snowflake.WorkerIDs = (*MemIDs)(nil)
	_ snowflake.Worker    = (*memWorker)(nil)
)

func (r *MemIDs) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

func (r *MemIDs) Acquire(ctx context.Context, avoid int64) (snowflake.Worker, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.isClosed() {
		return nil, snowflake.ErrClosed
	}
	apply, err := r.mem.call(Op{Call: "acquire", Name: r.name, Worker: -1})
	var w *memWorker
	if apply {
		w = r.mem.claim(r, avoid)
	}
	switch {
	case err != nil:
		return nil, &snowflake.NoWorkerError{Cause: err}
	case w == nil:
		return nil, &snowflake.NoWorkerError{Cause: errors.New("no free worker number")}
	}
	r.mu.Lock()
	r.held = w
	r.mu.Unlock()
	return w, nil
}

// claim takes the first free number that is not to be avoided, and that one only when there is no other.
func (m *Mem) claim(r *MemIDs, avoid int64) *memWorker {
	m.mu.Lock()
	defer m.mu.Unlock()
	best := int64(-1)
	for n := range m.slots {
		if m.slots[n].owner == nil && (best < 0 || best == avoid) {
			best = int64(n)
		}
	}
	if best < 0 {
		return nil
	}
	w := &memWorker{ids: r, id: best, base: m.slots[best].until, lost: make(chan struct{})}
	w.until.Store(w.base)
	m.slots[best].owner = w
	return w
}

func (r *MemIDs) Time(ctx context.Context) (int64, error) {
	if _, err := r.mem.call(Op{Call: "time", Name: r.name, Worker: -1}); err != nil {
		return 0, err
	}
	r.mem.mu.Lock()
	f := r.mem.time
	r.mem.mu.Unlock()
	if f == nil {
		return 0, snowflake.ErrNoClock
	}
	return f()
}

func (r *MemIDs) Status() snowflake.RegistryStatus {
	r.mu.Lock()
	held, closed := r.held, r.closed
	r.mu.Unlock()
	r.mem.mu.Lock()
	free := int64(0)
	for _, s := range r.mem.slots {
		if s.owner == nil {
			free++
		}
	}
	total, skew := int64(len(r.mem.slots)), r.mem.skew
	r.mem.mu.Unlock()
	st := snowflake.RegistryStatus{
		Registry: "memory", State: "waiting", Worker: -1, Identity: r.name, Session: !closed,
		Since: r.since, Free: free, Total: total, Skew: skew, SkewOK: true,
	}
	switch {
	case closed:
		st.State = "stopped"
	case held != nil:
		st.State, st.Worker, st.Window = "serving", held.id, held.Window()
	default:
		st.Reason = "no worker number claimed yet"
	}
	return st
}

// Close ends the instance. A number it did not release stays claimed until Kill or Lose.
func (r *MemIDs) Close(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

// Kill ends the instance as kill -9 does, and frees its number: whoever takes it starts above the bound it had.
func (r *MemIDs) Kill() {
	r.mu.Lock()
	w := r.held
	r.closed, r.held = true, nil
	r.mu.Unlock()
	if w == nil {
		return
	}
	r.mem.mu.Lock()
	if r.mem.slots[w.id].owner == w {
		r.mem.slots[w.id].owner = nil
	}
	r.mem.mu.Unlock()
}

type memWorker struct {
	ids   *MemIDs
	id    int64
	base  int64
	until atomic.Int64
	once  sync.Once
	lost  chan struct{}
}

func (w *memWorker) lose() { w.once.Do(func() { close(w.lost) }) }

func (w *memWorker) ID() int64 { return w.id }

func (w *memWorker) Window() snowflake.Window {
	return snowflake.Window{Base: w.base, Until: w.until.Load()}
}

func (w *memWorker) Lost() <-chan struct{} { return w.lost }

func (w *memWorker) Extend(ctx context.Context, ts int64) (snowflake.Window, error) {
	if err := ctx.Err(); err != nil {
		return w.Window(), &snowflake.NoWorkerError{Cause: err}
	}
	apply, err := w.ids.mem.call(Op{Call: "extend", Name: w.ids.name, Worker: w.id, At: ts})
	want := max(ts+w.ids.mem.Reserve.Milliseconds(), w.until.Load())
	if most := w.ids.mem.Most; most != 0 {
		want = max(min(want, most), w.until.Load())
	}
	if apply && !w.ids.mem.write(w, want, false) {
		return w.Window(), &snowflake.NoWorkerError{Cause: fmt.Errorf("worker %d is no longer ours", w.id)}
	}
	if err != nil { // whether applied or not, nothing more was granted
		return w.Window(), &snowflake.NoWorkerError{Cause: err}
	}
	w.until.Store(want)
	if want < ts {
		return w.Window(), &snowflake.NoWorkerError{Cause: fmt.Errorf("worker %d may issue up to %d", w.id, want)}
	}
	return w.Window(), nil
}

func (w *memWorker) Release(ctx context.Context, last int64) error {
	apply, err := w.ids.mem.call(Op{Call: "release", Name: w.ids.name, Worker: w.id, At: last})
	if apply {
		w.ids.mem.write(w, max(w.base, last), true)
	}
	w.ids.mu.Lock()
	if w.ids.held == w {
		w.ids.held = nil
	}
	w.ids.mu.Unlock()
	return err
}

// write is the registry's conditional write (I9): only the owner's takes effect.
func (m *Mem) write(w *memWorker, until int64, release bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.slots[w.id]
	if s.owner != w {
		return false
	}
	if release {
		s.until, s.owner = until, nil
	} else {
		s.until = max(s.until, until) // an extension that was applied unknown to its owner stays
	}
	return true
}
