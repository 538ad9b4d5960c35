package snowflake_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"redleaf/snowflake"
	"redleaf/snowflake/workertest"
)

// leaf F17, peers W2, W5: a step back within clock_wait is waited out once, and no longer than it was.
func TestStepBackWaited(t *testing.T) {
	for _, back := range []time.Duration{1, 3, 4, 5} {
		back *= time.Millisecond
		bubble(t, setup{}, func(t *testing.T, r *rig) {
			before := r.next()
			r.clock.Step(-back)
			began := time.Now()
			after := r.next()
			if took := time.Since(began); took != back {
				t.Errorf("-%s: waited %s", back, took)
			}
			if after < before {
				t.Errorf("-%s: %d ms after %d", back, after, before)
			}
			if st := r.Status(); st.RollbacksWaited != 1 || st.RollbacksRefused != 0 || st.DriftMono != -back {
				t.Errorf("-%s: waited %d, refused %d, drift %s", back, st.RollbacksWaited, st.RollbacksRefused, st.DriftMono)
			}
		})
	}
}

// leaf F17, peers W3: beyond clock_wait it is refused at once, with one alarm in the log, and over by itself.
func TestStepBackRefused(t *testing.T) {
	for _, back := range []time.Duration{6 * time.Millisecond, time.Second, time.Hour, 8 * time.Hour} {
		bubble(t, setup{}, func(t *testing.T, r *rig) {
			r.next()
			r.clock.Step(-back)
			began := time.Now()
			for range 100 {
				r.refused(back, "the last ID")
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("-%s: refusing took %s", back, took)
			}
			if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "behind the last ID") {
				t.Errorf("-%s: ready: %v", back, err)
			}
			if st := r.Status(); st.State != "clockback" || st.RollbacksRefused != 100 || st.RollbacksWaited != 0 || st.Ahead != back {
				t.Errorf("-%s: state %s, refused %d, waited %d, ahead %s", back, st.State, st.RollbacksRefused, st.RollbacksWaited, st.Ahead)
			}
			if n := r.log.count("refusing IDs until it has caught up"); n != 1 {
				t.Errorf("-%s: %d alarms", back, n)
			}
			time.Sleep(snowflake.AlarmEvery)
			if back > snowflake.AlarmEvery {
				r.refused(back-snowflake.AlarmEvery, "the last ID")
				if n := r.log.count("refusing IDs until it has caught up"); n != 2 {
					t.Errorf("-%s: %d alarms", back, n)
				}
				time.Sleep(back - snowflake.AlarmEvery)
			}
			r.next()
			time.Sleep(snowflake.WatchEvery)
			synctest.Wait()
			if n := r.log.count("the clock has caught up"); n != 1 {
				t.Errorf("-%s: the end was said %d times", back, n)
			}
		})
	}
}

// With no clock_wait at all nothing is waited for.
func TestNoClockWait(t *testing.T) {
	bubble(t, setup{Options: snowflake.Options{ClockWait: time.Nanosecond}}, func(t *testing.T, r *rig) {
		r.next()
		r.clock.Step(-time.Millisecond)
		r.refused(time.Millisecond, "the last ID")
	})
}

// A clock that went back and comes home again needs nobody to confirm it.
func TestStepBackAndHome(t *testing.T) {
	for _, back := range []time.Duration{6 * time.Millisecond, time.Second, 8 * time.Hour} {
		bubble(t, setup{}, func(t *testing.T, r *rig) {
			r.next()
			r.clock.Step(-back)
			time.Sleep(3 * time.Second)
			if back > 3*time.Second {
				r.refused(back-3*time.Second, "the last ID")
			}
			r.clock.Step(back)
			if got := r.next(); got != noon+3000 {
				t.Errorf("-%s: %d, want %d", back, got, noon+3000)
			}
			if st := r.Status(); st.ForwardJumps != 0 {
				t.Errorf("-%s: counted as a step ahead", back)
			}
		})
	}
}

