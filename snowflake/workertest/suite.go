package workertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"redleaf/snowflake"
)

// Env is an implementation made ready for one test: an empty registry that instances are started on.
type Env struct {
	// Start starts the instance called name, or restarts it with the state and identity it had. An error means that this
	// instance may not start beside those that run.
	Start func(t *testing.T, name string) (snowflake.WorkerIDs, error)

	// Kill ends the instance called name as kill -9 does: it releases nothing and writes nothing more.
	Kill func(t *testing.T, name string)

	// Shared: instances of different names hold different numbers side by side. Otherwise the second one must be refused, by
	// Start or by Acquire.
	Shared bool

	// MaxStep is how far the suite may step the wall clock away from real time. 0: one hour.
	MaxStep time.Duration

	// Patience is the longest that starting, acquiring and extending may take. 0: 10 s.
	Patience time.Duration
}

func (e Env) patience() time.Duration {
	if e.Patience == 0 {
		return 10 * time.Second
	}
	return e.Patience
}

func (e Env) step() time.Duration {
	if e.MaxStep == 0 {
		return time.Hour
	}
	return e.MaxStep
}

// Run checks the contract of snowflake.WorkerIDs and snowflake.Worker. open makes an empty registry whose instances use clock;
// the clock begins at real time and runs, and is stepped by at most Env.MaxStep. open registers its own clean-up with t.
func Run(t *testing.T, open func(t *testing.T, clock *Clock) Env) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *run)
	}{
		{"acquire", testAcquire},
		{"extend", testExtend},
		{"extend far", testExtendFar},
		{"extend while read", testExtendWhileRead},
		{"status", testStatus},
		{"time", testTime},
		{"contexts", testContexts},
		{"closed", testClosed},
		{"released", testReleased},
		{"clean restart", testCleanRestart},
		{"release without an id", testReleaseUnused},
		{"kill", testKill},
		{"kill while extending", testKillWhileExtending},
		{"kill at once", testKillAtOnce},
		{"clock back over a restart", testClockBack},
		{"many restarts", testManyRestarts},
		{"second instance", testSecondInstance},
		{"acquire again", testAcquireAgain},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := NewRunningClock(time.Now().UnixMilli())
			r := &run{t: t, clock: clock, env: open(t, clock), used: map[int64][]snowflake.Window{}}
			c.test(t, r)
		})
	}
}

// run is one test's view of an Env. It keeps every window that a holder could have issued from, for each number.
type run struct {
	t     *testing.T
	clock *Clock
	env   Env
	used  map[int64][]snowflake.Window
}

func (r *run) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), r.env.patience())
	r.t.Cleanup(cancel)
	return ctx
}

func (r *run) start(name string) snowflake.WorkerIDs {
	r.t.Helper()
	ids, err := r.env.Start(r.t, name)
	if err != nil {
		r.t.Fatalf("start %s: %v", name, err)
	}
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), r.env.patience())
		defer cancel()
		ids.Close(ctx)
	})
	return ids
}

func (r *run) acquire(ids snowflake.WorkerIDs) snowflake.Worker {
	r.t.Helper()
	w, err := ids.Acquire(r.ctx(), -1)
	if err != nil {
		r.t.Fatalf("acquire: %v", err)
	}
	win := w.Window()
	if win.Until < win.Base {
		r.t.Fatalf("worker %d: window %v ends before its base", w.ID(), win)
	}
	r.disjoint(w.ID(), win)
	return w
}

// disjoint fails when a window of the number begins below the end of an earlier one (I7).
func (r *run) disjoint(worker int64, win snowflake.Window) {
	r.t.Helper()
	for _, u := range r.used[worker] {
		if win.Base < u.Until {
			r.t.Fatalf("worker %d: window %v begins inside %v, which was granted before", worker, win, u)
		}
	}
}

// spent notes that everything in the window may have been issued.
func (r *run) spent(worker int64, win snowflake.Window) {
	r.used[worker] = append(r.used[worker], win)
}

