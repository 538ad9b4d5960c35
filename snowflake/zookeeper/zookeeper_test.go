package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"redleaf/conf/datadir"
	"redleaf/scripts/proxy"
	"redleaf/scripts/services"
	"redleaf/snowflake"
	"redleaf/snowflake/workertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	addr := server(t)
	workertest.Run(t, func(t *testing.T, clock *workertest.Clock) workertest.Env {
		f := newFleet(t, addr, func(o *Options) { o.pace, o.MaxSkew = usualPace, time.Minute }) // the suite lets time go by
		f.bootstrap()
		f.base.Clock = clock
		name := func(n string) string { return fmt.Sprint(n[0]) }
		return workertest.Env{
			Start: func(t *testing.T, n string) (snowflake.WorkerIDs, error) {
				f.kill(name(n)) // a clean stop left the directory open
				i, err := f.tryStart(name(n))
				if err != nil {
					return nil, err
				}
				return i, nil
			},
			Kill:     func(t *testing.T, n string) { f.kill(name(n)) },
			Shared:   true,
			MaxStep:  4 * time.Second,
			Patience: 20 * time.Second,
		}
	})
}

// leaf F4, F10, F22: the first instances of all, at the same time, in a root with dashes, digits and dots, get different numbers;
// what stands under forever is Leaf's form to the byte; another name is another history.
func TestFirstStart(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t), func(o *Options) { o.Name = fmt.Sprintf("my-app-1.2-%d", fleets.Add(1)) })
	f.bootstrap()
	var wg sync.WaitGroup
	workers := make([]snowflake.Worker, 4)
	for n := range workers {
		i := f.start(fmt.Sprint(n + 1))
		wg.Go(func() { workers[n] = f.acquire(i) })
	}
	wg.Wait()
	seen := map[int64]bool{}
	for _, w := range workers {
		seen[w.ID()] = true
	}
	if len(seen) != 4 {
		t.Fatalf("4 instances hold %d numbers", len(seen))
	}
	r := f.raw()
	for _, name := range r.children(r.base.forever()) {
		c, ok := parseChild(name)
		if !ok || !strings.HasPrefix(name, "10.0.0.") {
			t.Fatalf("child of forever %q", name)
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(r.get(r.base.node(name))), &m); err != nil {
			t.Fatal(err)
		}
		host, port, _ := strings.Cut(c.id, ":")
		ts, _ := m["timestamp"].(float64)
		if len(m) != 3 || m["ip"] != host || m["port"] != port || ts < float64(time.Now().UnixMilli()-60_000) {
			t.Errorf("%s holds %v", name, m)
		}
		if s := r.slot(c.number); s.ID != c.id || s.Node != name || s.State != slotHeld {
			t.Errorf("slot %d: %+v", c.number, s)
		}
	}

	other := newFleet(t, f.servers, func(o *Options) { o.Name = f.base.Name + "-2" })
	other.bootstrap()
	if w := other.acquire(other.start("1")); w.ID() != 0 {
		t.Errorf("first number under another name: %d, want 0", w.ID())
	}
}

// leaf P1, F14: without bootstrap an instance waits and says so; when the cause goes away it goes on without a restart.
func TestNotBootstrapped(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t))
	i := f.start("1")
	has(t, f.refuse(i, time.Second).Error(), f.base.base()+"/meta is missing", "redleaf -bootstrap")
	if st := i.Status(); st.State != "waiting" || !st.Session || st.Worker != -1 {
		t.Errorf("status %+v", st)
	}
	got := make(chan snowflake.Worker, 1)
	go func() { got <- f.acquire(i) }()
	f.bootstrap()
	if w := <-got; w.ID() != 0 {
		t.Errorf("got %d, want 0", w.ID())
	}
	f.bootstrap() // again: changes nothing
	r := f.raw()
	if s := r.slot(0); s.ID != "10.0.0.1:8080" {
		t.Errorf("slot 0 after a second bootstrap: %+v", s)
	}
	if s := r.slot(1); s.State != slotFree {
		t.Errorf("slot 1 after a second bootstrap: %+v", s)
	}
}

// A slot that somebody deleted is made again by -bootstrap, reserved for longer than its former owner's window can last (I11).
func TestBootstrapMissingSlot(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t))
	f.bootstrap()
	r := f.raw()
	if err := r.Delete(r.base.slot(5), -1); err != nil {
		t.Fatal(err)
	}
	f.bootstrap()
	s := r.slot(5)
	if left := s.Until - time.Now().UnixMilli(); s.State != slotQuarantined || left < 55_000 || left > 75_000 {
		t.Errorf("slot 5: %+v, %d ms left, want a quarantine of a minute and max_skew", s, left)
	}
}

// leaf F9: a range of numbers for this site. peers W18: it must fit the bits.
func TestWorkersRange(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t), func(o *Options) { o.WorkersLo, o.WorkersHi = 5, 6 })
	f.bootstrap()
	if got := f.raw().children(paths{f.base.base()}.slots()); len(got) != 2 {
		t.Errorf("slots %v, want 0005 and 0006", got)
	}
	if w := f.acquire(f.start("1")); w.ID() != 5 {
		t.Errorf("got %d, want 5", w.ID())
	}
	if w := f.acquire(f.start("2")); w.ID() != 6 {
		t.Errorf("got %d, want 6", w.ID())
	}
	has(t, f.refuse(f.start("3"), 2*time.Second).Error(), "no free worker number in 5-6", "2 are held", "5=10.0.0.1:8080", "6=10.0.0.2:8080")
}

