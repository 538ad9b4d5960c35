package segment_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"redleaf/segment"
	"redleaf/segment/storetest"
)

func set(a *segment.Allocator, tag string, n int64, mode segment.SetMode) (bool, error) {
	ctx, cancel := wait(5 * time.Second)
	defer cancel()
	return a.Set(ctx, tag, n, mode)
}

// SET, row by row of the contract: n must be new, OK means that it is the caller's alone and that all later IDs are larger.
func TestSet(t *testing.T) {
	const always, nx, xx = segment.SetAlways, segment.SetIfAbsent, segment.SetIfPresent
	for _, c := range []struct {
		name   string
		bound  int64 // of the row; 0: none
		take   int64 // IDs given before
		n      int64
		mode   segment.SetMode
		done   bool
		refuse int64 // the bound that a *SetRefusedError names
		next   int64 // the ID after
		row    int64 // the row after; 0: not asked
	}{
		{"new tag", 0, 0, 500, always, true, 0, 501, 0},
		{"new tag at 0", 0, 0, 0, always, true, 0, 1, 0},
		{"new tag, NX", 0, 0, 500, nx, true, 0, 501, 0},
		{"new tag, NX at 0", 0, 0, 0, nx, true, 0, 1, 0},
		{"new tag, XX", 0, 0, 500, xx, false, 0, 1, 0},
		{"far beyond", 1, 10, 5000, always, true, 0, 5001, 0},
		{"far beyond, XX", 1, 10, 5000, xx, true, 0, 5001, 0},
		{"far beyond, NX", 1, 10, 5000, nx, false, 0, 11, 0},
		{"cold, at the bound", 100, 0, 100, always, true, 0, 101, 0},
		{"cold, below the bound", 100, 0, 99, always, false, 100, 100, 0},
		{"cold, at 0", 100, 0, 0, always, false, 100, 100, 0},
		{"cold, NX", 100, 0, 500, nx, false, 0, 100, 0},
		{"the next one held", 1, 10, 11, always, true, 0, 12, 201},
		{"one held, some way on", 1, 10, 50, always, true, 0, 51, 201},
		{"the last of the current span", 1, 10, 100, always, true, 0, 101, 201},
		{"the first of the spare", 1, 10, 101, always, true, 0, 102, 201},
		{"in the spare", 1, 10, 150, always, true, 0, 151, 201},
		{"the last one held", 1, 10, 200, always, true, 0, 201, 0},
		{"at the row's bound", 1, 10, 201, always, true, 0, 202, 0},
		{"given already", 1, 10, 10, always, false, 201, 11, 201},
		{"given long ago", 1, 10, 1, always, false, 201, 11, 201},
		{"0 on a tag in use", 1, 10, 0, always, false, 201, 11, 201},
		{"the largest there is", 1, 10, segment.MaxID - 1, always, true, 0, 0, segment.MaxID},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
				if c.bound > 0 {
					row(db, "order", c.bound, 100)
				}
				floors := storetest.NewFloors()
				a := run(t, m, floors, segment.Options{AutoCreate: []string{"*"}, Step: 100})
				time.Sleep(time.Millisecond)
				for range c.take {
					if _, err := takeIn(a, time.Second, "order", 1); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				version := a.Version("order")
				done, err := set(a, "order", c.n, c.mode)
				var sr *segment.SetRefusedError
				switch {
				case c.refuse > 0:
					if done || !errors.As(err, &sr) || sr.Bound != c.refuse || sr.N != c.n || sr.Tag != "order" || sr.Last != c.take {
						t.Fatalf("Set = %v, %v (%+v); want *SetRefusedError with last %d, bound %d", done, err, sr, c.take, c.refuse)
					}
				case err != nil || done != c.done:
					t.Fatalf("Set = %v, %v; want %v", done, err, c.done)
				}
				if changed := a.Version("order") != version; changed != c.done {
					t.Errorf("the version changed: %v", changed)
				}
				if r, _ := db.Row("order"); c.row > 0 && r.Max != c.row {
					t.Errorf("the row stands at %d, want %d", r.Max, c.row)
				}
				if c.done {
					if last, ok, err := a.Last(context.Background(), "order"); err != nil || !ok || last != c.n {
						t.Errorf("Last = %d, %v, %v; want %d", last, ok, err, c.n)
					}
					if again, err := set(a, "order", c.n, always); again || !errors.As(err, &sr) {
						t.Errorf("the same number again: %v, %v", again, err)
					}
				}
				if c.next == 0 {
					if last, err := takeIn(a, time.Second, "order", 1); !errors.Is(err, segment.ErrExhausted) {
						t.Fatalf("Take = %d, %v; want ErrExhausted", last, err)
					}
					return
				}
				if last, err := takeIn(a, time.Second, "order", 1); err != nil || last != c.next {
					t.Fatalf("Take = %d, %v; want %d", last, err, c.next)
				}
			})
		})
	}
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		a := run(t, m, nil, segment.Options{})
		for _, n := range []int64{-1, segment.MaxID} {
			if done, err := set(a, "order", n, always); done || err == nil {
				t.Errorf("Set(%d) = %v, %v", n, done, err)
			}
		}
	})
}

