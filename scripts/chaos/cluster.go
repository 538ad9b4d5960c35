package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"redleaf/scripts/checker"
	"redleaf/scripts/process"
	"redleaf/scripts/proxy"
	"redleaf/scripts/services"
)

const (
	instances = 3
	step      = 1000
	maxStep   = 100_000
	// What a replica may lag behind at a failover, and what is left out for it. The nemesis measures the lag and stays below half of it.
	skip = 20_000_000
)

var sharedTags = []string{"order", "user"}

// A node is one redleaf with a proxy on each of its links.
type node struct {
	*process.Process
	life  sync.RWMutex // held while the process of the name changes
	front *proxy.Proxy // clients to it
	db    *proxy.Proxy
	zk    []*proxy.Proxy // one for each ZooKeeper server
}

// name is the life of the process. A client that asks while the process is changed waits.
func (n *node) name() string { n.life.RLock(); defer n.life.RUnlock(); return n.Instance() }

type cluster struct {
	s       *session
	h       *checker.History
	nodes   []*node
	zk      *services.ZooKeeper
	all     []*services.MariaDB // every server that ever was the primary, the present one last
	replica *services.Replica
	private []string
}

func (c *cluster) primary() *services.MariaDB { return c.all[len(c.all)-1] }

func newCluster(s *session, h *checker.History, bin string, private int) *cluster {
	c := &cluster{s: s, h: h}
	c.all = []*services.MariaDB{services.StartMariaDB(s, services.MariaDBOptions{Binlog: true})}
	schema, err := os.ReadFile("scripts/schema.sql")
	if err != nil {
		s.Fatalf("%v; run it in the root of the source", err)
	}
	db := c.primary()
	db.Load(string(schema))
	db.TraceGrants("leaf_alloc")
	for i := range private {
		c.private = append(c.private, fmt.Sprintf("private%d", i))
	}
	for _, tag := range c.tags() {
		db.Exec("INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES (?, 1, ?)", tag, step)
	}
	c.replica = services.StartReplica(s, db)
	c.zk = services.StartZooKeeper(s, services.ZooKeeperOptions{Nodes: 3})
	// ZooKeeper's clock against ours, and -bootstrap, go over the plain addresses: nothing is broken yet.
	if bin != "" {
		abs, err := filepath.Abs(bin) // the program runs in a folder of its own
		if err != nil {
			s.Fatalf("%v", err)
		}
		bin = abs
	}
	if code, log := process.RunToExit(s, process.Options{Bin: bin, Args: []string{"-bootstrap"},
		Set: settings(9, db.DSN("", ""), c.zk.Servers())}); code != 0 {
		s.Fatalf("-bootstrap: exit code %d\n%s", code, log)
	}
	for i := range instances {
		n := &node{db: proxy.Start(s, db.Addr())}
		var servers []string
		for _, addr := range c.zk.ServerList() {
			p := proxy.Start(s, addr)
			n.zk = append(n.zk, p)
			servers = append(servers, p.Addr())
		}
		n.Process = process.Start(s, process.Options{Name: fmt.Sprintf("i%d", i), Bin: bin,
			Set: settings(i, db.DSNAt(n.db.Addr(), "", ""), strings.Join(servers, ","))})
		n.front = proxy.Start(s, n.Addr)
		c.nodes = append(c.nodes, n)
	}
	return c
}

func settings(i int, dsn, servers string) []string {
	return []string{
		"segment.store=mysql", "segment.mysql.dsn=" + dsn, "segment.check=500ms", "segment.target=5s", "segment.wait=1s",
		fmt.Sprintf("segment.max_step=%d", maxStep), fmt.Sprintf("segment.failover_skip=%d", skip),
		"snowflake.registry=zookeeper", "snowflake.zookeeper.servers=" + servers, fmt.Sprintf("snowflake.node=10.0.0.%d:6380", i+1),
		"shutdown_timeout=5s",
	}
}

func (c *cluster) tags() []string { return append(append([]string{}, sharedTags...), c.private...) }

// instance names the process behind an address of its own. Behind a proxy it can't be told which life answers: a connection that
// the proxy has taken may reach the next one.
func (c *cluster) instance(addr string) string {
	for _, n := range c.nodes {
		if n.Addr == addr {
			return n.name()
		}
	}
	return ""
}

// addrs lists the instances beginning with one of them, by their proxies or straight.
func (c *cluster) addrs(first int, proxied bool) (all []string) {
	for i := range c.nodes {
		n := c.nodes[(first+i)%len(c.nodes)]
		if proxied {
			all = append(all, n.front.Addr())
		} else {
			all = append(all, n.Addr)
		}
	}
	return all
}

// failOver makes the replica the primary, with a lag that is far below the skip, and begins a new replica.
//
// The old primary never comes back: two writable primaries are not promised (README, What is not promised).
func (c *cluster) failOver() (lost int64) {
	old, next := c.primary(), c.replica
	for _, tag := range c.tags() {
		at := old.QueryInt("SELECT max_id FROM leaf_alloc WHERE biz_tag = ?", tag)
		lag := at - next.QueryInt("SELECT max_id FROM leaf_alloc WHERE biz_tag = ?", tag)
		lost = max(lost, lag)
	}
	if lost > skip/2 {
		next.StartIO()
		next.Sync()
		next.StopIO()
	}
	for _, n := range c.nodes {
		n.db.SetTarget(next.Addr())
	}
	old.Kill()
	next.Promote()
	c.all = append(c.all, next.MariaDB)
	for _, n := range c.nodes {
		n.db.CloseAll()
	}
	return lost
}

// replace begins a new replica, and asks the lost primary what it had granted: nobody is led to it any more.
func (c *cluster) replace(old *services.MariaDB) {
	old.Start()
	c.grants(old)
	old.Stop()
	c.replica = services.StartReplica(c.s, c.primary())
}

// grants notes what a server has granted by now. What was given back stays noted: after a failover the servers tell one story
// in two orders, and whoever got it again is looked after by the check for duplicates.
func (c *cluster) grants(m *services.MariaDB) {
	for _, move := range m.Moves("leaf_alloc") {
		if move.To > move.From {
			c.h.Grant(move.Tag, "", max(move.From, 1), move.To-1)
		}
	}
}

// finish notes what the store granted and where it stands.
func (c *cluster) finish() {
	c.grants(c.primary())
	for _, tag := range c.tags() {
		c.h.HighWater(tag, c.primary().QueryInt("SELECT max_id FROM leaf_alloc WHERE biz_tag = ?", tag))
	}
}

// logs copies the logs of the instances beside the history.
func (c *cluster) logs(dir string) {
	for i, n := range c.nodes {
		_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("i%d.log", i)), []byte(n.Log()), 0o644)
	}
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }
