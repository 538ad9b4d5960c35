package segment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// attemptTime bounds one call to the store. Stores have shorter limits of their own; this one keeps a store that ignores its
// own from holding a worker for ever (leaf S4).
const attemptTime = 10 * time.Second

// maxSpares bounds the spares a tag holds where they don't touch.
const maxSpares = 8

// readBatch is how many cold tags are looked up by one call.
const readBatch = 256

// stage is what the store is asked next for a job.
type stage uint8

const (
	read    stage = iota // is there a row, and what is its step? many tags in one call
	readOne              // the same for one tag alone, after a call for many was refused
	create               // make the row
	reserve              // take a span
)

// job is one tag's refill: queued, running, or waiting for its next try. There is at most one for each tag, and all who wait
// for the tag share its results. Guarded by tag.mu, but for the links.
type job struct {
	t       *tag
	stage   stage
	waiters []*waiter // in the order they came
	wanted  int64     // what they want together
	wish    bool      // Load asked: go on though nobody waits
	running bool      // a worker has it
	tries   int       // that failed in a row
	err     error     // of the last try
	timer   *time.Timer

	prev, next *job // in the queue; guarded by queue.mu
	list       *jobList
}

// waiter is a request that waits for n IDs.
type waiter struct {
	n      int64
	since  time.Duration
	warm   bool         // the tag was in use before
	result chan outcome // holds one, so that whoever serves never waits
}

type outcome struct {
	last int64
	err  error
}

// ask is the hot path's word that a mark was crossed.
func (a *Allocator) ask(t *tag) {
	t.mu.Lock()
	a.want(t)
	t.mu.Unlock()
}

// want starts a refill if t needs one, or else sets the mark at which it will. The caller holds t.mu.
func (a *Allocator) want(t *tag) {
	if t.job != nil {
		return // when it ends it looks by itself
	}
	if a.needs(t) {
		a.start(t)
		return
	}
	s := t.cur.Load()
	if s == unusable {
		return
	}
	mark := s.size - (a.cover(t) - (t.stock() - s.left())) // here the stock falls below what is to be covered
	if t.next == nil {
		mark = min(mark, s.tenth())
	}
	s.mark.Store(mark)
	if a.needs(t) { // it was passed meanwhile
		a.start(t)
	}
}

// needs tells whether t should fetch a span ahead. The caller holds t.mu.
func (a *Allocator) needs(t *tag) bool {
	s := t.cur.Load()
	if t.gone || !t.known || t.trouble != nil || s == unusable {
		return false
	}
	if t.next == nil && s.pos.Load() >= s.tenth() {
		return true
	}
	n := 0
	for sp := t.next; sp != nil; sp = sp.next {
		n++
	}
	return n < maxSpares && t.stock() <= a.cover(t)
}

// cover is how many IDs t should hold so that it does not run dry while a refill is under way: what twice a slow one's time
// needs. Where a refill takes longer than a span lasts this is more than one span. The caller holds t.mu.
func (a *Allocator) cover(t *tag) int64 {
	if t.demand == nil {
		return 0
	}
	return int64(min(2*t.demand.flow*a.stats.latency().Seconds(), float64(4*min(t.size, a.o.MaxStep))))
}

// start returns t's job, and makes and queues it if there is none. The caller holds t.mu.
func (a *Allocator) start(t *tag) *job {
	if t.job == nil {
		t.job = &job{t: t}
		if t.known {
			t.job.stage = reserve
		}
		a.enqueue(t.job)
	}
	return t.job
}

func (a *Allocator) enqueue(j *job) {
	if a.queue.push(j, a.health.open) {
		a.wg.Go(a.work)
	}
}

// join makes w wait for t's refill. The caller holds t.mu.
func (a *Allocator) join(t *tag, w *waiter) {
	j := a.start(t)
	j.waiters = append(j.waiters, w)
	j.wanted = addCapped(j.wanted, w.n)
	if w.warm = t.used(); w.warm {
		t.waited = true
	}
}

