package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// view is the tree as one attempt read it. It need not be of one moment: whatever is done from it is conditional on the
// versions in it.
type view struct {
	meta        meta
	metaVersion int32
	now         int64 // ZooKeeper's clock
	slots       []slotView
	lo          int64             // number of slots[0]
	children    map[int64][]child // of forever, by number
	own         []child           // of forever, with this identity, by number
	counter     int64             // what the next sequential node gets
	live        map[int64]bool
}

// slotView is one slot. ok is false where it is missing or unreadable; such a number is left alone.
type slotView struct {
	slot
	version int32
	czxid   int64
	ok      bool
	missing bool
}

func (v *view) slot(n int64) slotView {
	if n < v.lo || n >= v.lo+int64(len(v.slots)) {
		return slotView{}
	}
	return v.slots[n-v.lo]
}

// watching is a node of forever under observation: since when it has had this version, by the boot clock.
type watching struct {
	version int32
	since   time.Duration
	moves   int
}

// candidate is a number that may be claimed, and how.
type candidate struct {
	n       int64
	slot    slotView
	base    int64 // timestamps begin above
	since   int64 // 0: now
	resume  bool
	held    stamp  // resume: the write that is in the slot
	stale   bool   // an earlier life's live node is replaced
	node    string // the child of forever that carries the number for us, "" none
	nodeAt  int32  // its version
	putBack bool   // node is gone and is made again
	drop    string // the former owner's node, deleted if it is as that owner wrote it
	dropAt  int32
}

// cluster reads meta and compares it with what is known. It says what stands in the way, if anything.
func (r *Registry) cluster(ctx context.Context) (meta, int32, *wait) {
	stop := func(w wait) (meta, int32, *wait) { return meta{}, 0, &w }
	if err := r.tree.Sync(ctx, r.p.meta()); err != nil {
		return stop(r.failed(err))
	}
	z, err := r.tree.Get(ctx, r.p.meta())
	if errors.Is(err, errNoNode) {
		if r.o.Bootstrap {
			if w := r.bootstrap(ctx); w != nil {
				return stop(*w)
			}
			if z, err = r.tree.Get(ctx, r.p.meta()); err != nil {
				return stop(r.failed(err))
			}
		} else if r.known && r.local.Cluster != "" && !r.o.AcceptNewCluster {
			return stop(waitFor(2*time.Second, "%s is missing in ZooKeeper although this instance belongs to its cluster %s: ZooKeeper lost it, or this is another ensemble. A running instance of the fleet puts it back by itself; if there is none left, bootstrap with snowflake.zookeeper.accept_new_cluster", r.p.meta(), r.local.Cluster))
		} else {
			return stop(waitFor(2*time.Second, "%s is missing in ZooKeeper: run redleaf -bootstrap once if this is the first start of a fleet; never while instances of an older history still run", r.p.meta()))
		}
	} else if err != nil {
		return stop(r.failed(err))
	}
	m, err := decodeMeta(z.Data)
	if err != nil {
		return stop(waitFor(5*time.Second, "%s can't be used: %v. Put its content back", r.p.meta(), err))
	}
	if r.known && r.local.Cluster != "" && r.local.Cluster != m.Cluster && !r.o.AcceptNewCluster {
		return stop(never(fmt.Errorf("%s names the cluster %s, and data_dir belongs to %s: this is another ensemble, or it was bootstrapped anew. If the old one is lost for good and nothing of it runs any more, set snowflake.zookeeper.accept_new_cluster for one start", r.p.meta(), m.Cluster, r.local.Cluster)))
	}
	if err := m.layoutErr(r.p.meta(), r.o.Layout); err != nil {
		return stop(never(err))
	}
	if m.State != metaMade {
		// What is being put back may be finished by anybody, when whoever began it has not: everything that is missing yet is
		// only reserved.
		now := r.clock.Boot()
		if r.restoring == 0 || m.State != metaRestoring {
			r.restoring = now
		}
		if r.o.Bootstrap && m.State == metaMaking || m.State == metaRestoring && now-r.restoring > startWait {
			if w := r.bootstrap(ctx); w != nil {
				return stop(*w)
			}
		}
		return stop(waitFor(time.Second, "%s is %q: a running instance is putting the tree back, or a bootstrap was not finished. If nothing runs, do it with redleaf -bootstrap", r.p.meta(), m.State))
	}
	r.restoring = 0
	if r.o.AcceptNewCluster && r.known && r.local.Cluster == m.Cluster {
		r.warn("accept", "snowflake.zookeeper.accept_new_cluster is still on although data_dir belongs to this cluster: turn it off, it is for one start")
	}
	return m, z.Version, nil
}