// A SET whose floor is known from before a restart is refused below it, row or no row; above, SET alone makes a lost row again.
func TestSetKnowsFloors(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		floors := storetest.NewFloors()
		if err := floors.Save("history-1", map[string]int64{"order": 1000}); err != nil {
			t.Fatal(err)
		}
		a := run(t, m, floors, segment.Options{AutoCreate: []string{"*"}})
		time.Sleep(time.Second)
		var re *segment.RegressedError
		if _, err := takeIn(a, time.Second, "order", 1); !errors.As(err, &re) || re.Row != -1 || re.Floor != 1000 {
			t.Fatalf("Take of a tag whose row is gone: %v", err)
		}
		if i, err := a.Info(context.Background(), "order"); err != nil || i.State != "missing" || i.Floor != 1000 || i.Row != -1 {
			t.Errorf("Info = %+v, %v", i, err)
		}
		if ok, err := a.Create(context.Background(), segment.Row{Tag: "order"}); ok || !errors.As(err, &re) {
			t.Errorf("Create of it = %v, %v; want *RegressedError", ok, err)
		}
		var sr *segment.SetRefusedError
		for _, mode := range []segment.SetMode{segment.SetAlways, segment.SetIfAbsent} {
			if done, err := set(a, "order", 999, mode); done || !errors.As(err, &sr) || sr.Bound != 1000 {
				t.Errorf("Set below the floor = %v, %v", done, err)
			}
		}
		if _, ok := db.Row("order"); ok {
			t.Error("the row came back")
		}
		if db.Base() != 1000 {
			t.Errorf("the base stands at %d: another instance could make the tag again below 1000", db.Base())
		}
		if done, err := set(a, "order", 1000, segment.SetIfAbsent); !done || err != nil {
			t.Fatalf("Set at the floor = %v, %v", done, err)
		}
		if last, err := takeIn(a, time.Second, "order", 1); err != nil || last != 1001 {
			t.Errorf("Take = %d, %v; want 1001", last, err)
		}
		if f, _ := floors.Floor("history-1", "order"); f < 1001 {
			t.Errorf("the floor on disk is %d", f)
		}
	})
}