// leave takes w, whose request ended, out of the queue: it reports false where w was served before. The caller holds t.mu.
func (a *Allocator) leave(t *tag, w *waiter) bool {
	j := t.job
	if j == nil {
		return false
	}
	for i, o := range j.waiters {
		if o == w {
			j.waiters = append(j.waiters[:i], j.waiters[i+1:]...)
			j.sum()
			a.served(t, w)
			a.abandon(t)
			return true
		}
	}
	return false
}

// abandon forgets a cold tag that nobody waits for, so that requests whose clients left free their place. The caller holds t.mu.
func (a *Allocator) abandon(t *tag) bool {
	j := t.job
	if j == nil || t.known || len(j.waiters) > 0 || j.wish || j.running {
		return false
	}
	a.end(t)
	a.forget(t)
	return true
}

// end takes t's job away. The caller holds t.mu.
func (a *Allocator) end(t *tag) {
	j := t.job
	t.job = nil
	if j.timer != nil {
		j.timer.Stop()
	}
	a.queue.remove(j)
}

func (j *job) sum() {
	j.wanted = 0
	for _, w := range j.waiters {
		j.wanted = addCapped(j.wanted, w.n)
	}
}

func addCapped(x, y int64) int64 {
	if x > MaxID-y {
		return MaxID
	}
	return x + y
}

// served books the end of w's wait. The caller holds t.mu.
func (a *Allocator) served(t *tag, w *waiter) {
	d := a.o.Now() - w.since
	t.waits++
	t.waitTime += d
	a.stats.waits.Add(1)
	if w.warm {
		a.stats.warmWaits.Add(1)
	}
}

// serve gives the waiters what t holds, first come first served, before others can see a new span. Those it has not enough
// for stay. The caller holds t.mu.
func (a *Allocator) serve(t *tag) {
	j := t.job
	var fresh *span // taken out of sight
	if len(j.waiters) > 0 && t.cur.Load().left() == 0 && t.next != nil {
		a.retire(t)
		fresh = t.next
		t.next, fresh.next = fresh.next, nil
	}
	rest := j.waiters[:0]
	for _, w := range j.waiters {
		var last int64
		ok := false
		if fresh != nil {
			if last, _, ok = fresh.take(w.n); !ok {
				a.publish(t, fresh)
				fresh = nil
			}
		}
		if !ok {
			last, ok = a.takeLocked(t, w.n)
		}
		if !ok {
			rest = append(rest, w)
			continue
		}
		a.served(t, w)
		w.result <- outcome{last: last}
	}
	clear(j.waiters[len(rest):])
	j.waiters = rest
	j.sum()
	if fresh != nil {
		a.publish(t, fresh)
	} else if t.cur.Load().left() == 0 && t.next != nil {
		a.advance(t) // so that the next request stays on the hot path
	}
}

// failWaiters ends the waits that pick chooses with err. The caller holds t.mu.
func (a *Allocator) failWaiters(t *tag, err error, pick func(w *waiter) bool) {
	j := t.job
	if j == nil {
		return
	}
	rest := j.waiters[:0]
	for _, w := range j.waiters {
		if pick != nil && !pick(w) {
			rest = append(rest, w)
			continue
		}
		a.served(t, w)
		w.result <- outcome{err: err}
	}
	clear(j.waiters[len(rest):])
	j.waiters = rest
	j.sum()
}

// jobList is a queue of jobs: first in, first out, and any may leave.
type jobList struct {
	head, tail *job
	n          int
}

// The kinds of queued jobs. Workers turn from one to the next, so that a flood of cold tags does not starve tags in use.
const (
	warmJobs = iota // tags in use
	loadJobs        // cold tags whose row is known
	coldJobs        // cold tags to be looked up
	jobKinds
)

// queue holds the jobs that are ready to run and counts the workers that run them.
type queue struct {
	mu      sync.Mutex
	lists   [jobKinds]jobList
	turn    int
	workers int
	most    int
	probe   bool          // one job may run although the store does not answer
	closed  bool          // nothing more is begun
	idle    chan struct{} // closed when, after that, the last worker is gone
}

func (q *queue) init(most int) {
	q.most = most
	q.idle = make(chan struct{})
}

