package conf

import (
	"strings"
	"time"
)

// row is one setting. Its name gives the TOML key, the environment variable (REDLEAF_ and the name in capitals, each
// '.' as '_') and the name for -set and CONFIG GET; the type behind dst says how values are written.
type row struct {
	name    string
	dst     any    // pointer to the field of the Config the table was made for
	def     string // default, as one writes it in TOML
	depends string // when the default depends on other settings: how; def then holds for the embedded start
	doc     string // meaning, with the unit; the range is added from min and max

	min, max int64              // range of numbers, bytes, and durations in ns; max 0 = no end
	off      bool               // 0 is good too, and means off
	oneOf    []string           // the only values
	valid    func(string) error // for strings, and for every element of a list

	secret bool   // never shown
	reload bool   // SIGHUP takes a change over
	live   bool   // CONFIG SET may change it
	path   bool   // names a file that must be readable
	flag   string // its own flag, besides -set
}

const (
	ms   = int64(time.Millisecond)
	day  = int64(24 * time.Hour)
	auto = -1 // segment.failover_skip before it is resolved
)

// table returns every setting, bound to c. Settings without a dot come first, as TOML wants them in a file.
func table(c *Config) []row {
	s, f := &c.Segment, &c.Snowflake
	return []row{
		{name: "listen", dst: &c.Listen, def: `["127.0.0.1:6380"]`, valid: validListen, flag: "listen", doc: "Addresses for Redis clients: `host:port`, `:port` (every interface) or `unix:/path`; several allowed."},
		{name: "data_dir", dst: &c.DataDir, def: `"data"`, valid: notEmpty, flag: "data-dir", doc: "Directory of the local state. One process uses it; it is bound to its machine by an identity file."},
		{name: "accept_moved_data", dst: &c.AcceptMovedData, def: `false`, doc: "Start although another machine made data_dir. For one start, when nothing runs on the old copy any more."},
		{name: "max_clients", dst: &c.MaxClients, def: `10000`, min: 1, max: 1_000_000, reload: true, doc: "Most connections at a time; more are refused as Redis refuses them."},
		{name: "idle_timeout", dst: &c.IdleTimeout, def: `"0"`, off: true, min: ms, reload: true, doc: "A connection silent for longer is closed."},
		{name: "max_output", dst: &c.MaxOutput, def: `"1MiB"`, min: 1 << 10, max: 1 << 30, reload: true, doc: "Replies in bytes that may wait for one slow reader; beyond it the connection is not read."},
		{name: "shutdown_timeout", dst: &c.ShutdownTimeout, def: `"10s"`, min: ms, doc: "Longest drain after SIGTERM."},
		{name: "start_timeout", dst: &c.StartTimeout, def: `"30s"`, min: 0, doc: "How long an engine that is not ready answers LOADING before it answers the cause."},
		{name: "protected_mode", dst: &c.ProtectedMode, def: `true`, doc: "Refuse clients from other machines while there is neither a password nor a user, as Redis does."},

		{name: "admin.listen", dst: &c.Admin.Listen, def: `"127.0.0.1:6381"`, valid: validAdmin, flag: "admin", doc: "Address for HTTP (metrics, health, status page), `host:port`; empty = off."},
		{name: "admin.require", dst: &c.Admin.Require, def: `["segment", "snowflake"]`, depends: "every engine that is on", doc: "Engines without which `/readyz` is red."},
		{name: "admin.leaf_api", dst: &c.Admin.LeafAPI, def: `true`, doc: "Serve Leaf's HTTP API: to loopback peers only, or with the name and password of a user."},

		{name: "segment.store", dst: &s.Store, def: `"local"`, oneOf: []string{"local", "mysql", "off"}, doc: "Where ranges are reserved: in data_dir, in MySQL or MariaDB, or nowhere (the engine is off)."},
		{name: "segment.auto_create", dst: &s.AutoCreate, def: `["*"]`, depends: "`[\"*\"]` with store local, `[]` with mysql", valid: validGlob, doc: "Patterns of tags that INCR may create, as in Redis; `[]` = only tags that have a row, as in Leaf."},
		{name: "segment.step", dst: &s.Step, def: `1000`, min: 1, max: 1<<31 - 1, doc: "Step of a created tag: the fewest IDs one refill takes."},
		{name: "segment.max_step", dst: &s.MaxStep, def: `1000000`, min: 1, max: 1_000_000_000_000, doc: "Most IDs one refill may take, and so the most one crash can burn of a span."},
		{name: "segment.target", dst: &s.Target, def: `"10s"`, depends: "`10s` with store local, `15m` with mysql", min: ms, max: 7 * day, doc: "How long one refill should last."},
		{name: "segment.wait", dst: &s.Wait, def: `"2s"`, min: 0, max: int64(10 * time.Minute), doc: "Longest the commands of one read wait for refills, all together, before they answer TRYAGAIN."},
		{name: "segment.check", dst: &s.Check, def: `"5s"`, min: 10 * ms, max: int64(time.Hour), doc: "How often the rows of tags in use are compared with what was granted."},
		{name: "segment.max_count", dst: &s.MaxCount, def: `1000000`, min: 1, max: 1_000_000_000_000, doc: "Largest n of INCRBY and SEGMENT.RANGE."},
		{name: "segment.max_array", dst: &s.MaxArray, def: `10000`, min: 1, max: 1_000_000, doc: "Largest COUNT, the IDs of one array reply."},
		{name: "segment.max_tags", dst: &s.MaxTags, def: `1000000`, min: 1, max: 100_000_000, doc: "Tags this instance keeps in memory."},
		{name: "segment.failover_skip", dst: &s.FailoverSkip, def: `"auto"`, off: true, min: 1, max: 1 << 53, doc: "IDs left out in every row when the server behind the DSN changes; `auto` = 10 × max_step."},

		{name: "segment.mysql.dsn", dst: &s.MySQL.DSN, def: `[]`, secret: true, doc: "Data source name, `user:password@tcp(host:3306)/database`; several only for a synchronous cluster (Galera, Group Replication)."},
		{name: "segment.mysql.password_file", dst: &s.MySQL.PasswordFile, def: `""`, path: true, doc: "File whose content goes into the DSN as the password."},
		{name: "segment.mysql.tls_ca", dst: &s.MySQL.TLSCA, def: `""`, path: true, doc: "TLS to MySQL: PEM file of the authority of the server's certificate."},
		{name: "segment.mysql.tls_cert", dst: &s.MySQL.TLSCert, def: `""`, path: true, doc: "TLS to MySQL: PEM file of the client certificate, with tls_key."},
		{name: "segment.mysql.tls_key", dst: &s.MySQL.TLSKey, def: `""`, path: true, doc: "TLS to MySQL: PEM file of the client key, with tls_cert."},
		{name: "segment.mysql.table", dst: &s.MySQL.Table, def: `"leaf_alloc"`, valid: validTable, doc: "Table of the tags; Leaf's own works unchanged."},

		{name: "snowflake.registry", dst: &f.Registry, def: `"local"`, depends: "`local` with store local or off, `off` with mysql", oneOf: []string{"local", "zookeeper", "off"}, doc: "Where worker numbers come from: worker_id and data_dir, ZooKeeper, or nowhere (the engine is off). `local` beside store mysql needs an explicit worker_id."},
		{name: "snowflake.worker_id", dst: &f.WorkerID, def: `0`, min: 0, max: 1<<31 - 1, doc: "Worker number for registry local; no other instance may have the same."},
		{name: "snowflake.workers", dst: &f.Workers, def: `"all"`, doc: "Worker numbers this site may use, `low-high` with both ends included, or `all`."},
		{name: "snowflake.node", dst: &f.Node, def: `""`, depends: "`<ip>:<port>`", valid: validNode, doc: "Identity of this instance in ZooKeeper; a `-` is written `_`. Loopback addresses are refused."},
		{name: "snowflake.epoch", dst: &f.Epoch, def: `1288834974657`, min: 0, doc: "Time 0 of the IDs in ms since 1970; the default is Leaf's and Twitter's. Never change it once IDs are out."},
		{name: "snowflake.bits", dst: &f.Bits, def: `"41-10-12"`, doc: "Bits for time, worker and sequence; `41-3-9` fits the 53 bits of JavaScript's numbers. Never change it once IDs are out."},
		{name: "snowflake.clock_wait", dst: &f.ClockWait, def: `"5ms"`, min: 0, max: int64(10 * time.Second), doc: "A step back of the clock up to this is waited out."},
		{name: "snowflake.clock_policy", dst: &f.ClockPolicy, def: `"refuse"`, oneOf: []string{"refuse", "logical"}, doc: "Beyond clock_wait: refuse with CLOCKBACK, or go on from the last timestamp inside the window."},
		{name: "snowflake.max_skew", dst: &f.MaxSkew, def: `"5s"`, min: ms, max: int64(time.Hour), doc: "Largest distance to ZooKeeper's clock at start and renewal."},
		{name: "snowflake.accept_clock", dst: &f.AcceptClock, def: `false`, doc: "Start although the clock is more than 30 days past the stored bound. For one start, after a long stop."},
		{name: "snowflake.autonomy", dst: &f.Autonomy, def: `"24h"`, min: int64(time.Minute), max: 365 * day, doc: "Longest time to go on without ZooKeeper."},
		{name: "snowflake.reply", dst: &f.Reply, def: `"auto"`, oneOf: []string{"auto", "integer", "bulk"}, doc: "How a snowflake is answered: auto = an integer when every ID of the layout fits 53 bits, else a bulk string."},
		{name: "snowflake.keys", dst: &f.Keys, def: `[]`, valid: validGlob, doc: "Patterns of keys for which INCR answers a snowflake, for clients that cannot send SNOWFLAKE.NEXT."},

		{name: "snowflake.zookeeper.servers", dst: &f.ZooKeeper.Servers, def: `[]`, valid: validServer, doc: "Servers, `host:port` each, in a list or with commas; a chroot (`/path`) may follow the last."},
		{name: "snowflake.zookeeper.root", dst: &f.ZooKeeper.Root, def: `"/snowflake"`, valid: validRoot, doc: "Path above the names; Leaf's is the default."},
		{name: "snowflake.zookeeper.name", dst: &f.ZooKeeper.Name, def: `"redleaf"`, valid: validName, doc: "Name of the fleet (Leaf's `leaf.name`); instances with the same name share the worker numbers."},
		{name: "snowflake.zookeeper.auth", dst: &f.ZooKeeper.Auth, def: `""`, secret: true, doc: "Digest authentication, `user:password`."},
		{name: "snowflake.zookeeper.tls_ca", dst: &f.ZooKeeper.TLSCA, def: `""`, path: true, doc: "TLS to ZooKeeper: PEM file of the authority of the servers' certificates."},
		{name: "snowflake.zookeeper.tls_cert", dst: &f.ZooKeeper.TLSCert, def: `""`, path: true, doc: "TLS to ZooKeeper: PEM file of the client certificate, with tls_key."},
		{name: "snowflake.zookeeper.tls_key", dst: &f.ZooKeeper.TLSKey, def: `""`, path: true, doc: "TLS to ZooKeeper: PEM file of the client key, with tls_cert."},
		{name: "snowflake.zookeeper.bootstrap", dst: &f.ZooKeeper.Bootstrap, def: `false`, doc: "Make `meta` and the slots if there are none. Only for the first start of a fleet; the flag -bootstrap does it and exits."},
		{name: "snowflake.zookeeper.accept_new_cluster", dst: &f.ZooKeeper.AcceptNewCluster, def: `false`, doc: "Leave the cluster named in data_dir for another one. For one start, after an ensemble was lost for good."},

		{name: "auth.password", dst: &c.Auth.Password, def: `""`, secret: true, reload: true, doc: "Password of the default user (Redis' requirepass)."},
		{name: "auth.password_file", dst: &c.Auth.PasswordFile, def: `""`, path: true, reload: true, doc: "File whose content is the password; instead of password."},
		{name: "auth.user", dst: &c.Auth.Users, def: `[]`, reload: true, doc: "Users: name, password_sha256 (64 hex digits, one or several), tags (key patterns), groups (issue, read, admin), rate (IDs per second, 0 = no limit)."},

		{name: "tls.cert", dst: &c.TLS.Cert, def: `""`, path: true, reload: true, doc: "PEM file of the server's certificate; set = the listeners speak TLS. Read again on SIGHUP."},
		{name: "tls.key", dst: &c.TLS.Key, def: `""`, path: true, reload: true, doc: "PEM file of the certificate's key."},
		{name: "tls.client_ca", dst: &c.TLS.ClientCA, def: `""`, path: true, reload: true, doc: "PEM file of the authority that clients' certificates must come from (mutual TLS)."},

		{name: "slowlog.threshold", dst: &c.Slowlog.Threshold, def: `"10ms"`, off: true, min: 1, reload: true, live: true, doc: "Commands that took longer are kept for SLOWLOG."},

		{name: "log.level", dst: &c.Log.Level, def: `"info"`, oneOf: []string{"debug", "info", "warn", "error"}, reload: true, live: true, doc: "Least level that is written."},
		{name: "log.format", dst: &c.Log.Format, def: `"auto"`, oneOf: []string{"auto", "console", "json"}, doc: "auto = console on a terminal, else json."},
	}
}

// env returns the environment variable of the setting.
func (r *row) env() string {
	return "REDLEAF_" + strings.ToUpper(strings.ReplaceAll(r.name, ".", "_"))
}
