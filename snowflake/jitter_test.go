package snowflake_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"redleaf/snowflake"
	"redleaf/snowflake/workertest"
)

// deed is one thing that happens in a random run.
type deed struct {
	what string // "next", "append", "step", "suspend", "pass", "lose", "fail", "restart", "kill"
	n    int
	d    time.Duration
}

// peers W30: whatever the clock does, with every policy and tolerance, over restarts and losses of the number, no ID comes
// twice, each number's increase in every life, and nobody is blocked for longer than clock_wait and a few milliseconds.
func TestAnyClock(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		run := randomRun{
			policy: rapid.SampledFrom([]string{"refuse", "logical"}).Draw(rt, "policy"),
			wait:   time.Duration(rapid.SampledFrom([]int{1, 5, 50, 500}).Draw(rt, "clock_wait")) * time.Millisecond,
			jitter: rapid.SampledFrom([]int{0, 0, 3, 100}).Draw(rt, "jitter"),
			bits:   uint8(rapid.SampledFrom([]int{2, 6, 12}).Draw(rt, "sequence bits")),
			clocks: rapid.Bool().Draw(rt, "registry has a clock"),
			seed:   rapid.Uint64().Draw(rt, "seed"),
		}
		ms := rapid.IntRange(-300, 300)
		big := rapid.SampledFrom([]time.Duration{-8 * time.Hour, -time.Minute, -time.Second, time.Second, time.Hour, 400 * day})
		run.deeds = rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) deed {
			switch rapid.IntRange(0, 19).Draw(rt, "deed") {
			case 0, 1:
				return deed{what: "step", d: time.Duration(ms.Draw(rt, "ms")) * time.Millisecond}
			case 2:
				return deed{what: "step", d: big.Draw(rt, "d")}
			case 3:
				return deed{what: "suspend", d: time.Duration(rapid.IntRange(1, 100_000).Draw(rt, "ms")) * time.Millisecond}
			case 4, 5:
				return deed{what: "pass", d: time.Duration(rapid.IntRange(1, 3000).Draw(rt, "ms")) * time.Millisecond}
			case 6:
				return deed{what: "lose"}
			case 7:
				return deed{what: "fail", n: rapid.IntRange(0, 2).Draw(rt, "how")}
			case 8:
				return deed{what: "restart"}
			case 9:
				return deed{what: "kill"}
			case 10, 11, 12, 13:
				return deed{what: "append", n: rapid.IntRange(1, 300).Draw(rt, "n")}
			}
			return deed{what: "next", n: rapid.IntRange(1, 20).Draw(rt, "n")}
		}), 15, 60).Draw(rt, "deeds")
		var wrong string
		synctest.Test(t, func(t *testing.T) { wrong = run.do() })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

type randomRun struct {
	policy string
	wait   time.Duration
	jitter int // ms
	bits   uint8
	clocks bool
	seed   uint64
	deeds  []deed
}

