package segment_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"redleaf/segment"
	"redleaf/segment/storetest"
)

func TestListCountExists(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		for i := range 25_000 {
			row(db, fmt.Sprintf("tag-%05d", i), int64(i+1), 10)
		}
		row(db, "order", 7, 10)
		a := run(t, m, nil, segment.Options{})
		ctx := context.Background()
		n, after := 0, ""
		for {
			rows, next, err := a.List(ctx, "", after, 3000)
			if err != nil || len(rows) > 3000 {
				t.Fatal(len(rows), err)
			}
			n += len(rows)
			if after = next; next == "" {
				break
			}
		}
		if n != 25_001 {
			t.Errorf("List gave %d tags", n)
		}
		// A pattern that matches little reads a bounded number of rows for each call.
		var got []string
		calls := 0
		for after = ""; ; calls++ {
			before := m.Calls("List")
			rows, next, err := a.List(ctx, "tag-2*7", after, 100)
			if err != nil {
				t.Fatal(err)
			}
			if d := m.Calls("List") - before; d > 10 {
				t.Fatalf("%d pages for one call", d)
			}
			for _, r := range rows {
				got = append(got, r.Tag)
			}
			if after = next; next == "" {
				break
			}
		}
		if len(got) != 500 || got[0] != "tag-20007" || calls > 10 {
			t.Errorf("%d tags match tag-2*7 in %d calls", len(got), calls)
		}
		if rows, next, err := a.List(ctx, "ord*", "", 10); err != nil || len(rows) != 1 || rows[0].Max != 7 {
			t.Errorf("List = %+v, %q, %v", rows, next, err)
		}

		if n, err := a.Count(ctx); err != nil || n != 25_001 {
			t.Errorf("Count = %d, %v", n, err)
		}
		row(db, "new", 1, 10)
		if ok, err := a.Create(ctx, segment.Row{Tag: "made", Desc: "a note"}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if r, _ := db.Row("made"); r.Max != 1 || r.Step != 1000 || r.Desc != "a note" {
			t.Errorf("Create made %+v", r)
		}
		if ok, err := a.Create(ctx, segment.Row{Tag: "made", Max: 9}); ok || err != nil {
			t.Errorf("Create again = %v, %v", ok, err)
		}
		var se *segment.StepError
		for _, bad := range []segment.Row{{Tag: "x", Step: -1}, {Tag: "x", Step: 1_000_001}, {Tag: "x", Max: -3}} {
			if ok, err := a.Create(ctx, bad); ok || !errors.As(err, &se) {
				t.Errorf("Create(%+v) = %v, %v", bad, ok, err)
			}
		}
		before := m.Calls("Count")
		for range 1000 {
			if n, err := a.Count(ctx); err != nil || n != 25_002 {
				t.Fatalf("Count = %d, %v; want the one made here added", n, err)
			}
		}
		if m.Calls("Count") != before {
			t.Error("Count asks each time")
		}
		time.Sleep(5 * time.Second)
		if n, err := a.Count(ctx); err != nil || n != 25_003 {
			t.Errorf("Count after 5 s = %d, %v", n, err)
		}

		there, err := a.Exists(ctx, []string{"order", "nobody", "new"})
		if err != nil || !there["order"] || there["nobody"] || !there["new"] {
			t.Errorf("Exists = %v, %v", there, err)
		}
		if last, ok, err := a.Last(ctx, "order"); last != 6 || !ok || err != nil {
			t.Errorf("Last of a cold tag = %d, %v, %v; want the bound less one", last, ok, err)
		}
		if last, ok, err := a.Last(ctx, "nobody"); last != -1 && last != 0 || ok || err != nil {
			t.Errorf("Last of no tag = %d, %v, %v", last, ok, err)
		}
		if r, _ := db.Row("order"); r.Max != 7 {
			t.Error("looking moved the row")
		}
		if _, err := a.Info(ctx, "nobody"); !errors.Is(err, segment.ErrNoTag) {
			t.Errorf("Info of no tag: %v", err)
		}
		// A store that can't be asked is an error, never "no".
		db.SetDown(&segment.UnavailableError{Cause: errors.New("connection refused")})
		if there, err := a.Exists(ctx, []string{"nobody"}); err == nil {
			t.Errorf("Exists while the store is down = %v", there)
		}
		if _, ok, err := a.Last(ctx, "order"); err == nil {
			t.Errorf("Last while the store is down = %v", ok)
		}
		if _, _, err := a.List(ctx, "", "", 10); err == nil {
			t.Error("List while the store is down: no error")
		}
		db.SetDown(nil)
	})
}

