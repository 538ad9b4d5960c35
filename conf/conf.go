// Package conf reads Redleaf's settings from their defaults, a TOML file, the environment and flags, in that order,
// and reports every mistake at once, each with its place and the setting's name.
//
// One table (settings.go) feeds everything: reading from all sources, CONFIG GET, -check, conf/redleaf.toml and
// README. Read on in settings.go, then sources.go (where values come from), check.go (what they must satisfy
// together) and render.go. Secrets have a type of their own that cannot be printed (secret.go).
package conf

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"strings"
	"time"
)

// Config is every setting, checked and resolved: nothing in it is "auto" except Log.Format, which depends on the
// terminal, and Snowflake.Node, which may be empty and then comes from DeriveNode. Copies share their slices, which nobody changes.
type Config struct {
	Listen          []string      // RESP addresses: host:port or unix:/path; at least one
	Admin           Admin         // HTTP
	DataDir         string        // directory of the local state
	AcceptMovedData bool          // take over a data directory that another machine made
	MaxClients      int           // most connections at a time
	IdleTimeout     time.Duration // a connection silent for longer is closed; 0 = never
	MaxOutput       Bytes         // replies that may wait for one slow reader
	ShutdownTimeout time.Duration // longest drain after SIGTERM
	StartTimeout    time.Duration // how long LOADING is answered before the cause is
	ProtectedMode   bool          // no password: only loopback clients
	Segment         Segment
	Snowflake       Snowflake
	Auth            Auth
	TLS             TLS
	Slowlog         Slowlog
	Log             Log

	File      string // the TOML file read (-c); "" = none
	Check     bool   // -check: print the effective settings and exit
	Version   bool   // -version: print the version and exit; no other field is filled then
	Bootstrap bool   // -bootstrap: make meta and slots in ZooKeeper and exit

	origin map[string]origin // by setting; absent = default
}

// Admin configures the HTTP listener.
type Admin struct {
	Listen  string   // host:port; "" = off
	Require []string // engines ("segment", "snowflake") without which /readyz is red
	LeafAPI bool     // serve Leaf's HTTP API
}

// Segment configures the segment engine and its store.
type Segment struct {
	Store        string // "local", "mysql" or "off"
	MySQL        MySQL
	AutoCreate   []string      // glob patterns of tags that INCR may create
	Step         int64         // step of a created tag, in IDs
	MaxStep      int64         // most IDs one refill may take
	Target       time.Duration // how long one refill should last
	Wait         time.Duration // longest the commands of one read wait for refills, all together
	Check        time.Duration // how often rows of tags in use are compared with what was granted
	MaxCount     int64         // largest n of INCRBY and SEGMENT.RANGE
	MaxArray     int           // largest COUNT of SEGMENT.NEXT and SNOWFLAKE.NEXT
	MaxTags      int           // tags this instance keeps in memory
	FailoverSkip int64         // IDs left out in every row when the server behind the DSN changes; 0 = off
}

// MySQL configures the connection to MySQL or MariaDB.
type MySQL struct {
	DSN          []Secret // several only for a synchronous cluster
	Password     Secret   // content of PasswordFile; goes in place of the DSN's password when set
	PasswordFile string
	TLSCA        string // PEM file of the authorities the server's certificate must come from
	TLSCert      string // PEM file of the client certificate; set together with TLSKey
	TLSKey       string
	Table        string // Leaf's table, "table" or "database.table"
}

// Snowflake configures the snowflake engine and its registry of worker numbers.
type Snowflake struct {
	Registry    string // "local", "zookeeper" or "off"
	WorkerID    int    // worker number for the local registry
	WorkerIDSet bool   // whether WorkerID was set by someone
	Workers     Range  // worker numbers this site may use
	Node        string // identity of this instance, "-" already written "_"; "" = see DeriveNode
	ZooKeeper   ZooKeeper
	Epoch       int64         // ms since 1970
	Bits        Bits          // layout of an ID
	ClockWait   time.Duration // a step back of the clock up to this is waited out
	ClockPolicy string        // beyond ClockWait: "refuse" or "logical"
	MaxSkew     time.Duration // largest distance to ZooKeeper's clock
	AcceptClock bool          // start although the clock is far past the stored bound
	Autonomy    time.Duration // longest time to go on without ZooKeeper
	Reply       string        // "auto", "integer" or "bulk"
	Keys        []string      // glob patterns of keys for which INCR answers a snowflake
}

// ZooKeeper configures the ZooKeeper registry.
type ZooKeeper struct {
	Servers          []string // host:port, one an element; a chroot may follow the last
	Root             string   // Leaf's prefix
	Name             string   // Leaf's name: instances of one name share worker numbers
	Auth             Secret   // digest "user:password"
	TLSCA            string   // PEM files, as for MySQL; TLS is used when one of them is set
	TLSCert          string
	TLSKey           string
	Bootstrap        bool // make meta and slots if there are none
	AcceptNewCluster bool // the ensemble was lost for good: begin anew in another one
}

