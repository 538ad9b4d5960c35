package segment_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"redleaf/segment"
	"redleaf/segment/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble runs f with a fake clock, on a fresh database.
func bubble(t *testing.T, f func(t *testing.T, db *storetest.DB, m *storetest.Mem)) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.NewDB()
		f(t, db, db.Open())
	})
}

func slow(d time.Duration) func(op, tag string) time.Duration {
	return func(op, tag string) time.Duration { return d }
}

func row(db *storetest.DB, tag string, bound, step int64) {
	db.SetRow(segment.Row{Tag: tag, Max: bound, Step: step})
}

// run returns a running allocator that is closed at the end of the test; a second Close does nothing.
func run(t *testing.T, m segment.Store, f segment.Floors, o segment.Options) *segment.Allocator {
	a := segment.New(m, f, o)
	a.Start()
	t.Cleanup(func() { stop(t, a) })
	return a
}

func wait(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// takeIn is Take with a budget, as the server does it.
func takeIn(a *segment.Allocator, d time.Duration, tag string, n int64) (int64, error) {
	if last, ok := a.TryTake([]byte(tag), n); ok {
		return last, nil
	}
	ctx, cancel := wait(d)
	defer cancel()
	return a.Take(ctx, tag, n)
}

// contiguous fails unless ids are first, first+1, ... in some order.
func contiguous(t *testing.T, ids []int64, first int64) {
	t.Helper()
	slices.Sort(ids)
	for i, id := range ids {
		if id != first+int64(i) {
			t.Fatalf("ID %d stands where %d should be: a duplicate or a hole", id, first+int64(i))
		}
	}
}

// leaf S1, peers S4: a small step, a slow database and many clients: nobody sees an error, nobody polls.
func TestSmallStepSlowStore(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		m.Set(func(m *storetest.Mem) { m.Latency = slow(50 * time.Millisecond) })
		a := run(t, m, nil, segment.Options{})
		var mu sync.Mutex
		var ids []int64
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() {
				for range 20 {
					last, err := takeIn(a, 2*time.Second, "order", 1)
					if err != nil {
						t.Errorf("Take: %v", err)
						return
					}
					mu.Lock()
					ids = append(ids, last)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		contiguous(t, ids, 1)
		if n := m.Calls("Reserve"); n > 15 {
			t.Errorf("%d refills for 10,000 IDs, want some 10: the size must grow when requests wait", n)
		}
	})
}

// leaf S3, peers S5: a refill that breaks off is tried again.
func TestRefillPanics(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		var broken atomic.Bool
		broken.Store(true)
		m.Set(func(m *storetest.Mem) {
			m.Fault = func(op, tag string) (bool, error) {
				if broken.Load() && (op == "Reserve" || op == "Rows" && m.Calls("Rows") == 1) {
					panic("the thread could not be started")
				}
				return true, nil
			}
		})
		a := run(t, m, nil, segment.Options{})
		_, err := takeIn(a, 2*time.Second, "order", 1)
		var again *segment.AgainError
		if !errors.As(err, &again) || !strings.Contains(err.Error(), "the thread could not be started") {
			t.Fatalf("Take = %v, want *AgainError that names the cause", err)
		}
		broken.Store(false)
		if last, err := takeIn(a, 3*time.Second, "order", 1); err != nil || last != 1 {
			t.Fatalf("Take after the cure = %d, %v; want 1", last, err)
		}
	})
}

// leaf S4: the database accepts and never answers. Each call ends by its own limit, and serving goes on soon after the cure.
func TestStoreHangs(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		var hung atomic.Bool
		m.Set(func(m *storetest.Mem) {
			m.Latency = func(op, tag string) time.Duration {
				if hung.Load() {
					return time.Hour
				}
				return time.Millisecond
			}
		})
		a := run(t, m, nil, segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 1); err != nil {
			t.Fatal(err)
		}
		hung.Store(true)
		served := 0
		for range 1000 {
			if _, err := takeIn(a, 0, "order", 1); err == nil {
				served++
			}
		}
		if served != 9 && served != 19 {
			t.Errorf("%d IDs were served from what was held, want 9 (or 19 with the spare)", served)
		}
		time.Sleep(20 * time.Second)
		hung.Store(false)
		if _, err := takeIn(a, 12*time.Second, "order", 1); err != nil {
			t.Fatalf("Take after the cure: %v", err)
		}
	})
}

// leaf S5: 100 clients on a cold tag, and a database that takes 2 s: one UPDATE, others unaffected, deadlines kept.
func TestColdTagIsLoadedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		row(db, "user", 1, 10)
		a := run(t, m, nil, segment.Options{})
		if _, err := takeIn(a, time.Second, "user", 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := m.Calls("Reserve")
		m.Set(func(m *storetest.Mem) {
			m.Latency = func(op, tag string) time.Duration {
				if tag == "order" {
					return 2 * time.Second
				}
				return 0
			}
		})
		var ids []int64
		var mu sync.Mutex
		var wg sync.WaitGroup
		began := time.Now()
		for range 100 {
			wg.Go(func() {
				last, err := takeIn(a, 10*time.Second, "order", 1)
				if err != nil {
					t.Errorf("Take: %v", err)
				}
				mu.Lock()
				ids = append(ids, last)
				mu.Unlock()
			})
			wg.Go(func() {
				if _, err := takeIn(a, time.Second, "order", 1); err == nil || time.Since(began) != time.Second {
					t.Errorf("a request with a budget of 1s ended with %v after %v", err, time.Since(began))
				}
			})
		}
		for range 8 {
			if last, err := takeIn(a, 0, "user", 1); err != nil {
				t.Errorf("another tag was held up: %d, %v", last, err)
			}
		}
		wg.Wait()
		contiguous(t, ids, 1)
		if n := m.Calls("Reserve") - before; n > 2 { // and one ahead
			t.Errorf("%d reservations for one cold tag", n)
		}
	})
}

// leaf S6, S20: the database is down at the start. The error names it; soon after the cure all is well, without help.
func TestStoreDownAtStart(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		db.SetDown(&segment.UnavailableError{Cause: errors.New("connection refused")})
		a := run(t, m, nil, segment.Options{})
		began := time.Now()
		_, err := takeIn(a, 2*time.Second, "order", 1)
		var again *segment.AgainError
		if !errors.As(err, &again) || again.Tag != "order" || !strings.Contains(err.Error(), "connection refused") || time.Since(began) != 2*time.Second {
			t.Fatalf("Take = %v after %v; want *AgainError that names tag and cause after 2s", err, time.Since(began))
		}
		if err := a.Ready(); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Fatalf("Ready = %v", err)
		}
		time.Sleep(30 * time.Second)
		db.SetDown(nil)
		if last, err := takeIn(a, 3*time.Second, "order", 1); err != nil || last != 1 {
			t.Fatalf("Take after the cure = %d, %v", last, err)
		}
		if err := a.Ready(); err != nil {
			t.Fatalf("Ready = %v", err)
		}
	})
}

// leaf S7, peers S6: the database is down for 10 s under 5,000 requests a second. What is held flows; the store is asked by
// the back-off's schedule, whatever the requests.
func TestStoreDownUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 1000)
		row(db, "cold", 1, 1000)
		a := run(t, m, nil, segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 1); err != nil {
			t.Fatal(err)
		}
		db.SetDown(&segment.UnavailableError{Cause: errors.New("connection refused")})
		calls := func() int {
			return m.Calls("Reserve") + m.Calls("Rows") + m.Calls("Pulse") + m.Calls("Create") + m.Calls("Fence")
		}
		before := calls()
		served := 0
		var wg sync.WaitGroup
		for range 10_000 {
			time.Sleep(time.Millisecond)
			for range 4 {
				if _, ok := a.TryTake([]byte("order"), 1); ok {
					served++
					continue
				}
				wg.Go(func() { _, _ = takeIn(a, 200*time.Millisecond, "order", 1) })
			}
			wg.Go(func() { _, _ = takeIn(a, 200*time.Millisecond, "cold", 1) })
		}
		wg.Wait()
		if served != 999 && served != 1999 {
			t.Errorf("%d IDs were served from what was held", served)
		}
		if n := calls() - before; n > 20 {
			t.Errorf("the store was asked %d times in 10 s of being down, want at most 20", n)
		}
		db.SetDown(nil)
		for _, tag := range []string{"order", "cold"} {
			if _, err := takeIn(a, 3*time.Second, tag, 1); err != nil {
				t.Errorf("%s after the cure: %v", tag, err)
			}
		}
	})
}

// leaf S9 and the list of bad input: a row that can't be used is named, and never moved.
func TestBadRows(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		a := run(t, m, nil, segment.Options{AutoCreate: []string{"*"}, MaxStep: 1_000_000})
		bad := &segment.StepError{Tag: "null", Column: "step", Value: "NULL", Want: "a number"}
		for _, r := range []segment.Row{
			{Tag: "zero", Max: 1, Step: 0},
			{Tag: "negative", Max: 1, Step: -5},
			{Tag: "huge", Max: 1, Step: 1<<31 - 1},
			{Tag: "above", Max: 1, Step: 1_000_001},
			{Tag: "low", Max: 0, Step: 10},
			{Tag: "lower", Max: -100, Step: 10},
			{Tag: "null", Max: 1, Step: 10, Err: bad},
		} {
			db.SetRow(r)
			for range 3 {
				_, err := takeIn(a, time.Second, r.Tag, 1)
				var se *segment.StepError
				if !errors.As(err, &se) || se.Tag != r.Tag || !strings.Contains(err.Error(), "Correct the row") {
					t.Errorf("%s: Take = %v, want *StepError", r.Tag, err)
				}
			}
			if now, _ := db.Row(r.Tag); now.Max != r.Max {
				t.Errorf("%s: the row was moved to %d", r.Tag, now.Max)
			}
		}
		if n := m.Calls("Reserve"); n != 0 {
			t.Errorf("%d reservations", n)
		}
		row(db, "zero", 1, 10) // corrected: it serves within the bound of the negative cache
		time.Sleep(2 * time.Second)
		if last, err := takeIn(a, time.Second, "zero", 1); err != nil || last != 1 {
			t.Errorf("Take of the corrected row = %d, %v", last, err)
		}
	})
}

// leaf S11: a step edited by SQL counts from the next refill, or at the latest a minute on; leaf S9: a bad one is passed over
// while the tag is in use.
func TestStepEdited(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 1000)
		a := run(t, m, nil, segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 1); err != nil {
			t.Fatal(err)
		}
		r, _ := db.Row("order")
		row(db, "order", r.Max, 100_000)
		time.Sleep(time.Minute)
		if _, err := takeIn(a, time.Second, "order", 500); err != nil { // crosses the mark
			t.Fatal(err)
		}
		synctest.Wait()
		if now, _ := db.Row("order"); now.Max != r.Max+100_000 {
			t.Fatalf("the row went from %d to %d: the new step does not count", r.Max, now.Max)
		}
		r, _ = db.Row("order")
		row(db, "order", r.Max, 0)
		time.Sleep(2 * time.Minute)
		for range 200 {
			if _, err := takeIn(a, time.Second, "order", 1000); err != nil {
				t.Fatalf("a bad step stopped a tag in use: %v", err)
			}
		}
	})
}

