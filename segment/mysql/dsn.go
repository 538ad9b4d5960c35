package mysql

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Limits of one connection. Those of the server are shorter than what the client waits: an abandoned statement would go on
// waiting in the server, be carried out later and hold a connection meanwhile.
const (
	dialTimeout  = time.Second
	ioTimeout    = 3 * time.Second
	minIOTimeout = 2 * time.Second
	lockWait     = 1 // seconds
)

// switches are the DSN parameters that have one right value here, with the reason for people who set the other one.
var switches = []struct {
	name  string
	right bool
	why   string
}{
	{"interpolateParams", true, "each refill would take two round trips"},
	{"clientFoundRows", false, "a row that did not move would count as one that did, and its range be handed out twice"},
	{"multiStatements", false, "it is not needed, and makes any mistake in quoting worse"},
	{"checkConnLiveness", true, "idle connections would be found broken one request too late"},
	{"rejectReadOnly", true, "after a failover the old primary, now read-only, would be asked for ever"},
	{"allowAllFiles", false, "the server could read files of this machine"},
	{"columnsWithAlias", false, "it is not needed"},
	{"parseTime", false, "it is not needed, and zero dates would be errors"},
}

// limits are the session variables that bound a wait in the server.
var limits = []string{"innodb_lock_wait_timeout", "lock_wait_timeout"}

// endpoint is one DSN, ready to connect.
type endpoint struct {
	config *mysql.Config // for the short statements
	long   *mysql.Config // for the skip, which may take minutes
	addr   string
}

// parseDSN reads one DSN, adds what is required, and refuses what contradicts it. No error holds any part of the DSN that could
// be a password (I13).
func parseDSN(dsn string, o *Options) (endpoint, error) {
	const setting = "segment.mysql.dsn"
	if strings.TrimSpace(dsn) == "" {
		return endpoint{}, errors.New(setting + " is empty: set it to user:password@tcp(host:3306)/database")
	}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		// The driver's words may quote what it took for a network or an address, and that may be a password.
		why := ""
		if strings.HasPrefix(err.Error(), "invalid DSN: ") {
			why = ": " + err.Error()
		}
		return endpoint{}, fmt.Errorf("%s can't be read%s. Its form is user:password@tcp(host:3306)/database?parameter=value", setting, why)
	}
	if cfg.DBName == "" {
		return endpoint{}, errors.New(setting + " names no database: write it after the slash, …@tcp(host:3306)/database")
	}
	if cfg.Net != "tcp" && cfg.Net != "unix" {
		return endpoint{}, errors.New(setting + " has an unknown network: write tcp(host:port) or unix(/path)")
	}
	if o.Password != "" {
		if cfg.Passwd != "" && cfg.Passwd != o.Password {
			return endpoint{}, errors.New(setting + " has a password and segment.mysql.password_file another one: give one of them")
		}
		cfg.Passwd = o.Password
	}

	// What was written explicitly, as opposed to the driver's defaults.
	given := url.Values{}
	if i := strings.LastIndexByte(dsn, '/'); i >= 0 {
		if _, query, ok := strings.Cut(dsn[i+1:], "?"); ok {
			for _, p := range strings.Split(query, "&") {
				if k, v, ok := strings.Cut(p, "="); ok {
					given.Set(k, v)
				}
			}
		}
	}
	for _, s := range switches {
		if v := given.Get(s.name); v != "" && isTrue(v) != s.right {
			return endpoint{}, fmt.Errorf("%s has %s=%s: %s. Leave the parameter out", setting, s.name, v, s.why)
		}
	}
	cfg.InterpolateParams, cfg.CheckConnLiveness, cfg.RejectReadOnly = true, true, true
	if cs := given.Get("charset"); cs != "" && cs != "utf8mb4" {
		return endpoint{}, fmt.Errorf("%s has charset=%s: tags are UTF-8. Leave the parameter out", setting, cs)
	}
	if cfg.Collation != "" && !strings.HasPrefix(cfg.Collation, "utf8mb4_") {
		return endpoint{}, fmt.Errorf("%s has collation=%s: tags are UTF-8. Leave the parameter out", setting, cfg.Collation)
	}

	if cfg.Timeout == 0 {
		cfg.Timeout = dialTimeout
	}
	for name, d := range map[string]*time.Duration{"readTimeout": &cfg.ReadTimeout, "writeTimeout": &cfg.WriteTimeout} {
		switch {
		case *d == 0 && given.Has(name):
			return endpoint{}, fmt.Errorf("%s has %s=0: a database that hangs would never be given up. Leave the parameter out", setting, name)
		case *d == 0:
			*d = ioTimeout
		case *d < minIOTimeout:
			return endpoint{}, fmt.Errorf("%s has %s=%v: it must be at least %v, longer than the server waits for a lock", setting, name, *d, minIOTimeout)
		}
	}

	if cfg.Params == nil {
		cfg.Params = map[string]string{}
	}
	for name, v := range cfg.Params {
		v = strings.Trim(v, `'"`)
		switch lower := strings.ToLower(name); lower {
		case "autocommit":
			if !isTrue(v) {
				return endpoint{}, fmt.Errorf("%s has autocommit=%s: the server would take every grant back at the end of the connection. Leave the parameter out", setting, v)
			}
			delete(cfg.Params, name)
		case "sql_mode":
			if !strict(v) {
				return endpoint{}, fmt.Errorf("%s has sql_mode=%s, which is not strict: a column that is too small would stick at its end and repeat a range. Leave the parameter out", setting, v)
			}
			delete(cfg.Params, name)
			cfg.Params["sql_mode"] = "'" + v + "'"
		case limits[0], limits[1]:
			n, err := strconv.Atoi(v)
			if most := int(cfg.ReadTimeout/time.Second) - 1; err != nil || n < 1 || n > most {
				return endpoint{}, fmt.Errorf("%s has %s=%s: it must be from 1 to %d seconds, shorter than readTimeout. Leave the parameter out", setting, lower, v, most)
			}
		case "tx_read_only", "transaction_read_only":
			if isTrue(v) {
				return endpoint{}, fmt.Errorf("%s has %s=%s: nothing can be reserved so. Leave the parameter out", setting, lower, v)
			}
		case "tx_isolation", "transaction_isolation":
			if !strings.EqualFold(v, "REPEATABLE-READ") {
				return endpoint{}, fmt.Errorf("%s has %s=%s: the guard against a database that went back needs REPEATABLE-READ. Leave the parameter out", setting, lower, v)
			}
			delete(cfg.Params, name)
		}
	}
	cfg.Params["autocommit"] = "1"
	if _, ok := cfg.Params["sql_mode"]; !ok {
		cfg.Params["sql_mode"] = "'TRADITIONAL'"
	}
	for _, name := range limits {
		if _, ok := cfg.Params[name]; !ok {
			cfg.Params[name] = strconv.Itoa(lockWait)
		}
	}

	if err := setTLS(cfg, given.Get("tls"), o); err != nil {
		return endpoint{}, err
	}
	cfg.Logger = driverLog{o.Log, cfg.Passwd}

	long := cfg.Clone()
	long.ReadTimeout, long.WriteTimeout = longLimit, longLimit
	for _, name := range limits {
		long.Params[name] = "50"
	}
	return endpoint{config: cfg, long: long, addr: cfg.Addr}, nil
}

