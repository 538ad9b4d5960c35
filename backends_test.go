package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"redleaf/scripts/checker"
	"redleaf/scripts/process"
	"redleaf/scripts/services"
)

// fleet is a MariaDB and a ZooKeeper, with the schema loaded and the root bootstrapped.
type fleet struct {
	t  *testing.T
	db *services.MariaDB
	zk *services.ZooKeeper
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{t: t, db: services.StartMariaDB(t, services.MariaDBOptions{}), zk: services.StartZooKeeper(t, services.ZooKeeperOptions{})}
	schema, err := os.ReadFile("scripts/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	f.db.Load(string(schema))
	code, log := process.RunToExit(t, process.Options{Set: f.settings("10.0.0.9:6380"), Args: []string{"-bootstrap"}})
	if code != 0 {
		t.Fatalf("-bootstrap: exit code %d\n%s", code, log)
	}
	return f
}

func (f *fleet) settings(node string, more ...string) []string {
	return append([]string{
		"segment.store=mysql", "segment.mysql.dsn=" + f.db.DSN("", ""), "segment.check=1s",
		"snowflake.registry=zookeeper", "snowflake.zookeeper.servers=" + f.zk.Servers(), "snowflake.node=" + node,
	}, more...)
}

func (f *fleet) tag(name string, step int64) {
	f.db.Exec("INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES (?, 1, ?)", name, step)
}

func (f *fleet) start(i int, more ...string) *process.Process {
	return process.Start(f.t, process.Options{
		Name: fmt.Sprintf("i%d", i), Set: f.settings(fmt.Sprintf("10.0.0.%d:6380", i), more...),
	})
}

func newHistory(t *testing.T) *checker.History {
	h, err := checker.Create(filepath.Join(t.TempDir(), "history"))
	if err != nil {
		t.Fatal(err)
	}
	h.Snowflake(checker.SnowflakeKey, checker.Layout{Epoch: 1288834974657, Time: 41, Worker: 10, Sequence: 12})
	return h
}

func verdict(t *testing.T, h *checker.History) checker.Report {
	t.Helper()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := checker.Verify(h.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", r)
	if !r.Clean() {
		t.Error("the history is not clean")
	}
	return r
}

// TestTwoInstances draws a million IDs of each engine from two instances on one MariaDB and one ZooKeeper, and kills each in
// the middle.
func TestTwoInstances(t *testing.T) {
	f := newFleet(t)
	f.tag("order", 1000)
	f.tag("user", 1000)
	ps := []*process.Process{f.start(1), f.start(2)}
	h := newHistory(t)
	var life sync.Mutex
	instance := func(addr string) string {
		life.Lock()
		defer life.Unlock()
		for _, p := range ps {
			if p.Addr == addr {
				return p.Instance()
			}
		}
		return ""
	}
	const each = 250_000 // of 8 clients, 4 per engine
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[checker.Command]int64{}
	killed := make(chan struct{})
	for i := range 8 {
		wg.Go(func() {
			c := checker.Client{History: h, Name: fmt.Sprint("client", i), Addrs: []string{ps[i%2].Addr, ps[1-i%2].Addr}, Instance: instance,
				Command: checker.Incr, Keys: []string{"order", "user"}, Pipeline: 8, Limit: each / 2}
			if i >= 4 {
				c.Command = checker.SnowflakeNext
			}
			r := c.Run(t.Context()) // half of them before the kills are over, half after
			<-killed
			again := c.Run(t.Context())
			mu.Lock()
			ids[c.Command] += r.IDs + again.IDs
			mu.Unlock()
		})
	}
	for _, p := range ps {
		time.Sleep(500 * time.Millisecond) // the load between the kills
		life.Lock()
		p.Kill()
		p.Start()
		life.Unlock()
	}
	close(killed)
	wg.Wait()
	for _, tag := range []string{"order", "user"} {
		h.HighWater(tag, f.db.QueryInt("SELECT max_id FROM leaf_alloc WHERE biz_tag = ?", tag))
	}
	verdict(t, h)
	for _, c := range []checker.Command{checker.Incr, checker.SnowflakeNext} {
		if ids[c] < 4*each {
			t.Errorf("%v: %d IDs, want at least %d", c, ids[c], 4*each)
		}
	}
}

// TestDatabaseGone: while a tag has IDs, a dead database costs no error and no slow request; when it has none, TRYAGAIN comes
// within segment.wait, and after the cure it goes on by itself.
func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.tag("large", 1_000_000)
	f.tag("small", 10)
	p := f.start(1)
	p.Do("INCR", "large")
	p.Do("INCR", "small")
	f.db.Kill()

	// 30 s of steady drawing, far below what is in memory.
	h := newHistory(t)
	h.Expect() // no error word at all
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r := checker.Client{History: h, Name: "steady", Addrs: []string{p.Addr}, Instance: func(string) string { return p.Instance() },
		Command: checker.Incr, Keys: []string{"large"}, Rate: 1000}.Run(ctx)
	verdict(t, h)
	if r.IDs < 10_000 || len(r.Errors) != 0 {
		t.Errorf("%d IDs in 30 s without a database, errors %v", r.IDs, r.Errors)
	}
	if r.Slowest > time.Second { // a loaded machine has its pauses; a wait for the store would be segment.wait, 2 s
		t.Errorf("the slowest request took %v", r.Slowest)
	}

	var refused string
	for range 100 {
		began := time.Now()
		if reply := p.Do("INCR", "small"); strings.HasPrefix(reply, "TRYAGAIN") {
			refused = reply
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("TRYAGAIN came after %v; segment.wait is 2s", took)
			}
			break
		}
	}
	if !strings.Contains(refused, "small") {
		t.Fatalf("an empty tag answered %q, want TRYAGAIN that names it", refused)
	}

	f.db.Start()
	cured := time.Now()
	for {
		if reply := p.Do("INCR", "small"); !strings.HasPrefix(reply, "TRYAGAIN") {
			number(t, reply)
			t.Logf("%v after the cure", time.Since(cured).Round(time.Millisecond))
			break
		}
		if time.Since(cured) > 20*time.Second {
			t.Fatalf("no ID 20 s after the database came back\n%s", p.Log())
		}
	}
}

