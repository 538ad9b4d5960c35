package services

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"redleaf/scripts/ports"
	"redleaf/scripts/process"
)

// Debian's jars: zookeeper.jar names the rest in its manifest, all but a logger and half of what TLS takes.
var zooJars = []string{
	"/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar",
	"/usr/share/java/netty-codec.jar", "/usr/share/java/netty-resolver.jar",
}

// ZooKeeperOptions describes one server or an ensemble. The zero value is one server.
type ZooKeeperOptions struct {
	Nodes    int           // 1 or 3
	TickTime time.Duration // default 500 ms; sessions last at least two ticks and at most twenty
	// Servers are given up by each other after SyncLimit ticks; default as many as make 5 s, so that a loaded machine
	// does not look like a failure.
	SyncLimit int
	TLS       bool     // also listen with TLS (ZooKeeper.TLSServers); clients need no certificate
	Config    []string // more lines for zoo.cfg: "maxClientCnxns=5"
	JVM       []string // more arguments for java
}

// ZooKeeper is a single server or an ensemble.
type ZooKeeper struct {
	Nodes []*ZooNode
	TLS   TLSFiles // set when ZooKeeperOptions.TLS was

	t T
}

// ZooNode is one ZooKeeper server.
type ZooNode struct {
	t           T
	daemon      *process.Daemon
	addr        string
	secure      string
	data        string
	ensemble    bool
	tlsRootPool *x509.CertPool
}

// StartZooKeeper starts the servers and waits until they serve. They end with the test.
func StartZooKeeper(t T, o ZooKeeperOptions) *ZooKeeper {
	t.Helper()
	java := need(t, "java")
	for _, jar := range zooJars {
		if _, err := os.Stat(jar); err != nil {
			t.Fatalf("%s is missing: run scripts/deps.sh", jar)
		}
	}
	o.Nodes = max(o.Nodes, 1)
	if o.TickTime == 0 {
		o.TickTime = 500 * time.Millisecond
	}
	if o.SyncLimit == 0 {
		o.SyncLimit = max(int(5*time.Second/o.TickTime), 2)
	}
	z := &ZooKeeper{t: t}
	var members []string
	if o.Nodes > 1 {
		for i := range o.Nodes {
			members = append(members, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, ports.Free(), ports.Free()))
		}
	}
	for i := range o.Nodes {
		dir := process.Dir(t, "zookeeper")
		port := ports.Free()
		n := &ZooNode{t: t, addr: fmt.Sprintf("127.0.0.1:%d", port), data: filepath.Join(dir, "data"), ensemble: o.Nodes > 1}
		config := []string{
			fmt.Sprintf("tickTime=%d", o.TickTime.Milliseconds()),
			fmt.Sprintf("initLimit=%d", max(int(30*time.Second/o.TickTime), 2)),
			fmt.Sprintf("syncLimit=%d", o.SyncLimit),
			"dataDir=" + n.data,
			fmt.Sprintf("clientPort=%d", port),
			"clientPortAddress=127.0.0.1",
			"maxClientCnxns=0",
			"admin.enableServer=false",
			"4lw.commands.whitelist=*",
		}
		config = append(config, members...)
		jvm := []string{"-Xmx64m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData",
			"-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.preAllocSize=256",
			"-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"}
		if o.TLS {
			if i == 0 {
				z.TLS = MakeTLS(t, dir)
			}
			pool, err := rootPool(z.TLS.CA)
			if err != nil {
				t.Fatalf("%v", err)
			}
			secure := ports.Free()
			n.secure, n.tlsRootPool = fmt.Sprintf("127.0.0.1:%d", secure), pool
			config = append(config, fmt.Sprintf("secureClientPort=%d", secure), "secureClientPortAddress=127.0.0.1",
				"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
				"ssl.keyStore.location="+z.TLS.ServerPEM, "ssl.trustStore.location="+z.TLS.CA, "ssl.clientAuth=none")
		}
		config = append(config, o.Config...)
		cfg := filepath.Join(dir, "zoo.cfg")
		err := errors.Join(
			os.MkdirAll(n.data, 0o755),
			os.WriteFile(cfg, []byte(strings.Join(config, "\n")+"\n"), 0o644),
			os.WriteFile(filepath.Join(n.data, "myid"), fmt.Appendf(nil, "%d\n", i+1), 0o644))
		if err != nil {
			t.Fatalf("%v", err)
		}
		args := append(jvm, o.JVM...)
		args = append(args, "-cp", strings.Join(zooJars, ":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", cfg)
		n.daemon = &process.Daemon{
			Name: fmt.Sprintf("ZooKeeper server %d on port %d", i+1, port), Path: java, Args: args,
			Dir: dir, Log: filepath.Join(dir, "log"), T: t, Ready: n.ready,
		}
		n.daemon.EndWith(t)
		z.Nodes = append(z.Nodes, n)
	}
	z.StartAll()
	return z
}

// ready is when a single server serves; a member of an ensemble is ready to be asked, quorum or not.
func (n *ZooNode) ready(ctx context.Context) error {
	if n.ensemble {
		s, err := n.ask(ctx, "ruok")
		if err == nil && s != "imok" {
			err = fmt.Errorf("ruok was answered by %q", s)
		}
		return err
	}
	if s, err := n.ask(ctx, "srvr"); err != nil {
		return err
	} else if modeOf(s) != "standalone" {
		return fmt.Errorf("it says %q", s)
	}
	if n.secure == "" {
		return nil
	}
	c, err := (&tls.Dialer{Config: &tls.Config{RootCAs: n.tlsRootPool, ServerName: "localhost"}}).DialContext(ctx, "tcp", n.secure)
	if err != nil {
		return err
	}
	return c.Close()
}

