//go:build galera

package mysql

import (
	"context"
	"strings"
	"testing"
	"time"

	"redleaf/scripts/services"
	"redleaf/segment"
	"redleaf/segment/storetest"
)

// galeraOptions names the nodes in an order that begins with node first.
func galeraOptions(g *services.Galera, first int) Options {
	o := Options{Check: 200 * time.Millisecond, FailoverSkip: 10_000_000, AutoCreate: true}
	for i := range g.Nodes {
		o.DSNs = append(o.DSNs, g.Nodes[(first+i)%len(g.Nodes)].DSN("", ""))
	}
	return o
}

// take counts what another collected.
func (o *owned) take(from *owned) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.spans == nil {
		o.spans = map[string][]segment.Span{}
	}
	for tag, spans := range from.spans {
		o.spans[tag] = append(o.spans[tag], spans...)
	}
}

// Three nodes that all take writes: an instance on each, nodes killed and brought back under load. No range is granted twice,
// conflicts between nodes never reach a caller, and a node that fails costs seconds.
func TestGalera(t *testing.T) {
	g := services.StartGalera(t, 3, services.MariaDBOptions{Create: true})
	g.Nodes[0].Exec(leafTable)

	t.Run("Conformance", func(t *testing.T) {
		n := 0
		fresh := func(t *testing.T) string {
			n++
			name := "c" + strings.Repeat("x", n)
			for _, q := range []string{"CREATE DATABASE " + name, "GRANT SELECT, INSERT, UPDATE, CREATE ON " + name + ".* TO '" + services.User + "'@'%'",
				strings.Replace(leafTable, "leaf_alloc", name+".leaf_alloc", 1)} {
				if _, err := g.Nodes[0].Root().Exec(q); err != nil {
					t.Fatal(err)
				}
			}
			return name
		}
		storetest.RunShared(t, func(t *testing.T) (a, b segment.Store) {
			name := fresh(t)
			var stores []segment.Store
			for i := range 2 {
				o := galeraOptions(g, i)
				for j, n := range []int{i, (i + 1) % 3, (i + 2) % 3} {
					o.DSNs[j] = g.Nodes[n].DSN("", name)
				}
				s, err := Open(o)
				if err != nil {
					t.Fatal(err)
				}
				stores = append(stores, s)
			}
			return stores[0], stores[1]
		})
	})

	// Instances that each write through another node: conflicts are retried inside, and no caller hears of them.
	g.Nodes[0].Exec("INSERT INTO leaf_alloc (biz_tag, step) VALUES ('hot', 10)")
	var everywhere []*Store
	for i := range 3 {
		s := open(t, galeraOptions(g, i))
		awaitGrants(t, s)
		everywhere = append(everywhere, s)
	}
	all := draw(t, everywhere...)
	defer all.end()
	for range 20 {
		all.flows(t)
		for _, s := range everywhere {
			if _, err := pulse(t, s); err != nil {
				t.Errorf("Pulse: %v", err)
			}
		}
	}
	all.end()
	for _, s := range everywhere {
		s.Close()
	}
	t.Logf("writes through all nodes: %d grants", all.count())

	// The way it is meant to be set up: all instances name the nodes in one order, so all write through one of them.
	var stores []*Store
	var first segment.Pulse
	for range 3 {
		s := open(t, galeraOptions(g, 0))
		first = awaitGrants(t, s)
		stores = append(stores, s)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, s := range stores { // the heartbeats go on
		go func() {
			for ctx.Err() == nil {
				s.Pulse(ctx)
				time.Sleep(200 * time.Millisecond)
			}
		}()
	}
	d := draw(t, stores...)
	defer d.end()
	d.all.take(&all.all) // what was granted before counts too
	defer func() {
		if t.Failed() {
			for i, n := range g.Nodes {
				var text *string
				err := n.Root().QueryRow("SELECT GROUP_CONCAT(CONCAT_WS(' ', ID, USER, COMMAND, TIME, STATE, LEFT(INFO, 80)) SEPARATOR '\n') FROM information_schema.PROCESSLIST").Scan(&text)
				if text != nil {
					t.Logf("node %d:\n%s", i, *text)
				} else {
					t.Logf("node %d: %v", i, err)
				}
			}
		}
	}()
	d.flows(t)
	for i, n := range g.Nodes[:2] {
		n.Kill()
		t.Logf("node %d killed: grants again after %v", i, d.flows(t))
		n.Start()
		t.Logf("node %d is back: grants again after %v", i, d.flows(t))
	}
	// Without a quorum nothing is granted, and everything comes back with it.
	g.Nodes[0].Kill()
	g.Nodes[1].Kill()
	for end := time.Now().Add(60 * time.Second); ; {
		if _, err := pulse(t, stores[2]); err != nil {
			unavailable(t, err)
			break
		}
		if time.Now().After(end) {
			t.Fatal("a node without a quorum answers")
		}
	}
	g.Nodes[2].Kill()
	g.StartAll()
	t.Logf("all nodes started again: grants again after %v", d.flows(t))
	d.end()
	stop()
	// One cluster is one server: none of this was a failover.
	if p := awaitGrants(t, stores[0]); p.Epoch != first.Epoch || p.History != first.History {
		t.Errorf("%+v after all that, %+v before", p, first)
	}
	bound := g.Nodes[0].QueryInt("SELECT max_id FROM leaf_alloc WHERE biz_tag = 'hot'")
	for _, s := range d.all.spans["hot"] {
		if s.Hi > bound {
			t.Errorf("[%d, %d) was granted and the row stands at %d", s.Lo, s.Hi, bound)
		}
	}
	t.Logf("%d grants", d.count())

	t.Run("a server that is no node", func(t *testing.T) {
		name := database(t, leafTable)
		o := galeraOptions(g, 0)
		o.DSNs = []string{shared.db.DSN("", name)}
		for _, n := range g.Nodes {
			o.DSNs = append(o.DSNs, strings.Replace(n.DSN("", ""), "/leaf", "/"+name, 1))
		}
		_, err := pulse(t, open(t, o))
		mentions(t, err, "no node of a synchronous cluster")
	})
}
