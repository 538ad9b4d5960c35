package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"redleaf/segment"
)

const (
	connectLimit = 10 * time.Second // for one connection with all its checks; readTimeout bounds each step
	longLimit    = 30 * time.Minute // for one statement of the skip
	failHold     = 300 * time.Millisecond
)

// connector opens the connections of the pool, each checked before anything is asked of it. With several endpoints the first
// that passes is taken: all of one synchronous cluster, and writing through one node avoids conflicts between them.
type connector struct {
	s    *Store
	long bool
}

func (c *connector) Driver() driver.Driver { return mysql.MySQLDriver{} }

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	s := c.s
	// Ten thousand cold tags that find the database refusing must not try ten thousand logins: the server locks out a host
	// that does.
	if !c.long {
		s.mu.Lock()
		err, at := s.connErr, s.connErrAt
		s.mu.Unlock()
		if err != nil && time.Since(at) < failHold {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	var worst error
	for i, e := range s.endpoints {
		conn, err := c.open(ctx, e)
		if err == nil {
			conn.node = i
			s.mu.Lock()
			s.connErr, s.node = nil, i
			s.mu.Unlock()
			return conn, nil
		}
		err = s.classify(err)
		if len(s.endpoints) > 1 {
			s.warnAs("node "+e.addr, fmt.Sprintf("node %s is passed over: %v", e.addr, err))
		}
		// Of several faults, the one that waiting may cure is the better news.
		var un *segment.UnavailableError
		if worst == nil || errors.As(err, &un) {
			worst = err
		}
	}
	if ctx.Err() == nil && !c.long {
		s.mu.Lock()
		s.connErr, s.connErrAt = worst, time.Now()
		s.mu.Unlock()
	}
	return nil, worst
}

func (c *connector) open(ctx context.Context, e endpoint) (*conn, error) {
	cfg := e.config
	if c.long {
		cfg = e.long
	}
	inner, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	raw, err := inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	conn := &conn{Conn: raw, s: c.s, key: e.addr, at: time.Now()}
	if err := conn.check(ctx, false); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// conn is a checked connection to one server.
type conn struct {
	driver.Conn
	s       *Store
	key     string // address, for the probe
	server  string // identity of the server or cluster behind it
	cluster bool   // of a synchronous cluster
	at      time.Time
	node    int  // index of its endpoint
	broken  bool // must not be used again
}

// What database/sql may ask of a connection is passed on.
func (c *conn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, q, args)
}

func (c *conn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, q, args)
}

func (c *conn) PrepareContext(ctx context.Context, q string) (driver.Stmt, error) {
	return c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, q)
}

func (c *conn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
}

func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	return c.Conn.(driver.NamedValueChecker).CheckNamedValue(v)
}

func (c *conn) Ping(ctx context.Context) error { return c.Conn.(driver.Pinger).Ping(ctx) }

// ResetSession is asked before a pooled connection is used again. One from before something changed is opened anew.
func (c *conn) ResetSession(ctx context.Context) error {
	if c.stale() {
		return driver.ErrBadConn
	}
	return c.Conn.(driver.SessionResetter).ResetSession(ctx)
}

func (c *conn) IsValid() bool { return !c.stale() && c.Conn.(driver.Validator).IsValid() }

