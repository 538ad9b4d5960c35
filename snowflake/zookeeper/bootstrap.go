package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"redleaf/conf/datadir"
)

// Bootstrap begins the history of a fleet: meta and one slot for each number, made once by an operator's explicit act (I11). On
// a root that has meta it makes only slots that are missing, reserved for as long as their unknown owners' windows can last. It
// returns when all is there or ctx ends; the error says what stands in the way.
func Bootstrap(ctx context.Context, dir *datadir.Dir, o Options) error {
	if o.Identity == "" {
		o.Identity = "bootstrap" // an operator's run needs none
	}
	r, err := Open(dir, o)
	if err != nil {
		return err
	}
	defer r.Close(context.WithoutCancel(ctx))
	for {
		var stop *wait
		if _, up := r.tree.Session(); up {
			if stop = r.bootstrap(ctx); stop == nil {
				return nil
			}
		} else {
			w := r.failed(errNoSession)
			stop = &w
		}
		if stop.permanent {
			return stop.reason
		}
		if err := r.clock.Sleep(ctx, min(stop.delay, time.Second)); err != nil {
			return fmt.Errorf("bootstrap of %s: %w", r.p.base, stop.reason)
		}
	}
}

// bootstrap makes the tree; nil when it is whole. It may be run again at any point where it stopped, by several at once.
func (r *Registry) bootstrap(ctx context.Context) *wait {
	failed := func(err error) *wait {
		w := r.failed(err)
		return &w
	}
	again := func(reason string) *wait { w := waitFor(50*time.Millisecond, "%s", reason); return &w }
	if err := r.tree.Sync(ctx, r.p.meta()); err != nil {
		return failed(err)
	}
	z, err := r.tree.Get(ctx, r.p.meta())
	if errors.Is(err, errNoNode) {
		return r.beginTree(ctx)
	}
	if err != nil {
		return failed(err)
	}
	m, err := decodeMeta(z.Data)
	if err != nil {
		w := never(fmt.Errorf("%s can't be used: %w. Nothing was changed; put its content back", r.p.meta(), err))
		return &w
	}
	if r.known && r.local.Cluster != "" && r.local.Cluster != m.Cluster && !r.o.AcceptNewCluster {
		w := never(fmt.Errorf("%s names the cluster %s, and data_dir belongs to %s. Nothing was changed; snowflake.zookeeper.accept_new_cluster is the way out if the old ensemble is lost for good", r.p.meta(), m.Cluster, r.local.Cluster))
		return &w
	}
	if err := m.layoutErr(r.p.meta(), r.o.Layout); err != nil {
		w := never(err)
		return &w
	}
	if err := r.makeDirs(ctx); err != nil {
		return failed(err)
	}
	if off, ok, err := r.timecheck(ctx, true); err != nil {
		return failed(err)
	} else if !ok {
		w := waitFor(time.Second, "this machine's clock is %s off ZooKeeper's, more than snowflake.max_skew %s: correct it", short(off), r.o.MaxSkew)
		return &w
	}
	r.learn(m)
	made, err := r.makeSlots(ctx, m, z.Version)
	if err != nil {
		if refused(err) && !errors.Is(err, errNoAuth) {
			return again("another bootstrap is at work")
		}
		return failed(err)
	}
	if m.State == metaMade {
		if made > 0 {
			r.log.Warn().Int("slots", made).Msg(r.p.base + " exists: slots that were missing were made again, reserved for as long as their former owners' windows can last")
		} else if r.o.Bootstrap {
			r.log.Warn().Msg("snowflake.zookeeper.bootstrap is on although " + r.p.base + " is there: turn it off, it is for a fleet's very first start")
		}
		return nil
	}
	to := r.o.WorkersLo
	if m.State == metaRestoring && m.Lost {
		to = r.o.WorkersHi + 1
	}
	if err := r.raiseCounter(ctx, to); err != nil {
		return failed(err)
	}
	if err := r.finishMeta(ctx, m, z.Version); err != nil {
		if errors.Is(err, errBadVersion) {
			return again("another bootstrap is at work")
		}
		return failed(err)
	}
	r.log.Info().Str("cluster", m.Cluster).Int("slots", made).Msg("bootstrapped " + r.p.base)
	return nil
}

