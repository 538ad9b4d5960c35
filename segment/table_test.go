package segment

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// flat is a store that costs no memory per tag: all tags exist, and rows are arithmetic.
type flat struct {
	Store
	mu  sync.Mutex
	max int64
}

func (f *flat) Pulse(context.Context) (Pulse, error) { return Pulse{History: "h"}, nil }

func (f *flat) Rows(_ context.Context, tags []string) (map[string]Row, error) {
	rows := make(map[string]Row, len(tags))
	for _, t := range tags {
		rows[t] = Row{Tag: t, Max: 1, Step: 1000}
	}
	return rows, nil
}

func (f *flat) Reserve(_ context.Context, _ string, n, floor int64) (Grant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.max = max(f.max, floor)
	return Grant{Span: Span{max(floor, 1), max(floor, 1) + n}, Server: "s"}, nil
}

func (f *flat) GiveBack(context.Context, string, Span, string) (bool, error) { return true, nil }

var manyTags = flag.Int("segment.tags", 250_000, "tags in the test of memory per tag; the table is as full with 250,000 as with 1,000,000")

// Warm tags, by the million, cost at most 400 bytes of live heap each, all included.
func TestMemoryPerTag(t *testing.T) {
	n := *manyTags
	if invariants {
		n = 60_000 // the race detector's own memory is its own
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	a := New(&flat{}, nil, Options{MaxTags: 2 * int64(n)})
	a.Start()
	defer func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // no time to give a million tails back
		_ = a.Close(ctx)
		a.loops.Wait()
		a.wg.Wait()
	}()
	for a.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := w; i < n; i += 64 {
				if last, err := a.Take(context.Background(), fmt.Sprintf("tenant:%d:order", i), 1); err != nil || last != 1 {
					t.Errorf("Take = %d, %v", last, err)
					return
				}
			}
		})
	}
	wg.Wait()
	each := float64(heap()-before) / float64(n)
	t.Logf("%.0f bytes for each of %d tags", each, n)
	if each > 400 {
		t.Errorf("%.0f bytes for each warm tag, want at most 400", each)
	}
	// The names are spread well: a search looks at few slots.
	s := *a.tags.slots.Load()
	steps, worst := 0, 0
	for i := range s {
		if tag := s[i].Load(); tag != nil {
			d := int((uint64(i) - tag.hash) & uint64(len(s)-1))
			steps += d + 1
			worst = max(worst, d+1)
		}
	}
	if mean := float64(steps) / float64(n); mean > 2.5 || worst > 200 {
		t.Errorf("a search looks at %.2f slots, %d at worst", mean, worst)
	}
	runtime.KeepAlive(a)
}

func TestTable(t *testing.T) {
	a := New(&flat{}, nil, Options{})
	tb := &a.tags
	names := func(i int) string { return strings.Repeat("x", i%40) + fmt.Sprint(i) }
	all := map[string]*tag{}
	for i := range 20_000 {
		tg, err := a.tag(names(i))
		if err != nil || tg.known {
			t.Fatal(err)
		}
		if again, _ := a.tag(names(i)); again != tg {
			t.Fatalf("%s: two tags of one name", names(i))
		}
		if tb.find([]byte(names(i))) != nil {
			t.Fatalf("%s: a cold tag is on the hot path", names(i))
		}
		tg.known = true
		tb.promote(tg)
		all[names(i)] = tg
		if i%3 == 0 {
			a.forget(tg)
			delete(all, names(i))
		}
	}
	if tb.n.Load() != int64(len(all)) || len(tb.cold) != 0 {
		t.Fatalf("%d tags and %d cold ones, want %d and none", tb.n.Load(), len(tb.cold), len(all))
	}
	for i := range 20_000 {
		want := all[names(i)]
		if got := tb.find([]byte(names(i))); got != want {
			t.Fatalf("find(%s) = %p, want %p", names(i), got, want)
		}
	}
	for _, odd := range []string{"", "\xff left", "x", "nobody"} {
		if got := tb.find([]byte(odd)); got != nil && got != leftTag {
			t.Errorf("find(%q) = %s", odd, got.name)
		}
	}
	if _, ok := a.TryTake([]byte("\xff left"), 1); ok {
		t.Error("the mark of a tag that left gave an ID")
	}
	seen := map[string]bool{}
	for hand := uint64(0); ; {
		hand = tb.walk(hand, 100, func(tg *tag) { seen[tg.name] = true })
		if hand == 0 {
			break
		}
	}
	if len(seen) != len(all) {
		t.Errorf("a walk met %d tags, want %d", len(seen), len(all))
	}
}