// leaf S12: nothing depends on the wall clock. The clock an allocator goes by never steps; what a step would do to it can't be
// written down, so this asks for the two spans that a step of the wall clock changed in Leaf.
func TestSizeGoesByTheMonotonicClock(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 100)
		var now atomic.Int64
		a := run(t, m, nil, segment.Options{Target: time.Minute, Now: func() time.Duration { return time.Duration(now.Load()) }})
		for range 5 { // one ID a second, whatever time.Now says
			for range 100 {
				now.Add(int64(time.Second))
				if _, err := takeIn(a, time.Second, "order", 1); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
		}
		i, err := a.Info(context.Background(), "order")
		if err != nil || i.Span != 100 {
			t.Fatalf("the refill's size is %d (%v), want 100: 60 IDs were issued in the last target", i.Span, err)
		}
	})
}

// leaf S13, S15, S16; peers S12, S13: rows that are deleted, put back at 1, lowered and raised by SQL while in use.
func TestRowChangedByHand(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(db *storetest.DB)
		row    int64 // as the error names it
	}{
		{"deleted", func(db *storetest.DB) { db.DeleteRow("order") }, -1},
		{"put back at 1", func(db *storetest.DB) { row(db, "order", 1, 10) }, 1},
		{"lowered", func(db *storetest.DB) { row(db, "order", 15, 10) }, 15},
	} {
		for _, by := range []string{"check", "refill"} {
			t.Run(c.name+"/noticed by a "+by, func(t *testing.T) {
				bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
					row(db, "order", 1, 10)
					floors := storetest.NewFloors()
					a := run(t, m, floors, segment.Options{Check: 5 * time.Second})
					for range 30 {
						if _, err := takeIn(a, time.Second, "order", 1); err != nil {
							t.Fatal(err)
						}
					}
					synctest.Wait()
					before, _ := a.Info(context.Background(), "order")
					if before.Remaining == 0 {
						t.Fatal("nothing is held")
					}
					c.change(db)
					var err error
					if by == "check" {
						time.Sleep(5 * time.Second)
						synctest.Wait()
						_, err = takeIn(a, time.Second, "order", 1)
					} else {
						for range 2 * before.Remaining {
							if _, err = takeIn(a, time.Second, "order", 1); err != nil {
								break
							}
						}
					}
					// Stopped at once, what is held included. The row was raised, if there is one.
					var re *segment.RegressedError
					if !errors.As(err, &re) || re.Row != c.row || re.Floor != before.Floor {
						t.Fatalf("Take = %v; want *RegressedError with row %d, floor %d", err, c.row, before.Floor)
					}
					if r, ok := db.Row("order"); ok != (c.row > 0) || ok && r.Max != before.Floor {
						t.Fatalf("the row is %+v, %v; want it raised to %d", r, ok, before.Floor)
					}
					calls := m.Calls("Reserve")
					for range 1000 {
						if _, err := takeIn(a, time.Second, "order", 1); !errors.As(err, &re) {
							t.Fatalf("Take = %v", err)
						}
					}
					if n := m.Calls("Reserve") - calls; n > 0 {
						t.Errorf("a stopped tag reserved %d times", n)
					}
					if st := a.Stats(); st.Stopped != 1 || st.Regressed != 1 {
						t.Errorf("Stats = %+v", st)
					}
					// SET below the floor is refused, in both words that name a bound; the runbook's is not.
					ctx, cancel := wait(time.Second)
					defer cancel()
					var sr *segment.SetRefusedError
					if done, err := a.Set(ctx, "order", before.Floor-1, segment.SetAlways); done || !errors.As(err, &sr) || sr.Bound < before.Floor {
						t.Fatalf("SET below the floor = %v, %v", done, err)
					}
					if done, err := a.Set(ctx, "order", before.Floor+500, segment.SetAlways); !done || err != nil {
						t.Fatalf("SET by the runbook = %v, %v", done, err)
					}
					if last, err := takeIn(a, time.Second, "order", 1); err != nil || last != before.Floor+501 {
						t.Fatalf("Take after SET = %d, %v; want %d", last, err, before.Floor+501)
					}
				})
			})
		}
	}
}

// A stopped tag goes on by itself when its row stands above the floor: a peer was granted, or somebody SET it elsewhere.
func TestRegressedEndsByAPeer(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		a := run(t, m, storetest.NewFloors(), segment.Options{})
		b := run(t, db.Open(), storetest.NewFloors(), segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 1); err != nil {
			t.Fatal(err)
		}
		row(db, "order", 5, 10)
		time.Sleep(6 * time.Second)
		if _, err := takeIn(a, time.Second, "order", 1); err == nil {
			t.Fatal("the row stands below the floor, and the tag goes on")
		}
		if last, err := takeIn(b, time.Second, "order", 1); err != nil || last != 21 {
			t.Fatalf("the peer's ID is %d, %v; want 21, above what is held", last, err)
		}
		time.Sleep(2 * time.Second)
		if last, err := takeIn(a, time.Second, "order", 1); err != nil || last <= 20 {
			t.Fatalf("Take = %d, %v; want one above the peer's span", last, err)
		}
	})
}

