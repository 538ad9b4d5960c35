package zookeeper

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"redleaf/conf/datadir"
	"redleaf/snowflake"
)

func TestParseServers(t *testing.T) {
	for _, c := range []struct {
		in      []string
		servers []string
		chroot  string
		err     string
	}{
		{[]string{"zk1:2181"}, []string{"zk1:2181"}, "", ""},
		{[]string{"zk1"}, []string{"zk1:2181"}, "", ""},
		{[]string{"zk1:1, zk2:2 ,zk3/a/b"}, []string{"zk1:1", "zk2:2", "zk3:2181"}, "/a/b", ""},
		{[]string{"zk1:1", "zk2:2/a/"}, []string{"zk1:1", "zk2:2"}, "/a", ""},
		{[]string{"zk1:1/"}, []string{"zk1:1"}, "", ""},
		{[]string{"[::1]:2182"}, []string{"[::1]:2182"}, "", ""},
		{[]string{"[::1]"}, []string{"[::1]:2181"}, "", ""},
		{[]string{"fe80::1,10.0.0.1"}, []string{"[fe80::1]:2181", "10.0.0.1:2181"}, "", ""},
		{[]string{"[2001:db8::1]:1,[2001:db8::2]:1/x"}, []string{"[2001:db8::1]:1", "[2001:db8::2]:1"}, "/x", ""},
		{[]string{""}, nil, "", "is empty"},
		{nil, nil, "", "is empty"},
		{[]string{"zk1,,zk2"}, nil, "", "empty element"},
		{[]string{"zk1/a,zk2"}, nil, "", "must follow the last server"},
		{[]string{"a:b:c"}, nil, "", "is not host:port"},
		{[]string{":2181"}, nil, "", "is not host:port"},
		{[]string{"zk1:2181/a//b"}, nil, "", "is no path"},
	} {
		servers, chroot, err := parseServers(c.in)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), "snowflake.zookeeper.servers") {
				t.Errorf("%q: %v, want %q", c.in, err, c.err)
			}
			continue
		}
		if err != nil || !slices.Equal(servers, c.servers) || chroot != c.chroot {
			t.Errorf("%q: %q %q %v, want %q %q", c.in, servers, chroot, err, c.servers, c.chroot)
		}
	}
}

