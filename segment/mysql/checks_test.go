package mysql

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"redleaf/scripts/proxy"
	"redleaf/scripts/services"
	"redleaf/segment"
)

// log is a zerolog writer that can be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Each setting of a server that has made it repeat ranges is found at start, also when it is changed while the instance runs;
// and the instance goes on by itself when it is put right.
func TestServerSettings(t *testing.T) {
	t.Parallel()
	db := services.StartMariaDB(t, services.MariaDBOptions{Create: true})
	db.Exec(leafTable)
	db.Exec("INSERT INTO leaf_alloc (biz_tag, step) VALUES ('a', 10)")
	running := open(t, options(db.DSN("", "")))
	awaitGrants(t, running)
	floor := reserve(t, running, "a", 10, 0).Hi

	for _, c := range []struct {
		name, set, reset string
		refused          bool
		want             string
	}{
		{"flush 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 1", true, "innodb_flush_log_at_trx_commit=0"},
		{"read only", "SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0", false, "read-only (read_only=ON)"},
		{"read-only transactions", "SET GLOBAL tx_read_only = 1", "SET GLOBAL tx_read_only = 0", true, "tx_read_only"},
		{"MyISAM", "ALTER TABLE leaf_alloc ENGINE=MyISAM", "ALTER TABLE leaf_alloc ENGINE=InnoDB", true, "engine MyISAM: what it commits can be lost"},
		{"MEMORY", "ALTER TABLE leaf_alloc ENGINE=MEMORY", "ALTER TABLE leaf_alloc ENGINE=InnoDB", true, "engine MEMORY"},
		{"MyISAM server row", "ALTER TABLE redleaf_server ENGINE=MyISAM", "ALTER TABLE redleaf_server ENGINE=InnoDB", true, "table redleaf_server has the engine MyISAM"},
		{"INT", "ALTER TABLE leaf_alloc MODIFY max_id INT NOT NULL DEFAULT 1", "ALTER TABLE leaf_alloc MODIFY max_id BIGINT NOT NULL DEFAULT 1", true, "max_id of `leaf`.`leaf_alloc` is a int: ranges would repeat"},
		{"DOUBLE", "ALTER TABLE leaf_alloc MODIFY max_id DOUBLE NOT NULL DEFAULT 1", "ALTER TABLE leaf_alloc MODIFY max_id BIGINT NOT NULL DEFAULT 1", true, "max_id of `leaf`.`leaf_alloc` is a double"},
		{"step text", "ALTER TABLE leaf_alloc MODIFY step VARCHAR(20) NOT NULL", "ALTER TABLE leaf_alloc MODIFY step INT NOT NULL", true, "step of `leaf`.`leaf_alloc` is a varchar"},
		{"no key", "ALTER TABLE leaf_alloc DROP PRIMARY KEY", "ALTER TABLE leaf_alloc ADD PRIMARY KEY (biz_tag)", true, "no unique key on biz_tag alone"},
		{"wider key", "ALTER TABLE leaf_alloc DROP PRIMARY KEY, ADD PRIMARY KEY (biz_tag, step)", "ALTER TABLE leaf_alloc DROP PRIMARY KEY, ADD PRIMARY KEY (biz_tag)", true, "no unique key on biz_tag alone"},
		{"prefix key", "ALTER TABLE leaf_alloc DROP PRIMARY KEY, ADD UNIQUE KEY k (biz_tag(10))", "ALTER TABLE leaf_alloc DROP KEY k, ADD PRIMARY KEY (biz_tag)", true, "no unique key on biz_tag alone"},
		{"CHAR", "ALTER TABLE leaf_alloc MODIFY biz_tag CHAR(128) NOT NULL", "ALTER TABLE leaf_alloc MODIFY biz_tag VARCHAR(128) NOT NULL", true, "biz_tag of `leaf`.`leaf_alloc` is a char"},
		{"view", "RENAME TABLE leaf_alloc TO real_alloc; CREATE VIEW leaf_alloc AS SELECT * FROM real_alloc", "DROP VIEW leaf_alloc; RENAME TABLE real_alloc TO leaf_alloc", true, "is a view"},
		{"column missing", "ALTER TABLE leaf_alloc CHANGE max_id maxid BIGINT NOT NULL DEFAULT 1", "ALTER TABLE leaf_alloc CHANGE maxid max_id BIGINT NOT NULL DEFAULT 1", true, "1054"},
		{"table renamed", "RENAME TABLE leaf_alloc TO gone", "RENAME TABLE gone TO leaf_alloc", true, "1146"},
		{"no UPDATE right", "REVOKE UPDATE ON leaf.* FROM redleaf", "GRANT UPDATE ON leaf.* TO redleaf", true, "1142"},
		{"no rights", "REVOKE ALL PRIVILEGES ON leaf.* FROM redleaf", "GRANT SELECT, INSERT, UPDATE, CREATE ON leaf.* TO redleaf", true, "10"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.Exec(c.set)
			if strings.HasPrefix(c.set, "REVOKE") || strings.Contains(c.set, "tx_read_only") {
				db.KillConnections() // a session keeps these as they were when it began
			}
			fresh := open(t, options(db.DSN("", "")))
			_, err1 := pulse(t, running)
			_, err2 := pulse(t, fresh)
			_, err3 := running.Reserve(t.Context(), "a", 10, floor)
			for _, err := range []error{err1, err2, err3} {
				if c.refused {
					refused(t, err, c.want)
				} else {
					unavailable(t, err, c.want)
				}
			}
			db.Exec(c.reset)
			awaitGrants(t, running)
			awaitGrants(t, fresh)
			g := reserve(t, running, "a", 10, floor)
			if g.Lo < floor {
				t.Errorf("[%d, %d) after %d", g.Lo, g.Hi, floor-1)
			}
			floor = g.Hi
			floor = reserve(t, fresh, "a", 10, floor).Hi
		})
	}
}

func TestLoudSettings(t *testing.T) {
	t.Parallel()
	db := services.StartMariaDB(t, services.MariaDBOptions{Binlog: true, Create: true,
		Args: []string{"--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2"}})
	db.Exec(leafTable)
	log := &logBuffer{}
	o := options(db.DSN("", ""))
	o.Log = zerolog.New(log)
	s := open(t, o)
	awaitGrants(t, s)
	pulse(t, s)
	for _, want := range []string{"innodb_flush_log_at_trx_commit=2", "sync_binlog=0"} {
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%d lines about %s, want one: %s", n, want, log)
		}
	}
	root := &logBuffer{}
	o = options(db.DSN("root", ""))
	o.Log = zerolog.New(root)
	awaitGrants(t, open(t, o))
	if !strings.Contains(root.String(), "has SUPER") {
		t.Errorf("nothing about SUPER: %s", root)
	}
	if strings.Contains(log.String(), "has SUPER") {
		t.Errorf("the plain account has no SUPER: %s", log)
	}
}

// What the DSN sets and something in between drops is found on the connection.
func TestSettingsDropped(t *testing.T) {
	t.Parallel()
	name := database(t, leafTable)
	for _, c := range []struct{ from, to, want string }{
		{"autocommit = 1", "autocommit = 0", "autocommit is off"},
		{"'TRADITIONAL'", "'ANSI_QUOTES'", `sql_mode is "ANSI_QUOTES"`},
	} {
		p := proxy.Start(t, shared.db.Addr())
		p.Rewrite(func(d proxy.Dir, b []byte) []byte {
			if d == proxy.ToServer {
				b = bytes.ReplaceAll(b, []byte(c.from), []byte(c.to))
				b = bytes.ReplaceAll(b, []byte(strings.ReplaceAll(c.from, " ", "")), []byte(strings.ReplaceAll(c.to, " ", "")))
			}
			return b
		})
		_, err := pulse(t, open(t, options(shared.db.DSNAt(p.Addr(), "", name))))
		refused(t, err, c.want)
	}
}

// Accounts and databases that are wrong in the DSN.
func TestLogin(t *testing.T) {
	t.Parallel()
	name := database(t, leafTable)
	good := shared.db.DSN("", name)
	for _, c := range []struct{ dsn, want string }{
		{strings.Replace(good, ":"+services.Password, ":wrong-password", 1), "1045"},
		{strings.Replace(good, services.User+":", "nobody:", 1), "1045"},
		{strings.Replace(good, "/"+name, "/none", 1), "104"},
	} {
		log := &logBuffer{}
		o := options(c.dsn)
		o.Log = zerolog.New(log)
		s := open(t, o)
		for range 3 {
			_, err := pulse(t, s)
			refused(t, err, c.want, "segment.mysql.dsn")
			_, err = s.Reserve(t.Context(), "a", 1, 0)
			refused(t, err, c.want)
		}
		if n := strings.Count(log.String(), `"level":"error"`); n != 1 {
			t.Errorf("%d lines, want one: %s", n, log)
		}
		if strings.Contains(log.String(), services.Password) || strings.Contains(log.String(), "wrong-password") {
			t.Errorf("the log shows a password: %s", log) // I13
		}
	}
	// The password may come from elsewhere; and a server that wants another one is found again when it is put right.
	o := options(strings.Replace(good, ":"+services.Password, "", 1))
	o.Password = services.Password
	awaitGrants(t, open(t, o))
	o.DSNs[0] = services.User + "@unix(" + shared.db.Dir() + "/s)/" + name
	awaitGrants(t, open(t, o))
}

