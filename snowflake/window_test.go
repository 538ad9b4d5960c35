package snowflake_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"redleaf/snowflake"
	"redleaf/snowflake/workertest"
)

// Windows are made longer ahead of need, and only while somebody draws.
func TestExtendedAhead(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		var mu sync.Mutex
		var calls, at []int64
		number := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(calls)
		}
		r.mem.SetFault(func(op workertest.Op) (bool, error) {
			if op.Call == "extend" {
				mu.Lock()
				calls, at = append(calls, r.clock.Now()-noon), append(at, op.At-noon)
				mu.Unlock()
				time.Sleep(100 * time.Millisecond) // a slow disk
			}
			return true, nil
		})
		for range 10_000 {
			r.next() // fails when it takes longer than 10 ms
			time.Sleep(time.Millisecond)
		}
		if n := number(); n < 4 || n > 6 {
			t.Errorf("%d extensions in 10 s", n)
		}
		mu.Lock()
		for i := range calls {
			if ahead := at[i] - calls[i]; ahead < 1000 || ahead > 1010 {
				t.Errorf("asked for %d ms ahead", ahead)
			}
		}
		mu.Unlock()
		// The key stays warm for a while without a request, and then nothing is written any more.
		time.Sleep(2 * snowflake.Warm)
		n := number()
		time.Sleep(time.Hour)
		if more := number() - n; more != 0 {
			t.Errorf("%d extensions in an idle hour", more)
		}
	})
}

// While it is warm the first request after a pause needs no write; later it waits for one.
func TestWarm(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.mem.SetFault(func(op workertest.Op) (bool, error) {
			if op.Call == "extend" {
				time.Sleep(7 * time.Millisecond)
			}
			return true, nil
		})
		for range 5 {
			r.next()
			time.Sleep(20 * time.Second)
			if _, ok := r.TryNext(); !ok {
				t.Error("no ID without a wait after 20 s")
			}
		}
		time.Sleep(time.Hour)
		if _, ok := r.TryNext(); ok {
			t.Error("an ID beyond the window")
		}
		began := time.Now()
		r.next()
		if took := time.Since(began); took > 7*time.Millisecond {
			t.Errorf("took %s", took)
		}
	})
}

// The registry fails: what is granted is issued to the end and not beyond (I7), the refusal says why, and it goes on by itself.
func TestExtensionFails(t *testing.T) {
	for _, applied := range []bool{false, true} {
		bubble(t, setup{}, func(t *testing.T, r *rig) {
			r.next()
			until := r.Status().Window.Until
			disk := errors.New("no disk")
			r.mem.SetFault(func(op workertest.Op) (bool, error) {
				if op.Call == "extend" {
					return applied, disk
				}
				return true, nil
			})
			var last int64
			var err error
			for err == nil {
				time.Sleep(time.Millisecond)
				var ms int64
				if ms, err = r.try(); err == nil {
					last = ms
				}
			}
			if last != until {
				t.Errorf("issued up to %d, the window ended at %d", last, until)
			}
			var no *snowflake.NoWorkerError
			if !errors.As(err, &no) || !errors.Is(err, disk) {
				t.Errorf("got %v", err)
			}
			if got := r.Ready(); !errors.Is(got, disk) {
				t.Errorf("ready: %v", got)
			}
			if st := r.Status(); st.State != "exhausted" || st.ExtensionErrors == 0 {
				t.Errorf("state %s, %d errors", st.State, st.ExtensionErrors)
			}
			time.Sleep(time.Minute)
			if n := r.Status().ExtensionErrors; n > 100 {
				t.Errorf("%d attempts in a minute", n)
			}
			if n := r.log.count("could not be extended"); n < 3 || n > 8 {
				t.Errorf("%d alarms in a minute", n)
			}
			r.mem.SetFault(nil)
			time.Sleep(1100 * time.Millisecond)
			r.next()
			if n := r.log.count("extended again"); n != 1 {
				t.Errorf("the end was said %d times", n)
			}
		})
	}
}

// A window that grows no more, as without ZooKeeper, is used to its last millisecond.
func TestWindowToItsEnd(t *testing.T) {
	mem := workertest.NewMem(1)
	mem.Most = noon + 10_000
	bubble(t, setup{mem: mem}, func(t *testing.T, r *rig) {
		var last int64
		var err error
		for err == nil {
			var ms int64
			if ms, err = r.try(); err == nil {
				last = ms
			}
			time.Sleep(time.Millisecond)
		}
		var no *snowflake.NoWorkerError
		if !errors.As(err, &no) || last != noon+10_000 {
			t.Errorf("%v after %d", err, last)
		}
	})
}

// An extension that never ends: callers are refused within two seconds (I12), and it is over when it returns.
func TestExtensionHangs(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		release := make(chan struct{})
		r.mem.SetFault(func(op workertest.Op) (bool, error) {
			if op.Call == "extend" {
				<-release
			}
			return true, nil
		})
		time.Sleep(5 * time.Second)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				began := time.Now()
				_, err := r.Next(t.Context())
				var no *snowflake.NoWorkerError
				if took := time.Since(began); !errors.As(err, &no) || took != snowflake.WindowWait {
					t.Errorf("%v after %s", err, took)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			})
		}
		wg.Wait()
		close(release)
		r.next()
	})
}

// The number is lost: nothing is issued with it any more, the base of the next window is kept, and so is the order.
func TestLost(t *testing.T) {
	bubble(t, setup{numbers: 2}, func(t *testing.T, r *rig) {
		r.next()
		hold := make(chan struct{})
		r.mem.SetFault(func(op workertest.Op) (bool, error) {
			if op.Call == "acquire" {
				<-hold
			}
			return true, nil
		})
		r.mem.Lose(0)
		synctest.Wait()
		var no *snowflake.NoWorkerError
		if _, err := r.try(); !errors.As(err, &no) {
			t.Fatalf("got %v", err)
		}
		if _, ok := r.TryNext(); ok {
			t.Error("TryNext gave an ID")
		}
		if _, err := r.Append(t.Context(), nil, 3); !errors.As(err, &no) {
			t.Errorf("got %v", err)
		}
		if err := r.Ready(); !errors.As(err, &no) {
			t.Errorf("ready: %v", err)
		}
		if st := r.Status(); st.State != "waiting" || st.WorkersLost != 1 {
			t.Errorf("state %s, lost %d", st.State, st.WorkersLost)
		}
		if r.Last() != r.last {
			t.Errorf("Last %d, want %d", r.Last(), r.last)
		}
		close(hold)
		took := r.ready()
		// The same number again: its window is above all that was granted before, three seconds ahead of the clock.
		if took < 2*time.Second || took > 4*time.Second {
			t.Errorf("ready after %s", took)
		}
		r.next()
	})
}

// Another number in the same millisecond continues above the last ID all the same.
func TestOrderAcrossNumbers(t *testing.T) {
	bubble(t, setup{numbers: 3}, func(t *testing.T, r *rig) {
		r.mem.Lose(0)
		r.mem.SetUntil(0, noon-1000)
		r.mem.SetUntil(1, noon-1000)
		other, err := r.mem.Open("b").Acquire(t.Context(), 1) // 0 is taken, 1 goes to us
		if err != nil {
			t.Fatal(err)
		}
		r.ready()
		r.next()
		first := parts(t, leaf, r.last)
		if err := other.Release(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		r.mem.Lose(first.Worker)
		r.ready()
		r.next() // fails unless it is larger
		if now := parts(t, leaf, r.last); now.Worker == first.Worker {
			t.Errorf("still worker %d", now.Worker)
		}
	})
}

// The registry forgot what it granted to this very process: refused, whatever it says.
func TestRegistryWentBack(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		time.Sleep(time.Second)
		r.next()
		r.mem.Lose(0)
		r.mem.SetUntil(0, noon+500)
		time.Sleep(time.Minute)
		var no *snowflake.NoWorkerError
		if _, err := r.try(); !errors.As(err, &no) || !no.Permanent || !strings.Contains(err.Error(), "the registry has lost that bound") {
			t.Errorf("got %v", err)
		}
	})
}

// A base a little ahead of the clock is waited for, in the background, and readiness says until when.
func TestBaseAhead(t *testing.T) {
	mem := workertest.NewMem(2)
	mem.SetUntil(0, noon+3000)
	bubble(t, setup{mem: mem, early: true}, func(t *testing.T, r *rig) {
		synctest.Wait()
		var back *snowflake.ClockBackError
		err := r.Ready()
		if !errors.As(err, &back) || back.Behind != 3*time.Second || back.What != "the bound of the last run" || !strings.Contains(err.Error(), "2027-01-15T08:00:03.000Z") {
			t.Errorf("ready: %v", err)
		}
		if _, err := r.try(); !errors.As(err, &back) {
			t.Errorf("got %v", err)
		}
		if took := r.ready(); took != 3*time.Second {
			t.Errorf("ready after %s", took)
		}
		if ms := r.next(); ms != noon+3001 {
			t.Errorf("timestamp %d", ms)
		}
	})
}