func TestOptions(t *testing.T) {
	good := func() Options {
		return Options{
			Servers: []string{"127.0.0.1:1"}, Name: "n", Identity: "10.0.0.1:8080", WorkersHi: -1, Autonomy: time.Hour,
			Layout: snowflake.Layout{Epoch: 1, TimeBits: 41, WorkerBits: 10, SequenceBits: 12},
		}
	}
	for _, c := range []struct {
		change func(*Options)
		want   string // setting named by the error; "" none
	}{
		{func(o *Options) {}, ""},
		{func(o *Options) { o.Identity = "" }, "snowflake.node"},
		{func(o *Options) { o.Identity = "127.0.0.1:8080" }, "snowflake.node"},
		{func(o *Options) { o.Identity = "localhost:8080" }, "snowflake.node"},
		{func(o *Options) { o.Identity = "[::1]:8080" }, "snowflake.node"},
		{func(o *Options) { o.Identity = "0.0.0.0:8080" }, "snowflake.node"},
		{func(o *Options) { o.Identity = ":8080" }, "snowflake.node"},
		{func(o *Options) { o.Identity = "a/b:1" }, "snowflake.node"},
		{func(o *Options) { o.Identity = "a b:1" }, "snowflake.node"},
		{func(o *Options) { o.Identity = "a\nb:1" }, "snowflake.node"},
		{func(o *Options) { o.Identity = strings.Repeat("x", 300) }, "snowflake.node"},
		{func(o *Options) { o.Identity = "my-host-1:8080" }, ""},
		{func(o *Options) { o.Identity = "[2001:db8::1]:8080" }, ""},
		{func(o *Options) { o.Identity = "pod-7" }, ""},
		{func(o *Options) { o.Name = "" }, "snowflake.zookeeper.name"},
		{func(o *Options) { o.Name = "a/b" }, "snowflake.zookeeper.name"},
		{func(o *Options) { o.Name = ".." }, "snowflake.zookeeper.name"},
		{func(o *Options) { o.Root = "x" }, "snowflake.zookeeper.root"},
		{func(o *Options) { o.Root = "/x/" }, "snowflake.zookeeper.root"},
		{func(o *Options) { o.Root = "/x//y" }, "snowflake.zookeeper.root"},
		{func(o *Options) { o.Root = "/x/./y" }, "snowflake.zookeeper.root"},
		{func(o *Options) { o.Root = "/" }, ""},
		{func(o *Options) { o.Auth = "nopassword" }, "snowflake.zookeeper.auth"},
		{func(o *Options) { o.TLSCert = "x" }, "snowflake.zookeeper.tls_cert"},
		{func(o *Options) { o.TLSCA = "/nowhere" }, "snowflake.zookeeper.tls_ca"},
		{func(o *Options) { o.Servers = nil }, "snowflake.zookeeper.servers"},
		{func(o *Options) { o.Autonomy = time.Second }, "snowflake.autonomy"},
		{func(o *Options) { o.Layout.WorkerBits, o.Layout.SequenceBits = 17, 5 }, "snowflake.bits"},
		{func(o *Options) { o.Layout.SequenceBits = 0 }, "snowflake.bits"},
		{func(o *Options) { o.WorkersLo, o.WorkersHi = 5, 4 }, "snowflake.workers"},
		{func(o *Options) { o.WorkersHi = 1024 }, "snowflake.workers"}, // peers W18
		{func(o *Options) { o.WorkersLo, o.WorkersHi = -1, 5 }, "snowflake.workers"},
		{func(o *Options) { o.WorkersHi = 0 }, ""},
	} {
		o := good()
		c.change(&o)
		d, err := datadir.Open(t.TempDir(), datadir.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := Open(d, o)
		if c.want == "" {
			if err != nil {
				t.Errorf("%+v: %v", o, err)
			} else if id := r.Status().Identity; strings.Contains(id, "-") {
				t.Errorf("identity %q has a dash", id)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want an error that names %s", o, err, c.want)
		}
		if r != nil {
			r.Close(t.Context())
		}
		d.Close()
	}
}

// leaf F10, F24: what may stand under forever.
func TestParseChild(t *testing.T) {
	for name, want := range map[string]child{
		"10.0.0.1:8080-0000000003":       {id: "10.0.0.1:8080", number: 3},
		"my-app-1.example:80-0000001024": {id: "my-app-1.example:80", number: 1024},
		"[2001:db8::1]:80-0000000000":    {id: "[2001:db8::1]:80"},
		"x-9999999999":                   {id: "x", number: 9999999999},
		"10.0.0.1:8080--2147483648":      {id: "10.0.0.1:8080-", number: 2147483648},
		"10.0.0.1:8080-003":              {},
		"10.0.0.1:8080_0000000003":       {},
		"_c_x":                           {},
		"":                               {},
		"-0000000001":                    {},
		"10.0.0.1:8080-000000000x":       {},
		"_c_0123456789abcdef-10.0.0.1:80-0000000001x": {},
	} {
		c, ok := parseChild(name)
		want.name = name
		if ok != (want.id != "") || ok && c != want {
			t.Errorf("%q: %+v %v, want %+v", name, c, ok, want)
		}
	}
	if got := string(encode(leafOf("[2001:db8::1]:80", 5))); got != `{"ip":"2001:db8::1","port":"80","timestamp":5}` {
		t.Error(got)
	}
}

// The state file: fixed size, in place, two records in turn; a torn or damaged record means that nothing is continued.
func TestStateFile(t *testing.T) {
	dir := t.TempDir()
	open := func() (*datadir.Dir, *state, bool) {
		d, err := datadir.Open(dir, datadir.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, missing, err := openState(d)
		if err != nil {
			t.Fatal(err)
		}
		return d, s, missing
	}
	d, s, missing := open()
	if _, found, err := s.load(); found || missing || err != nil {
		t.Fatalf("a new file: found %v, missing %v, %v", found, missing, err)
	}
	name := filepath.Join(dir, StateFile)
	rec := record{Cluster: "c", Identity: "10.0.0.1:1", Slot: 3, Held: stamp{Version: 7, Gen: 2, Nonce: "n", Until: 99}}
	for i := range int64(5) {
		rec.LocalUntil = i
		if err := s.store(rec); err != nil {
			t.Fatal(err)
		}
	}
	if fi, _ := os.Stat(name); fi.Size() != stateSize {
		t.Errorf("size %d, want %d", fi.Size(), stateSize)
	}
	s.close()
	d.Close()

	d, s, _ = open()
	if got, found, err := s.load(); !found || err != nil || got != rec {
		t.Fatalf("read back %+v, %v, %v", got, found, err)
	}
	rec.LocalUntil = 5
	if err := s.store(rec); err != nil {
		t.Fatal(err)
	}
	s.close()
	d.Close()

	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, 5, 9, 17, 30, 300, recordSize - 1, recordSize, recordSize + 5, recordSize + 40} {
		b := bytes.Clone(whole)
		b[at] ^= 1
		os.WriteFile(name, b, 0o600)
		d, s, _ = open()
		if got, _, err := s.load(); !errors.Is(err, errStateDamaged) || got.Cluster != "c" {
			t.Errorf("byte %d flipped: %+v, %v, want errStateDamaged and the cluster", at, got, err)
		}
		if err := errors.Join(s.store(rec), s.store(rec)); err != nil {
			t.Fatal(err)
		}
		s.close()
		d.Close()
		d, s, _ = open()
		if got, _, err := s.load(); err != nil || got != rec {
			t.Errorf("byte %d, after two writes: %+v, %v", at, got, err)
		}
		s.close()
		d.Close()
	}
	os.WriteFile(name, whole[:5000], 0o600)
	d, s, _ = open()
	if _, _, err := s.load(); !errors.Is(err, errStateDamaged) {
		t.Errorf("a file cut short: %v, want errStateDamaged", err)
	}
	s.close()
	d.Close()
	os.Remove(name)
	d, s, missing = open()
	if _, found, err := s.load(); !missing || found || err != nil {
		t.Errorf("a file removed: missing %v, found %v, %v", missing, found, err)
	}
	s.close()
	d.Close()
}

// A disk that can't be written: nothing beyond what is durable may be used, and no renewal is sent that a restart could not know.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t))
	f.bootstrap()
	i := f.start("1")
	f.acquire(i)
	f.use(i)
	bad := &failingDisk{disk: i.state.disk}
	i.state.mu.Lock()
	i.state.disk = bad
	i.state.mu.Unlock()
	before := i.w.Window()
	_, err := i.w.Extend(t.Context(), before.Until+1)
	var no *snowflake.NoWorkerError
	if !errors.As(err, &no) || !strings.Contains(err.Error(), StateFile) {
		t.Errorf("extend: %v, want *NoWorkerError that names %s", err, StateFile)
	}
	if now := i.w.Window(); now != before {
		t.Errorf("the window went from %v to %v", before, now)
	}
	eventually(t, "it says so", 10*time.Second, func() bool { return strings.Contains(i.Status().Reason, StateFile) })
	i.state.mu.Lock()
	i.state.disk = bad.disk
	i.state.mu.Unlock()
	eventually(t, "it serves again", 10*time.Second, func() bool { return i.Status().State == "serving" })
	f.use(i)
}

type failingDisk struct{ disk }

func (failingDisk) Sync() error { return errors.New("input/output error") }
