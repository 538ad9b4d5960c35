package snowflake_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"redleaf/snowflake"
	"redleaf/snowflake/workertest"
)

// burst draws until the millisecond is used up, and returns the sequences.
func burst(t *testing.T, r *rig) (seqs []int64) {
	t.Helper()
	for {
		id, ok := r.TryNext()
		if !ok {
			return seqs
		}
		if id <= r.last {
			t.Fatalf("%d after %d", id, r.last)
		}
		r.last = id
		p := parts(t, r.Layout(), id)
		if len(seqs) > 0 && p.Sequence != seqs[len(seqs)-1]+1 {
			t.Fatalf("sequence %d after %d", p.Sequence, seqs[len(seqs)-1])
		}
		seqs = append(seqs, p.Sequence)
	}
}

// leaf F21: a burst in one frozen millisecond gets exactly what the layout has from its start on, the next one all of it.
func TestBurstInOneMillisecond(t *testing.T) {
	for _, bits := range []uint8{1, 2, 9, 12, 14} {
		s := setup{manual: true}
		s.Layout = snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: 4, SequenceBits: bits}
		bubble(t, s, func(t *testing.T, r *rig) {
			capacity := int(s.Layout.Sequences())
			r.clock.Advance(time.Millisecond)
			seqs := burst(t, r)
			if want := capacity - int(seqs[0]); len(seqs) != want || len(seqs) < capacity/2 {
				t.Errorf("%d bits: %d IDs from %d on, want %d", bits, len(seqs), seqs[0], want)
			}
			if bits < 4 {
				return // too few to be told busy from quiet
			}
			for range 3 {
				r.clock.Advance(time.Millisecond)
				if seqs = burst(t, r); len(seqs) != capacity || seqs[0] != 0 {
					t.Errorf("%d bits: %d IDs from %d on in a busy millisecond", bits, len(seqs), seqs[0])
				}
			}
		})
	}
}

// 10,000 callers in one frozen millisecond: the rest is served in later ones, all unique.
func TestCallersInOneMillisecond(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.next()
		for range 2 { // used up, so that what follows starts at 0
			time.Sleep(time.Millisecond)
			burst(t, r)
		}
		time.Sleep(time.Millisecond)
		ids := make(chan int64, 10_000)
		began := time.Now()
		var wg sync.WaitGroup
		for range cap(ids) {
			wg.Go(func() {
				id, err := r.Next(t.Context())
				if err != nil {
					t.Error(err)
				}
				ids <- id
			})
		}
		wg.Wait()
		if took := time.Since(began); took != 2*time.Millisecond {
			t.Errorf("10,000 IDs took %s, want 2ms", took)
		}
		close(ids)
		perMs := map[int64]int{}
		seen := map[int64]bool{}
		for id := range ids {
			if seen[id] {
				t.Fatalf("%d twice", id)
			}
			seen[id] = true
			perMs[parts(t, leaf, id).Ms]++
		}
		if len(perMs) != 3 {
			t.Errorf("%d milliseconds: %v", len(perMs), perMs)
		}
		for ms, n := range perMs {
			if n > 4096 {
				t.Errorf("%d IDs at %d", n, ms)
			}
		}
	})
}

// leaf F20, peers W21: at one ID a millisecond the sequences spread evenly over every power of two.
func TestSpread(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, 7 * time.Millisecond, time.Second} {
		bubble(t, setup{manual: true}, func(t *testing.T, r *rig) {
			n := 100_000
			if every != time.Millisecond {
				n = 20_000
			}
			seqs := make([]int64, 0, n)
			for len(seqs) < n {
				r.clock.Advance(every)
				id, ok := r.TryNext()
				if !ok {
					synctest.Wait() // the window is being made longer
					if id, ok = r.TryNext(); !ok {
						t.Fatal("no ID")
					}
				}
				seqs = append(seqs, parts(t, leaf, id).Sequence)
			}
			for m := int64(2); m <= 1024; m *= 2 {
				if z := chiSquared(seqs, m); z > 3.3 || z < -3.3 { // one in a thousand on either side
					t.Errorf("every %s: mod %d is %.1f standard deviations from even", every, m, z)
				}
			}
		})
	}
}

