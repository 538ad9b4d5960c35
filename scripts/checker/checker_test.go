package checker

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"redleaf/scripts/services"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

func create(t *testing.T) *History {
	t.Helper()
	h, err := Create(filepath.Join(t.TempDir(), "history"))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func verify(t *testing.T, h *History) Report {
	t.Helper()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Verify(h.Path())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// numbers is what a verdict counts, without texts and times.
func numbers(r Report) string {
	return fmt.Sprintf("events=%d ids=%d dup=%d conn=%d time=%d invalid=%d ungranted=%d high=%d worker=%d unexpected=%d lost=%d regranted=%d",
		r.Events, r.IDs, r.Duplicates, r.ConnectionDisorder, r.TimeDisorder, r.Invalid, r.Ungranted, r.AboveHighWater,
		r.WorkerOverlaps, r.Unexpected, r.Lost, r.Regranted)
}

// snow makes an ID of the default layout.
func snow(at, worker, sequence int64) int64 { return at<<22 | worker<<12 | sequence }

// What must be found, and what must not: each case is a history and the numbers of its verdict.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name   string
		record func(h *History)
		want   string
		texts  []string // in the report
	}{
		{"nothing", func(*History) {},
			"events=0 ids=0 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0",
			[]string{"ids=0 duplicates=0 disorder=0\n", "verdict: clean"}},

		{"two clients that share a key", func(h *History) {
			a, b := h.Recorder("a"), h.Recorder("b")
			a.Conn("one")
			b.Conn("one")
			a.ID("INCR", "order", 1*ms, 2*ms, 1)
			b.ID("INCR", "order", 1*ms, 2*ms, 2)
			a.Range("INCRBY", "order", 3*ms, 4*ms, 3, 12)
			b.IDs("SEGMENT.NEXT", "order", 5*ms, 6*ms, []int64{13, 14, 16})
			a.Lost("INCR", "order", 7*ms, 8*ms)
			a.Error("INCR", "order", 8*ms, 9*ms, "TRYAGAIN")
		}, "events=6 ids=15 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=1 regranted=0",
			[]string{"ids=15 duplicates=0 disorder=0\n", "errors: TRYAGAIN=1\n", "verdict: clean"}},

		{"the same number of two keys", func(h *History) {
			a := h.Recorder("a")
			a.Conn("one")
			a.ID("INCR", "x", 1*ms, 2*ms, 1)
			a.ID("INCR", "y", 3*ms, 4*ms, 1)
			a.ID("INCR", "x", 5*ms, 6*ms, 2)
		}, "events=3 ids=3 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"one ID twice, at two instances", func(h *History) {
			a, b := h.Recorder("anna"), h.Recorder("bert")
			a.Conn("one#1")
			b.Conn("two#1")
			a.ID("INCR", "order", 1*ms, 2*ms, 7)
			b.ID("INCR", "order", 3*ms, 4*ms, 7)
		}, "events=2 ids=2 dup=1 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0",
			[]string{"ids=2 duplicates=1 disorder=0\n", "7 was handed out twice", "anna, connection 1 to one#1, INCR order -> 7",
				"bert, connection 2 to two#1, INCR order -> 7", "NOT CLEAN"}},

		{"ranges that overlap", func(h *History) {
			a, b := h.Recorder("a"), h.Recorder("b")
			a.Pool("")
			b.Pool("")
			a.Range("INCRBY", "order", 1*ms, 2*ms, 1, 100)
			b.Range("INCRBY", "order", 1*ms, 2*ms, 91, 110) // 10
			b.ID("INCR", "order", 1*ms, 2*ms, 50)           // 1
			a.Range("INCRBY", "order", 1*ms, 2*ms, 111, 120)
		}, "events=4 ids=131 dup=11 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"one connection goes back", func(h *History) {
			a := h.Recorder("a")
			a.Conn("")
			a.ID("INCR", "order", 1*ms, 2*ms, 5)
			a.ID("INCR", "order", 3*ms, 4*ms, 4)
			a.ID("INCR", "order", 5*ms, 6*ms, 6)
		}, "events=3 ids=3 dup=0 conn=1 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0",
			[]string{"on one connection 4 came after 5"}},

		{"one connection goes back over other keys", func(h *History) {
			a := h.Recorder("a")
			a.Conn("")
			a.ID("INCR", "x", 1*ms, 2*ms, 5)
			a.ID("INCR", "y", 3*ms, 4*ms, 4)
			a.ID("INCR", "x", 5*ms, 6*ms, 3)
		}, "events=3 ids=3 dup=0 conn=1 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"a new connection may get smaller ones", func(h *History) {
			a := h.Recorder("a")
			a.Conn("one")
			a.ID("INCR", "order", 1*ms, 2*ms, 1001)
			a.Conn("two")
			a.ID("INCR", "order", 3*ms, 4*ms, 5)
		}, "events=2 ids=2 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"inside one reply, connection known or not", func(h *History) {
			a := h.Recorder("a")
			a.Pool("")
			a.IDs("SNOWFLAKE.NEXT", "x", 1*ms, 2*ms, []int64{1, 3, 2})
			a.Conn("")
			a.IDs("SNOWFLAKE.NEXT", "y", 1*ms, 2*ms, []int64{1, 3, 2})
		}, "events=2 ids=6 dup=0 conn=2 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"order by time over two connections", func(h *History) {
			a, b := h.Recorder("a"), h.Recorder("b")
			a.Conn("one")
			b.Conn("one")
			a.ID("INCR", "order", 1*ms, 5*ms, 10)
			b.ID("INCR", "order", 4*ms, 8*ms, 9) // begun before 10 was there
			b.ID("INCR", "order", 9*ms, 10*ms, 12)
			a.ID("INCR", "order", 11*ms, 12*ms, 11) // begun after 12 was there
		}, "events=4 ids=4 dup=0 conn=0 time=1 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0",
			[]string{"one gave 11 to a request begun at 0.011000s, when 12 had been received"}},

		{"no order by time between instances, nor without a name", func(h *History) {
			a, b, c := h.Recorder("a"), h.Recorder("b"), h.Recorder("c")
			a.Conn("one")
			b.Conn("two")
			c.Conn("")
			a.ID("INCR", "order", 1*ms, 2*ms, 1001)
			b.ID("INCR", "order", 3*ms, 4*ms, 1)
			c.ID("INCR", "order", 3*ms, 4*ms, 2)
		}, "events=3 ids=3 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"order by time of a pool", func(h *History) {
			a := h.Recorder("a")
			a.Pool("one")
			a.ID("INCR", "order", 1*ms, 2*ms, 2)
			a.ID("INCR", "order", 3*ms, 4*ms, 1)
		}, "events=2 ids=2 dup=0 conn=0 time=1 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"a pipeline is one moment", func(h *History) {
			a, b := h.Recorder("a"), h.Recorder("b")
			a.Conn("one")
			b.Conn("one")
			for i := range int64(4) {
				a.ID("INCR", "order", 1*ms, 4*ms, 1+2*i)
				b.ID("INCR", "order", 1*ms, 4*ms, 2+2*i)
			}
			b.ID("INCR", "order", 4*ms, 5*ms, 9) // not after: at the same time
		}, "events=9 ids=9 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"below 1", func(h *History) {
			a := h.Recorder("a")
			a.Pool("")
			a.Range("INCRBY", "order", 1*ms, 2*ms, -1, 2)
			a.Range("INCRBY", "order", 1*ms, 2*ms, 9, 8) // owns nothing: counts as two answers
		}, "events=2 ids=6 dup=0 conn=1 time=0 invalid=2 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"outside what was granted", func(h *History) {
			a := h.Recorder("a")
			a.Conn("one")
			h.Grant("order", "", 1, 1000)
			h.Grant("order", "", 1001, 2000)
			h.Grant("order", "two", 5001, 6000)
			a.Range("INCRBY", "order", 1*ms, 2*ms, 990, 1010) // across two grants
			a.Range("INCRBY", "order", 3*ms, 4*ms, 1991, 2005)
			a.ID("INCR", "order", 5*ms, 6*ms, 5001) // another's
			a.Conn("two")
			a.ID("INCR", "order", 7*ms, 8*ms, 5002)
			a.ID("INCR", "free", 9*ms, 9*ms, 5) // no grants known
		}, "events=5 ids=39 dup=0 conn=0 time=0 invalid=0 ungranted=6 high=0 worker=0 unexpected=0 lost=0 regranted=0",
			[]string{"2001 is in no range that the store granted", "5001 is in no range"}},

		{"rows that move", func(h *History) {
			a := h.Recorder("a")
			a.Pool("")
			h.Move("order", 0, 1)       // a new row grants nothing
			h.Move("order", 1, 1001)    // 1..1000
			h.Move("order", 1001, 501)  // 501..1000 came back
			h.Move("order", 501, 1501)  // 501..1500
			h.Move("order", 1501, 0)    // deleted
			h.Move("order", 0, 101)     // came again: 1..100
			h.Move("stand", 5000, 5000) // nothing
			a.Range("INCRBY", "order", 1*ms, 2*ms, 400, 1500)
			a.ID("INCR", "order", 1*ms, 2*ms, 1501)
		}, "events=2 ids=1102 dup=0 conn=0 time=0 invalid=0 ungranted=1 high=0 worker=0 unexpected=0 lost=0 regranted=100", nil},

		{"given back, and used all the same", func(h *History) {
			a := h.Recorder("a")
			a.Pool("one")
			h.Grant("order", "one", 1, 1000)
			h.Return("order", "one", 501, 1000)
			a.Range("INCRBY", "order", 1*ms, 2*ms, 496, 505)
		}, "events=1 ids=10 dup=0 conn=0 time=0 invalid=0 ungranted=5 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"above what the store stands at", func(h *History) {
			a := h.Recorder("a")
			a.Pool("")
			h.HighWater("order", 100)
			a.Range("INCRBY", "order", 1*ms, 2*ms, 98, 103)
		}, "events=1 ids=6 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=4 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"errors by word and by time", func(h *History) {
			a := h.Recorder("a")
			a.Pool("")
			a.Error("INCR", "order", 0, 0, "BEFORE") // only counted
			h.Expect("TRYAGAIN", "LOADING")
			now := h.Now()
			a.Error("INCR", "order", now, now+1, "TRYAGAIN")
			a.Error("INCR", "order", now, now+1, "NOTAG")
			late := h.Now()
			h.Expect()
			// Under way when the expectation changed: either will do.
			a.Error("INCR", "order", late, h.Now()+1, "TRYAGAIN")
			now = h.Now()
			a.Error("INCR", "order", now, now+1, "TRYAGAIN")
		}, "events=5 ids=0 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=2 lost=0 regranted=0",
			[]string{"errors: BEFORE=1 NOTAG=1 TRYAGAIN=3", "unexpected error NOTAG"}},

		{"a worker number that goes on to another", func(h *History) {
			h.Snowflake(SnowflakeKey, DefaultLayout)
			a, b := h.Recorder("a"), h.Recorder("b")
			a.Conn("one")
			b.Conn("two")
			a.IDs("SNOWFLAKE.NEXT", SnowflakeKey, 1*ms, 2*ms, []int64{snow(1000, 3, 4094), snow(1000, 3, 4095), snow(1001, 3, 0)})
			b.ID("SNOWFLAKE.NEXT", SnowflakeKey, 3*ms, 4*ms, snow(2000, 3, 0))
			b.ID("SNOWFLAKE.NEXT", SnowflakeKey, 5*ms, 6*ms, snow(2001, 3, 0))
			// Both at once, each with its own number: the same milliseconds, and contiguous values.
			a.ID("SNOWFLAKE.NEXT", SnowflakeKey, 7*ms, 8*ms, snow(3000, 4, 4095))
			b.ID("SNOWFLAKE.NEXT", SnowflakeKey, 7*ms, 8*ms, snow(3000, 5, 0))
		}, "events=5 ids=7 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"a worker number in two hands by turns", func(h *History) {
			h.Snowflake(SnowflakeKey, DefaultLayout)
			a, b := h.Recorder("a"), h.Recorder("b")
			a.Conn("one")
			b.Conn("two")
			a.ID("SNOWFLAKE.NEXT", SnowflakeKey, 1*ms, 2*ms, snow(1000, 3, 0))
			b.ID("SNOWFLAKE.NEXT", SnowflakeKey, 3*ms, 4*ms, snow(2000, 3, 0))
			a.ID("SNOWFLAKE.NEXT", SnowflakeKey, 5*ms, 6*ms, snow(3000, 3, 0))
		}, "events=3 ids=3 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=1 unexpected=0 lost=0 regranted=0",
			[]string{"worker 3 is used by two and one at the same time, around 2010-11-04T01:42:57.657Z"}},

		{"a worker number in two hands in one millisecond", func(h *History) {
			h.Snowflake(SnowflakeKey, DefaultLayout)
			a, b := h.Recorder("a"), h.Recorder("b")
			a.Conn("one")
			b.Conn("two")
			a.ID("SNOWFLAKE.NEXT", SnowflakeKey, 1*ms, 2*ms, snow(1000, 3, 0))
			b.ID("SNOWFLAKE.NEXT", SnowflakeKey, 1*ms, 2*ms, snow(1000, 3, 1))
		}, "events=2 ids=2 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=1 unexpected=0 lost=0 regranted=0", nil},

		{"snowflakes are in order while the worker number stays", func(h *History) {
			h.Snowflake(SnowflakeKey, DefaultLayout)
			a := h.Recorder("a")
			a.Conn("one")
			a.ID("SNOWFLAKE.NEXT", SnowflakeKey, 1*ms, 2*ms, snow(1000, 9, 0))
			a.ID("SNOWFLAKE.NEXT", SnowflakeKey, 3*ms, 4*ms, snow(1000, 2, 0)) // another number
			a.ID("SNOWFLAKE.NEXT", SnowflakeKey, 5*ms, 6*ms, snow(999, 2, 0))  // the same one, backwards
		}, "events=3 ids=3 dup=0 conn=1 time=1 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},

		{"the largest numbers", func(h *History) {
			h.Snowflake("s", DefaultLayout)
			a := h.Recorder("a")
			a.Pool("one")
			a.Range("INCRBY", "order", 1*ms, 2*ms, math.MaxInt64-9, math.MaxInt64)
			a.ID("INCR", "order", 1*ms, 2*ms, math.MaxInt64)
			a.ID("INCR", "s", 1*ms, 2*ms, math.MaxInt64)
			a.ID("INCR", "order", 1*ms, 2*ms, math.MinInt64)
			h.Grant("order", "", math.MaxInt64-9, math.MaxInt64)
		}, "events=4 ids=13 dup=1 conn=0 time=0 invalid=1 ungranted=1 high=0 worker=0 unexpected=0 lost=0 regranted=0", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := create(t)
			c.record(h)
			r := verify(t, h)
			if got := numbers(r); got != c.want {
				t.Errorf("verdict\n  %s\nwant\n  %s\n%s", got, c.want, r)
			}
			for _, text := range c.texts {
				if !strings.Contains(r.String(), text) {
					t.Errorf("the report lacks %q:\n%s", text, r)
				}
			}
			clean := !strings.Contains(r.String(), "NOT CLEAN")
			if r.Clean() != clean {
				t.Errorf("Clean is %v, the report says %v", r.Clean(), clean)
			}
		})
	}
}