// leaf F19, peers W20: another layout or epoch on the same root would make the same IDs.
func TestLayoutMismatch(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t))
	f.bootstrap()
	for _, c := range []func(*Options){
		func(o *Options) { o.Layout.WorkerBits, o.Layout.SequenceBits = 4, 11 },
		func(o *Options) { o.Layout.Epoch++ },
	} {
		i := f.start("1", c)
		_, err := i.Acquire(t.Context(), -1)
		var no *snowflake.NoWorkerError
		if !errors.As(err, &no) || !no.Permanent {
			t.Fatalf("got %v, want a permanent refusal", err)
		}
		has(t, err.Error(), "snowflake.bits", "41-3-12", "snowflake.epoch", "1288834974657", "/meta")
		f.kill("1")
	}
}

// leaf F5, peers W7: two instances of one identity, each with its own data directory: the second takes another number.
func TestSameIdentityTwice(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t))
	f.bootstrap()
	a := f.acquire(f.start("1"))
	b := f.acquire(f.start("2", func(o *Options) { o.Identity = "10.0.0.1:8080" }))
	if a.ID() == b.ID() {
		t.Errorf("both hold %d", a.ID())
	}
}

// Two processes on one data directory; a copy of a data directory.
func TestDataDirTwice(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t))
	f.bootstrap()
	i := f.start("1")
	a := f.acquire(i)
	f.use(i)
	var in *datadir.InUseError
	if _, err := f.tryStart("1"); !errors.As(err, &in) {
		t.Errorf("second process on one data_dir: %v, want *datadir.InUseError", err)
	}
	if err := os.CopyFS(filepath.Join(f.dirs, "2"), os.DirFS(filepath.Join(f.dirs, "1"))); err != nil {
		t.Fatal(err)
	}
	copied := f.start("2", func(o *Options) { o.Identity = "10.0.0.1:8080" })
	b := f.acquire(copied)
	if a.ID() == b.ID() {
		t.Errorf("the copy got %d too", a.ID())
	}
	has(t, f.log.String(), "data_dir is a copy")
	f.use(i)
}

// leaf F24: garbage in any znode is met with a warning that names the path; nothing is overwritten, and the others work.
func TestGarbage(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t))
	f.bootstrap()
	r := f.raw()
	garbage := map[string]string{
		r.base.slot(0): "{", r.base.slot(4): `{"v":1,"until":5,"state":"held","id":"a\r\nb"}`, r.base.slot(1): `{"v":1,"until":-5,"state":"held","id":"x"}`, r.base.slot(2): `{"v":9}`,
		r.base.slot(3): strings.Repeat("x", 100_000),
	}
	for p, d := range garbage {
		r.set(p, d)
	}
	r.create(r.base.node("_c_x"), []byte("?")) // uses up number 0 as well
	r.create(r.base.live(7)+"x", nil)
	i := f.start("1")
	w := f.acquire(i)
	if w.ID() < 5 {
		t.Errorf("got %d, whose slot is garbage", w.ID())
	}
	f.use(i)
	for p, d := range garbage {
		if got := r.get(p); got != d {
			t.Errorf("%s was overwritten with %q", p, got)
		}
	}
	has(t, f.log.String(), "slots/0000", "slots/0001", "slots/0002", "slots/0003", "_c_x")

	r.set(r.base.meta(), "[]")
	eventually(t, "trouble with meta is told", 5*time.Second, func() bool {
		i.w.(*worker).kick()
		r.set(r.base.meta(), "[]")
		return strings.Contains(i.Status().Reason, "/meta can't be used")
	})
	has(t, f.refuse(f.start("2"), time.Second).Error(), "/meta can't be used")
}

// Our own forever node holds what is no time: another number is taken and the node left alone.
func TestUnreadableOwnNode(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"", "{", `{"ip":"10.0.0.1","port":"8080","timestamp":-1}`, `{"timestamp":"soon"}`} {
		f := newFleet(t, server(t), func(o *Options) { o.pace.still = 300 * time.Millisecond })
		f.raw().leafTree()
		r := f.raw()
		r.create(r.base.node("10.0.0.1:8080-0000000000"), []byte(data))
		f.bootstrap()
		if w := f.acquire(f.start("1")); w.ID() != 1 {
			t.Errorf("own node %q: got %d, want 1", data, w.ID())
		}
		if got := r.get(r.base.node("10.0.0.1:8080-0000000000")); got != data {
			t.Errorf("own node %q was overwritten with %q", data, got)
		}
	}
}