// TestZooKeeperGone: a running instance goes on, a new one says why it waits, and segments don't care.
func TestZooKeeperGone(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.tag("order", 1000)
	running := f.start(1)
	last := number(t, running.Do("SNOWFLAKE.NEXT"))
	f.zk.KillAll()
	for range 200 {
		next := number(t, running.Do("SNOWFLAKE.NEXT"))
		if next <= last {
			t.Fatalf("snowflake %d after %d", next, last)
		}
		last = next
	}
	number(t, running.Do("INCR", "order"))

	fresh := process.Start(t, process.Options{Name: "fresh", Set: f.settings("10.0.0.7:6380", "start_timeout=1s"), NoWait: true})
	fresh.WaitPing()
	number(t, retryLoading(t, fresh, "INCR", "order"))
	reply := retryLoading(t, fresh, "SNOWFLAKE.NEXT")
	if !strings.HasPrefix(reply, "NOWORKER") || !strings.Contains(strings.ToLower(reply), "zookeeper") {
		t.Errorf("a new instance without ZooKeeper answered %q, want NOWORKER that names it", reply)
	}
	if status, body := fresh.Get("/readyz/segment"); status != 200 {
		t.Errorf("/readyz/segment: %d %s", status, body)
	}
	if status, body := fresh.Get("/readyz/snowflake"); status != 503 || !strings.Contains(strings.ToLower(body), "zookeeper") {
		t.Errorf("/readyz/snowflake: %d %s", status, body)
	}

	f.zk.StartAll()
	f.zk.WaitQuorum()
	deadline := time.Now().Add(60 * time.Second)
	for strings.HasPrefix(fresh.Do("SNOWFLAKE.NEXT"), "NOWORKER") {
		if time.Now().After(deadline) {
			t.Fatalf("the new instance has no number 60 s after ZooKeeper came back\n%s", fresh.Log())
		}
		time.Sleep(50 * time.Millisecond)
	}
	numbers := []int64{number(t, running.Do("SNOWFLAKE.NEXT")) >> 12 & 1023, number(t, fresh.Do("SNOWFLAKE.NEXT")) >> 12 & 1023}
	if slices.Equal(numbers[:1], numbers[1:]) {
		t.Fatalf("both instances are worker %d", numbers[0])
	}
}

// retryLoading asks until the engine answers something else than LOADING, as clients do.
func retryLoading(t *testing.T, p *process.Process, args ...string) string {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		reply := p.Do(args...)
		if !strings.HasPrefix(reply, "LOADING") {
			return reply
		}
		if time.Now().After(deadline) {
			t.Fatalf("still %q after 30 s", reply)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
