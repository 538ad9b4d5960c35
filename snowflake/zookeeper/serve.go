package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"redleaf/snowflake"
)

// worker is one claimed number. serve, in one goroutine, does all that needs ZooKeeper; Window is two atomic loads.
type worker struct {
	r       *Registry
	id      int64
	base    int64
	cluster string
	until   atomic.Int64 // granted by ZooKeeper
	durable atomic.Int64 // what Window shows: at most until, and on disk
	lost    chan struct{}
	once    sync.Once

	mu       sync.Mutex // guards rec and its order on disk, ended, wake, kicked, changed, wanted
	rec      record
	ended    bool
	kicked   bool
	wake     context.CancelFunc
	changed  chan struct{} // closed and replaced after each round
	release  bool          // a clean stop was asked for …
	last     int64         // … with this last timestamp
	released chan struct{}

	// serve's own
	slot        slot // as it stands in ZooKeeper
	version     int32
	czxid       int64 // 0: not known yet
	metaVersion int32
	nodeGone    bool // forever's node was deleted by hand; the next write puts it back
	pending     *intent
	former      []stamp // intents given up that may be executed yet
	sid         int64   // the session in which everything was checked last
	doubt       bool
	lastRound   time.Duration // boot clock
	counted     time.Duration
	troubled    bool
}

// intent is a write of the slot that was sent and not yet confirmed. It is repeated as it is, so that it does not matter which
// of its copies is executed.
type intent struct {
	stamp
	slot slot
}

func newWorker(r *Registry, id, base int64, rec record, s slot) *worker {
	w := &worker{
		r: r, id: id, base: base, cluster: rec.Cluster, rec: rec, slot: s,
		lost: make(chan struct{}), changed: make(chan struct{}), released: make(chan struct{}),
	}
	w.until.Store(rec.Held.Until)
	w.durable.Store(min(rec.LocalUntil, rec.Held.Until))
	boot := r.clock.Boot()
	w.lastRound, w.counted = boot, boot
	return w
}

func (w *worker) ID() int64             { return w.id }
func (w *worker) Lost() <-chan struct{} { return w.lost }

func (w *worker) Window() snowflake.Window {
	return snowflake.Window{Base: w.base, Until: w.durable.Load()}
}

func (w *worker) lose() { w.once.Do(func() { close(w.lost) }) }

func (w *worker) isLost() bool {
	select {
	case <-w.lost:
		return true
	default:
		return false
	}
}

func (w *worker) record() record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rec
}

// end stops every further extension.
func (w *worker) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}

// Extend implements snowflake.Worker.
func (w *worker) Extend(ctx context.Context, ts int64) (snowflake.Window, error) {
	for asked := false; ; asked = true {
		w.mu.Lock()
		changed := w.changed
		w.mu.Unlock()
		win, err := w.extend(ts)
		if err != nil || win.Until >= ts {
			return win, err
		}
		_, up := w.r.tree.Session()
		if asked || !up || w.isLost() || ctx.Err() != nil {
			return win, w.usedUp(ts)
		}
		w.kick()
		select {
		case <-changed:
		case <-w.lost:
		case <-w.released:
		case <-ctx.Done():
		}
	}
}

func (w *worker) usedUp(ts int64) error {
	until := w.until.Load()
	st := w.r.Status()
	why := st.Reason
	if why == "" {
		why = "ZooKeeper grants no more"
	}
	return &snowflake.NoWorkerError{Cause: fmt.Errorf("worker %d may issue up to %s and %s was asked for: %s", w.id, timeText(until), timeText(ts), why)}
}