// peers W1: the sequence is not touched by an attempt that fails.
func TestFailedAttemptsLeaveNoTrace(t *testing.T) {
	bubble(t, setup{manual: true}, func(t *testing.T, r *rig) {
		seen := map[int64]bool{}
		draw := func() (n int) {
			for {
				id, ok := r.TryNext()
				if !ok {
					return n
				}
				if seen[id] {
					t.Fatalf("%d twice", id)
				}
				seen[id] = true
				n++
			}
		}
		r.clock.Advance(time.Millisecond)
		draw()
		r.clock.Step(-time.Millisecond)
		for range 3 {
			if n := draw(); n != 0 {
				t.Fatalf("%d IDs while the clock is behind", n)
			}
		}
		r.clock.Step(time.Millisecond)
		if n := draw(); n != 0 {
			t.Fatalf("%d more IDs in a millisecond that was used up", n)
		}
		r.clock.Advance(time.Millisecond)
		if n := draw(); n != 4096 {
			t.Fatalf("%d IDs in the next millisecond, want 4096", n)
		}
	})
}

// leaf F16, peers W4: the clock steps back while callers wait for the next millisecond. They are refused within clock_wait, and
// nobody spins: a sleep that does not return is all they do.
func TestStepBackDuringOverflow(t *testing.T) {
	for _, back := range []time.Duration{3 * time.Second, 10 * time.Second} {
		bubble(t, setup{}, func(t *testing.T, r *rig) {
			r.next()
			for {
				if _, ok := r.TryNext(); !ok {
					break
				}
			}
			errs := make(chan error, 20)
			began := time.Now()
			for range cap(errs) {
				go func() {
					_, err := r.Next(t.Context())
					errs <- err
				}()
			}
			synctest.Wait()
			r.clock.Step(-back)
			for range cap(errs) {
				var e *snowflake.ClockBackError
				if err := <-errs; !errors.As(err, &e) || e.Behind != back-time.Millisecond {
					t.Errorf("-%s: got %v", back, err)
				}
			}
			if took := time.Since(began); took != time.Millisecond {
				t.Errorf("-%s: took %s", back, took)
			}
			if st := r.Status(); st.Overflows > uint64(cap(errs)) {
				t.Errorf("-%s: %d sleeps for %d callers", back, st.Overflows, cap(errs))
			}
		})
	}
}

// napper is a clock whose sleeps end too early.
type napper struct{ *workertest.Clock }

func (c napper) Sleep(ctx context.Context, d time.Duration) error {
	return c.Clock.Sleep(ctx, min(d, max(d/3, 100*time.Microsecond)))
}

// leaf F23: a wait that ends early goes on until its time, and is no refusal.
func TestWokenEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := workertest.NewRunningClock(noon)
		g, err := snowflake.New(workertest.NewMem(1).Open("a"), napper{clock}, snowflake.Options{Layout: leaf, ClockWait: 5 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		defer g.Close(context.Background())
		synctest.Wait()
		time.Sleep(time.Millisecond)
		first, err := g.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			clock.Step(-5 * time.Millisecond)
			id, err := g.Next(t.Context())
			if err != nil || id <= first {
				t.Fatalf("%d after %d, %v", id, first, err)
			}
			first = id
		}
	})
}

// racer is a clock that lets something happen between its reading and what the caller makes of it.
type racer struct {
	*workertest.Clock
	between func()
}

func (c *racer) Read() (wall, mono time.Duration) {
	wall, mono = c.Clock.Read()
	if f := c.between; f != nil {
		c.between = nil
		f()
	}
	return wall, mono
}

// A caller overtaken by another, who is in the next millisecond already, did not see the clock go back.
func TestOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &racer{Clock: workertest.NewClock(noon)}
		g, err := snowflake.New(workertest.NewMem(1).Open("a"), clock, snowflake.Options{Layout: leaf})
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		defer g.Close(context.Background())
		synctest.Wait()
		var other int64
		clock.between = func() {
			clock.Advance(time.Millisecond)
			other, _ = g.TryNext()
		}
		if id, ok := g.TryNext(); !ok || other == 0 || id <= other {
			t.Errorf("%d, %v after %d", id, ok, other)
		}
		// The same when the other one used the millisecond up, and time went on.
		clock.between = func() {
			for ok := true; ok; {
				other, ok = g.TryNext()
			}
			clock.Advance(time.Millisecond)
		}
		if id, ok := g.TryNext(); !ok || id <= other {
			t.Errorf("%d, %v after %d", id, ok, other)
		}
	})
}