// leaf S14: tags leave memory while they are asked for.
func TestEvictionRace(t *testing.T) {
	m := storetest.NewMem()
	for i := range 20 {
		row(m.DB(), fmt.Sprintf("t%d", i), 1, 5)
	}
	a := start(t, m, segment.Options{MaxTags: 3, Check: time.Hour})
	var mu sync.Mutex
	given := map[string]map[int64]bool{}
	var wg sync.WaitGroup
	var full atomic.Int64
	for w := range 4 {
		r := rand.New(rand.NewPCG(uint64(w), 1))
		wg.Go(func() {
			for range 3000 {
				tag := fmt.Sprintf("t%d", r.IntN(20))
				last, err := takeIn(a, 10*time.Second, tag, 1)
				var fe *segment.FullError
				if errors.As(err, &fe) {
					full.Add(1)
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", tag, err)
					return
				}
				mu.Lock()
				if given[tag] == nil {
					given[tag] = map[int64]bool{}
				}
				if given[tag][last] {
					t.Errorf("%s: %d twice", tag, last)
				}
				given[tag][last] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if n := a.Stats().Tags; n > 3+4 {
		t.Errorf("%d tags in memory, want about 3", n)
	}
	t.Logf("%d requests found no room", full.Load())
}

// leaf S19, peers S23: the end of all IDs is handed out to the last, and then said.
func TestTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", segment.MaxID-9, 100)
		a := run(t, m, nil, segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 10); !errors.Is(err, segment.ErrExhausted) {
			t.Fatalf("Take of 10 with 9 left: %v", err)
		}
		time.Sleep(6 * time.Second)
		for want := int64(segment.MaxID - 9); want < segment.MaxID; want++ {
			last, err := takeIn(a, time.Second, "order", 1)
			if err != nil || last != want {
				t.Fatalf("Take = %d, %v; want %d", last, err, want)
			}
		}
		for range 20 {
			if last, err := takeIn(a, time.Second, "order", 1); !errors.Is(err, segment.ErrExhausted) || last != 0 {
				t.Fatalf("Take at the end = %d, %v", last, err)
			}
		}
		if i, _ := a.Info(context.Background(), "order"); i.State != "exhausted" || i.Last != segment.MaxID-1 {
			t.Errorf("Info = %+v", i)
		}
	})
}

// leaf S21, peers S15, S24: a row that was just made is found; a flood of unknown names does not reach the store each time.
func TestUnknownTags(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		a := run(t, m, nil, segment.Options{AutoCreate: []string{"auto:*"}})
		for range 1000 {
			if _, err := takeIn(a, time.Second, "order", 1); !errors.Is(err, segment.ErrNoTag) {
				t.Fatalf("Take = %v, want ErrNoTag", err)
			}
		}
		if n := m.Calls("Rows"); n != 1 {
			t.Errorf("%d lookups of one unknown name", n)
		}
		row(db, "order", 1, 10)
		row(db, "new", 1, 10)
		if last, err := takeIn(a, time.Second, "new", 1); err != nil || last != 1 {
			t.Errorf("a new row: %d, %v", last, err)
		}
		time.Sleep(2 * time.Second)
		if last, err := takeIn(a, time.Second, "order", 1); err != nil || last != 1 {
			t.Errorf("a row made after it was asked for in vain: %d, %v", last, err)
		}
		if last, err := takeIn(a, time.Second, "auto:1", 1); err != nil || last != 1 {
			t.Errorf("a tag that may be created: %d, %v", last, err)
		}
		// What is made here is there at once.
		if _, err := takeIn(a, time.Second, "made", 1); !errors.Is(err, segment.ErrNoTag) {
			t.Fatal(err)
		}
		if ok, err := a.Create(context.Background(), segment.Row{Tag: "made", Max: 500}); err != nil || !ok {
			t.Fatalf("Create = %v, %v", ok, err)
		}
		if last, err := takeIn(a, time.Second, "made", 1); err != nil || last != 500 {
			t.Errorf("a tag made here: %d, %v", last, err)
		}
		// Names without number: memory is bounded, and lookups go together.
		m.Set(func(m *storetest.Mem) { m.Latency = slow(20 * time.Millisecond) })
		before := m.Calls("Rows")
		var wg sync.WaitGroup
		for i := range 20_000 {
			wg.Go(func() {
				if _, err := takeIn(a, 5*time.Second, fmt.Sprintf("no-%d", i), 1); !errors.Is(err, segment.ErrNoTag) {
					t.Errorf("Take = %v", err)
				}
			})
		}
		wg.Wait()
		if n := m.Calls("Rows") - before; n > 200 {
			t.Errorf("%d lookups for 20,000 unknown names", n)
		}
	})
}

// leaf S22, peers S7: a clean stop gives back all, a crash nothing.
func TestStopAndStartAgain(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, _ *storetest.Mem) {
		row(db, "order", 1, 1000)
		floors := storetest.NewFloors()
		next := int64(1)
		for range 20 {
			m := db.Open()
			a := run(t, m, floors, segment.Options{})
			for range 1 + rand.IntN(3000) {
				last, err := takeIn(a, time.Second, "order", 1)
				if err != nil || last != next {
					t.Fatalf("Take = %d, %v; want %d: a clean stop leaves no hole", last, err, next)
				}
				next++
			}
			stop(t, a)
			if r, _ := db.Row("order"); r.Max != next {
				t.Fatalf("the row stands at %d, want %d", r.Max, next)
			}
			if f, _ := floors.Floor("history-1", "order"); f != next {
				t.Fatalf("the floor stands at %d, want %d", f, next)
			}
		}
		// kill -9: a process that is no more gives nothing back (peers S25).
		m := db.Open()
		var dead atomic.Bool
		m.Fault = func(op, tag string) (bool, error) { return !dead.Load(), errOr(dead.Load()) }
		a := run(t, m, storetest.NewFloors(), segment.Options{})
		last, err := takeIn(a, time.Second, "order", 1)
		if err != nil {
			t.Fatal(err)
		}
		dead.Store(true)
		b := run(t, db.Open(), floors, segment.Options{})
		if after, err := takeIn(b, time.Second, "order", 1); err != nil || after < last+1000 {
			t.Fatalf("after a crash Take = %d, %v; want it above the lost span", after, err)
		}
	})
}

func errOr(on bool) error {
	if on {
		return storetest.ErrLost
	}
	return nil
}

