package zookeeper

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"redleaf/scripts/services"
	"redleaf/snowflake"
)

// watch collects the windows that holders of a number could have issued from, and fails when two of them overlap (I7).
type watch struct {
	t    *testing.T
	mu   sync.Mutex
	seen []span
}

type span struct {
	who         string
	worker      int64
	base, until int64
}

func (w *watch) note(i *instance) {
	w.t.Helper()
	if i.w == nil {
		return
	}
	win := i.w.Window()
	s := span{i.o.Identity, i.w.ID(), win.Base, win.Until}
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, o := range w.seen {
		if o.who == s.who && o.worker == s.worker && o.base == s.base {
			w.seen[k].until = max(o.until, s.until)
			return
		}
		if o.worker == s.worker && s.base < o.until && o.base < s.until {
			w.t.Fatalf("worker %d: %s from %d up to %d, and %s from %d up to %d", s.worker, s.who, s.base, s.until, o.who, o.base, o.until)
		}
	}
	w.seen = append(w.seen, s)
}

// Three servers, one story: the leader dies, the quorum is lost for longer than the session, everything is wiped with instances
// alive and with a new one starting.
func TestThreeServers(t *testing.T) {
	t.Parallel()
	zoo := services.StartZooKeeper(t, services.ZooKeeperOptions{Nodes: 3, TickTime: 200 * time.Millisecond})
	f := newFleet(t, zoo.Servers(), func(o *Options) { o.pace.window, o.pace.session = 40*time.Second, 2*time.Second })
	f.bootstrap()
	w := &watch{t: t}
	a, b := f.start("1"), f.start("2")
	f.acquire(a)
	f.acquire(b)
	use := func() {
		t.Helper()
		for _, i := range []*instance{a, b} {
			f.use(i)
			w.note(i)
		}
	}
	serving := func(what string, all ...*instance) {
		t.Helper()
		for _, i := range all {
			eventually(t, i.o.Identity+" serves "+what, 60*time.Second, func() bool { return i.Status().State == "serving" && i.Status().Session })
		}
	}
	use()

	// The leader is killed: the same numbers, no word of it to anybody who draws.
	leader := zoo.Leader()
	leader.Kill()
	use()
	zoo.WaitQuorum()
	for _, i := range []*instance{a, b} {
		i.w.(*worker).kick()
	}
	serving("after the leader's death", a, b)
	use()
	leader.Start()
	zoo.WaitQuorum()

	// No quorum for longer than the session: running instances go on, a new one says why it waits.
	zoo.Nodes[0].Kill()
	zoo.Nodes[1].Kill()
	for _, i := range []*instance{a, b} {
		eventually(t, "it is autonomous", 30*time.Second, func() bool { return i.Status().State == "autonomous" })
	}
	use()
	time.Sleep(f.base.pace.session + time.Second) // longer than the session lasts
	use()
	c := f.start("3")
	has(t, f.refuse(c, time.Second).Error(), "no session with ZooKeeper at 127.0.0.1:")
	zoo.Nodes[0].Start()
	zoo.Nodes[1].Start()
	zoo.WaitQuorum()
	serving("with a quorum", a, b)
	use()
	if got := f.acquire(c); got.ID() != 2 {
		t.Errorf("the new one got %d, want 2", got.ID())
	}
	w.note(c)
	f.stop("3", f.use(c))

	// All wiped. A new instance, with no idea of what was, starts before anybody has put the tree back.
	cluster, err := decodeMeta([]byte(f.raw().get(paths{f.base.base()}.meta())))
	if err != nil {
		t.Fatal(err)
	}
	zoo.KillAll()
	zoo.WipeAll()
	zoo.StartAll()
	d := f.start("4")
	got := make(chan snowflake.Worker, 1)
	go func() {
		if v, err := d.Acquire(t.Context(), -1); err == nil {
			got <- v
		}
	}()
	serving("after the wipe", a, b)
	use()
	r := f.raw()
	m, err := decodeMeta([]byte(r.get(r.base.meta())))
	if err != nil || m.Cluster != cluster.Cluster || m.State != metaMade {
		t.Errorf("meta %+v, %v, want the cluster %s", m, err, cluster.Cluster)
	}
	for n := range int64(8) {
		s := r.slot(n)
		switch n {
		case 0, 1:
			if want := fmt.Sprintf("10.0.0.%d:8080", n+1); s.ID != want || s.Node == "" {
				t.Errorf("slot %d after the wipe: %+v, want %s's", n, s, want)
			}
		default:
			if left := s.Until - time.Now().UnixMilli(); s.State != slotQuarantined || left < 20_000 {
				t.Errorf("slot %d after the wipe: %+v, %d ms left, want it quarantined", n, s, left)
			}
		}
	}
	kids := r.children(r.base.forever())
	if len(kids) != 2 || !strings.HasPrefix(kids[0], "10.0.0.") {
		t.Errorf("forever after the wipe: %v", kids)
	}
	if _, st, _ := r.Conn.Get(r.base.forever()); statOf(st).created() < 8 {
		t.Errorf("forever's counter is %d, within the range", statOf(st).created())
	}
	eventually(t, "the new one finds no number free", 30*time.Second, func() bool {
		return strings.Contains(d.Status().Reason, "no free worker number in 0-7")
	})
	select {
	case v := <-got:
		t.Errorf("the new one got %d", v.ID())
	default:
	}
	use()
	f.kill("4")

	// The owner of a number that was quarantined in its absence takes it back with its own window: its peers put the tree back
	// while it was cut off.
	r.deleteAll(r.base.slots())
	r.deleteAll(r.base.meta())
	serving("after meta and slots were deleted", a, b)
	use()
	for _, i := range []*instance{a, b} {
		select {
		case <-i.w.Lost():
			t.Errorf("%s lost its number: %s", i.o.Identity, i.Status().Reason)
		default:
		}
	}
}