// It is far ahead: another number is taken at once.
func TestBaseFarAhead(t *testing.T) {
	mem := workertest.NewMem(2)
	mem.SetUntil(0, noon+3_600_000)
	bubble(t, setup{mem: mem}, func(t *testing.T, r *rig) {
		if ms := r.next(); ms != noon || parts(t, leaf, r.last).Worker != 1 {
			t.Errorf("timestamp %d, worker %d", ms, parts(t, leaf, r.last).Worker)
		}
		if until := mem.Until(0); until != noon+3_600_000 {
			t.Errorf("the bound of the number left is %d", until)
		}
	})
}

// There is no other: refused, with the time it takes, and back by itself (leaf F1, F3).
func TestBaseFarAheadAlone(t *testing.T) {
	mem := workertest.NewMem(1)
	mem.SetUntil(0, noon+8*3_600_000)
	bubble(t, setup{mem: mem, early: true}, func(t *testing.T, r *rig) {
		time.Sleep(time.Minute)
		var back *snowflake.ClockBackError
		if _, err := r.try(); !errors.As(err, &back) || (back.Behind-8*time.Hour+time.Minute).Abs() > time.Second {
			t.Errorf("got %v", err)
		}
		r.clock.Step(7 * time.Hour) // set right
		time.Sleep(59*time.Minute + time.Second)
		synctest.Wait()
		r.next()
	})
}

