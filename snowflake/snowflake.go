// Package snowflake makes 63-bit IDs from the time, a worker number and a sequence, in a process that shares nothing with the
// others but the registry that gave it its worker number.
//
// # The arithmetic
//
// With the layout 41-10-12 an ID is
//
//	0 | milliseconds since the epoch, 41 bits | worker, 10 bits | sequence, 12 bits
//
// 41 bits of milliseconds last 69.7 years, 2080-07-10 from the default epoch. 12 bits of sequence are 4,096 IDs in a
// millisecond, 4,096,000 in a second, for each of 1,024 workers. 41-3-9 fits the 53 bits that JavaScript can hold: 8 workers,
// 512,000 IDs a second each. IDs order by time first, so that one process' IDs increase, and those of several do roughly.
//
// # Windows
//
// Two things could make an ID come twice: two processes that hold one worker number, or one process that uses a millisecond
// twice because its clock went back, before or after a restart. Neither leases nor clocks exclude them: a paused process does
// not know that its lease is over. So a number comes with a window (Window): the registry keeps the highest timestamp granted
// so far, raises it before it is used, and the next window of that number, whoever gets it, begins above. An ID is issued only
// with base < timestamp <= until (I7). What a zombie does inside its old window can't meet what its successor does in the next.
//
// # The way of an ID
//
// Next reads the clock, and one compare-and-swap moves the issuer's state on to a timestamp and sequence that nobody had
// (issuer.go). When that can't be done now, it waits as short as it can with nothing held and tries again, or says why not. All
// else runs beside it: serve.go gets and keeps a worker number and its window, timeline.go decides how far to believe the clock.
package snowflake

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// Options of a Generator.
type Options struct {
	Layout    Layout
	ClockWait time.Duration // longest a call waits for a clock that stepped back; 0: not at all
	// Policy says what happens when the clock is back by more: "refuse" (or empty), or "logical": go on from the last timestamp,
	// one millisecond at most for each that passes, until the clock has caught up.
	Policy  string
	MaxSkew time.Duration // largest distance to the registry's clock at a start; 0: 5 s
	// AcceptClock lets a start through whose clock is more than 30 days past what the number's last run left behind.
	AcceptClock bool
	Log         zerolog.Logger
}

// Generator issues IDs. Its methods are safe for concurrent use.
type Generator struct {
	o       Options
	ids     WorkerIDs
	clock   PairClock
	log     zerolog.Logger
	logical bool
	mono0   time.Duration // clocks when it was made
	wall0   time.Duration
	seed    func() uint64

	cur  atomic.Pointer[issuer] // nil: no number to issue with, see why
	line atomic.Int64           // wall - mono, in ns, as last vouched for; see read

	_      [64]byte // written with every ID
	issued atomic.Uint64
	_      [56]byte

	turn    chan struct{} // a token: who holds it takes large runs; see Append
	singles atomic.Int64  // callers of Next that wait for the next millisecond

	waited, refused, overflows, jumps, extends, extendErrs, lost atomic.Uint64

	hasClock                                       atomic.Bool // the registry's clock has been read once
	doubted                                        atomic.Bool // a step ahead of the clock is not followed now
	alarmed                                        atomic.Bool // refusing, or on logical time: say when it is over
	backLogged, jumpLogged, skewLogged, failLogged atomic.Int64

	leave chan *issuer // asks serve to give up the number of this issuer

	mu       sync.Mutex // guards the rest
	why      error      // why cur is nil; nil: the registry knows
	prev     int64      // last ID of the numbers held before
	prevTs   int64      // and its timestamp
	highest  map[int64]int64
	running  bool
	closing  bool
	stop     context.CancelFunc
	stopped  chan struct{}
	closeCtx context.Context
	closeErr error
}