// failed turns a transport error into a wait.
func (r *Registry) failed(err error) wait {
	if errors.Is(err, errNoAuth) {
		return never(r.describe(err))
	}
	return wait{reason: r.describe(err), delay: 250 * time.Millisecond}
}

// look reads everything a choice needs.
func (r *Registry) look(ctx context.Context) (*view, *wait) {
	m, version, stop := r.cluster(ctx)
	if stop != nil {
		return nil, stop
	}
	failed := func(err error) (*view, *wait) {
		if errors.Is(err, errNoNode) {
			w := waitFor(2*time.Second, "%s is incomplete in ZooKeeper (%v): run redleaf -bootstrap, which makes what is missing and reserves it for a while", r.p.base, err)
			return nil, &w
		}
		w := r.failed(err)
		return nil, &w
	}
	off, ok, err := r.timecheck(ctx, true)
	if err != nil {
		return failed(err)
	}
	if !ok {
		w := waitFor(time.Second, "this machine's clock is %s off ZooKeeper's, more than snowflake.max_skew %s: correct it", short(off), r.o.MaxSkew)
		return nil, &w
	}
	m, version, err = r.raiseAutonomy(ctx, m, version)
	if err != nil {
		return failed(err)
	}
	v := &view{meta: m, metaVersion: version, now: r.zkNow(), lo: r.o.WorkersLo, live: map[int64]bool{}, children: map[int64][]child{}}
	names, _, err := r.tree.Children(ctx, r.p.lives())
	if err != nil {
		return failed(err)
	}
	for _, name := range names {
		if n, ok := parseSlotName(name); ok {
			v.live[n] = true
		}
	}
	names, st, err := r.tree.Children(ctx, r.p.forever())
	if err != nil {
		return failed(err)
	}
	v.counter = st.created()
	for _, name := range names {
		c, ok := parseChild(name)
		if !ok {
			r.warn("child "+name, "%s is no node of Leaf's: nothing else belongs under forever. It is left alone", r.p.node(name))
			continue
		}
		v.children[c.number] = append(v.children[c.number], c)
		if c.id == r.o.Identity {
			v.own = append(v.own, c)
		}
	}
	slices.SortFunc(v.own, func(a, b child) int { return strings.Compare(a.name, b.name) })
	if v.slots, err = r.readSlots(ctx, r.o.WorkersLo, r.o.WorkersHi); err != nil {
		return failed(err)
	}
	missing := 0
	for _, s := range v.slots {
		if s.missing {
			missing++
		}
	}
	if missing == len(v.slots) {
		w := waitFor(2*time.Second, "none of the slots %d-%d exists in %s: run redleaf -bootstrap with this snowflake.workers", r.o.WorkersLo, r.o.WorkersHi, r.p.slots())
		return nil, &w
	}
	if missing > 0 {
		r.warn("missing", "%d of the slots %d-%d are missing in %s: these numbers are left alone. redleaf -bootstrap makes them again and reserves them for a while", missing, r.o.WorkersLo, r.o.WorkersHi, r.p.slots())
	}
	r.count(v)
	return v, nil
}

func (r *Registry) readSlots(ctx context.Context, lo, hi int64) ([]slotView, error) {
	names := make([]string, 0, hi-lo+1)
	for n := lo; n <= hi; n++ {
		names = append(names, r.p.slot(n))
	}
	nodes, err := r.tree.GetMany(ctx, names)
	if err != nil {
		return nil, err
	}
	slots := make([]slotView, len(nodes))
	for i, z := range nodes {
		slots[i] = r.slotView(names[i], z)
	}
	return slots, nil
}

func (r *Registry) slotView(path string, z znode) slotView {
	if z.Missing {
		return slotView{missing: true}
	}
	s, err := decodeSlot(z.Data)
	if err != nil {
		// leaf F24: a number whose fence can't be read is nobody's until a person repairs it
		r.warn(path+err.Error(), "%s can't be read: %v. This worker number is left alone until the znode is put right", path, err)
	}
	return slotView{slot: s, version: z.Version, czxid: z.Czxid, ok: err == nil}
}