// All numbers are as bad: it does not go round and round.
func TestAllBasesFarAhead(t *testing.T) {
	mem := workertest.NewMem(3)
	for n := range int64(3) {
		mem.SetUntil(n, noon+3_600_000)
	}
	bubble(t, setup{mem: mem, early: true}, func(t *testing.T, r *rig) {
		calls := 0
		mem.SetFault(func(op workertest.Op) (bool, error) { calls++; return true, nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls > 20 {
			t.Errorf("%d calls to the registry", calls)
		}
		mem.SetFault(nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		r.next()
	})
}

// peers W14: logical time serves at once from the bound.
func TestBaseFarAheadLogical(t *testing.T) {
	mem := workertest.NewMem(1)
	mem.SetUntil(0, noon+3_600_000)
	s := logical()
	s.mem = mem
	bubble(t, s, func(t *testing.T, r *rig) {
		time.Sleep(time.Millisecond)
		if ms := r.next(); ms != noon+3_600_001 {
			t.Errorf("timestamp %d", ms)
		}
		time.Sleep(time.Second)
		if ms := r.next(); ms != noon+3_600_001 {
			t.Errorf("timestamp %d", ms)
		}
		if n := r.log.count("going on from there"); n != 1 {
			t.Errorf("%d alarms", n)
		}
	})
}

// A number past the time bits is refused, and so is a base of garbage (leaf F24).
func TestBaseBeyondTheBits(t *testing.T) {
	for _, base := range []int64{leaf.Last(), leaf.Last() + 1, 1 << 62} {
		mem := workertest.NewMem(1)
		mem.SetUntil(0, base)
		bubble(t, setup{mem: mem, early: true}, func(t *testing.T, r *rig) {
			time.Sleep(time.Second)
			var up *snowflake.TimeUpError
			if _, err := r.try(); !errors.As(err, &up) {
				t.Errorf("%d: got %v", base, err)
			}
			if got := mem.Until(0); got != base {
				t.Errorf("the bound became %d", got)
			}
		})
	}
}

// peers W18: a number that the layout has no room for never becomes an ID.
func TestNumberOutOfRange(t *testing.T) {
	mem := workertest.NewMem(9)
	for range 8 {
		if _, err := mem.Open("x").Acquire(t.Context(), -1); err != nil {
			t.Fatal(err)
		}
	}
	s := setup{mem: mem, early: true}
	s.Layout = snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: 3, SequenceBits: 9}
	bubble(t, s, func(t *testing.T, r *rig) {
		synctest.Wait()
		var no *snowflake.NoWorkerError
		if _, err := r.try(); !errors.As(err, &no) || !no.Permanent || !strings.Contains(err.Error(), "worker number 8 does not fit snowflake.bits 41-3-9") {
			t.Errorf("got %v", err)
		}
	})
}

// A start a month past the last use needs the operator's word where no clock confirms it.
func TestLongStop(t *testing.T) {
	mem := workertest.NewMem(1)
	mem.SetUntil(0, noon-31*day.Milliseconds())
	bubble(t, setup{mem: mem, early: true}, func(t *testing.T, r *rig) {
		synctest.Wait()
		var no *snowflake.NoWorkerError
		if _, err := r.try(); !errors.As(err, &no) || !strings.Contains(err.Error(), "31 days past the last use of worker 0") {
			t.Errorf("got %v", err)
		}
	})
	s := setup{mem: mem}
	s.AcceptClock = true
	bubble(t, s, func(t *testing.T, r *rig) { r.next() })

	mem.SetUntil(0, noon-31*day.Milliseconds())
	mem.SetTime(func() (int64, error) { return noon, nil })
	bubble(t, setup{mem: mem}, func(t *testing.T, r *rig) { r.next() })
}

// The registry is out of reach at the start: the reason is told, the attempts are few, and it goes on by itself.
func TestAcquireFails(t *testing.T) {
	mem := workertest.NewMem(1)
	calls, applied := 0, false
	out := errors.New("no ensemble")
	mem.SetFault(func(op workertest.Op) (bool, error) {
		if op.Call == "acquire" {
			calls++
			return applied, out
		}
		return true, nil
	})
	bubble(t, setup{mem: mem, early: true}, func(t *testing.T, r *rig) {
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := r.try(); !errors.Is(err, out) {
			t.Errorf("got %v", err)
		}
		if calls < 10 || calls > 20 {
			t.Errorf("%d attempts in a minute", calls)
		}
		if n := r.log.count("no ensemble"); n < 3 || n > 8 {
			t.Errorf("%d alarms in a minute", n)
		}
		mem.SetFault(nil)
		r.ready()
		r.next()
	})
}

// A clean stop gives back exactly what was not issued, and the next run need not wait.
func TestClose(t *testing.T) {
	mem := workertest.NewMem(1)
	clock := workertest.NewClock(noon)
	synctest.Test(t, func(t *testing.T) {
		clock = workertest.NewRunningClock(noon)
		r := newRig(t, setup{mem: mem, clock: clock})
		ms := r.next()
		r.close()
		if got := mem.Until(0); got != ms {
			t.Errorf("given back at %d, want %d", got, ms)
		}
		if _, err := r.Next(t.Context()); !errors.Is(err, snowflake.ErrClosed) {
			t.Errorf("got %v", err)
		}
		if _, err := r.Append(t.Context(), nil, 2); !errors.Is(err, snowflake.ErrClosed) {
			t.Errorf("got %v", err)
		}
		if err := r.Ready(); !errors.Is(err, snowflake.ErrClosed) {
			t.Errorf("got %v", err)
		}
		if st := r.Status(); st.State != "stopped" {
			t.Errorf("state %s", st.State)
		}
		r.Start() // of no effect
		r.close()

		time.Sleep(time.Millisecond)
		again := newRig(t, setup{mem: mem, clock: clock, early: true})
		if took := again.ready(); took > 0 {
			t.Errorf("ready after %s", took)
		}
		again.last = r.last
		again.next()
		again.close()
	})
}

// A caller who looked up the number before it was given back, or lost, and goes on afterwards gets nothing of it.
func TestSealed(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		stale := r.Stale()
		if _, ok := stale(); !ok {
			t.Fatal("no ID before the end")
		}
		r.close()
		if id, ok := stale(); ok {
			t.Errorf("%d after the number was given back", id)
		}
	})
	bubble(t, setup{numbers: 2}, func(t *testing.T, r *rig) {
		stale := r.Stale()
		r.mem.Lose(0)
		r.ready()
		if id, ok := stale(); ok {
			t.Errorf("%d after the number was lost", id)
		}
	})
}