// Servers returns the connect string of all servers.
func (z *ZooKeeper) Servers() string { return strings.Join(z.ServerList(), ",") }

// ServerList returns the addresses of all servers.
func (z *ZooKeeper) ServerList() []string {
	var s []string
	for _, n := range z.Nodes {
		s = append(s, n.addr)
	}
	return s
}

// TLSServers returns the connect string of the TLS ports.
func (z *ZooKeeper) TLSServers() string {
	var s []string
	for _, n := range z.Nodes {
		s = append(s, n.secure)
	}
	return strings.Join(s, ",")
}

// StartAll starts the servers that do not run, and waits until all of them serve.
func (z *ZooKeeper) StartAll() {
	z.t.Helper()
	for _, n := range z.Nodes {
		if !n.daemon.Alive() {
			if err := n.daemon.Launch(); err != nil {
				z.t.Fatalf("%v", err)
			}
		}
	}
	for _, n := range z.Nodes {
		if err := n.daemon.WaitReady(); err != nil {
			z.t.Fatalf("%v\n%s", err, n.daemon.Tail(4000))
		}
	}
	z.WaitQuorum()
}

// WaitQuorum waits until every server that runs and is not paused takes part in a quorum with one leader.
func (z *ZooKeeper) WaitQuorum() {
	z.t.Helper()
	until(z.t, "a ZooKeeper quorum", func() bool {
		leaders := 0
		for _, n := range z.Nodes {
			if !n.daemon.Alive() || n.paused() {
				continue
			}
			switch n.Mode() {
			case "leader", "standalone":
				leaders++
			case "":
				return false
			}
		}
		return leaders == 1
	})
}

// Leader returns the server that leads, or is alone; the test ends when none does in time.
func (z *ZooKeeper) Leader() (leader *ZooNode) {
	z.t.Helper()
	until(z.t, "a ZooKeeper leader", func() bool {
		for _, n := range z.Nodes {
			if n.daemon.Alive() && !n.paused() {
				if m := n.Mode(); m == "leader" || m == "standalone" {
					leader = n
					return true
				}
			}
		}
		return false
	})
	return leader
}

// KillAll ends every server with SIGKILL.
func (z *ZooKeeper) KillAll() {
	z.t.Helper()
	for _, n := range z.Nodes {
		n.Kill()
	}
}

// StopAll ends every server with SIGTERM.
func (z *ZooKeeper) StopAll() {
	z.t.Helper()
	for _, n := range z.Nodes {
		n.Stop()
	}
}

// WipeAll removes the data of all servers, none of which may run: an ensemble that was lost.
func (z *ZooKeeper) WipeAll() {
	z.t.Helper()
	for _, n := range z.Nodes {
		n.Wipe()
	}
}

// Addr returns 127.0.0.1:port.
func (n *ZooNode) Addr() string { return n.addr }

// Pid returns the id of the server's process.
func (n *ZooNode) Pid() int { return n.daemon.Pid() }

// Daemon gives access to the process itself.
func (n *ZooNode) Daemon() *process.Daemon { return n.daemon }

// Mode returns what the server says it is: leader, follower or standalone; "" when it serves nobody or does not answer.
func (n *ZooNode) Mode() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := n.ask(ctx, "srvr")
	if err != nil {
		return ""
	}
	return modeOf(s)
}

// Ask sends one of ZooKeeper's four-letter words and returns the answer.
func (n *ZooNode) Ask(word string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return n.ask(ctx, word)
}

func (n *ZooNode) ask(ctx context.Context, word string) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(end); err != nil {
			return "", err
		}
	}
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func modeOf(srvr string) string {
	for line := range strings.Lines(srvr) {
		if m, ok := strings.CutPrefix(line, "Mode: "); ok {
			return strings.TrimSpace(m)
		}
	}
	return ""
}

// Start starts the server again. A single server serves when it returns; for a member of an ensemble see WaitQuorum.
func (n *ZooNode) Start() { n.t.Helper(); n.daemon.Start() }

// Kill ends the server with SIGKILL.
func (n *ZooNode) Kill() { n.t.Helper(); n.daemon.Kill() }

// Stop ends the server with SIGTERM.
func (n *ZooNode) Stop() { n.t.Helper(); n.daemon.Stop() }

// Restart is Stop and Start.
func (n *ZooNode) Restart() { n.t.Helper(); n.Stop(); n.Start() }

// Pause stops the process by SIGSTOP.
func (n *ZooNode) Pause() { n.t.Helper(); n.daemon.Pause() }

// Resume lets it go on.
func (n *ZooNode) Resume() { n.t.Helper(); n.daemon.Resume() }

func (n *ZooNode) paused() bool { return n.daemon.Paused() }

// Wipe removes the data of a server that does not run, but for its number.
func (n *ZooNode) Wipe() {
	n.t.Helper()
	if n.daemon.Alive() {
		n.t.Fatalf("%s runs: stop it before it is wiped", n.daemon.Name)
	}
	if err := os.RemoveAll(filepath.Join(n.data, "version-2")); err != nil {
		n.t.Fatalf("%v", err)
	}
}

// Save copies the data of a server that does not run, and returns the name of the copy for Restore.
func (n *ZooNode) Save() string { n.t.Helper(); return save(n.t, n.daemon, n.data) }

// Restore puts back what Save copied, while the server does not run.
func (n *ZooNode) Restore(saved string) { n.t.Helper(); restore(n.t, n.daemon, n.data, saved) }

func rootPool(ca string) (*x509.CertPool, error) {
	b, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s holds no certificate", ca)
	}
	return pool, nil
}