// R2: clients that read a counter, add one and SET it, beside INCR, on one instance and on two: numbers for which somebody got OK
// are all distinct.
func TestReadAddSet(t *testing.T) {
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			db := storetest.NewDB()
			var as []*segment.Allocator
			for range instances {
				as = append(as, start(t, db.Open(), segment.Options{AutoCreate: []string{"*"}, Step: 7}))
			}
			var mu sync.Mutex
			owner := map[int64]string{}
			oks := 0
			var wg sync.WaitGroup
			for w := range 12 {
				a := as[w%instances]
				who := fmt.Sprint("client ", w)
				wg.Go(func() {
					for range 200 {
						var n int64
						var err error
						if w%3 == 0 {
							if n, err = takeIn(a, 10*time.Second, "order", 1); err != nil {
								t.Errorf("Take: %v", err)
								return
							}
						} else {
							last, ok, err := a.Last(context.Background(), "order")
							if err != nil {
								t.Errorf("Last: %v", err)
								return
							}
							if !ok {
								last = 0
							}
							n = last + 1
							done, err := set(a, "order", n, segment.SetAlways)
							var sr *segment.SetRefusedError
							if err != nil && !errors.As(err, &sr) {
								t.Errorf("Set: %v", err)
								return
							}
							if !done {
								continue
							}
						}
						mu.Lock()
						if w%3 != 0 {
							oks++
						}
						if other, ok := owner[n]; ok {
							t.Errorf("%d belongs to %s and to %s", n, other, who)
						}
						owner[n] = who
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			if oks == 0 {
				t.Error("no SET ever passed")
			}
		})
	}
}

// R8: INCR and two SETNX on a fresh tag at the same moment, on two instances, 200 rounds: at most one gets the number.
func TestSetNXRace(t *testing.T) {
	db := storetest.NewDB()
	o := segment.Options{AutoCreate: []string{"*"}}
	as := []*segment.Allocator{start(t, db.Open(), o), start(t, db.Open(), o)}
	won := map[string]int{}
	for round := range 200 {
		tag := fmt.Sprint("fresh-", round)
		var mu sync.Mutex
		var winners []string
		var wg sync.WaitGroup
		for i, a := range as {
			wg.Go(func() {
				if done, err := set(a, tag, 1, segment.SetIfAbsent); err != nil {
					t.Errorf("SETNX: %v", err)
				} else if done {
					mu.Lock()
					winners = append(winners, "SETNX")
					mu.Unlock()
				}
			})
			if i == round%2 {
				wg.Go(func() {
					if last, err := takeIn(a, 10*time.Second, tag, 1); err != nil {
						t.Errorf("Take: %v", err)
					} else if last == 1 {
						mu.Lock()
						winners = append(winners, "INCR")
						mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		if len(winners) > 1 {
			t.Fatalf("round %d: 1 belongs to %v", round, winners)
		}
		for _, w := range winners {
			won[w]++
		}
	}
	t.Logf("won: %v", won)
}

// SET while spans are in flight and others take: whoever gets an ID after OK gets a larger one.
func TestSetUnderLoad(t *testing.T) {
	m := storetest.NewMem()
	row(m.DB(), "order", 1, 50)
	m.Set(func(m *storetest.Mem) { m.Latency = slow(100 * time.Microsecond) })
	a := start(t, m, segment.Options{MaxStep: 500})
	var mu sync.Mutex
	owner := map[int64]bool{}
	own := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		if owner[n] {
			t.Errorf("%d belongs to two", n)
		}
		owner[n] = true
	}
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := int64(0)
			for {
				select {
				case <-stopped:
					return
				default:
				}
				id, err := takeIn(a, 10*time.Second, "order", 1)
				if err != nil {
					t.Errorf("Take: %v", err)
					return
				}
				if id <= last {
					t.Errorf("%d after %d", id, last)
				}
				last = id
				own(id)
			}
		})
	}
	for i := range 300 {
		last, _, err := a.Last(context.Background(), "order")
		if err != nil {
			t.Fatal(err)
		}
		n := last + []int64{1, 20, 100, 700, 5000}[i%5]
		done, err := set(a, "order", n, segment.SetAlways)
		var sr *segment.SetRefusedError
		if err != nil && !errors.As(err, &sr) {
			t.Fatal(err)
		}
		if done {
			own(n)
			if id, err := takeIn(a, 10*time.Second, "order", 1); err != nil || id <= n {
				t.Fatalf("%d (%v) after SET %d", id, err, n)
			} else {
				own(id)
			}
		}
	}
	close(stopped)
	wg.Wait()
}

// SET and its lost replies: an error means nothing to the caller, and the number is nobody's.
func TestSetFaults(t *testing.T) {
	for _, apply := range []bool{false, true} {
		for _, exists := range []bool{false, true} {
			t.Run(fmt.Sprintf("applied %v, exists %v", apply, exists), func(t *testing.T) {
				bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
					if exists {
						row(db, "order", 10, 10)
					}
					a := run(t, m, storetest.NewFloors(), segment.Options{AutoCreate: []string{"*"}})
					time.Sleep(time.Millisecond)
					failed := false
					m.Set(func(m *storetest.Mem) {
						m.Fault = func(op, tag string) (bool, error) {
							if (op == "Advance" && exists || op == "Create") && !failed {
								failed = true
								return apply, storetest.ErrLost
							}
							return true, nil
						}
					})
					if done, err := set(a, "order", 500, segment.SetAlways); done || err == nil {
						t.Fatalf("Set with a lost reply = %v, %v", done, err)
					}
					done, err := set(a, "order", 500, segment.SetAlways)
					var sr *segment.SetRefusedError
					if apply && (done || !errors.As(err, &sr)) || !apply && (!done || err != nil) {
						t.Fatalf("Set again = %v, %v", done, err)
					}
					if last, err := takeIn(a, time.Second, "order", 1); err != nil || last != 501 {
						t.Fatalf("Take = %d, %v; want 501", last, err)
					}
				})
			})
		}
	}
}