func (r *Registry) finishMeta(ctx context.Context, m meta, version int32) error {
	m.State, m.Lost = metaMade, false
	_, err := r.tree.Set(ctx, r.p.meta(), encode(m), version)
	return err
}

// beginTree writes a new meta; the caller comes again for the rest.
func (r *Registry) beginTree(ctx context.Context) *wait {
	if r.known && r.local.Cluster != "" && !r.o.AcceptNewCluster {
		w := never(fmt.Errorf("%s is missing, but data_dir belongs to its cluster %s: bootstrapping would begin a second history. A running instance puts the tree back by itself; if the ensemble is lost for good and nothing of it runs any more, set snowflake.zookeeper.accept_new_cluster for one start", r.p.meta(), r.local.Cluster))
		return &w
	}
	if err := r.makeDirs(ctx); err != nil {
		w := r.failed(err)
		return &w
	}
	off, ok, err := r.timecheck(ctx, true)
	if err != nil {
		w := r.failed(err)
		return &w
	}
	if !ok {
		w := waitFor(time.Second, "this machine's clock is %s off ZooKeeper's, more than snowflake.max_skew %s: correct it", short(off), r.o.MaxSkew)
		return &w
	}
	m := meta{
		V: 1, Cluster: uuid(r.nonce()), Epoch: r.o.Layout.Epoch, Bits: r.o.Layout.String(), Created: r.zkNow(),
		Autonomy: r.o.Autonomy.Milliseconds(), State: metaMaking,
	}
	slots, err := r.readSlots(ctx, r.o.WorkersLo, r.o.WorkersHi)
	if err != nil {
		w := r.failed(err)
		return &w
	}
	for _, s := range slots {
		if !s.missing && (!s.ok || s.Until > 0) { // meta alone was lost: what else is missing may have been used
			m.State = metaRestoring
		}
	}
	if _, err := r.tree.Create(ctx, r.p.meta(), encode(m), false); err != nil && !errors.Is(err, errExists) {
		w := r.failed(err)
		return &w
	}
	w := waitFor(time.Millisecond, "%s was made, the slots are next", r.p.meta())
	return &w
}

func uuid(hex string) string {
	return hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:32]
}

