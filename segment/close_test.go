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

// When the tail goes back, and when it stays a hole: never after SET, a tag that regressed, a skip or an unknown result, never
// to another server, never what a peer passed.
func TestGiveBack(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(t *testing.T, db *storetest.DB, m *storetest.Mem, a *segment.Allocator)
		back bool
	}{
		{"plain", func(*testing.T, *storetest.DB, *storetest.Mem, *segment.Allocator) {}, true},
		{"SET among what is held", func(t *testing.T, db *storetest.DB, m *storetest.Mem, a *segment.Allocator) {
			if done, err := set(a, "order", 50, segment.SetAlways); !done || err != nil {
				t.Fatal(done, err)
			}
		}, false},
		{"SET beyond, then more spans", func(t *testing.T, db *storetest.DB, m *storetest.Mem, a *segment.Allocator) {
			if done, err := set(a, "order", 5000, segment.SetAlways); !done || err != nil {
				t.Fatal(done, err)
			}
			if _, err := takeIn(a, time.Second, "order", 1); err != nil {
				t.Fatal(err)
			}
		}, true}, // what is held was granted after it
		{"an unknown result", func(t *testing.T, db *storetest.DB, m *storetest.Mem, a *segment.Allocator) {
			m.Set(func(m *storetest.Mem) {
				m.Fault = func(op, tag string) (bool, error) {
					if op == "Advance" {
						return false, storetest.ErrLost
					}
					return true, nil
				}
			})
			if _, err := set(a, "order", 5000, segment.SetAlways); err == nil {
				t.Fatal("no error")
			}
		}, false},
		{"a peer was granted", func(t *testing.T, db *storetest.DB, m *storetest.Mem, a *segment.Allocator) {
			if _, err := db.Open().Reserve(context.Background(), "order", 10, 0); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"another server", func(t *testing.T, db *storetest.DB, m *storetest.Mem, a *segment.Allocator) {
			db.Failover(db.Backup())
			time.Sleep(6 * time.Second)
		}, false},
		{"a lost reply of the give-back", func(t *testing.T, db *storetest.DB, m *storetest.Mem, a *segment.Allocator) {
			m.Set(func(m *storetest.Mem) {
				m.Fault = func(op, tag string) (bool, error) {
					if op == "GiveBack" {
						return false, storetest.ErrLost
					}
					return true, nil
				}
			})
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
				row(db, "order", 1, 100)
				floors := storetest.NewFloors()
				a := run(t, m, floors, segment.Options{})
				if last, err := takeIn(a, time.Second, "order", 7); err != nil || last != 7 {
					t.Fatal(last, err)
				}
				synctest.Wait()
				c.do(t, db, m, a)
				synctest.Wait()
				before, _ := db.Row("order")
				last, _, err := a.Last(context.Background(), "order")
				if err != nil {
					t.Fatal(err)
				}
				stop(t, a)
				after, _ := db.Row("order")
				if c.back && after.Max != last+1 || !c.back && after.Max != before.Max {
					t.Errorf("the row went from %d to %d, the last ID is %d; want it given back: %v", before.Max, after.Max, last, c.back)
				}
				// The next life goes on above, whatever came of the tail.
				b := run(t, db.Open(), floors, segment.Options{})
				if id, err := takeIn(b, 15*time.Second, "order", 1); err != nil || id <= last {
					t.Errorf("the next life's ID is %d, %v; want it above %d", id, err, last)
				}
			})
		})
	}
}

// The floor is lowered, durably, before the row; where it can't be, the row stays.
func TestFloorBeforeRow(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 100)
		var mu sync.Mutex
		var order []string
		floors := storetest.NewFloors()
		note := func(what string) {
			mu.Lock()
			order = append(order, what)
			mu.Unlock()
		}
		var failLower bool
		floors.Fault = func(op string) (bool, error) {
			if op == "Lower" {
				note(op)
				if failLower {
					return false, errors.New("no space left on device")
				}
			}
			return true, nil
		}
		m.Set(func(m *storetest.Mem) {
			m.Fault = func(op, tag string) (bool, error) {
				if op == "GiveBack" {
					note(op)
				}
				return true, nil
			}
		})
		a := run(t, m, floors, segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 1); err != nil {
			t.Fatal(err)
		}
		stop(t, a)
		if got := fmt.Sprint(order); got != "[Lower GiveBack]" {
			t.Errorf("%s, want [Lower GiveBack]", got)
		}
		failLower = true
		order = nil
		a = run(t, m, floors, segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 1); err != nil {
			t.Fatal(err)
		}
		stop(t, a)
		if got := fmt.Sprint(order); got != "[Lower]" {
			t.Errorf("with a full disk: %s, want [Lower]", got)
		}
	})
}

// A rolling restart: each instance gives back below what another holds, and nobody takes that for a store that went back.
func TestRollingRestart(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 100)
		fa, fb := storetest.NewFloors(), storetest.NewFloors()
		a, b := run(t, db.Open(), fa, segment.Options{}), run(t, db.Open(), fb, segment.Options{})
		used := map[int64]bool{}
		use := func(s *segment.Allocator) {
			for range 15 {
				id, err := takeIn(s, time.Second, "order", 1)
				if err != nil || used[id] {
					t.Fatalf("%d, %v, twice %v", id, err, used[id])
				}
				used[id] = true
			}
			synctest.Wait()
		}
		for range 10 {
			use(a)
			use(b)
			stop(t, b) // the last to be granted goes first, so its tail goes back, and then the one below it
			stop(t, a)
			b, a = run(t, db.Open(), fb, segment.Options{}), run(t, db.Open(), fa, segment.Options{})
			use(b)
			use(a)
			stop(t, a)
			stop(t, b)
			a, b = run(t, db.Open(), fa, segment.Options{}), run(t, db.Open(), fb, segment.Options{})
		}
	})
}

