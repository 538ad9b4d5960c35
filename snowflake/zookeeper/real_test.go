package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/rs/zerolog"

	"redleaf/conf/datadir"
	"redleaf/scripts/services"
	"redleaf/snowflake"
)

// hurried is the protocol's pace where tests wait for its limits.
var hurried = pace{session: 3 * time.Second, call: 2 * time.Second, renew: 500 * time.Millisecond, window: 5 * time.Second, still: 2 * time.Second}

// fleet is a root on a real ensemble, and the instances started on it.
type fleet struct {
	t       *testing.T
	servers string
	base    Options
	dirs    string
	log     *syncBuffer
	mu      sync.Mutex
	open    map[string]*instance
}

type instance struct {
	*Registry
	dir *datadir.Dir
	w   snowflake.Worker
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

var fleets atomic.Int64

// newFleet makes an empty root of its own.
func newFleet(t *testing.T, servers string, change ...func(*Options)) *fleet {
	f := &fleet{t: t, servers: servers, dirs: t.TempDir(), log: &syncBuffer{}, open: map[string]*instance{}}
	f.base = Options{
		Servers: []string{servers}, Root: "/snowflake", Name: fmt.Sprintf("test-%d.%d", os.Getpid(), fleets.Add(1)),
		Layout:    snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: 3, SequenceBits: 12},
		WorkersHi: -1, Autonomy: time.Minute, StartTimeout: 2 * time.Second, Clock: snowflake.SystemClock{}, pace: hurried,
		Log: zerolog.New(f.log).With().Timestamp().Logger(),
	}
	for _, c := range change {
		c(&f.base)
	}
	t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for name := range f.open {
			f.killLocked(name)
		}
		if t.Failed() {
			t.Logf("log:\n%s", f.log)
		}
	})
	return f
}

func (f *fleet) bootstrap() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	defer cancel()
	if err := Bootstrap(ctx, f.openDir("bootstrap-"+fmt.Sprint(fleets.Add(1)), datadir.Machine{ID: "op", Boot: "op"}), f.base); err != nil {
		f.t.Fatalf("bootstrap: %v", err)
	}
}

func (f *fleet) openDir(name string, m datadir.Machine) *datadir.Dir {
	f.t.Helper()
	d, err := datadir.Open(filepath.Join(f.dirs, name), datadir.Options{Machine: &m, TolerateMoved: true})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { d.Close() })
	return d
}

// start opens the instance called name, with its own data directory and identity unless change says otherwise.
func (f *fleet) start(name string, change ...func(*Options)) *instance {
	f.t.Helper()
	i, err := f.tryStart(name, change...)
	if err != nil {
		f.t.Fatalf("start %s: %v", name, err)
	}
	return i
}

func (f *fleet) tryStart(name string, change ...func(*Options)) (*instance, error) {
	o := f.base
	o.Identity = "10.0.0." + name + ":8080"
	for _, c := range change {
		c(&o)
	}
	d, err := datadir.Open(filepath.Join(f.dirs, name), datadir.Options{Machine: &datadir.Machine{ID: "m", Boot: "b"}, TolerateMoved: true})
	if err != nil {
		return nil, err
	}
	r, err := Open(d, o)
	if err != nil {
		d.Close()
		return nil, err
	}
	i := &instance{Registry: r, dir: d}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[name] = i
	return i, nil
}

// kill ends an instance as kill -9 does: nothing more is sent or written, the session stays until it times out.
func (f *fleet) kill(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.killLocked(name)
}

func (f *fleet) killLocked(name string) {
	i := f.open[name]
	if i == nil {
		return
	}
	delete(f.open, name)
	if c, ok := i.tree.(*conn); ok {
		c.sever()
	}
	if w := i.holder(); w != nil {
		w.end()
	}
	i.Close(context.Background())
	i.dir.Close()
}

// stop ends an instance cleanly.
func (f *fleet) stop(name string, last int64) {
	f.t.Helper()
	f.mu.Lock()
	i := f.open[name]
	delete(f.open, name)
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if i.w != nil {
		if err := i.w.Release(ctx, last); err != nil {
			f.t.Errorf("release of %s: %v", name, err)
		}
	}
	if err := i.Close(ctx); err != nil {
		f.t.Errorf("close of %s: %v", name, err)
	}
	i.dir.Close()
}

func (f *fleet) acquire(i *instance) snowflake.Worker {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 25*time.Second)
	defer cancel()
	w, err := i.Acquire(ctx, -1)
	if err != nil {
		f.t.Fatalf("%s: no number: %v", i.o.Identity, err)
	}
	i.w = w
	return w
}