func (r *run) extend(w snowflake.Worker, ts int64) snowflake.Window {
	r.t.Helper()
	before := w.Window()
	got, err := w.Extend(r.ctx(), ts)
	if err != nil {
		r.t.Fatalf("extend to %d: %v", ts, err)
	}
	if got.Until < ts || got.Until < before.Until {
		r.t.Fatalf("extend to %d from %v: got %v", ts, before, got)
	}
	if now := w.Window(); got.Base != before.Base || now.Base != before.Base || now.Until < got.Until {
		r.t.Fatalf("extend to %d from %v: returned %v, Window() is then %v", ts, before, got, now)
	}
	return got
}

// next is a timestamp that a generator would issue now: the clock's, or the first of the window.
func (r *run) next(w snowflake.Worker) int64 { return max(r.clock.Now(), w.Window().Base+1) }

func (r *run) stop(ids snowflake.WorkerIDs, w snowflake.Worker, last int64) {
	r.t.Helper()
	if err := w.Release(r.ctx(), last); err != nil {
		r.t.Fatalf("release %d at %d: %v", w.ID(), last, err)
	}
	if err := ids.Close(r.ctx()); err != nil {
		r.t.Fatalf("close: %v", err)
	}
}

func testAcquire(t *testing.T, r *run) {
	ids := r.start("a")
	w := r.acquire(ids)
	if w.ID() < 0 {
		t.Errorf("worker number %d", w.ID())
	}
	if base, now := w.Window().Base, r.clock.Now(); base > now {
		t.Errorf("base %d of a number never used before is %d ms ahead of the clock", base, base-now)
	}
	select {
	case <-w.Lost():
		t.Error("lost at once")
	default:
	}
}

func testExtend(t *testing.T, r *run) {
	w := r.acquire(r.start("a"))
	for range 5 {
		win := r.extend(w, r.next(w)+500)
		r.clock.Advance(time.Duration(win.Until-r.clock.Now()) * time.Millisecond / 2)
	}
	// Asking for less than there is takes nothing away.
	win := w.Window()
	if got := r.extend(w, win.Base+1); got.Until < win.Until {
		t.Errorf("extend below the end shrank %v to %v", win, got)
	}
}

// A generator whose clock stands behind the base, or goes on from its last timestamp, asks for what is ahead of the clock.
func testExtendFar(t *testing.T, r *run) {
	w := r.acquire(r.start("a"))
	r.extend(w, r.next(w)+2000)
	r.extend(w, w.Window().Until+1)
}

func testExtendWhileRead(t *testing.T, r *run) {
	w := r.acquire(r.start("a"))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			last := w.Window()
			for {
				select {
				case <-stop:
					return
				default:
				}
				win := w.Window()
				if win.Base != last.Base || win.Until < last.Until {
					t.Errorf("window went from %v to %v", last, win)
					return
				}
				last = win
			}
		})
	}
	for i := range 10 {
		r.extend(w, r.next(w)+int64(i)*20)
	}
	close(stop)
	wg.Wait()
}

func testStatus(t *testing.T, r *run) {
	ids := r.start("a")
	st := ids.Status()
	if st.Registry == "" || st.Worker != -1 {
		t.Errorf("before Acquire: registry %q, worker %d, want a name and -1", st.Registry, st.Worker)
	}
	w := r.acquire(ids)
	win := r.extend(w, r.next(w)+100)
	st = ids.Status()
	if st.Worker != w.ID() || st.State != "serving" || st.Reason != "" {
		t.Errorf("holding %d: worker %d, state %q, reason %q", w.ID(), st.Worker, st.State, st.Reason)
	}
	if st.Window.Until < win.Until {
		t.Errorf("status says %v, Extend granted %v", st.Window, win)
	}
	r.stop(ids, w, 0)
	if st = ids.Status(); st.State != "stopped" || st.Worker != -1 {
		t.Errorf("after Close: state %q, worker %d, want stopped and -1", st.State, st.Worker)
	}
}

