// Package workertest holds what tests of worker registries and of the generator share: a clock moved by hand (Clock), a registry
// in memory with fault hooks (Mem), and the conformance suite that every snowflake.WorkerIDs must pass (Run). Tests alone import it.
package workertest

import (
	"context"
	"sync"
	"time"
)

// Clock is a snowflake.Clock that tests move. A manual one (NewClock) stands still until it is moved; a running one
// (NewRunningClock) goes with real time, or inside a synctest bubble with the bubble's, and can be moved besides.
// Sleepers wake when the clock has passed their time. Safe for concurrent use.
type Clock struct {
	mu      sync.Mutex
	running bool
	began   time.Time     // real time of creation; running clocks count from it
	wall    time.Duration // Unix time, besides what a running clock adds
	mono    time.Duration
	boot    time.Duration
	jitter  func() time.Duration
	slept   int
	moved   chan struct{} // closed and replaced by every move
}

// NewClock makes a clock that stands at now, in Unix milliseconds.
func NewClock(now int64) *Clock {
	return &Clock{
		wall:  time.Duration(now) * time.Millisecond,
		mono:  time.Hour,
		boot:  2 * time.Hour,
		moved: make(chan struct{}),
	}
}

// NewRunningClock makes a clock that stands at now (Unix milliseconds) and runs.
func NewRunningClock(now int64) *Clock {
	c := NewClock(now)
	c.running, c.began = true, time.Now()
	return c
}

func (c *Clock) ran() time.Duration {
	if !c.running {
		return 0
	}
	return time.Since(c.began)
}

// Now is the wall clock in Unix milliseconds.
func (c *Clock) Now() int64 {
	wall, _ := c.Read()
	return int64(wall / time.Millisecond)
}

// Read is the wall clock (Unix time) and the monotonic one at one moment. Jitter applies to the wall clock.
func (c *Clock) Read() (wall, mono time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ran := c.ran()
	wall, mono = c.wall+ran, c.mono+ran
	if c.jitter != nil {
		wall += c.jitter()
	}
	return wall, mono
}

// Mono is the monotonic clock.
func (c *Clock) Mono() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mono + c.ran()
}

// Boot is the monotonic clock that counts suspends.
func (c *Clock) Boot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot + c.ran()
}

// Sleep returns when the monotonic clock has gone on by d, or with ctx's error.
func (c *Clock) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	c.mu.Lock()
	until := c.mono + c.ran() + d
	c.slept++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.slept--
		c.mu.Unlock()
	}()
	for {
		c.mu.Lock()
		left, moved := until-c.mono-c.ran(), c.moved
		c.mu.Unlock()
		if left <= 0 {
			return nil
		}
		if err := c.wait(ctx, left, moved); err != nil {
			return err
		}
	}
}

func (c *Clock) wait(ctx context.Context, left time.Duration, moved <-chan struct{}) error {
	var ring <-chan time.Time
	if c.running {
		t := time.NewTimer(left)
		defer t.Stop()
		ring = t.C
	}
	select {
	case <-ring:
	case <-moved:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (c *Clock) move(wall, mono, boot time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += wall
	c.mono += mono
	c.boot += boot
	close(c.moved)
	c.moved = make(chan struct{})
}

// Advance lets d go by on every clock, as time does.
func (c *Clock) Advance(d time.Duration) { c.move(d, d, d) }

// Step sets the wall clock by d, which may be negative, as a time service or a person does.
func (c *Clock) Step(d time.Duration) { c.move(d, 0, 0) }

// Suspend lets d go by while the machine sleeps: the monotonic clock stands still.
func (c *Clock) Suspend(d time.Duration) { c.move(d, 0, d) }

// Stall lets d go by on the monotonic clocks while the wall clock stands still.
func (c *Clock) Stall(d time.Duration) { c.move(0, d, d) }

// Jitter adds f's result to every reading of the wall clock; nil ends it. f runs under the clock's lock.
func (c *Clock) Jitter(f func() time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jitter = f
}

// Sleepers is how many goroutines are in Sleep right now.
func (c *Clock) Sleepers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slept
}