// The wall clock stands still under a full millisecond: nobody waits for ever (I12).
func TestStandstill(t *testing.T) {
	bubble(t, setup{manual: true}, func(t *testing.T, r *rig) {
		r.clock.Advance(time.Millisecond)
		for {
			if _, ok := r.TryNext(); !ok {
				break
			}
		}
		errs := make(chan error, 1)
		go func() {
			_, err := r.Next(t.Context())
			errs <- err
		}()
		for n := 0; ; n++ {
			synctest.Wait()
			select {
			case err := <-errs:
				var back *snowflake.ClockBackError
				if !errors.As(err, &back) || !strings.Contains(err.Error(), "it stands still") {
					t.Errorf("got %v", err)
				}
				if n > 60 {
					t.Errorf("after %d ms", n)
				}
				return
			default:
				r.clock.Stall(time.Millisecond)
			}
		}
	})
}

func logical() setup { return setup{Options: snowflake.Options{Policy: "logical"}} }

// peers W3, W5, W6: logical time goes on from the last timestamp, as slowly as it can, and hands over to the clock in the end.
func TestLogical(t *testing.T) {
	bubble(t, logical(), func(t *testing.T, r *rig) {
		last := r.next()
		r.clock.Step(-time.Second)
		for range 2000 {
			if ms := r.next(); ms != last {
				t.Fatalf("timestamp %d, want %d: the sequence was not used up", ms, last)
			}
		}
		if st := r.Status(); st.State != "logical" || st.Ahead != time.Second || st.Err != nil {
			t.Errorf("state %s, ahead %s, %v", st.State, st.Ahead, st.Err)
		}
		if n := r.log.count("going on from the last timestamp"); n != 1 {
			t.Errorf("%d alarms", n)
		}
		time.Sleep(100 * time.Millisecond)
		// A hundred milliseconds have passed, so that a hundred and no more may be opened at once.
		n := 0
		for ; ; n++ {
			if _, ok := r.TryNext(); !ok {
				break
			}
		}
		if low, high := 100*4096, 101*4096; n < low || n > high {
			t.Errorf("%d IDs at once, want %d to %d", n, low, high)
		}
		r.next() // waits a millisecond for the next
		time.Sleep(time.Second)
		if ms, now := r.next(), r.clock.Now(); ms != now {
			t.Errorf("timestamp %d, the clock has %d", ms, now)
		}
		time.Sleep(snowflake.WatchEvery)
		synctest.Wait()
		if st := r.Status(); st.State != "serving" {
			t.Errorf("state %s", st.State)
		}
		if n := r.log.count("the clock has caught up"); n != 1 {
			t.Errorf("the end was said %d times", n)
		}
	})
}

// peers W6: five steps back within one millisecond, 10,000 IDs each.
func TestLogicalStepsTogether(t *testing.T) {
	bubble(t, logical(), func(t *testing.T, r *rig) {
		r.next()
		for range 5 {
			r.clock.Step(-20 * time.Millisecond)
			for range 10_000 {
				r.next() // checks that it increases
			}
		}
	})
}

// A short step is waited out under logical time too.
func TestLogicalShortStep(t *testing.T) {
	bubble(t, logical(), func(t *testing.T, r *rig) {
		r.next()
		r.clock.Step(-4 * time.Millisecond)
		began := time.Now()
		r.next()
		if took := time.Since(began); took != 4*time.Millisecond {
			t.Errorf("waited %s", took)
		}
		if st := r.Status(); st.State != "serving" {
			t.Errorf("state %s", st.State)
		}
	})
}

func TestLogicalStandstill(t *testing.T) {
	s := logical()
	s.manual = true
	bubble(t, s, func(t *testing.T, r *rig) {
		r.clock.Advance(time.Millisecond)
		ids := make(chan int64, 8192)
		go func() {
			defer close(ids)
			for range cap(ids) {
				id, err := r.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				ids <- id
			}
		}()
		var last int64
		for n := 0; n < 200; n++ {
			synctest.Wait()
			r.clock.Stall(time.Millisecond)
		}
		for id := range ids {
			if id <= last {
				t.Fatalf("%d after %d", id, last)
			}
			last = id
		}
	})
}