func isTrue(v string) bool {
	switch strings.ToLower(v) {
	case "1", "true", "on":
		return true
	}
	return false
}

// strict says whether an sql_mode refuses values that do not fit, instead of changing them.
func strict(mode string) bool {
	for _, m := range strings.Split(strings.ToUpper(mode), ",") {
		switch strings.TrimSpace(m) {
		case "STRICT_ALL_TABLES", "STRICT_TRANS_TABLES", "TRADITIONAL":
			return true
		}
	}
	return false
}

// setTLS makes the TLS configuration out of the three file settings. Without them the DSN's own tls parameter rules.
func setTLS(cfg *mysql.Config, param string, o *Options) error {
	if o.TLSCA == "" && o.TLSCert == "" && o.TLSKey == "" {
		return nil
	}
	switch param {
	case "", "true":
	default:
		return fmt.Errorf("segment.mysql.dsn has tls=%s beside segment.mysql.tls_ca, tls_cert or tls_key: leave the parameter out", param)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.Net == "tcp" {
		host, _, err := net.SplitHostPort(cfg.Addr)
		if err != nil {
			return errors.New("segment.mysql.dsn has no host:port in its address")
		}
		conf.ServerName = host
	}
	if o.TLSCA != "" {
		pem, err := os.ReadFile(o.TLSCA)
		if err != nil {
			return fmt.Errorf("segment.mysql.tls_ca: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("segment.mysql.tls_ca: %s holds no PEM certificate", o.TLSCA)
		}
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		return errors.New("segment.mysql.tls_cert and segment.mysql.tls_key belong together: set both or none")
	}
	if o.TLSCert != "" {
		if _, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey); err != nil {
			return fmt.Errorf("segment.mysql.tls_cert, tls_key: %w", err)
		}
		// Read for each connection, so that a renewed certificate needs no restart.
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey)
			return &c, err
		}
	}
	cfg.TLS = conf
	return nil
}

var nameRE = regexp.MustCompile(`^[0-9A-Za-z_$]{1,64}$`)

// table is the name of a table as it is written in a statement, with its database where the setting names one.
type table struct{ db, name string }

func parseTable(s, db string) (table, error) {
	t := table{db: db, name: s}
	if d, n, ok := strings.Cut(s, "."); ok {
		t = table{db: d, name: n}
		if !nameRE.MatchString(d) {
			return t, fmt.Errorf("segment.mysql.table is %q: write table or database.table, of letters, digits, _ and $", s)
		}
	}
	if !nameRE.MatchString(t.name) {
		return t, fmt.Errorf("segment.mysql.table is %q: write table or database.table, of letters, digits, _ and $", s)
	}
	if t.name == serverTable {
		return t, fmt.Errorf("segment.mysql.table is %q, which is Redleaf's own table: name the table of the tags", s)
	}
	return t, nil
}

func (t table) String() string { return quote(t.db) + "." + quote(t.name) }

func (t table) server() string { return quote(t.db) + "." + quote(serverTable) }

func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }
