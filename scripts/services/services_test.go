package services

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"

	"redleaf/scripts/proxy"
)

const leafTable = "CREATE TABLE leaf_alloc (biz_tag VARCHAR(128) NOT NULL PRIMARY KEY, max_id BIGINT NOT NULL DEFAULT 1," +
	" step INT NOT NULL DEFAULT 1000, description VARCHAR(256), update_time TIMESTAMP) ENGINE=InnoDB"

// reserve moves a row in one statement, as the service does.
func reserve(t *testing.T, db *sql.DB, tag string, n int64) int64 {
	t.Helper()
	r, err := db.Exec("UPDATE leaf_alloc SET max_id = LAST_INSERT_ID(max_id + ?) WHERE biz_tag = ?", n, tag)
	if err != nil {
		t.Fatal(err)
	}
	hi, err := r.LastInsertId()
	if err != nil {
		t.Fatal(err)
	}
	return hi
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.InterpolateParams, cfg.Logger = true, &mysql.NopLogger{}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	t.Cleanup(func() { db.Close() })
	return db
}

func TestMariaDB(t *testing.T) {
	m := StartMariaDB(t, MariaDBOptions{TLS: true})
	m.Exec(leafTable)
	m.Exec("INSERT INTO leaf_alloc (biz_tag) VALUES ('order')")
	m.TraceGrants("leaf_alloc")
	db := open(t, m.DSN("", ""))

	if hi := reserve(t, db, "order", 1000); hi != 1001 {
		t.Errorf("the first range ends at %d, want 1001", hi)
	}
	if _, err := db.Exec("DROP TABLE leaf_alloc"); err == nil || !strings.Contains(err.Error(), "1142") {
		t.Errorf("the service account drops tables: %v", err)
	}
	if _, err := db.Exec("CREATE TABLE x (a INT)"); err == nil || !strings.Contains(err.Error(), "1142") {
		t.Errorf("the service account creates tables without being asked to: %v", err)
	}

	m.ReadOnly(true)
	if _, err := db.Exec("UPDATE leaf_alloc SET max_id = 5"); err == nil || !strings.Contains(err.Error(), "1290") {
		t.Errorf("a read-only server takes a write: %v", err)
	}
	m.ReadOnly(false)

	old, dump := m.Pid(), m.Dump()
	m.Kill()
	m.Start()
	if m.Pid() == old {
		t.Error("the same process after a kill")
	}
	if hi := reserve(t, db, "order", 1000); hi != 2001 {
		t.Errorf("after kill -9 the range ends at %d, want 2001", hi)
	}
	m.Exec("DELETE FROM leaf_alloc")
	want := []Move{{"order", 0, 1}, {"order", 1, 1001}, {"order", 1001, 2001}, {"order", 2001, 0}}
	moves := m.Moves("leaf_alloc")
	if fmt.Sprint(moves) != fmt.Sprint(want) {
		t.Errorf("moves %v, want %v", moves, want)
	}
	m.Load(dump)
	if hi := m.QueryInt("SELECT max_id FROM leaf_alloc"); hi != 1001 {
		t.Errorf("the dump holds %d, want 1001", hi)
	}

	m.Pause()
	hung, err := net.Dial("tcp", m.Addr())
	if err != nil {
		t.Errorf("the kernel of a paused server does not accept: %v", err)
	} else {
		hung.SetDeadline(time.Now().Add(30 * time.Millisecond))
		if n, err := hung.Read(make([]byte, 1)); err == nil {
			t.Errorf("a paused server sent %d bytes", n)
		}
		hung.Close()
	}
	m.Resume()
	if n := m.QueryInt("SELECT COUNT(*) FROM leaf_alloc"); n != 1 {
		t.Errorf("%d rows after a pause, want 1", n)
	}

	pem, err := os.ReadFile(m.TLS.CA)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	cfg, err := mysql.ParseDSN(m.DSN("", ""))
	if err != nil {
		t.Fatal(err)
	}
	cfg.TLS = &tls.Config{RootCAs: pool, ServerName: "localhost"}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	secure := sql.OpenDB(c)
	defer secure.Close()
	var name, cipher string
	if err := secure.QueryRow("SHOW STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher); err != nil || cipher == "" {
		t.Errorf("TLS: cipher %q, %v", cipher, err)
	}
}

// The fault that matters most: the range was reserved, and nobody was told.
func TestReplyLostAfterCommit(t *testing.T) {
	m := StartMariaDB(t, MariaDBOptions{})
	m.Exec(leafTable)
	m.Exec("INSERT INTO leaf_alloc (biz_tag) VALUES ('order')")
	link := proxy.Start(t, m.Addr())
	db := open(t, m.DSNAt(link.Addr(), "", ""))
	if hi := reserve(t, db, "order", 1000); hi != 1001 {
		t.Errorf("the first range ends at %d, want 1001", hi)
	}
	link.CutOnReply(1, func(request []byte) bool { return bytes.Contains(request, []byte("UPDATE leaf_alloc")) })
	_, err := db.Exec("UPDATE leaf_alloc SET max_id = LAST_INSERT_ID(max_id + 1000) WHERE biz_tag = 'order'")
	if !errors.Is(err, mysql.ErrInvalidConn) {
		t.Errorf("the lost reply shows as %v, want %v", err, mysql.ErrInvalidConn)
	}
	if !link.WaitCuts(1, time.Minute) {
		t.Error("no reply was cut off")
	}
	if hi := m.QueryInt("SELECT max_id FROM leaf_alloc"); hi != 2001 {
		t.Errorf("the row stands at %d, want 2001: the statement was carried out", hi)
	}
	if hi := reserve(t, db, "order", 1000); hi != 3001 {
		t.Errorf("the next range ends at %d, want 3001", hi)
	}
}

func TestReplicaLagsAndIsPromoted(t *testing.T) {
	m := StartMariaDB(t, MariaDBOptions{Binlog: true})
	m.Exec(leafTable)
	m.Exec("INSERT INTO leaf_alloc (biz_tag) VALUES ('order')")
	r := StartReplica(t, m)
	primary := open(t, m.DSN("", ""))
	reserve(t, primary, "order", 1000)
	r.Sync()
	if hi := r.QueryInt("SELECT max_id FROM leaf_alloc"); hi != 1001 {
		t.Errorf("the replica has %d, want 1001", hi)
	}
	replica := open(t, r.DSN("", ""))
	if _, err := replica.Exec("UPDATE leaf_alloc SET max_id = 5"); err == nil || !strings.Contains(err.Error(), "1290") {
		t.Errorf("the replica takes writes: %v", err)
	}

	r.StopIO()
	reserve(t, primary, "order", 1000)
	m.Kill()
	r.Promote()
	if hi := reserve(t, replica, "order", 1000); hi != 2001 {
		t.Errorf("a replica that lags grants up to %d, want the old primary's 2001 once more", hi)
	}
}

func TestZooKeeperAlone(t *testing.T) {
	z := StartZooKeeper(t, ZooKeeperOptions{TLS: true})
	n := z.Nodes[0]
	zookeeperHolds(t, z.Servers(), nil)
	zookeeperHolds(t, z.TLSServers(), func(network, addr string, limit time.Duration) (net.Conn, error) {
		pool, err := rootPool(z.TLS.CA)
		if err != nil {
			return nil, err
		}
		return tls.DialWithDialer(&net.Dialer{Timeout: limit}, network, addr, &tls.Config{RootCAs: pool, ServerName: "localhost"})
	})
	n.Kill()
	saved := n.Save()
	n.Wipe()
	n.Start()
	if s, err := n.Ask("mntr"); err != nil || !strings.Contains(s, "zk_znode_count\t5") {
		t.Errorf("a wiped server has more than ZooKeeper's own 5 nodes: %v\n%s", err, s)
	}
	n.Kill()
	n.Restore(saved)
	n.Start()
	if s, err := n.Ask("mntr"); err != nil || !strings.Contains(s, "zk_znode_count\t7") {
		t.Errorf("the data that was put back does not hold 7 nodes: %v\n%s", err, s)
	}
}

// zookeeperHolds makes one node with a digest ACL and reads it back.
func zookeeperHolds(t *testing.T, servers string, dial zk.Dialer) {
	t.Helper()
	if dial == nil {
		dial = net.DialTimeout
	}
	c, events, err := zk.Connect(strings.Split(servers, ","), 8*time.Second, zk.WithDialer(dial), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	limit := time.After(30 * time.Second)
	for connected := false; !connected; {
		select {
		case e := <-events:
			connected = e.State == zk.StateHasSession
		case <-limit:
			t.Fatalf("no session with %s", servers)
		}
	}
	if err := c.AddAuth("digest", []byte("redleaf:secret")); err != nil {
		t.Fatal(err)
	}
	path, err := c.Create("/n-", []byte("x"), zk.FlagSequence, zk.DigestACL(zk.PermAll, "redleaf", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	if b, _, err := c.Get(path); err != nil || string(b) != "x" {
		t.Errorf("%s holds %q, %v", path, b, err)
	}
}

func TestZooKeeperEnsemble(t *testing.T) {
	z := StartZooKeeper(t, ZooKeeperOptions{Nodes: 3})
	zookeeperHolds(t, z.Servers(), nil)
	leader := z.Leader()
	leader.Kill()
	z.WaitQuorum()
	if now := z.Leader(); now == leader || now.Mode() != "leader" {
		t.Errorf("the leader was killed and %s leads", now.Addr())
	}
	zookeeperHolds(t, z.Servers(), nil)

	second := z.Leader()
	second.Pause()
	left := 0
	for _, n := range z.Nodes {
		if n.Daemon().Alive() && !n.paused() {
			left++
			until(t, "one of three serves nobody", func() bool { return n.Mode() == "" })
		}
	}
	if left != 1 {
		t.Fatalf("%d servers left, want 1", left)
	}
	second.Resume()
	leader.Start()
	z.WaitQuorum()
	zookeeperHolds(t, z.Servers(), nil)
}

func TestRedis(t *testing.T) {
	r := StartRedis(t, "--appendonly", "yes")
	if s := r.Do("INCR", "order"); s != "1" {
		t.Errorf("INCR: %q, want 1", s)
	}
	if s := r.Do("MGET", "order", "none"); s != "1\n" {
		t.Errorf("MGET: %q, want 1 and an empty line", s)
	}
	r.Stop()
	r.Start()
	if s := r.Do("INCR", "order"); s != "2" {
		t.Errorf("INCR after a restart: %q, want 2", s)
	}
}

// A test run that is killed leaves no server behind: this test starts itself as that run.
func TestKilledRunLeavesNothing(t *testing.T) {
	if os.Getenv("SERVICES_TEST_VICTIM") != "" {
		m := StartMariaDB(t, MariaDBOptions{})
		r := StartRedis(t)
		fmt.Printf("pids %d %d\n", m.Pid(), r.Pid())
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	c := exec.Command(os.Args[0], "-test.run=^TestKilledRunLeavesNothing$", "-test.v")
	c.Env = append(os.Environ(), "SERVICES_TEST_VICTIM=1", "TMPDIR="+t.TempDir())
	out, _ := c.CombinedOutput()
	var pids [2]int
	i := strings.Index(string(out), "pids ")
	if i < 0 {
		t.Fatalf("the run did not start its servers:\n%s", out)
	}
	if _, err := fmt.Sscanf(string(out[i:]), "pids %d %d", &pids[0], &pids[1]); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		until(t, fmt.Sprintf("process %d gone", pid), func() bool {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || strings.Contains(string(b), ") Z ")
		})
	}
}

func TestFoldersOfKilledRunsAreRemoved(t *testing.T) {
	dir, err := os.MkdirTemp("", "redleaf-abandoned-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, ".lock"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0], "-test.run=^TestRedis$")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}