// raiseAutonomy makes meta name an autonomy no shorter than ours, before any window of ours is that long: whoever has to reserve
// numbers of unknown owners reserves them for so long.
func (r *Registry) raiseAutonomy(ctx context.Context, m meta, version int32) (meta, int32, error) {
	for {
		r.learn(m)
		if m.Autonomy >= r.o.Autonomy.Milliseconds() {
			return m, version, nil
		}
		m.Autonomy = r.o.Autonomy.Milliseconds()
		st, err := r.tree.Set(ctx, r.p.meta(), encode(m), version)
		if err == nil {
			r.learn(m)
			return m, st.Version, nil
		}
		if !errors.Is(err, errBadVersion) {
			return m, version, err
		}
		z, err := r.tree.Get(ctx, r.p.meta())
		if err != nil {
			return m, version, err
		}
		cluster := m.Cluster
		if m, err = decodeMeta(z.Data); err != nil || m.Cluster != cluster {
			return m, version, fmt.Errorf("%w: %s changed meanwhile", errUnknown, r.p.meta())
		}
		version = z.Version
	}
}

func (r *Registry) learn(m meta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fleet = max(r.o.Autonomy, time.Duration(m.Autonomy)*time.Millisecond)
}

// leafs says whether a number is Leaf's: a node of forever carries it and no slot of ours has that node.
func (v *view) leafs(n int64) bool {
	s := v.slot(n)
	for _, c := range v.children[n] {
		if !s.ok || s.Node != c.name || s.ID == "" {
			return true
		}
	}
	return false
}

// count notes how many numbers are free: the window is past, or was never granted and a new node can still get it.
func (r *Registry) count(v *view) {
	free := int64(0)
	var leaf []string
	for i, s := range v.slots {
		n := v.lo + int64(i)
		if v.leafs(n) {
			for _, c := range v.children[n] {
				if c.name != s.Node {
					leaf = append(leaf, c.name)
				}
			}
			continue
		}
		if s.ok && s.Until < v.now && (s.Until > 0 || n >= v.counter) {
			free++
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n, all := int64(len(v.slots)), r.o.WorkersHi-r.o.WorkersLo+1
	r.st.free = free * all / max(n, 1)
	if n < all { // a part was looked at
		for _, name := range r.leaf {
			if c, ok := parseChild(name); ok && (c.number < v.lo || c.number >= v.lo+n) {
				leaf = append(leaf, name)
			}
		}
	}
	r.leaf, r.seen = leaf, true
}

// window is how far ahead a renewal may reach: what the unbroken history has earned, and no more than the share of numbers that
// are free, so that a small layout does not lock itself out.
func (r *Registry) window(since, now int64) time.Duration {
	r.mu.Lock()
	free, total := r.st.free, r.st.total
	r.mu.Unlock()
	earned := time.Duration(now-since) * time.Millisecond
	share := r.o.Autonomy
	if free >= 0 && total > 0 {
		share = time.Duration(float64(r.o.Autonomy) * float64(free) / float64(total))
	}
	w := min(max(min(earned, share), r.o.pace.window), r.o.Autonomy)
	if r.empty {
		w = min(w, emptyWindow)
	}
	return w
}

// choose lists the numbers that may be claimed, best first. An empty list comes with the reason; one with later > 0 says that
// waiting for a better one is worth it.
func (r *Registry) choose(ctx context.Context, v *view, avoid int64) ([]candidate, *wait) {
	var list []candidate
	ok := func(n int64) bool { return n != avoid }

	// 1. What this very process or its former life holds.
	if c, good := r.resumable(ctx, v); good && ok(c.n) {
		return []candidate{c}, nil
	}
	// 2. A slot of this identity. Its window is past, or it is waited for.
	soonest := int64(-1)
	for i, s := range v.slots {
		n := v.lo + int64(i)
		if !s.ok || s.ID != r.o.Identity || v.live[n] || !ok(n) {
			continue
		}
		c, w := r.ownSlot(ctx, v, n, s)
		if w != nil {
			return nil, w
		}
		if c == nil {
			continue
		}
		if late := time.Duration(s.Until-v.now) * time.Millisecond; late >= 0 {
			if late <= startWait && (soonest < 0 || s.Until < soonest) {
				soonest = s.Until
			}
			continue
		}
		list = append(list, *c)
	}
	if len(list) > 0 {
		return list, nil
	}
	if soonest >= 0 {
		late := time.Duration(soonest-v.now)*time.Millisecond + 10*time.Millisecond
		w := waitFor(min(late, time.Second), "the window of this instance's former life is past in %s: waiting for it", late.Round(time.Second/10))
		return nil, &w
	}
	// 3. A node of this identity that has no slot yet: Leaf's, which moves in place, or one whose creation had no answer.
	c, w := r.ownNode(ctx, v, avoid)
	if w != nil {
		return nil, w
	}
	if c != nil {
		return []candidate{*c}, nil
	}
	// 4. A new node.
	if c, w = r.newNode(ctx, v, avoid); w != nil {
		return nil, w
	}
	if c != nil {
		return []candidate{*c}, nil
	}
	// 5. The number whose window is past longest.
	if list = r.recyclable(v, avoid); len(list) > 0 {
		return list, nil
	}
	return nil, r.exhausted(v)
}

// resumable: the slot carries a write of ours, known or intended, and this very machine, boot and data_dir made it. A version
// alone proves nothing: another's claim makes v+1 too.
func (r *Registry) resumable(ctx context.Context, v *view) (candidate, bool) {
	if !r.continues || r.local.Cluster != v.meta.Cluster {
		return candidate{}, false
	}
	n := r.local.Slot
	s := v.slot(n)
	if !s.ok || s.ID != r.o.Identity {
		return candidate{}, false
	}
	held, ok := r.match(s)
	if !ok {
		return candidate{}, false
	}
	// A clock far behind the last bound would mean a long wait; the number stays reserved and another one serves meanwhile.
	if r.local.LocalUntil-r.clock.Now() > startWait.Milliseconds() {
		return candidate{}, false
	}
	c := candidate{n: n, slot: s, base: r.local.LocalUntil, since: s.Since, resume: true, held: held}
	if v.live[n] {
		z, err := r.tree.Get(ctx, r.p.live(n))
		if err == nil {
			var l live
			if decode(z.Data, &l) != nil || l.ID != r.o.Identity || l.Gen != s.Gen {
				return candidate{}, false
			}
			c.stale = true
		} else if !errors.Is(err, errNoNode) {
			return candidate{}, false
		}
	}
	if s.Node == "" {
		return c, true
	}
	at, gone, err := r.nodeAt(ctx, v, n, s)
	if err != nil || !gone && at != s.NodeVersion {
		return candidate{}, false
	}
	c.node, c.nodeAt, c.putBack = s.Node, s.NodeVersion, gone
	return c, true
}

// match says which write of ours stands in the slot.
func (r *Registry) match(s slotView) (stamp, bool) {
	for _, w := range append([]stamp{r.local.Held, r.local.Intent}, r.former...) {
		if w.Nonce != "" && w.Nonce == s.Nonce && w.Version == s.version && w.Gen == s.Gen {
			return w, true
		}
	}
	return stamp{}, false
}

// nodeAt is the version of a slot's own node; gone where it was deleted by hand.
func (r *Registry) nodeAt(ctx context.Context, v *view, n int64, s slotView) (version int32, gone bool, err error) {
	z, err := r.tree.Get(ctx, r.p.node(s.Node))
	if errors.Is(err, errNoNode) {
		return 0, true, nil
	}
	return z.Version, false, err
}

// ownSlot makes a candidate of a slot with this identity, without local continuity. A nil candidate: not this one.
func (r *Registry) ownSlot(ctx context.Context, v *view, n int64, s slotView) (*candidate, *wait) {
	c := candidate{n: n, slot: s, base: r.floor(v, n, s.Until)}
	if s.Node != "" {
		for _, other := range v.children[n] {
			if other.name != s.Node {
				return nil, nil // a copied tree: Leaf's too
			}
		}
		at, gone, err := r.nodeAt(ctx, v, n, s)
		if err != nil {
			w := r.failed(err)
			return nil, &w
		}
		c.node, c.nodeAt, c.putBack = s.Node, at, gone
		if !gone && at != s.NodeVersion { // Leaf took its node back meanwhile
			ts, still, w := r.standsStill(ctx, s.Node)
			if w != nil {
				return nil, w
			}
			if !still {
				return nil, nil
			}
			c.base = max(c.base, ts+leafAhead.Milliseconds())
		}
	} else if len(v.children[n]) > 0 {
		return nil, nil
	}
	if c.base-v.now > startWait.Milliseconds() && c.base != s.Until {
		return nil, nil
	}
	return &c, nil
}

// floor is where timestamps of a number may begin: above its window, above the bootstrap, and above what data_dir says was used,
// even where that can't be continued.
func (r *Registry) floor(v *view, n, until int64) int64 {
	base := max(until, v.meta.Created)
	if r.known && r.local.Slot == n && r.local.Cluster == v.meta.Cluster {
		base = max(base, r.local.LocalUntil)
	}
	return base
}

// standsStill says whether a node of this identity that Leaf may be writing has not moved for long enough, and its timestamp.
// still is false with no wait where the node can't be used at all.
func (r *Registry) standsStill(ctx context.Context, name string) (ts int64, still bool, w *wait) {
	z, err := r.tree.Get(ctx, r.p.node(name))
	if errors.Is(err, errNoNode) {
		return 0, false, nil
	}
	if err != nil {
		f := r.failed(err)
		return 0, false, &f
	}
	now := r.clock.Boot()
	seen, ok := r.watched[name]
	if !ok || seen.version != z.Version {
		seen = watching{version: z.Version, since: now, moves: seen.moves}
		if ok {
			seen.moves++
		}
		r.watched[name] = seen
	}
	if now-seen.since < r.o.pace.still {
		text := "%s is watched for %s before it is taken over, in case Leaf still writes it"
		if seen.moves > 1 {
			text = "%s is still being written: Leaf runs with this identity. Stop it, or set snowflake.node to another; watching it for %s"
		}
		f := waitFor(500*time.Millisecond, text, r.p.node(name), r.o.pace.still)
		return 0, false, &f
	}
	n, err := decodeLeaf(z.Data)
	if err != nil {
		r.warn("leaf "+name, "%s can't be read: %v. It is left alone and another worker number is taken", r.p.node(name), err)
		return 0, false, nil
	}
	return n.Timestamp, true, nil
}

// ownNode looks for a node of this identity whose slot was never claimed.
func (r *Registry) ownNode(ctx context.Context, v *view, avoid int64) (*candidate, *wait) {
	var best *candidate
	latest := int64(0) // leaf F12: with several nodes Leaf may have used any of their numbers
	for _, o := range v.own {
		s := v.slot(o.number)
		if !s.ok || s.State != slotFree && (s.State != slotQuarantined || s.Until >= v.now) {
			continue
		}
		ts, still, w := r.standsStill(ctx, o.name)
		if w != nil {
			return nil, w
		}
		if !still {
			continue
		}
		latest = max(latest, ts)
		if best == nil && o.number != avoid && len(v.children[o.number]) == 1 && !v.live[o.number] {
			best = &candidate{n: o.number, slot: s, node: o.name, nodeAt: r.watched[o.name].version}
		}
	}
	if best == nil {
		return nil, nil
	}
	best.base = r.floor(v, best.n, best.slot.Until)
	if latest > 0 {
		best.base = max(best.base, latest+leafAhead.Milliseconds())
	}
	if ahead := best.base - v.now; ahead > startWait.Milliseconds() {
		r.warn("ahead "+best.node, "%s has a timestamp %s ahead of ZooKeeper's clock: this number is left alone and another one is taken", r.p.node(best.node), time.Duration(ahead)*time.Millisecond)
		return nil, nil
	}
	return best, nil
}

// newNode makes a sequential node, whose number is ours if the slot was never claimed and nobody else carries it. That no Leaf
// node gets the same number later is due to this: the counter has passed it.
func (r *Registry) newNode(ctx context.Context, v *view, avoid int64) (*candidate, *wait) {
	if v.counter < v.lo {
		if err := r.raiseCounter(ctx, v.lo); err != nil {
			w := r.failed(err)
			return nil, &w
		}
		v.counter = v.lo
	}
	if !slices.ContainsFunc(v.slots[max(0, min(v.counter-v.lo, int64(len(v.slots)))):], func(s slotView) bool { return s.ok && s.State == slotFree }) {
		return nil, nil // no number that is left could come of it
	}
	for range 64 {
		path, err := r.tree.Create(ctx, r.p.sequential(r.o.Identity), encode(leafOf(r.o.Identity, 0)), true)
		if err != nil {
			// leaf F12: it may exist all the same. The next look finds it among our own nodes.
			w := r.failed(err)
			return nil, &w
		}
		name := path[strings.LastIndexByte(path, '/')+1:]
		c, ok := parseChild(name)
		if !ok {
			w := waitFor(time.Second, "ZooKeeper made %s, which has no number", path)
			return nil, &w
		}
		s := v.slot(c.number)
		usable := s.ok && s.State == slotFree && len(v.children[c.number]) == 0 && !v.live[c.number]
		if usable && c.number == avoid {
			continue
		}
		if usable {
			return &candidate{n: c.number, slot: s, base: r.floor(v, c.number, 0), node: name}, nil
		}
		// Not usable: out of range, or a copied tree already has the number. Nothing was issued with it.
		if _, err := r.tree.Multi(ctx, deleteOp(r.p.node(name), 0)); err != nil && !refused(err) {
			w := r.failed(err)
			return nil, &w
		}
		if c.number >= r.o.WorkersHi {
			return nil, nil
		}
	}
	w := waitFor(100*time.Millisecond, "the next numbers of %s are in use", r.p.forever())
	return nil, &w
}

// recyclable lists numbers that were held and whose window is past, the longest past first.
func (r *Registry) recyclable(v *view, avoid int64) []candidate {
	var list []candidate
	for i, s := range v.slots {
		n := v.lo + int64(i)
		if !s.ok || s.Until == 0 || s.Until >= v.now || v.live[n] || n == avoid || v.leafs(n) {
			continue
		}
		if at, seen := r.taken[n]; seen && at == s.version {
			continue
		}
		c := candidate{n: n, slot: s, base: r.floor(v, n, s.Until)}
		if s.Node != "" && len(v.children[n]) > 0 {
			c.drop, c.dropAt = s.Node, s.NodeVersion
		}
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b candidate) int {
		switch {
		case a.slot.Until < b.slot.Until:
			return -1
		case a.slot.Until > b.slot.Until:
			return 1
		}
		return 0
	})
	return list
}

// exhausted says who holds the numbers, and when the next one may be free.
func (r *Registry) exhausted(v *view) *wait {
	var holders []string
	held, leafs, broken, past := 0, 0, 0, 0
	next := int64(-1)
	for i, s := range v.slots {
		n := v.lo + int64(i)
		switch {
		case !s.ok:
			broken++
			continue
		case v.leafs(n):
			leafs++
			continue
		case s.State == slotFree:
			if n < v.counter {
				past++
			}
			continue
		}
		held++
		if len(holders) < 20 && s.ID != "" {
			holders = append(holders, fmt.Sprintf("%d=%s", n, s.ID))
		}
		if next < 0 || s.Until < next {
			next = s.Until
		}
	}
	text := fmt.Sprintf("no free worker number in %d-%d: %d are held (%s", r.o.WorkersLo, r.o.WorkersHi, held, strings.Join(holders, ", "))
	if held > len(holders) && len(holders) > 0 {
		text += ", …"
	}
	text += ")"
	if leafs > 0 {
		text += fmt.Sprintf(", %d are Leaf's", leafs)
	}
	if broken > 0 {
		text += fmt.Sprintf(", %d have a slot that is missing or unreadable", broken)
	}
	if past > 0 {
		text += fmt.Sprintf(", %d were never claimed and stay unused, because the counter of %s is at %d and somebody else may have had them (only when no Leaf and no instance runs may %s be deleted, and redleaf -bootstrap be run again)", past, r.p.forever(), v.counter, r.p.forever())
	}
	if next > v.now {
		text += fmt.Sprintf("; the next window ends in %s unless it is renewed", (time.Duration(next-v.now) * time.Millisecond).Round(time.Second))
	}
	return &wait{reason: errors.New(text + ". Stop an instance, or give the layout more worker bits in a new root"), delay: 500 * time.Millisecond}
}