// A Leaf deployment moves in place: its node, its number, above its timestamp, once it stands still.
func TestAdoptLeaf(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t), func(o *Options) { o.pace.window = 30 * time.Second })
	r := f.raw()
	r.leafTree()
	name := "10.0.0.1:8080-0000000000"
	report := func() int64 {
		now := time.Now().UnixMilli()
		r.set(r.base.node(name), fmt.Sprintf(`{"ip":"10.0.0.1","port":"8080","timestamp":%d}`, now))
		return now
	}
	r.create(r.base.node(name), nil)
	report()
	r.create(r.base.node("leaf-host.example-1:80-0000000001"), encode(leafOf("x", 1))) // leaf F10: lives for ever, never ours
	f.bootstrap()
	i := f.start("1")
	got := make(chan snowflake.Worker, 1)
	began := time.Now()
	go func() { got <- f.acquire(i) }()
	var last int64
	for range 8 {
		last = report()
		select {
		case w := <-got:
			t.Fatalf("took over %d while Leaf still reports", w.ID())
		case <-time.After(500 * time.Millisecond):
		}
	}
	has(t, i.Status().Reason, name, "Leaf runs with this identity")
	w := <-got
	if w.ID() != 0 || w.Window().Base != last+10_000 {
		t.Errorf("got %d above %d, want 0 above %d", w.ID(), w.Window().Base, last+10_000)
	}
	if took := time.Since(began); took < 3500*time.Millisecond+f.base.pace.still {
		t.Errorf("taken over after %s", took)
	}
	if second := f.acquire(f.start("2")); second.ID() != 2 {
		t.Errorf("the next instance got %d, want 2", second.ID())
	}

	// And back: after a clean stop Leaf finds its node with a time that is past, and takes the number for good.
	ts := f.use(i)
	f.stop("1", ts)
	n, err := decodeLeaf([]byte(r.get(r.base.node(name))))
	if err != nil || n.Timestamp != max(ts, w.Window().Base) || n.IP != "10.0.0.1" || n.Port != "8080" {
		t.Errorf("Leaf finds %+v, %v", n, err)
	}
	report()
	s := r.slot(0)
	if s.State != slotReleased {
		t.Fatalf("slot 0: %+v", s)
	}
	s.Until = 1 // long past
	r.set(r.base.slot(0), string(encode(s)))
	for n := 3; n <= 7; n++ {
		f.acquire(f.start(fmt.Sprint(n)))
	}
	if err := f.refuse(f.start("9"), 2*time.Second); err != nil {
		has(t, err.Error(), "no free worker number")
	}
	has(t, f.log.String(), name+" was written since its owner gave it up")
}

// A timestamp of Leaf's from a clock that was wrong is left alone, whatever it is.
func TestLeafAhead(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t), func(o *Options) { o.pace.still = 300 * time.Millisecond })
	r := f.raw()
	r.leafTree()
	future := time.Now().Add(10 * 365 * 24 * time.Hour).UnixMilli()
	r.create(r.base.node("10.0.0.1:8080-0000000000"), encode(leafOf("10.0.0.1:8080", future)))
	f.bootstrap()
	if w := f.acquire(f.start("1")); w.ID() != 1 || w.Window().Base > time.Now().UnixMilli()+11_000 {
		t.Errorf("got %d above %d", w.ID(), w.Window().Base)
	}
}

// Leaf starts on a number that an instance holds and writes its node: the instance stops at once and takes another.
func TestLeafTakesOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t))
	f.bootstrap()
	i := f.start("1")
	w := f.acquire(i)
	r := f.raw()
	r.set(r.base.node("10.0.0.1:8080-0000000000"), string(encode(leafOf("10.0.0.1:8080", time.Now().UnixMilli()))))
	select {
	case <-w.Lost():
	case <-time.After(10 * time.Second):
		t.Fatal("still held")
	}
	if st := i.Status(); st.State != "fenced" || !strings.Contains(st.Reason, "Leaf runs with this identity") {
		t.Errorf("status %+v", st)
	}
	if _, err := w.Extend(t.Context(), w.Window().Until+1); err == nil {
		t.Error("extended after the loss")
	}
}

// Public report R3: forever was copied by hand, names without counter. Numbers that copied nodes carry are never ours.
func TestCopiedTree(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t))
	r := f.raw()
	r.leafTree()
	for i, n := range []int64{0, 1, 4} {
		r.create(r.base.node(childName(fmt.Sprintf("10.7.0.%d:8080", i), n)), encode(leafOf("10.7.0.1:8080", time.Now().UnixMilli())))
	}
	f.bootstrap()
	var got []int64
	for n := range 3 {
		got = append(got, f.acquire(f.start(fmt.Sprint(n+1))).ID())
	}
	slices.Sort(got)
	if !slices.Equal(got, []int64{3, 5, 6}) {
		t.Errorf("three instances got %v, want 3, 5 and 6", got)
	}
	if kids := r.children(r.base.forever()); len(kids) != 6 {
		t.Errorf("forever has %v", kids)
	}
}

// leaf F15, peers W16: what was deleted by hand. A slot: its owner stops. meta: put back. A forever node: put back.
func TestDeletedByHand(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t))
	f.bootstrap()
	i := f.start("1")
	w := f.acquire(i)
	r := f.raw()
	node := r.base.node("10.0.0.1:8080-0000000000")
	if err := r.Delete(node, -1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is back", 10*time.Second, func() bool { ok, _, _ := r.Exists(node); return ok })
	eventually(t, "it serves", 10*time.Second, func() bool { return i.Status().State == "serving" })

	cluster := r.get(r.base.meta())
	if err := r.Delete(r.base.meta(), -1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "meta is back", 10*time.Second, func() bool {
		b, _, err := r.Conn.Get(r.base.meta())
		m, _ := decodeMeta(b)
		old, _ := decodeMeta([]byte(cluster))
		return err == nil && m.Cluster == old.Cluster && m.State == metaMade
	})
	eventually(t, "it serves", 10*time.Second, func() bool { return i.Status().State == "serving" })
	f.use(i)

	if err := r.Delete(r.base.slot(w.ID()), -1); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.Lost():
	case <-time.After(10 * time.Second):
		t.Fatal("still held after its slot was deleted")
	}
	has(t, i.Status().Reason, "slots/0000 was deleted")
	if again := f.acquire(i); again.ID() == w.ID() {
		t.Errorf("got %d again, whose slot is gone", again.ID())
	}
}