// leaf S23, S2; peers S19: 64 goroutines on one tag: exactly what a counter would have given.
func TestManyGoroutines(t *testing.T) {
	m := storetest.NewMem()
	row(m.DB(), "order", 1, 100)
	a := start(t, m, segment.Options{MaxStep: 5000})
	const workers, each = 64, 10_000
	ids := make([][]int64, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			list := make([]int64, 0, each)
			last := int64(0)
			for range each {
				id, err := takeIn(a, 30*time.Second, "order", 1)
				if err != nil {
					t.Errorf("Take: %v", err)
					return
				}
				if id <= last {
					t.Errorf("%d after %d", id, last) // leaf S30
				}
				last = id
				list = append(list, id)
			}
			ids[w] = list
		})
	}
	wg.Wait()
	contiguous(t, slices.Concat(ids...), 1)
}

// leaf S24, peers S14, S22: requests for many, larger than a step too, beside small ones, while somebody raises the row by
// hand: each range is contiguous, none overlap, one refill is enough for each.
func TestManyAtOnce(t *testing.T) {
	m := storetest.NewMem()
	row(m.DB(), "order", 1, 100)
	a := start(t, m, segment.Options{MaxStep: 2000})
	for _, n := range []int64{0, -1, -1 << 62, 1_000_001, 1 << 62} {
		_, err := a.Take(within(t, time.Second), "order", n)
		var ce *segment.CountError
		if !errors.As(err, &ce) || ce.N != n || ce.Max != 1_000_000 {
			t.Errorf("Take(%d) = %v, want *CountError", n, err)
		}
		if _, ok := a.TryTake([]byte("order"), n); ok {
			t.Errorf("TryTake(%d) was served", n)
		}
	}
	if r, _ := m.DB().Row("order"); r.Max != 1 {
		t.Errorf("bad counts moved the row to %d", r.Max)
	}
	before := m.Calls("Reserve")
	if last, err := takeIn(a, time.Second, "order", 300_000); err != nil || last != 300_000 {
		t.Fatalf("Take(300000) = %d, %v", last, err)
	}
	if n := m.Calls("Reserve") - before; n > 2 {
		t.Errorf("%d refills for one request", n)
	}
	var mu sync.Mutex
	given := map[int64]bool{}
	var wg sync.WaitGroup
	for w := range 24 {
		n := int64(7)
		if w%4 == 0 {
			n = 5000
		}
		wg.Go(func() {
			before := int64(0)
			for range 60 {
				last, err := takeIn(a, 30*time.Second, "order", n)
				if err != nil {
					t.Errorf("Take(%d): %v", n, err)
					return
				}
				if last-n < before {
					t.Errorf("(%d, %d] after %d", last-n, last, before)
				}
				before = last
				mu.Lock()
				for id := last - n + 1; id <= last; id++ {
					if given[id] {
						t.Errorf("%d twice", id)
					}
					given[id] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			ctx, cancel := wait(time.Second)
			if r, ok := m.DB().Row("order"); ok {
				_, _ = m.Fence(ctx, "order", r.Max+10_000, nil) // UPDATE ... SET max_id = max_id + 10000
			}
			cancel()
			time.Sleep(time.Millisecond)
		}
	})
	wg.Wait()
}

// peers S1: two servers on one row, in turn.
func TestTwoServers(t *testing.T) {
	db := storetest.NewDB()
	row(db, "order", 1, 100)
	a, b := start(t, db.Open(), segment.Options{}), start(t, db.Open(), segment.Options{})
	given := map[int64]bool{}
	for range 5000 {
		for _, s := range []*segment.Allocator{a, b} {
			id := take(t, s, "order", 1)
			if given[id] {
				t.Fatalf("%d twice", id)
			}
			given[id] = true
		}
	}
}

// liar is a store that grants what it must not.
type liar struct {
	*storetest.Mem
	lie atomic.Pointer[func(g segment.Grant) segment.Grant]
}

func (l *liar) Reserve(ctx context.Context, tag string, n, floor int64) (segment.Grant, error) {
	g, err := l.Mem.Reserve(ctx, tag, n, floor)
	if lie := l.lie.Load(); err == nil && lie != nil {
		g = (*lie)(g)
	}
	return g, err
}

// peers S3: a span at or below what was given is never used, even if the store were to grant it.
func TestStoreGrantsTwice(t *testing.T) {
	for name, lie := range map[string]func(g segment.Grant) segment.Grant{
		"the same again": func(g segment.Grant) segment.Grant { g.Lo, g.Hi = 1, 1+g.Len(); return g },
		"overlapping":    func(g segment.Grant) segment.Grant { g.Lo--; g.Hi--; return g },
		"too long":       func(g segment.Grant) segment.Grant { g.Hi++; return g },
		"zero":           func(g segment.Grant) segment.Grant { return segment.Grant{} },
		"negative":       func(g segment.Grant) segment.Grant { g.Lo, g.Hi = -g.Hi, -g.Lo; return g },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
				row(db, "order", 1, 10)
				l := &liar{Mem: m}
				a := run(t, l, nil, segment.Options{})
				if _, err := takeIn(a, time.Second, "order", 5); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				l.lie.Store(&lie)
				last := int64(5)
				var err error
				for range 100 {
					var id int64
					if id, err = takeIn(a, time.Second, "order", 1); err != nil {
						break
					}
					if id != last+1 {
						t.Fatalf("%d after %d", id, last)
					}
					last = id
				}
				var re *segment.RefusedError
				if !errors.As(err, &re) {
					t.Fatalf("Take = %v after %d, want *RefusedError", err, last)
				}
				l.lie.Store(nil)
				time.Sleep(10 * time.Second)
				if id, err := takeIn(a, time.Second, "order", 1); err != nil || id <= last {
					t.Fatalf("after the cure Take = %d, %v", id, err)
				}
			})
		})
	}
}

