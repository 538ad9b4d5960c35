package zookeeper

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// The simulation runs in one goroutine. Time is a number; everything that happens is an event in a heap, ordered by time and by
// when it was scheduled. The protocol's own code runs in coroutines (iter.Pull): whatever would wait, a sleep or a reply from
// ZooKeeper, yields to the scheduler, and a crash unwinds the coroutine where it stands. One seed is one history.

const simT0 = 1_800_000_000_000 // Unix ms of the simulation's beginning

type event struct {
	at  int64
	seq int
	run func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

// scheduler is simulated time.
type scheduler struct {
	rng    *rand.Rand
	now    int64 // true time, ms since simT0
	events eventHeap
	seq    int
	cur    *coro
}

func (s *scheduler) at(t int64, f func()) {
	s.seq++
	heap.Push(&s.events, event{max(t, s.now), s.seq, f})
}

func (s *scheduler) after(d int64, f func()) { s.at(s.now+d, f) }

func (s *scheduler) run(until int64) {
	for len(s.events) > 0 && s.events[0].at <= until {
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		e.run()
	}
	s.now = until
}

func (s *scheduler) between(lo, hi int64) int64 { return lo + s.rng.Int64N(hi-lo+1) }
func (s *scheduler) chance(p float64) bool      { return s.rng.Float64() < p }

var errStopped = errors.New("the process died here")

// coro is a piece of protocol code on its way.
type coro struct {
	s     *scheduler
	pause func() int64 // until when its host stands still; 0: it runs
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	token int
	dead  bool
}

func (s *scheduler) spawn(pause func() int64, f func()) *coro {
	c := &coro{s: s, pause: pause}
	c.next, c.stop = iter.Pull(func(yield func(struct{}) bool) {
		c.yield = yield
		defer func() {
			if e := recover(); e != nil && e != errStopped {
				panic(e)
			}
		}()
		f()
	})
	s.after(0, func() { c.wake(0) })
	return c
}

func (c *coro) kill() {
	if !c.dead {
		c.dead = true
		c.stop()
	}
}

// wake goes on with a coroutine that still waits for what token stands for.
func (c *coro) wake(token int) {
	if c.dead || c.token != token {
		return
	}
	if until := c.pause(); until > c.s.now {
		c.s.at(until, func() { c.wake(token) })
		return
	}
	c.token++
	before := c.s.cur
	c.s.cur = c
	_, ok := c.next()
	c.s.cur = before
	if !ok {
		c.dead = true
	}
}

// wait suspends the running coroutine until t or an earlier wake with the token that it passes to begin.
func (s *scheduler) wait(t int64, begin func(wake func())) {
	c := s.cur
	token := c.token
	s.at(t, func() { c.wake(token) })
	if begin != nil {
		begin(func() { c.wake(token) })
	}
	if !c.yield(struct{}{}) {
		panic(errStopped)
	}
}

// fnode is one node; it is never changed, only replaced.
type fnode struct {
	data    []byte
	st      stat
	counter int32
	kids    int32
}

func (n *fnode) stat() stat {
	st := n.st
	st.NumChildren = n.kids
	st.Cversion = 2*n.counter - n.kids
	return st
}

type effect struct {
	at   int64
	path string
	node *fnode // nil: deleted
}

// replica is a server of the ensemble: the leader's state, some time ago.
type replica struct {
	nodes map[string]*fnode
	upto  int // effects applied
	lag   int64
}

type ensemble struct {
	s        *scheduler
	nodes    map[string]*fnode
	zxid     int64
	log      []effect
	replicas []*replica
	sessions map[int64]int64 // last heard, by session
	sids     int64
	downTill int64
	offset   int64 // of the leader's clock
	history  int   // counts wipes and restores
}

func newEnsemble(s *scheduler) *ensemble {
	e := &ensemble{s: s, sessions: map[int64]int64{}, sids: 100}
	e.clear()
	for range 3 {
		e.replicas = append(e.replicas, &replica{nodes: maps.Clone(e.nodes)})
	}
	var tick func()
	tick = func() {
		e.expire()
		for _, r := range e.replicas {
			if s.chance(0.1) {
				r.lag = s.between(0, 1500)
			}
		}
		s.after(500, tick)
	}
	s.after(500, tick)
	return e
}

func (e *ensemble) clear() { e.nodes = map[string]*fnode{"/": {}} }

func (e *ensemble) up() bool     { return e.s.now >= e.downTill }
func (e *ensemble) clock() int64 { return simT0 + e.s.now + e.offset }

// expire ends sessions not heard of. Timers begin anew when the ensemble comes back.
func (e *ensemble) expire() {
	if !e.up() {
		return
	}
	for _, sid := range slices.Sorted(maps.Keys(e.sessions)) {
		if e.s.now-max(e.sessions[sid], e.downTill) > usualPace.session.Milliseconds() {
			e.endSession(sid)
		}
	}
}

func (e *ensemble) endSession(sid int64) {
	delete(e.sessions, sid)
	for _, p := range slices.Sorted(maps.Keys(e.nodes)) {
		if n := e.nodes[p]; n.st.Owner == sid && sid != 0 {
			e.zxid++
			e.remove(p)
		}
	}
}

func (e *ensemble) put(path string, n *fnode) {
	e.nodes[path] = n
	e.log = append(e.log, effect{e.s.now, path, n})
}

func (e *ensemble) remove(path string) {
	delete(e.nodes, path)
	e.log = append(e.log, effect{e.s.now, path, nil})
	up := parentOf(path)
	p := *e.nodes[up]
	p.kids--
	e.put(up, &p)
}

func parentOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

// apply executes ops as one transaction: all or none.
func (e *ensemble) apply(sid int64, ops ...op) ([]stat, []string, error) {
	nodes, mark, zxid := maps.Clone(e.nodes), len(e.log), e.zxid
	e.zxid++
	stats, names := make([]stat, len(ops)), make([]string, len(ops))
	for i, o := range ops {
		var err error
		stats[i], names[i], err = e.applyOne(sid, o)
		if err != nil {
			e.nodes, e.log, e.zxid = nodes, e.log[:mark], zxid
			return nil, nil, &opError{Index: i, Path: o.path, Err: err}
		}
	}
	return stats, names, nil
}

const opSequential = opKind(100)

func (e *ensemble) applyOne(sid int64, o op) (stat, string, error) {
	n, there := e.nodes[o.path]
	switch o.kind {
	case opCheck, opSet, opDelete:
		if !there {
			return stat{}, "", errNoNode
		}
		if o.version != -1 && o.version != n.st.Version {
			return stat{}, "", errBadVersion
		}
	}
	switch o.kind {
	case opSet:
		c := *n
		c.data, c.st.Version, c.st.Mtime = o.data, n.st.Version+1, e.clock()
		e.put(o.path, &c)
		return c.stat(), o.path, nil
	case opDelete:
		if n.kids > 0 {
			return stat{}, "", errNotEmpty
		}
		e.remove(o.path)
	case opCreate, opCreateEphemeral, opSequential:
		up := parentOf(o.path)
		p, ok := e.nodes[up]
		if !ok {
			return stat{}, "", errNoNode
		}
		path := o.path
		if o.kind == opSequential {
			path += fmt.Sprintf("%010d", p.counter)
			_, there = e.nodes[path]
		}
		if there {
			return stat{}, "", errExists
		}
		q := *p
		q.counter++
		q.kids++
		e.put(up, &q)
		c := &fnode{data: o.data, st: stat{Czxid: e.zxid, Mtime: e.clock()}}
		if o.kind == opCreateEphemeral {
			if _, valid := e.sessions[sid]; !valid {
				return stat{}, "", errNoAuth // never: sessions are checked before
			}
			c.st.Owner = sid
		}
		e.put(path, c)
		return c.stat(), path, nil
	}
	return stat{}, "", nil
}

// reset makes every replica see what the leader has now, after a wipe or a restore.
func (e *ensemble) reset() {
	e.log = nil
	e.history++
	for _, r := range e.replicas {
		r.nodes, r.upto = maps.Clone(e.nodes), 0
	}
}

type snapshot struct {
	nodes map[string]*fnode
	zxid  int64
}

func (e *ensemble) snapshot() snapshot { return snapshot{maps.Clone(e.nodes), e.zxid} }

// restore is an ensemble started from old data: sessions in it time out, zxids go back.
func (e *ensemble) restore(sn snapshot) {
	e.nodes, e.zxid = maps.Clone(sn.nodes), sn.zxid
	e.sessions = map[int64]int64{}
	for _, n := range e.nodes {
		if n.st.Owner != 0 {
			e.sessions[n.st.Owner] = e.s.now
		}
	}
	e.reset()
}

// wipeAll is an ensemble without data.
func (e *ensemble) wipeAll() {
	e.clear()
	e.zxid = 0
	e.sessions = map[int64]int64{}
	e.reset()
}

// deleteTree is a person with a shell.
func (e *ensemble) deleteTree(path string) {
	for _, p := range slices.Backward(slices.Sorted(maps.Keys(e.nodes))) {
		if p == path || strings.HasPrefix(p, path+"/") {
			e.zxid++
			e.remove(p)
		}
	}
}

func (r *replica) advance(e *ensemble, least int) {
	for r.upto < len(e.log) && (r.upto < least || e.log[r.upto].at <= e.s.now-r.lag) {
		if x := e.log[r.upto]; x.node == nil {
			delete(r.nodes, x.path)
		} else {
			r.nodes[x.path] = x.node
		}
		r.upto++
	}
}

// fakeConn implements tree for one process.
type fakeConn struct {
	e       *ensemble
	alive   bool
	cut     func() bool // partitioned, or the host is down or paused
	frozen  func() bool // paused: what the client believes stays as it was
	sid     int64
	believe bool // what State() says
	server  int
	zxid    int64
	seen    int // effects this client has seen …
	history int // … of this history
	good    int64
	retry   int64
	hostile float64 // share of requests with a fault
}

func newFakeConn(e *ensemble, cut, frozen func() bool) *fakeConn {
	c := &fakeConn{e: e, alive: true, cut: cut, frozen: frozen, good: e.s.now, hostile: 1, server: e.s.rng.IntN(3)}
	c.tick()
	return c
}

// tick is the client's pings and reconnects.
func (c *fakeConn) tick() {
	if !c.alive {
		return
	}
	s := c.e.s
	defer s.after(s.between(200, 400), c.tick)
	if c.frozen() {
		return
	}
	if c.cut() || !c.e.up() {
		if s.now-c.good > 2000 {
			c.believe = false
		}
		if s.now-c.good > 2*usualPace.session.Milliseconds() && !c.believe {
			c.sid, c.zxid = 0, 0 // the actor takes a new Conn
		}
		return
	}
	if s.now < c.retry {
		return
	}
	if c.zxid > c.e.zxid { // "client must try another server"
		c.believe = false
		if s.now-c.good > 2*usualPace.session.Milliseconds() {
			c.sid, c.zxid = 0, 0
		}
		return
	}
	if _, ok := c.e.sessions[c.sid]; !ok {
		c.e.sids++
		c.sid = c.e.sids
		c.server = s.rng.IntN(3)
	}
	c.e.sessions[c.sid] = s.now
	c.believe, c.good = true, s.now
}

func (c *fakeConn) drop() {
	c.believe = false
	c.retry = c.e.s.now + c.e.s.between(50, 1500)
}

func (c *fakeConn) shut() {
	c.alive, c.believe = false, false
	if c.sid != 0 && !c.cut() && c.e.up() {
		if _, ok := c.e.sessions[c.sid]; ok {
			c.e.endSession(c.sid)
		}
	}
}

func (c *fakeConn) Session() (int64, bool) { return c.sid, c.believe && c.alive }

// rpc carries one request to the ensemble and its reply back, or not.
func (c *fakeConn) rpc(exec func(sid int64, r *replica)) error {
	if !c.believe || !c.alive {
		return errNoSession
	}
	s, e := c.e.s, c.e
	there, back := s.between(0, 8), s.between(0, 8)
	if s.chance(0.02 * c.hostile) {
		there += s.between(0, 2500)
	}
	if s.chance(0.02 * c.hostile) {
		back += s.between(0, 2500)
	}
	lost := s.chance(0.004 * c.hostile)
	mute := s.chance(0.004 * c.hostile)
	late := s.chance(0.004 * c.hostile)
	if late {
		there += s.between(3000, 40_000)
	}
	sent := c.sid
	done := false
	s.wait(s.now+usualPace.call.Milliseconds(), func(wake func()) {
		s.after(there, func() {
			if !e.up() || !late && c.cut() || lost {
				c.drop()
				return
			}
			sid := sent
			if _, valid := e.sessions[sid]; !valid {
				// A request that was queued in the client goes out in its next session, and its caller sees no error.
				if !c.alive || c.cut() || c.zxid > e.zxid || !s.chance(0.5) {
					c.believe = false
					return
				}
				if c.sid == sent {
					e.sids++
					c.sid = e.sids
					e.sessions[c.sid] = s.now
				}
				if _, valid := e.sessions[c.sid]; !valid {
					c.believe = false
					return
				}
				sid = c.sid
			}
			r := e.replicas[c.server]
			if c.history != e.history {
				c.history, c.seen = e.history, 0
			}
			r.advance(e, c.seen) // never back behind what it saw
			exec(sid, r)
			c.seen = r.upto
			zxid := e.zxid
			if mute {
				c.drop()
				return
			}
			s.after(back, func() {
				if !c.alive || c.cut() || !e.up() {
					return
				}
				c.zxid = max(c.zxid, zxid)
				c.good = s.now
				done = true
				wake()
			})
		})
	})
	if !done {
		return errUnknown
	}
	return nil
}

// write goes to the leader; the client's own server has it when the reply is sent.
func (c *fakeConn) write(ops ...op) (stats []stat, names []string, err error) {
	e := c.e
	var werr error
	err = c.rpc(func(sid int64, r *replica) {
		stats, names, werr = e.apply(sid, ops...)
		r.advance(e, len(e.log))
	})
	if err == nil {
		err = werr
	}
	return stats, names, err
}

func (c *fakeConn) Sync(context.Context, string) error {
	return c.rpc(func(_ int64, r *replica) { r.advance(c.e, len(c.e.log)) })
}

func (c *fakeConn) Get(_ context.Context, path string) (znode, error) {
	nodes, err := c.GetMany(context.Background(), []string{path})
	if err != nil {
		return znode{}, err
	}
	if nodes[0].Missing {
		return znode{}, fmt.Errorf("%s: %w", path, errNoNode)
	}
	return nodes[0], nil
}

func (c *fakeConn) GetMany(_ context.Context, paths []string) ([]znode, error) {
	out := make([]znode, len(paths))
	err := c.rpc(func(_ int64, r *replica) {
		for i, p := range paths {
			if n := r.nodes[p]; n == nil {
				out[i] = znode{Missing: true}
			} else {
				out[i] = znode{stat: n.stat(), Data: n.data}
			}
		}
	})
	return out, err
}

func (c *fakeConn) Children(_ context.Context, path string) ([]string, stat, error) {
	var names []string
	var st stat
	missing := false
	err := c.rpc(func(_ int64, r *replica) {
		n := r.nodes[path]
		if n == nil {
			missing = true
			return
		}
		st = n.stat()
		for p := range r.nodes {
			if rest, ok := strings.CutPrefix(p, path+"/"); ok && !strings.Contains(rest, "/") {
				names = append(names, rest)
			}
		}
		slices.Sort(names)
	})
	if err == nil && missing {
		err = fmt.Errorf("%s: %w", path, errNoNode)
	}
	return names, st, err
}

func (c *fakeConn) Create(_ context.Context, path string, data []byte, sequential bool) (string, error) {
	o := createOp(path, data)
	if sequential {
		o.kind = opSequential
	}
	_, names, err := c.write(o)
	if err != nil {
		return "", err
	}
	return names[0], nil
}

func (c *fakeConn) Set(_ context.Context, path string, data []byte, version int32) (stat, error) {
	stats, _, err := c.write(setOp(path, data, version))
	if err != nil {
		return stat{}, err
	}
	return stats[0], nil
}

func (c *fakeConn) Multi(_ context.Context, ops ...op) ([]stat, error) {
	stats, _, err := c.write(ops...)
	return stats, err
}

// simDisk is the state file on a simulated disk.
type simDisk struct {
	synced, cached []byte
	onSync         func() // may panic: the process dies in the middle
}

func (d *simDisk) ReadAt(b []byte, off int64) (int, error) {
	if off >= int64(len(d.cached)) {
		return 0, nil
	}
	return copy(b, d.cached[off:]), nil
}

func (d *simDisk) WriteAt(b []byte, off int64) (int, error) {
	if need := int(off) + len(b); need > len(d.cached) {
		d.cached = append(d.cached, make([]byte, need-len(d.cached))...)
	}
	return copy(d.cached[off:], b), nil
}

func (d *simDisk) Sync() error {
	if d.onSync != nil {
		d.onSync()
	}
	d.synced = slices.Clone(d.cached)
	return nil
}

func (d *simDisk) Close() error { return nil }