// The largest timestamp that logical time uses is inside the window, as any other.
func TestLogicalWindow(t *testing.T) {
	s := logical()
	s.Layout = snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: 10, SequenceBits: 3}
	bubble(t, s, func(t *testing.T, r *rig) {
		r.next()
		r.mem.SetFault(func(op workertest.Op) (bool, error) { return false, errors.New("no disk") })
		defer r.mem.SetFault(nil)
		r.clock.Step(-time.Hour)
		var err error
		for err == nil {
			_, err = r.Next(t.Context())
		}
		var no *snowflake.NoWorkerError
		if !errors.As(err, &no) {
			t.Fatalf("got %v", err)
		}
		if last, until := r.Status().LastMs, r.mem.Until(0); last != until {
			t.Errorf("stopped at %d, the window ends at %d", last, until)
		}
	})
}

// +10 years and back, without a registry's clock: not followed, nothing is lost when it is over (W14).
func TestTenYearsAhead(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		time.Sleep(snowflake.WatchEvery)
		r.clock.Step(3650 * day)
		for n := range int64(50) {
			if ms := r.next(); ms != noon+250+n*1000 {
				t.Fatalf("timestamp %d, want %d", ms, noon+250+n*1000)
			}
			time.Sleep(time.Second)
		}
		if until := r.mem.Until(0); until > noon+60_000 {
			t.Errorf("the window went to %d", until)
		}
		st := r.Status()
		if !st.Doubted || st.ForwardJumps != 1 || st.State != "serving" || st.DriftMono != 3650*day {
			t.Errorf("doubted %v, jumps %d, state %s, drift %s", st.Doubted, st.ForwardJumps, st.State, st.DriftMono)
		}
		r.clock.Step(-3650 * day)
		if ms := r.next(); ms != noon+50_250 {
			t.Errorf("timestamp %d", ms)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if r.Status().Doubted || r.log.count("back from its step ahead") != 1 {
			t.Errorf("still doubted")
		}
	})
}

// Without anybody to confirm it a step ahead is followed after a minute, with an alarm.
func TestStepAheadFollowedAfterAMinute(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		r.clock.Step(2 * time.Hour)
		time.Sleep(59 * time.Second)
		if ms := r.next(); ms != noon+59_000 {
			t.Errorf("timestamp %d after 59 s", ms)
		}
		time.Sleep(2 * time.Second)
		if ms := r.next(); ms != noon+61_000+2*3_600_000 {
			t.Errorf("timestamp %d after 61 s", ms)
		}
		if n := r.log.count("following it with nothing to confirm it"); n != 1 || r.Status().Doubted {
			t.Errorf("%d alarms, doubted %v", n, r.Status().Doubted)
		}
	})
}

// One step after another begins the minute anew.
func TestStepsAheadInTurn(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		r.clock.Step(time.Hour)
		time.Sleep(50 * time.Second)
		r.clock.Step(time.Hour)
		time.Sleep(50 * time.Second)
		if ms := r.next(); ms != noon+100_000 {
			t.Errorf("timestamp %d", ms)
		}
		time.Sleep(11 * time.Second)
		if ms := r.next(); ms != noon+111_000+2*3_600_000 {
			t.Errorf("timestamp %d", ms)
		}
	})
}

// A suspend explains a step ahead: CLOCK_BOOTTIME went on.
func TestSuspend(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		r.clock.Suspend(9 * time.Hour)
		time.Sleep(2 * snowflake.WatchEvery)
		if ms := r.next(); ms != noon+500+9*3_600_000 {
			t.Errorf("timestamp %d", ms)
		}
		if n := r.log.count("the machine was suspended"); n != 1 {
			t.Errorf("said %d times", n)
		}
	})
}

// A step during a suspend of another length is not explained by it.
func TestSuspendAndStep(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		r.clock.Suspend(time.Hour)
		r.clock.Step(10 * time.Hour)
		time.Sleep(2 * snowflake.WatchEvery)
		if ms := r.next(); ms != noon+500 {
			t.Errorf("timestamp %d", ms)
		}
	})
}

