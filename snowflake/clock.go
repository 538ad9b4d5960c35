package snowflake

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is where time comes from. Tests move it by hand (workertest.Clock).
type Clock interface {
	// Now is the wall clock in Unix milliseconds. It may step, in either direction.
	Now() int64
	// Mono is CLOCK_MONOTONIC: it never steps, and stands still while the machine is suspended.
	Mono() time.Duration
	// Boot is CLOCK_BOOTTIME: as Mono, but it goes on through a suspend.
	Boot() time.Duration
	// Sleep waits for d of monotonic time or until ctx ends.
	Sleep(ctx context.Context, d time.Duration) error
}

// PairClock is a Clock that can read both of its hands at one moment: the wall clock as Unix time, and Mono. The generator
// asks for the pair with every ID, to tell a step of the wall clock from time that passed; other clocks are read twice.
type PairClock interface {
	Clock
	Read() (wall, mono time.Duration)
}

// SystemClock is the machine's clock.
type SystemClock struct{}

// A time.Time carries both clocks and is read without a system call; the monotonic one counts from an unknown moment, so that
// one pair taken at start joins it to CLOCK_MONOTONIC.
var (
	started     = time.Now()
	startedMono = readClock(unix.CLOCK_MONOTONIC)
)

func (SystemClock) Now() int64 { return time.Now().UnixMilli() }

func (SystemClock) Mono() time.Duration { return startedMono + time.Since(started) }

func (SystemClock) Read() (wall, mono time.Duration) {
	t := time.Now()
	return time.Duration(t.UnixNano()), startedMono + t.Sub(started)
}

func (SystemClock) Boot() time.Duration { return readClock(unix.CLOCK_BOOTTIME) }

func (SystemClock) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// paired reads a Clock's two hands one after the other, as near to each other as it gets.
type paired struct{ Clock }

func (c paired) Read() (wall, mono time.Duration) {
	wall = time.Duration(c.Now()) * time.Millisecond
	return wall, c.Mono()
}

func pair(c Clock) PairClock {
	if p, ok := c.(PairClock); ok {
		return p
	}
	return paired{c}
}

func readClock(id int32) time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(id, &ts) != nil { // cannot fail for these two on Linux
		return 0
	}
	return time.Duration(ts.Nano())
}
