package segment_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"redleaf/segment"
	"redleaf/segment/storetest"
)

// start returns a running allocator over m that is closed at the end of the test.
func start(t testing.TB, m *storetest.Mem, o segment.Options) *segment.Allocator {
	t.Helper()
	a := segment.New(m, nil, o)
	a.Start()
	t.Cleanup(func() { stop(t, a) })
	return a
}

func stop(t testing.TB, a *segment.Allocator) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := a.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// within returns a context that ends after d.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func take(t testing.TB, a *segment.Allocator, tag string, n int64) int64 {
	t.Helper()
	if last, ok := a.TryTake([]byte(tag), n); ok {
		return last
	}
	last, err := a.Take(within(t, 30*time.Second), tag, n)
	if err != nil {
		t.Fatalf("Take(%s, %d): %v", tag, n, err)
	}
	return last
}

func TestSmoke(t *testing.T) {
	m := storetest.NewMem()
	a := start(t, m, segment.Options{AutoCreate: []string{"*"}, Step: 10})
	for want := int64(1); want <= 100_000; want++ {
		if got := take(t, a, "order", 1); got != want {
			t.Fatalf("ID %d, want %d", got, want)
		}
	}
	if _, err := a.Take(within(t, time.Second), "order", 0); err == nil {
		t.Fatal("Take of 0 was served")
	}
	stop(t, a)
	if r, _ := m.DB().Row("order"); r.Max != 100_001 {
		t.Fatalf("row stands at %d after a clean stop, want 100001", r.Max)
	}
	if _, err := a.Take(within(t, time.Second), "order", 1); !errors.Is(err, segment.ErrClosed) {
		t.Fatalf("Take after Close: %v", err)
	}
}