// Injected into a large good history of many clients, each fault is found and nothing else is.
func TestInjectedFaultsAreFound(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const clients, perClient = 8, 20000
	// build hands out a counter to clients in random turns, each request of its own moment.
	build := func(t *testing.T, spoil func(h *History, rnd *rand.Rand, id, at int64)) Report {
		h := create(t)
		rnd := rand.New(rand.NewPCG(seed, 1))
		var rec [clients]*Recorder
		for i := range rec {
			rec[i] = h.Recorder(fmt.Sprintf("client %d", i))
			rec[i].Conn("one")
		}
		id, at := int64(0), int64(0)
		for range clients * perClient {
			id++
			at += 10
			rec[rnd.IntN(clients)].ID("INCR", "order", time.Duration(at), time.Duration(at+5), id)
		}
		if spoil != nil {
			spoil(h, rnd, id, at)
		}
		return verify(t, h)
	}
	t.Run("none", func(t *testing.T) {
		if r := build(t, nil); !r.Clean() || r.IDs != clients*perClient {
			t.Errorf("a good history:\n%s", r)
		}
	})
	t.Run("duplicates", func(t *testing.T) {
		r := build(t, func(h *History, rnd *rand.Rand, id, at int64) {
			again := h.Recorder("another")
			again.Conn("two")
			for i := range int64(7) {
				again.ID("INCR", "order", time.Duration(at), time.Duration(at), 1+i*(id/7)+rnd.Int64N(id/7))
			}
		})
		if r.Duplicates != 7 || r.TimeDisorder != 0 {
			t.Errorf("7 duplicates at another instance are judged:\n%s", r)
		}
	})
	t.Run("late", func(t *testing.T) {
		r := build(t, func(h *History, _ *rand.Rand, id, at int64) {
			late := h.Recorder("another")
			late.Conn("one")
			late.ID("INCR", "order", time.Duration(at+100), time.Duration(at+105), id+2)
			late.Conn("one")
			late.ID("INCR", "order", time.Duration(at+200), time.Duration(at+205), id+1)
		})
		if r.Duplicates != 0 || r.TimeDisorder != 1 || r.ConnectionDisorder != 0 {
			t.Errorf("one late ID is judged:\n%s", r)
		}
	})
	t.Run("range", func(t *testing.T) {
		r := build(t, func(h *History, _ *rand.Rand, id, at int64) {
			a := h.Recorder("another")
			a.Conn("two")
			a.Range("INCRBY", "order", time.Duration(at), time.Duration(at), id-99, id+900)
		})
		if r.Duplicates != 100 {
			t.Errorf("a range that covers 100 IDs again is judged:\n%s", r)
		}
	})
}

