package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"redleaf/snowflake"
)

// attempt tries once to get a number.
func (r *Registry) attempt(ctx context.Context, avoid int64) (*worker, wait) {
	if err := r.dirCheck(); err != nil {
		return nil, never(err)
	}
	if _, up := r.tree.Session(); !up {
		w, why := r.startOffline(avoid)
		if w != nil {
			return w, wait{}
		}
		return nil, waitFor(50*time.Millisecond, "no session with ZooKeeper at %s%s", r.where, why)
	}
	v, stop := r.look(ctx)
	if stop != nil {
		return nil, *stop
	}
	list, stop := r.choose(ctx, v, avoid)
	if stop != nil && len(list) == 0 && avoid >= 0 && stop.reason != nil {
		list, stop = r.choose(ctx, v, -1) // no other can be had
	}
	if len(list) == 0 {
		return nil, *stop
	}
	for i, c := range list {
		if i == 16 {
			break // many claim at once; look again
		}
		w, stop := r.claim(ctx, v, c)
		if w != nil {
			return w, wait{}
		}
		if stop != nil {
			return nil, *stop
		}
	}
	return nil, waitFor(50*time.Millisecond, "other instances were quicker; looking again")
}

// claim takes a number by one Multi. Neither a worker nor a wait: somebody else was quicker, try the next.
func (r *Registry) claim(ctx context.Context, v *view, c candidate) (*worker, *wait) {
	now := r.zkNow()
	sid, up := r.tree.Session()
	if !up {
		w := r.failed(errNoSession)
		return nil, &w
	}
	s := slot{
		V: 1, ID: r.o.Identity, Node: c.node, Gen: c.slot.Gen + 1, Nonce: r.nonce(), Since: c.since, State: slotHeld,
		Host: hostname(), Boot: r.boot, Pid: os.Getpid(), Sid: sidText(sid),
	}
	if s.Since == 0 || s.Since > now {
		s.Since = now
	}
	s.Until = max(c.slot.Until, c.base, now+r.window(s.Since, now).Milliseconds())
	s.HW = max(now, c.base) + hwAhead.Milliseconds()
	if c.node != "" && !c.putBack {
		s.NodeVersion = c.nodeAt + 1
	}

	// What is about to be sent is durable before it is sent, so that a crash in between leaves a claim that can be told as ours.
	// Nothing may be issued from the record alone as long as Held is empty or Closed is set.
	rec := record{
		Cluster: v.meta.Cluster, Identity: r.o.Identity, Fingerprint: r.fingerprint, Boot: r.boot, Fleet: r.fleetAutonomy().Milliseconds(), Leafs: r.leafs(),
		Slot: c.n, Intent: stamp{Version: c.slot.version + 1, Gen: s.Gen, Nonce: s.Nonce, Until: s.Until}, LocalUntil: c.base,
	}
	if c.resume {
		rec.Held, rec.Closed = c.held, r.local.Closed
		r.former = append(r.former, r.local.Intent)
	} else {
		r.former = nil
	}
	if err := r.state.store(rec); err != nil {
		w := wait{reason: err, delay: time.Second}
		return nil, &w
	}
	r.local, r.known, r.continues = rec, true, true

	ops := []op{checkOp(r.p.meta(), v.metaVersion), setOp(r.p.slot(c.n), encode(s), c.slot.version)}
	if c.stale {
		ops = append(ops, deleteOp(r.p.live(c.n), -1))
	}
	ops = append(ops, ephemeralOp(r.p.live(c.n), r.liveData(s)))
	switch {
	case c.node != "" && c.putBack:
		ops = append(ops, createOp(r.p.node(c.node), encode(leafOf(r.o.Identity, s.HW))))
	case c.node != "":
		ops = append(ops, setOp(r.p.node(c.node), encode(leafOf(r.o.Identity, s.HW)), c.nodeAt))
	case c.drop != "":
		ops = append(ops, deleteOp(r.p.node(c.drop), c.dropAt))
	}
	sent := r.clock.Now()
	stats, err := r.tree.Multi(ctx, ops...)
	czxid := int64(0)
	var oe *opError
	switch {
	case err == nil:
		r.observe(stats[1].Mtime, sent)
		if invariants {
			assert(stats[1].Version == c.slot.version+1, "I9: slot %d has version %d after a write at %d", c.n, stats[1].Version, c.slot.version)
			assert(c.resume || c.base >= c.slot.Until, "I7: worker %d begins at %d below %d, which was granted before", c.n, c.base, c.slot.Until)
			assert(c.slot.Until < now || c.resume, "I7: worker %d was claimed inside a window that ends at %d, at %d", c.n, c.slot.Until, now)
		}
		if czxid = stats[1].Czxid; czxid != c.slot.czxid {
			// The slot was deleted and made again with the very version that we read: what we overwrote is unknown.
			r.quarantine(ctx, c.n, stats[1].Version, s)
			r.continues = false
			w := waitFor(time.Second, "%s was made anew while it was being claimed", r.p.slot(c.n))
			return nil, &w
		}
	case errors.As(err, &oe) && refused(err):
		r.continues = c.resume // nothing of ours was written, but the earlier life's write may still stand
		if c.drop != "" && oe.Index == len(ops)-1 && errors.Is(err, errBadVersion) {
			r.taken[c.n] = c.slot.version
			r.warn("taken "+c.drop, "%s was written since its owner gave it up: Leaf took this number back and keeps it", r.p.node(c.drop))
		}
		if errors.Is(err, errNoAuth) {
			w := r.failed(err)
			return nil, &w
		}
		return nil, nil
	case errors.Is(err, errUnknown):
		// I9: nothing is granted until it is read back.
		if r.tree.Sync(ctx, r.p.slot(c.n)) != nil {
			w := r.failed(err)
			return nil, &w
		}
		z, gerr := r.tree.Get(ctx, r.p.slot(c.n))
		if gerr != nil || r.slotView(r.p.slot(c.n), z).Nonce != s.Nonce {
			w := r.failed(err) // it may yet come; the next look tells
			return nil, &w
		}
		czxid = z.Czxid
	default:
		r.continues = c.resume
		w := r.failed(err)
		return nil, &w
	}

	rec.Held, rec.Intent, rec.Closed = rec.Intent, stamp{}, false
	rec.LocalUntil = min(s.Until, max(c.base, r.clock.Now())+reserve.Milliseconds())
	if err := r.state.store(rec); err != nil {
		w := wait{reason: err, delay: time.Second}
		return nil, &w
	}
	r.local = rec
	w := newWorker(r, c.n, c.base, rec, s)
	w.version, w.czxid, w.sid = rec.Held.Version, czxid, sid
	w.metaVersion = v.metaVersion
	how := "claimed"
	if c.resume {
		how = "resumed"
	}
	r.log.Info().Int64("worker", c.n).Int64("gen", s.Gen).Time("until", time.UnixMilli(s.Until)).Msg("worker number " + how)
	r.hold(w, "serving", "")
	return w, nil
}

