package conf

import (
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write conf/redleaf.toml and testdata/*.want anew")

// noon is what the clock shows in these tests: 2026-01-01 12:00 UTC.
var noon = time.UnixMilli(1767268800000)

// load loads at noon, with files besides those on disk.
func load(files map[string]string, args, environ []string) (Config, []string, error) {
	read := func(name string) ([]byte, error) {
		if text, ok := files[name]; ok {
			return []byte(text), nil
		}
		return os.ReadFile(name)
	}
	return newLoader(func() time.Time { return noon }, read).load(args, environ)
}

func mustLoad(t *testing.T, files map[string]string, args, environ []string) Config {
	t.Helper()
	c, _, err := load(files, args, environ)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wantMistakes compares an error with its lines.
func wantMistakes(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", want)
	}
	if got := err.Error(); got != strings.Join(want, "\n") {
		t.Fatalf("got:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

func TestDefaults(t *testing.T) {
	want := Config{
		Listen:          []string{"127.0.0.1:6380"},
		Admin:           Admin{Listen: "127.0.0.1:6381", Require: []string{"segment", "snowflake"}, LeafAPI: true},
		DataDir:         "data",
		MaxClients:      10000,
		MaxOutput:       1048576,
		ShutdownTimeout: 10 * time.Second,
		StartTimeout:    30 * time.Second,
		ProtectedMode:   true,
		Segment: Segment{
			Store:        "local",
			MySQL:        MySQL{DSN: []Secret{}, Table: "leaf_alloc"},
			AutoCreate:   []string{"*"},
			Step:         1000,
			MaxStep:      1000000,
			Target:       10 * time.Second,
			Wait:         2 * time.Second,
			Check:        5 * time.Second,
			MaxCount:     1000000,
			MaxArray:     10000,
			MaxTags:      1000000,
			FailoverSkip: 10000000,
		},
		Snowflake: Snowflake{
			Registry:    "local",
			Workers:     Range{0, 1023},
			ZooKeeper:   ZooKeeper{Servers: []string{}, Root: "/snowflake", Name: "redleaf", Auth: NewSecret("")},
			Epoch:       1288834974657,
			Bits:        Bits{41, 10, 12},
			ClockWait:   5 * time.Millisecond,
			ClockPolicy: "refuse",
			MaxSkew:     5 * time.Second,
			Autonomy:    24 * time.Hour,
			Reply:       "auto",
			Keys:        []string{},
		},
		Auth:    Auth{Password: NewSecret(""), Users: []User{}},
		Slowlog: Slowlog{10 * time.Millisecond},
		Log:     Log{"info", "auto"},
		origin:  map[string]origin{},
	}
	if got := mustLoad(t, nil, nil, []string{"HOME=/root", "PATH=/bin"}); !reflect.DeepEqual(got, want) {
		t.Errorf("embedded:\n%+v\nwant\n%+v", got, want)
	}

	got := mustLoad(t, nil, nil, []string{"REDLEAF_SEGMENT_STORE=mysql", "REDLEAF_SEGMENT_MYSQL_DSN=u@tcp(h)/d"})
	want.Segment.Store, want.Segment.MySQL.DSN = "mysql", []Secret{NewSecret("u@tcp(h)/d")}
	want.Segment.AutoCreate, want.Segment.Target = []string{}, 15*time.Minute
	want.Snowflake.Registry, want.Admin.Require = "off", []string{"segment"}
	want.origin = map[string]origin{"segment.store": {"env", "REDLEAF_SEGMENT_STORE"}, "segment.mysql.dsn": {"env", "REDLEAF_SEGMENT_MYSQL_DSN"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("mysql:\n%+v\nwant\n%+v", got, want)
	}
}

func TestDependentDefaults(t *testing.T) {
	c := mustLoad(t, nil, []string{"-set", "segment.store=off"}, nil)
	if c.Snowflake.Registry != "local" || !slices.Equal(c.Admin.Require, []string{"snowflake"}) {
		t.Errorf("store off: registry %q, require %q", c.Snowflake.Registry, c.Admin.Require)
	}
	c = mustLoad(t, nil, []string{"-set", "segment.store=mysql", "-set", "segment.mysql.dsn=u@tcp(h)/d",
		"-set", "segment.auto_create=order:*", "-set", "segment.target=1m", "-set", "segment.max_step=5000",
		"-set", "snowflake.registry=local", "-set", "snowflake.worker_id=7", "-set", "snowflake.bits=41-3-9"}, nil)
	if !slices.Equal(c.Segment.AutoCreate, []string{"order:*"}) || c.Segment.Target != time.Minute || c.Segment.FailoverSkip != 50000 {
		t.Errorf("what is set was not kept: %+v", c.Segment)
	}
	if c.Snowflake.WorkerID != 7 || !c.Snowflake.WorkerIDSet || c.Snowflake.Workers != (Range{0, 7}) {
		t.Errorf("%+v", c.Snowflake)
	}
	if c = mustLoad(t, nil, []string{"-set", "segment.failover_skip=0"}, nil); c.Segment.FailoverSkip != 0 {
		t.Errorf("failover_skip 0 became %d", c.Segment.FailoverSkip)
	}
}

// TestBadFiles holds every mistake's text against testdata/bad-*.want; the files are read as an operator would. Missing
// or invalid configuration names the key: leaf P2.
func TestBadFiles(t *testing.T) {
	t.Chdir("testdata")
	files, _ := filepath.Glob("bad-*.toml")
	if len(files) < 10 {
		t.Fatalf("only %d files", len(files))
	}
	for _, file := range files {
		_, _, err := load(nil, []string{"-c", file}, nil)
		var mistakes Mistakes
		if !errors.As(err, &mistakes) {
			t.Errorf("%s: got %v, want Mistakes", file, err)
			continue
		}
		golden := strings.TrimSuffix(file, ".toml") + ".want"
		if *update {
			if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, _ := os.ReadFile(golden)
		if got := err.Error() + "\n"; got != string(want) {
			t.Errorf("%s:\n%swant\n%s", file, got, want)
		}
		for _, m := range mistakes {
			if m.Problem == "" || m.Setting == "" && m.Where == "" {
				t.Errorf("%s: a mistake that names nothing: %+v", file, m)
			}
		}
	}
}

func TestPrecedence(t *testing.T) {
	files := map[string]string{"r.toml": "max_clients = 1\nidle_timeout = \"1s\"\nslowlog.threshold = \"1s\"\n"}
	c := mustLoad(t, files, []string{"-set", "idle_timeout=3s", "-c", "r.toml"},
		[]string{"REDLEAF_IDLE_TIMEOUT=2s", "REDLEAF_SLOWLOG_THRESHOLD=2s"})
	if c.MaxClients != 1 || c.IdleTimeout != 3*time.Second || c.Slowlog.Threshold != 2*time.Second || c.File != "r.toml" {
		t.Errorf("%+v", c)
	}
	got := map[string]string{}
	for _, s := range c.Settings() {
		got[s.Name] = s.Value + " " + s.Source + " " + s.Where
	}
	for name, want := range map[string]string{
		"max_clients":       "1 file r.toml:1",
		"idle_timeout":      "3s flag -set",
		"slowlog.threshold": "2s env REDLEAF_SLOWLOG_THRESHOLD",
		"log.level":         "info default ",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

func TestForms(t *testing.T) {
	for _, tt := range []struct{ set, want string }{
		{"listen=:6380", `[":6380"]`},
		{`listen=["127.0.0.1:1", "unix:/run/r.sock", "[::1]:2"]`, `["127.0.0.1:1", "unix:/run/r.sock", "[::1]:2"]`},
		{"segment.auto_create=", "[]"},
		{"segment.auto_create=[]", "[]"},
		{"segment.auto_create=[a-z]*", ""},
		{`segment.auto_create=["[a-z]*"]`, `["[a-z]*"]`},
		{"admin.listen=", ""},
		{"segment.step=1_000", "1000"},
		{"max_output=65536", "64KiB"},
		{"max_output=100000", "100000"},
		{"max_output=1GiB", "1GiB"},
		{"idle_timeout=0", "0"},
		{"idle_timeout=90s", "1m30s"},
		{"idle_timeout=48h", "48h"},
		{"idle_timeout=1h30m", "1h30m"},
		{"snowflake.workers=0-511", "0-511"},
		{"snowflake.workers=all", "0-1023"},
		{"snowflake.node=my-host:1", "my_host:1"},
		{"admin.leaf_api=false", "false"},
		{"segment.failover_skip=auto", "10000000"},
	} {
		name, _, _ := strings.Cut(tt.set, "=")
		c, _, err := load(nil, []string{"-set", tt.set}, nil)
		if tt.want == "" && name != "admin.listen" {
			if err == nil {
				t.Errorf("-set %s was taken", tt.set)
			}
			continue
		}
		if err != nil {
			t.Errorf("-set %s: %v", tt.set, err)
			continue
		}
		for _, s := range c.Settings() {
			if s.Name == name && s.Value != tt.want {
				t.Errorf("-set %s gives %s, want %s", tt.set, s.Value, tt.want)
			}
		}
	}
}

func TestServersWithCommas(t *testing.T) {
	c := mustLoad(t, nil, nil, []string{"REDLEAF_SNOWFLAKE_REGISTRY=zookeeper", "REDLEAF_SNOWFLAKE_ZOOKEEPER_SERVERS=zk1:2181, zk2:2181,[::1]:2181/chroot"})
	if want := []string{"zk1:2181", "zk2:2181", "[::1]:2181/chroot"}; !slices.Equal(c.Snowflake.ZooKeeper.Servers, want) {
		t.Errorf("%q", c.Snowflake.ZooKeeper.Servers)
	}
}

func TestEnvironment(t *testing.T) {
	_, _, err := load(nil, nil, []string{
		"REDLEAF_SEGMENT_STEPS=5", "REDLEAF_SEGMENT_STEP=five", "REDLEAF_=1", "REDLEAFX=1", "REDLEAF_COLOUR=red",
		"REDLEAF_LISTEN=[", "REDLEAF_ADMIN_LEAF_API=yes", "REDLEAF_AUTH_USER=bob", "REDLEAF_MAX_OUTPUT=1MB",
	})
	wantMistakes(t, err,
		`REDLEAF_: unknown setting`,
		`REDLEAF_ADMIN_LEAF_API: admin.leaf_api: needs true or false, not "yes"`,
		`REDLEAF_AUTH_USER: auth.user: needs [[auth.user]], a list of tables`,
		`REDLEAF_COLOUR: unknown setting`,
		`REDLEAF_LISTEN: listen: needs a list of strings in quotes`,
		`REDLEAF_MAX_OUTPUT: max_output: needs bytes, such as 65536, "64KiB", "1MiB" or "1GiB", not "1MB"`,
		`REDLEAF_SEGMENT_STEP: segment.step: needs a whole number without quotes, not "five"`,
		`REDLEAF_SEGMENT_STEPS: unknown setting; did you mean REDLEAF_SEGMENT_STEP?`,
	)

	hash := strings.Repeat("0123456789abcdef", 4)
	c := mustLoad(t, nil, nil, []string{`REDLEAF_AUTH_USER=[{name = "bob", password_sha256 = "` + hash + `", tags = "order:*", rate = 5}]`, "REDLEAF_SEGMENT_MAX_COUNT=7"})
	u := c.Auth.Users[0]
	if u.Name != "bob" || u.PasswordSHA256[0].Reveal() != hash || !slices.Equal(u.Tags, []string{"order:*"}) ||
		!slices.Equal(u.Groups, []string{"issue", "read"}) || u.Rate != 5 || c.Segment.MaxCount != 7 {
		t.Errorf("%+v", c)
	}
}

// TestServiceLinks: what Kubernetes sets for services named redleaf and redleaf-admin is no mistake, and said once.
func TestServiceLinks(t *testing.T) {
	links := []string{
		"REDLEAF_ADMIN_PORT_6381_TCP_ADDR", "REDLEAF_ADMIN_SERVICE_HOST", "REDLEAF_PORT", "REDLEAF_PORT_6380_TCP",
		"REDLEAF_PORT_6380_TCP_ADDR", "REDLEAF_PORT_6380_TCP_PORT", "REDLEAF_PORT_6380_TCP_PROTO",
		"REDLEAF_SERVICE_HOST", "REDLEAF_SERVICE_PORT", "REDLEAF_SERVICE_PORT_RESP",
	}
	var environ []string
	for _, l := range links {
		environ = append(environ, l+"=tcp://10.0.0.1:6380")
	}
	_, notes, err := load(nil, nil, environ)
	want := strings.Join(links, ", ") + ": passed over, they look like Kubernetes' service links (enableServiceLinks: false keeps them out)"
	if err != nil || len(notes) != 1 || notes[0] != want {
		t.Errorf("%v %q", err, notes)
	}
	_, _, err = load(nil, nil, []string{"REDLEAF_PORTS=1", "REDLEAF_PORT_TCP=1", "REDLEAF_SERVICE=x"})
	wantMistakes(t, err, "REDLEAF_PORTS: unknown setting", "REDLEAF_PORT_TCP: unknown setting", "REDLEAF_SERVICE: unknown setting")
}

func TestFlags(t *testing.T) {
	c := mustLoad(t, nil, []string{"-listen", ":1", "--admin=", "-data-dir", "/d", "-check", "-set", "max_clients=5"}, nil)
	if c.Listen[0] != ":1" || c.Admin.Listen != "" || c.DataDir != "/d" || !c.Check || c.Bootstrap || c.MaxClients != 5 {
		t.Errorf("%+v", c)
	}
	c, _, err := load(nil, []string{"-version"}, []string{"REDLEAF_WRONG=1"})
	if err != nil || !c.Version {
		t.Errorf("-version must work whatever the settings are: %v", err)
	}
	if _, _, err = load(nil, []string{"-h"}, nil); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
	_, _, err = load(nil, []string{"-foo", "x", "-segment.step=5", "-set", "segment.stp=5", "-set", "step", "-check=maybe",
		"-set", "max_clients=1", "-set", "max_clients=2", "-listen", ":1", "-set", "listen=:2", "---x", "-=y", "-bootstrap", "rest", "more"}, nil)
	wantMistakes(t, err,
		`command line: unknown flag "-foo"; see redleaf -h`,
		`-segment.step: is a setting, not a flag; write -set segment.step=…`,
		`-set: unknown setting "segment.stp"; did you mean segment.step?`,
		`-set: needs name=value, as in -set segment.step=1000`,
		`-check: needs a value that it did not get, or got one that it does not take`,
		`command line: unknown flag "-x"; see redleaf -h`,
		`command line: unknown flag "-"; see redleaf -h`,
		`command line: argument 20 belongs to no flag; a value with spaces needs quotes`,
		`-set: max_clients: is set twice`,
		`-set: listen: is set by -listen as well; take one away`,
		`-bootstrap: snowflake.registry: is "local"; there is something to bootstrap only with "zookeeper"`,
	)
	_, _, err = load(nil, []string{"-c", "/no/such/file", "-set", "segment.step=0", "-listen"}, nil)
	wantMistakes(t, err,
		`-c: open /no/such/file: no such file or directory`,
		`-listen: needs a value that it did not get, or got one that it does not take`,
		`-set: segment.step: 0 is below 1, the least`,
	)
}

func TestNotes(t *testing.T) {
	_, notes, err := load(nil, []string{"-set", "segment.store=local", "-set", "segment.mysql.dsn=u@tcp(h)/d",
		"-set", "snowflake.registry=local", "-set", "snowflake.zookeeper.servers=h:1"}, nil)
	want := []string{`segment.mysql.dsn is not used: segment.store is "local"`, `snowflake.zookeeper.servers is not used: snowflake.registry is "local"`}
	if err != nil || !slices.Equal(notes, want) {
		t.Errorf("%v %q", err, notes)
	}
}

func TestReload(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "redleaf.toml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("max_clients = 10\n[segment]\nstep = 5\n[auth]\npassword = \"one\"\n")
	args := []string{"-c", file}
	old, _, err := Load(args, nil)
	if err != nil {
		t.Fatal(err)
	}
	write("max_clients = 20\nlisten = \":1\"\n[segment]\nstep = 6\nmax_step = 7000\n[auth]\npassword = \"two\"\n[log]\nlevel = \"debug\"\n[snowflake]\nworker_id = 3\n")
	next, fixed, _, err := Reload(old, args, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"listen", "segment.step", "segment.max_step", "segment.failover_skip", "snowflake.worker_id"}; !slices.Equal(fixed, want) {
		t.Errorf("need a restart: %q, want %q", fixed, want)
	}
	if next.MaxClients != 20 || next.Auth.Password.Reveal() != "two" || next.Log.Level != "debug" {
		t.Errorf("not taken over: %+v", next)
	}
	if next.Segment.Step != 5 || next.Listen[0] != "127.0.0.1:6380" || next.Snowflake.WorkerIDSet || next.origin["listen"] != old.origin["listen"] {
		t.Errorf("taken over without a restart: %+v", next)
	}

	write("max_clients = 0\n")
	if _, _, _, err := Reload(old, args, nil); err == nil || err.Error() != file+":1: max_clients: 0 is below 1, the least" {
		t.Errorf("a bad file: %v", err)
	}

	// Certificates may change, but a listener keeps or lacks TLS until a restart.
	pem := filepath.Join(dir, "x.pem")
	if err := os.WriteFile(pem, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	write("tls.cert = \"" + pem + "\"\ntls.key = \"" + pem + "\"\n")
	if next, fixed, _, err = Reload(old, args, nil); err != nil || next.TLS.Cert != "" || !slices.Equal(fixed, []string{"segment.step", "tls.cert", "tls.key"}) {
		t.Errorf("TLS switched on: %v %q %+v", err, fixed, next.TLS)
	}
}

func TestSet(t *testing.T) {
	c := mustLoad(t, nil, nil, nil)
	d, err := c.Set("log.level", "debug")
	if err != nil || d.Log.Level != "debug" || c.Log.Level != "info" || d.origin["log.level"].source != "CONFIG SET" || len(c.origin) != 0 {
		t.Errorf("%v %+v", err, d.Log)
	}
	if d, err = d.Set("slowlog.threshold", "0"); err != nil || d.Slowlog.Threshold != 0 || d.Log.Level != "debug" {
		t.Errorf("%v %+v", err, d)
	}
	for _, tt := range []struct{ name, value, want string }{
		{"log.level", "loud", `log.level: needs debug, info, warn or error, not "loud"`},
		{"segment.step", "5", `"segment.step" cannot be changed while Redleaf runs; log.level and slowlog.threshold can`},
		{"nothing\r\n", "5", `"nothing\r\n" cannot be changed while Redleaf runs; log.level and slowlog.threshold can`},
	} {
		if _, err := c.Set(tt.name, tt.value); err == nil || err.Error() != tt.want {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
}

func TestDeriveNode(t *testing.T) {
	addr := func(s string) net.Addr {
		a, err := net.ResolveTCPAddr("tcp", s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	network := func(s string) net.Addr {
		ip, n, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		n.IP = ip
		return n
	}
	all := []net.Addr{network("127.0.0.1/8"), network("fe80::1/64"), network("fd00::2/64"), network("10.0.0.7/24"), network("10.0.0.8/24")}
	for _, tt := range []struct {
		listen     net.Addr
		interfaces []net.Addr
		want       string
	}{
		{addr("192.168.1.2:6380"), nil, "192.168.1.2:6380"},
		{addr("0.0.0.0:6380"), all, "10.0.0.7:6380"},
		{addr("[::]:6380"), all, "10.0.0.7:6380"},
		{addr("[::]:6380"), all[:3], "[fd00::2]:6380"},
		{addr("[::]:6380"), all[:2], "no interface has an address that other machines can reach; set snowflake.node"},
		{addr("127.0.0.1:6380"), all, "127.0.0.1:6380 is a loopback address, which every machine has; listen on another or set snowflake.node"},
		{&net.UnixAddr{Name: "/run/r.sock", Net: "unix"}, all, "/run/r.sock gives no port for an identity; set snowflake.node"},
	} {
		got, err := DeriveNode(tt.listen, tt.interfaces)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%v: %s, want %s", tt.listen, got, tt.want)
		}
	}
}