// makeDirs makes the nodes above the ones that matter. Those above the root are looked at only where it is missing: in a shared
// ensemble they may be closed to us.
func (r *Registry) makeDirs(ctx context.Context) error {
	for _, path := range []string{r.p.forever(), r.p.slots(), r.p.lives()} {
		if err := r.makeDir(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registry) makeDir(ctx context.Context, path string) error {
	_, err := r.tree.Create(ctx, path, nil, false)
	if errors.Is(err, errNoNode) && strings.Count(path, "/") > 1 {
		if err := r.makeDir(ctx, path[:strings.LastIndexByte(path, '/')]); err != nil {
			return err
		}
		_, err = r.tree.Create(ctx, path, nil, false)
	}
	if errors.Is(err, errExists) {
		return nil
	}
	return err
}

// makeSlots makes the slots that are missing: free in a new tree, quarantined in one that has a history.
func (r *Registry) makeSlots(ctx context.Context, m meta, metaVersion int32) (made int, err error) {
	names, _, err := r.tree.Children(ctx, r.p.slots())
	if err != nil {
		return 0, err
	}
	there := map[int64]bool{}
	for _, name := range names {
		if n, ok := parseSlotName(name); ok {
			there[n] = true
		}
	}
	s := slot{V: 1, State: slotFree}
	if m.State != metaMaking {
		s = slot{V: 1, State: slotQuarantined, Until: r.quarantineUntil()}
	}
	data := encode(s)
	batch := []op{checkOp(r.p.meta(), metaVersion)}
	size := 0
	flush := func() error {
		if len(batch) == 1 {
			return nil
		}
		if _, err := r.tree.Multi(ctx, batch...); err != nil {
			return err
		}
		made += len(batch) - 1
		batch, size = batch[:1], 0
		return nil
	}
	for n := r.o.WorkersLo; n <= r.o.WorkersHi; n++ {
		if there[n] {
			continue
		}
		path := r.p.slot(n)
		batch = append(batch, createOp(path, data))
		if size += len(path) + len(data) + 64; len(batch) > 1000 || size > maxMulti {
			if err := flush(); err != nil {
				return made, err
			}
		}
	}
	return made, flush()
}

// maxMulti bounds a Multi's bytes, well below ZooKeeper's limit of 1 MiB.
const maxMulti = 160 << 10

// raiseCounter moves forever's create counter up to at least to. A child that is made and deleted in one Multi uses up a number
// and is seen by nobody. forever's data version keeps two of these from adding up.
func (r *Registry) raiseCounter(ctx context.Context, to int64) error {
	path := r.p.node(childName("redleaf_counter", 0))
	for range 1000 {
		if err := r.tree.Sync(ctx, r.p.forever()); err != nil {
			return err
		}
		z, err := r.tree.Get(ctx, r.p.forever())
		if err != nil {
			return err
		}
		left := to - z.created()
		if left <= 0 {
			return nil
		}
		ops := []op{setOp(r.p.forever(), z.Data, z.Version)}
		for range min(left, 250) {
			ops = append(ops, createOp(path, nil), deleteOp(path, 0))
		}
		if _, err := r.tree.Multi(ctx, ops...); err != nil && !errors.Is(err, errBadVersion) {
			return err
		}
	}
	return fmt.Errorf("%w: %s is being written all the time", errUnknown, r.p.forever())
}

// putBack is what a running instance does when it meets a root without meta, or one that a peer is putting back: ZooKeeper was
// wiped. Everything it does not know is quarantined for longer than anybody's window can last, so that owners who come later
// find their number unused. It may stop at any point; the next round, or a peer, goes on.
func (w *worker) putBack(ctx context.Context, begun bool) {
	r := w.r
	fail := func(err error) {
		w.trouble("%s was lost in ZooKeeper and can't be put back yet: %v", r.p.base, r.describe(err))
	}
	dirs, err := r.tree.GetMany(ctx, []string{r.p.forever(), r.p.slots()})
	if err != nil {
		fail(err)
		return
	}
	lost := dirs[0].Missing || dirs[1].Missing
	if err := r.makeDirs(ctx); err != nil {
		fail(err)
		return
	}
	if off, ok, err := r.timecheck(ctx, true); err != nil || !ok {
		if err == nil {
			err = fmt.Errorf("this machine's clock is %s off ZooKeeper's", short(off))
		}
		fail(err)
		return
	}
	slots, err := r.readSlots(ctx, r.o.WorkersLo, r.o.WorkersHi)
	if err != nil {
		fail(err)
		return
	}
	for _, s := range slots {
		lost = lost || s.missing
	}
	r.mu.Lock()
	fleet, leaf, seen := r.fleet, slices.Clone(r.leaf), r.seen
	r.mu.Unlock()
	if !begun && !seen && w.record().Leafs > 0 {
		w.trouble("%s was lost in ZooKeeper, and this instance does not know which numbers are Leaf's: another one must put it back", r.p.base)
		return
	}
	// Leaf's nodes as last seen come first: their processes go on issuing, and never make them again by themselves.
	for _, name := range leaf {
		c, ok := parseChild(name)
		if !ok || strings.Contains(name, "/") {
			continue
		}
		if _, err := r.tree.Create(ctx, r.p.node(name), encode(leafOf(c.id, r.zkNow())), false); err != nil && !errors.Is(err, errExists) {
			fail(err)
			return
		}
	}
	m := meta{
		V: 1, Cluster: w.cluster, Epoch: r.o.Layout.Epoch, Bits: r.o.Layout.String(), Created: r.zkNow(),
		Autonomy: fleet.Milliseconds(), State: metaRestoring, Lost: lost,
	}
	if _, err := r.tree.Create(ctx, r.p.meta(), encode(m), false); err == nil {
		r.log.Error().Int64("worker", w.id).Msg(r.p.base + " was lost in ZooKeeper: putting it back, with every number of unknown owner reserved")
	} else if !errors.Is(err, errExists) {
		fail(err)
		return
	}
	z, err := r.tree.Get(ctx, r.p.meta())
	if err != nil {
		fail(err)
		return
	}
	if m, err = decodeMeta(z.Data); err != nil || m.Cluster != w.cluster {
		w.fence(r.p.meta() + " was made anew by somebody else")
		return
	}
	if m.State == metaMade {
		return
	}
	// Our own number, with the window that we have.
	if own := slots[w.id-r.o.WorkersLo]; own.missing && r.zkNow() <= w.until.Load() {
		if err := w.putBackOwn(ctx, z.Version); err != nil && !refused(err) {
			fail(err)
			return
		}
	}
	if _, err := r.makeSlots(ctx, m, z.Version); err != nil {
		fail(err)
		return
	}
	if m.Lost {
		if err := r.raiseCounter(ctx, r.o.WorkersHi+1); err != nil {
			fail(err)
			return
		}
	}
	if err := r.finishMeta(ctx, m, z.Version); err != nil {
		fail(err)
	}
}

// putBackOwn makes our slot and node again.
func (w *worker) putBackOwn(ctx context.Context, metaVersion int32) error {
	r := w.r
	w.slot.Gen++
	w.version, w.czxid = -1, 0 // created nodes have version 0
	w.give()
	if w.slot.Node != "" {
		nodes, err := r.tree.GetMany(ctx, []string{r.p.node(w.slot.Node)})
		if err != nil {
			return err
		}
		w.nodeGone = nodes[0].Missing
		if !w.nodeGone && nodes[0].Version != w.slot.NodeVersion {
			return errBadVersion // verify finds out
		}
	}
	p := w.intend(slotHeld, 0)
	if err := w.save(func(rec *record) { rec.Intent = p.stamp }); err != nil {
		return err
	}
	w.pending = p
	ops := []op{checkOp(r.p.meta(), metaVersion), createOp(r.p.slot(w.id), encode(p.slot))}
	if p.slot.Node != "" {
		data := encode(leafOf(r.o.Identity, p.slot.HW))
		if w.nodeGone {
			ops = append(ops, createOp(r.p.node(p.slot.Node), data))
		} else {
			ops = append(ops, setOp(r.p.node(p.slot.Node), data, w.slot.NodeVersion))
		}
	}
	_, err := r.tree.Multi(ctx, ops...)
	return err // granted is what the next verification reads back
}

// recount counts free numbers once a minute, on a part of the slots where there are many, and removes nodes of this identity that
// carry no slot of its own.
func (w *worker) recount(ctx context.Context) {
	r := w.r
	lo, hi := r.o.WorkersLo, r.o.WorkersHi
	if hi-lo+1 > sampleMax {
		parts := (hi - lo + sampleMax) / sampleMax
		lo += sampleMax * (r.clock.Boot().Milliseconds() / countEvery.Milliseconds() % parts)
		hi = min(hi, lo+sampleMax-1)
	}
	names, st, err := r.tree.Children(ctx, r.p.forever())
	if err != nil {
		return
	}
	v := &view{now: r.zkNow(), lo: lo, counter: st.created(), children: map[int64][]child{}}
	for _, name := range names {
		if c, ok := parseChild(name); ok {
			v.children[c.number] = append(v.children[c.number], c)
			if c.id == r.o.Identity {
				v.own = append(v.own, c)
			}
		}
	}
	if v.slots, err = r.readSlots(ctx, lo, hi); err != nil {
		return
	}
	r.count(v)
	for _, c := range v.own {
		s := v.slot(c.number)
		if inRange := c.number >= r.o.WorkersLo && c.number <= r.o.WorkersHi; inRange && !s.ok || s.ID == r.o.Identity && s.Node == c.name {
			continue
		}
		ts, still, stop := r.standsStill(ctx, c.name)
		if stop != nil || !still {
			continue
		}
		ops := []op{deleteOp(r.p.node(c.name), r.watched[c.name].version)}
		if s.ok && s.State == slotFree {
			// The counter has passed this number, so that only a recycler can have it from now on.
			q := slot{V: 1, Gen: 1, Nonce: r.nonce(), State: slotQuarantined, Until: max(r.quarantineUntil(), ts+leafAhead.Milliseconds())}
			ops = append(ops, setOp(r.p.slot(c.number), encode(q), s.version))
		}
		r.tree.Multi(ctx, ops...)
	}
}