// peers S8: a burst on an idle key burns no more than it used.
func TestBurstBurnsLittle(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 1000)
		m.Set(func(m *storetest.Mem) { m.Latency = slow(2 * time.Millisecond) })
		a := run(t, m, nil, segment.Options{})
		for range 1000 { // 20,000 IDs in one second
			for range 20 {
				if _, err := takeIn(a, time.Second, "order", 1); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		r, _ := db.Row("order")
		if burnt := r.Max - 20_001; burnt > 2*20_000 {
			t.Errorf("kill -9 now would burn %d IDs after a burst of 20,000", burnt)
		}
	})
}

// peers S16: a store that refuses for good is said at once, and asked seldom.
func TestStoreRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		row(db, "user", 1, 10)
		a := run(t, m, nil, segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		db.SetDown(&segment.RefusedError{Cause: errors.New("table 'leaf_alloc' doesn't exist")})
		began, before := time.Now(), m.Calls("Reserve")+m.Calls("Rows")+m.Calls("Pulse")
		var re *segment.RefusedError
		for range 5000 {
			_, err := takeIn(a, 2*time.Second, "order", 1)
			if err != nil && !errors.As(err, &re) {
				t.Fatalf("Take = %v, want *RefusedError", err)
			}
			if _, err := takeIn(a, 2*time.Second, "user", 1); !errors.As(err, &re) {
				t.Fatalf("Take of a cold tag = %v, want *RefusedError", err)
			}
			time.Sleep(time.Millisecond)
		}
		if d := time.Since(began); d > 6*time.Second {
			t.Errorf("10,000 refusals took %v: they must come at once", d)
		}
		if n := m.Calls("Reserve") + m.Calls("Rows") + m.Calls("Pulse") - before; n > 25 {
			t.Errorf("the store was asked %d times in 5 s", n)
		}
		db.SetDown(nil)
		time.Sleep(5 * time.Second)
		for _, tag := range []string{"order", "user"} {
			if _, err := takeIn(a, 2*time.Second, tag, 1); err != nil {
				t.Errorf("%s after the cure: %v", tag, err)
			}
		}
	})
}

// 10,000 cold tags at once against a slow database: no storm, fair, all served; a hot tag is not held up.
func TestManyColdTags(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "hot", 1, 1000)
		var now, most atomic.Int64
		m.Set(func(m *storetest.Mem) {
			m.Fault = func(op, tag string) (bool, error) {
				most.Store(max(most.Load(), now.Load()))
				now.Add(-1)
				return true, nil
			}
		})
		m.Set(func(m *storetest.Mem) {
			m.Latency = func(op, tag string) time.Duration {
				now.Add(1)
				return 50 * time.Millisecond
			}
		})
		a := run(t, m, nil, segment.Options{AutoCreate: []string{"*"}})
		if _, err := takeIn(a, time.Second, "hot", 1); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		began := time.Now()
		for i := range 10_000 {
			wg.Go(func() {
				if last, err := takeIn(a, 2*time.Minute, fmt.Sprintf("cold-%d", i), 1); err != nil || last != 1 {
					t.Errorf("cold tag: %d, %v", last, err)
				}
			})
		}
		for range 1000 { // 10,000 IDs a second
			for range 10 {
				if _, err := takeIn(a, time.Second, "hot", 1); err != nil {
					t.Errorf("hot tag: %v", err)
				}
			}
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		if n := most.Load(); n > 16+4 {
			t.Errorf("%d calls at one time", n)
		}
		t.Logf("10,000 new tags against 50 ms latency: %v", time.Since(began))
	})
}

// A request whose client left frees its place, and what nobody waits for is not loaded.
func TestLeaving(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		db.SetDown(storetest.ErrLost)
		a := run(t, m, nil, segment.Options{AutoCreate: []string{"*"}})
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				if _, err := takeIn(a, time.Second, fmt.Sprintf("t-%d", i), 1); err == nil {
					t.Error("served while the store is down")
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		db.SetDown(nil)
		time.Sleep(10 * time.Second)
		if n := m.Calls("Reserve"); n != 0 {
			t.Errorf("%d tags were loaded for requests that had left", n)
		}
		// Load goes on without anybody waiting.
		row(db, "wished", 1, 10)
		a.Load("wished")
		a.Load("unknown")
		time.Sleep(time.Second)
		if last, ok := a.TryTake([]byte("wished"), 1); !ok || last != 1 {
			t.Errorf("TryTake after Load = %d, %v", last, ok)
		}
	})
}

// Idle tags leave memory when their floor is durable, and come back right.
func TestIdleTags(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		row(db, "user", 1, 10)
		floors := storetest.NewFloors()
		var full atomic.Bool
		full.Store(true)
		floors.Fault = func(op string) (bool, error) {
			if full.Load() && op == "Save" {
				return false, errors.New("no space left on device")
			}
			return true, nil
		}
		a := run(t, m, floors, segment.Options{})
		if last, err := takeIn(a, time.Second, "order", 3); err != nil || last != 3 {
			t.Fatalf("a full disk stopped IDs: %d, %v", last, err)
		}
		if a.Stats().FloorsErr == nil {
			t.Error("a full disk is not shown")
		}
		time.Sleep(3 * time.Hour)
		if n := a.Stats().Tags; n != 1 {
			t.Fatalf("%d tags in memory: one whose floor is not durable must stay", n)
		}
		full.Store(false)
		time.Sleep(time.Minute)
		if n := a.Stats().Tags; n != 0 {
			t.Fatalf("%d tags in memory after 3 idle hours", n)
		}
		if st := a.Stats(); st.Burnt != 17 || st.Issued != 3 || st.FloorsErr != nil {
			t.Errorf("Stats = %+v, want 3 issued and 17 burnt", st)
		}
		if f, _ := floors.Floor("history-1", "order"); f != 21 {
			t.Errorf("the floor on disk is %d, want 21", f)
		}
		if last, err := takeIn(a, time.Second, "order", 1); err != nil || last != 21 {
			t.Errorf("back in memory Take = %d, %v; want 21", last, err)
		}
		// Out of memory again, and its row goes back: its floor still stops it.
		time.Sleep(2 * time.Hour)
		row(db, "order", 2, 10)
		_, err := takeIn(a, time.Second, "order", 1)
		var re *segment.RegressedError
		if !errors.As(err, &re) || re.Row != 2 || re.Floor != 41 {
			t.Errorf("Take = %v, want *RegressedError with row 2, floor 41", err)
		}
	})
}