func TestInfo(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 1000)
		row(db, "idle", 500, 50)
		a := run(t, m, storetest.NewFloors(), segment.Options{})
		ctx := context.Background()
		if i, err := a.Info(ctx, "idle"); err != nil || i.State != "cold" || i.Row != 500 || i.Step != 50 || i.Runway != -1 || i.Issued != 0 {
			t.Errorf("Info of a cold tag = %+v, %v", i, err)
		}
		if _, err := takeIn(a, time.Second, "idle", 1); err != nil {
			t.Fatal(err)
		}
		for range 60 * 100 { // 100 a second for a minute
			if _, err := takeIn(a, time.Second, "order", 1); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		i, err := a.Info(ctx, "order")
		if err != nil || i.State != "ready" || i.Last != 6000 || i.Issued != 6000 || i.Waits != 1 || i.Refills < 3 || i.Burnt != 0 || i.Err != nil {
			t.Errorf("Info = %+v, %v", i, err)
		}
		if i.Floor != i.Row || i.Remaining != i.Floor-6001 || i.Step != 1000 {
			t.Errorf("Info = %+v: floor, row and remaining don't fit", i)
		}
		if i.Rate < 80 || i.Rate > 120 {
			t.Errorf("the rate is %v, want about 100", i.Rate)
		}
		if want := time.Duration(float64(i.Remaining) / i.Rate * 1e9); i.Runway < want-time.Second || i.Runway > want+time.Second {
			t.Errorf("the runway is %v, want %v", i.Runway, want)
		}
		tags := a.Tags(10)
		if len(tags) != 2 || tags[0].Tag != "order" || tags[1].Tag != "idle" {
			t.Errorf("Tags = %+v, want the busiest first", tags)
		}
		if got := a.Tags(1); len(got) != 1 || got[0].Tag != "order" {
			t.Errorf("Tags(1) = %+v", got)
		}
		st := a.Stats()
		if st.Tags != 2 || st.Issued != 6001 || st.Waits != 2 || st.WarmWaits != 0 || st.History != "history-1" || st.StoreErr != nil {
			t.Errorf("Stats = %+v", st)
		}
		var n uint64
		for _, b := range st.RefillBuckets {
			n += b
		}
		if n != st.Refills {
			t.Errorf("%d refills in the buckets, %d in all", n, st.Refills)
		}
	})
}

func TestVersion(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		a := run(t, m, nil, segment.Options{})
		if v := a.Version("order"); v != 0 {
			t.Errorf("version %d of a tag that did not move", v)
		}
		a.Load("order")
		time.Sleep(time.Second)
		if v := a.Version("order"); v != 0 {
			t.Errorf("loading changed the version to %d", v)
		}
		seen := map[uint64]bool{0: true}
		for i := range 100 {
			if i%10 == 9 {
				if done, err := set(a, "order", int64(1000*i), segment.SetAlways); !done || err != nil {
					t.Fatal(done, err)
				}
			} else if _, err := takeIn(a, time.Second, "order", 1); err != nil {
				t.Fatal(err)
			}
			if v := a.Version("order"); seen[v] {
				t.Fatalf("version %d came back", v)
			} else {
				seen[v] = true
			}
		}
	})
}

// leaf S27, S28: names that the store must keep apart are kept apart here; a clash is told by its name.
func TestNames(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		a := run(t, m, nil, segment.Options{AutoCreate: []string{"*"}, Step: 10})
		first := map[string]int64{}
		for i, group := range storetest.Names {
			for j, name := range group {
				bound := int64(1000*(i+1) + 50*j)
				row(db, name, bound, 10)
				first[name] = bound
			}
		}
		for name, bound := range first {
			if last, err := takeIn(a, time.Second, name, 1); err != nil || last != bound {
				t.Errorf("%q: %d, %v; want %d", name, last, err, bound)
			}
		}
		db.SetRow(segment.Row{Tag: "Clash", Max: 1, Step: 10, Err: &segment.ClashError{Tag: "Clash", Row: "clash"}})
		_, err := takeIn(a, time.Second, "Clash", 1)
		var ce *segment.ClashError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), "'clash'") {
			t.Errorf("Take of a name that clashes: %v", err)
		}
	})
}