// Close with a store that hangs ends with its context, and leaves nothing running.
func TestCloseIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		row(db, "user", 1, 10)
		a := run(t, m, storetest.NewFloors(), segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 1); err != nil {
			t.Fatal(err)
		}
		m.Set(func(m *storetest.Mem) { m.Latency = slow(time.Hour) })
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := takeIn(a, time.Minute, "user", 1); !errors.Is(err, segment.ErrClosed) {
				t.Errorf("a waiting request ended with %v, want ErrClosed", err)
			}
		})
		synctest.Wait()
		began := time.Now()
		ctx, cancel := wait(3 * time.Second)
		defer cancel()
		_ = a.Close(ctx)
		if d := time.Since(began); d > 4*time.Second {
			t.Errorf("Close took %v", d)
		}
		wg.Wait()
		if err := a.Ready(); !errors.Is(err, segment.ErrClosed) {
			t.Errorf("Ready = %v", err)
		}
		if _, err := set(a, "order", 500, segment.SetAlways); !errors.Is(err, segment.ErrClosed) {
			t.Errorf("Set = %v", err)
		}
	})
}

// Stopping under load: no ID is given by two lives, and no request hangs.
func TestStopUnderLoad(t *testing.T) {
	db := storetest.NewDB()
	row(db, "order", 1, 50)
	floors := storetest.NewFloors()
	var mu sync.Mutex
	used := map[int64]bool{}
	top := int64(0)
	for life := range 15 {
		m := db.Open()
		m.Set(func(m *storetest.Mem) { m.Latency = slow(200 * time.Microsecond) })
		a := segment.New(m, floors, segment.Options{MaxStep: 500})
		a.Start()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					id, err := takeIn(a, 10*time.Second, "order", 1)
					if errors.Is(err, segment.ErrClosed) {
						return
					}
					if err != nil {
						t.Errorf("Take: %v", err)
						return
					}
					mu.Lock()
					if used[id] {
						t.Errorf("life %d: %d twice", life, id)
					}
					used[id] = true
					top = max(top, id)
					mu.Unlock()
				}
			})
		}
		for n := 0; n < (life+1)*500; { // watch it work
			time.Sleep(time.Millisecond)
			mu.Lock()
			n = len(used)
			mu.Unlock()
		}
		stop(t, a)
		wg.Wait()
		if r, _ := db.Row("order"); r.Max != top+1 {
			t.Errorf("life %d: the row stands at %d, the last ID is %d", life, r.Max, top)
		}
	}
	if int64(len(used)) != top {
		t.Errorf("%d IDs up to %d: clean stops of a single instance left holes", len(used), top)
	}
}

// A disk that hangs in Lower does not hold up the stop: the tail stays a hole.
func TestCloseOnHungDisk(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 100)
		floors := storetest.NewFloors()
		heal := make(chan struct{})
		floors.Fault = func(op string) (bool, error) {
			if op == "Lower" {
				<-heal
			}
			return true, nil
		}
		a := run(t, m, floors, segment.Options{})
		if _, err := takeIn(a, time.Second, "order", 1); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := wait(3 * time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("Close took %v of 3s", d)
		}
		close(heal)
		synctest.Wait()
		if rows, err := db.Open().Rows(context.Background(), []string{"order"}); err != nil || rows["order"].Max != 101 {
			t.Errorf("the row stands at %d, %v; want 101: a tail whose floor was not lowered in time stays", rows["order"].Max, err)
		}
	})
}

// A floor whose saving is late never overtakes the one that the stop lowers: the next start would take the row for one that went
// back.
func TestLateSaveBeforeLower(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 100)
		floors := storetest.NewFloors()
		heal := make(chan struct{})
		var once sync.Once
		floors.Fault = func(op string) (bool, error) {
			if op == "Save" {
				once.Do(func() { <-heal })
			}
			return true, nil
		}
		a := run(t, m, floors, segment.Options{})
		if _, err := takeIn(a, 10*time.Second, "order", 1); err != nil { // the save is given up after 2 s
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { close(heal) })
		stop(t, a)
		a = run(t, m, floors, segment.Options{})
		if id, err := takeIn(a, time.Second, "order", 1); err != nil || id != 2 {
			t.Errorf("after a clean stop: %d, %v; want 2", id, err)
		}
		stop(t, a)
	})
}

// A floor that can't be read is not a floor of zero: no row is made where IDs may have been given (I11).
func TestUnreadableFloor(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		floors := storetest.NewFloors()
		floors.Fault = func(op string) (bool, error) {
			if op == "Floor" {
				return false, errors.New("input/output error")
			}
			return true, nil
		}
		a := run(t, m, floors, segment.Options{AutoCreate: []string{"*"}})
		var refused *segment.RefusedError
		if id, err := takeIn(a, time.Second, "order", 1); !errors.As(err, &refused) {
			t.Errorf("INCR: %d, %v; want a refusal", id, err)
		}
		if _, err := set(a, "order", 5, segment.SetIfAbsent); !errors.As(err, &refused) {
			t.Errorf("SETNX: %v; want a refusal", err)
		}
		if rows, err := db.Open().Rows(context.Background(), []string{"order"}); err != nil || len(rows) != 0 {
			t.Errorf("rows %v, %v; want none", rows, err)
		}
		stop(t, a)
	})
}
