package services

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"redleaf/scripts/ports"
)

// Galera is a cluster of MariaDB servers that all take writes.
type Galera struct {
	Nodes []*MariaDB

	t T
}

var providers = []string{
	"/usr/lib/galera/libgalera_smm.so",
	"/usr/lib/libgalera_smm.so",
}

// StartGalera starts a cluster of n servers and waits until each is synced. MariaDBOptions.Binlog and TLS are not for it.
//
// A node that was killed comes back with Start; once no node runs any more, StartAll begins the cluster again.
func StartGalera(t T, n int, o MariaDBOptions) *Galera {
	t.Helper()
	var provider string
	for _, p := range append(providers, glob("/usr/lib/*/galera/libgalera_smm.so")...) {
		if _, err := os.Stat(p); err == nil {
			provider = p
			break
		}
	}
	if provider == "" {
		t.Fatalf("libgalera_smm.so is missing: run scripts/deps.sh")
	}
	for _, program := range []string{"rsync", "lsof", "ss", "socat"} {
		need(t, program)
	}
	// As root the transfer between servers fails, so the servers run as the package's user.
	if os.Getuid() == 0 {
		u, err := user.Lookup("mysql")
		if err != nil {
			t.Fatalf("no user mysql: run scripts/deps.sh (%v)", err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		o.user = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	o.ready = func(ctx context.Context, db *sql.DB) error {
		var name, state string
		if err := db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'wsrep_local_state_comment'").Scan(&name, &state); err != nil {
			return err
		}
		if state != "Synced" {
			return fmt.Errorf("the node is %s", state)
		}
		if err := db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'wsrep_ready'").Scan(&name, &state); err != nil {
			return err
		}
		if state != "ON" {
			return fmt.Errorf("wsrep_ready is %s", state)
		}
		return nil
	}
	var group []int
	var peers []string
	for range n {
		p := ports.Free()
		group = append(group, p)
		peers = append(peers, fmt.Sprintf("127.0.0.1:%d", p))
	}
	g := &Galera{t: t}
	base := o.Args
	for i := range n {
		o.Args = append([]string{
			"--wsrep-on=ON", "--wsrep-provider=" + provider, "--wsrep-cluster-name=redleaf",
			"--wsrep-cluster-address=gcomm://" + strings.Join(peers, ","),
			fmt.Sprintf("--wsrep-node-name=node%d", i+1),
			fmt.Sprintf("--wsrep-node-address=127.0.0.1:%d", group[i]),
			fmt.Sprintf("--wsrep-provider-options=base_host=127.0.0.1;base_port=%d;gmcast.listen_addr=tcp://127.0.0.1:%d;ist.recv_addr=127.0.0.1:%d;gcache.size=8M;gcache.page_size=8M",
				group[i], group[i], ports.Free()),
			"--wsrep-sst-method=rsync",
			fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", ports.Free()),
			"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
		}, base...)
		m := newMariaDB(t, o, fmt.Sprintf("galera%d", i+1))
		g.Nodes = append(g.Nodes, m)
		if i == 0 {
			// The accounts are made on the first server alone and travel with its data.
			m.daemon.Args = append(m.daemon.Args, "--wsrep-new-cluster")
		} else {
			m.daemon.Args = m.args
		}
		m.Start()
	}
	return g
}

// StopAll ends the servers one after the other, the last one first.
func (g *Galera) StopAll() {
	g.t.Helper()
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		g.Nodes[i].Stop()
	}
}

// KillAll ends every server with SIGKILL.
func (g *Galera) KillAll() {
	g.t.Helper()
	for _, m := range g.Nodes {
		m.Kill()
	}
}

var recovered = regexp.MustCompile(`Recovered position: ?([0-9a-f-]+):(-?\d+)`)

// StartAll begins the cluster again when no server runs: with the server that is furthest, as an operator has to.
func (g *Galera) StartAll() {
	g.t.Helper()
	first, furthest, position := -1, int64(-2), ""
	for i, m := range g.Nodes {
		if m.daemon.Alive() {
			g.t.Fatalf("%s still runs", m.daemon.Name)
		}
		c := exec.Command(m.daemon.Path, append(m.args[:len(m.args):len(m.args)], "--wsrep-recover", "--log-error="+filepath.Join(m.Dir(), "recover.log"))...)
		c.Dir = m.Dir()
		c.SysProcAttr = &syscall.SysProcAttr{Credential: m.daemon.User, Pdeathsig: syscall.SIGKILL}
		out, err := c.CombinedOutput()
		log, _ := os.ReadFile(filepath.Join(m.Dir(), "recover.log"))
		if err != nil {
			g.t.Fatalf("%s --wsrep-recover: %v\n%s%s", m.daemon.Name, err, out, log)
		}
		found := recovered.FindAllSubmatch(log, -1)
		if found == nil {
			continue
		}
		at, err := strconv.ParseInt(string(found[len(found)-1][2]), 10, 64)
		if err == nil && at > furthest {
			first, furthest = i, at
			position = string(found[len(found)-1][1]) + ":" + string(found[len(found)-1][2])
		}
	}
	if first < 0 {
		g.t.Fatalf("no server of the cluster knows its position")
	}
	state := filepath.Join(g.Nodes[first].data, "grastate.dat")
	b, err := os.ReadFile(state)
	if err == nil {
		err = os.WriteFile(state, []byte(strings.Replace(string(b), "safe_to_bootstrap: 0", "safe_to_bootstrap: 1", 1)), 0o644)
	}
	if err != nil {
		g.t.Fatalf("%v", err)
	}
	m := g.Nodes[first]
	// Without its position the server would begin a cluster of another name, as the system's own start script never does.
	m.daemon.Args = append(m.args[:len(m.args):len(m.args)], "--wsrep-new-cluster", "--wsrep-start-position="+position)
	m.Start()
	for i, m := range g.Nodes {
		if i != first {
			m.Start()
		}
	}
}

func glob(pattern string) []string {
	paths, _ := filepath.Glob(pattern)
	return paths
}