// extend makes the local bound durable up to ts and a reserve, as far as the granted window goes. It does not ask ZooKeeper.
func (w *worker) extend(ts int64) (snowflake.Window, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return w.Window(), &snowflake.NoWorkerError{Cause: fmt.Errorf("worker %d is no longer held by this instance", w.id)}
	}
	if w.durable.Load() >= ts {
		return w.Window(), nil
	}
	bound := min(ts+reserve.Milliseconds(), w.until.Load())
	if bound > w.rec.LocalUntil {
		rec := w.rec
		rec.LocalUntil = bound
		if err := w.r.state.store(rec); err != nil {
			return w.Window(), &snowflake.NoWorkerError{Cause: err}
		}
		w.rec = rec
	}
	if bound > w.durable.Load() {
		w.durable.Store(bound)
	}
	if invariants {
		assert(w.durable.Load() <= w.until.Load(), "I7: worker %d is durable up to %d and granted up to %d", w.id, w.durable.Load(), w.until.Load())
		assert(w.durable.Load() <= w.rec.LocalUntil, "I7: worker %d shows %d and the disk has %d", w.id, w.durable.Load(), w.rec.LocalUntil)
	}
	return w.Window(), nil
}

// save makes a change of the local state durable; after an error nothing has changed.
func (w *worker) save(change func(*record)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec
	change(&rec)
	if err := w.r.state.store(rec); err != nil {
		return err
	}
	w.rec = rec
	return nil
}

func (w *worker) kick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kicked = true
	if w.wake != nil {
		w.wake()
	}
}

// pause waits for the next tick or a kick, and says which.
func (w *worker) pause() (kicked bool) {
	ctx, cancel := context.WithCancel(w.r.alive)
	defer cancel()
	w.mu.Lock()
	if w.kicked {
		w.kicked = false
		w.mu.Unlock()
		return true
	}
	w.wake = cancel
	w.mu.Unlock()
	w.r.clock.Sleep(ctx, min(tick, w.r.o.pace.renew))
	w.mu.Lock()
	defer w.mu.Unlock()
	kicked, w.kicked, w.wake = w.kicked, false, nil
	return kicked
}

// serve keeps the number: a renewal every 3 s, checks of session, cluster and lock file. It ends when the number is lost or
// released, or the registry closed.
func (w *worker) serve() {
	r := w.r
	for {
		kicked := w.pause()
		if r.alive.Err() != nil {
			return
		}
		w.mu.Lock()
		release, last := w.release, w.last
		w.mu.Unlock()
		if release {
			w.giveBack(r.alive, last)
			return
		}
		if err := r.dirCheck(); err != nil {
			w.fence(err.Error())
			return
		}
		boot := r.clock.Boot()
		if kicked || boot-w.lastRound >= r.o.pace.renew {
			w.lastRound = boot
			w.round(r.alive)
			w.mu.Lock()
			close(w.changed)
			w.changed = make(chan struct{})
			w.mu.Unlock()
		} else if _, up := r.tree.Session(); !up {
			w.trouble("ZooKeeper at %s is out of reach", r.where)
		}
		if w.isLost() {
			w.dropLive(r.alive)
			return
		}
	}
}

// trouble says that renewals don't work. The number is used on until its window ends.
func (w *worker) trouble(format string, args ...any) {
	until := w.until.Load()
	reason := fmt.Sprintf(format, args...) + "; goes on until " + timeText(until)
	if w.r.clock.Now() > until {
		reason = fmt.Sprintf(format, args...) + "; the window ended at " + timeText(until)
	}
	if !w.troubled {
		w.troubled = true
		w.r.log.Warn().Int64("worker", w.id).Msg(reason)
	}
	w.r.setStatus("autonomous", reason)
}

// round checks what needs checking and renews.
func (w *worker) round(ctx context.Context) {
	r := w.r
	sid, up := r.tree.Session()
	if !up {
		w.trouble("ZooKeeper at %s is out of reach", r.where)
		return
	}
	if sid != w.sid || w.doubt {
		if !w.verify(ctx, sid) {
			return
		}
	}
	w.renew(ctx)
	if boot := r.clock.Boot(); !w.isLost() && boot-w.counted >= countEvery {
		w.counted = boot
		w.recount(ctx)
	}
}

