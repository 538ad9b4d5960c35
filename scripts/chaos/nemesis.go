package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"redleaf/scripts/proxy"
)

// A fault breaks something for a bounded time.
type fault struct {
	name string
	// What it holds: "i0" is the process of an instance, "c0" its link to clients, "d0" to the database, "z0" to ZooKeeper; "db" and
	// "zk" are the servers. Faults that hold the same are not combined.
	on       []string
	from, to time.Duration // how long it lasts
	// begin breaks it and returns what mends it; nil when it mends itself.
	begin func() (cure func())
	last  func() // what is put in order after the cure, when its recovery is being measured already
}

// excluded tells which faults make together what is not promised, or what nothing can mend.
//
// A wipe of ZooKeeper wants an instance that lives and reaches it, which puts back meta and keeps the numbers of the others out of
// use. With nobody there, an operator would have to bootstrap, and that while old instances run is the case that README lists under
// What is not promised. So nothing that stops an instance or cuts it off goes with a wipe.
//
// A failover to a lagging replica is safe with instances that are paused, killed or cut off as long as the lag is below
// segment.failover_skip. failOver measures the lag and lets the replica catch up when it is not. Beyond the skip a paused owner is a
// duplicate that is not promised away, and is not tried.
//
// Never tried at all: lowering or deleting rows, a copied or restored data directory, two writable primaries.
func excluded(a, b *fault) bool {
	for _, x := range a.on {
		if slices.Contains(b.on, x) {
			return true
		}
	}
	wipe := func(f *fault) bool { return strings.Contains(f.name, "wipe") }
	stops := func(f *fault) bool {
		return slices.ContainsFunc(f.on, func(x string) bool { return x[0] == 'i' || len(x) == 2 && x[0] == 'z' && x != "zk" })
	}
	return wipe(a) && stops(b) || wipe(b) && stops(a)
}

func update(request []byte) bool { return bytes.Contains(request, []byte("UPDATE")) }