func (r *Registry) liveData(s slot) []byte {
	return encode(live{ID: s.ID, Gen: s.Gen, Nonce: s.Nonce, Addr: r.o.Addr})
}

func sidText(sid int64) string { return "0x" + strconv.FormatUint(uint64(sid), 16) }

// hold publishes a worker and starts its upkeep.
func (r *Registry) hold(w *worker, state, reason string) {
	r.offline = false
	r.mu.Lock()
	if r.st.closed {
		r.mu.Unlock()
		w.end()
		w.lose()
		return
	}
	r.held = w
	r.mu.Unlock()
	r.setStatus(state, reason)
	r.spawn(w.serve)
}

// startOffline goes on from local state alone. The window in it was granted by ZooKeeper, LocalUntil bounds what was used of it,
// and the record was neither copied (machine, boot, data_dir) nor closed by a clean stop that gave the number back.
func (r *Registry) startOffline(avoid int64) (*worker, string) {
	rec := r.local
	if !r.offline || !r.continues || rec.Held.Nonce == "" || rec.Slot < r.o.WorkersLo || rec.Slot > r.o.WorkersHi {
		return nil, ""
	}
	if rec.Closed {
		return nil, "; the last stop gave the worker number back, so that this start needs ZooKeeper"
	}
	if rec.Slot == avoid {
		return nil, ""
	}
	now := r.clock.Now()
	if now > rec.Held.Until {
		return nil, fmt.Sprintf("; the window of worker %d ended at %s, so that this start needs ZooKeeper", rec.Slot, timeText(rec.Held.Until))
	}
	if now <= rec.LocalUntil {
		return nil, fmt.Sprintf("; the clock is %s behind what this instance may have used", time.Duration(rec.LocalUntil-now)*time.Millisecond)
	}
	if waited := r.clock.Mono() - r.began; waited < r.o.StartTimeout/2 {
		return nil, fmt.Sprintf("; after %s this instance goes on with worker %d from local state", (r.o.StartTimeout/2 - waited).Round(time.Second/10), rec.Slot)
	}
	s := slot{V: 1, ID: rec.Identity, Gen: rec.Held.Gen, Nonce: rec.Held.Nonce, Until: rec.Held.Until}
	w := newWorker(r, rec.Slot, rec.LocalUntil, rec, s)
	w.version = rec.Held.Version
	if rec.Intent.Nonce != "" {
		w.former = append(w.former, rec.Intent)
	}
	reason := fmt.Sprintf("started without ZooKeeper at %s; goes on until %s", r.where, timeText(rec.Held.Until))
	r.log.Warn().Int64("worker", rec.Slot).Msg(reason)
	r.hold(w, "autonomous", reason)
	return w, ""
}

func timeText(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

var _ snowflake.Worker = (*worker)(nil)