// verify compares cluster, slot, node of forever and ephemeral node with what is held: in every new session, and whenever the
// result of a write is not known. False: nothing may be written now.
func (w *worker) verify(ctx context.Context, sid int64) bool {
	r := w.r
	w.doubt = true
	unreachable := func(err error) bool {
		w.trouble("%v", r.describe(err))
		return false
	}
	if err := r.tree.Sync(ctx, r.p.meta()); err != nil {
		return unreachable(err)
	}
	z, err := r.tree.Get(ctx, r.p.meta())
	if errors.Is(err, errNoNode) {
		w.putBack(ctx, false)
		return false // the next round verifies what was put back
	}
	if err != nil {
		return unreachable(err)
	}
	m, err := decodeMeta(z.Data)
	if err != nil {
		w.trouble("%s can't be used: %v. Put its content back", r.p.meta(), err)
		return false
	}
	if m.Cluster != w.cluster {
		w.fence(fmt.Sprintf("%s names the cluster %s, and this instance belongs to %s", r.p.meta(), m.Cluster, w.cluster))
		return false
	}
	if err := m.layoutErr(r.p.meta(), r.o.Layout); err != nil {
		w.fence(err.Error())
		return false
	}
	w.metaVersion = z.Version
	r.learn(m)
	if m.State == metaRestoring {
		w.putBack(ctx, true)
		return false
	}
	for try := 0; ; try++ {
		again, ok := w.verifySlot(ctx)
		if ok {
			break
		}
		if !again || try == 2 {
			return false
		}
	}
	if !w.verifyLive(ctx, sid) {
		return false
	}
	w.sid, w.doubt = sid, false
	return true
}

// verifySlot says whether the slot is ours. again: read once more, a write of ours came in between.
func (w *worker) verifySlot(ctx context.Context) (again, ok bool) {
	r := w.r
	path := r.p.slot(w.id)
	z, err := r.tree.Get(ctx, path)
	if errors.Is(err, errNoNode) {
		w.fence(path + " was deleted")
		return false, false
	}
	if err != nil {
		w.trouble("%v", r.describe(err))
		return false, false
	}
	s, err := decodeSlot(z.Data)
	if err != nil {
		w.fence(fmt.Sprintf("%s was overwritten: %v", path, err))
		return false, false
	}
	switch {
	case w.mine(s, z):
		w.adopt(s, z.Version, z.Czxid)
	case s.State == slotQuarantined && s.ID == "":
		// Put back by a peer that did not know the owner. As long as our window lasts nobody else can have had the number.
		if _, ok, err := r.timecheck(ctx, true); err != nil || !ok {
			w.trouble("%s is quarantined and can't be taken back now", path)
			return false, false
		}
		if r.zkNow() > w.until.Load() {
			w.fence(path + " was put back without an owner, and the window is past")
			return false, false
		}
		if w.version != z.Version || w.czxid != z.Czxid {
			r.log.Warn().Int64("worker", w.id).Msg(path + " was put back without an owner: taking it back")
			w.pending, w.former = nil, nil
			w.slot.Gen = max(w.slot.Gen, s.Gen) + 1
			w.version, w.czxid = z.Version, z.Czxid
		}
	case z.Version < w.version && (z.Czxid == w.czxid || s.ID == r.o.Identity && s.Gen <= w.slot.Gen):
		// ZooKeeper was put back to an older state. The slot must not stay below what was granted to us, whoever had it then; an
		// owner of then who went on from it is fenced by this write, as we are.
		s.Until, s.Nonce = max(s.Until, w.until.Load()), r.nonce()
		if s.State == slotFree {
			s.State = slotQuarantined
		}
		s.HW = max(s.HW, s.Until)
		if _, err := r.tree.Set(ctx, path, encode(s), z.Version); err != nil {
			w.trouble("%s stands below what was granted and can't be raised yet: %v", path, r.describe(err))
			return false, false
		}
		w.fence(path + " went back to an older state")
		return false, false
	default:
		owner := s.ID
		if owner == "" {
			owner = "nobody"
		}
		w.fence(fmt.Sprintf("%s belongs to %s (generation %d, ours was %d)", path, owner, s.Gen, w.slot.Gen))
		return false, false
	}
	if w.slot.Node == "" {
		return false, true
	}
	n, err := r.tree.Get(ctx, r.p.node(w.slot.Node))
	switch {
	case errors.Is(err, errNoNode):
		if !w.nodeGone {
			r.log.Warn().Msg(r.p.node(w.slot.Node) + " was deleted: putting it back")
		}
		w.nodeGone = true
		w.give()
	case err != nil:
		w.trouble("%v", r.describe(err))
		return false, false
	case n.Version != w.slot.NodeVersion:
		if z2, err := r.tree.Get(ctx, path); err == nil && z2.Version != z.Version {
			return true, false
		}
		w.fence(fmt.Sprintf("%s was written by somebody else: Leaf runs with this identity", r.p.node(w.slot.Node)))
		return false, false
	default:
		w.nodeGone = false
	}
	return false, true
}