func TestNegatives(t *testing.T) {
	var n negatives
	n.init()
	n.add("a", ErrNoTag, 0)
	if n.get("a", time.Second) != ErrNoTag || n.get("b", 0) != nil {
		t.Error("a is not remembered, or b is")
	}
	if n.get("a", negativeTime) != nil {
		t.Error("a is remembered for too long")
	}
	for i := range 100_000 { // a flood within one moment
		n.add(fmt.Sprint(i), ErrNoTag, 0)
	}
	if size := len(n.now) + len(n.old); size > 2*negativeSize {
		t.Errorf("%d names are remembered, want at most %d", size, 2*negativeSize)
	}
	n.forget("99999")
	if n.get("99999", 0) != nil {
		t.Error("a forgotten name is remembered")
	}
	if !errors.Is(n.get("99998", 0), ErrNoTag) {
		t.Error("the last name is not remembered")
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		p, s string
		want bool
	}{
		{"*", "", true}, {"*", "anything", true}, {"", "", true}, {"", "a", false},
		{"order:*", "order:", true}, {"order:*", "order:1", true}, {"order:*", "order", false}, {"order:*", "xorder:1", false},
		{"*:id", "a:b:id", true}, {"*:id", "a:idx", false}, {"a*b*c", "a--b--c", true}, {"a*b*c", "acb", false},
		{"h?llo", "hello", true}, {"h?llo", "hllo", false}, {"?", "", false},
		{"h[ae]llo", "hallo", true}, {"h[ae]llo", "hillo", false}, {"h[^e]llo", "hallo", true}, {"h[^e]llo", "hello", false},
		{"h[a-c]llo", "hbllo", true}, {"h[c-a]llo", "hbllo", true}, {"h[a-c]llo", "hdllo", false},
		{`h\*llo`, "h*llo", true}, {`h\*llo`, "hello", false}, {`[\]]`, "]", true}, {`\`, `\`, true}, {`a\`, "a", false},
		{"[", "x", false}, {"[a", "a", true}, {"[^", "a", true}, {"**", "a", true}, {"*?", "", false}, {"Order", "order", false},
		{"订单*", "订单-1", true},
	} {
		if got := glob(c.p, c.s); got != c.want {
			t.Errorf("glob(%q, %q) = %v", c.p, c.s, got)
		}
	}
	// No pattern takes long.
	begin := time.Now()
	glob(strings.Repeat("a*", 60)+"b", strings.Repeat("a", 128))
	if d := time.Since(begin); d > time.Second {
		t.Errorf("a hostile pattern took %v", d)
	}
}

// No add brings a counter to its end: not on a span that is used up, nor on a sealed one.
func TestOvershoot(t *testing.T) {
	s := newSpan(Span{1, 4}, 1, 0)
	for want := int64(1); want <= 3; want++ {
		if last, _, ok := s.take(1); !ok || last != want {
			t.Fatalf("take = %d, %v", last, ok)
		}
	}
	for range 1000 {
		if _, _, ok := s.take(1); ok {
			t.Fatal("an ID past the end")
		}
		if _, _, ok := s.take(MaxID); ok {
			t.Fatal("many IDs past the end")
		}
	}
	if from, left := s.seal(); from != 4 || left != 0 {
		t.Fatalf("seal = %d, %d", from, left)
	}
	s = newSpan(Span{1, 11}, 1, 0)
	s.take(3)
	if from, left := s.seal(); from != 4 || left != 7 {
		t.Fatalf("seal = %d, %d; want 4, 7", from, left)
	}
	for _, n := range []int64{1, 2, MaxID} {
		if _, _, ok := s.take(n); ok {
			t.Fatal("an ID of a sealed span")
		}
	}
	if pos := s.pos.Load(); pos < sealed || pos > sealed+10 {
		t.Fatalf("pos = %d", pos)
	}
}
