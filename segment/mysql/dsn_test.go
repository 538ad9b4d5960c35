package mysql

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"redleaf/scripts/services"
)

func TestDSNIsCompleted(t *testing.T) {
	e, err := parseDSN("u:p@tcp(db:3306)/leaf", &Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := e.config
	if !c.InterpolateParams || c.ClientFoundRows || c.MultiStatements || !c.RejectReadOnly || !c.CheckConnLiveness {
		t.Errorf("switches: %+v", c)
	}
	if c.Timeout != time.Second || c.ReadTimeout != 3*time.Second || c.WriteTimeout != 3*time.Second {
		t.Errorf("timeouts %v %v %v", c.Timeout, c.ReadTimeout, c.WriteTimeout)
	}
	for name, want := range map[string]string{"autocommit": "1", "sql_mode": "'TRADITIONAL'", "innodb_lock_wait_timeout": "1", "lock_wait_timeout": "1"} {
		if c.Params[name] != want {
			t.Errorf("%s=%s, want %s", name, c.Params[name], want)
		}
	}
	if e.long.Params["lock_wait_timeout"] != "50" || e.long.ReadTimeout != 30*time.Minute {
		t.Errorf("the long connection has %v, %v", e.long.Params, e.long.ReadTimeout)
	}

	// What says the same is taken, and what is not ours is kept.
	e, err = parseDSN("u@tcp(db:3306)/leaf?autocommit=true&interpolateParams=true&clientFoundRows=false&readTimeout=9s&timeout=2s&innodb_lock_wait_timeout=5&sql_mode=%27STRICT_ALL_TABLES%27&charset=utf8mb4&net_write_timeout=30&tx_isolation=%27REPEATABLE-READ%27", &Options{Password: "from-file"})
	if err != nil {
		t.Fatal(err)
	}
	c = e.config
	if c.Passwd != "from-file" || c.ReadTimeout != 9*time.Second || c.Timeout != 2*time.Second || c.Params["innodb_lock_wait_timeout"] != "5" ||
		c.Params["sql_mode"] != "'STRICT_ALL_TABLES'" || c.Params["net_write_timeout"] != "30" {
		t.Errorf("%+v", c)
	}
}

func TestDSNIsRefused(t *testing.T) {
	for _, c := range []struct{ dsn, want string }{
		{"", "segment.mysql.dsn is empty"},
		{"  ", "segment.mysql.dsn is empty"},
		{"secret", "segment.mysql.dsn can't be read: invalid DSN"},
		{"root:secret", "segment.mysql.dsn can't be read"},
		{"root:secret/leaf", "segment.mysql.dsn can't be read. Its form is"},
		{"root:secret@tcp(db:3306", "segment.mysql.dsn can't be read"},
		{"root:secret@tcp(db:3306)/", "segment.mysql.dsn names no database"},
		{"root:secret@quic(db:3306)/leaf", "segment.mysql.dsn"},
		{"root:secret@tcp(db)/leaf?autocommit=0", "autocommit=0"},
		{"root:secret@tcp(db)/leaf?autocommit=off", "autocommit=off"},
		{"root:secret@tcp(db)/leaf?interpolateParams=false", "interpolateParams=false: each refill would take two round trips"},
		{"root:secret@tcp(db)/leaf?clientFoundRows=true", "clientFoundRows=true: a row that did not move"},
		{"root:secret@tcp(db)/leaf?multiStatements=true", "multiStatements=true"},
		{"root:secret@tcp(db)/leaf?rejectReadOnly=false", "rejectReadOnly=false"},
		{"root:secret@tcp(db)/leaf?checkConnLiveness=false", "checkConnLiveness=false"},
		{"root:secret@tcp(db)/leaf?parseTime=true", "parseTime=true"},
		{"root:secret@tcp(db)/leaf?readTimeout=0s", "readTimeout=0"},
		{"root:secret@tcp(db)/leaf?readTimeout=500ms", "readTimeout=500ms: it must be at least 2s"},
		{"root:secret@tcp(db)/leaf?writeTimeout=1s", "writeTimeout=1s: it must be at least 2s"},
		{"root:secret@tcp(db)/leaf?innodb_lock_wait_timeout=50", "innodb_lock_wait_timeout=50: it must be from 1 to 2 seconds"},
		{"root:secret@tcp(db)/leaf?lock_wait_timeout=x", "lock_wait_timeout=x"},
		{"root:secret@tcp(db)/leaf?sql_mode=%27%27", "sql_mode=, which is not strict"},
		{"root:secret@tcp(db)/leaf?sql_mode=ANSI", "sql_mode=ANSI, which is not strict"},
		{"root:secret@tcp(db)/leaf?charset=latin1", "charset=latin1: tags are UTF-8"},
		{"root:secret@tcp(db)/leaf?collation=latin1_bin", "collation=latin1_bin: tags are UTF-8"},
		{"root:secret@tcp(db)/leaf?tx_isolation=%27READ-COMMITTED%27", "tx_isolation=READ-COMMITTED"},
		{"root:secret@tcp(db)/leaf?tx_read_only=1", "tx_read_only=1"},
	} {
		_, err := Open(Options{DSNs: []string{c.dsn}, Log: zerolog.Nop()})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.dsn, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows the password: %v", err) // I13
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.pem")
	os.WriteFile(bad, []byte("no certificate"), 0o600)
	const dsn = "u:p@tcp(db:3306)/leaf"
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "segment.mysql.dsn is empty"},
		{Options{DSNs: []string{dsn}, Password: "other"}, "segment.mysql.dsn has a password and segment.mysql.password_file another one"},
		{Options{DSNs: []string{dsn}, Table: "a;b"}, `segment.mysql.table is "a;b"`},
		{Options{DSNs: []string{dsn}, Table: "a.b.c"}, `segment.mysql.table is "a.b.c"`},
		{Options{DSNs: []string{dsn}, Table: "redleaf_server"}, "which is Redleaf's own table"},
		{Options{DSNs: []string{dsn}, FailoverSkip: -1}, "segment.failover_skip is -1"},
		{Options{DSNs: []string{dsn, "u:p@tcp(db2:3306)/other"}}, "segment.mysql.dsn names different databases"},
		{Options{DSNs: []string{dsn}, TLSCA: filepath.Join(dir, "none.pem")}, "segment.mysql.tls_ca: open"},
		{Options{DSNs: []string{dsn}, TLSCA: bad}, "segment.mysql.tls_ca: " + bad + " holds no PEM certificate"},
		{Options{DSNs: []string{dsn}, TLSCert: bad}, "segment.mysql.tls_cert and segment.mysql.tls_key belong together"},
		{Options{DSNs: []string{dsn}, TLSCert: bad, TLSKey: bad}, "segment.mysql.tls_cert, tls_key"},
		{Options{DSNs: []string{dsn + "?tls=skip-verify"}, TLSCA: bad}, "segment.mysql.dsn has tls=skip-verify beside segment.mysql.tls_ca"},
	} {
		c.o.Log = zerolog.Nop()
		s, err := Open(c.o)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}

func TestTableNames(t *testing.T) {
	for in, want := range map[string]string{"leaf_alloc": "`db`.`leaf_alloc`", "other.T$1": "`other`.`T$1`"} {
		if got, err := parseTable(in, "db"); err != nil || got.String() != want {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	db := services.StartMariaDB(t, services.MariaDBOptions{TLS: true, Create: true})
	db.Exec(leafTable)
	db.Exec("ALTER USER '" + services.User + "'@'%' REQUIRE SSL")
	dsn := db.DSN("", "")

	o := options(dsn)
	o.TLSCA = db.TLS.CA
	s := open(t, o)
	awaitGrants(t, s)
	create(t, s, "a", 1)
	if g := reserve(t, s, "a", 10, 0); g.Lo != 1 {
		t.Errorf("%+v", g)
	}

	other := services.MakeTLS(t, t.TempDir())
	o.TLSCA = other.CA
	_, err := pulse(t, open(t, o))
	refused(t, err, "TLS certificate is not accepted", "segment.mysql.tls_ca")

	// Without TLS this account is refused, as with a wrong password.
	_, err = pulse(t, open(t, options(dsn)))
	refused(t, err, "1045", "segment.mysql.dsn")

	plain := options(shared.db.DSN("", database(t, leafTable)))
	plain.TLSCA = db.TLS.CA
	_, err = pulse(t, open(t, plain))
	refused(t, err, "server does not support TLS")
}