// mine: the slot carries a write of ours, at its version. czxid tells a slot that was deleted and made again.
func (w *worker) mine(s slot, z znode) bool {
	if w.czxid != 0 && w.czxid != z.Czxid {
		return false
	}
	if z.Version == w.version && s.Nonce == w.slot.Nonce {
		return true
	}
	if w.pending != nil && z.Version == w.pending.Version && s.Nonce == w.pending.Nonce {
		return true
	}
	for _, f := range w.former {
		if z.Version == f.Version && s.Nonce == f.Nonce {
			return true
		}
	}
	return false
}

// adopt takes what stands in the slot as ours.
func (w *worker) adopt(s slot, version int32, czxid int64) {
	if version != w.version {
		w.pending = nil // either this one, or conditional on a version that is gone
	}
	w.slot, w.version, w.czxid = s, version, czxid
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rec.Held = stamp{Version: version, Gen: s.Gen, Nonce: s.Nonce, Until: s.Until}
	if w.rec.Intent.Nonce == s.Nonce {
		w.rec.Intent = stamp{}
	}
	if s.Until > w.until.Load() {
		w.until.Store(s.Until)
	}
}

// give drops the pending intent for a new one; it may be executed all the same.
func (w *worker) give() {
	if w.pending != nil {
		w.former = append(w.former, w.pending.stamp)
		if len(w.former) > 8 {
			w.former = w.former[1:]
		}
		w.pending = nil
	}
}

// verifyLive makes the ephemeral node stand in this session.
func (w *worker) verifyLive(ctx context.Context, sid int64) bool {
	r := w.r
	path := r.p.live(w.id)
	z, err := r.tree.Get(ctx, path)
	ops := []op{checkOp(r.p.slot(w.id), w.version)}
	switch {
	case errors.Is(err, errNoNode):
	case err != nil:
		w.trouble("%v", r.describe(err))
		return false
	case z.Owner == sid:
		return true
	default:
		var l live
		if decode(z.Data, &l) != nil || l.ID != r.o.Identity || l.Gen > w.slot.Gen {
			w.fence(path + " belongs to somebody else")
			return false
		}
		ops = append(ops, deleteOp(path, z.Version)) // an earlier session's
	}
	s := w.slot
	s.ID = r.o.Identity
	if _, err := r.tree.Multi(ctx, append(ops, ephemeralOp(path, r.liveData(s)))...); err != nil {
		w.trouble("%v", r.describe(err))
		return false
	}
	return true
}