// Millions of IDs fit in bounded memory, and the one that comes twice is found among them.
func TestMillionsInBoundedMemory(t *testing.T) {
	const clients = 16
	perClient := 312500 // 5,000,000 in all
	if underRace {
		perClient = 62500
	}
	total := int64(clients * perClient)
	h := create(t)
	var next atomic.Int64
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			r := h.Recorder(fmt.Sprintf("client %d", i))
			r.Conn("one")
			for n := 0; n < perClient; n += 25 {
				invoke := h.Now()
				last := next.Add(50) // every second of them: nothing is next to anything
				ret := h.Now()
				for k := range int64(25) {
					r.ID("INCR", "order", invoke, ret, last-49+2*k)
				}
			}
		})
	}
	wg.Wait()
	again := h.Recorder("again")
	again.Conn("two")
	now := h.Now()
	again.ID("INCR", "order", now, now, total+1) // in the middle: every second number was given
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}

	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	stop, done, peak := make(chan struct{}), make(chan struct{}), uint64(0)
	go func() {
		defer close(done)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
			select {
			case <-stop:
				return
			case <-time.After(10 * ms):
			}
		}
	}()
	began := time.Now()
	r, err := Verify(h.Path())
	took := time.Since(began)
	close(stop)
	<-done
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(h.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d IDs in a file of %d MB, verified in %v with %d MB", r.IDs, info.Size()>>20, took, (peak-before.HeapAlloc)>>20)
	if r.IDs != total+1 || r.Duplicates != 1 || r.Disorder() != 0 {
		t.Errorf("verdict:\n%s", r)
	}
	if grown := int64(peak) - int64(before.HeapAlloc); grown > 150<<20 {
		t.Errorf("the verdict took %d MB, want at most 150", grown>>20)
	}
	if info.Size() > 10*r.IDs {
		t.Errorf("%d bytes for %d IDs", info.Size(), r.IDs)
	}
}

