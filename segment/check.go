package segment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// rowsBatch is how many rows are compared by one SELECT.
const rowsBatch = 1000

// compareReads is how many such SELECTs run at one time, compareFences how many rows each of them confirms and raises: every
// floor is to be compared within the pause.
const (
	compareReads  = 4
	compareFences = 8
)

// maxActive bounds the tags compared at every check, and the others compared by turns.
const maxActive = 10_000

// activeTime is how long after its last ID a tag is compared at every check.
const activeTime = 10 * time.Minute

// idleTime is how long a tag stays in memory without giving an ID; what it holds is burnt then.
const idleTime = time.Hour

// health is what the pulses and refills tell of the store, and the gate that refills pass. The gate is shut before the first
// pulse, while neither pulses nor refills come through, and during the pause after the store went back.
type health struct {
	now    func() time.Duration
	ready  atomic.Bool
	shut   atomic.Bool
	paused atomic.Int64  // until when (time.Duration)
	epochs atomic.Uint32 // epoch changes seen
	poke   chan struct{} // a pulse is due now

	mu      sync.Mutex
	history string
	epoch   int64
	skip    int64
	err     error // of the last pulse
	since   time.Time
	failing int // refills since one came through
	tries   int // pulses since one came through
}

func (h *health) init(now func() time.Duration) {
	h.now = now
	h.poke = make(chan struct{}, 1)
}

// open tells whether refills may run.
func (h *health) open() bool {
	return h.ready.Load() && !h.shut.Load() && !h.pausing()
}

func (h *health) pausing() bool {
	until := time.Duration(h.paused.Load())
	return until > 0 && h.now() < until
}

// line is the history that floors belong to, and the skip.
func (h *health) line() (history string, skip int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.history, h.skip
}

// refused is the store's own refusal while it refuses everything, or nil.
func (h *health) refused() error {
	if h.ready.Load() && !h.shut.Load() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var re *RefusedError
	if errors.As(h.err, &re) {
		return h.err
	}
	return nil
}

// cause is why refills don't run now, or nil.
func (h *health) cause(now time.Duration) error {
	if until := time.Duration(h.paused.Load()); until > now {
		return fmt.Errorf("the store went back: no grants for another %v, until every instance has compared its rows", (until - now).Round(time.Millisecond))
	}
	if h.ready.Load() && !h.shut.Load() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		return errors.New("the store has not answered yet")
	}
	return h.err
}

// hint asks for a pulse soon.
func (h *health) hint() {
	select {
	case h.poke <- struct{}{}:
	default:
	}
}

// heard takes note of how a refill's call to the store ended.
func (a *Allocator) heard(err error) {
	h := &a.health
	var refused *RefusedError
	if err == nil || !unavailable(err) && !errors.As(err, &refused) {
		// It answers.
		h.mu.Lock()
		h.failing = 0
		h.mu.Unlock()
		if h.ready.Load() && h.shut.CompareAndSwap(true, false) {
			a.drain()
		}
		return
	}
	if a.ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	h.failing++
	if h.err != nil {
		h.shut.Store(true)
	}
	h.mu.Unlock()
	h.hint()
}

// taint tells spans granted before something that forbids to give them back from those granted after. The caller holds t.mu.
func (a *Allocator) taint(t *tag) uint32 { return t.taints + a.health.epochs.Load() }

// Ready is nil once the store has answered, or else says why it has not.
func (a *Allocator) Ready() error {
	if a.closed.Load() {
		return ErrClosed
	}
	if a.health.ready.Load() {
		return nil
	}
	return a.health.cause(0)
}

// pulseLoop beats at every check, and sooner when a refill hints that something changed.
func (a *Allocator) pulseLoop() {
	for {
		began := a.o.Now()
		wait := a.pulse()
		timer := time.NewTimer(wait)
		poke := a.health.poke
		if a.health.pulseErr() != nil {
			poke = nil // the schedule below is all the store gets while it is down (leaf S7)
		}
		select {
		case <-timer.C:
		case <-poke:
			if early := 100*time.Millisecond - (a.o.Now() - began); early > 0 {
				timer.Reset(early)
				select {
				case <-timer.C:
				case <-a.loopCtx.Done():
				}
			}
		case <-a.loopCtx.Done():
		}
		timer.Stop()
		if a.loopCtx.Err() != nil || a.closed.Load() {
			return
		}
	}
}