// refuse says why no number is to be had within d.
func (f *fleet) refuse(i *instance, d time.Duration) error {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), d)
	defer cancel()
	w, err := i.Acquire(ctx, -1)
	if err == nil {
		f.t.Fatalf("%s got worker %d, want a refusal", i.o.Identity, w.ID())
	}
	return err
}

// use makes some timestamps of the worker usable and returns the last of them.
func (f *fleet) use(i *instance) int64 {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 5*time.Second)
	defer cancel()
	ts := max(i.clock.Now(), i.w.Window().Base+1)
	if _, err := i.w.Extend(ctx, ts); err != nil {
		f.t.Fatalf("%s: %v", i.o.Identity, err)
	}
	return ts
}

func eventually(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	end := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q does not say %q", text, p)
		}
	}
}

// raw is a bare client: a person with a shell, or Java Leaf.
type raw struct {
	*zk.Conn
	f    *fleet
	base paths
}

func (f *fleet) raw() *raw {
	f.t.Helper()
	c, _, err := zk.Connect(strings.Split(strings.SplitN(f.servers, "/", 2)[0], ","), 5*time.Second, zk.WithLogInfo(false), zk.WithLogger(zkLog{zerolog.Nop()}))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	eventually(f.t, "a session", 20*time.Second, func() bool { return c.State() == zk.StateHasSession })
	return &raw{c, f, paths{f.base.base()}}
}

func (r *raw) create(path string, data []byte) {
	r.f.t.Helper()
	if _, err := r.Create(path, data, 0, zk.WorldACL(zk.PermAll)); err != nil {
		r.f.t.Fatalf("create %s: %v", path, err)
	}
}

func (r *raw) get(path string) string {
	r.f.t.Helper()
	b, _, err := r.Conn.Get(path)
	if err != nil {
		r.f.t.Fatalf("get %s: %v", path, err)
	}
	return string(b)
}

func (r *raw) set(path, data string) {
	r.f.t.Helper()
	if _, err := r.Conn.Set(path, []byte(data), -1); err != nil {
		r.f.t.Fatalf("set %s: %v", path, err)
	}
}

func (r *raw) children(path string) []string {
	r.f.t.Helper()
	names, _, err := r.Conn.Children(path)
	if err != nil {
		r.f.t.Fatalf("children of %s: %v", path, err)
	}
	return names
}

func (r *raw) deleteAll(path string) {
	r.f.t.Helper()
	names, _, err := r.Conn.Children(path)
	if errors.Is(err, zk.ErrNoNode) {
		return
	}
	for _, n := range names {
		r.deleteAll(path + "/" + n)
	}
	if err := r.Delete(path, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
		r.f.t.Fatalf("delete %s: %v", path, err)
	}
}

func (r *raw) slot(n int64) slot {
	r.f.t.Helper()
	s, err := decodeSlot([]byte(r.get(r.base.slot(n))))
	if err != nil {
		r.f.t.Fatal(err)
	}
	return s
}

// leafTree is what Java Leaf makes before anything of ours is there.
func (r *raw) leafTree() {
	for _, p := range []string{"/snowflake", r.base.base, r.base.forever()} {
		if _, err := r.Create(p, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			r.f.t.Fatal(err)
		}
	}
}

// sharedServer is the ensemble of one that most tests use, each with its own root.
var shared struct {
	sync.Mutex
	zoo  *services.ZooKeeper
	keep *keeper
}

// keeper lets the shared server outlive the test that started it.
type keeper struct {
	name   string
	clean  []func()
	failed atomic.Bool
}

func (k *keeper) Helper()                   {}
func (k *keeper) Logf(f string, a ...any)   { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (k *keeper) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (k *keeper) Errorf(f string, a ...any) { k.failed.Store(true); k.Logf(f, a...) }
func (k *keeper) Cleanup(f func())          { k.clean = append(k.clean, f) }
func (k *keeper) Failed() bool              { return k.failed.Load() }
func (k *keeper) Name() string              { return k.name }
func (k *keeper) end() {
	for i := len(k.clean) - 1; i >= 0; i-- {
		k.clean[i]()
	}
}

func server(t *testing.T) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.zoo == nil {
		shared.keep = &keeper{name: "TestShared"}
		shared.zoo = services.StartZooKeeper(shared.keep, services.ZooKeeperOptions{TickTime: 200 * time.Millisecond, TLS: true, JVM: []string{"-Xmx512m"}})
	}
	return shared.zoo.Servers()
}

func TestMain(m *testing.M) {
	if os.Getenv("ZOOKEEPER_CHILD") != "" {
		childMain()
		return
	}
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		flag.Set("test.parallel", "10") // these tests wait for windows and sessions to end
	}
	code := m.Run()
	if shared.keep != nil {
		shared.keep.end()
	}
	os.Exit(code)
}
