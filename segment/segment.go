// Package segment hands out IDs from spans reserved in bulk from a Store, and has the next span ready before the current one
// runs out.
//
// # How an ID is made
//
// A row per tag says where the next ID is that nobody owns yet. Reserve moves it from a to a+n, and from then on the span
// [a, a+n) belongs to this process alone. An ID is then one atomic add: a span counts from 0, so that after
//
//	pos := s.pos.Add(1)
//
// the caller owns ID lo+pos-1 if pos <= size, and nothing otherwise. A counter past its end does no harm: each failing add
// came from a caller who then leaves the hot path, and a counter that starts at 0 (or at 2^62, once sealed) is not brought to
// 2^63 by adding ones. Taking n > 1 IDs is a compare-and-swap instead, so that a request that does not fit takes nothing.
//
// A span leaves by being used up or by being sealed: one atomic exchange of its counter with 2^62. What the exchange returns
// is exactly what was handed out before, and every later add fails. So at each moment at most one span of a tag gives IDs,
// and since spans are entered in the order of their bounds, IDs of one tag strictly increase (I5).
//
// # Where the next span comes from
//
// When a tenth of a span is used, the next one is asked for (refill.go). With spans of size n at a rate of r IDs a second
// there is 0.9*n/r of time to fetch it; where a refill takes longer than that, more than one is kept. The size of a refill
// is what was really issued in the last Target (size.go), so that one refill lasts about that long: calls to the store are
// rate/size per second, and a crash loses at most the spans held. Where the new span touches the last one they become one.
//
// Nothing on the path of a warm tag locks, allocates, reads a clock or asks the store (I15). A cold tag costs one load,
// however many wait for it.
//
// # What keeps IDs unique
//
// Reserve is a conditional write in the store, and an error from it transfers nothing (I3). The highest bound ever granted
// to this instance, its floor, goes along with each Reserve and is kept on disk (floors.go): a row that stands below it tells
// that the store went back, and stops the tag (check.go, I6).
package segment

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// Options are an Allocator's settings. The zero value of each means its default.
type Options struct {
	AutoCreate []string      // patterns (Redis' glob) of tags that a Take may create; none: unknown tags are refused
	Step       int64         // step of a tag that is created; default 1000
	MaxStep    int64         // most IDs one refill may take, unless one request needs more; default 1000000
	Target     time.Duration // how long one refill should last; default 15m
	Check      time.Duration // how often rows are compared with floors; default 5s
	MaxCount   int64         // largest n of Take; default 1000000
	MaxArray   int64         // largest n of TakeMany; default 10000
	MaxTags    int64         // tags kept in memory; default 1000000
	MaxRefills int           // refills at one time, over all tags; default 16
	Log        zerolog.Logger
	Now        func() time.Duration // a clock that never steps; nil: the process's own
}

func (o *Options) defaults() {
	set := func(p *int64, def int64) {
		if *p <= 0 {
			*p = def
		}
	}
	set(&o.MaxStep, 1_000_000)
	set(&o.Step, min(1000, o.MaxStep))
	set(&o.MaxCount, 1_000_000)
	set(&o.MaxArray, 10_000)
	set(&o.MaxTags, 1_000_000)
	if o.Target <= 0 {
		o.Target = 15 * time.Minute
	}
	if o.Check <= 0 {
		o.Check = 5 * time.Second
	}
	if o.MaxRefills <= 0 {
		o.MaxRefills = 16
	}
	if o.Now == nil {
		start := time.Now()
		o.Now = func() time.Duration { return time.Since(start) }
	}
}

// Allocator hands out the IDs of all tags. All its methods are safe for concurrent use.
type Allocator struct {
	store  Store
	floors Floors // nil: the store is on this machine and keeps its own
	o      Options

	tags  table
	neg   negatives
	queue queue
	saver saver

	closed  atomic.Bool
	loopCtx context.Context // ends when Close begins: pulses and checks
	endLoop context.CancelFunc
	loops   sync.WaitGroup
	ctx     context.Context // ends when Close has no time left: refills and saves
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	health  health // what the pulses say of the store
	check   checks
	count   cachedCount
	servers struct {
		mu    sync.Mutex
		names []string // a span keeps an index, counted from 1
	}
	stats counters
}

// New returns an Allocator over store. Nothing is asked of the store before Start. floors may be nil; see Floors.
func New(store Store, floors Floors, o Options) *Allocator {
	o.defaults()
	a := &Allocator{store: store, floors: floors, o: o}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.loopCtx, a.endLoop = context.WithCancel(a.ctx)
	a.tags.init()
	a.neg.init()
	a.queue.init(o.MaxRefills)
	a.check.init()
	a.count.init()
	a.health.init(o.Now)
	return a
}

