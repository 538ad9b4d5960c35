package workertest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"redleaf/snowflake"
)

func TestMem(t *testing.T) {
	Run(t, func(t *testing.T, clock *Clock) Env {
		mem := NewMem(4)
		var mu sync.Mutex
		open := map[string]*MemIDs{}
		return Env{
			Start: func(t *testing.T, name string) (snowflake.WorkerIDs, error) {
				mu.Lock()
				defer mu.Unlock()
				open[name] = mem.Open(name)
				return open[name], nil
			},
			Kill: func(t *testing.T, name string) {
				mu.Lock()
				defer mu.Unlock()
				open[name].Kill()
			},
			Shared: true,
		}
	})
}

// An extension whose result was lost grants nothing, and its owner's next one may not lower what the registry has (I9).
func TestMemFailedButApplied(t *testing.T) {
	mem := NewMem(1)
	w, err := mem.Open("a").Acquire(t.Context(), -1)
	if err != nil {
		t.Fatal(err)
	}
	lost := errors.New("reply lost")
	mem.SetFault(func(op Op) (bool, error) { return op.Call == "extend", lost })
	if win, err := w.Extend(t.Context(), 10_000); !errors.Is(err, lost) || win.Until != 0 {
		t.Fatalf("got %v, %v", win, err)
	}
	if got := mem.Until(0); got != 12_000 {
		t.Fatalf("the registry has %d, want 12000", got)
	}
	mem.SetFault(nil)
	if win, err := w.Extend(t.Context(), 1000); err != nil || win.Until != 3000 {
		t.Fatalf("got %v, %v", win, err)
	}
	if got := mem.Until(0); got != 12_000 {
		t.Fatalf("the registry has %d, want 12000", got)
	}
}

func TestClock(t *testing.T) {
	c := NewClock(1000)
	c.Advance(5 * time.Millisecond)
	c.Step(-3 * time.Millisecond)
	c.Suspend(7 * time.Millisecond)
	c.Stall(time.Millisecond)
	if got := c.Now(); got != 1009 {
		t.Errorf("Now %d, want 1009", got)
	}
	if got := c.Mono() - time.Hour; got != 6*time.Millisecond {
		t.Errorf("Mono went on by %s, want 6ms", got)
	}
	if got := c.Boot() - 2*time.Hour; got != 13*time.Millisecond {
		t.Errorf("Boot went on by %s, want 13ms", got)
	}
}

func TestClockSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock(0)
		var woke time.Duration
		go func() {
			c.Sleep(context.Background(), 10*time.Millisecond)
			woke = c.Mono() - time.Hour
		}()
		synctest.Wait()
		c.Step(time.Hour) // a step wakes nobody
		c.Advance(9 * time.Millisecond)
		synctest.Wait()
		if woke != 0 || c.Sleepers() != 1 {
			t.Fatalf("woke after %s, sleepers %d", woke, c.Sleepers())
		}
		c.Advance(time.Millisecond)
		synctest.Wait()
		if woke != 10*time.Millisecond || c.Sleepers() != 0 {
			t.Fatalf("woke after %s, sleepers %d", woke, c.Sleepers())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Sleep(ctx, time.Hour); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestRunningClockSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewRunningClock(5000)
		if err := c.Sleep(t.Context(), 10*time.Millisecond); err != nil || c.Now() != 5010 {
			t.Fatalf("%v, now %d", err, c.Now())
		}
		go c.Advance(time.Hour)
		began := time.Now()
		if err := c.Sleep(t.Context(), time.Minute); err != nil || time.Since(began) >= time.Minute {
			t.Fatalf("%v after %s of real time", err, time.Since(began))
		}
	})
}