// ABA: a slot that was deleted, made again and brought to the version that its owner expects has another czxid. The owner
// stops, and reserves what it overwrote.
func TestSlotMadeAnew(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t), func(o *Options) { o.pace.renew = 4 * time.Second; o.pace.window = 20 * time.Second })
	f.bootstrap()
	i := f.start("1")
	w := f.acquire(i).(*worker)
	r := f.raw()
	path := r.base.slot(w.id)
	b, st, err := r.Conn.Get(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(path, -1); err != nil {
		t.Fatal(err)
	}
	r.create(path, b)
	for range st.Version {
		r.set(path, string(b))
	}
	if _, now, _ := r.Conn.Get(path); now.Version != st.Version {
		t.Fatalf("version %d, want %d", now.Version, st.Version)
	}
	w.kick()
	<-w.Lost()
	s := r.slot(w.id)
	if left := s.Until - time.Now().UnixMilli(); s.State != slotQuarantined || s.ID != "" || left < 55_000 {
		t.Errorf("slot %+v, %d ms left", s, left)
	}
}

// Version and identity prove nothing: the slot stands at the very version of the last write, by a namesake.
func TestResumeNeedsNonce(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t))
	f.bootstrap()
	f.acquire(f.start("1"))
	f.kill("1")
	r := f.raw()
	path := r.base.slot(0)
	b, st, err := r.Conn.Get(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := decodeSlot(b)
	if err != nil {
		t.Fatal(err)
	}
	s.Nonce, s.Until = "another", time.Now().Add(time.Minute).UnixMilli()
	if err := r.Delete(path, -1); err != nil {
		t.Fatal(err)
	}
	r.create(path, encode(s))
	for range st.Version {
		r.set(path, string(encode(s)))
	}
	if w := f.acquire(f.start("1")); w.ID() == 0 {
		t.Error("resumed a number that a namesake holds")
	}
	if got := r.slot(0); got != s {
		t.Errorf("slot 0 is now %+v", got)
	}
}

// leaf F7, peers W9: instances with a new identity each, killed one after the other: every one gets a number, whose window lies
// above all that was granted before, and forever stays small. CRASH_IDENTITIES=2000 is the long form (make test-zookeeper).
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	n := envInt(t, "CRASH_IDENTITIES", 50)
	bits, every := uint8(4), 0*time.Millisecond
	window := 300 * time.Millisecond
	if n > 200 { // as designed: 15 a second on 1,024 numbers
		bits, every, window = 10, time.Second/15, usualPace.window
	}
	f := newFleet(t, server(t), func(o *Options) {
		o.Layout.WorkerBits, o.Layout.SequenceBits = bits, 12
		o.pace.window, o.pace.session = window, time.Second
	})
	f.bootstrap()
	r := f.raw()
	used := map[int64]int64{}
	most := 0
	next := time.Now()
	for i := range n {
		if wait := time.Until(next); wait > 0 {
			time.Sleep(wait)
		}
		next = next.Add(every)
		name := fmt.Sprintf("%d.%d", i/250, i%250)
		inst := f.start(name)
		w := f.acquire(inst)
		if base := w.Window().Base; base < used[w.ID()] {
			t.Fatalf("identity %d: worker %d begins at %d, and %d was granted before", i, w.ID(), base, used[w.ID()])
		}
		f.use(inst)
		used[w.ID()] = inst.Status().Window.Until
		f.kill(name)
		if i%25 == 0 || i == n-1 {
			most = max(most, len(r.children(r.base.forever())))
		}
	}
	if limit := 1 << bits; most > limit {
		t.Errorf("forever grew to %d nodes, %d numbers", most, limit)
	}
	t.Logf("%d identities, %d numbers used, at most %d nodes in forever", n, len(used), most)
}

// 1,024 live + 1: a clear refusal that lists holders.
func TestAllHeld(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t), func(o *Options) { o.Layout.WorkerBits = 10 })
	f.bootstrap()
	r := f.raw()
	until := time.Now().Add(time.Hour).UnixMilli()
	for n := int64(0); n < 1024; n += 256 { // holders made by hand, with a session behind them
		var ops []any
		for k := n; k < n+256; k++ {
			s := slot{V: 1, ID: fmt.Sprintf("10.1.%d.%d:1", k/256, k%256), Gen: 1, Nonce: "x", Until: until, HW: until, Since: 1, State: slotHeld}
			ops = append(ops, &zk.SetDataRequest{Path: r.base.slot(k), Data: encode(s), Version: 0},
				&zk.CreateRequest{Path: r.base.live(k), Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagEphemeral})
		}
		if _, err := r.Multi(ops...); err != nil {
			t.Fatal(err)
		}
	}
	i := f.start("1")
	err := f.refuse(i, 5*time.Second)
	has(t, err.Error(), "no free worker number in 0-1023", "1024 are held", "0=10.1.0.0:1", "19=10.1.0.19:1", "…", "the next window ends in 59m")
	if kids := r.children(r.base.forever()); len(kids) != 0 {
		t.Errorf("forever has %v, which brought nobody a number", kids)
	}
	if st := i.Status(); st.Free != 0 || st.Total != 1024 {
		t.Errorf("free %d of %d", st.Free, st.Total)
	}
}

