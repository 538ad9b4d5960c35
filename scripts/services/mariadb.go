package services

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"redleaf/scripts/ports"
	"redleaf/scripts/process"
)

// The account that a service gets: a plain one, since an account with SUPER writes on a read-only server.
const (
	User     = "redleaf"
	Password = "redleaf-secret"
)

const replUser, replPassword = "repl", "repl-secret"

// MariaDBOptions describes a server. The zero value is right for most tests.
type MariaDBOptions struct {
	Database string   // made at the first start; default "leaf"
	Create   bool     // User may also CREATE tables (default: SELECT, INSERT, UPDATE)
	Grant    string   // privileges of User on Database, in place of the two above: "SELECT, UPDATE"
	Binlog   bool     // write a binary log, without which there is no replica
	TLS      bool     // offer TLS; the files are in MariaDB.TLS
	Args     []string // more arguments for mariadbd, stronger than those set here

	user  *syscall.Credential // who runs the server, when not this process' user
	ready func(ctx context.Context, db *sql.DB) error
}

// MariaDB is one server. Its account root has no password; User has Password.
type MariaDB struct {
	TLS TLSFiles // set when MariaDBOptions.TLS was

	t      T
	o      MariaDBOptions
	daemon *process.Daemon
	port   int
	data   string
	root   *sql.DB
	args   []string
}

// StartMariaDB starts a server and waits until it answers a query. It ends with the test.
func StartMariaDB(t T, o MariaDBOptions) *MariaDB {
	t.Helper()
	m := newMariaDB(t, o, "mariadb")
	m.Start()
	return m
}

func newMariaDB(t T, o MariaDBOptions, name string) *MariaDB {
	t.Helper()
	if o.Database == "" {
		o.Database = "leaf"
	}
	if o.Grant == "" {
		o.Grant = "SELECT, INSERT, UPDATE"
		if o.Create {
			o.Grant += ", CREATE"
		}
	}
	bin := need(t, "mariadbd")
	template := mariadbTemplate(t, bin)
	dir := process.Dir(t, name)
	m := &MariaDB{t: t, o: o, port: ports.Free(), data: filepath.Join(dir, "data")}
	if err := copyTree(template, m.data); err != nil {
		t.Fatalf("copying MariaDB's first data folder: %v", err)
	}
	m.args = []string{
		"--no-defaults", // must be the first
		"--datadir=" + m.data,
		"--tmpdir=" + dir,
		fmt.Sprintf("--port=%d", m.port),
		"--bind-address=127.0.0.1",
		"--socket=" + filepath.Join(dir, "s"),
		"--pid-file=" + filepath.Join(dir, "pid"),
		fmt.Sprintf("--server-id=%d", m.port), // distinct on one machine
		"--character-set-server=utf8mb4",
		"--skip-name-resolve",
		"--performance-schema=OFF",
		"--innodb-buffer-pool-size=16M",
		"--innodb-log-file-size=8M",
		"--innodb-buffer-pool-dump-at-shutdown=OFF",
		"--innodb-buffer-pool-load-at-startup=OFF",
		"--innodb-flush-log-at-trx-commit=1",
		"--max-connections=300",
		"--table-open-cache=200",
	}
	if o.user == nil && os.Getuid() == 0 {
		m.args = append(m.args, "--user=root")
	}
	if o.Binlog {
		m.args = append(m.args, "--log-bin=binlog", "--binlog-format=ROW", "--sync-binlog=1", "--log-slave-updates",
			"--skip-slave-start", "--master-retry-count=0")
	}
	if o.TLS {
		m.TLS = MakeTLS(t, dir)
		m.args = append(m.args, "--ssl-ca="+m.TLS.CA, "--ssl-cert="+m.TLS.Cert, "--ssl-key="+m.TLS.Key)
	}
	m.args = append(m.args, o.Args...)

	// The first start makes the accounts, before the server takes connections, and outside the binary log: a replica
	// makes its own.
	initFile := filepath.Join(dir, "init.sql")
	lines := strings.Join([]string{
		"SET sql_log_bin = 0;",
		fmt.Sprintf("CREATE DATABASE `%s`;", o.Database),
		fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED BY '%s';", User, Password),
		fmt.Sprintf("GRANT %s ON `%s`.* TO '%s'@'%%';", o.Grant, o.Database, User),
		fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED BY '%s';", replUser, replPassword),
		fmt.Sprintf("GRANT REPLICATION SLAVE ON *.* TO '%s'@'%%';", replUser),
	}, "\n") + "\n"
	if err := os.WriteFile(initFile, []byte(lines), 0o644); err != nil {
		t.Fatalf("%v", err)
	}
	if err := chownTree(dir, o.user); err != nil {
		t.Fatalf("%v", err)
	}

	cfg := m.config("root", o.Database)
	cfg.ReadTimeout, cfg.WriteTimeout, cfg.Timeout = time.Minute, time.Minute, 10*time.Second
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatalf("%v", err)
	}
	m.root = sql.OpenDB(connector)
	t.Cleanup(func() { m.root.Close() })

	m.daemon = &process.Daemon{
		Name: fmt.Sprintf("%s on port %d", name, m.port), Path: bin, Args: append(m.args, "--init-file="+initFile),
		Dir: dir, Log: filepath.Join(dir, "log"), User: o.user, T: t,
		Ready: func(ctx context.Context) error {
			if _, err := m.root.ExecContext(ctx, "DO 1"); err != nil {
				return err
			}
			if o.ready != nil {
				return o.ready(ctx, m.root)
			}
			return nil
		},
	}
	m.daemon.EndWith(t)
	return m
}

// mariadbTemplate returns a data folder as mariadb-install-db makes it. It is made once on a machine, for each version
// and user, and copied for each server: the copy takes a fraction of the time.
func mariadbTemplate(t T, bin string) string {
	t.Helper()
	templateMu.Lock()
	defer templateMu.Unlock()
	version, err := exec.Command(bin, "--no-defaults", "--version").Output()
	if err != nil {
		t.Fatalf("%s --version: %v", bin, err)
	}
	// The number belongs to the way the folder is made: raise it with a change below.
	key := sha256.Sum256(fmt.Appendf(nil, "1 %s", version))
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("redleaf-mariadb-template-%d-%x", os.Getuid(), key[:6]))
	if _, err := os.Stat(filepath.Join(dir, "mysql")); err == nil {
		return dir
	}
	install := need(t, "mariadb-install-db")
	tmp, err := os.MkdirTemp("", "redleaf-mariadb-install-")
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer os.RemoveAll(tmp)
	args := []string{"--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db",
		"--datadir=" + filepath.Join(tmp, "data"), "--innodb-log-file-size=8M"}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	if out, err := exec.Command(install, args...).CombinedOutput(); err != nil {
		t.Fatalf("mariadb-install-db: %v\n%s", err, out)
	}
	// Another test binary may have been faster; its folder is as good.
	if err := os.Rename(filepath.Join(tmp, "data"), dir); err != nil {
		if _, statErr := os.Stat(filepath.Join(dir, "mysql")); statErr != nil {
			t.Fatalf("%v", err)
		}
	}
	return dir
}

var templateMu sync.Mutex

// Addr returns 127.0.0.1:port.
func (m *MariaDB) Addr() string { return fmt.Sprintf("127.0.0.1:%d", m.port) }

// Port returns the TCP port, which stays the same over restarts.
func (m *MariaDB) Port() int { return m.port }

// Dir returns the server's folder: data, log and socket.
func (m *MariaDB) Dir() string { return m.daemon.Dir }

// Pid returns the id of the server's process.
func (m *MariaDB) Pid() int { return m.daemon.Pid() }

// Daemon gives access to the process itself.
func (m *MariaDB) Daemon() *process.Daemon { return m.daemon }

// Database returns the name of the database that was made at the first start.
func (m *MariaDB) Database() string { return m.o.Database }

func (m *MariaDB) config(user, db string) *mysql.Config {
	cfg := mysql.NewConfig()
	cfg.User, cfg.DBName, cfg.Net, cfg.Addr = user, db, "tcp", m.Addr()
	switch user {
	case User:
		cfg.Passwd = Password
	case replUser:
		cfg.Passwd = replPassword
	}
	cfg.Logger = &mysql.NopLogger{}
	cfg.MultiStatements = user == "root"
	cfg.InterpolateParams = true
	return cfg
}

// DSN returns a data source name in the driver's form. An empty user is User, an empty database the first one.
func (m *MariaDB) DSN(user, db string) string { return m.DSNAt(m.Addr(), user, db) }