// chiSquared compares the values mod m with an even spread, as a normal deviate (Wilson and Hilferty).
func chiSquared(values []int64, m int64) float64 {
	count := make([]float64, m)
	for _, v := range values {
		count[v%m]++
	}
	want := float64(len(values)) / float64(m)
	sum := 0.0
	for _, n := range count {
		sum += (n - want) * (n - want) / want
	}
	k := float64(m - 1)
	return (math.Cbrt(sum/k) - (1 - 2/(9*k))) / math.Sqrt(2/(9*k))
}

// The busier it gets the nearer to 0 a millisecond starts, so that no rate finds less room than it needs.
func TestRoomForEveryRate(t *testing.T) {
	for _, rate := range []int{10, 500, 600, 1000, 1100, 2000, 3000, 4000} {
		bubble(t, setup{manual: true}, func(t *testing.T, r *rig) {
			short := 0
			for ms := range 60 {
				r.clock.Advance(time.Millisecond)
				for range rate {
					if _, ok := r.TryNext(); !ok {
						short++
						break
					}
				}
				if ms == 0 {
					short = 0 // nobody knew
				}
				synctest.Wait()
			}
			if short > 0 {
				t.Errorf("%d a millisecond: %d of 60 had too little room", rate, short)
			}
		})
	}
}

// The milliseconds that a saturated generator slept through are not lost; those of an idle one are.
func TestCatchUp(t *testing.T) {
	bubble(t, setup{manual: true}, func(t *testing.T, r *rig) {
		for range 2 {
			r.clock.Advance(time.Millisecond)
			burst(t, r)
		}
		r.clock.Advance(snowflake.CatchUp)
		n := 0
		for ok := true; ok; n++ {
			_, ok = r.TryNext()
		}
		if n--; n != 50*4096 {
			t.Errorf("%d IDs after 50 ms, want %d", n, 50*4096)
		}
		r.clock.Advance(snowflake.CatchUp + time.Millisecond)
		if n := len(burst(t, r)); n > 4096 {
			t.Errorf("%d IDs after 51 ms", n)
		}
	})
}

func TestAppend(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		for _, n := range []int{1, 2, 1000, 4096, 4097, 10_000, 0} {
			ids, err := r.Append(t.Context(), []int64{7, 8}, n)
			if err != nil || len(ids) != n+2 || ids[0] != 7 || ids[1] != 8 {
				t.Fatalf("%d: %d IDs, %v", n, len(ids)-2, err)
			}
			for _, id := range ids[2:] {
				if id <= r.last {
					t.Fatalf("%d: %d after %d", n, id, r.last)
				}
				r.last = id
			}
			if r.Last() != r.last {
				t.Errorf("Last %d, want %d", r.Last(), r.last)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if st := r.Status(); st.Issued != 1+2+1000+4096+4097+10_000 {
			t.Errorf("issued %d", st.Issued)
		}
		if _, err := r.Append(t.Context(), nil, -1); err == nil {
			t.Error("-1 IDs")
		}
	})
}

func TestTryAppend(t *testing.T) {
	bubble(t, setup{manual: true}, func(t *testing.T, r *rig) {
		for range 2 {
			r.clock.Advance(time.Millisecond)
			burst(t, r)
		}
		r.clock.Advance(time.Millisecond)
		ids, ok := r.TryAppend([]int64{7}, 4000)
		if !ok || len(ids) != 4001 || ids[4000]-ids[1] != 3999 {
			t.Fatalf("%d IDs, %v", len(ids), ok)
		}
		for _, n := range []int{97, 5000, 0, -1} {
			if got, ok := r.TryAppend(ids, n); ok || len(got) != 4001 {
				t.Errorf("%d: %d IDs, %v", n, len(got), ok)
			}
		}
		if ids, ok = r.TryAppend(nil, 96); !ok || len(ids) != 96 || parts(t, leaf, ids[95]).Sequence != 4095 {
			t.Errorf("%d IDs, %v", len(ids), ok)
		}
	})
}