func TestRecoveryAfterFaults(t *testing.T) {
	h := create(t)
	a, b, late := h.Recorder("a"), h.Recorder("b"), h.Recorder("late")
	a.Conn("one")
	b.Conn("two")
	now := h.Now
	a.ID("INCR", "x", now(), now(), 1)
	b.ID("INCR", "y", now(), now(), 1)
	f := h.Fault("kill -9 of one")
	a.Lost("INCR", "x", now(), now())
	f.Cured()
	cured := now()
	b.ID("INCR", "y", cured, cured, 2)
	a.Error("INCR", "x", cured, cured+100*ms, "LOADING")
	a.ID("INCR", "x", cured+100*ms, cured+700*ms, 2)
	late.Conn("one")
	late.ID("INCR", "x", cured+5000*ms, cured+5000*ms, 3) // began afterwards: says nothing

	// The second fault is one that b never gets over. a has nothing more to say.
	// The cure is noted at the real time, b's events come long after it.
	g := h.Fault("hang of two")
	g.Cured()
	b.Error("INCR", "y", cured+800*ms, cured+900*ms, "TRYAGAIN")
	h.Fault("never cured")
	r := verify(t, h)
	if len(r.Faults) != 3 {
		t.Fatalf("%d faults, want 3:\n%s", len(r.Faults), r)
	}
	if f := r.Faults[0]; f.Name != "kill -9 of one" || f.Recovery < 700*ms || f.Recovery > 701*ms+10*time.Second || f.Stuck != 0 {
		t.Errorf("the first fault: %+v, want a recovery of 0.7 s", f)
	}
	if f := r.Faults[1]; f.Stuck != 1 || f.Recovery < 600*ms {
		t.Errorf("the second fault: %+v, want one client stuck", f)
	}
	if f := r.Faults[2]; f.Cured != 0 || f.Recovery != 0 {
		t.Errorf("the third fault: %+v, want no cure", f)
	}
	if !strings.Contains(r.Line(), " faults=3 worst_recovery=") {
		t.Errorf("line %q", r.Line())
	}
}

func TestBrokenFiles(t *testing.T) {
	h := create(t)
	a := h.Recorder("a")
	a.Conn("one")
	for i := range int64(20000) {
		a.ID("INCR", "order", time.Duration(i), time.Duration(i), i+1)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(h.Path())
	if err != nil {
		t.Fatal(err)
	}
	check := func(b []byte) (Report, error) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return Verify(path)
	}
	if r, err := check(good); err != nil || !r.Clean() {
		t.Fatalf("%v\n%s", err, r)
	}
	// Cut short at any place: an error, or a verdict that is not clean, never a clean one.
	for n := 0; n < len(good); n += 1 + n/20 {
		if r, err := check(good[:n]); err == nil && (r.Clean() || !strings.Contains(r.String(), "cut short")) {
			t.Fatalf("cut at %d of %d bytes:\n%s", n, len(good), r)
		}
	}
	// One byte changed: the same.
	for n := headerSize; n < len(good); n += 1 + n/20 {
		b := bytes.Clone(good)
		b[n] ^= 0x10
		if r, err := check(b); err == nil && r.Clean() {
			t.Fatalf("byte %d of %d changed:\n%s", n, len(good), r)
		}
	}
	other := bytes.Clone(good)
	other[len(magic)] = 9
	if _, err := check(other); err == nil || !strings.Contains(err.Error(), "version 9") {
		t.Errorf("a history of version 9: %v", err)
	}
}

