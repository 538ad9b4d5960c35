package segment

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"
)

type counter struct{ n atomic.Int64 }

func (c *counter) add(n int64) { c.n.Add(n) }

func (c *counter) load() int64 { return c.n.Load() }

// counters are the sums over all tags. IDs issued are not among them: the hot path counts in the spans alone.
type counters struct {
	refills, refillFailures, waits, warmWaits, burnt, regressed atomic.Uint64

	slowest atomic.Int64 // time.Duration: how long a refill takes, the slow ones remembered
	buckets [len(RefillBounds) + 1]atomic.Uint64
	sum     atomic.Int64 // time.Duration
}

// RefillBounds are the upper bounds of the buckets of Stats.RefillBuckets, in seconds.
var RefillBounds = [...]float64{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5}

func (c *counters) tookRefill(d time.Duration) {
	i, _ := slices.BinarySearch(RefillBounds[:], d.Seconds())
	c.buckets[i].Add(1)
	c.sum.Add(int64(d))
	for {
		old := c.slowest.Load()
		// Up at once, down slowly: the buffers are made for the slow ones.
		now := max(int64(d), old-(old-int64(d))/32)
		if c.slowest.CompareAndSwap(old, now) {
			return
		}
	}
}

// latency is how long a refill takes, at least a millisecond.
func (c *counters) latency() time.Duration {
	return max(time.Duration(c.slowest.Load()), time.Millisecond)
}

// Stats are sums over all tags since New.
type Stats struct {
	Tags           int    // in memory
	Issued         uint64 // IDs handed out
	Refills        uint64
	RefillFailures uint64
	Waits          uint64 // requests that waited for the store
	WarmWaits      uint64 // those of them whose tag was in use before
	Burnt          uint64 // IDs that were granted here and will not be handed out
	Regressed      uint64 // times a tag was stopped because its row stood too low
	Stopped        int    // tags that are stopped now
	History        string
	Epoch          int64
	Paused         time.Duration // no grants for so long, since the store went back
	StoreErr       error         // what the store answers instead of a pulse; nil: it answers
	StoreErrSince  time.Time
	FloorsErr      error // what data_dir answers instead of keeping floors; nil: it keeps them
	// RefillBuckets[i] counts refills that took up to RefillBounds[i] seconds, the last one those that took longer.
	RefillBuckets [len(RefillBounds) + 1]uint64
	RefillTime    time.Duration // all refills together
}

// Stats sums up. It visits every tag in memory to count the IDs issued.
func (a *Allocator) Stats() Stats {
	h := &a.health
	st := Stats{
		Refills: a.stats.refills.Load(), RefillFailures: a.stats.refillFailures.Load(),
		Waits: a.stats.waits.Load(), WarmWaits: a.stats.warmWaits.Load(), Burnt: a.stats.burnt.Load(), Regressed: a.stats.regressed.Load(),
		RefillTime: time.Duration(a.stats.sum.Load()),
		Paused:     a.Paused(),
	}
	for i := range st.RefillBuckets {
		st.RefillBuckets[i] = a.stats.buckets[i].Load()
	}
	h.mu.Lock()
	st.History, st.Epoch, st.StoreErr = h.history, h.epoch, h.err
	if h.err != nil {
		st.StoreErrSince = h.since
	}
	h.mu.Unlock()
	a.saver.mu.Lock()
	st.FloorsErr = a.saver.err
	a.saver.mu.Unlock()
	a.check.mu.Lock()
	st.Stopped = len(a.check.regressed)
	a.check.mu.Unlock()
	st.Tags = int(a.tags.n.Load())
	st.Issued = a.tags.left.Load()
	a.tags.all(func(t *tag) {
		t.mu.Lock()
		if !t.gone {
			st.Issued += uint64(t.issuedLocked())
		}
		t.mu.Unlock()
	})
	return st
}

// TagInfo is what is known of one tag.
type TagInfo struct {
	Tag       string
	State     string        // cold, ready, waiting, regressed, missing, exhausted or refused
	Err       error         // why, where the state is not ready
	Last      int64         // last ID handed out here; 0: none
	Remaining int64         // IDs held
	Span      int64         // size of the last refill
	Step      int64         // of the row
	Row       int64         // the row's bound as last seen; -1: there is none
	Floor     int64         // highest bound granted to this instance
	Rate      float64       // IDs a second, over about 10 s
	Runway    time.Duration // how long Remaining lasts at that rate; -1: there is no demand

	Issued, Refills, RefillFailures, Waits, Burnt uint64

	WaitTime, RefillTime time.Duration // all waits, all refills together
	Updated              time.Time     // of the row, as the store has it
}

// state is t's state in a word. The caller holds t.mu.
func (t *tag) state() string {
	var re *RegressedError
	switch {
	case t.trouble != nil && errors.As(t.trouble.err, &re) && re.Row < 0:
		return "missing"
	case t.trouble != nil && errors.As(t.trouble.err, &re):
		return "regressed"
	case t.stock() > 0:
		return "ready"
	case t.trouble != nil && errors.Is(t.trouble.err, ErrExhausted):
		return "exhausted"
	case t.trouble != nil:
		return "refused"
	case t.job != nil:
		return "waiting"
	}
	return "cold"
}