func (h *health) pulseErr() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// pulse makes one pulse and tells how long to wait for the next.
func (a *Allocator) pulse() time.Duration {
	ctx, cancel := context.WithTimeout(a.loopCtx, attemptTime)
	p, err := a.callPulse(ctx)
	cancel()
	h := &a.health
	if a.loopCtx.Err() != nil {
		return 0
	}
	if err != nil {
		h.mu.Lock()
		h.tries++
		if h.err == nil {
			h.since = time.Now()
			a.o.Log.Warn().Err(err).Msg("the store does not answer; what is held goes on")
		}
		h.err = err
		tries, shut := h.tries, h.failing > 0 || !h.ready.Load()
		h.mu.Unlock()
		if shut {
			h.shut.Store(true)
		}
		var refused *RefusedError
		if errors.As(err, &refused) && shut {
			a.refuseQueued(err)
		}
		if tries%4 == 0 && h.ready.Load() {
			// Refills may come through where pulses don't: let one try, so that nothing waits for a pulse for ever.
			a.queue.mu.Lock()
			a.queue.probe = true
			a.queue.mu.Unlock()
			a.drain()
		}
		return min(backoff(tries), max(a.o.Check, 50*time.Millisecond))
	}

	h.mu.Lock()
	first := !h.ready.Load()
	oldHistory := h.history
	changed := !first && p.Epoch != h.epoch
	if h.err != nil {
		a.o.Log.Info().Msg("the store answers again")
	}
	h.err, h.tries = nil, 0
	h.history, h.epoch, h.skip = p.History, p.Epoch, p.Skip
	h.mu.Unlock()

	if changed {
		h.epochs.Add(1)
		a.o.Log.Error().Int64("epoch", p.Epoch).Int64("skip", p.Skip).Dur("pause", p.Paused).Msg("the store went back: every floor is compared with its row, and no grant is taken until every instance has done so")
	}
	if !first && oldHistory != p.History {
		a.o.Log.Error().Str("was", oldHistory).Str("is", p.History).Msg("the store has another history: floors are carried over to it")
		h.epochs.Add(1)
		a.carryFloors(oldHistory, p.History)
		changed = true
	}
	if p.Paused > 0 {
		h.paused.Store(int64(a.o.Now() + p.Paused))
	} else {
		h.paused.Store(0)
	}
	h.ready.Store(true)
	h.shut.Store(false)
	a.queue.mu.Lock()
	a.queue.probe = false
	a.queue.mu.Unlock()
	a.check.pulsed(first || changed)
	a.drain()
	if p.Paused > 0 {
		return min(a.o.Check, p.Paused)
	}
	return a.o.Check
}

// callPulse guards the loop against a store that panics.
func (a *Allocator) callPulse(ctx context.Context) (p Pulse, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &UnavailableError{fmt.Errorf("the pulse broke off: %v", r)}
		}
	}()
	return a.store.Pulse(ctx)
}

// refuseQueued tells those who wait that the store refuses everything.
func (a *Allocator) refuseQueued(err error) {
	a.queue.mu.Lock()
	var jobs []*job
	for i := range a.queue.lists {
		for j := a.queue.lists[i].head; j != nil; j = j.next {
			jobs = append(jobs, j)
		}
	}
	a.queue.mu.Unlock()
	for _, j := range jobs {
		j.t.mu.Lock()
		if j.t.job == j {
			a.failWaiters(j.t, err, nil)
			a.abandon(j.t)
		}
		j.t.mu.Unlock()
	}
}

// carryFloors takes the floors of one history over to another that was met while running: what was given is given, whatever
// the store calls its line of data (I11).
func (a *Allocator) carryFloors(from, to string) {
	if a.floors == nil {
		return
	}
	all := map[string]int64{}
	err := a.floors.Each(from, func(tag string, floor int64) error {
		all[tag] = floor
		return nil
	})
	if err == nil && len(all) > 0 {
		err = a.floors.Save(to, all)
	}
	if err != nil {
		a.o.Log.Error().Err(err).Msg("floors could not be carried over to the store's new history")
	}
}