func FuzzEvents(f *testing.F) {
	h, err := Create(filepath.Join(f.TempDir(), "history"))
	if err != nil {
		f.Fatal(err)
	}
	a := h.Recorder("a")
	a.Conn("one")
	a.ID("INCR", "x", 1, 2, 3)
	a.Range("INCRBY", "y", 3, 4, 3, 9)
	a.IDs("SEGMENT.NEXT", "y", 3, 4, []int64{10, 12})
	a.Error("INCR", "x", 5, 6, "NOTAG")
	f.Add(append([]byte{0, 4}, a.buf...))
	if err := h.Close(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e := openEvents(b)
		n := 0
		for e.next() {
			n++
			low, high := e.e.bounds()
			if low > high {
				t.Errorf("an event from %d to %d", low, high)
			}
			if n > len(b) {
				t.Fatalf("%d events in %d bytes", n, len(b))
			}
		}
	})
}

func TestWrongUseIsRefused(t *testing.T) {
	panics := func(what string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s is taken", what)
			}
		}()
		f()
	}
	h := create(t)
	a := h.Recorder("a")
	a.ID("INCR", "x", 5, 6, 1)
	panics("an invoke time that goes back", func() { a.ID("INCR", "x", 4, 6, 2) })
	panics("a reply before its request", func() { a.ID("INCR", "x", 7, 6, 2) })
	if r := verify(t, h); !r.Clean() || r.Events != 1 {
		t.Errorf("after two refusals:\n%s", r)
	}
	panics("an event after Close", func() { a.ID("INCR", "x", 9, 9, 2) })
	if err := h.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func TestRangesAgainstAMap(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var r ranges
	model := map[int64]bool{}
	for range 2000 {
		first := rnd.Int64N(200)
		last := first + rnd.Int64N(30)
		overlap := int64(0)
		for x := first; x <= last; x++ {
			if model[x] {
				overlap++
			}
		}
		if got := r.overlap(first, last); got != overlap {
			t.Fatalf("overlap of %d..%d is %d, want %d: %v", first, last, got, overlap, r.s)
		}
		add := rnd.IntN(2) == 0
		if add {
			r.add(first, last)
		} else {
			r.remove(first, last)
		}
		for x := first; x <= last; x++ {
			model[x] = add
		}
		for x := int64(-1); x < 240; x++ {
			if in := len(r.within(x, x)) == 1; in != model[x] {
				t.Fatalf("%d in %v is %v, want %v", x, r.s, in, model[x])
			}
		}
		for i := 1; i < len(r.s); i++ {
			if r.s[i].first <= r.s[i-1].last+1 {
				t.Fatalf("ranges touch: %v", r.s)
			}
		}
	}
}

