package snowflake_test

import (
	"context"
	"testing"
	"time"

	"redleaf/snowflake"
	"redleaf/snowflake/workertest"
)

func started(tb testing.TB) *snowflake.Generator {
	tb.Helper()
	g, err := snowflake.New(workertest.NewMem(1).Open("a"), snowflake.SystemClock{}, snowflake.Options{Layout: leaf, ClockWait: 5 * time.Millisecond})
	if err != nil {
		tb.Fatal(err)
	}
	g.Start()
	tb.Cleanup(func() { g.Close(context.Background()) })
	for g.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	return g
}

// BenchmarkTryNext is what an attempt costs, whether it gets an ID or finds the millisecond used up.
func BenchmarkTryNext(b *testing.B) {
	g := started(b)
	b.ReportAllocs()
	for b.Loop() {
		g.TryNext()
	}
}

func BenchmarkTryNextContended(b *testing.B) {
	g := started(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			g.TryNext()
		}
	})
}

// BenchmarkNext can't be faster than the layout: 244 ns for each ID.
func BenchmarkNext(b *testing.B) {
	g := started(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.Next(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend1000(b *testing.B) {
	g := started(b)
	buf := make([]int64, 0, 1000)
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = g.Append(b.Context(), buf[:0], 1000); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds()/4_096_000, "of-the-layout")
}

// BenchmarkBestSecond draws for ten seconds, and reports the best and the worst of them against the layout's 4,096,000.
func BenchmarkBestSecond(b *testing.B) {
	for _, way := range []string{"Next", "Append1000"} {
		b.Run(way, func(b *testing.B) {
			g := started(b)
			buf := make([]int64, 0, 1000)
			for b.Loop() {
				best, worst := 0.0, 1e9
				for range 10 {
					n, began := 0, time.Now()
					for n&0xfff != 0 || time.Since(began) < time.Second {
						if way == "Next" {
							if _, err := g.Next(b.Context()); err != nil {
								b.Fatal(err)
							}
							n++
							continue
						}
						var err error
						if buf, err = g.Append(b.Context(), buf[:0], 1024); err != nil {
							b.Fatal(err)
						}
						n += 1024
					}
					rate := float64(n) / time.Since(began).Seconds()
					best, worst = max(best, rate), min(worst, rate)
				}
				b.ReportMetric(best/4_096_000, "best-second")
				b.ReportMetric(worst/4_096_000, "worst-second")
			}
		})
	}
}