// Auth says who may connect and do what.
type Auth struct {
	Password     Secret // requirepass of the default user; content of PasswordFile when that is set
	PasswordFile string
	Users        []User
}

// User is one [[auth.user]].
type User struct {
	Name           string
	PasswordSHA256 []Secret // each 64 lower-case hex digits; any of them lets the user in
	Tags           []string // glob patterns of keys the user may touch
	Groups         []string // command groups: "issue", "read", "admin"
	Rate           int64    // most IDs per second; 0 = no limit
}

// TLS configures TLS on the RESP and HTTP listeners.
type TLS struct {
	Cert     string // PEM file; "" = no TLS
	Key      string // PEM file
	ClientCA string // PEM file; set = clients must show a certificate from it
}

// Slowlog configures SLOWLOG.
type Slowlog struct {
	Threshold time.Duration // commands that took longer are kept; 0 = none
}

// Log configures logging.
type Log struct {
	Level  string // "debug", "info", "warn" or "error"
	Format string // "auto", "console" or "json"
}

// Bytes is a size in bytes.
type Bytes int64

// Range is a range of worker numbers, both ends included. High is -1 for "all" until the bits are known.
type Range struct{ Low, High int }

// Bits is the layout of a snowflake: bits for time in ms, worker number and sequence.
type Bits struct{ Time, Worker, Sequence int }

// Mistake is one thing wrong with the settings.
type Mistake struct {
	Where   string // "redleaf.toml:12", "REDLEAF_SEGMENT_STEP" or "-set"; "" when no source is to blame
	Setting string // "" when no known setting is concerned
	Problem string
}

// Error returns where, setting and problem in one line.
func (m Mistake) Error() string {
	var parts []string
	for _, s := range []string{m.Where, m.Setting, m.Problem} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// Mistakes is every mistake of one Load. It never holds the text of a secret.
type Mistakes []Mistake

// Error returns one line per mistake.
func (m Mistakes) Error() string {
	lines := make([]string, len(m))
	for i := range m {
		lines[i] = m[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Load reads the settings: defaults, then the file that args name with -c, then environ ("NAME=value", as os.Environ
// returns it), then the other flags in args (without the program's name). notes are sentences for the log. The error
// is flag.ErrHelp when args ask for help, else Mistakes; the Config is of no use then.
func Load(args, environ []string) (c Config, notes []string, err error) {
	return newLoader(time.Now, os.ReadFile).load(args, environ)
}

// Reload reads the settings again from the sources Load was given, on SIGHUP. next is old with every reloadable
// setting as it is now; fixed names the settings that were changed but need a restart, and keep old's value in next.
// On an error nothing may be taken over.
func Reload(old Config, args, environ []string) (next Config, fixed, notes []string, err error) {
	next, notes, err = Load(args, environ)
	if err != nil {
		return Config{}, nil, nil, err
	}
	fixed = keepFixed(&old, &next)
	return next, fixed, notes, nil
}

// keepFixed takes the settings that need a restart from old into next and returns the names of those that differed.
func keepFixed(old, next *Config) (fixed []string) {
	// A listener with TLS cannot become one without: certificates may change, having them may not.
	switchedTLS := (old.TLS.Cert == "") != (next.TLS.Cert == "")
	was := table(old)
	for i, row := range table(next) {
		if row.reload && !(switchedTLS && strings.HasPrefix(row.name, "tls.")) {
			continue
		}
		from, to := reflect.ValueOf(was[i].dst).Elem(), reflect.ValueOf(row.dst).Elem()
		if !reflect.DeepEqual(from.Interface(), to.Interface()) {
			fixed = append(fixed, row.name)
			to.Set(from)
			delete(next.origin, row.name)
			if o, ok := old.origin[row.name]; ok {
				next.origin[row.name] = o
			}
		}
	}
	next.Segment.MySQL.Password = old.Segment.MySQL.Password
	next.Snowflake.WorkerIDSet = old.Snowflake.WorkerIDSet
	return fixed
}

// Set returns c with one setting changed as CONFIG SET does. Only log.level and slowlog.threshold can be; the error is
// for the client and names the setting.
func (c Config) Set(name, value string) (Config, error) {
	for _, row := range table(&c) {
		if row.name == name && row.live {
			if err := row.set(row.fromText(value)); err != nil {
				return Config{}, fmt.Errorf("%s: %w", name, err)
			}
			c.origin = maps.Clone(c.origin)
			c.origin[name] = origin{"CONFIG SET", ""}
			return c, nil
		}
	}
	return Config{}, fmt.Errorf("%q cannot be changed while Redleaf runs; log.level and slowlog.threshold can", name)
}