func (c *conn) stale() bool {
	if c.broken {
		return true
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	// Once an earlier node answers again, this instance writes through that one alone: writes of one tag through two nodes only
	// get into each other's way.
	return c.at.Before(c.s.connsSince) || c.node > c.s.node
}

// query reads all rows of a small result.
func (c *conn) query(ctx context.Context, q string, args ...any) ([][]cell, error) {
	named := make([]driver.NamedValue, len(args))
	for i, a := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	rows, err := c.QueryContext(ctx, q, named)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out [][]cell
	vals := make([]driver.Value, len(rows.Columns()))
	for {
		if err := rows.Next(vals); err == io.EOF {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		row := make([]cell, len(vals))
		for i, v := range vals {
			switch v := v.(type) {
			case nil:
				row[i].null = true
			case []byte:
				row[i].text = string(v)
			default:
				row[i].text = fmt.Sprint(v)
			}
		}
		out = append(out, row)
	}
}

type cell struct {
	text string
	null bool
}

func (c *conn) exec(ctx context.Context, q string) error {
	_, err := c.ExecContext(ctx, q, nil)
	return err
}

// vars reads SHOW output into a map with lower-case names.
func (c *conn) vars(ctx context.Context, q string) (map[string]string, error) {
	rows, err := c.query(ctx, q)
	if err != nil {
		return nil, err
	}
	m := make(map[string]string, len(rows))
	for _, r := range rows {
		m[strings.ToLower(r[0].text)] = r[1].text
	}
	return m, nil
}

const showVariables = "SHOW VARIABLES WHERE Variable_name IN ('autocommit','sql_mode','innodb_flush_log_at_trx_commit','sync_binlog'," +
	"'log_bin','read_only','super_read_only','innodb_read_only','tx_read_only','transaction_read_only','version','server_id','server_uid','server_uuid','hostname'," +
	"'port','wsrep_on','group_replication_group_name')"

const showStatus = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Uptime','wsrep_cluster_state_uuid','wsrep_cluster_status','wsrep_ready')"

// check looks at everything that has made a database repeat a range, and finds out which server this is. It is run on every new
// connection and with every heartbeat, since a server can be changed under an open connection. What belongs to the table and
// not to the session is looked at once for connections that are opened together, unless all is set.
func (c *conn) check(ctx context.Context, all bool) error {
	v, err := c.vars(ctx, showVariables)
	if err != nil {
		return err
	}
	st, err := c.vars(ctx, showStatus)
	if err != nil {
		return err
	}
	if err := c.identify(ctx, v, st); err != nil {
		return err
	}
	if err := c.session(ctx, v); err != nil {
		return err
	}
	if c.s.schemaDue(c.key) || all {
		if err := c.schema(ctx); err != nil {
			c.s.schemaFailed(c.key)
			return err
		}
		c.privileges(ctx)
	}
	if up, err := strconv.ParseFloat(st["uptime"], 64); err == nil {
		c.s.sawUptime(time.Duration(up * float64(time.Second)))
	}
	return nil
}

// identify finds the server's own name, which no backup and no replica takes along.
func (c *conn) identify(ctx context.Context, v, st map[string]string) error {
	switch {
	case isTrue(v["wsrep_on"]):
		if st["wsrep_cluster_status"] != "Primary" || !isTrue(st["wsrep_ready"]) {
			return waitf("node %s of the Galera cluster is not ready (wsrep_cluster_status %s, wsrep_ready %s)", c.key, st["wsrep_cluster_status"], st["wsrep_ready"])
		}
		c.server, c.cluster = "galera:"+st["wsrep_cluster_state_uuid"], true
	case v["group_replication_group_name"] != "" && c.inGroup(ctx):
		c.server, c.cluster = "group:"+v["group_replication_group_name"], true
	case v["server_uuid"] != "":
		c.server = "mysql:" + v["server_uuid"]
	case v["server_uid"] != "":
		c.server = "mariadb:" + v["server_uid"] + "/" + v["server_id"]
	default:
		c.server = "host:" + v["hostname"] + ":" + v["port"] + "/" + v["server_id"]
		c.s.warn(fmt.Sprintf("the database at %s has neither server_uuid nor server_uid: a failover is seen by host name, port and server_id alone (%s)", c.key, c.server))
	}
	if len(c.s.endpoints) == 1 {
		return nil
	}
	if !c.cluster {
		return refusef("segment.mysql.dsn has several addresses, and %s is no node of a synchronous cluster (Galera, Group Replication): a replica that lags would grant ranges again. Give one address, and let it move at a failover", c.key)
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.cluster == "" {
		c.s.cluster = c.server
	}
	if c.s.cluster != c.server {
		return refusef("segment.mysql.dsn has several addresses, and %s belongs to the cluster %s while the others belong to %s: two clusters would grant the same ranges. Name nodes of one cluster, or restart after the cluster was made anew", c.key, c.server, c.s.cluster)
	}
	return nil
}

// inGroup says whether the server is a working member of its Group Replication group.
func (c *conn) inGroup(ctx context.Context) bool {
	rows, err := c.query(ctx, "SELECT MEMBER_STATE FROM performance_schema.replication_group_members WHERE MEMBER_ID = @@server_uuid")
	return err == nil && len(rows) == 1 && rows[0][0].text == "ONLINE"
}

func on(v string) bool { return v != "" && v != "0" && !strings.EqualFold(v, "OFF") }

// session checks what a session and its server do with a write.
func (c *conn) session(ctx context.Context, v map[string]string) error {
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if on(v[name]) {
			// Also for an account that could write all the same: a replica would be changed on its own.
			return waitf("the database at %s is read-only (%s=%s): a replica, or a failover in progress", c.key, name, v[name])
		}
	}
	for _, name := range []string{"tx_read_only", "transaction_read_only"} {
		if on(v[name]) {
			return refusef("sessions of the database at %s are read-only (%s=%s): clear it", c.key, name, v[name])
		}
	}
	if !on(v["autocommit"]) {
		return refusef("autocommit is off in sessions of the database at %s, although segment.mysql.dsn sets it: something in between drops the setting, and every grant would be taken back. Connect directly", c.key)
	}
	if !strict(v["sql_mode"]) {
		return refusef("sql_mode is %q in sessions of the database at %s, although segment.mysql.dsn sets a strict one: something in between drops the setting, and a full column would repeat a range. Connect directly", v["sql_mode"], c.key)
	}
	switch v["innodb_flush_log_at_trx_commit"] {
	case "0":
		if !c.cluster {
			return refusef("the database at %s has innodb_flush_log_at_trx_commit=0: after a crash it forgets up to a second of grants, and they would be made again. SET GLOBAL innodb_flush_log_at_trx_commit = 1", c.key)
		}
	case "2":
		c.s.warn(fmt.Sprintf("the database at %s has innodb_flush_log_at_trx_commit=2: a power cut makes it forget up to a second of grants. Set it to 1", c.key))
	}
	if on(v["log_bin"]) && v["sync_binlog"] != "1" && !c.cluster {
		c.s.warn(fmt.Sprintf("the database at %s writes a binary log with sync_binlog=%s: after a crash its replicas may lack grants. Set it to 1", c.key, v["sync_binlog"]))
	}
	// A node that has not yet applied what another committed shows an older beat: it must not look like one that went back.
	switch {
	case strings.HasPrefix(c.server, "galera:"):
		if err := c.exec(ctx, "SET SESSION wsrep_sync_wait = 7"); err != nil {
			return err
		}
	case strings.HasPrefix(c.server, "group:"):
		if err := c.exec(ctx, "SET SESSION group_replication_consistency = 'BEFORE'"); err != nil {
			return err
		}
	}
	// The guard reads redleaf_server under a lock; with READ COMMITTED servers may read it as it was when the statement began.
	return c.exec(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
}

// columns of the table that are used where they exist.
type columns struct {
	description, updated bool
	binary               bool // biz_tag is ordered by bytes
	rows                 int64
}

// schema checks engine, columns and key of the table.
func (c *conn) schema(ctx context.Context) error {
	t := c.s.table
	// Asked first, since information_schema is silent about what an account may not see.
	if _, err := c.query(ctx, "SELECT biz_tag, max_id, step FROM "+t.String()+" WHERE 1 = 0"); err != nil {
		return err
	}
	rows, err := c.query(ctx, "SELECT ENGINE, TABLE_TYPE, TABLE_ROWS, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME IN (?, ?)", t.db, t.name, serverTable)
	if err != nil {
		return err
	}
	var cols columns
	for _, r := range rows {
		if r[1].text == "VIEW" {
			return refusef("segment.mysql.table %s is a view: name the table itself", t)
		}
		if !strings.EqualFold(r[0].text, "InnoDB") {
			return refusef("the table %s has the engine %s: what it commits can be lost. ALTER TABLE %s ENGINE=InnoDB", r[3].text, r[0].text, quote(r[3].text))
		}
		if r[3].text != serverTable {
			cols.rows, _ = strconv.ParseInt(r[2].text, 10, 64)
		}
	}
	rows, err = c.query(ctx, "SELECT COLUMN_NAME, DATA_TYPE, COLLATION_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", t.db, t.name)
	if err != nil {
		return err
	}
	for _, r := range rows {
		kind := strings.ToLower(r[1].text)
		switch strings.ToLower(r[0].text) {
		case "biz_tag":
			switch kind {
			case "varchar":
				cols.binary = strings.HasSuffix(r[2].text, "_bin")
			case "varbinary":
				cols.binary = true
			default:
				return refusef("column biz_tag of %s is a %s: it must be VARCHAR or VARBINARY", t, kind)
			}
		case "max_id":
			if kind != "bigint" {
				return refusef("column max_id of %s is a %s: ranges would repeat at its end. ALTER TABLE %s MODIFY max_id BIGINT NOT NULL DEFAULT 1", t, kind, t)
			}
		case "step":
			if !strings.HasSuffix(kind, "int") {
				return refusef("column step of %s is a %s: it must be an INT or BIGINT", t, kind)
			}
		case "description":
			cols.description = true
		case "update_time":
			cols.updated = kind == "timestamp" || kind == "datetime"
		}
	}
	rows, err = c.query(ctx, "SELECT INDEX_NAME, MAX(NON_UNIQUE), COUNT(*), MAX(LOWER(COLUMN_NAME)), MAX(SUB_PART) FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? GROUP BY INDEX_NAME", t.db, t.name)
	if err != nil {
		return err
	}
	unique := false
	for _, r := range rows {
		unique = unique || r[1].text == "0" && r[2].text == "1" && r[3].text == "biz_tag" && r[4].null
	}
	if !unique {
		return refusef("the table %s has no unique key on biz_tag alone: two rows of one tag would grant ranges side by side. ALTER TABLE %s ADD PRIMARY KEY (biz_tag)", t, t)
	}
	c.s.mu.Lock()
	c.s.cols = cols
	c.s.mu.Unlock()
	return nil
}

// privileges warns of an account that read_only does not bind, and of one that can't do what the settings ask for.
func (c *conn) privileges(ctx context.Context) {
	rows, err := c.query(ctx, "SHOW GRANTS FOR CURRENT_USER()")
	if err != nil {
		return
	}
	insert := false
	for _, r := range rows {
		g := strings.ToUpper(r[0].text)
		g, _, _ = strings.Cut(g, " TO ")
		insert = insert || strings.Contains(g, "INSERT") || strings.Contains(g, "ALL PRIVILEGES") || !strings.Contains(g, " ON ") // a role
		all, global := strings.Contains(g, "ALL PRIVILEGES"), strings.Contains(g, "ON *.*")
		if global && (all || strings.Contains(g, "SUPER") || strings.Contains(g, "READ_ONLY ADMIN") || strings.Contains(g, "READ ONLY ADMIN")) {
			c.s.warn("the account of segment.mysql.dsn has SUPER: it writes on a read-only replica too, where ranges are lost. Use a plain account with SELECT, INSERT and UPDATE on the tables")
		}
	}
	if c.s.autoCreate && !insert {
		c.s.warn("the account of segment.mysql.dsn has no INSERT: segment.auto_create can make no tag. GRANT it, or set segment.auto_create = []")
	}
}

// probe finds out whether the server, and whatever stands before it, returns the value of LAST_INSERT_ID(expr) from an UPDATE.
// Proxies have returned 0, or another statement's value, and then every range would be a wrong one. The row stays as it is.
func (c *conn) probe(ctx context.Context) error {
	direct := "Redleaf needs LAST_INSERT_ID(expr) of an UPDATE back: connect to the database directly, not through a proxy that changes it"
	// Whatever happens to the caller, the transaction must end: the next statement on this connection would be part of it, and
	// a grant that is never committed is granted again. A connection that can't be sure of it is closed.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ioTimeout)
		defer cancel()
		if c.exec(ctx, "ROLLBACK") != nil {
			c.broken = true
		}
	}()
	if err := c.exec(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	rows, err := c.query(ctx, "SELECT beat FROM "+c.s.table.server()+" WHERE name = ? FOR UPDATE", c.s.table.name)
	if err != nil || len(rows) != 1 {
		return err // no row: there will be another probe once it is made
	}
	beat, err := strconv.ParseInt(rows[0][0].text, 10, 64)
	if err != nil {
		return refusef("column beat of %s holds %.40q: it must be a number", c.s.table.server(), rows[0][0].text)
	}
	// A number that no other statement can have left behind.
	add := 1 + rand.Int64N(1<<40)
	res, err := c.ExecContext(ctx, "UPDATE "+c.s.table.server()+" SET beat = LAST_INSERT_ID(beat + ?) WHERE name = ?",
		[]driver.NamedValue{{Ordinal: 1, Value: add}, {Ordinal: 2, Value: c.s.table.name}})
	if n := number(err); n == errOutOfRange || n == 1064 || n == 1305 {
		return refusef("the database at %s does not carry out LAST_INSERT_ID(expr): %w. %s", c.key, err, direct)
	}
	if err != nil {
		return err
	}
	id, err := res.LastInsertId()
	if err != nil || id != beat+add {
		return refusef("the database at %s answers LAST_INSERT_ID %d where it is %d. %s", c.key, id, beat+add, direct)
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return refusef("the database at %s says that %d rows changed where it is 1. %s", c.key, n, direct)
	}
	return nil
}