// do returns what was wrong.
func (run randomRun) do() (wrong string) {
	fail := func(format string, args ...any) {
		if wrong == "" {
			wrong = fmt.Sprintf(format, args...)
		}
	}
	layout := snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: 2, SequenceBits: run.bits}
	clock := workertest.NewRunningClock(noon)
	rnd := rand.New(rand.NewPCG(run.seed, 0))
	if run.jitter > 0 {
		clock.Jitter(func() time.Duration { return -time.Duration(rnd.IntN(run.jitter+1)) * time.Millisecond })
	}
	mem := workertest.NewMem(3)
	if run.clocks {
		truth := workertest.NewRunningClock(noon)
		mem.SetTime(func() (int64, error) { return truth.Now(), nil })
	}
	var (
		mu   sync.Mutex // two callers draw at once
		seen = map[int64]bool{}
	)
	begin := func() (*snowflake.Generator, *workertest.MemIDs) {
		ids := mem.Open("a")
		g, err := snowflake.New(ids, clock, snowflake.Options{Layout: layout, ClockWait: run.wait, Policy: run.policy, AcceptClock: true})
		if err != nil {
			fail("new: %v", err)
			return nil, nil
		}
		g.SetSeed(run.seed)
		g.Start()
		synctest.Wait()
		return g, ids
	}
	g, ids := begin()
	if g == nil {
		return wrong
	}
	draw := func(last map[int64]int64, n int) {
		began := time.Now()
		var got []int64
		var err error
		if n == 1 {
			var id int64
			if id, err = g.Next(context.Background()); err == nil {
				got = []int64{id}
			}
		} else {
			got, err = g.Append(context.Background(), nil, n)
		}
		capacity := int(layout.Sequences())
		limit := run.wait + time.Duration(2*n/capacity+5)*time.Millisecond
		if took := time.Since(began); took > limit && n <= capacity {
			fail("%d IDs took %s with clock_wait %s (%v)", n, took, run.wait, err)
		}
		var back *snowflake.ClockBackError
		var no *snowflake.NoWorkerError
		if err != nil && !errors.As(err, &back) && !errors.As(err, &no) {
			fail("%v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, id := range got {
			p, err := layout.Unpack(id)
			if err != nil || seen[id] {
				fail("%d, %v, a second time (%v)", id, p, err)
			}
			seen[id] = true
			if id <= last[p.Worker] {
				fail("%d, %v, after %d", id, p, last[p.Worker])
			}
			last[p.Worker] = id
		}
	}
	stop := func(kill bool) {
		if kill {
			ids.Kill()
		}
		if err := g.Close(context.Background()); err != nil {
			fail("close: %v", err)
		}
		ids.Close(context.Background())
	}
	mine := map[int64]int64{}
	for _, d := range run.deeds {
		switch d.what {
		case "next":
			var wg sync.WaitGroup
			other := map[int64]int64{}
			wg.Go(func() {
				for range d.n {
					draw(other, 1)
				}
			})
			for range d.n {
				draw(mine, 1)
			}
			wg.Wait()
		case "append":
			draw(mine, d.n)
		case "step":
			clock.Step(d.d)
		case "suspend":
			clock.Suspend(d.d)
		case "pass":
			time.Sleep(d.d)
		case "lose":
			for n := range int64(3) {
				mem.Lose(n)
			}
			synctest.Wait()
		case "fail":
			mem.SetFault(func(op workertest.Op) (bool, error) {
				if d.n == 0 || op.Call == "release" {
					return true, nil
				}
				return d.n == 2, errors.New("no registry")
			})
		case "restart", "kill":
			stop(d.what == "kill")
			if g, ids = begin(); g == nil {
				return wrong
			}
			time.Sleep(100 * time.Millisecond)
		}
		if wrong != "" {
			break
		}
	}
	stop(false)
	return wrong
}

// The same in real time and with many callers: jitter on every reading while everybody draws.
func TestJitterUnderLoad(t *testing.T) {
	for _, policy := range []string{"refuse", "logical"} {
		clock := workertest.NewRunningClock(time.Now().UnixMilli())
		var state uint64 = 1 // guarded by the clock
		clock.Jitter(func() time.Duration {
			state = state*6364136223846793005 + 1442695040888963407
			return -time.Duration(state>>33%8) * time.Millisecond
		})
		g, err := snowflake.New(workertest.NewMem(1).Open("a"), clock, snowflake.Options{Layout: leaf, ClockWait: 5 * time.Millisecond, Policy: policy})
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		var wg sync.WaitGroup
		got := make([][]int64, 6)
		for c := range got {
			wg.Go(func() {
				for ctx.Err() == nil {
					if c%2 == 0 {
						if id, err := g.Next(ctx); err == nil {
							got[c] = append(got[c], id)
						} else {
							time.Sleep(time.Millisecond)
						}
					} else {
						var err error
						if got[c], err = g.Append(ctx, got[c], 50); err != nil {
							time.Sleep(time.Millisecond)
						}
					}
				}
			})
		}
		wg.Wait()
		cancel()
		g.Close(context.Background())
		var all []int64
		for c, ids := range got {
			if !slices.IsSorted(ids) {
				t.Errorf("%s: caller %d is not increasing", policy, c)
			}
			all = append(all, ids...)
		}
		slices.Sort(all)
		if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
			t.Errorf("%s: %d of %d IDs twice", policy, len(all)-n, len(all))
		}
		if len(all) == 0 {
			t.Errorf("%s: no IDs", policy)
		}
	}
}
