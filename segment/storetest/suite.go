package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"redleaf/segment"
)

// Open opens an empty store for one subtest. reopen opens the same data once more after the suite closed the store; it is nil
// for a store that keeps nothing. The store that reopen returns is closed by the suite too; what lies under it is open's to
// clean up.
type Open func(t *testing.T) (store segment.Store, reopen func() segment.Store)

// Run checks every promise of segment.Store's contract that one process can check.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		test func(*testing.T, segment.Store)
	}{
		{"Reserve", testReserve},
		{"ReserveConcurrently", func(t *testing.T, s segment.Store) { testConcurrent(t, s, s) }},
		{"ReserveFloor", testReserveFloor},
		{"ReserveToTheEnd", testReserveToTheEnd},
		{"Names", testNames},
		{"Create", testCreate},
		{"CreateRace", func(t *testing.T, s segment.Store) { testCreateRace(t, s, s) }},
		{"Rows", testRows},
		{"Advance", testAdvance},
		{"AdvanceRace", func(t *testing.T, s segment.Store) { testAdvanceRace(t, s, s) }},
		{"Fence", testFence},
		{"GiveBack", testGiveBack},
		{"GiveBackRace", func(t *testing.T, s segment.Store) { testGiveBackRace(t, s, s) }},
		{"List", testList},
		{"Pulse", testPulse},
		{"ContextEnds", testContextEnds},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := open(t)
			defer closeStore(t, s)
			awaitGrants(t, s)
			c.test(t, s)
		})
	}
	t.Run("Durable", func(t *testing.T) { testDurable(t, open) })
}

// RunShared checks what a store promises to several processes. open opens two handles on the same empty store.
func RunShared(t *testing.T, open func(t *testing.T) (a, b segment.Store)) {
	for _, c := range []struct {
		name string
		test func(*testing.T, segment.Store, segment.Store)
	}{
		{"ReserveConcurrently", testConcurrent},
		{"CreateRace", testCreateRace},
		{"AdvanceRace", testAdvanceRace},
		{"GiveBackRace", testGiveBackRace},
		{"SeesTheOther", testSeesTheOther},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := open(t)
			defer closeStore(t, a)
			defer closeStore(t, b)
			awaitGrants(t, a)
			awaitGrants(t, b)
			c.test(t, a, b)
		})
	}
}

