package snowflake

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Window is what a registry granted for one worker number: a timestamp ts (Unix milliseconds) may be issued only where
// Base < ts <= Until (I7). Windows of one number never overlap, whoever holds them.
type Window struct{ Base, Until int64 }

// WorkerIDs hands out worker numbers. Implementations: snowflake/local (one configured number) and snowflake/zookeeper.
// Safe for concurrent use; the Generator holds at most one Worker at a time.
type WorkerIDs interface {
	// Acquire claims a number and returns when it is claimed, with a window whose base is durable. It keeps trying until ctx
	// ends where waiting may help; Status says meanwhile what it waits for. An error is final for this call (*NoWorkerError
	// names cause and cure); the caller may call again later.
	// avoid names a number to leave alone if another can be had (-1: none): one whose base lies too far ahead of the clock.
	Acquire(ctx context.Context, avoid int64) (Worker, error)

	// Time reads the registry's own clock in Unix milliseconds, as an opinion independent of this machine's.
	// ErrNoClock: this registry has none (local) or can't be asked now.
	Time(ctx context.Context) (int64, error)

	// Status is for people: INFO, metrics, the status page, /readyz.
	Status() RegistryStatus

	// Close ends the registry's work. A Worker that was not released stays claimed until its window is past.
	Close(ctx context.Context) error
}

// Worker is one claimed worker number. Window is called on the hot path.
type Worker interface {
	ID() int64

	// Window is the range of timestamps durable right now: one or two atomic loads, no lock, no I/O. Base never changes during
	// the life of a Worker. Until grows, and shrinks never. After Lost is closed Until may stay; it remains ours (a window
	// granted is granted), but no more comes.
	Window() Window

	// Extend makes the window durable up to at least ts, plus a reserve of the implementation's choice, and returns when that
	// is done. *NoWorkerError: it can't be (lost, or the registry is out of reach and its last grant is used up, or the local
	// state can't be written). Nothing beyond the returned window may be used. Called by one goroutine at a time.
	Extend(ctx context.Context, ts int64) (Window, error)

	// Lost is closed when the number is no longer ours to extend. The Generator then stops and acquires anew.
	Lost() <-chan struct{}

	// Release gives the number back at a clean stop: last is the highest timestamp issued (0: none). Local state is closed and
	// durable before the registry is told. Nothing may be issued afterwards.
	Release(ctx context.Context, last int64) error
}

// RegistryStatus describes a registry and the number held.
type RegistryStatus struct {
	Registry string // "local", "zookeeper"
	State    string // "waiting", "serving", "autonomous", "fenced", "stopped"
	Reason   string // why it waits or refuses; empty while all is well
	Worker   int64  // -1: none
	Identity string
	Window   Window        // as granted by the registry (with ZooKeeper the long one, not the local fsynced bound)
	Skew     time.Duration // this machine's clock minus the registry's, as last measured; 0 with ok=false below
	SkewOK   bool
	Session  bool // connected to the registry now
	Since    time.Time
	Free     int64 // numbers free to claim, -1 unknown
	Total    int64
}

var (
	// ErrNoClock: the registry has no clock of its own, or can't be asked.
	ErrNoClock = errors.New("the registry's clock can't be asked")
	ErrClosed  = errors.New("this instance is stopping")
)

// NoWorkerError says why there is no worker number to issue with, and what to do.
type NoWorkerError struct {
	Cause error
	// Permanent: waiting does not cure it (a setting or an operator must).
	Permanent bool
}

func (e *NoWorkerError) Error() string { return e.Cause.Error() }
func (e *NoWorkerError) Unwrap() error { return e.Cause }

// ClockBackError says that the clock stands Behind the last timestamp issued (or the bound reserved before a restart, or the
// epoch) by more than clock_wait.
type ClockBackError struct {
	Behind time.Duration
	What   string // what it is behind of: "the last ID", "the bound of the last run", "snowflake.epoch"
	Until  int64  // Unix ms that the clock has to reach, after which it is over by itself; 0: unknown
}

func (e *ClockBackError) Error() string {
	when := "when it catches up"
	if e.Until != 0 {
		when = "when it has caught up, at " + time.UnixMilli(e.Until).UTC().Format("2006-01-02T15:04:05.000Z")
	}
	return fmt.Sprintf("the clock is %s behind %s; IDs flow again %s. Check this machine's time service", e.Behind, e.What, when)
}

// TimeUpError says that the layout's time bits are used up.
type TimeUpError struct{ Layout Layout }

func (e *TimeUpError) Error() string {
	return fmt.Sprintf("the %d time bits of snowflake.bits counted from snowflake.epoch %d are used up: a new layout or epoch in a new root is needed", e.Layout.TimeBits, e.Layout.Epoch)
}