// renew raises the window by a write that is conditional on our being the last writer of slot and node.
func (w *worker) renew(ctx context.Context) {
	r := w.r
	off, ok, err := r.timecheck(ctx, false)
	if err != nil {
		w.trouble("%v", r.describe(err))
		return
	}
	if !ok {
		// A clock that is wrong must not poison the fence, and ZooKeeper's own may be the wrong one.
		w.trouble("this machine's clock is %s off ZooKeeper's, more than snowflake.max_skew %s: no renewal until that is corrected", short(off), r.o.MaxSkew)
		return
	}
	if w.pending == nil {
		w.pending = w.intend(slotHeld, 0)
	}
	p := w.pending
	fleet, leafs := r.fleetAutonomy().Milliseconds(), r.leafs()
	if err := w.save(func(rec *record) { rec.Intent, rec.Fleet, rec.Leafs = p.stamp, fleet, leafs }); err != nil {
		w.trouble("%v", err)
		return
	}
	ops := []op{checkOp(r.p.meta(), w.metaVersion), setOp(r.p.slot(w.id), encode(p.slot), w.version)}
	if p.slot.Node != "" {
		data := encode(leafOf(r.o.Identity, p.slot.HW))
		if w.nodeGone {
			ops = append(ops, createOp(r.p.node(p.slot.Node), data))
		} else {
			ops = append(ops, setOp(r.p.node(p.slot.Node), data, w.slot.NodeVersion))
		}
	}
	sent := r.clock.Now()
	stats, err := r.tree.Multi(ctx, ops...)
	switch {
	case err == nil:
		if w.czxid != 0 && stats[1].Czxid != w.czxid {
			// Deleted, made again and brought to the same version: we have just overwritten somebody's fence.
			r.quarantine(ctx, w.id, stats[1].Version, p.slot)
			w.fence(r.p.slot(w.id) + " was deleted and made again")
			return
		}
		r.observe(stats[1].Mtime, sent)
		if invariants {
			assert(stats[1].Version == p.Version, "I9: slot %d has version %d after a write at %d", w.id, stats[1].Version, w.version)
			assert(p.Until >= w.until.Load(), "I9: worker %d's window went from %d back to %d", w.id, w.until.Load(), p.Until)
		}
		w.nodeGone = false
		w.former = nil
		w.adopt(p.slot, stats[1].Version, stats[1].Czxid)
		if w.troubled {
			w.troubled = false
			r.log.Info().Int64("worker", w.id).Msg("ZooKeeper renews the window again")
		}
		r.setStatus("serving", "")
	case refused(err):
		w.give()
		w.doubt = true
		if sid, up := r.tree.Session(); up && w.verify(ctx, sid) {
			w.trouble("the renewal was refused (%v); trying again", err)
		}
	default:
		w.doubt = true
		w.trouble("%v", r.describe(err))
	}
}

// intend makes the next write of the slot. until 0: a renewal.
func (w *worker) intend(state string, until int64) *intent {
	r := w.r
	now := r.zkNow()
	s := w.slot
	s.V, s.ID, s.Nonce, s.State = 1, r.o.Identity, r.nonce(), state
	s.Boot, s.Host, s.Sid = r.boot, hostname(), sidText(w.sid)
	if s.Since == 0 || s.Since > now {
		s.Since = now
	}
	if until == 0 {
		s.Until = max(w.until.Load(), now+r.window(s.Since, now).Milliseconds())
		s.HW = max(now+hwAhead.Milliseconds(), w.record().LocalUntil)
	} else {
		s.Until, s.HW = until, until
	}
	switch {
	case s.Node == "" || w.nodeGone:
		s.NodeVersion = 0
	default:
		s.NodeVersion = w.slot.NodeVersion + 1
	}
	return &intent{stamp: stamp{Version: w.version + 1, Gen: s.Gen, Nonce: s.Nonce, Until: s.Until}, slot: s}
}

// fence gives the number up at once. The state on disk is closed, so that no start without ZooKeeper goes on with it.
func (w *worker) fence(reason string) {
	r := w.r
	w.end()
	if err := w.save(func(rec *record) { rec.Closed = true }); err != nil {
		r.log.Error().Err(err).Msg("the local state can't be closed")
	}
	r.local, r.continues, r.former = w.record(), false, nil
	r.log.Error().Int64("worker", w.id).Msg("worker number lost: " + reason)
	r.mu.Lock()
	if r.held == w {
		r.held = nil
	}
	r.mu.Unlock()
	r.setStatus("fenced", reason)
	w.lose() // the last step: whoever waits for it acquires anew
}

// dropLive removes our ephemeral node after a fence, so that it keeps nobody from the number.
func (w *worker) dropLive(ctx context.Context) {
	sid, up := w.r.tree.Session()
	if !up {
		return
	}
	path := w.r.p.live(w.id)
	if z, err := w.r.tree.Get(ctx, path); err == nil && z.Owner == sid {
		w.r.tree.Multi(ctx, deleteOp(path, z.Version))
	}
}