// checks are the comparisons of rows with floors.
type checks struct {
	kick chan struct{}

	mu        sync.Mutex
	all       bool                   // every floor is to be compared, idle tags' too
	active    map[*tag]time.Duration // tags in use; when a refill or an ID was last seen
	regressed map[*tag]struct{}

	// checkLoop's own:
	hand    uint64         // of the sweep
	unsaved map[*tag]int64 // floors that are to be saved once more
	saving  atomic.Bool    // a save of them is under way
}

func (c *checks) init() {
	c.kick = make(chan struct{}, 1)
	c.active = map[*tag]time.Duration{}
	c.regressed = map[*tag]struct{}{}
	c.unsaved = map[*tag]int64{}
}

func (c *checks) pulsed(all bool) {
	c.mu.Lock()
	c.all = c.all || all
	c.mu.Unlock()
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// use notes that t is in use.
func (c *checks) use(t *tag, now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.active[t]; ok || len(c.active) < maxActive {
		c.active[t] = now
	}
}

func (c *checks) stopped(t *tag) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.regressed[t] = struct{}{}
}

// checkLoop compares after every pulse, and looks every second whether a stopped tag may go on.
func (a *Allocator) checkLoop() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-a.check.kick:
			a.guarded(a.compareRound)
		case <-tick.C:
			a.guarded(a.recheck)
			a.check.mu.Lock()
			all := a.check.all
			a.check.mu.Unlock()
			if all && a.health.pulseErr() == nil {
				a.guarded(a.compareRound) // it did not get through: the pause is short
			}
		case <-a.loopCtx.Done():
			return
		}
		if a.closed.Load() {
			return
		}
	}
}

func (a *Allocator) guarded(f func()) {
	defer func() {
		if p := recover(); p != nil {
			a.o.Log.Error().Interface("panic", p).Msg("a check broke off; the next one is due")
		}
	}()
	f()
}

// compareRound compares the tags in use, a share of the others and, if the store went back, everything.
func (a *Allocator) compareRound() {
	c := &a.check
	c.mu.Lock()
	all := c.all
	list := slices.Collect(maps.Keys(c.active))
	c.mu.Unlock()
	if all {
		if a.compareAll() {
			c.mu.Lock()
			c.all = false
			c.mu.Unlock()
		}
	}
	now := a.o.Now()
	list = slices.DeleteFunc(list, func(t *tag) bool { return !a.stillActive(t, now) })
	c.hand = a.tags.walk(c.hand, 8*maxActive, func(t *tag) {
		if a.sweep(t, now) && len(list) < 2*maxActive {
			list = append(list, t)
		}
	})
	a.saveAgain()
	if !all {
		a.compare(list, nil, false)
	}
}

// saveAgain saves floors that could not be saved when they were granted. It does not wait: a disk may hang.
func (a *Allocator) saveAgain() {
	c := &a.check
	if len(c.unsaved) == 0 || !c.saving.CompareAndSwap(false, true) {
		return
	}
	again := c.unsaved
	c.unsaved = map[*tag]int64{}
	var last *saveBatch
	for t, floor := range again {
		last = a.saveLater(t.name, floor)
	}
	if last == nil {
		c.saving.Store(false)
		return
	}
	a.wg.Go(func() {
		defer c.saving.Store(false)
		<-last.done
		if last.err != nil {
			return
		}
		for t, floor := range again { // earlier batches may have failed, but then not for long: the next sweep looks again
			if stored, err := a.storedFloor(t.name); err == nil && stored >= floor {
				t.mu.Lock()
				t.saved = max(t.saved, stored)
				t.mu.Unlock()
			}
		}
	})
}

// stillActive brings a tag's demand up to date, and drops it from the tags in use when it has not given an ID for long.
func (a *Allocator) stillActive(t *tag, now time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.gone {
		t.look(now)
		a.noteDemand(t, now)
		if now-t.seenAt < activeTime {
			return true
		}
	}
	a.check.mu.Lock()
	defer a.check.mu.Unlock()
	if t.gone || now-a.check.active[t] >= activeTime {
		delete(a.check.active, t)
		t.demand = nil
		return false
	}
	return true
}

// look notes whether t gave IDs since the last look. The caller holds t.mu.
func (t *tag) look(now time.Duration) {
	if n := t.issuedLocked(); n != t.seen {
		t.seen, t.seenAt = n, now
	}
}