// DSNAt is DSN with another address: that of a proxy in front of the server.
func (m *MariaDB) DSNAt(addr, user, db string) string {
	if user == "" {
		user = User
	}
	if db == "" {
		db = m.o.Database
	}
	password := m.config(user, db).Passwd
	if password != "" {
		user += ":" + password
	}
	return fmt.Sprintf("%s@tcp(%s)/%s", user, addr, db)
}

// Root returns a pool of connections as root on the default database. It is closed with the test, and allows several
// statements in one call.
func (m *MariaDB) Root() *sql.DB { return m.root }

// Exec runs a statement as root; the test ends when the server refuses it.
func (m *MariaDB) Exec(query string, args ...any) sql.Result {
	m.t.Helper()
	r, err := m.root.Exec(query, args...)
	if err != nil {
		m.t.Fatalf("%s: %v", query, err)
	}
	return r
}

// QueryInt returns the one integer that a query as root selects.
func (m *MariaDB) QueryInt(query string, args ...any) (n int64) {
	m.t.Helper()
	if err := m.root.QueryRow(query, args...).Scan(&n); err != nil {
		m.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// QueryString returns the one string that a query as root selects; NULL is "".
func (m *MariaDB) QueryString(query string, args ...any) string {
	m.t.Helper()
	var s sql.NullString
	if err := m.root.QueryRow(query, args...).Scan(&s); err != nil {
		m.t.Fatalf("%s: %v", query, err)
	}
	return s.String
}

// Kill ends the server with SIGKILL.
func (m *MariaDB) Kill() { m.t.Helper(); m.daemon.Kill() }

// Stop ends the server with SIGTERM and waits; that takes MariaDB about a second.
func (m *MariaDB) Stop() { m.t.Helper(); m.daemon.Stop() }

// Pause stops the process as a whole: connections stay open and hang, and the kernel still accepts new ones.
func (m *MariaDB) Pause() { m.t.Helper(); m.daemon.Pause() }

// Resume lets a paused server go on. What it was sent in between is carried out now.
func (m *MariaDB) Resume() { m.t.Helper(); m.daemon.Resume() }

// Start starts the server again on its port and data, and waits for it.
func (m *MariaDB) Start() {
	m.t.Helper()
	m.daemon.Start()
	m.daemon.Args = m.args // without the init file
}

// Restart is Stop and Start.
func (m *MariaDB) Restart() { m.t.Helper(); m.Stop(); m.Start() }

// StartWith starts a server that does not run with more arguments than before, also for later starts.
func (m *MariaDB) StartWith(args ...string) {
	m.t.Helper()
	m.args = append(m.args, args...)
	m.daemon.Args = m.args
	m.Start()
}

// ReadOnly sets or clears the global read_only, which binds User but not root.
func (m *MariaDB) ReadOnly(on bool) {
	m.t.Helper()
	v := 0
	if on {
		v = 1
	}
	m.Exec(fmt.Sprintf("SET GLOBAL read_only = %d", v))
}

// KillConnections ends every connection of User.
func (m *MariaDB) KillConnections() { m.t.Helper(); m.Exec("KILL CONNECTION USER " + User) }

// Save copies the data of a server that does not run, and returns the name of the copy for Restore.
func (m *MariaDB) Save() string { m.t.Helper(); return save(m.t, m.daemon, m.data) }

// Restore puts back what Save copied, while the server does not run.
func (m *MariaDB) Restore(saved string) { m.t.Helper(); restore(m.t, m.daemon, m.data, saved) }

// Dump returns the default database as SQL, as mariadb-dump writes it: each table dropped and made anew.
func (m *MariaDB) Dump() string {
	m.t.Helper()
	c := exec.Command(need(m.t, "mariadb-dump"), "--no-defaults", "-uroot", "-h127.0.0.1", fmt.Sprintf("-P%d", m.port),
		"--single-transaction", "--triggers", m.o.Database)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		m.t.Fatalf("mariadb-dump: %v\n%s", err, stderr.String())
	}
	return string(out)
}

// Load runs SQL, such as Dump returns, in the default database.
func (m *MariaDB) Load(sql string) {
	m.t.Helper()
	c := exec.Command(need(m.t, "mariadb"), "--no-defaults", "-uroot", "-h127.0.0.1", fmt.Sprintf("-P%d", m.port), m.o.Database)
	c.Stdin = strings.NewReader(sql)
	if out, err := c.CombinedOutput(); err != nil {
		m.t.Fatalf("mariadb: %v\n%s", err, out)
	}
}

// Move is one change of max_id that the server committed.
type Move struct {
	Tag      string
	From, To int64 // From is 0 when the row was new, To is 0 when it was deleted
}

// TraceGrants makes the server keep the history of a table of Leaf's form, as system versioning does: what it holds is
// what the store granted. A dump drops the history, and after a failover each server has its own.
//
// Triggers would not do: one that inserts anywhere makes the server answer 0 in place of LAST_INSERT_ID(expr).
func (m *MariaDB) TraceGrants(table string) {
	m.t.Helper()
	m.Exec(fmt.Sprintf("ALTER TABLE `%s` ADD SYSTEM VERSIONING", table))
}

// Moves returns every change of max_id since TraceGrants, tag by tag, in the order in which they were made. Two changes
// of a row within one microsecond come as one.
func (m *MariaDB) Moves(table string) []Move {
	m.t.Helper()
	rows, err := m.root.Query(fmt.Sprintf("SELECT biz_tag, max_id, ROW_END < NOW(6) + INTERVAL 1 DAY,"+
		" COALESCE(LEAD(ROW_START) OVER w = ROW_END, FALSE) FROM `%s` FOR SYSTEM_TIME ALL WINDOW w AS (PARTITION BY biz_tag ORDER BY ROW_START)"+
		" ORDER BY biz_tag, ROW_START", table))
	if err != nil {
		m.t.Fatalf("%v", err)
	}
	defer rows.Close()
	var moves []Move
	var last Move // To is what the row of Tag stood at, 0 when it was gone
	for rows.Next() {
		var tag string
		var now int64
		var ended, followed bool
		if err := rows.Scan(&tag, &now, &ended, &followed); err != nil {
			m.t.Fatalf("%v", err)
		}
		if tag != last.Tag {
			last = Move{Tag: tag}
		}
		if now != last.To {
			last = Move{tag, last.To, now}
			moves = append(moves, last)
		}
		if ended && !followed {
			last = Move{tag, now, 0}
			moves = append(moves, last)
		}
	}
	if err := rows.Err(); err != nil {
		m.t.Fatalf("%v", err)
	}
	return moves
}

// Replica is a server that follows another one by GTID. It is read-only until it is promoted.
type Replica struct {
	*MariaDB
	primary *MariaDB
}

// StartReplica starts a replica of a server that has MariaDBOptions.Binlog, and waits until it has caught up.
func StartReplica(t T, primary *MariaDB) *Replica {
	t.Helper()
	o := primary.o
	if !o.Binlog {
		t.Fatalf("the primary has no binary log: start it with MariaDBOptions.Binlog")
	}
	r := &Replica{MariaDB: StartMariaDB(t, o), primary: primary}
	r.ReadOnly(true)
	r.Follow(primary)
	r.Sync()
	return r
}

// Follow makes the server a replica of another one, from its own GTID position on.
func (m *MariaDB) Follow(primary *MariaDB) {
	m.t.Helper()
	m.Exec(fmt.Sprintf("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_USER='%s', MASTER_PASSWORD='%s',"+
		" MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1; START SLAVE", primary.port, replUser, replPassword))
}

// StopIO cuts the replica off from its primary: what is committed from now on does not reach it.
func (r *Replica) StopIO() { r.t.Helper(); r.Exec("STOP SLAVE IO_THREAD") }

// StartIO lets it fetch again.
func (r *Replica) StartIO() { r.t.Helper(); r.Exec("START SLAVE IO_THREAD") }

// StopSQL makes it fetch without applying.
func (r *Replica) StopSQL() { r.t.Helper(); r.Exec("STOP SLAVE SQL_THREAD") }

// StartSQL lets it apply again.
func (r *Replica) StartSQL() { r.t.Helper(); r.Exec("START SLAVE SQL_THREAD") }

// Sync waits until the replica has applied all that its primary has committed by now.
func (r *Replica) Sync() {
	r.t.Helper()
	pos := r.primary.QueryString("SELECT @@gtid_binlog_pos")
	if pos == "" {
		return
	}
	if n := r.QueryInt("SELECT MASTER_GTID_WAIT(?, 60)", pos); n != 0 {
		r.t.Fatalf("the replica did not reach %s within a minute", pos)
	}
}

// Promote makes the replica a primary of its own, with whatever it has.
func (r *Replica) Promote() {
	r.t.Helper()
	r.Exec("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0")
}