// After the store went back every stored floor is compared, those of idle tags too, and lost rows are put back in the pause,
// above the floor by the skip.
func TestEveryFloorIsCompared(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, _ *storetest.Mem) {
		db.Check, db.Skip = 5*time.Second, 100
		m := db.Open()
		floors := storetest.NewFloors()
		old := db.Backup()
		a := run(t, m, floors, segment.Options{AutoCreate: []string{"*"}, Step: 50})
		for i := range 300 {
			if _, err := takeIn(a, 5*time.Second, fmt.Sprintf("idle-%d", i), 1); err != nil {
				t.Fatal(err)
			}
		}
		row(db, "deep", 5000, 10)
		if _, err := takeIn(a, time.Second, "deep", 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour) // all leave memory
		if n := a.Stats().Tags; n != 0 {
			t.Fatalf("%d tags in memory", n)
		}
		db.Failover(old)
		row(db, "deep", 40, 10)
		time.Sleep(6 * time.Second)
		for i := range 300 {
			if r, ok := db.Row(fmt.Sprintf("idle-%d", i)); !ok || r.Max != 51+100 {
				t.Fatalf("idle-%d: row %+v, %v; want it put back at 151", i, r, ok)
			}
		}
		if r, _ := db.Row("deep"); r.Max != 5020 {
			t.Errorf("a row below its idle tag's floor stands at %d, want it raised to 5020", r.Max)
		}
		if i, err := a.Info(context.Background(), "deep"); err != nil || i.State != "regressed" {
			t.Errorf("Info = %+v, %v; want it stopped", i, err)
		}
		time.Sleep(10 * time.Second)
		if last, err := takeIn(a, time.Second, "idle-7", 1); err != nil || last != 151 {
			t.Errorf("after the pause Take = %d, %v; want 151", last, err)
		}
	})
}

// The pause: no grants, and buffered IDs flow. Without a cause in sight the error says so.
func TestPause(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, _ *storetest.Mem) {
		db.Check, db.Skip = 5*time.Second, 100
		m := db.Open()
		row(db, "order", 1, 10)
		a := run(t, m, storetest.NewFloors(), segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		old := db.Backup()
		time.Sleep(11 * time.Second)
		db.Restore(old) // the beat shows it
		time.Sleep(5 * time.Second)
		synctest.Wait()
		var err error
		var last int64
		for n := 0; err == nil; n++ {
			last, err = takeIn(a, time.Second, "order", 1)
			if err == nil && (n > 20 || last > 20) {
				t.Fatalf("ID %d during the pause", last)
			}
		}
		if !strings.Contains(err.Error(), "went back") {
			t.Errorf("during the pause Take = %v", err)
		}
		if _, err := a.Set(context.Background(), "order", 5000, segment.SetAlways); err == nil {
			t.Error("SET passed during the pause")
		}
		if st := a.Stats(); st.Epoch != 1 || st.Paused <= 0 {
			t.Errorf("Stats = %+v", st)
		}
		time.Sleep(11 * time.Second)
		if last, err := takeIn(a, time.Second, "order", 1); err != nil || last <= 100 {
			t.Errorf("after the pause Take = %d, %v; want it above the skip", last, err)
		}
	})
}

// A history that changes under a running instance takes the floors along: what was given is given.
func TestHistoryChanges(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		row(db, "idle", 1, 10)
		floors := storetest.NewFloors()
		if err := floors.Save("history-1", map[string]int64{"idle": 400}); err != nil {
			t.Fatal(err)
		}
		h := &historian{Mem: m}
		a := run(t, h, floors, segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 1); err != nil {
			t.Fatal(err)
		}
		h.name.Store("another")
		time.Sleep(11 * time.Second)
		synctest.Wait()
		for tag, want := range map[string]int64{"order": 21, "idle": 400} {
			if f, _ := floors.Floor("another", tag); f != want {
				t.Errorf("floor of %s in the new history is %d, want %d", tag, f, want)
			}
		}
		if i, _ := a.Info(context.Background(), "idle"); i.State != "regressed" {
			t.Errorf("idle is %s, want it stopped: its row stands at 1, its floor at 400", i.State)
		}
	})
}

type historian struct {
	*storetest.Mem
	name atomic.Value
}

func (h *historian) Pulse(ctx context.Context) (segment.Pulse, error) {
	p, err := h.Mem.Pulse(ctx)
	if s, ok := h.name.Load().(string); ok {
		p.History = s
	}
	return p, err
}

// More than one spare where a refill takes longer than a span lasts: with 50 ms of latency and a ramp to 2,000,000 IDs a second
// only the first refills of the cold tag make anyone wait.
func TestRamp(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 1000)
		m.Set(func(m *storetest.Mem) { m.Latency = slow(50 * time.Millisecond) })
		a := run(t, m, storetest.NewFloors(), segment.Options{})
		warm := uint64(0)
		for ms := range 10_000 {
			n := int64(ms) * 2_000_000 / 10_000 / 1000 // IDs in this millisecond
			for range n / 100 {
				if _, err := takeIn(a, 2*time.Second, "order", 100); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Millisecond)
			if ms == 3000 {
				warm = a.Stats().Waits
			}
		}
		st := a.Stats()
		t.Logf("%d IDs in 10 s, %d refills, %d requests waited, %d of them after 3 s", st.Issued, st.Refills, st.Waits, st.Waits-warm)
		if st.Waits > 10 || st.Waits != warm {
			t.Errorf("%d requests waited, %d of them when the tag was warm", st.Waits, st.Waits-warm)
		}
	})
}