// sweep looks after a tag that may be idle: its floor is saved if it was not, and after long it leaves memory. It reports
// whether the tag is to be compared.
func (a *Allocator) sweep(t *tag, now time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return false
	}
	t.look(now)
	if a.floors != nil && t.saved < t.floor && t.job == nil && len(a.check.unsaved) < maxActive {
		a.check.unsaved[t] = t.floor
	}
	if now-t.seenAt >= max(idleTime, 4*a.o.Target) {
		a.evict(t)
		return false
	}
	return t.trouble == nil || !t.trouble.stop
}

// evict takes an idle tag out of memory, if its floor is durable and nothing is under way. The caller holds t.mu.
func (a *Allocator) evict(t *tag) bool {
	if t.gone || t.job != nil || t.trouble != nil || a.floors != nil && t.saved < t.floor {
		return false
	}
	a.dropSpans(t)
	a.forget(t)
	a.check.mu.Lock()
	delete(a.check.active, t)
	a.check.mu.Unlock()
	return true
}

// makeRoom evicts a tag that gave no ID since the last time somebody looked, and reports whether there is room.
func (a *Allocator) makeRoom() bool {
	now := a.o.Now()
	for range 2 { // who was looked at for the first time may be idle at the second
		hand := uint64(a.tags.room.Load())
		hand = a.tags.walk(hand, 4096, func(t *tag) {
			if a.tags.n.Load() < a.o.MaxTags || !t.mu.TryLock() {
				return
			}
			defer t.mu.Unlock()
			if n := t.issuedLocked(); n != t.seen {
				t.seen, t.seenAt = n, now
				return
			}
			a.evict(t)
		})
		a.tags.room.Store(hand)
		if a.tags.n.Load() < a.o.MaxTags {
			return true
		}
	}
	return false
}

// dropSpans burns what t holds. The caller holds t.mu.
func (a *Allocator) dropSpans(t *tag) {
	if _, left := a.retire(t); left > 0 {
		a.burn(t, left)
	}
	for ; t.next != nil; t.next = t.next.next {
		a.burn(t, t.next.size)
	}
}

// compare reads the rows of some tags and confirms what reads low. floors, where given, are floors of tags that are not in
// memory. all: tags that are stopped are among them. The store went back once more, so the fence before their IDs may be
// lost again. It reports whether every row could be read.
func (a *Allocator) compare(list []*tag, floors map[string]int64, all bool) bool {
	want := make(map[string]int64, len(list)+len(floors))
	maps.Copy(want, floors)
	tags := make(map[string]*tag, len(list))
	for _, t := range list {
		t.mu.Lock()
		if !t.gone && t.floor > 0 && (all || t.trouble == nil || !t.trouble.stop) {
			want[t.name] = max(want[t.name], t.floor) // as it stands before the SELECT is sent
			tags[t.name] = t
		}
		t.mu.Unlock()
	}
	var failed atomic.Bool
	chunks := make(chan []string)
	var wg sync.WaitGroup
	for range min(compareReads, 1+len(want)/rowsBatch) {
		wg.Go(func() {
			for names := range chunks {
				ok := false
				a.guarded(func() { ok = a.compareChunk(names, want, tags) })
				if !ok {
					failed.Store(true)
				}
			}
		})
	}
	for names := range slices.Chunk(slices.Collect(maps.Keys(want)), rowsBatch) {
		chunks <- names
	}
	close(chunks)
	wg.Wait()
	return !failed.Load()
}

// compareChunk compares the rows of some names by one SELECT.
func (a *Allocator) compareChunk(names []string, want map[string]int64, tags map[string]*tag) bool {
	if a.loopCtx.Err() != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(a.loopCtx, attemptTime)
	defer cancel()
	rows, err := a.store.Rows(ctx, names)
	if err != nil && !unavailable(err) && len(names) > 1 {
		rows, err = a.rowsOneByOne(ctx, names)
	}
	if err != nil {
		return false
	}
	var failed atomic.Bool
	var wg sync.WaitGroup
	fences := make(chan struct{}, compareFences)
	for _, name := range names {
		r, found := rows[name]
		t := tags[name]
		switch {
		case found && r.Err != nil, found && r.Max >= want[name]:
			if t != nil {
				t.mu.Lock()
				a.noteRow(t, r)
				t.mu.Unlock()
			}
		case found || t != nil || a.health.pausing():
			fences <- struct{}{}
			wg.Go(func() {
				defer func() { <-fences }()
				ok := false
				a.guarded(func() {
					ctx, cancel := context.WithTimeout(a.loopCtx, attemptTime)
					defer cancel()
					err := a.suspect(ctx, name, t, want[name])
					ok = err == nil || !unavailable(err) || errors.Is(err, errStale)
				})
				if !ok {
					failed.Store(true)
				}
			})
		}
	}
	wg.Wait()
	return !failed.Load()
}