// Small steps and slewing are followed at once.
func TestSmallStepAhead(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		want := int64(noon)
		for range 5 {
			r.clock.Step(900 * time.Millisecond)
			time.Sleep(2 * snowflake.WatchEvery)
			want += 1400
			if ms := r.next(); ms != want {
				t.Errorf("timestamp %d, want %d", ms, want)
			}
		}
		if st := r.Status(); st.ForwardJumps != 0 {
			t.Errorf("%d steps ahead", st.ForwardJumps)
		}
	})
}

// truth gives the registry a clock that runs right whatever is done to the machine's.
func truth(r *rig) {
	real := workertest.NewRunningClock(r.clock.Now())
	r.mem.SetTime(func() (int64, error) { return real.Now(), nil })
}

// The registry's clock confirms a step ahead: the machine's was behind, and was set right.
func TestStepAheadConfirmed(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		r.mem.SetTime(func() (int64, error) { return r.clock.Now(), nil })
		r.clock.Step(time.Hour)
		time.Sleep(2 * snowflake.WatchEvery)
		if ms := r.next(); ms != noon+500+3_600_000 {
			t.Errorf("timestamp %d", ms)
		}
	})
}

// It says that the step is wrong: never followed, however long it lasts.
func TestStepAheadDenied(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		truth(r)
		r.clock.Step(3650 * day)
		time.Sleep(5 * time.Minute)
		if ms := r.next(); ms != noon+300_000 {
			t.Errorf("timestamp %d", ms)
		}
		if n := r.log.count("the registry's clock says it is wrong"); n < 5 || n > 31 {
			t.Errorf("%d alarms", n)
		}
	})
}

// A registry that has a clock is waited for when it can't be asked, also past the minute and after a suspend.
func TestStepAheadUnconfirmed(t *testing.T) {
	mem := workertest.NewMem(1)
	mem.SetTime(func() (int64, error) { return noon, nil })
	bubble(t, setup{mem: mem}, func(t *testing.T, r *rig) {
		r.next()
		mem.SetTime(nil)
		r.clock.Suspend(time.Hour)
		time.Sleep(5 * time.Minute)
		if ms := r.next(); ms != noon+300_000 {
			t.Errorf("timestamp %d", ms)
		}
		mem.SetTime(func() (int64, error) { return r.clock.Now(), nil })
		time.Sleep(2 * time.Second)
		if ms := r.next(); ms != noon+302_000+3_600_000 {
			t.Errorf("timestamp %d", ms)
		}
	})
}

// peers W14: a number used while the clock was wrong is left for another one, once the registry's clock says which is right.
func TestPoisonedWhileRunning(t *testing.T) {
	bubble(t, setup{numbers: 2}, func(t *testing.T, r *rig) {
		r.next()
		r.clock.Step(time.Hour)
		time.Sleep(2 * time.Minute)
		r.next() // followed after a minute
		r.clock.Step(-time.Hour)
		truth(r) // the registry's clock says that it is right now
		r.refused(time.Hour, "the last ID")
		time.Sleep(10 * time.Second)
		r.ready()
		r.last = 0 // order is promised for one number
		ms := r.next()
		if now := r.clock.Now(); ms != now || parts(t, leaf, r.last).Worker != 1 {
			t.Errorf("timestamp %d of worker %d, the clock has %d", ms, parts(t, leaf, r.last).Worker, now)
		}
		if until := r.mem.Until(0); until < noon+3_600_000 {
			t.Errorf("the number was given back at %d", until)
		}
	})
}

// The clock before the epoch, from the start: refused, and served when it is set right.
func TestBeforeTheEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := workertest.NewRunningClock(1000)
		r := newRig(t, setup{clock: clock, early: true})
		defer r.close()
		synctest.Wait()
		var back *snowflake.ClockBackError
		if err := r.Ready(); !errors.As(err, &back) || back.What != "snowflake.epoch" {
			t.Fatalf("got %v", err)
		}
		if _, err := r.Next(t.Context()); !errors.As(err, &back) {
			t.Errorf("got %v", err)
		}
		clock.Step(noon * time.Millisecond)
		r.ready()
		r.next()
	})
}