// Start begins the work in the background: pulses, checks, refills. It returns at once; Ready tells when IDs can be had.
func (a *Allocator) Start() {
	a.loops.Go(a.pulseLoop)
	a.loops.Go(a.checkLoop)
}

// span is a granted range of which IDs are given. One cache line: a core that adds to pos has the bounds along with it.
type span struct {
	pos  atomic.Int64 // IDs given, counted from 0; past size once used up, sealed or beyond once sealed
	lo   int64
	size int64         // never changes once the span is current
	mark atomic.Int64  // the pos at which a refill is asked for
	at   time.Duration // when it became current
	// The rest matters to the slow paths only; guarded by tag.mu.
	next   *span  // the spare after this one
	server uint32 // who granted it (Allocator.serverName); 0: several
	taint  uint32 // Allocator.taint when it was granted
}

// sealed is what a span's counter is exchanged for. Adding ones brings it to no overflow within a lifetime.
const sealed = 1 << 62

// unusable is the current span of a tag that has none.
var unusable = &span{}

func newSpan(g Span, server, taint uint32) *span {
	s := &span{lo: g.Lo, size: g.Len(), server: server, taint: taint}
	s.setMark()
	return s
}

func (s *span) setMark() { s.mark.Store(s.tenth()) }

// tenth is when the next span is asked for at the latest.
func (s *span) tenth() int64 { return max(s.size/10, 1) }

func (s *span) hi() int64 { return s.lo + s.size }

func (s *span) used() int64 {
	pos := s.pos.Load()
	if pos >= sealed {
		return 0 // whoever sealed it has booked what was used
	}
	return min(pos, s.size)
}

func (s *span) left() int64 { return s.size - min(s.pos.Load(), s.size) }

// take takes n IDs, 1 <= n, or nothing. last is the highest of them; asks tells that the mark was crossed just now.
func (s *span) take(n int64) (last int64, asks, ok bool) {
	var pos int64
	if n == 1 {
		if pos = s.pos.Add(1); pos > s.size {
			return 0, false, false
		}
	} else {
		for {
			old := s.pos.Load()
			if n > s.size-old { // no sum: n may be large
				return 0, false, false
			}
			pos = old + n
			if s.pos.CompareAndSwap(old, pos) {
				break
			}
		}
	}
	if invariants {
		check(pos >= n && pos <= s.size, "IDs up to position %d of %d", pos, s.size) // I2
	}
	mark := s.mark.Load()
	return s.lo + pos - 1, pos >= mark && pos-n < mark, true
}

// seal ends s: no ID comes from it any more. It returns the first ID that was not given and how many are left from there.
func (s *span) seal() (from, left int64) {
	used := min(s.pos.Swap(sealed), s.size)
	return s.lo + used, s.size - used
}

// TryTake takes n contiguous IDs of a tag that is warm: (last-n, last]. It never waits, locks or allocates. Where ok is
// false nothing was taken, and Take says why or waits.
func (a *Allocator) TryTake(tag []byte, n int64) (last int64, ok bool) {
	t := a.tags.find(tag)
	if t == nil {
		return 0, false
	}
	s := t.cur.Load()
	if n == 1 { // take, by hand: most requests come through here
		pos := s.pos.Add(1)
		mark := s.mark.Load()
		if pos < mark && pos <= s.size {
			return s.lo + pos - 1, true
		}
		if pos > s.size {
			return 0, false
		}
		if pos == mark {
			a.ask(t)
		}
		return s.lo + pos - 1, true
	}
	if n < 1 || n > a.o.MaxCount {
		return 0, false
	}
	last, asks, ok := s.take(n)
	if asks {
		a.ask(t)
	}
	return last, ok
}

// Take takes n contiguous IDs: the caller owns (last-n, last]. It waits for refills until ctx ends, and then answers
// *AgainError. Other errors: ErrNoTag, *RegressedError, ErrExhausted, *StepError, *ClashError, *RefusedError, *CountError,
// *FullError, ErrClosed. On an error the caller owns nothing.
func (a *Allocator) Take(ctx context.Context, tag string, n int64) (last int64, err error) {
	if n < 1 || n > a.o.MaxCount {
		return 0, &CountError{N: n, Max: a.o.MaxCount}
	}
	for {
		t, err := a.tag(tag)
		if err != nil {
			return 0, err
		}
		last, gone, err := a.take(ctx, t, n)
		if !gone {
			return last, err
		}
	}
}