// Spans that can't grow, and a database that is slow from time to time: spares cover the slow refills, once one was seen.
func TestMoreSpares(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 1000)
		var n atomic.Int64
		m.Latency = func(op, tag string) time.Duration {
			if op != "Reserve" {
				return time.Millisecond
			}
			if n.Add(1)%8 < 2 { // two of eight, one after another
				return 140 * time.Millisecond
			}
			return 50 * time.Millisecond
		}
		a := run(t, m, nil, segment.Options{MaxStep: 1000})
		var warm uint64
		for ms := range 20_000 { // 10,000 a second: a span lasts 100 ms
			if _, err := takeIn(a, 2*time.Second, "order", 10); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			if ms == 3000 {
				warm = a.Stats().Waits
			}
		}
		if w := a.Stats().Waits - warm; w > 0 {
			t.Errorf("%d requests waited after 3 s", w)
		}
	})
}

// A random history: two allocators on one database, faults in pairs, every operation; the ledger re-proves that
// IDs are unique, granted and increasing after each.
func TestRandomOperations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var errs []string // told outside of the bubble, which must end first
		defer func() {
			for _, e := range errs {
				rt.Fatal(e)
			}
		}()
		synctest.Test(t, func(t *testing.T) {
			db := storetest.NewDB()
			l := newLedger(db)
			var faulty atomic.Int64
			var mu sync.Mutex
			r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
			open := func() *storetest.Mem {
				m := db.Open()
				m.Set(func(m *storetest.Mem) {
					m.Fault = func(op, tag string) (bool, error) {
						mu.Lock()
						defer mu.Unlock()
						if r.Int64N(100) < faulty.Load() {
							return r.IntN(2) == 0, storetest.ErrLost
						}
						return true, nil
					}
				})
				m.Set(func(m *storetest.Mem) {
					m.Latency = func(op, tag string) time.Duration {
						mu.Lock()
						defer mu.Unlock()
						return time.Duration(r.Int64N(int64(30 * time.Millisecond)))
					}
				})
				m.Reply = m.Latency
				return m
			}
			o := segment.Options{AutoCreate: []string{"*"}, Step: rapid.Int64Range(1, 20).Draw(rt, "step"), MaxStep: 100, MaxCount: 50, Target: 5 * time.Second}
			floors := []*storetest.Floors{storetest.NewFloors(), storetest.NewFloors()}
			as := []*segment.Allocator{run(t, open(), floors[0], o), run(t, open(), floors[1], o)}
			lives := []int{1, 1}
			tags := []string{"a", "b"}
			var wg sync.WaitGroup
			op := func() {
				i := rapid.IntRange(0, 1).Draw(rt, "instance")
				tag := rapid.SampledFrom(tags).Draw(rt, "tag")
				n := rapid.Int64Range(1, 50).Draw(rt, "n")
				a, who := as[i], fmt.Sprintf("%d.%d", i, lives[i])
				switch rapid.IntRange(0, 12).Draw(rt, "op") {
				case 0:
					faulty.Store(rapid.Int64Range(0, 60).Draw(rt, "faults"))
				case 1:
					time.Sleep(time.Duration(rapid.Int64Range(0, 3000).Draw(rt, "ms")) * time.Millisecond)
				case 2:
					wg.Wait()
					ctx, cancel := wait(5 * time.Second)
					_ = a.Close(ctx)
					cancel()
					lives[i]++
					as[i] = run(t, open(), floors[i], o)
				case 3, 4:
					set := rapid.Int64Range(0, 60).Draw(rt, "ahead")
					mode := rapid.SampledFrom([]segment.SetMode{segment.SetAlways, segment.SetIfAbsent, segment.SetIfPresent}).Draw(rt, "mode")
					wg.Go(func() {
						ctx, cancel := wait(time.Second)
						defer cancel()
						before := l.before(tag, who)
						got, _, err := a.Last(ctx, tag)
						if err != nil {
							return
						}
						if done, err := a.Set(ctx, tag, got+set, mode); done && err == nil {
							l.give(tag, who, got+set, 1, before, true)
						}
					})
				case 5:
					wg.Go(func() {
						ctx, cancel := wait(time.Second)
						defer cancel()
						before := l.before(tag, who)
						ids, err := a.TakeMany(ctx, nil, tag, n)
						if err != nil {
							l.refuse(err)
						}
						for _, id := range ids {
							l.give(tag, who, id, 1, before, false)
							before = id
						}
					})
				default:
					if rapid.Bool().Draw(rt, "one") {
						n = 1
					}
					wg.Go(func() {
						before := l.before(tag, who)
						last, err := takeIn(a, time.Second, tag, n)
						if err != nil {
							l.refuse(err)
							return
						}
						l.give(tag, who, last, n, before, false)
					})
				}
			}
			for range rapid.IntRange(1, 80).Draw(rt, "length") {
				op()
			}
			wg.Wait()
			faulty.Store(0)
			time.Sleep(10 * time.Second)
			for i, a := range as {
				for _, tag := range tags {
					before := l.before(tag, fmt.Sprint(i, ".", lives[i]))
					last, err := takeIn(a, 2*time.Second, tag, 1)
					if err != nil {
						l.wrong("%s is stuck: %v", tag, err)
						continue
					}
					l.give(tag, fmt.Sprint(i, ".", lives[i]), last, 1, before, false)
				}
				stop(t, a)
			}
			errs = l.errs
			if n := l.refused["regressed"] + l.refused["no tag"]; n > 0 {
				errs = append(errs, fmt.Sprintf("refused %v on a database that did not go back", l.refused))
			}
		})
	})
}