func (a *Allocator) rowsOneByOne(ctx context.Context, names []string) (map[string]Row, error) {
	all := map[string]Row{}
	for _, name := range names {
		rows, err := a.store.Rows(ctx, []string{name})
		if err != nil && unavailable(err) {
			return nil, err
		}
		if err != nil {
			rows = map[string]Row{name: {Tag: name, Err: err}}
		}
		maps.Copy(all, rows)
	}
	return all, nil
}

// compareAll compares every floor there is, stored or in memory, with its row.
func (a *Allocator) compareAll() bool {
	var inMemory []*tag
	a.tags.walk(0, math.MaxInt, func(t *tag) { inMemory = append(inMemory, t) })
	floors := map[string]int64{}
	if a.floors != nil {
		history, _ := a.health.line()
		err := a.floors.Each(history, func(tag string, floor int64) error {
			if floor > 0 {
				floors[tag] = floor
			}
			return nil
		})
		if err != nil {
			a.o.Log.Error().Err(err).Msg("the stored floors can't be read: only tags in memory are compared")
		}
	}
	for _, t := range inMemory {
		delete(floors, t.name) // what is in memory is at least as high
	}
	mine := a.compare(inMemory, nil, true) // first what is in use
	return a.compare(nil, floors, true) && mine
}

// errStale says that a row which read low stands high enough.
var errStale = errors.New("the row read low for a moment, and stands where it should")

// suspect confirms that the row of a tag stands below floor, or is missing. t is nil for a tag that is not in memory: it comes
// in only to be stopped.
func (a *Allocator) suspect(ctx context.Context, name string, t *tag, floor int64) error {
	err := a.fence(ctx, name, t, floor)
	if err == nil && t != nil { // put back, above the floor
		t.mu.Lock()
		if t.floor == floor {
			a.resume(t)
		}
		t.mu.Unlock()
	}
	var re *RegressedError
	if !errors.As(err, &re) {
		return err
	}
	if t == nil {
		if t, err = a.tag(name); err != nil {
			return err
		}
	}
	t.mu.Lock()
	gone := t.gone
	if !gone {
		a.halt(t, re)
	}
	t.mu.Unlock()
	if gone {
		return errStale // it will be met again
	}
	if re.Row < 0 {
		a.raiseBase(ctx, t)
	}
	return re
}

// raiseBase keeps a tag whose row is gone from being made anew below what was given, where a pattern would do that.
func (a *Allocator) raiseBase(ctx context.Context, t *tag) {
	br, ok := a.store.(BaseRaiser)
	if !ok || !a.mayCreate(t.name) {
		return
	}
	t.mu.Lock()
	tr, floor := t.trouble, t.floor
	t.mu.Unlock()
	if tr == nil || !tr.stop || tr.based {
		return
	}
	if err := br.RaiseBase(ctx, floor); err != nil {
		a.o.Log.Error().Err(err).Str("tag", t.name).Int64("floor", floor).Msg("the row is gone, and a new one could be made below what was given: the base could not be raised; it is tried again")
		return
	}
	a.o.Log.Warn().Str("tag", t.name).Int64("base", floor).Msg("the row is gone: tags that INCR makes from now on start above what was given of it")
	t.mu.Lock()
	tr.based = true
	t.mu.Unlock()
}

// regress does the same for a tag whose refill met the low row. The answer is never nil: there is no span.
func (a *Allocator) regress(ctx context.Context, t *tag, floor int64) error {
	err := a.suspect(ctx, t.name, t, floor)
	if err == nil || errors.Is(err, errStale) {
		return &UnavailableError{errStale}
	}
	return err
}