// An error gives back the caller's slice, and what was taken is lost.
func TestAppendFails(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		ids, err := r.Append(ctx, []int64{7}, 1_000_000)
		if !errors.Is(err, context.DeadlineExceeded) || len(ids) != 1 || ids[0] != 7 {
			t.Fatalf("%v, %v", ids, err)
		}
		burnt := r.Status().Issued
		if burnt < 9*4096 {
			t.Errorf("%d taken in 10 ms", burnt)
		}
		id, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if at := parts(t, leaf, id).Ms; at < noon+9 {
			t.Errorf("the next is at %d", at)
		}
	})
}

// Large runs let single callers in between milliseconds, and share the milliseconds among themselves.
func TestFairness(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		bulks := make([]int, 4)
		for k := range bulks {
			wg.Go(func() {
				for {
					if _, err := r.Append(ctx, nil, 10_000); err != nil {
						return
					}
					bulks[k]++
				}
			})
		}
		var mu sync.Mutex
		var worst time.Duration
		singles := 0
		for range 50 {
			wg.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					if _, err := r.Next(ctx); err != nil {
						return
					}
					mu.Lock()
					worst = max(worst, time.Since(began))
					singles++
					mu.Unlock()
					time.Sleep(300 * time.Microsecond)
				}
			})
		}
		time.Sleep(time.Second)
		cancel()
		wg.Wait()
		if worst > 3*time.Millisecond {
			t.Errorf("a single ID took %s", worst)
		}
		if singles < 20_000 {
			t.Errorf("%d single IDs", singles)
		}
		low, high := slices.Min(bulks), slices.Max(bulks)
		if low < high*3/4 {
			t.Errorf("runs of 10,000: %v", bulks)
		}
		if issued := r.Status().Issued; issued < 4_096_000*98/100 || issued > 4_096_000+4096 {
			t.Errorf("%d IDs in a second", issued)
		}
	})
}

// peers W23: everybody at once, in real time; what each caller sees increases, and nothing comes twice.
func TestManyCallers(t *testing.T) {
	mem := workertest.NewMem(1)
	g, err := snowflake.New(mem.Open("a"), snowflake.SystemClock{}, snowflake.Options{Layout: leaf, ClockWait: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	g.Start()
	defer g.Close(context.Background())
	for g.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	const callers, each = 8, 20_000
	got := make([][]int64, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			ids := make([]int64, 0, each+1000)
			for len(ids) < each {
				switch {
				case c%4 == 3:
					more, err := g.Append(t.Context(), ids, 1+len(ids)%900)
					if err != nil {
						t.Error(err)
						return
					}
					ids = more
				case c%4 == 2:
					if more, ok := g.TryAppend(ids, 1+len(ids)%50); ok {
						ids = more
						continue
					}
					fallthrough
				default:
					id, err := g.Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					ids = append(ids, id)
				}
			}
			got[c] = ids
		})
	}
	wg.Wait()
	var all []int64
	for c, ids := range got {
		if !slices.IsSorted(ids) {
			t.Errorf("caller %d: not increasing", c)
		}
		all = append(all, ids...)
	}
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
		t.Errorf("%d of %d IDs twice", len(all)-n, len(all))
	}
	if issued := g.Status().Issued; issued != uint64(len(all)) {
		t.Errorf("issued %d, seen %d", issued, len(all))
	}
	if refused := g.Status().RollbacksRefused; refused != 0 {
		t.Errorf("%d refused: racing callers took each other for a clock that stepped back", refused)
	}
}