func TestNotADatabase(t *testing.T) {
	t.Parallel()
	redis := services.StartRedis(t)
	_, err := pulse(t, open(t, options("u:p@tcp("+redis.Addr()+")/leaf")))
	unavailable(t, err, redis.Addr())
	_, err = pulse(t, open(t, options("u:p@tcp(127.0.0.1:1)/leaf")))
	unavailable(t, err, "127.0.0.1:1", "connection refused", "segment.mysql.dsn")
	_, err = pulse(t, open(t, options("u:p@tcp(no-such-host.invalid:3306)/leaf")))
	unavailable(t, err, "no-such-host.invalid")
}

// rewriteID makes a proxy change the insert id of the reply to each UPDATE with LAST_INSERT_ID.
func rewriteID(p *proxy.Proxy, change func(id int64) int64) {
	var mu sync.Mutex
	armed := false
	p.Rewrite(func(d proxy.Dir, b []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		if d == proxy.ToServer {
			armed = armed || bytes.Contains(b, []byte("LAST_INSERT_ID"))
			return b
		}
		if !armed || len(b) < 7 || b[4] != 0 || b[5] != 1 {
			return b
		}
		armed = false
		size, at := 1, 6
		id := int64(b[at])
		switch b[at] {
		case 0xfc:
			size, id = 3, int64(binary.LittleEndian.Uint16(b[at+1:]))
		case 0xfd:
			size, id = 4, int64(b[at+1])|int64(b[at+2])<<8|int64(b[at+3])<<16
		case 0xfe:
			size, id = 9, int64(binary.LittleEndian.Uint64(b[at+1:]))
		}
		n := int(b[0]) | int(b[1])<<8 | int(b[2])<<16
		body := append([]byte{0, 1, 0xfe}, binary.LittleEndian.AppendUint64(nil, uint64(change(id)))...)
		body = append(body, b[at+size:4+n]...)
		return append(append([]byte{byte(len(body)), 0, 0, b[3]}, body...), b[4+n:]...)
	})
}

// leaf R10: a proxy that changes the insert id is found at start, and no ID ever comes from it.
func TestInsertIDChanged(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(int64) int64{
		"0":         func(int64) int64 { return 0 },
		"one lower": func(id int64) int64 { return id - 1 },
		"negative":  func(id int64) int64 { return -id },
		"fixed":     func(int64) int64 { return 42 },
	} {
		t.Run(name, func(t *testing.T) {
			db := database(t, leafTable)
			sqlOn(t, shared.db, "INSERT INTO "+db+".leaf_alloc (biz_tag, max_id, step) VALUES ('a', 5000, 10)")
			p := proxy.Start(t, shared.db.Addr())
			rewriteID(p, change)
			s := open(t, options(shared.db.DSNAt(p.Addr(), "", db)))
			for range 3 {
				_, err := pulse(t, s)
				refused(t, err, "LAST_INSERT_ID", "connect to the database directly")
				_, err = s.Reserve(t.Context(), "a", 10, 0)
				refused(t, err, "LAST_INSERT_ID")
			}
			if n := shared.db.QueryInt("SELECT max_id FROM " + db + ".leaf_alloc"); n != 5000 {
				t.Errorf("the row was burnt to %d", n)
			}
			p.Rewrite(nil)
			p.CloseAll()
			awaitGrants(t, s)
			if g := reserve(t, s, "a", 10, 0); g.Lo != 5000 {
				t.Errorf("without the proxy's change: [%d, %d)", g.Lo, g.Hi)
			}

			// One that begins to change it later: what lies below the floor is seen at once, and nothing more is tried.
			rewriteID(p, change)
			moves := 0
			for range 5 {
				g, err := s.Reserve(t.Context(), "a", 10, 5010)
				if err == nil && (g.Lo < 5010 || name != "one lower") {
					t.Errorf("granted [%d, %d)", g.Lo, g.Hi)
				}
				if err == nil {
					break
				}
				refused(t, err, "LAST_INSERT_ID")
				moves++
				_, err = pulse(t, s)
				refused(t, err, "LAST_INSERT_ID")
			}
			if n := shared.db.QueryInt("SELECT max_id FROM " + db + ".leaf_alloc"); n > 5030 {
				t.Errorf("the row was burnt to %d by %d refills", n, moves)
			}
		})
	}
}