func testTime(t *testing.T, r *run) {
	ids := r.start("a")
	r.acquire(ids)
	now, err := ids.Time(r.ctx())
	switch {
	case errors.Is(err, snowflake.ErrNoClock):
	case err != nil:
		t.Errorf("Time: %v, want a time or ErrNoClock", err)
	case now < r.clock.Now()-60_000 || now > r.clock.Now()+60_000:
		t.Errorf("Time: %d, the clock has %d", now, r.clock.Now())
	}
}

func testContexts(t *testing.T, r *run) {
	ids := r.start("a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	if w, err := ids.Acquire(ctx, -1); err == nil { // it may have been quicker than the look at ctx
		if err := w.Release(r.ctx(), 0); err != nil {
			t.Fatal(err)
		}
	}
	w := r.acquire(ids)
	before := w.Window()
	if win, err := w.Extend(ctx, before.Until+1000); err == nil && win.Until < before.Until+1000 {
		t.Errorf("extend with an ended context: %v without an error", win)
	}
	if took := time.Since(began); took > r.env.patience() {
		t.Errorf("calls with an ended context took %s", took)
	}
	r.extend(w, r.next(w)+100) // and it harmed nothing
}

func testClosed(t *testing.T, r *run) {
	ids := r.start("a")
	r.stop(ids, r.acquire(ids), 0)
	if _, err := ids.Acquire(r.ctx(), -1); !errors.Is(err, snowflake.ErrClosed) {
		t.Errorf("acquire after close: %v, want ErrClosed", err)
	}
	if err := ids.Close(r.ctx()); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func testReleased(t *testing.T, r *run) {
	ids := r.start("a")
	w := r.acquire(ids)
	win := r.extend(w, r.next(w)+100)
	if err := w.Release(r.ctx(), win.Base+1); err != nil {
		t.Fatalf("release: %v", err)
	}
	var no *snowflake.NoWorkerError
	if got, err := w.Extend(r.ctx(), win.Until+1000); !errors.As(err, &no) {
		t.Errorf("extend after release: %v, %v, want *NoWorkerError", got, err)
	}
}

// A clean stop gives back what was not issued: the restart needs no wait, and begins above the last ID all the same.
func testCleanRestart(t *testing.T, r *run) {
	for range 3 {
		ids := r.start("a")
		w := r.acquire(ids)
		ts := r.next(w)
		win := r.extend(w, ts+100)
		if now := r.clock.Now(); win.Base > now {
			t.Errorf("base %d is %d ms ahead of the clock after a clean stop", win.Base, win.Base-now)
		}
		r.stop(ids, w, ts)
		r.spent(w.ID(), snowflake.Window{Base: win.Base, Until: ts})
		r.clock.Advance(10 * time.Millisecond)
	}
}

func testReleaseUnused(t *testing.T, r *run) {
	ids := r.start("a")
	w := r.acquire(ids)
	ts := r.next(w)
	r.extend(w, ts+100)
	r.spent(w.ID(), snowflake.Window{Base: w.Window().Base, Until: ts})
	r.stop(ids, w, ts)

	ids = r.start("a")
	w = r.acquire(ids)
	r.extend(w, r.next(w)+100)
	r.stop(ids, w, 0)

	r.acquire(r.start("a")) // disjoint: the first run's last timestamp still counts
}

func testKill(t *testing.T, r *run) {
	for range 3 {
		ids := r.start("a")
		w := r.acquire(ids)
		win := r.extend(w, r.next(w)+100)
		r.spent(w.ID(), win)
		r.env.Kill(t, "a")
		r.clock.Advance(time.Duration(max(0, win.Until-r.clock.Now())) * time.Millisecond)
	}
	r.acquire(r.start("a"))
}

// What Window() said at any moment may have been issued, also when the kill comes in the middle of an extension.
func testKillWhileExtending(t *testing.T, r *run) {
	for range 5 {
		ids := r.start("a")
		w := r.acquire(ids)
		r.extend(w, r.next(w)+10)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range int64(50) {
				ctx, cancel := context.WithTimeout(context.Background(), r.env.patience())
				_, err := w.Extend(ctx, w.Window().Until+i%7)
				cancel()
				if err != nil {
					return
				}
			}
		}()
		time.Sleep(2 * time.Millisecond) // any moment will do
		win := w.Window()
		r.env.Kill(t, "a")
		<-done
		r.spent(w.ID(), win)
		r.clock.Advance(20 * time.Millisecond)
	}
	r.acquire(r.start("a"))
}

