package local

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"redleaf/snowflake"
	"redleaf/snowflake/workertest"
)

// The clock steps by any amount between two runs on one data directory, after a clean stop and after kill -9: the IDs go on
// increasing, or are refused until the clock has caught up (leaf F1 to F3, peers W13, W14, W24).
func TestRestartAtAnotherTime(t *testing.T) {
	for _, c := range []struct {
		step        time.Duration
		policy      string
		clean       bool
		least, most time.Duration // until the first ID
	}{
		{0, "refuse", true, 0, 50 * time.Millisecond},
		{-3 * time.Millisecond, "refuse", true, 0, 50 * time.Millisecond},
		{-6 * time.Millisecond, "refuse", true, 5 * time.Millisecond, 50 * time.Millisecond},
		{-time.Second, "refuse", true, 990 * time.Millisecond, 1300 * time.Millisecond},
		{-8 * time.Hour, "refuse", true, 8*time.Hour - time.Second, 8*time.Hour + 2*time.Second},
		{-8 * time.Hour, "logical", true, 0, 50 * time.Millisecond},
		{0, "refuse", false, 900 * time.Millisecond, 3100 * time.Millisecond},
		{-time.Second, "refuse", false, 1900 * time.Millisecond, 4100 * time.Millisecond},
		{-8 * time.Hour, "logical", false, 0, 50 * time.Millisecond},
		{time.Minute, "refuse", false, 0, 50 * time.Millisecond},
	} {
		path := filepath.Join(t.TempDir(), "data")
		synctest.Test(t, func(t *testing.T) {
			clock := workertest.NewRunningClock(1_800_000_000_000)
			run := func() (*machine, *snowflake.Generator) {
				m := mustStart(t, path, Options{Worker: 7, Clock: clock})
				g, err := snowflake.New(m.ids, clock, snowflake.Options{Layout: leaf, ClockWait: 5 * time.Millisecond, Policy: c.policy})
				check(t, err)
				g.Start()
				return m, g
			}
			first := func(g *snowflake.Generator) (int64, time.Duration) {
				began := time.Now()
				for {
					synctest.Wait()
					id, err := g.Next(t.Context())
					if err == nil {
						return id, time.Since(began)
					}
					if waited := time.Since(began); waited > 10*time.Second {
						time.Sleep(time.Second)
					} else {
						time.Sleep(time.Millisecond)
					}
				}
			}
			m, g := run()
			last, _ := first(g)
			for range 2000 {
				id, err := g.Next(t.Context())
				if err != nil || id <= last {
					t.Fatalf("%d after %d, %v", id, last, err)
				}
				last = id
				time.Sleep(time.Millisecond)
			}
			if !c.clean {
				m.ids.Close(context.Background()) // nothing is written any more
				if err := g.Close(t.Context()); !errors.Is(err, snowflake.ErrClosed) {
					t.Errorf("the number was given back: %v", err)
				}
			} else {
				check(t, g.Close(t.Context()))
			}
			m.kill()
			clock.Step(c.step)

			m, g = run()
			id, took := first(g)
			if id <= last {
				t.Errorf("%s %s clean=%v: %d after %d", c.policy, c.step, c.clean, id, last)
			}
			if took < c.least || took > c.most {
				t.Errorf("%s %s clean=%v: the first ID after %s", c.policy, c.step, c.clean, took)
			}
			check(t, g.Close(t.Context()))
			m.kill()
		})
	}
}

// Ten years ahead at a start: refused, nothing is spoilt, and the next start with the clock set right goes on at once.
func TestTenYearsAheadAtStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	synctest.Test(t, func(t *testing.T) {
		clock := workertest.NewRunningClock(1_800_000_000_000)
		var last int64
		for _, step := range []time.Duration{0, 3650 * day, -3650 * day} {
			clock.Step(step)
			m := mustStart(t, path, Options{Clock: clock})
			g, err := snowflake.New(m.ids, clock, snowflake.Options{Layout: leaf})
			check(t, err)
			g.Start()
			synctest.Wait()
			time.Sleep(time.Second)
			id, err := g.Next(t.Context())
			var no *snowflake.NoWorkerError
			if step > 0 {
				if !errors.As(err, &no) || !no.Permanent {
					t.Errorf("%d, %v", id, err)
				}
			} else if err != nil || id <= last {
				t.Errorf("%d after %d, %v", id, last, err)
			}
			last = max(last, id)
			check(t, g.Close(t.Context()))
			m.kill()
		}
	})
}