// The command exits with the verdict.
func TestVerifyCommand(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "verify")
	if out, err := exec.Command("go", "build", "-o", bin, "redleaf/scripts/checker/verify").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	history := func(ids ...int64) string {
		h := create(t)
		a := h.Recorder("a")
		a.Pool("")
		for i, id := range ids {
			a.ID("INCR", "x", time.Duration(i), time.Duration(i), id)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		return h.Path()
	}
	for _, c := range []struct {
		path, text string
		code       int
	}{
		{history(1, 2, 3), "ids=3 duplicates=0 disorder=0\n", 0},
		{history(1, 2, 2), "ids=3 duplicates=1 disorder=0\n", 1},
		{os.Args[0], "no history of IDs", 2},
	} {
		cmd := exec.Command(bin, c.path)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.text) {
			t.Errorf("exit %d, want %d with %q:\n%s", code, c.code, c.text, out)
		}
	}
}

// answer is a server that answers each read by what reply returns for it.
func answer(t *testing.T, reply func(conn int, request string) string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				b := make([]byte, 4096)
				for {
					k, err := c.Read(b)
					if err != nil {
						return
					}
					s := reply(n, string(b[:k]))
					if s == "" {
						return
					}
					if _, err := c.Write([]byte(s)); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func TestClientRecordsWhatItSees(t *testing.T) {
	h := create(t)
	var turn atomic.Int64
	addr := answer(t, func(conn int, request string) string {
		switch turn.Add(1) {
		case 1:
			if request != "*2\r\n$4\r\nINCR\r\n$5\r\norder\r\n*2\r\n$4\r\nINCR\r\n$5\r\norder\r\n" {
				t.Errorf("the first pipeline is %q", request)
			}
			return ":1\r\n-TRYAGAIN soon\r\n"
		case 2:
			return ":2\r\n" + ":3\r\n"
		case 3:
			return "" // lost, both
		case 4:
			return ":x\r\n:7\r\n" // no reply
		}
		return ":8\r\n:9\r\n"
	})
	res := Client{History: h, Name: "c", Addrs: []string{addr}, Command: Incr, Pipeline: 2, Limit: 5}.Run(context.Background())
	if res.IDs != 5 || res.Replies != 5 || res.Lost != 3 || res.Errors["TRYAGAIN"] != 1 || res.Errors[Malformed] != 1 || res.Connects != 3 {
		t.Errorf("result %+v, want 5 IDs, 3 lost, one TRYAGAIN and one malformed, 3 connections", res)
	}
	r := verify(t, h)
	if got, want := numbers(r), "events=10 ids=5 dup=0 conn=0 time=0 invalid=0 ungranted=0 high=0 worker=0 unexpected=0 lost=3 regranted=0"; got != want {
		t.Errorf("verdict\n  %s\nwant\n  %s", got, want)
	}
}

func TestClientCommands(t *testing.T) {
	for _, c := range []struct {
		client  Client
		request string
		reply   string
		ids     string
	}{
		{Client{Command: Incr, Keys: []string{"k"}}, "*2\r\n$4\r\nINCR\r\n$1\r\nk\r\n", ":5\r\n", "5..5"},
		{Client{Command: IncrBy, Count: 10}, "*3\r\n$6\r\nINCRBY\r\n$5\r\norder\r\n$2\r\n10\r\n", ":20\r\n", "11..20"},
		{Client{Command: SegmentRange, Count: 3}, "*3\r\n$13\r\nSEGMENT.RANGE\r\n$5\r\norder\r\n$1\r\n3\r\n", "*2\r\n:7\r\n:9\r\n", "7..9"},
		{Client{Command: SegmentNext}, "*2\r\n$12\r\nSEGMENT.NEXT\r\n$5\r\norder\r\n", ":4\r\n", "4..4"},
		{Client{Command: SegmentNext, Count: 2}, "*4\r\n$12\r\nSEGMENT.NEXT\r\n$5\r\norder\r\n$5\r\nCOUNT\r\n$1\r\n2\r\n", "*2\r\n:4\r\n:6\r\n", "4..4 6..6"},
		{Client{Command: SnowflakeNext}, "*1\r\n$14\r\nSNOWFLAKE.NEXT\r\n", "$19\r\n4611686018427387904\r\n", "4611686018427387904..4611686018427387904"},
		{Client{Command: SnowflakeNext, Count: 2}, "*3\r\n$14\r\nSNOWFLAKE.NEXT\r\n$5\r\nCOUNT\r\n$1\r\n2\r\n", "*2\r\n$1\r\n4\r\n$1\r\n5\r\n", "4..5"},
		{Client{Command: Incr, Multi: true}, "*1\r\n$5\r\nMULTI\r\n*2\r\n$4\r\nINCR\r\n$5\r\norder\r\n*1\r\n$4\r\nEXEC\r\n",
			"+OK\r\n+QUEUED\r\n*1\r\n:3\r\n", "3..3"},
		{Client{Command: Incr, User: "u", Password: "p", Keys: []string{"k"}}, "*2\r\n$4\r\nINCR\r\n$1\r\nk\r\n", ":5\r\n", "5..5"},
	} {
		h := create(t)
		var got string
		addr := answer(t, func(_ int, request string) string {
			if strings.HasPrefix(request, "*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n") {
				return "+OK\r\n"
			}
			got = request
			return c.reply
		})
		c.client.History, c.client.Addrs, c.client.Limit = h, []string{addr}, 1
		c.client.Run(context.Background())
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if got != c.request {
			t.Errorf("%s sends %q, want %q", c.client.Command, got, c.request)
		}
		if ids := recorded(t, h.Path()); ids != c.ids {
			t.Errorf("%s is recorded as %q, want %q", c.client.Command, ids, c.ids)
		}
	}
}

// recorded lists the runs of a history.
func recorded(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v := &verifier{f: f, strings: []string{""}, layouts: map[uint32]Layout{}}
	if err := v.index(); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range v.spans {
		e, _, err := v.read(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		for e.next() {
			e.e.runs(func(first, last int64) { out = append(out, fmt.Sprintf("%d..%d", first, last)) })
		}
	}
	return strings.Join(out, " ")
}

// Redis without persistence is what the checker is for: after kill -9 it gives the same numbers again.
func TestRedisThatForgetsIsFound(t *testing.T) {
	redis := services.StartRedis(t)
	h := create(t)
	h.Expect()
	var life atomic.Int64
	instance := func(string) string { return fmt.Sprintf("redis#%d", life.Load()) }
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var ids atomic.Int64
	for i, c := range []Client{
		{Command: Incr, Pipeline: 16},
		{Command: Incr},
		{Command: IncrBy, Count: 100, Pipeline: 4},
		{Command: Incr, Multi: true, Pipeline: 3},
	} {
		c.History, c.Name, c.Addrs, c.Instance = h, fmt.Sprintf("client %d", i), []string{redis.Addr()}, instance
		c.Limit = 500
		wg.Go(func() {
			ids.Add(c.Run(ctx).IDs)
			c.Limit = 0
			ids.Add(c.Run(ctx).IDs)
		})
	}
	enough := func() { // each life gives some thousands
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(ms) {
			var n int64
			if _, err := fmt.Sscan(redis.Do("GET", "order"), &n); err == nil && n > 5000 {
				return
			}
			if time.Now().After(end) {
				t.Fatal("no traffic")
			}
		}
	}
	enough()
	f := h.Fault("kill -9 of redis-server")
	redis.Kill()
	life.Add(1)
	redis.Start()
	f.Cured()
	enough()
	cancel()
	wg.Wait()
	r := verify(t, h)
	if r.Duplicates < 4000 || r.Disorder() != 0 || r.Unexpected != 0 {
		t.Errorf("a counter that began again, in order on each connection, is judged:\n%s", r)
	}
	if r.IDs != ids.Load() {
		t.Errorf("%d IDs in the history, the clients had %d", r.IDs, ids.Load())
	}
	if len(r.Faults) != 1 || r.Faults[0].Stuck != 0 || r.Faults[0].Recovery == 0 {
		t.Errorf("faults %+v, want one with a recovery", r.Faults)
	}
}

func TestClientEndsWithTheContext(t *testing.T) {
	h := create(t)
	addr := answer(t, func(int, string) string { return ":1\r\n" })
	for _, addrs := range [][]string{{addr}, {"127.0.0.1:1"}} {
		ctx, cancel := context.WithTimeout(context.Background(), 20*ms)
		Client{History: h, Name: "c", Addrs: addrs, Instance: func(string) string { return "" }, Command: Incr, Rate: 1000}.Run(ctx)
		if ctx.Err() == nil {
			t.Error("it ended before the context")
		}
		cancel()
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkRecord(b *testing.B) {
	h, err := Create(filepath.Join(b.TempDir(), "history"))
	if err != nil {
		b.Fatal(err)
	}
	r := h.Recorder("a")
	r.Conn("one")
	b.ReportAllocs()
	i := int64(0)
	for b.Loop() {
		i++
		r.ID("INCR", "order", time.Duration(i)*1000, time.Duration(i)*1000+500, i)
	}
	if err := h.Close(); err != nil {
		b.Fatal(err)
	}
}