// leaf F12: the reply to a create or to the claim itself is lost after it was executed: one claim all the same.
func TestRepliesLost(t *testing.T) {
	t.Parallel()
	addr := server(t)
	for _, c := range []struct {
		what  string
		match func([]byte) bool
	}{
		{"create", func(b []byte) bool { return bytesHas(b, "/forever/10.0.0.1:8080-") && !bytesHas(b, "/slots/") }},
		{"claim", func(b []byte) bool { return bytesHas(b, "/slots/0000") && bytesHas(b, `"held"`) }},
	} {
		f := newFleet(t, addr, func(o *Options) { o.pace.still = 300 * time.Millisecond })
		f.bootstrap()
		p := proxy.Start(t, addr)
		p.CutOnReply(1, c.match)
		i := f.start("1", func(o *Options) { o.Servers = []string{p.Addr()} })
		w := f.acquire(i)
		if p.Cuts() != 1 {
			t.Errorf("%s: %d replies were lost, want 1", c.what, p.Cuts())
		}
		f.use(i)
		r := f.raw()
		if kids := r.children(r.base.forever()); w.ID() != 0 || !slices.Equal(kids, []string{"10.0.0.1:8080-0000000000"}) {
			t.Errorf("%s: worker %d, forever has %v", c.what, w.ID(), kids)
		}
	}
}

func bytesHas(b []byte, s string) bool { return strings.Contains(string(b), s) }

// A renewal whose reply was lost grants nothing until it was read back (I9), and costs nobody the number.
func TestRenewalReplyLost(t *testing.T) {
	t.Parallel()
	addr := server(t)
	f := newFleet(t, addr)
	f.bootstrap()
	p := proxy.Start(t, addr)
	i := f.start("1", func(o *Options) { o.Servers = []string{p.Addr()} })
	w := f.acquire(i)
	for n := range int64(3) {
		before := p.Cuts()
		p.CutOnReply(1, func(b []byte) bool { return bytesHas(b, "/slots/0000") && bytesHas(b, `"held"`) })
		eventually(t, "a reply is lost", 10*time.Second, func() bool { return p.Cuts() > before })
		eventually(t, "it serves again", 15*time.Second, func() bool { return i.Status().State == "serving" })
		f.use(i)
		select {
		case <-w.Lost():
			t.Fatalf("round %d: lost", n)
		default:
		}
	}
	if s := f.raw().slot(0); s.Gen != 1 {
		t.Errorf("generation %d, want 1", s.Gen)
	}
}

// leaf F8, peers W8, W10, W27: an instance is cut off, its number is recycled, and it comes back: its window was over before the
// other's began, and it stops.
func TestPartitionedWhileRecycled(t *testing.T) {
	t.Parallel()
	addr := server(t)
	f := newFleet(t, addr, func(o *Options) {
		o.Layout.WorkerBits = 1
		o.WorkersHi = 0
		o.pace.session = time.Second
		o.pace.window = 3 * time.Second
	})
	f.bootstrap()
	p := proxy.Start(t, addr)
	a := f.start("1", func(o *Options) { o.Servers = []string{p.Addr()} })
	w := f.acquire(a)
	f.use(a)
	p.Hold(true, true)
	b := f.start("2")
	v := f.acquire(b)
	if v.ID() != w.ID() {
		t.Fatalf("there is only one number, and %d and %d", w.ID(), v.ID())
	}
	// What the zombie can still issue ends where the new owner begins.
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		w.Extend(ctx, a.clock.Now()+10_000)
		cancel()
	}
	if w.Window().Until > v.Window().Base {
		t.Fatalf("zombie up to %d, new owner from %d", w.Window().Until, v.Window().Base)
	}
	p.Hold(false, false)
	select {
	case <-w.Lost():
	case <-time.After(20 * time.Second):
		t.Fatal("the zombie did not notice")
	}
	has(t, a.Status().Reason, "belongs to 10.0.0.2:8080")
	if w.Window().Until > v.Window().Base {
		t.Fatalf("zombie up to %d, new owner from %d", w.Window().Until, v.Window().Base)
	}
	f.use(b)
	select {
	case <-v.Lost():
		t.Error("the new owner stopped too")
	default:
	}
}

// Started without ZooKeeper from local state: after kill -9 it goes on within its window, above what it used; after a clean stop
// that gave the number back it does not; and it renews by itself once ZooKeeper is there (leaf F3, F14).
func TestStartWithoutZooKeeper(t *testing.T) {
	t.Parallel()
	addr := server(t)
	f := newFleet(t, addr, func(o *Options) { o.pace.window = 30 * time.Second; o.StartTimeout = time.Second })
	f.bootstrap()
	p := proxy.Start(t, addr)
	behind := func(o *Options) { o.Servers = []string{p.Addr()} }
	a := f.start("1", behind)
	w := f.acquire(a)
	f.use(a)
	bound := w.Window().Until
	f.kill("1")
	p.Refuse(true)
	a = f.start("1", behind)
	w = f.acquire(a)
	if w.ID() != 0 || w.Window().Base != bound {
		t.Errorf("worker %d above %d, want 0 above %d", w.ID(), w.Window().Base, bound)
	}
	if st := a.Status(); st.State != "autonomous" || st.Session || !strings.Contains(st.Reason, "goes on until") {
		t.Errorf("status %+v", st)
	}
	f.use(a)
	p.Refuse(false)
	eventually(t, "it renews", 20*time.Second, func() bool { return a.Status().State == "serving" })
	ts := f.use(a)
	f.stop("1", ts)

	p.Refuse(true)
	a = f.start("1", behind)
	has(t, f.refuse(a, 3*time.Second).Error(), "no session with ZooKeeper", "gave the worker number back")
	p.Refuse(false)
	if w = f.acquire(a); w.ID() != 0 || w.Window().Base < ts {
		t.Errorf("worker %d above %d, want 0 above %d", w.ID(), w.Window().Base, ts)
	}
}

