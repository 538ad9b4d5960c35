package segment_test

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redleaf/segment"
	"redleaf/segment/storetest"
)

// fastest runs the two in turn, many short slices of each, and returns the shortest time per call of both: what the machine
// does when nobody else is on it. Slices in which the workers did not run at the same time don't count.
func fastest(b *testing.B, workers, calls int, bare, ours func(n int)) (x, y float64) {
	slice := func(f func(n int), best float64) float64 {
		var wg sync.WaitGroup
		var ready atomic.Int32
		begin, end := make([]time.Time, workers), make([]time.Time, workers)
		for w := range workers {
			wg.Go(func() {
				for ready.Add(1); ready.Load() < int32(workers); {
					runtime.Gosched()
				}
				begin[w] = time.Now()
				f(calls)
				end[w] = time.Now()
			})
		}
		wg.Wait()
		first, last := slices.MinFunc(begin, time.Time.Compare), slices.MaxFunc(end, time.Time.Compare)
		together := slices.MinFunc(end, time.Time.Compare).Sub(slices.MaxFunc(begin, time.Time.Compare))
		if all := last.Sub(first); float64(together) > 0.9*float64(all) {
			return min(best, float64(all.Nanoseconds())/float64(calls*workers))
		}
		return best
	}
	x, y = math.Inf(1), math.Inf(1)
	for b.Loop() {
		x = slice(bare, x)
		y = slice(ours, y)
	}
	return x, y
}

// BenchmarkTake prints what a take costs, lookup of the tag by its bytes included, beside a bare atomic add: the bars are 12
// with one goroutine and 4 with every core on one tag.
func BenchmarkTake(b *testing.B) {
	for _, c := range []struct {
		name    string
		workers int
	}{{"alone", 1}, {"contended", runtime.GOMAXPROCS(0)}} {
		b.Run(c.name, func(b *testing.B) {
			a := start(b, storetest.NewMem(), segment.Options{AutoCreate: []string{"*"}, Step: 1_000_000})
			take(b, a, "order", 1)
			var bare atomic.Int64
			x, y := fastest(b, c.workers, 1_000_000, func(n int) {
				for range n {
					bare.Add(1)
				}
			}, func(n int) {
				tag := []byte("order")
				for range n {
					if _, ok := a.TryTake(tag, 1); !ok {
						take(b, a, "order", 1)
					}
				}
			})
			b.ReportMetric(x, "ns/add")
			b.ReportMetric(y, "ns/take")
			b.ReportMetric(y/x, "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkTakeOfMany prints the same for requests of 100 IDs.
func BenchmarkTakeOfMany(b *testing.B) {
	a := start(b, storetest.NewMem(), segment.Options{AutoCreate: []string{"*"}, Step: 1_000_000})
	take(b, a, "order", 100)
	b.ReportAllocs()
	tag := []byte("order")
	for b.Loop() {
		if _, ok := a.TryTake(tag, 100); !ok {
			take(b, a, "order", 100)
		}
	}
}