// push queues j and reports whether the caller must start a worker for it.
func (q *queue) push(j *job, open func() bool) bool {
	kind := warmJobs
	switch {
	case j.stage == read || j.stage == readOne:
		kind = coldJobs
	case !j.t.used():
		kind = loadJobs
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || j.list != nil {
		return false
	}
	l := &q.lists[kind]
	j.list, j.prev, j.next = l, l.tail, nil
	if l.tail == nil {
		l.head = j
	} else {
		l.tail.next = j
	}
	l.tail = j
	l.n++
	return q.hire(open()) // under the lock: a store that begins to answer now finds the job, or the job finds it open
}

// hire counts one more worker in, if there is work for it.
func (q *queue) hire(open bool) bool {
	if q.closed || q.workers >= q.most || !open && !q.probe || q.lists[0].n+q.lists[1].n+q.lists[2].n == 0 {
		return false
	}
	q.workers++
	return true
}

func (q *queue) remove(j *job) {
	q.mu.Lock()
	q.unlink(j)
	q.mu.Unlock()
}

func (q *queue) unlink(j *job) {
	l := j.list
	if l == nil {
		return
	}
	if j.prev == nil {
		l.head = j.next
	} else {
		j.prev.next = j.next
	}
	if j.next == nil {
		l.tail = j.prev
	} else {
		j.next.prev = j.prev
	}
	l.n--
	j.list, j.prev, j.next = nil, nil, nil
}

// pop takes the next job, or several that are asked together. It returns nothing when the worker is to go.
func (q *queue) pop(batch []*job, open bool) []*job {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch = batch[:0]
	if (open || q.probe) && !q.closed {
		for range jobKinds {
			l := &q.lists[q.turn]
			q.turn = (q.turn + 1) % jobKinds
			for l.head != nil {
				j := l.head
				if len(batch) > 0 && (j.stage != read || batch[0].stage != read) {
					break
				}
				q.unlink(j)
				batch = append(batch, j)
				if len(batch) == readBatch || j.stage != read || !open {
					break
				}
			}
			if len(batch) > 0 {
				q.probe = false
				return batch
			}
		}
	}
	if q.workers--; q.closed && q.workers == 0 {
		close(q.idle)
	}
	return batch
}

// serverID and serverName translate a server's name for spans, which there are many of.
func (a *Allocator) serverID(name string) uint32 {
	a.servers.mu.Lock()
	defer a.servers.mu.Unlock()
	i := slices.Index(a.servers.names, name)
	if i < 0 {
		i = len(a.servers.names)
		a.servers.names = append(a.servers.names, name)
	}
	return uint32(i + 1)
}

func (a *Allocator) serverName(id uint32) string {
	a.servers.mu.Lock()
	defer a.servers.mu.Unlock()
	if id == 0 || int(id) > len(a.servers.names) {
		return ""
	}
	return a.servers.names[id-1]
}

// drain starts the workers that the queued jobs need.
func (a *Allocator) drain() {
	for {
		a.queue.mu.Lock()
		hired := a.queue.hire(a.health.open())
		busy := a.queue.workers
		jobs := a.queue.lists[0].n + a.queue.lists[1].n + a.queue.lists[2].n
		a.queue.mu.Unlock()
		if !hired {
			return
		}
		a.wg.Go(a.work)
		if busy >= jobs {
			return
		}
	}
}

// work runs jobs until there are none.
func (a *Allocator) work() {
	var batch []*job
	for {
		batch = a.queue.pop(batch, a.health.open())
		if len(batch) == 0 {
			return
		}
		a.run(batch)
		clear(batch)
	}
}

// run runs one job, or a batch to be read. Whatever happens in it, each job is afterwards ended, queued or timed: a tag can't
// be stuck (leaf S3, peers S5).
func (a *Allocator) run(batch []*job) {
	live := batch[:0]
	for _, j := range batch {
		t := j.t
		t.mu.Lock()
		if t.job == j && !a.abandon(t) {
			j.running = true
			live = append(live, j)
		}
		t.mu.Unlock()
	}
	if len(live) == 0 {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			a.o.Log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("a refill broke off; it is tried again")
			for _, j := range live {
				a.settle(j, &UnavailableError{fmt.Errorf("the refill broke off: %v", p)})
			}
		}
	}()
	ctx, cancel := context.WithTimeout(a.ctx, attemptTime)
	defer cancel()
	if live[0].stage == read || live[0].stage == readOne {
		a.look(ctx, live)
		return
	}
	j := live[0]
	if j.stage == create {
		a.settle(j, a.create(ctx, j.t))
		return
	}
	a.settle(j, a.fetch(ctx, j.t))
}

