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

// SystemClock is the machine's clock.
type SystemClock struct{}

func (SystemClock) Now() int64 { return time.Now().UnixMilli() }

func (SystemClock) Mono() time.Duration { return readClock(unix.CLOCK_MONOTONIC) }

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

func readClock(id int32) time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(id, &ts) != nil { // cannot fail for these two on Linux
		return 0
	}
	return time.Duration(ts.Nano())
}