// leaf F2, kill inside a clean stop, at both places that matter: the reply to the release is lost and the process dies. The state
// is closed by then, so that a start without ZooKeeper refuses; a start with it resumes.
func TestKilledInsideCleanStop(t *testing.T) {
	t.Parallel()
	addr := server(t)
	f := newFleet(t, addr, func(o *Options) { o.pace.window = 30 * time.Second; o.StartTimeout = time.Second })
	f.bootstrap()
	p := proxy.Start(t, addr)
	behind := func(o *Options) { o.Servers = []string{p.Addr()} }
	a := f.start("1", behind)
	w := f.acquire(a)
	ts := f.use(a)
	p.CutOnReply(1, func(b []byte) bool { return bytesHas(b, `"released"`) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		w.Release(ctx, ts)
	}()
	if !p.WaitCuts(1, 10*time.Second) {
		t.Fatal("no release was sent")
	}
	p.Refuse(true)
	f.kill("1")
	<-done
	// Somebody else may have it now.
	a = f.start("1", behind)
	has(t, f.refuse(a, 2500*time.Millisecond).Error(), "gave the worker number back")
	if s := f.raw().slot(0); s.State != slotReleased || s.Until != ts {
		t.Errorf("slot %+v, want released at %d", s, ts)
	}
	p.Refuse(false)
	if w := f.acquire(a); w.ID() != 0 || w.Window().Base < ts {
		t.Errorf("worker %d above %d, want 0 above %d", w.ID(), w.Window().Base, ts)
	}
}

// The machine was rebooted: the number held before stays reserved, and another one serves.
func TestReboot(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t), func(o *Options) { o.pace.window = 30 * time.Second; o.pace.session = time.Second })
	f.bootstrap()
	a := f.acquire(f.start("1"))
	f.kill("1")
	d, err := datadir.Open(filepath.Join(f.dirs, "1"), datadir.Options{Machine: &datadir.Machine{ID: "m", Boot: "another"}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	o := f.base
	o.Identity = "10.0.0.1:8080"
	r, err := Open(d, o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close(context.Background())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	b, err := r.Acquire(ctx, -1)
	if err != nil {
		t.Fatal(err)
	}
	if a.ID() == b.ID() {
		t.Errorf("got %d again after a reboot, inside its window", a.ID())
	}
	if s := f.raw().slot(a.ID()); s.State != slotHeld || s.Gen != 1 {
		t.Errorf("the old slot: %+v", s)
	}
}

// A clock that is off ZooKeeper's: refused at start and at renewal, and told; nothing of it reaches the fence.
func TestClockOff(t *testing.T) {
	t.Parallel()
	clock := workertest.NewRunningClock(time.Now().UnixMilli())
	f := newFleet(t, server(t))
	f.bootstrap()
	on := func(o *Options) { o.Clock = clock }
	a := f.start("1", on)
	f.acquire(a)
	clock.Step(10 * 365 * 24 * time.Hour)
	eventually(t, "it says so", 10*time.Second, func() bool { return strings.Contains(a.Status().Reason, "off ZooKeeper's") })
	r := f.raw()
	if s := r.slot(0); s.Until > time.Now().Add(2*time.Minute).UnixMilli() {
		t.Errorf("the fence went to %d", s.Until)
	}
	has(t, f.refuse(f.start("2", on), 2*time.Second).Error(), "this machine's clock is 87", "snowflake.max_skew")
	if off, err := a.Time(t.Context()); err != nil || clock.Now()-off < 9*365*24*3600_000 {
		t.Errorf("ZooKeeper's time %d, %v", off, err)
	}
	clock.Step(-10 * 365 * 24 * time.Hour)
	eventually(t, "it serves again", 10*time.Second, func() bool { return a.Status().State == "serving" })
	f.use(a)
	f.acquire(f.start("3", on))

	// peers W14: killed while ahead, started with the right time: the bound used is waited for when near, else left.
	ahead := f.start("4", on)
	f.acquire(ahead)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := ahead.w.Extend(ctx, clock.Now()+1000); err != nil {
		t.Fatal(err)
	}
	far := ahead.w.Window().Until
	f.kill("4")
	w := f.acquire(f.start("4", on))
	if w.ID() == ahead.w.ID() && w.Window().Base < far {
		t.Errorf("worker %d again above %d, and %d was usable", w.ID(), w.Window().Base, far)
	}
}

// Digest authentication: with it, a root of its own; without or with a wrong password a refusal that names the setting and
// shows no secret (I13).
func TestDigest(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-w0rd"
	f := newFleet(t, server(t), func(o *Options) { o.Auth = "redleaf:" + secret })
	f.bootstrap()
	i := f.start("1")
	f.acquire(i)
	f.use(i)
	for n, auth := range []string{"", "redleaf:wrong"} {
		_, err := f.start(fmt.Sprint(n+2), func(o *Options) { o.Auth = auth }).Acquire(t.Context(), -1)
		var no *snowflake.NoWorkerError
		if !errors.As(err, &no) || !no.Permanent {
			t.Fatalf("auth %q: %v, want a permanent refusal", auth, err)
		}
		has(t, err.Error(), "snowflake.zookeeper.auth")
	}
	// The credentials are in force again after the connection is lost.
	i.tree.(*conn).wire.Load().Conn.Close()
	eventually(t, "it serves", 10*time.Second, func() bool {
		i.w.(*worker).kick()
		return i.Status().State == "serving" && i.Status().Session
	})
	f.use(i)
	for _, text := range []string{f.log.String(), fmt.Sprintf("%+v", i.Status())} {
		if strings.Contains(text, secret) {
			t.Error("the password is shown")
		}
	}
}

func TestChrootAndTLS(t *testing.T) {
	t.Parallel()
	addr := server(t)
	f := newFleet(t, addr+"/some/chroot", func(o *Options) { o.Root = "/" })
	f.bootstrap()
	i := f.start("1")
	f.acquire(i)
	r := f.raw()
	if b, _, err := r.Conn.Get("/some/chroot/" + f.base.Name + "/slots/0000"); err != nil || !strings.Contains(string(b), "10.0.0.1:8080") {
		t.Errorf("slot below the chroot: %s, %v", b, err)
	}

	s := newFleet(t, strings.ReplaceAll(shared.zoo.TLSServers(), "127.0.0.1", "localhost"), func(o *Options) { o.TLSCA = shared.zoo.TLS.CA })
	s.bootstrap()
	j := s.start("1")
	s.acquire(j)
	s.use(j)
	// Without the right authority there is no session, and the log says why.
	bad := s.start("2", func(o *Options) { o.TLSCA = services.MakeTLS(t, t.TempDir()).CA })
	has(t, s.refuse(bad, 2*time.Second).Error(), "no session with ZooKeeper")
	has(t, s.log.String(), "snowflake.zookeeper.tls_ca")
}

// The instance is stopped by SIGSTOP for longer than its session, and its number recycled meanwhile (peers W8).
func TestPausedWhileRecycled(t *testing.T) {
	t.Parallel()
	addr := server(t)
	f := newFleet(t, addr, func(o *Options) {
		o.Layout.WorkerBits = 1
		o.WorkersHi = 0
		o.pace.session = time.Second
		o.pace.window = 3 * time.Second
	})
	f.bootstrap()
	c := f.startChild("1")
	held := c.next()
	if held.Event != "window" || held.Worker != 0 {
		t.Fatalf("the child says %+v", held)
	}
	c.signal("STOP")
	b := f.start("2")
	v := f.acquire(b)
	c.signal("CONT")
	for {
		e := c.next()
		if e.Event == "window" && e.Until > v.Window().Base {
			t.Fatalf("the paused instance may issue up to %d, the new owner from %d", e.Until, v.Window().Base)
		}
		if e.Event == "lost" {
			has(t, e.Reason, "belongs to 10.0.0.2:8080")
			break
		}
	}
	f.use(b)
}

// The same without anybody who wants the number: a new session, the same number.
func TestPausedAlone(t *testing.T) {
	t.Parallel()
	f := newFleet(t, server(t), func(o *Options) { o.pace.session = time.Second })
	f.bootstrap()
	c := f.startChild("1")
	c.next()
	c.signal("STOP")
	r := f.raw()
	eventually(t, "the session is over", 10*time.Second, func() bool { ok, _, _ := r.Exists(r.base.live(0)); return !ok })
	c.signal("CONT")
	eventually(t, "the number is alive again", 20*time.Second, func() bool { ok, _, _ := r.Exists(r.base.live(0)); return ok })
	for e := c.next(); e.Event != "window"; e = c.next() {
		t.Fatalf("the child says %+v", e)
	}
	if s := r.slot(0); s.Gen != 1 || s.ID != "10.0.0.1:8080" {
		t.Errorf("slot %+v", s)
	}
}

// childEvent is what a child process tells, one a line.
type childEvent struct {
	Event       string // "window", "lost"
	Worker      int64
	Base, Until int64
	Reason      string
}

type childProcess struct {
	t   *testing.T
	cmd *exec.Cmd
	dec *json.Decoder
}

// startChild runs an instance in a process of its own, which can be paused.
func (f *fleet) startChild(name string) *childProcess {
	f.t.Helper()
	o, err := json.Marshal(map[string]any{
		"servers": f.servers, "name": f.base.Name, "id": "10.0.0." + name + ":8080", "dir": filepath.Join(f.dirs, name),
		"bits": f.base.Layout.WorkerBits, "hi": f.base.WorkersHi, "session": f.base.pace.session, "window": f.base.pace.window,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ZOOKEEPER_CHILD="+string(o))
	cmd.Stderr = f.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &childProcess{f.t, cmd, json.NewDecoder(out)}
}

func (c *childProcess) next() childEvent {
	c.t.Helper()
	var e childEvent
	got := make(chan error, 1)
	go func() { got <- c.dec.Decode(&e) }()
	select {
	case err := <-got:
		if err != nil {
			c.t.Fatalf("the child ended: %v", err)
		}
	case <-time.After(30 * time.Second):
		c.t.Fatal("the child is silent")
	}
	return e
}

func (c *childProcess) signal(name string) {
	c.t.Helper()
	sig := map[string]syscall.Signal{"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT}[name]
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.t.Fatal(err)
	}
}

func childMain() {
	var in struct {
		Servers, Name, ID, Dir string
		Bits                   uint8
		Hi                     int64
		Session, Window        time.Duration
	}
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
	}
	check(json.Unmarshal([]byte(os.Getenv("ZOOKEEPER_CHILD")), &in))
	d, err := datadir.Open(in.Dir, datadir.Options{Machine: &datadir.Machine{ID: "m", Boot: "b"}})
	check(err)
	p := hurried
	p.session, p.window = in.Session, in.Window
	r, err := Open(d, Options{
		Servers: []string{in.Servers}, Root: "/snowflake", Name: in.Name, Identity: in.ID, WorkersHi: in.Hi, Autonomy: time.Minute,
		Layout: snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: in.Bits, SequenceBits: 12}, pace: p,
	})
	check(err)
	ctx := context.Background()
	out := json.NewEncoder(os.Stdout)
	w, err := r.Acquire(ctx, -1)
	check(err)
	for {
		ectx, cancel := context.WithTimeout(ctx, time.Second)
		win, _ := w.Extend(ectx, time.Now().UnixMilli())
		cancel()
		check(out.Encode(childEvent{Event: "window", Worker: w.ID(), Base: win.Base, Until: win.Until}))
		select {
		case <-w.Lost():
			check(out.Encode(childEvent{Event: "lost", Worker: w.ID(), Reason: r.Status().Reason}))
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Nothing is left running by open, trouble and close.
func TestGoroutines(t *testing.T) {
	f := newFleet(t, server(t))
	f.bootstrap()
	before := runtime.NumGoroutine()
	for range 3 {
		i := f.start("1")
		f.acquire(i)
		f.stop("1", f.use(i))
		f.start("2", func(o *Options) { o.Servers = []string{"127.0.0.1:1"} })
		f.kill("2")
	}
	eventually(t, "the goroutines are gone", 20*time.Second, func() bool { return runtime.NumGoroutine() <= before+1 })
}

// Generators on the real thing: connections cut at any byte, instances killed and started again, and no ID twice (I1).
func TestGenerators(t *testing.T) {
	t.Parallel()
	addr := server(t)
	f := newFleet(t, addr)
	f.bootstrap()
	p := proxy.Start(t, addr)
	var mu sync.Mutex
	owner := map[int64]string{}
	draw := func(name string) *snowflake.Generator {
		i := f.start(name, func(o *Options) { o.Servers = []string{p.Addr()} })
		g, err := snowflake.New(i, snowflake.SystemClock{}, snowflake.Options{Layout: f.base.Layout, ClockWait: 5 * time.Millisecond, MaxSkew: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		return g
	}
	run := func(g *snowflake.Generator, who string, ids int) {
		for n := 0; n < ids; {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			batch, err := g.Append(ctx, nil, 500)
			cancel()
			if err != nil {
				var no *snowflake.NoWorkerError
				var back *snowflake.ClockBackError // up to 3 s after a kill: the bound that may have been used
				if errors.As(err, &no) && !no.Permanent || errors.As(err, &back) {
					time.Sleep(20 * time.Millisecond)
					continue
				}
				t.Errorf("%s: %v", who, err)
				return
			}
			mu.Lock()
			for _, id := range batch {
				if was, dup := owner[id]; dup {
					t.Errorf("%d came twice, from %s and %s", id, was, who)
				}
				owner[id] = who
			}
			mu.Unlock()
			n += len(batch)
			time.Sleep(5 * time.Millisecond)
		}
	}
	stop := make(chan struct{})
	var chaos sync.WaitGroup
	chaos.Go(func() {
		for n := int64(0); ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
				p.CutAfter(proxy.ToClient, 20+n*37%400)
			}
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				p.CutAfter(proxy.ToClient, -1)
			}
		}
	})
	var wg sync.WaitGroup
	for _, name := range []string{"1", "2", "3"} {
		wg.Go(func() {
			for life := range 4 {
				g := draw(name)
				run(g, fmt.Sprintf("%s#%d", name, life), 30_000)
				if life%2 == 0 {
					f.kill(name) // and what its generator does afterwards reaches nobody
				}
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				g.Close(ctx)
				cancel()
				f.kill(name)
			}
		})
	}
	wg.Wait()
	close(stop)
	chaos.Wait()
	if len(owner) < 3*4*30_000 {
		t.Errorf("%d IDs", len(owner))
	}
}

// forever with 50,000 children, and the most numbers that the layout may have.
func TestLargeTrees(t *testing.T) {
	t.Parallel()
	children, bits := envInt(t, "FOREVER_CHILDREN", 50_000), uint8(envInt(t, "WORKER_BITS", 13))
	f := newFleet(t, server(t), func(o *Options) { o.Layout.WorkerBits, o.Layout.SequenceBits = bits, 6; o.pace = usualPace })
	r := f.raw()
	r.leafTree()
	for n := int64(0); n < children; n += 1000 {
		var ops []any
		for k := n; k < n+1000; k++ {
			ops = append(ops, &zk.CreateRequest{Path: r.base.node(childName(fmt.Sprintf("10.%d.%d.%d:8080", k>>16, k>>8&255, k&255), 1<<20+k)), Data: []byte("x"), Acl: zk.WorldACL(zk.PermAll)})
		}
		if _, err := r.Multi(ops...); err != nil {
			t.Fatal(err)
		}
	}
	f.bootstrap()
	// The counter is past the range; every slot was used once and is free.
	for n := int64(0); n < 1<<bits; n += 1000 {
		var ops []any
		for k := n; k < min(n+1000, 1<<bits); k++ {
			s := slot{V: 1, ID: "10.9.9.9:1", Gen: 1, Nonce: "x", Until: 1_700_000_000_000 + (k*7919)%(1<<bits), HW: 1, Since: 1, State: slotReleased}
			ops = append(ops, &zk.SetDataRequest{Path: r.base.slot(k), Data: encode(s), Version: 0})
		}
		if _, err := r.Multi(ops...); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	i := f.start("1")
	w := f.acquire(i)
	t.Logf("%d children, %d slots: a number after %s", children, 1<<bits, time.Since(began))
	if w.ID() != 0 { // 7919·k is 0 mod 2^bits for k = 0 alone: the window that is past longest
		t.Errorf("got %d, want 0", w.ID())
	}
	f.use(i)
	eventually(t, "it renews", 10*time.Second, func() bool { return r.slot(0).HW > w.Window().Base })
	if free := i.Status().Free; free != 1<<bits {
		t.Errorf("%d free of %d", free, 1<<bits)
	}
}