// look asks which of the batch's tags have a row.
func (a *Allocator) look(ctx context.Context, batch []*job) {
	names := make([]string, len(batch))
	for i, j := range batch {
		names[i] = j.t.name
	}
	rows, err := a.store.Rows(ctx, names)
	a.heard(err)
	for _, j := range batch {
		if err != nil && len(batch) > 1 && !unavailable(err) {
			// One bad row may have spoilt the answer for all.
			j.t.mu.Lock()
			j.stage, j.running = readOne, false
			if j.t.job == j {
				a.enqueue(j)
			}
			j.t.mu.Unlock()
			continue
		}
		if err != nil {
			a.settle(j, err)
			continue
		}
		r, ok := rows[j.t.name]
		a.settle(j, a.found(ctx, j.t, r, ok))
	}
}

// errNext says that a job has another stage to go through.
var errNext = errors.New("the job goes on")

// found decides what becomes of a cold tag whose row was looked up.
func (a *Allocator) found(ctx context.Context, t *tag, r Row, ok bool) error {
	// With a row there, a floor that can't be read is alarmed and the row alone guards: it fails only if the store went back too.
	floor, unread := a.storedFloor(t.name)
	if !ok {
		if floor > 0 {
			// A row that was there is not. Is it true?
			return a.regress(ctx, t, floor)
		}
		if !a.mayCreate(t.name) {
			return ErrNoTag
		}
		if unread != nil {
			return unread
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.job.stage = create
		return errNext
	}
	if err := a.usable(r); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.floor, t.saved, t.given = max(t.floor, floor), max(t.saved, floor), floor
	a.adopt(t, r)
	t.job.stage = reserve
	return errNext
}

// usable tells whether a row can be served from.
func (a *Allocator) usable(r Row) error {
	switch {
	case r.Err != nil:
		return r.Err
	case r.Step < 1 || r.Step > a.o.MaxStep:
		return &StepError{Tag: r.Tag, Column: "step", Value: fmt.Sprint(r.Step), Want: fmt.Sprintf("between 1 and %d (segment.max_step)", a.o.MaxStep)}
	case r.Max < 1:
		return &StepError{Tag: r.Tag, Column: "max_id", Value: fmt.Sprint(r.Max), Want: "at least 1"}
	}
	return nil
}

// adopt takes over what a row says of its tag. The caller holds t.mu.
func (a *Allocator) adopt(t *tag, r Row) {
	t.step = r.Step
	t.stepAt = a.o.Now()
	t.row, t.updated = r.Max, r.Updated.Unix()
	if !t.known && !t.gone {
		t.known = true
		a.tags.promote(t)
	}
}

// create makes the row of a tag that INCR may create.
func (a *Allocator) create(ctx context.Context, t *tag) error {
	r, created, err := a.store.Create(ctx, Row{Tag: t.name, Max: 1, Step: a.o.Step}, true)
	a.heard(err)
	if err != nil {
		return err
	}
	if err := a.usable(r); err != nil {
		return err
	}
	if created {
		a.count.add()
		a.o.Log.Info().Str("tag", t.name).Int64("first", r.Max).Int64("step", r.Step).Msg("tag created")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	a.adopt(t, r)
	t.job.stage = reserve
	return errNext
}

// fetch reserves one span for t and gives it to those who wait.
func (a *Allocator) fetch(ctx context.Context, t *tag) error {
	a.refreshStep(ctx, t)
	t.mu.Lock()
	size, need := a.plan(t)
	n := max(size, need)
	floor, taint := t.floor, a.taint(t)
	t.mu.Unlock()

	g, n, err := a.reserve(ctx, t, n, need, floor)
	if err != nil {
		t.mu.Lock()
		t.failures++
		t.mu.Unlock()
		a.stats.refillFailures.Add(1)
		var re *RegressedError
		if errors.As(err, &re) || errors.Is(err, ErrNoTag) && floor > 0 {
			return a.regress(ctx, t, floor)
		}
		if errors.Is(err, ErrNoTag) && a.mayCreate(t.name) {
			// The row went away between being found and the first span.
			t.mu.Lock()
			t.job.stage = create
			t.mu.Unlock()
			return errNext
		}
		return err
	}
	// From here on the span is ours, so its bound is the floor, whether or not an ID of it will be given (I6).
	if g.Len() != n || g.Lo < max(floor, 1) {
		a.o.Log.Error().Str("tag", t.name).Int64("lo", g.Lo).Int64("hi", g.Hi).Int64("asked", n).Int64("floor", floor).Msg("the store granted a span that can't be right; it is not used")
		return &RefusedError{fmt.Errorf("the store granted [%d, %d) for %d IDs at or above %d", g.Lo, g.Hi, n, floor)}
	}
	t.mu.Lock()
	t.floor = max(t.floor, g.Hi)
	t.row = max(t.row, g.Hi)
	t.mu.Unlock()
	a.saveFloor(t, g.Hi)

	t.mu.Lock()
	defer t.mu.Unlock()
	t.refills++
	t.waited = false
	a.stats.refills.Add(1)
	if t.gone || t.trouble != nil && t.trouble.stop {
		a.burn(t, g.Len())
		return nil // it was stopped meanwhile: the IDs are a hole
	}
	t.trouble = nil
	a.hold(t, g, taint)
	t.size = min(n, size) // what one large request needed says nothing of the next
	a.serve(t)
	return nil
}

// hold adds a grant to what t holds. The caller holds t.mu.
func (a *Allocator) hold(t *tag, g Grant, taint uint32) {
	a.watchBounds(t, g.Span)
	if !t.used() {
		t.last = g.Lo - 1 // what GET answers until the first ID
	}
	// What lies at or below the last ID here never comes out: after a SET beyond it, or if the store were to go wrong
	// (peers S3).
	cur, end := t.cur.Load(), t.next
	for end != nil && end.next != nil {
		end = end.next
	}
	after := t.lastLocked()
	switch {
	case end != nil:
		after = end.hi() - 1
	case cur.left() > 0:
		after = cur.hi() - 1
	}
	if g.Lo <= after {
		lost := min(g.Hi, after+1) - g.Lo
		a.burn(t, lost)
		g.Lo += lost
	}
	if g.Len() == 0 {
		return
	}
	server := a.serverID(g.Server)
	switch {
	case end == nil:
		t.next = newSpan(g.Span, server, taint)
	case end.hi() == g.Lo && end.server == server && end.taint == taint:
		end.size += g.Len() // touching spans are one
		end.setMark()
	default:
		end.next = newSpan(g.Span, server, taint)
	}
	a.check.use(t, a.o.Now())
}

// reserve asks for n IDs. Near the end of all IDs it asks for what is left, and tells those who need more.
func (a *Allocator) reserve(ctx context.Context, t *tag, n, need, floor int64) (Grant, int64, error) {
	for try := 0; ; try++ {
		start := a.o.Now()
		g, err := a.store.Reserve(ctx, t.name, n, floor)
		took := a.o.Now() - start
		a.heard(err)
		if err == nil {
			a.stats.tookRefill(took)
			t.mu.Lock()
			t.refillTime += took
			t.mu.Unlock()
			return g, n, nil
		}
		if unavailable(err) {
			t.mu.Lock()
			t.taints++ // the row may have moved
			t.mu.Unlock()
		}
		if !errors.Is(err, ErrExhausted) || try == 8 {
			return Grant{}, 0, err
		}
		rows, rerr := a.store.Rows(ctx, []string{t.name})
		if rerr != nil {
			return Grant{}, 0, rerr
		}
		left := MaxID - max(rows[t.name].Max, 1)
		if left <= 0 {
			return Grant{}, 0, ErrExhausted
		}
		if n = min(n, left); n < need {
			t.mu.Lock()
			have := int64(0)
			if s := t.cur.Load(); s.hi() == rows[t.name].Max && t.next == nil {
				have = s.left()
			}
			a.failWaiters(t, ErrExhausted, func(w *waiter) bool { return w.n > n+have })
			t.mu.Unlock()
			need = n
		}
	}
}

// plan decides the size of t's next refill, and what the largest request that waits needs. The caller holds t.mu.
func (a *Allocator) plan(t *tag) (size, need int64) {
	now := a.o.Now()
	j, s := t.job, t.cur.Load()
	need = 1
	for _, w := range j.waiters {
		need = max(need, w.n)
	}
	z := sizing{
		step: t.step, most: a.o.MaxStep, last: t.size, target: a.o.Target,
		waited: t.waited || len(j.waiters) > 0, waiting: j.wanted,
		pace: t.pace, latency: a.stats.latency(),
	}
	if t.size > 0 {
		a.noteDemand(t, now)
		z.issued = t.demand.lately()
	}
	if used := s.used(); used > 0 {
		d := now - s.at
		z.lasts = time.Duration(float64(d) * float64(s.size) / float64(used))
		if d > 0 {
			z.pace = max(z.pace, float64(used)/d.Seconds())
		}
	}
	return z.next(), need
}

// noteDemand brings t's demand up to date. The caller holds t.mu.
func (a *Allocator) noteDemand(t *tag, now time.Duration) {
	if t.demand == nil {
		since := now
		if s := t.cur.Load(); s != unusable {
			since = s.at
		}
		t.demand = newDemand(a.o.Target, since)
	}
	t.demand.note(now, t.issuedLocked())
}

// refreshStep reads t's row again if what is known of it is older than a minute. It is an ordinary read, so nothing but the
// step is taken from it, and a failure does not matter: Reserve will tell.
func (a *Allocator) refreshStep(ctx context.Context, t *tag) {
	t.mu.Lock()
	old := a.o.Now()-t.stepAt >= time.Minute
	t.mu.Unlock()
	if !old {
		return
	}
	rows, err := a.store.Rows(ctx, []string{t.name})
	if err != nil {
		return
	}
	if r, ok := rows[t.name]; ok {
		t.mu.Lock()
		a.noteRow(t, r)
		t.mu.Unlock()
	}
}

// noteRow takes over what an ordinary read says of a tag in use. The caller holds t.mu.
func (a *Allocator) noteRow(t *tag, r Row) {
	t.stepAt = a.o.Now()
	if err := a.usable(r); err != nil {
		if !t.badStep {
			a.o.Log.Error().Err(err).Str("tag", t.name).Int64("step", t.step).Msg("the row was made unusable; the step known before goes on")
		}
		t.badStep = true
		return
	}
	t.badStep = false
	t.step = r.Step
	t.row, t.updated = r.Max, r.Updated.Unix()
}

// backoff is how long to wait after a number of failures in a row: 50 ms and doubling, to 2 s, less up to a third.
func backoff(tries int) time.Duration {
	d := 50 * time.Millisecond << min(max(tries-1, 0), 6)
	d = min(d, 2*time.Second)
	return d - time.Duration(rand.Int64N(int64(d)/3))
}

func unavailable(err error) bool {
	if err == nil {
		return false
	}
	var (
		re *RegressedError
		ce *ClashError
		se *StepError
		fe *RefusedError
	)
	switch {
	case errors.Is(err, ErrNoTag), errors.Is(err, ErrExhausted), errors.Is(err, ErrClosed),
		errors.As(err, &re), errors.As(err, &ce), errors.As(err, &se), errors.As(err, &fe):
		return false
	}
	return true // of an error nobody knows it is the careful reading
}

// settle ends a stage of j with err: nil where a span came, errNext where another stage follows.
func (a *Allocator) settle(j *job, err error) {
	t := j.t
	t.mu.Lock()
	defer t.mu.Unlock()
	j.running = false
	if t.job != j {
		return
	}
	if a.closed.Load() {
		a.failWaiters(t, ErrClosed, nil)
		a.end(t)
		return
	}
	switch {
	case err == nil:
		j.tries, j.err = 0, nil
		if len(j.waiters) > 0 && (t.trouble == nil || !t.trouble.stop) || a.needs(t) {
			j.stage = reserve
			a.enqueue(j)
			return
		}
		a.end(t)
		a.want(t) // sets the next mark
	case errors.Is(err, errNext):
		j.tries, j.err = 0, nil
		if !a.abandon(t) {
			a.enqueue(j)
		}
	case unavailable(err):
		j.tries++
		j.err = err
		if a.abandon(t) {
			return
		}
		if j.tries == 1 || j.tries%20 == 0 {
			a.o.Log.Warn().Err(err).Str("tag", t.name).Int("tries", j.tries).Int64("left", t.stock()).Msg("refill failed; it is tried again")
		}
		a.retry(j, backoff(j.tries))
	default:
		a.stop(t, err)
	}
}

// retry queues j again after d. The caller holds j.t.mu.
func (a *Allocator) retry(j *job, d time.Duration) {
	j.timer = time.AfterFunc(d, func() {
		j.t.mu.Lock()
		defer j.t.mu.Unlock()
		if j.t.job == j && !j.running {
			a.enqueue(j)
		}
	})
}

// stop ends t's refill with an error that waiting does not cure. Those who wait get it, and for a while so do those who come,
// while what is held goes on. The caller holds t.mu.
func (a *Allocator) stop(t *tag, err error) {
	j := t.job
	a.failWaiters(t, err, nil)
	if t.trouble != nil && t.trouble.stop { // REGRESSED: check.go goes on from here
		a.end(t)
		return
	}
	if !t.known || errors.Is(err, ErrNoTag) && t.floor == 0 && !t.used() {
		a.end(t)
		a.forget(t)
		a.neg.add(t.name, err, a.o.Now())
		return
	}
	j.tries++
	j.err = err
	hold := min(time.Second<<min(j.tries-1, 3), 5*time.Second)
	if j.tries == 1 {
		a.o.Log.Error().Err(err).Str("tag", t.name).Int64("left", t.stock()).Msg("refill refused")
	}
	t.trouble = &trouble{err: err, until: a.o.Now() + hold}
	if errors.Is(err, ErrExhausted) || t.stock() == 0 {
		a.end(t) // the next request tries again
		return
	}
	a.retry(j, hold)
}

// trouble is why a tag gives no new IDs.
type trouble struct {
	err   error
	until time.Duration // asked again after that
	stop  bool          // until the row says otherwise: REGRESSED
	based bool          // its row is gone, and the base was raised to its floor
}

// refusal is the error that a request gets at once, or nil. The caller holds t.mu.
func (a *Allocator) refusal(t *tag) error {
	if a.closed.Load() {
		return ErrClosed
	}
	if t.trouble != nil {
		if t.trouble.stop || a.o.Now() < t.trouble.until {
			return t.trouble.err
		}
		if t.job == nil {
			t.trouble = nil
		}
	}
	return a.health.refused()
}

// cause is what keeps t's refill from being done, or nil. The caller holds t.mu.
func (a *Allocator) cause(t *tag) error {
	if t.job != nil && t.job.err != nil {
		return t.job.err
	}
	return a.health.cause(a.o.Now())
}

// watchBounds logs once that a tag passes a bound which some clients can't count beyond.
func (a *Allocator) watchBounds(t *tag, s Span) {
	for _, b := range []struct {
		at  int64
		who string
	}{
		{1 << 31, "clients that keep it in 32 bits"},
		{1 << 53, "JavaScript clients, which read integers as doubles"},
	} {
		if s.Lo <= b.at && b.at < s.Hi {
			a.o.Log.Warn().Str("tag", t.name).Int64("id", b.at).Msg("tag passes an ID that is too large for " + b.who)
		}
	}
}