// leaf R10: a proxy that refuses the statement (Vitess answers 1235).
func TestInsertIDRefused(t *testing.T) {
	t.Parallel()
	name := database(t, leafTable)
	sqlOn(t, shared.db, "INSERT INTO "+name+".leaf_alloc (biz_tag, max_id, step) VALUES ('a', 5000, 10)")
	p := proxy.Start(t, shared.db.Addr())
	var mu sync.Mutex
	armed := false
	p.Rewrite(func(d proxy.Dir, b []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		if d == proxy.ToServer {
			armed = bytes.Contains(b, []byte("LAST_INSERT_ID"))
			return b
		}
		if !armed {
			return b
		}
		armed = false
		body := append([]byte{0xff, 0xd3, 0x04}, "#42000LAST_INSERT_ID(expr) is not supported"...)
		return append([]byte{byte(len(body)), 0, 0, 1}, body...)
	})
	s := open(t, options(shared.db.DSNAt(p.Addr(), "", name)))
	for range 3 {
		_, err := pulse(t, s)
		refused(t, err, "1235", "connect to the database directly")
		_, err = s.Reserve(t.Context(), "a", 10, 0)
		refused(t, err, "1235")
	}
	if n := shared.db.QueryInt("SELECT max_id FROM " + name + ".leaf_alloc"); n != 5000 {
		t.Errorf("the row was burnt to %d", n)
	}
}

// A server row is optional: without the right to make it there are floors alone, said aloud.
func TestFloorsOnly(t *testing.T) {
	t.Parallel()
	db := services.StartMariaDB(t, services.MariaDBOptions{}) // no CREATE
	db.Exec(leafTable)
	log := &logBuffer{}
	o := options(db.DSN("", ""))
	o.Log = zerolog.New(log)
	s := open(t, o)
	p := awaitGrants(t, s)
	if p.History != "dsn "+db.Addr()+"/leaf" || p.Skip != 0 || p.Epoch != 0 {
		t.Errorf("%+v", p)
	}
	if n := strings.Count(log.String(), "floors of this instance alone"); n != 1 {
		t.Errorf("%d lines: %s", n, log)
	}
	create(t, s, "a", 1)
	g := reserve(t, s, "a", 10, 0)
	if ok, err := s.GiveBack(t.Context(), "a", segment.Span{Lo: 5, Hi: 11}, g.Server); !ok || err != nil {
		t.Errorf("GiveBack: %v, %v", ok, err)
	}
	db.Exec("UPDATE leaf_alloc SET max_id = 3")
	_, err := s.Reserve(t.Context(), "a", 10, 5)
	var re *segment.RegressedError
	if !errors.As(err, &re) || re.Row != 3 {
		t.Errorf("below the floor: %v", err)
	}

	// The operator makes the table: the guard is there within minutes, or at the next start.
	db.Exec("CREATE TABLE redleaf_server (name VARCHAR(64) PRIMARY KEY, history VARCHAR(64) NOT NULL, epoch BIGINT NOT NULL, beat BIGINT NOT NULL, base BIGINT NOT NULL, identity VARCHAR(255) NOT NULL, since DATETIME(6)) ENGINE=InnoDB")
	again := open(t, o)
	if p := awaitGrants(t, again); strings.HasPrefix(p.History, "dsn ") || p.Skip != o.FailoverSkip {
		t.Errorf("with the table: %+v", p)
	}
	s.mu.Lock()
	s.without = time.Now().Add(-time.Hour)
	s.mu.Unlock()
	if p := awaitGrants(t, s); strings.HasPrefix(p.History, "dsn ") || p.Epoch != 0 {
		t.Errorf("with the table, later: %+v", p)
	}
}

// An account that loses its right to the server row while it is guarded is refused: that is no way out of the guard.
func TestGuardIsNotLost(t *testing.T) {
	t.Parallel()
	db := services.StartMariaDB(t, services.MariaDBOptions{})
	db.Exec(leafTable)
	db.Exec("CREATE USER plain@'%' IDENTIFIED BY 'plain-secret'")
	db.Exec("GRANT SELECT, INSERT, UPDATE ON leaf.leaf_alloc TO plain")
	db.Exec(strings.ReplaceAll(createServerTable, "%s", "redleaf_server"))
	db.Exec("GRANT SELECT, INSERT, UPDATE ON leaf.redleaf_server TO plain")
	s := open(t, options(strings.Replace(db.DSN("", ""), services.User+":"+services.Password, "plain:plain-secret", 1)))
	awaitGrants(t, s)
	create(t, s, "a", 1)
	db.Exec("REVOKE SELECT, INSERT, UPDATE ON leaf.redleaf_server FROM plain")
	_, err := pulse(t, s)
	refused(t, err, "1142")
	_, err = s.Reserve(t.Context(), "a", 1, 0)
	refused(t, err, "1142")
}

func logTo(l *logBuffer) zerolog.Logger { return zerolog.New(l) }