func TestNothingAllocated(t *testing.T) {
	mem := workertest.NewMem(1)
	g, err := snowflake.New(mem.Open("a"), snowflake.SystemClock{}, snowflake.Options{Layout: leaf})
	if err != nil {
		t.Fatal(err)
	}
	g.Start()
	defer g.Close(context.Background())
	for g.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	buf := make([]int64, 0, 100)
	for name, f := range map[string]func(){
		"TryNext":   func() { g.TryNext() },
		"TryAppend": func() { buf, _ = g.TryAppend(buf[:0], 10) },
	} {
		if n := testing.AllocsPerRun(2000, f); n >= 1 { // what the watch allocates beside it is a fraction
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestNew(t *testing.T) {
	for _, c := range []struct {
		o    snowflake.Options
		now  int64
		want string
	}{
		{snowflake.Options{Layout: snowflake.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 13}}, noon,
			"snowflake.bits 41-10-13 add up to 64: 63 at most, so that no ID is negative"},
		{snowflake.Options{Layout: leaf, Policy: "guess"}, noon, `snowflake.clock_policy "guess": it is refuse or logical`},
		{snowflake.Options{Layout: leaf, ClockWait: -1}, noon, "snowflake.clock_wait -1ns is negative"},
		{snowflake.Options{Layout: leaf, MaxSkew: -1}, noon, "snowflake.max_skew -1ns is negative"},
		// peers W17
		{snowflake.Options{Layout: leaf}, leaf.Last() - 30*day.Milliseconds() + 1,
			"snowflake.bits 41-10-12 counted from snowflake.epoch 1288834974657 end on 2080-07-10T17:30:30Z, 29 days from now, and a start needs 30: use a new layout or epoch in a new root (or check this machine's clock)"},
		{snowflake.Options{Layout: leaf}, leaf.Last() + 1,
			"snowflake.bits 41-10-12 counted from snowflake.epoch 1288834974657 end on 2080-07-10T17:30:30Z, 0 days from now, and a start needs 30: use a new layout or epoch in a new root (or check this machine's clock)"},
	} {
		_, err := snowflake.New(workertest.NewMem(1).Open("a"), workertest.NewClock(c.now), c.o)
		if err == nil || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

func TestLessThanAYearLeft(t *testing.T) {
	for _, c := range []struct {
		left time.Duration
		warn int
	}{{366 * day, 0}, {364 * day, 1}, {30 * day, 1}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, setup{clock: workertest.NewRunningClock(leaf.Last() - c.left.Milliseconds())})
			defer r.close()
			r.next()
			if n := r.log.count("used up within a year"); n != c.warn {
				t.Errorf("%s left: %d warnings", c.left, n)
			}
		})
	}
}

// leaf F18, peers W17: the last millisecond of the time bits is used, and what comes after is refused, not negative.
func TestTimeUp(t *testing.T) {
	for _, l := range []snowflake.Layout{leaf, {Epoch: noon - 1000, TimeBits: 33, WorkerBits: 10, SequenceBits: 12}, {Epoch: 0, TimeBits: 42, WorkerBits: 9, SequenceBits: 12}} {
		synctest.Test(t, func(t *testing.T) {
			clock := workertest.NewRunningClock(l.Last() - 31*day.Milliseconds())
			s := setup{clock: clock}
			s.Layout = l
			r := newRig(t, s)
			defer r.close()
			r.next()
			clock.Advance(31*day - 5*time.Second)
			n := 0
			var err error
			for err == nil {
				_, err = r.try()
				time.Sleep(time.Millisecond)
				n++
			}
			var up *snowflake.TimeUpError
			if !errors.As(err, &up) || n < 4990 || n > 5010 {
				t.Errorf("%s: %v after %d IDs", l, err, n)
			}
			if ms := parts(t, l, r.last).Ms; ms != l.Last() || r.last < 0 {
				t.Errorf("%s: the last ID, %d, is at %d, want %d", l, r.last, ms, l.Last())
			}
			if err := r.Ready(); !errors.As(err, &up) {
				t.Errorf("%s: ready: %v", l, err)
			}
			if st := r.Status(); st.State != "exhausted" || st.YearsLeft > 0 {
				t.Errorf("%s: state %s, %f years left", l, st.State, st.YearsLeft)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		ms := r.next()
		st := r.Status()
		if st.State != "serving" || st.Err != nil || st.Worker != 0 || st.Registry != "memory" || st.RegistryStatus.State != "serving" {
			t.Errorf("%+v", st)
		}
		if st.Layout != leaf || st.LastMs != ms || st.Issued != 1 || st.Ahead != 0 || st.DriftMono != 0 {
			t.Errorf("%+v", st)
		}
		if got := fmt.Sprintf("%.2f", st.YearsLeft); got != "53.49" {
			t.Errorf("%s years left", got)
		}
	})
}