func closeStore(t *testing.T, s segment.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// awaitGrants waits until a store that has just been opened gives grants.
func awaitGrants(t *testing.T, s segment.Store) {
	t.Helper()
	ctx := testContext(t)
	for {
		p, err := s.Pulse(ctx)
		if err != nil {
			t.Fatalf("Pulse: %v", err)
		}
		if p.Paused == 0 {
			return
		}
		if err := sleep(ctx, min(p.Paused, time.Second)); err != nil {
			t.Fatalf("the store is still paused for %v", p.Paused)
		}
	}
}

func create(t *testing.T, s segment.Store, tag string, bound int64) {
	t.Helper()
	now, created, err := s.Create(testContext(t), segment.Row{Tag: tag, Max: bound, Step: 10}, false)
	if err != nil || !created || now.Max != bound || now.Tag != tag {
		t.Fatalf("Create(%q, max %d) = %+v, %v, %v; want it made so", tag, bound, now, created, err)
	}
}

func reserve(t *testing.T, s segment.Store, tag string, n, floor int64) segment.Grant {
	t.Helper()
	g, err := s.Reserve(testContext(t), tag, n, floor)
	if err != nil {
		t.Fatalf("Reserve(%q, %d, floor %d): %v", tag, n, floor, err)
	}
	if g.Len() != n || g.Lo < floor || g.Lo < 1 {
		t.Fatalf("Reserve(%q, %d, floor %d) = [%d, %d): want %d IDs at or above the floor", tag, n, floor, g.Lo, g.Hi, n)
	}
	return g
}

func wantRow(t *testing.T, s segment.Store, tag string, bound int64) {
	t.Helper()
	rows, err := s.Rows(testContext(t), []string{tag})
	if err != nil {
		t.Fatalf("Rows(%q): %v", tag, err)
	}
	if r, ok := rows[tag]; !ok || r.Max != bound {
		t.Fatalf("row of %q is %+v (found %v), want max %d", tag, r, ok, bound)
	}
}

func wantNoRow(t *testing.T, s segment.Store, tag string) {
	t.Helper()
	rows, err := s.Rows(testContext(t), []string{tag})
	if err != nil {
		t.Fatalf("Rows(%q): %v", tag, err)
	}
	if r, ok := rows[tag]; ok {
		t.Fatalf("row of %q is %+v, want none", tag, r)
	}
}

func testReserve(t *testing.T, s segment.Store) {
	ctx := testContext(t)
	if g, err := s.Reserve(ctx, "none", 10, 0); !errors.Is(err, segment.ErrNoTag) || g != (segment.Grant{}) {
		t.Fatalf("Reserve of an unknown tag = %+v, %v; want ErrNoTag", g, err)
	}
	wantNoRow(t, s, "none")

	create(t, s, "order", 1)
	next := int64(1)
	for _, n := range []int64{1, 1000, 7, 1, 1_000_000, 1 << 31, 1 << 40} {
		g := reserve(t, s, "order", n, 0)
		if g.Lo != next || g.Hi != next+n {
			t.Fatalf("Reserve(%d) = [%d, %d), want [%d, %d)", n, g.Lo, g.Hi, next, next+n)
		}
		next += n
		wantRow(t, s, "order", next)
	}
	// A start that is no multiple of anything, as shops have it.
	create(t, s, "user", 1568693084)
	if g := reserve(t, s, "user", 100, 0); g.Lo != 1568693084 {
		t.Fatalf("first ID of a row at 1568693084 is %d", g.Lo)
	}
	// n below 1 is a caller's mistake: it must move nothing, least of all downwards.
	for _, n := range []int64{0, -1, -1 << 62} {
		if g, err := s.Reserve(ctx, "order", n, 0); err == nil {
			t.Fatalf("Reserve(%d) = %+v, want an error", n, g)
		}
	}
	wantRow(t, s, "order", next)
}

// testConcurrent reserves one tag through two handles at once: what was granted must be disjoint and, since nobody else is
// there, leave no hole.
func testConcurrent(t *testing.T, a, b segment.Store) {
	const workers, rounds = 8, 25
	ctx := testContext(t)
	create(t, a, "busy", 1)
	var mu sync.Mutex
	var spans []segment.Span
	var wg sync.WaitGroup
	for w := range workers {
		s := a
		if w%2 == 1 {
			s = b
		}
		wg.Go(func() {
			var floor int64
			for i := range rounds {
				n := int64(1 + (w*rounds+i)%13)
				g, err := s.Reserve(ctx, "busy", n, floor)
				if err != nil {
					t.Errorf("Reserve(%d, floor %d): %v", n, floor, err)
					return
				}
				if g.Len() != n || g.Lo < floor {
					t.Errorf("Reserve(%d, floor %d) = [%d, %d)", n, floor, g.Lo, g.Hi)
				}
				floor = g.Hi
				mu.Lock()
				spans = append(spans, g.Span)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	slices.SortFunc(spans, func(x, y segment.Span) int { return int(x.Lo - y.Lo) })
	next := int64(1)
	for _, sp := range spans {
		if sp.Lo != next {
			t.Fatalf("span [%d, %d) follows %d: spans overlap or leave a hole", sp.Lo, sp.Hi, next)
		}
		next = sp.Hi
	}
	wantRow(t, a, "busy", next)
	wantRow(t, b, "busy", next)
}

func testReserveFloor(t *testing.T, s segment.Store) {
	create(t, s, "back", 5000)
	_, err := s.Reserve(testContext(t), "back", 100, 5001)
	var re *segment.RegressedError
	if !errors.As(err, &re) {
		t.Fatalf("Reserve below the floor: %v, want *RegressedError", err)
	}
	if re.Tag != "back" || re.Row != 5000 || re.Floor != 5001 {
		t.Fatalf("Reserve below the floor names %+v, want tag back, row 5000, floor 5001", *re)
	}
	wantRow(t, s, "back", 5000)
	if g := reserve(t, s, "back", 100, 5000); g.Lo != 5000 {
		t.Fatalf("Reserve at the floor starts at %d, want 5000", g.Lo)
	}
}

func testReserveToTheEnd(t *testing.T, s segment.Store) {
	ctx := testContext(t)
	create(t, s, "end", segment.MaxID-10)
	if g, err := s.Reserve(ctx, "end", 11, 0); !errors.Is(err, segment.ErrExhausted) {
		t.Fatalf("Reserve(11) with 10 left = %+v, %v; want ErrExhausted", g, err)
	}
	if _, err := s.Reserve(ctx, "end", segment.MaxID, 0); !errors.Is(err, segment.ErrExhausted) {
		t.Fatalf("Reserve(MaxID) with 10 left: %v, want ErrExhausted", err)
	}
	wantRow(t, s, "end", segment.MaxID-10)
	if g := reserve(t, s, "end", 7, 0); g.Lo != segment.MaxID-10 {
		t.Fatalf("Reserve(7) = [%d, %d)", g.Lo, g.Hi)
	}
	if g := reserve(t, s, "end", 3, segment.MaxID-3); g.Hi != segment.MaxID {
		t.Fatalf("the last Reserve ends at %d, want %d", g.Hi, int64(segment.MaxID))
	}
	for range 2 {
		if _, err := s.Reserve(ctx, "end", 1, 0); !errors.Is(err, segment.ErrExhausted) {
			t.Fatalf("Reserve(1) at the end: %v, want ErrExhausted", err)
		}
	}
	wantRow(t, s, "end", segment.MaxID)
}

// Names are names a store must keep apart or refuse, with a row for the first of each group only. The server lets no name
// with an outer space through, so a store may refuse those in any words.
var Names = [][]string{
	{"order", "Order", "ORDER", "order ", " order", "order\u00a0", "örder", "0rder"},
	{"com.example/a:b", "com.example/a:B", "com.example/a", "com_example/a:b"},
	{"50%", "500", "50_", "%", "_", "50\\%"},
	{`a'b"c`, "a''b\"c", "abc"},
	{`x\`, `x\\`, "x"},
	{"`t`; DROP TABLE leaf_alloc; --", "`t`; DROP TABLE leaf_alloc; -- "},
	{"订单", "订単", "定单"},
	{"ticket-🎫", "ticket-🎟", "ticket-?", "ticket-????"},
	{"straße", "strasse", "STRASSE"},
	{"é", "e", "e\u0301", "É"},
	{strings.Repeat("n", 128), strings.Repeat("n", 127), strings.Repeat("n", 127) + "N"},
	{strings.Repeat("é", 64), strings.Repeat("é", 63), strings.Repeat("e", 64)},
	{"null", "NULL", "0", "00", "-1", "1e3", "1000"},
	{"*", "?", "[a]", "a"},
}

func testNames(t *testing.T, s segment.Store) {
	ctx := testContext(t)
	for i, group := range Names {
		bound := int64(1_000_000 * (i + 1))
		create(t, s, group[0], bound)
		for _, other := range group[1:] {
			g, err := s.Reserve(ctx, other, 5, 0)
			if g != (segment.Grant{}) || !errors.Is(err, segment.ErrNoTag) && !isClash(err, other, group[0]) {
				t.Errorf("Reserve(%q) beside %q = %+v, %v; want ErrNoTag or *ClashError", other, group[0], g, err)
			}
			rows, err := s.Rows(ctx, []string{other, group[0]})
			if err != nil {
				if !isClash(err, other, group[0]) {
					t.Errorf("Rows(%q, %q): %v", other, group[0], err)
				}
				continue
			}
			if r, ok := rows[other]; ok && !isClash(r.Err, other, group[0]) {
				t.Errorf("Rows(%q) beside %q found %+v", other, group[0], r)
			}
			if r := rows[group[0]]; r.Max != bound || r.Tag != group[0] {
				t.Errorf("Rows(%q) beside %q lost the true row: %+v, want max %d", other, group[0], r, bound)
			}
			if _, moved, err := s.Advance(ctx, other, bound+10); moved || !errors.Is(err, segment.ErrNoTag) && !isClash(err, other, group[0]) {
				t.Errorf("Advance(%q) beside %q: moved %v, %v", other, group[0], moved, err)
			}
			if _, err := s.Fence(ctx, other, bound+10, nil); !errors.Is(err, segment.ErrNoTag) && !isClash(err, other, group[0]) {
				t.Errorf("Fence(%q) beside %q: %v", other, group[0], err)
			}
			if done, _ := s.GiveBack(ctx, other, segment.Span{Lo: 1, Hi: bound}, ""); done {
				t.Errorf("GiveBack(%q) beside %q moved a row", other, group[0])
			}
		}
		wantRow(t, s, group[0], bound)
		if g := reserve(t, s, group[0], 5, bound); g.Lo != bound {
			t.Errorf("Reserve(%q) starts at %d, want %d", group[0], g.Lo, bound)
		}
	}
	// The others may be made: each gets a row of its own, or the clash is named.
	for i, group := range Names {
		for j, other := range group[1:] {
			bound := int64(1_000_000*(i+1) + 1000*(j+1))
			_, created, err := s.Create(ctx, segment.Row{Tag: other, Max: bound, Step: 10}, false)
			if err != nil {
				var clash *segment.ClashError
				if !errors.As(err, &clash) && other == strings.TrimSpace(other) || created {
					t.Errorf("Create(%q) = %v, %v; want it made or *ClashError", other, created, err)
				}
				continue
			}
			if created {
				wantRow(t, s, other, bound)
			}
		}
		wantRow(t, s, group[0], int64(1_000_000*(i+1)+5))
	}
}

func isClash(err error, tag, row string) bool {
	if err != nil && tag != strings.TrimSpace(tag) {
		return true
	}
	var c *segment.ClashError
	return errors.As(err, &c) && c.Tag == tag && c.Row == row
}

func testCreate(t *testing.T, s segment.Store) {
	ctx := testContext(t)
	now, created, err := s.Create(ctx, segment.Row{Tag: "a", Max: 500, Step: 20, Desc: "orders of a's shop"}, false)
	if err != nil || !created {
		t.Fatalf("Create = %v, %v", created, err)
	}
	if now.Tag != "a" || now.Max != 500 || now.Step != 20 || now.Desc != "orders of a's shop" || now.Err != nil {
		t.Fatalf("Create returned %+v", now)
	}
	now, created, err = s.Create(ctx, segment.Row{Tag: "a", Max: 9, Step: 9, Desc: "no"}, false)
	if err != nil || created {
		t.Fatalf("second Create = %v, %v; want false and no error", created, err)
	}
	if now.Max != 500 || now.Step != 20 || now.Desc != "orders of a's shop" {
		t.Fatalf("second Create returned %+v, want the row as it stands", now)
	}
	// On a store that never went back there is nothing to inherit.
	now, created, err = s.Create(ctx, segment.Row{Tag: "b", Max: 1, Step: 1000}, true)
	if err != nil || !created || now.Max != 1 {
		t.Fatalf("Create that inherits = %+v, %v, %v; want max 1", now, created, err)
	}
	if g := reserve(t, s, "b", 1000, 0); g.Lo != 1 {
		t.Fatalf("the first ID of a new tag is %d", g.Lo)
	}
	for _, bad := range []segment.Row{{Tag: "c", Max: 0, Step: 1}, {Tag: "c", Max: -5, Step: 1}, {Tag: "c", Max: 1, Step: 0}, {Tag: "c", Max: 1, Step: -1}} {
		if _, created, err := s.Create(ctx, bad, false); err == nil || created {
			t.Errorf("Create(%+v) = %v, %v; want an error", bad, created, err)
		}
	}
	wantNoRow(t, s, "c")
}

func testCreateRace(t *testing.T, a, b segment.Store) {
	ctx := testContext(t)
	for round := range 10 {
		tag := fmt.Sprintf("race-%d", round)
		var mu sync.Mutex
		var winner int64
		var seen []int64
		var wg sync.WaitGroup
		for i := range int64(6) {
			s := a
			if i%2 == 1 {
				s = b
			}
			wg.Go(func() {
				now, created, err := s.Create(ctx, segment.Row{Tag: tag, Max: 100 + i, Step: 10}, i%3 == 0)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("Create: %v", err)
					return
				}
				if created {
					if winner != 0 {
						t.Errorf("%s was made twice", tag)
					}
					winner = 100 + i
				}
				seen = append(seen, now.Max)
			})
		}
		wg.Wait()
		for _, m := range seen {
			if m != winner {
				t.Fatalf("%s: one Create saw max %d, the winner wrote %d", tag, m, winner)
			}
		}
		wantRow(t, a, tag, winner)
	}
}

func testRows(t *testing.T, s segment.Store) {
	ctx := testContext(t)
	rows, err := s.Rows(ctx, nil)
	if err != nil || len(rows) != 0 {
		t.Fatalf("Rows of nothing = %v, %v", rows, err)
	}
	before := time.Now().Add(-time.Hour)
	var tags []string
	for i := range 40 {
		tag := fmt.Sprintf("t%02d", i)
		create(t, s, tag, int64(i+1))
		tags = append(tags, tag, fmt.Sprintf("absent%d", i))
	}
	for i := range 2000 { // more names than fit a small statement
		tags = append(tags, fmt.Sprintf("none-%d", i))
	}
	rows, err = s.Rows(ctx, tags)
	if err != nil || len(rows) != 40 {
		t.Fatalf("Rows found %d rows, %v; want 40", len(rows), err)
	}
	for i := range 40 {
		tag := fmt.Sprintf("t%02d", i)
		r := rows[tag]
		if r.Tag != tag || r.Max != int64(i+1) || r.Step != 10 || r.Err != nil {
			t.Fatalf("Rows(%s) = %+v", tag, r)
		}
		if r.Updated.Before(before) {
			t.Fatalf("Rows(%s) was updated at %v", tag, r.Updated)
		}
	}
}

func testAdvance(t *testing.T, s segment.Store) {
	ctx := testContext(t)
	if _, moved, err := s.Advance(ctx, "a", 5); moved || !errors.Is(err, segment.ErrNoTag) {
		t.Fatalf("Advance of an unknown tag = %v, %v; want ErrNoTag", moved, err)
	}
	create(t, s, "a", 100)
	for _, c := range []struct {
		n, found int64
		moved    bool
		after    int64
	}{
		{0, 100, false, 100},
		{98, 100, false, 100},
		{99, 100, false, 100}, // 99 may be somebody's already: the row passed it
		{100, 100, true, 101},
		{100, 101, false, 101},
		{5000, 101, true, 5001},
		{1 << 53, 5001, true, 1<<53 + 1},
		{segment.MaxID - 1, 1<<53 + 1, true, segment.MaxID},
		{segment.MaxID - 1, segment.MaxID, false, segment.MaxID},
	} {
		found, moved, err := s.Advance(ctx, "a", c.n)
		if err != nil || found != c.found || moved != c.moved {
			t.Fatalf("Advance(%d) = found %d, moved %v, %v; want %d, %v", c.n, found, moved, err, c.found, c.moved)
		}
		wantRow(t, s, "a", c.after)
	}
	for _, n := range []int64{-1, segment.MaxID} {
		if _, moved, err := s.Advance(ctx, "a", n); err == nil || moved {
			t.Fatalf("Advance(%d) = %v, %v; want an error", n, moved, err)
		}
	}
}

// testAdvanceRace sets a counter from many sides while it is in use: a number belongs to one caller, whoever got it how.
func testAdvanceRace(t *testing.T, a, b segment.Store) {
	ctx := testContext(t)
	create(t, a, "cas", 1)
	var mu sync.Mutex
	owner := map[int64]string{}
	own := func(lo, hi int64, how string) {
		mu.Lock()
		defer mu.Unlock()
		for n := lo; n < hi; n++ {
			if other, ok := owner[n]; ok {
				t.Errorf("%d belongs to %s and to %s", n, other, how)
			}
			owner[n] = how
		}
	}
	var wg sync.WaitGroup
	for w := range 6 {
		s := a
		if w%2 == 1 {
			s = b
		}
		wg.Go(func() {
			for range 20 {
				if w < 2 {
					g, err := s.Reserve(ctx, "cas", 3, 0)
					if err != nil {
						t.Errorf("Reserve: %v", err)
						return
					}
					own(g.Lo, g.Hi, "Reserve")
					continue
				}
				rows, err := s.Rows(ctx, []string{"cas"})
				if err != nil {
					t.Errorf("Rows: %v", err)
					return
				}
				n := rows["cas"].Max
				found, moved, err := s.Advance(ctx, "cas", n)
				if err != nil {
					t.Errorf("Advance: %v", err)
					return
				}
				if moved != (found <= n) {
					t.Errorf("Advance(%d) found %d, moved %v", n, found, moved)
				}
				if moved {
					own(n, n+1, "Advance")
				}
			}
		})
	}
	wg.Wait()
}

func testFence(t *testing.T, s segment.Store) {
	ctx := testContext(t)
	if _, err := s.Fence(ctx, "gone", 50, nil); !errors.Is(err, segment.ErrNoTag) {
		t.Fatalf("Fence of a missing row: %v, want ErrNoTag", err)
	}
	wantNoRow(t, s, "gone")

	found, err := s.Fence(ctx, "gone", 50, &segment.Row{Tag: "gone", Max: 70, Step: 10, Desc: "put back"})
	if err != nil || found != 0 {
		t.Fatalf("Fence that puts a row back = %d, %v; want 0", found, err)
	}
	wantRow(t, s, "gone", 70)
	rows, err := s.Rows(ctx, []string{"gone"})
	if r := rows["gone"]; err != nil || r.Step != 10 || r.Desc != "put back" {
		t.Fatalf("the row put back is %+v, %v", r, err)
	}
	for _, c := range []struct{ floor, found, after int64 }{
		{60, 70, 70},
		{70, 70, 70},
		{71, 70, 71},
		{1000, 71, 1000},
		{segment.MaxID, 1000, segment.MaxID},
	} {
		// A row to put back does not matter while there is one.
		found, err := s.Fence(ctx, "gone", c.floor, &segment.Row{Tag: "gone", Max: c.floor, Step: 99})
		if err != nil || found != c.found {
			t.Fatalf("Fence(%d) = %d, %v; want %d", c.floor, found, err, c.found)
		}
		wantRow(t, s, "gone", c.after)
	}
	create(t, s, "plain", 5)
	if found, err := s.Fence(ctx, "plain", 9, nil); err != nil || found != 5 {
		t.Fatalf("Fence(9) = %d, %v; want 5", found, err)
	}
	if g := reserve(t, s, "plain", 1, 9); g.Lo != 9 {
		t.Fatalf("after the fence the next ID is %d, want 9", g.Lo)
	}
}

func testGiveBack(t *testing.T, s segment.Store) {
	ctx := testContext(t)
	create(t, s, "a", 1)
	g := reserve(t, s, "a", 100, 0)
	for _, c := range []struct {
		span   segment.Span
		server string
		want   bool
		after  int64
	}{
		{segment.Span{Lo: 50, Hi: 100}, g.Server, false, 101},
		{segment.Span{Lo: 50, Hi: 102}, g.Server, false, 101},
		{segment.Span{Lo: 50, Hi: 101}, g.Server + " or another", false, 101},
		{segment.Span{Lo: 101, Hi: 101}, g.Server, false, 101},
		{segment.Span{Lo: 51, Hi: 101}, g.Server, true, 51},
		{segment.Span{Lo: 51, Hi: 101}, g.Server, false, 51},
	} {
		done, err := s.GiveBack(ctx, "a", c.span, c.server)
		if err != nil || done != c.want {
			t.Fatalf("GiveBack(%+v) = %v, %v; want %v", c.span, done, err, c.want)
		}
		wantRow(t, s, "a", c.after)
	}
	if g := reserve(t, s, "a", 10, 51); g.Lo != 51 {
		t.Fatalf("after the tail went back the next ID is %d, want 51", g.Lo)
	}
	if done, err := s.GiveBack(ctx, "none", segment.Span{Lo: 1, Hi: 2}, g.Server); done || err != nil && !errors.Is(err, segment.ErrNoTag) {
		t.Fatalf("GiveBack of an unknown tag = %v, %v", done, err)
	}
}

// testGiveBackRace stops one side again and again while the other reserves: nothing that is in use goes back.
func testGiveBackRace(t *testing.T, a, b segment.Store) {
	ctx := testContext(t)
	create(t, a, "tail", 1)
	var mu sync.Mutex
	used := map[int64]bool{}
	use := func(lo, hi int64) {
		mu.Lock()
		defer mu.Unlock()
		for n := lo; n < hi; n++ {
			if used[n] {
				t.Errorf("%d was handed out twice", n)
			}
			used[n] = true
		}
	}
	var wg sync.WaitGroup
	for w := range 4 {
		s := a
		if w%2 == 1 {
			s = b
		}
		wg.Go(func() {
			for i := range 20 {
				g, err := s.Reserve(ctx, "tail", 10, 0)
				if err != nil {
					t.Errorf("Reserve: %v", err)
					return
				}
				n := int64((w + i) % 10)
				use(g.Lo, g.Lo+n)
				done, err := s.GiveBack(ctx, "tail", segment.Span{Lo: g.Lo + n, Hi: g.Hi}, g.Server)
				if err != nil {
					t.Errorf("GiveBack: %v", err)
					return
				}
				if !done {
					use(g.Lo+n, g.Hi)
				}
			}
		})
	}
	wg.Wait()
	rows, err := a.Rows(ctx, []string{"tail"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := rows["tail"].Max, int64(len(used))+1; got != want {
		t.Fatalf("the row stands at %d, want %d: all that was not used went back or was used later", got, want)
	}
}

func testList(t *testing.T, s segment.Store) {
	ctx := testContext(t)
	if rows, err := s.List(ctx, "", 10); err != nil || len(rows) != 0 {
		t.Fatalf("List of an empty store = %v, %v", rows, err)
	}
	if n, err := s.Count(ctx); err != nil || n != 0 {
		t.Fatalf("Count of an empty store = %d, %v", n, err)
	}
	want := []string{"a", "a-b", "a.b", "aa", "b", "b%", "b_c", "ba", "z", "~", "é", "订单", "🎫"}
	r := rand.New(rand.NewPCG(1, 2))
	for _, i := range r.Perm(len(want)) {
		create(t, s, want[i], int64(i+1))
	}
	if n, err := s.Count(ctx); err != nil || n != int64(len(want)) {
		t.Fatalf("Count = %d, %v; want %d", n, err, len(want))
	}
	for _, limit := range []int{1, 3, len(want), 100} {
		var got []string
		for after := ""; ; {
			rows, err := s.List(ctx, after, limit)
			if err != nil || len(rows) > limit {
				t.Fatalf("List(%q, %d) = %d rows, %v", after, limit, len(rows), err)
			}
			if len(rows) == 0 {
				break
			}
			for _, row := range rows {
				if row.Max != int64(slices.Index(want, row.Tag)+1) || row.Step != 10 {
					t.Fatalf("List gave %+v", row)
				}
				got = append(got, row.Tag)
			}
			after = rows[len(rows)-1].Tag
		}
		if !slices.Equal(got, want) {
			t.Fatalf("List by %d gave %q, want %q", limit, got, want)
		}
	}
	rows, err := s.List(ctx, "b", 2) // a name that need not be there
	if err != nil || len(rows) != 2 || rows[0].Tag != "b%" || rows[1].Tag != "b_c" {
		t.Fatalf("List after b = %+v, %v", rows, err)
	}
	rows, err = s.List(ctx, "a0", 1)
	if err != nil || len(rows) != 1 || rows[0].Tag != "aa" {
		t.Fatalf("List after a0 = %+v, %v", rows, err)
	}
}

func testPulse(t *testing.T, s segment.Store) {
	ctx := testContext(t)
	first, err := s.Pulse(ctx)
	if err != nil || first.History == "" || first.Paused != 0 || first.Skip < 0 {
		t.Fatalf("Pulse = %+v, %v; want a history and no pause", first, err)
	}
	for range 5 {
		p, err := s.Pulse(ctx)
		if err != nil || p.History != first.History || p.Epoch != first.Epoch || p.Paused != 0 {
			t.Fatalf("Pulse = %+v, %v; want %+v again", p, err, first)
		}
	}
}

func testContextEnds(t *testing.T, s segment.Store) {
	create(t, s, "a", 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"Reserve", func() error { _, err := s.Reserve(ctx, "a", 1, 0); return err }},
		{"Rows", func() error { _, err := s.Rows(ctx, []string{"a"}); return err }},
		{"Create", func() error { _, _, err := s.Create(ctx, segment.Row{Tag: "b", Max: 1, Step: 1}, false); return err }},
		{"Advance", func() error { _, _, err := s.Advance(ctx, "a", 50); return err }},
		{"Fence", func() error { _, err := s.Fence(ctx, "a", 1, nil); return err }},
		{"List", func() error { _, err := s.List(ctx, "", 10); return err }},
		{"Pulse", func() error { _, err := s.Pulse(ctx); return err }},
	} {
		start := time.Now()
		if err := c.call(); err == nil {
			t.Errorf("%s with a context that ended: no error", c.name)
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("%s returned %v after its context ended", c.name, d)
		}
	}
	reserve(t, s, "a", 1, 0)
}

func testDurable(t *testing.T, open Open) {
	s, reopen := open(t)
	if reopen == nil {
		closeStore(t, s)
		return
	}
	awaitGrants(t, s)
	ctx := testContext(t)
	p, err := s.Pulse(ctx)
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, "a", 1)
	create(t, s, "b", 10)
	create(t, s, "c", 10)
	create(t, s, "d", 1)
	a := reserve(t, s, "a", 1000, 0)
	if _, moved, err := s.Advance(ctx, "b", 99); err != nil || !moved {
		t.Fatalf("Advance: %v, %v", moved, err)
	}
	if _, err := s.Fence(ctx, "c", 77, nil); err != nil {
		t.Fatalf("Fence: %v", err)
	}
	d := reserve(t, s, "d", 100, 0)
	if done, err := s.GiveBack(ctx, "d", segment.Span{Lo: 41, Hi: d.Hi}, d.Server); err != nil || !done {
		t.Fatalf("GiveBack: %v, %v", done, err)
	}
	closeStore(t, s)

	s = reopen()
	defer closeStore(t, s)
	awaitGrants(t, s)
	for _, c := range []struct {
		tag string
		max int64
	}{{"a", a.Hi}, {"b", 100}, {"c", 77}, {"d", 41}} {
		wantRow(t, s, c.tag, c.max)
	}
	if g := reserve(t, s, "a", 5, a.Hi); g.Lo != a.Hi {
		t.Fatalf("after a restart the next ID is %d, want %d", g.Lo, a.Hi)
	}
	if now, err := s.Pulse(ctx); err != nil || now.History != p.History || now.Epoch != p.Epoch {
		t.Fatalf("Pulse after a restart = %+v, %v; want %+v", now, err, p)
	}
}

func testSeesTheOther(t *testing.T, a, b segment.Store) {
	ctx := testContext(t)
	create(t, a, "x", 1)
	if now, created, err := b.Create(ctx, segment.Row{Tag: "x", Max: 9, Step: 9}, true); err != nil || created || now.Max != 1 {
		t.Fatalf("the other side's Create = %+v, %v, %v; want the row there is", now, created, err)
	}
	ga := reserve(t, a, "x", 10, 0)
	gb := reserve(t, b, "x", 10, 0)
	if gb.Lo != ga.Hi {
		t.Fatalf("spans [%d, %d) and [%d, %d) do not touch", ga.Lo, ga.Hi, gb.Lo, gb.Hi)
	}
	if done, err := a.GiveBack(ctx, "x", segment.Span{Lo: 5, Hi: ga.Hi}, ga.Server); err != nil || done {
		t.Fatalf("GiveBack below the other's span = %v, %v", done, err)
	}
	if found, moved, err := a.Advance(ctx, "x", gb.Lo); err != nil || moved || found != gb.Hi {
		t.Fatalf("Advance into the other's span = %d, %v, %v", found, moved, err)
	}
	if _, moved, err := b.Advance(ctx, "x", 500); err != nil || !moved {
		t.Fatalf("Advance = %v, %v", moved, err)
	}
	wantRow(t, a, "x", 501)
	pa, err := a.Pulse(ctx)
	if err != nil {
		t.Fatal(err)
	}
	pb, err := b.Pulse(ctx)
	if err != nil || pa.History != pb.History || pa.Epoch != pb.Epoch {
		t.Fatalf("Pulse = %+v and %+v, %v; want one history and epoch", pa, pb, err)
	}
}