// faults lists every fault, with its victims drawn by r.
func (c *cluster) faults(r *rand.Rand, soak bool) []*fault {
	var all []*fault
	add := func(name string, on []string, from, to time.Duration, begin func() func()) *fault {
		f := &fault{name: name, on: on, from: from, to: to, begin: begin}
		all = append(all, f)
		return f
	}
	const ms, s = time.Millisecond, time.Second
	process := func(name string, from, to time.Duration, begin func(n *node) func()) {
		i := r.IntN(len(c.nodes))
		add(fmt.Sprintf("%s i%d", name, i), []string{fmt.Sprintf("i%d", i)}, from, to, func() func() { return begin(c.nodes[i]) })
	}
	// down stops a process in any way; the name of the next life is given out when it runs.
	down := func(n *node, stop func()) func() {
		n.life.Lock()
		stop()
		n.life.Unlock()
		return func() {
			n.life.Lock()
			defer n.life.Unlock()
			n.Launch()
			n.WaitPing()
		}
	}
	if !soak { // a soak looks at processes that live on
		process("kill -9", 0, 2*s, func(n *node) func() { return down(n, n.Kill) })
		process("kill -9 at once again", 0, 10*ms, func(n *node) func() {
			up := down(n, n.Kill)
			up()
			return down(n, n.Kill)
		})
		process("restart", 0, 500*ms, func(n *node) func() { return down(n, func() { n.Term() }) })
		add("kill -9 of all", []string{"i0", "i1", "i2"}, 0, s, func() func() {
			var ups []func()
			for _, n := range c.nodes {
				ups = append(ups, down(n, n.Kill))
			}
			return func() {
				for _, up := range ups {
					up()
				}
			}
		})
		add("rolling restart", []string{"i0", "i1", "i2"}, 0, 0, func() func() {
			for _, n := range c.nodes {
				down(n, func() { n.Term() })()
			}
			return nil
		})
	}
	process("pause short", 50*ms, 500*ms, func(n *node) func() { n.Pause(); return n.Resume })
	process("pause long", 6*s, 12*s, func(n *node) func() { n.Pause(); return n.Resume })

	link := func(kind, what string, of func(n *node) []*proxy.Proxy, from, to time.Duration, set func(p *proxy.Proxy, on bool)) {
		i := r.IntN(len(c.nodes))
		add(fmt.Sprintf("%s of %s i%d", what, map[string]string{"c": "clients to", "d": "database to", "z": "ZooKeeper to"}[kind], i),
			[]string{fmt.Sprint(kind, i)}, from, to, func() func() {
				for _, p := range of(c.nodes[i]) {
					set(p, true)
				}
				return func() {
					for _, p := range of(c.nodes[i]) {
						set(p, false)
					}
				}
			})
	}
	for _, k := range []struct {
		kind string
		of   func(n *node) []*proxy.Proxy
	}{
		{"c", func(n *node) []*proxy.Proxy { return []*proxy.Proxy{n.front} }},
		{"d", func(n *node) []*proxy.Proxy { return []*proxy.Proxy{n.db} }},
		{"z", func(n *node) []*proxy.Proxy { return n.zk }},
	} {
		kind, of := k.kind, k.of
		lag, cut := time.Duration(20+r.IntN(200))*ms, int64(r.IntN(200))
		toServer, toClient := r.IntN(2) == 0, r.IntN(2) == 0
		toClient = toClient || !toServer
		link(kind, fmt.Sprintf("delay %v", lag), of, s, 3*s, func(p *proxy.Proxy, on bool) {
			if on {
				p.Delay(lag, lag)
			} else {
				p.Delay(0, 0)
			}
		})
		link(kind, fmt.Sprintf("hold (to server %v, to client %v)", toServer, toClient), of, s, 4*s, func(p *proxy.Proxy, on bool) {
			p.Hold(on && toServer, on && toClient)
		})
		link(kind, "swallow", of, s, 5*s, func(p *proxy.Proxy, on bool) { p.Swallow(on) })
		link(kind, "refuse and close", of, 500*ms, 3*s, func(p *proxy.Proxy, on bool) {
			if err := p.Refuse(on); err != nil {
				c.s.Errorf("%v", err)
			}
			p.CloseAll()
		})
		link(kind, fmt.Sprintf("cut %d bytes into the replies", cut), of, s, 3*s, func(p *proxy.Proxy, on bool) {
			if on {
				p.CutAfter(proxy.ToClient, cut)
			} else {
				p.CutAfter(proxy.ToClient, -1)
			}
		})
		match := map[string]func([]byte) bool{"d": update}[kind]
		link(kind, "loss of 5 replies", of, s, 3*s, func(p *proxy.Proxy, on bool) {
			if on {
				p.CutOnReply(5, match)
			} else {
				p.CutOnReply(0, nil)
			}
		})
	}
	i := r.IntN(len(c.nodes))
	add(fmt.Sprintf("session of i%d expires", i), []string{fmt.Sprintf("z%d", i)}, 11*s, 13*s, func() func() {
		for _, p := range c.nodes[i].zk {
			p.Swallow(true)
		}
		return func() {
			for _, p := range c.nodes[i].zk {
				p.Swallow(false)
			}
		}
	})

	db := []string{"db"}
	add("database killed", db, 0, 3*s, func() func() { p := c.primary(); p.Kill(); return p.Start })
	add("database paused", db, 500*ms, 5*s, func() func() { p := c.primary(); p.Pause(); return p.Resume })
	add("database read-only", db, s, 4*s, func() func() { p := c.primary(); p.ReadOnly(true); return func() { p.ReadOnly(false) } })
	add("database connections killed", db, 0, 0, func() func() { c.primary().KillConnections(); return nil })
	for _, tag := range []string{pick(r, c.tags()), pick(r, sharedTags)} {
		n := pick(r, []int{1, 10, 500, 5000, 50_000})
		add(fmt.Sprintf("step of %s becomes %d", tag, n), []string{"row"}, s, 3*s, func() func() {
			c.primary().Exec("UPDATE leaf_alloc SET step = ? WHERE biz_tag = ?", n, tag)
			return func() { c.primary().Exec("UPDATE leaf_alloc SET step = ? WHERE biz_tag = ?", step, tag) }
		})
	}
	if !soak { // each failover costs a server
		f := add("failover to a lagging replica", []string{"db", "row"}, 500*ms, 2500*ms, nil)
		var old = c.primary
		f.begin = func() func() {
			c.replica.StopIO() // what is granted from now on it never sees
			return func() {
				gone := old()
				lost := c.failOver()
				c.s.Logf("    failover: the replica lagged by %d IDs", lost)
				f.last = func() { c.replace(gone) }
			}
		}
	}

	zk := []string{"zk"}
	add("ZooKeeper leader killed", zk, 0, 4*s, func() func() { l := c.zk.Leader(); l.Kill(); return l.Start })
	add("ZooKeeper leader paused", zk, s, 7*s, func() func() { l := c.zk.Leader(); l.Pause(); return l.Resume })
	add("ZooKeeper without a quorum", zk, s, 6*s, func() func() {
		c.zk.Nodes[0].Kill()
		c.zk.Nodes[1].Kill()
		return c.zk.StartAll
	})
	if !soak {
		add("ZooKeeper wiped", zk, 0, 2*s, func() func() { c.zk.KillAll(); c.zk.WipeAll(); return c.zk.StartAll })
	}
	return all
}

// draw takes a first fault and joins others to it as far as they may be combined. Every fault comes up once before one comes twice.
func draw(r *rand.Rand, todo *[]*fault, most int) (set []*fault) {
	n := 1 + r.IntN(most)
	for i := 0; i < len(*todo) && len(set) < n; {
		f := (*todo)[i]
		if slices.ContainsFunc(set, func(g *fault) bool { return excluded(f, g) }) {
			i++
			continue
		}
		set = append(set, f)
		*todo = slices.Delete(*todo, i, i+1)
	}
	return set
}