// quarantine reserves a number whose fence was overwritten unseen for as long as its unknown owner's window can last.
func (r *Registry) quarantine(ctx context.Context, n int64, version int32, s slot) {
	q := slot{V: 1, Gen: s.Gen + 1, Nonce: r.nonce(), State: slotQuarantined, Until: max(s.Until, r.quarantineUntil())}
	if _, err := r.tree.Set(ctx, r.p.slot(n), encode(q), version); err != nil {
		r.log.Error().Err(err).Msg(r.p.slot(n) + " could not be quarantined")
	}
}

// quarantineUntil is beyond every window that anybody can have been granted by now.
func (r *Registry) quarantineUntil() int64 {
	return r.zkNow() + (r.fleetAutonomy() + r.o.MaxSkew).Milliseconds()
}

// leafs is how many nodes of forever are Leaf's.
func (r *Registry) leafs() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.seen {
		return r.local.Leafs
	}
	return len(r.leaf)
}

func (r *Registry) fleetAutonomy() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fleet
}

// Release implements snowflake.Worker.
func (w *worker) Release(ctx context.Context, last int64) error {
	w.askRelease(last)
	select {
	case <-w.released:
		return nil
	case <-w.lost:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("worker %d was not given back in time: it stays reserved until %s", w.id, timeText(w.until.Load()))
	}
}

func (w *worker) askRelease(last int64) {
	w.mu.Lock()
	w.ended = true
	if !w.release {
		w.release, w.last = true, max(last, w.base)
	}
	w.mu.Unlock()
	w.kick()
}

// giveBack ends the number at a clean stop. The local state is closed and durable first: the other way round, a crash in
// between would leave a state that starts without ZooKeeper on a number that somebody else has.
func (w *worker) giveBack(ctx context.Context, last int64) {
	r := w.r
	defer func() {
		if w.isLost() {
			return
		}
		r.local, r.continues, r.former = w.record(), true, slices.Clone(w.former)
		r.mu.Lock()
		if r.held == w {
			r.held = nil
		}
		r.mu.Unlock()
		r.setStatus("waiting", "the worker number was given back")
		close(w.released)
	}()
	keep := func(why string) {
		if err := w.save(func(rec *record) { rec.LocalUntil = min(rec.LocalUntil, last) }); err != nil {
			r.log.Warn().Err(err).Msg("the local state can't be written: the next start waits a little longer")
		}
		r.log.Warn().Int64("worker", w.id).Msg(why + ": the worker number stays reserved until " + timeText(w.until.Load()))
	}
	sid, up := r.tree.Session()
	if !up {
		keep("stopping without a session with ZooKeeper")
		return
	}
	for try := 0; ; try++ {
		if sid != w.sid || w.doubt || w.pending != nil {
			if !w.verify(ctx, sid) {
				if !w.isLost() {
					keep("stopping while ZooKeeper does not answer")
				}
				return
			}
		}
		w.give()
		p := w.intend(slotReleased, last)
		if err := w.save(func(rec *record) { rec.Intent, rec.LocalUntil, rec.Closed = p.stamp, last, true }); err != nil {
			r.log.Error().Err(err).Int64("worker", w.id).Msg("the local state can't be closed: the worker number stays reserved until " + timeText(w.until.Load()))
			return
		}
		ops := []op{checkOp(r.p.meta(), w.metaVersion), setOp(r.p.slot(w.id), encode(p.slot), w.version), deleteOp(r.p.live(w.id), -1)}
		if p.slot.Node != "" {
			data := encode(leafOf(r.o.Identity, last))
			if w.nodeGone {
				ops = append(ops, createOp(r.p.node(p.slot.Node), data))
			} else {
				ops = append(ops, setOp(r.p.node(p.slot.Node), data, w.slot.NodeVersion))
			}
		}
		stats, err := r.tree.Multi(ctx, ops...)
		if err == nil {
			w.adopt(p.slot, stats[1].Version, stats[1].Czxid)
			r.log.Info().Int64("worker", w.id).Msg("worker number given back")
			return
		}
		w.former = append(w.former, p.stamp)
		w.doubt = true
		if try == 3 || !refused(err) && !errors.Is(err, errUnknown) {
			r.log.Warn().Err(err).Int64("worker", w.id).Msg("the worker number could not be given back: it stays reserved for a while")
			return
		}
		if sid, up = r.tree.Session(); !up {
			return
		}
	}
}