// TakeMany gathers from several spans, in order; what it took before an error is burnt and counted.
func TestTakeMany(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 10)
		peer := db.Open()
		a := run(t, m, nil, segment.Options{})
		ctx, cancel := wait(10 * time.Second)
		defer cancel()
		var all []int64
		for i := range 20 {
			if i%3 == 0 { // somebody else's span in between
				if _, err := peer.Reserve(ctx, "order", 5, 0); err != nil {
					t.Fatal(err)
				}
			}
			before := len(all)
			var err error
			all, err = a.TakeMany(ctx, all, "order", 25)
			if err != nil || len(all) != before+25 {
				t.Fatalf("TakeMany gave %d, %v", len(all)-before, err)
			}
		}
		for i := 1; i < len(all); i++ {
			if all[i] <= all[i-1] {
				t.Fatalf("%d after %d", all[i], all[i-1])
			}
		}
		for _, n := range []int64{0, -1, 10_001} {
			var ce *segment.CountError
			if ids, err := a.TakeMany(ctx, nil, "order", n); !errors.As(err, &ce) || ids != nil {
				t.Errorf("TakeMany(%d) = %v, %v", n, ids, err)
			}
		}
		synctest.Wait()
		burnt := a.Stats().Burnt
		held, _ := a.Info(ctx, "order")
		db.SetDown(storetest.ErrLost)
		short, cancel2 := wait(time.Second)
		defer cancel2()
		ids, err := a.TakeMany(short, []int64{-1}, "order", held.Remaining+1)
		var again *segment.AgainError
		if !errors.As(err, &again) || len(ids) != 1 || ids[0] != -1 {
			t.Errorf("TakeMany while the store is down = %v, %v", ids, err)
		}
		if n := a.Stats().Burnt - burnt; n != uint64(held.Remaining) {
			t.Errorf("%d burnt, want the %d taken before the error", n, held.Remaining)
		}
		db.SetDown(nil)
	})
}

// Spans that don't touch: a request that straddles burns what is left, and it is counted. Spans that touch: nothing is burnt.
func TestStraddle(t *testing.T) {
	bubble(t, func(t *testing.T, db *storetest.DB, m *storetest.Mem) {
		row(db, "order", 1, 100)
		peer := db.Open()
		a := run(t, m, nil, segment.Options{})
		if last, err := takeIn(a, time.Second, "order", 60); err != nil || last != 60 {
			t.Fatal(last, err)
		}
		synctest.Wait() // [1,101) and [101,201) touch
		if last, err := takeIn(a, time.Second, "order", 80); err != nil || last != 140 {
			t.Fatalf("straddling touching spans: %d, %v; want 140", last, err)
		}
		synctest.Wait()
		if i, _ := a.Info(context.Background(), "order"); i.Burnt != 0 {
			t.Errorf("%d burnt", i.Burnt)
		}
		if _, err := peer.Reserve(context.Background(), "order", 1, 0); err != nil {
			t.Fatal(err)
		}
		i, _ := a.Info(context.Background(), "order")
		calls := m.Calls("Reserve")
		last, err := takeIn(a, time.Second, "order", i.Remaining+10)
		if err != nil || last < i.Floor+i.Remaining+10 {
			t.Fatalf("straddling a gap: %d, %v", last, err)
		}
		if j, _ := a.Info(context.Background(), "order"); j.Burnt != uint64(i.Remaining) {
			t.Errorf("%d burnt, want the %d that were left", j.Burnt, i.Remaining)
		}
		synctest.Wait()
		if n := m.Calls("Reserve") - calls; n > 2 { // one for the request, one ahead
			t.Errorf("%d refills for one request", n)
		}
	})
}