// New makes a Generator on a registry. It issues nothing before Start. An error says which setting can't work.
func New(ids WorkerIDs, clock Clock, o Options) (*Generator, error) {
	if err := o.Layout.Validate(); err != nil {
		return nil, err
	}
	switch {
	case o.ClockWait < 0:
		return nil, fmt.Errorf("snowflake.clock_wait %s is negative", o.ClockWait)
	case o.MaxSkew < 0:
		return nil, fmt.Errorf("snowflake.max_skew %s is negative", o.MaxSkew)
	case o.MaxSkew == 0:
		o.MaxSkew = 5 * time.Second
	}
	if o.Policy != "" && o.Policy != "refuse" && o.Policy != "logical" {
		return nil, fmt.Errorf("snowflake.clock_policy %q: it is refuse or logical", o.Policy)
	}
	if err := o.Layout.usedUp(clock.Now()); err != nil {
		return nil, err
	}
	g := &Generator{
		o:       o,
		ids:     ids,
		clock:   pair(clock),
		log:     o.Log,
		logical: o.Policy == "logical",
		seed:    rand.Uint64,
		turn:    make(chan struct{}, 1),
		leave:   make(chan *issuer, 1),
		highest: map[int64]int64{},
		stopped: make(chan struct{}),
	}
	g.turn <- struct{}{}
	g.wall0, g.mono0 = g.clock.Read()
	g.vouch()
	if left := o.Layout.Left(clock.Now()); left < year {
		g.log.Warn().Int("days", int(left/day)).Msg("the time bits of snowflake.bits are used up within a year: plan a new layout or epoch")
	}
	return g, nil
}

// TryNext issues an ID if that needs no wait.
func (g *Generator) TryNext() (id int64, ok bool) {
	i := g.cur.Load()
	if i == nil {
		return 0, false
	}
	a := g.take(i, 1, 1, 0)
	return a.first, a.verdict == issued
}

// TryAppend appends n IDs of one run to dst if that needs no wait and they fit into one millisecond; otherwise it consumes
// nothing.
func (g *Generator) TryAppend(dst []int64, n int) ([]int64, bool) {
	i := g.cur.Load()
	if i == nil || n < 1 {
		return dst, false
	}
	a := g.take(i, int64(n), int64(n), 0)
	return appendRun(dst, a), a.verdict == issued
}

// Next issues an ID. It waits at most ClockWait for a clock that stepped back, and else for the next millisecond when this
// one's sequence is used up, or for the window to be made durable; never longer than ctx. Errors: *NoWorkerError,
// *ClockBackError, *TimeUpError, ErrClosed, ctx's. Nothing is issued then.
func (g *Generator) Next(ctx context.Context) (int64, error) {
	p := patience{g: g}
	defer p.end()
	for {
		i := g.cur.Load()
		if i == nil {
			return 0, g.noWorker()
		}
		a := g.take(i, 1, 1, 0)
		if a.verdict == issued {
			return a.first, nil
		}
		if a.verdict == isFull {
			p.single()
		}
		if err := p.wait(ctx, i, a); err != nil {
			return 0, err
		}
	}
}

// Append appends n increasing IDs to dst, in runs as long as a millisecond has left. Callers of Next get theirs between the
// runs, and others with large n get a millisecond in turn. Errors are those of Next; dst comes back as it was then, and the IDs
// taken so far are lost.
func (g *Generator) Append(ctx context.Context, dst []int64, n int) ([]int64, error) {
	if n < 0 {
		return dst, fmt.Errorf("%d IDs: the number can't be negative", n)
	}
	out, ok := g.TryAppend(slices.Grow(dst, n), n)
	if ok || n == 0 {
		return out, nil
	}
	p := patience{g: g}
	defer p.end()
	for left := int64(n); left > 0; {
		if err := p.takeTurn(ctx); err != nil {
			return dst, err
		}
		i := g.cur.Load()
		if i == nil {
			return dst, g.noWorker()
		}
		a := g.take(i, 1, left, min(g.singles.Load(), (i.mask+1)/2))
		if a.verdict == issued {
			out = appendRun(out, a)
			left -= a.n
			p.passTurn()
			continue
		}
		if a.verdict == isNotWhole { // what is left of this millisecond is for those who want one
			a.verdict = isFull
		}
		if a.verdict != isFull { // a wait of another kind is everybody's own
			p.passTurn()
		}
		if err := p.wait(ctx, i, a); err != nil {
			return dst, err
		}
	}
	return out, nil
}

func appendRun(dst []int64, a attempt) []int64 {
	for k := range a.n {
		dst = append(dst, a.first+k)
	}
	return dst
}

// Last is the last ID issued here, 0 if there was none.
func (g *Generator) Last() int64 {
	if i := g.cur.Load(); i != nil {
		if id, _ := i.id(i.state.Load()); id != 0 {
			return id
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.prev
}

// Layout is how the IDs are put together.
func (g *Generator) Layout() Layout { return g.o.Layout }