// Close while callers wait and draw: the last timestamp given back is the last that anybody got.
func TestCloseUnderLoad(t *testing.T) {
	for seed := range 20 {
		mem := workertest.NewMem(1)
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, setup{mem: mem})
			var mu sync.Mutex
			var highest int64
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for {
						ids, err := r.Append(t.Context(), nil, 3000)
						if err != nil {
							if !errors.Is(err, snowflake.ErrClosed) {
								t.Error(err)
							}
							return
						}
						mu.Lock()
						highest = max(highest, ids[len(ids)-1])
						mu.Unlock()
					}
				})
			}
			time.Sleep(time.Duration(seed) * 333 * time.Microsecond)
			r.close()
			wg.Wait()
			if highest == 0 {
				return
			}
			if got, want := mem.Until(0), parts(t, leaf, highest).Ms; got < want {
				t.Errorf("given back at %d, and %d was issued", got, want)
			}
		})
	}
}

func TestCloseWhileAcquiring(t *testing.T) {
	mem := workertest.NewMem(1)
	bubble(t, setup{mem: mem, early: true}, func(t *testing.T, r *rig) {})
	mem.SetUntil(0, noon+5000) // and while waiting for the base
	bubble(t, setup{mem: mem, early: true}, func(t *testing.T, r *rig) { time.Sleep(time.Second) })
	if got := mem.Until(0); got != noon+5000 {
		t.Errorf("given back at %d", got)
	}
	synctest.Test(t, func(t *testing.T) { // never started
		g, err := snowflake.New(mem.Open("a"), workertest.NewRunningClock(noon), snowflake.Options{Layout: leaf})
		if err != nil {
			t.Fatal(err)
		}
		var no *snowflake.NoWorkerError
		if _, err := g.Next(t.Context()); !errors.As(err, &no) {
			t.Errorf("got %v", err)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
		g.Start()
		if _, err := g.Next(t.Context()); !errors.Is(err, snowflake.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

// A registry that does not answer keeps nobody from leaving.
func TestCloseHangs(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		release := make(chan struct{})
		r.mem.SetFault(func(op workertest.Op) (bool, error) { <-release; return true, nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		close(release)
	})
}

// The clock steps by any amount between two runs, after a clean stop and after kill -9 (leaf F1 to F3, peers W13, W16, W29).
func TestRestartAtAnotherTime(t *testing.T) {
	for _, policy := range []string{"refuse", "logical"} {
		for _, step := range []time.Duration{-3 * time.Millisecond, -6 * time.Millisecond, -time.Second, -8 * time.Hour, 0, time.Second, 29 * day} {
			for _, clean := range []bool{true, false} {
				mem := workertest.NewMem(1)
				synctest.Test(t, func(t *testing.T) {
					clock := workertest.NewRunningClock(noon)
					s := setup{mem: mem, clock: clock, early: true}
					s.Policy = policy
					r := newRig(t, s)
					r.ready()
					for range 100 {
						r.next()
						time.Sleep(time.Millisecond * 5 / 2)
					}
					if clean {
						r.close()
					} else {
						r.kill()
					}
					clock.Step(step)
					again := newRig(t, s)
					defer again.close()
					again.last = r.last
					took := again.ready()
					again.next()
					limit := max(0, -step)
					if !clean {
						limit = max(0, 3*time.Second-step)
					}
					if policy == "logical" {
						limit = 0
					}
					if took > limit+1250*time.Millisecond || limit < 10*time.Second && took > limit+250*time.Millisecond {
						t.Errorf("%s %s clean=%v: ready after %s", policy, step, clean, took)
					}
				})
			}
		}
	}
}

// +10 years at a start and back at the next: refused as too far past the last use, and nothing is spoilt.
func TestRestartTenYearsAhead(t *testing.T) {
	mem := workertest.NewMem(1)
	synctest.Test(t, func(t *testing.T) {
		clock := workertest.NewRunningClock(noon)
		s := setup{mem: mem, clock: clock, early: true}
		r := newRig(t, s)
		r.ready()
		r.next()
		r.close()
		clock.Step(3650 * day)
		ahead := newRig(t, s)
		time.Sleep(time.Minute)
		var no *snowflake.NoWorkerError
		if _, err := ahead.try(); !errors.As(err, &no) {
			t.Errorf("got %v", err)
		}
		ahead.close()
		clock.Step(-3650 * day)
		again := newRig(t, s)
		defer again.close()
		again.ready()
		again.last = r.last
		again.next()
	})
}