func testKillAtOnce(t *testing.T, r *run) {
	for range 3 {
		w := r.acquire(r.start("a"))
		r.spent(w.ID(), w.Window())
		r.env.Kill(t, "a")
	}
	r.acquire(r.start("a"))
}

// leaf F1, F2, F3: whatever the clock says at the restart, the window begins above what was granted, or there is none.
func testClockBack(t *testing.T, r *run) {
	ids := r.start("a")
	w := r.acquire(ids)
	r.spent(w.ID(), r.extend(w, r.next(w)+100))
	r.env.Kill(t, "a")
	r.clock.Step(-r.env.step() / 2)
	defer r.clock.Step(r.env.step() / 2)

	ids, err := r.env.Start(t, "a")
	if err != nil {
		return // refused, which is as good
	}
	defer ids.Close(r.ctx())
	ctx, cancel := context.WithTimeout(t.Context(), min(r.env.patience(), 3*time.Second))
	defer cancel()
	w, err = ids.Acquire(ctx, -1)
	if err != nil {
		return
	}
	r.disjoint(w.ID(), w.Window())
}

func testManyRestarts(t *testing.T, r *run) {
	for i := range 12 {
		ids := r.start("a")
		w := r.acquire(ids)
		ts := r.next(w)
		win := r.extend(w, ts+50)
		if i%3 == 0 {
			r.spent(w.ID(), win)
			r.env.Kill(t, "a")
		} else {
			r.spent(w.ID(), snowflake.Window{Base: win.Base, Until: ts})
			r.stop(ids, w, ts)
		}
		r.clock.Advance(time.Duration(max(0, w.Window().Until-r.clock.Now())) * time.Millisecond)
	}
}

// leaf F5, peers W7: two instances never issue from one window.
func testSecondInstance(t *testing.T, r *run) {
	ids := r.start("a")
	w := r.acquire(ids)
	win := r.extend(w, r.next(w)+100)
	r.spent(w.ID(), win)

	other, err := r.env.Start(t, "b")
	if err == nil {
		defer other.Close(r.ctx())
		ctx, cancel := context.WithTimeout(t.Context(), r.env.patience())
		defer cancel()
		if !r.env.Shared {
			ctx, cancel = context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
		}
		var v snowflake.Worker
		if v, err = other.Acquire(ctx, -1); err == nil {
			r.disjoint(v.ID(), v.Window())
			if v.ID() == w.ID() {
				t.Errorf("both instances hold worker %d", w.ID())
			}
			if err := v.Release(r.ctx(), 0); err != nil {
				t.Error(err)
			}
		}
	}
	if r.env.Shared && err != nil {
		t.Errorf("second instance: %v", err)
	}
	if !r.env.Shared && err == nil {
		t.Error("a second instance was let in")
	}
	r.extend(w, w.Window().Until+100) // the first one is not disturbed
}

// After a Release the same instance may acquire again; a number to be avoided comes back only if there is no other.
func testAcquireAgain(t *testing.T, r *run) {
	ids := r.start("a")
	w := r.acquire(ids)
	first := w.ID()
	ts := r.next(w)
	r.extend(w, ts+100)
	r.spent(first, snowflake.Window{Base: w.Window().Base, Until: ts})
	if err := w.Release(r.ctx(), ts); err != nil {
		t.Fatal(err)
	}
	w, err := ids.Acquire(r.ctx(), first)
	if err != nil {
		t.Fatalf("acquire avoiding %d: %v", first, err)
	}
	r.disjoint(w.ID(), w.Window())
	if r.env.Shared && w.ID() == first {
		t.Errorf("got %d, which was to be avoided while others are free", first)
	}
	r.extend(w, r.next(w)+100)
}

// String tells what failed for which call, in a test's output.
func (o Op) String() string {
	return fmt.Sprintf("%s %s worker=%d at=%d", o.Name, o.Call, o.Worker, o.At)
}