// info is what is known of t. The caller holds t.mu.
func (t *tag) info() TagInfo {
	i := TagInfo{
		Tag: t.name, State: t.state(), Last: t.lastLocked(), Remaining: t.stock(), Span: t.size, Step: t.step, Row: t.row, Floor: t.floor,
		Runway: -1, Issued: uint64(t.issuedLocked()), Refills: uint64(t.refills), RefillFailures: uint64(t.failures), Waits: t.waits,
		Burnt: uint64(t.burnt), WaitTime: t.waitTime, RefillTime: t.refillTime, Updated: time.Unix(t.updated, 0),
	}
	if t.trouble != nil {
		i.Err = t.trouble.err
	} else if t.job != nil {
		i.Err = t.job.err
	}
	if t.demand != nil && t.demand.rate > 0.001 {
		i.Rate = t.demand.rate
		i.Runway = time.Duration(min(float64(i.Remaining)/i.Rate, 1e9) * float64(time.Second))
	}
	return i
}

// Info tells what is known of a tag, asking the store about one that is not in memory. ErrNoTag: there is none.
func (a *Allocator) Info(ctx context.Context, tag string) (TagInfo, error) {
	if t := a.tags.lookup(tag); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.gone {
			return t.info(), nil
		}
	}
	rows, err := a.store.Rows(ctx, []string{tag})
	if err != nil {
		return TagInfo{}, err
	}
	r, ok := rows[tag]
	floor, err := a.floorOf(tag)
	if err != nil {
		return TagInfo{}, err
	}
	switch {
	case !ok && floor > 0:
		return TagInfo{Tag: tag, State: "missing", Err: &RegressedError{Tag: tag, Row: -1, Floor: floor}, Row: -1, Floor: floor, Runway: -1}, nil
	case !ok:
		return TagInfo{}, ErrNoTag
	}
	return TagInfo{Tag: tag, State: "cold", Err: r.Err, Step: r.Step, Row: r.Max, Floor: floor, Runway: -1, Updated: r.Updated}, nil
}

// Tags tells of up to most tags in memory, the busiest first.
func (a *Allocator) Tags(most int) []TagInfo {
	var list []TagInfo
	seen := map[*tag]bool{}
	add := func(t *tag) {
		t.mu.Lock()
		if !t.gone && !seen[t] {
			list = append(list, t.info())
			seen[t] = true
		}
		t.mu.Unlock()
	}
	a.check.mu.Lock()
	var active []*tag
	for t := range a.check.regressed {
		active = append(active, t)
	}
	for t := range a.check.active {
		active = append(active, t)
	}
	a.check.mu.Unlock()
	for _, t := range active {
		add(t)
	}
	for hand := uint64(0); len(list) < most; {
		if hand = a.tags.walk(hand, 1024, add); hand == 0 {
			break
		}
	}
	slices.SortFunc(list, func(x, y TagInfo) int {
		return cmp.Or(cmp.Compare(y.Rate, x.Rate), cmp.Compare(y.Issued, x.Issued), cmp.Compare(x.Tag, y.Tag))
	})
	return list[:min(len(list), max(most, 0))]
}

// Stopped tells of up to most of the tags that are stopped because their rows stood too low, by name. They may be idle, and
// so not among Tags.
func (a *Allocator) Stopped(most int) []TagInfo {
	a.check.mu.Lock()
	stopped := slices.Collect(maps.Keys(a.check.regressed))
	a.check.mu.Unlock()
	slices.SortFunc(stopped, func(x, y *tag) int { return cmp.Compare(x.name, y.name) })
	var list []TagInfo
	for _, t := range stopped[:min(len(stopped), max(most, 0))] {
		t.mu.Lock()
		if !t.gone {
			list = append(list, t.info())
		}
		t.mu.Unlock()
	}
	return list
}

// StoreErr is what the store answers instead of a pulse; nil: it answers. Unlike Stats it visits no tags.
func (a *Allocator) StoreErr() error {
	a.health.mu.Lock()
	defer a.health.mu.Unlock()
	return a.health.err
}

// Paused is how long the store grants nothing more, after it went back or has just started; 0: it grants.
func (a *Allocator) Paused() time.Duration {
	return max(time.Duration(a.health.paused.Load())-a.o.Now(), 0)
}

// Version changes whenever the tag moves here: an ID was given, or it was set. It is 0 for a tag that did not.
func (a *Allocator) Version(tag string) uint64 {
	t := a.tags.lookup(tag)
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := uint64(t.issuedLocked()) + uint64(t.sets)
	if n == 0 || t.gone {
		return 0
	}
	return uint64(t.serial)<<40 + n
}

// cachedCount is the number of tags in the store, remembered for a while.
type cachedCount struct {
	n   atomic.Int64
	sem chan struct{} // who asks the store holds it
	at  time.Duration // when it was asked; -1: never. Guarded by sem.
}

// countTime is how old a Count may be.
const countTime = 5 * time.Second

func (c *cachedCount) init() {
	c.sem = make(chan struct{}, 1)
	c.at = -1
}

// add keeps the number right for a tag that was made here.
func (c *cachedCount) add() { c.n.Add(1) }