// leaf F18: and while running.
func TestBackBeforeTheEpoch(t *testing.T) {
	for _, s := range []setup{{}, logical()} {
		bubble(t, s, func(t *testing.T, r *rig) {
			r.next()
			r.clock.Step(-(noon - 1000) * time.Millisecond)
			_, err := r.try()
			if s.Policy == "logical" {
				if err == nil {
					t.Error("issued before the epoch")
				}
				return
			}
			var back *snowflake.ClockBackError
			if !errors.As(err, &back) || back.What != "snowflake.epoch" {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestMaxSkew(t *testing.T) {
	for _, c := range []struct {
		off  int64
		text string
	}{
		{5000, ""},
		{-5000, ""},
		{5001, "5.001s behind the registry's"},
		{-5001, "5.001s ahead of the registry's"},
	} {
		synctest.Test(t, func(t *testing.T) {
			clock := workertest.NewRunningClock(noon)
			mem := workertest.NewMem(1)
			theirs := workertest.NewRunningClock(noon + c.off)
			mem.SetTime(func() (int64, error) { return theirs.Now(), nil })
			r := newRig(t, setup{clock: clock, mem: mem, early: true})
			defer r.close()
			synctest.Wait()
			err := r.Ready()
			if c.text == "" {
				if err != nil {
					t.Errorf("%d: %v", c.off, err)
				}
				return
			}
			var skew *snowflake.SkewError
			if !errors.As(err, &skew) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "snowflake.max_skew is 5s") {
				t.Errorf("%d: %v", c.off, err)
			}
			if st := r.ids.Status(); st.Worker != -1 {
				t.Errorf("%d: worker %d was claimed", c.off, st.Worker)
			}
			clock.Step(time.Duration(c.off) * time.Millisecond) // set right
			r.ready()
			r.next()
		})
	}
}

// Later on it is an alarm: what is unique is issued all the same.
func TestSkewLater(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		r.mem.SetSkew(-5001 * time.Millisecond)
		time.Sleep(time.Minute)
		r.next()
		if n := r.log.count("off the registry's by more than snowflake.max_skew"); n < 5 || n > 7 {
			t.Errorf("%d alarms in a minute", n)
		}
	})
}

// plain is a clock that can't read both of its hands at once.
type plain struct{ c *workertest.Clock }

func (p plain) Now() int64                                       { return p.c.Now() }
func (p plain) Mono() time.Duration                              { return p.c.Mono() }
func (p plain) Boot() time.Duration                              { return p.c.Boot() }
func (p plain) Sleep(ctx context.Context, d time.Duration) error { return p.c.Sleep(ctx, d) }

func TestPlainClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := workertest.NewRunningClock(noon)
		g, err := snowflake.New(workertest.NewMem(1).Open("a"), plain{clock}, snowflake.Options{Layout: leaf, ClockWait: 5 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		defer g.Close(context.Background())
		synctest.Wait()
		var last int64
		for range 10_000 {
			id, err := g.Next(t.Context())
			if err != nil || id <= last {
				t.Fatalf("%d after %d, %v", id, last, err)
			}
			last = id
		}
		clock.Step(-3 * time.Millisecond)
		if id, err := g.Next(t.Context()); err != nil || id <= last {
			t.Errorf("%d after %d, %v", id, last, err)
		}
	})
}

func TestSystemClock(t *testing.T) {
	c := snowflake.SystemClock{}
	before, mono, boot := time.Now(), c.Mono(), c.Boot()
	wall, at := c.Read()
	now := c.Now()
	if err := c.Sleep(t.Context(), 5*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if at < mono || at > c.Mono() || c.Mono()-mono < 5*time.Millisecond {
		t.Errorf("Mono %s, Read %s, Mono %s", mono, at, c.Mono())
	}
	if wall < time.Duration(before.UnixNano()) || int64(wall/time.Millisecond) > now {
		t.Errorf("Read %s, Now %d", wall, now)
	}
	if boot < mono-time.Second || c.Boot()-boot < 5*time.Millisecond {
		t.Errorf("Boot %s, Mono %s", boot, mono)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Sleep(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := c.Sleep(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