// fence raises a row to floor if it stands below, which stops every other instance from granting what lies between. Where the
// row is missing during the pause after the store went back it is put back. It answers *RegressedError where the row was low or
// is gone, errStale where it was not, nil where it was put back.
func (a *Allocator) fence(ctx context.Context, name string, t *tag, floor int64) error {
	var restore *Row
	if a.health.pausing() {
		step := a.o.Step
		if t != nil {
			t.mu.Lock()
			if t.step > 0 {
				step = t.step
			}
			t.mu.Unlock()
		}
		// Every other row was moved up by the skip, over what instances hold that are gone. So is this one.
		_, skip := a.health.line()
		restore = &Row{Tag: name, Max: min(floor, MaxID-skip) + skip, Step: step}
	}
	found, err := a.store.Fence(ctx, name, floor, restore)
	switch {
	case errors.Is(err, ErrNoTag):
		return &RegressedError{Tag: name, Row: -1, Floor: floor}
	case err != nil:
		a.o.Log.Error().Err(err).Str("tag", name).Int64("floor", floor).Msg("a row reads below what was granted and could not be confirmed; the next check tries again")
		return err
	case found == 0 && restore != nil:
		a.o.Log.Warn().Str("tag", name).Int64("max_id", restore.Max).Msg("the row was lost when the store went back; it was put back")
		return nil
	case found < floor:
		return &RegressedError{Tag: name, Row: found, Floor: floor}
	}
	return errStale
}

// halt stops t, what it holds included: the store went back behind what was granted here. The caller holds t.mu.
func (a *Allocator) halt(t *tag, re *RegressedError) {
	if re.Floor < t.floor {
		re = &RegressedError{Tag: re.Tag, Row: re.Row, Floor: t.floor}
	}
	t.floor = max(t.floor, re.Floor)
	if t.step == 0 {
		t.step = a.o.Step
	}
	if !t.known {
		t.known = true
		a.tags.promote(t)
	}
	t.trouble = &trouble{err: re, stop: true}
	t.taints++
	t.row = re.Row
	a.dropSpans(t)
	a.failWaiters(t, re, nil)
	if t.job != nil && !t.job.running {
		a.end(t)
	}
	a.check.stopped(t)
	a.stats.regressed.Add(1)
	a.o.Log.Error().Str("tag", t.name).Int64("row", re.Row).Int64("floor", re.Floor).Msg("REGRESSED: " + re.Error())
}

// recheck reads the rows of stopped tags. One goes on when its row stands above its floor: by a SET anywhere, or by another
// instance's grant. It is an alarm and a stop, not a lock.
func (a *Allocator) recheck() {
	a.check.mu.Lock()
	list := slices.Collect(maps.Keys(a.check.regressed))
	a.check.mu.Unlock()
	for part := range slices.Chunk(list, rowsBatch) {
		names := make([]string, len(part))
		for i, t := range part {
			names[i] = t.name
		}
		ctx, cancel := context.WithTimeout(a.loopCtx, attemptTime)
		rows, err := a.store.Rows(ctx, names)
		if err == nil {
			for _, t := range part {
				switch r, ok := rows[t.name]; {
				case !ok:
					a.raiseBase(ctx, t)
				case r.Err == nil:
					a.reconsider(ctx, t, r)
				}
			}
		}
		cancel()
	}
}

func (a *Allocator) reconsider(ctx context.Context, t *tag, r Row) {
	t.mu.Lock()
	floor := t.floor
	stopped := t.trouble != nil && t.trouble.stop
	t.mu.Unlock()
	if !stopped {
		return
	}
	if r.Max == floor {
		return // raised by us, and nobody moved it since
	}
	found, err := a.store.Fence(ctx, t.name, floor, nil)
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var re *RegressedError
	if found <= floor && t.trouble != nil && errors.As(t.trouble.err, &re) && re.Row < 0 {
		t.trouble.err = &RegressedError{Tag: re.Tag, Row: found, Floor: re.Floor} // somebody put it back, too low
	}
	if found > floor && t.floor == floor {
		a.resume(t)
		a.noteRow(t, r)
	}
}

// resume lets a stopped tag go on. The caller holds t.mu.
func (a *Allocator) resume(t *tag) {
	if t.trouble == nil || !t.trouble.stop {
		return
	}
	t.trouble = nil
	a.check.mu.Lock()
	delete(a.check.regressed, t)
	a.check.mu.Unlock()
	a.o.Log.Warn().Str("tag", t.name).Int64("floor", t.floor).Msg("the tag's row stands above its floor: it goes on")
}