// take takes from t, or waits for its refill. gone: t has left memory meanwhile, look again.
func (a *Allocator) take(ctx context.Context, t *tag, n int64) (last int64, gone bool, err error) {
	t.mu.Lock()
	if t.gone {
		t.mu.Unlock()
		return 0, true, nil
	}
	last, ok := a.takeLocked(t, n)
	if ok {
		t.mu.Unlock()
		return last, false, nil
	}
	if err = a.refusal(t); err == nil && ctx.Err() != nil {
		err = &AgainError{Tag: t.name, Cause: a.cause(t)}
	}
	if err != nil {
		if !t.known && t.job == nil {
			a.forget(t)
		}
		t.mu.Unlock()
		return 0, false, err
	}
	w := &waiter{n: n, since: a.o.Now(), result: make(chan outcome, 1)}
	a.join(t, w)
	t.mu.Unlock()

	select {
	case r := <-w.result:
		return r.last, false, r.err
	case <-ctx.Done():
	}
	t.mu.Lock()
	cause := a.cause(t)
	left := a.leave(t, w)
	t.mu.Unlock()
	if !left { // served in the same moment
		r := <-w.result
		return r.last, false, r.err
	}
	return 0, false, &AgainError{Tag: t.name, Waited: a.o.Now() - w.since, Cause: cause}
}

// TakeMany appends n increasing IDs to dst, perhaps from several spans. On an error nothing is returned: what was taken until
// then is burnt, and counted. Errors are as Take's.
func (a *Allocator) TakeMany(ctx context.Context, dst []int64, tag string, n int64) ([]int64, error) {
	if n < 1 || n > a.o.MaxArray {
		return dst, &CountError{N: n, Max: a.o.MaxArray}
	}
	start := len(dst)
	for {
		have := int64(len(dst) - start)
		if have == n {
			return dst, nil
		}
		t, err := a.tag(tag)
		if err == nil {
			// What is there, in pieces; then the rest in one, since a refill is as large as the largest request.
			last, k := a.takeSome(t, n-have)
			if k == 0 {
				k = min(n-have, a.o.MaxCount)
				var gone bool
				if last, gone, err = a.take(ctx, t, k); gone {
					continue
				}
			}
			if err == nil {
				for id := last - k + 1; id <= last; id++ {
					dst = append(dst, id)
				}
				continue
			}
		}
		if have > 0 && t != nil {
			t.mu.Lock()
			a.burn(t, have)
			t.mu.Unlock()
		}
		return dst[:start], err
	}
}

// takeSome takes between 0 and n IDs: what one span has at hand.
func (a *Allocator) takeSome(t *tag, n int64) (last, taken int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		s := t.cur.Load()
		if k := min(n, s.left()); k > 0 {
			if last, asks, ok := s.take(k); ok {
				if asks {
					a.want(t)
				}
				return last, k
			}
			continue // somebody was quicker: there is less now
		}
		if t.next == nil || t.gone {
			return 0, 0
		}
		a.advance(t)
	}
}

// takeLocked takes n contiguous IDs from what t holds. The caller holds t.mu.
func (a *Allocator) takeLocked(t *tag, n int64) (last int64, ok bool) {
	for {
		s := t.cur.Load()
		if last, asks, ok := s.take(n); ok {
			if asks {
				a.want(t)
			}
			return last, true
		}
		next := t.next
		if next == nil {
			return 0, false
		}
		left := s.left()
		switch {
		case left == 0:
			a.advance(t)
		case s.hi() == next.lo:
			if left+next.size < n && !t.holds(n) {
				return 0, false
			}
			a.merge(t)
		case t.holds(n):
			a.advance(t) // what is left of s is burnt: IDs below those from the next span may not follow them
		default:
			return 0, false
		}
	}
}

// holds tells whether a spare alone has n IDs. (Spares that touch are one.) The caller holds t.mu.
func (t *tag) holds(n int64) bool {
	for s := t.next; s != nil; s = s.next {
		if s.size >= n {
			return true
		}
	}
	return false
}

// retire seals the current span and books it: what it gave, and what is left of it. The caller holds t.mu and either has
// another use for the rest or burns it.
func (a *Allocator) retire(t *tag) (from, left int64) {
	s := t.cur.Load()
	if s == unusable {
		return 0, 0
	}
	from, left = s.seal()
	if used := s.size - left; used > 0 {
		t.last = from - 1
		t.issued += used
		if d := a.o.Now() - s.at; d > 0 {
			t.pace = float64(used) / d.Seconds()
		}
	}
	t.cur.Store(unusable)
	return from, left
}

// advance makes the next spare the current span. The caller holds t.mu and knows there is one.
func (a *Allocator) advance(t *tag) {
	if _, left := a.retire(t); left > 0 {
		a.burn(t, left)
	}
	s := t.next
	t.next, s.next = s.next, nil
	a.publish(t, s)
}

// merge makes one span of what is left of the current one and the spare that touches it. The caller holds t.mu.
func (a *Allocator) merge(t *tag) {
	old := t.cur.Load()
	from, left := a.retire(t)
	s := t.next
	t.next, s.next = s.next, nil
	if left > 0 {
		if old.server != s.server {
			s.server = 0
		}
		s.taint = min(s.taint, old.taint)
		s.lo, s.size = from, s.size+left
		s.setMark()
	}
	a.publish(t, s)
}

// publish lets s give IDs. The caller holds t.mu, and the span before it is sealed or used up.
func (a *Allocator) publish(t *tag, s *span) {
	if invariants {
		check(s.size > 0 && s.lo > t.last && s.hi() <= t.floor, "tag %q: span [%d, %d) after %d, floor %d", t.name, s.lo, s.hi(), t.last, t.floor) // I2, I5, I6
	}
	s.at = a.o.Now()
	t.cur.Store(s)
	a.want(t)
}

func (a *Allocator) burn(t *tag, n int64) {
	t.burnt += n
	a.stats.burnt.Add(uint64(n))
}

// lastLocked is the last ID given here, or the one before the first. The caller holds t.mu.
func (t *tag) lastLocked() int64 {
	if s := t.cur.Load(); s.used() > 0 {
		return s.lo + s.used() - 1
	}
	return t.last
}

// issuedLocked is how many IDs t gave. The caller holds t.mu.
func (t *tag) issuedLocked() int64 { return t.issued + t.cur.Load().used() }

// stock is how many IDs t holds. The caller holds t.mu.
func (t *tag) stock() int64 {
	n := t.cur.Load().left()
	for s := t.next; s != nil; s = s.next {
		n += s.size
	}
	return n
}

// Load begins to load a cold tag and does not wait for it.
func (a *Allocator) Load(tag string) {
	t, err := a.tag(tag)
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known || t.gone {
		return
	}
	if a.refusal(t) == nil {
		a.start(t).wish = true
	} else if t.job == nil {
		a.forget(t)
	}
}

// Last is the last ID handed out here; for a tag not used here yet the row's bound less one. It takes no ID and asks the store
// only for a tag that is not in memory.
func (a *Allocator) Last(ctx context.Context, tag string) (last int64, exists bool, err error) {
	if t := a.tags.lookup(tag); t != nil {
		t.mu.Lock()
		last, here := t.lastLocked(), t.known && !t.gone && t.used() && t.state() != "missing"
		t.mu.Unlock()
		if here {
			return last, true, nil
		}
	}
	rows, err := a.store.Rows(ctx, []string{tag})
	if err != nil {
		return 0, false, err
	}
	r, ok := rows[tag]
	if ok && r.Err != nil {
		return 0, true, r.Err
	}
	return r.Max - 1, ok, nil
}

// AgainError says that no ID could be had in time. Cause is what the store answered last, or nil where refills were merely
// slower than the requests.
type AgainError struct {
	Tag    string
	Waited time.Duration
	Cause  error
}

func (e *AgainError) Error() string {
	why := "refills are slower than the requests. Try again; a larger step for the tag would help"
	if e.Cause != nil {
		why = e.Cause.Error()
	}
	return fmt.Sprintf("tag '%s' had no ID ready within %v: %s", e.Tag, e.Waited.Round(time.Millisecond), why)
}

func (e *AgainError) Unwrap() error { return e.Cause }

// CountError says that more IDs were asked for than one request may take, or less than one.
type CountError struct{ N, Max int64 }

func (e *CountError) Error() string {
	return fmt.Sprintf("count %d is out of range: it must be between 1 and %d", e.N, e.Max)
}

// FullError says that this instance keeps as many tags as it may, and all are in use.
type FullError struct {
	Tag string
	Max int64
}

func (e *FullError) Error() string {
	return fmt.Sprintf("tag '%s' can't be loaded: all %d tags this instance may keep are in use. Raise segment.max_tags", e.Tag, e.Max)
}
