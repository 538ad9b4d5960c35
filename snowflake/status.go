package snowflake

import (
	"errors"
	"time"
)

// Status describes a Generator for people: SNOWFLAKE.INFO, metrics, the status page.
type Status struct {
	RegistryStatus

	// State: "waiting" (for a number, or for the clock to pass its base), "serving", "clockback" (refusing), "logical" (ahead of
	// a clock that stepped back), "exhausted" (window or time bits used up), "stopped". It hides the registry's own state, which
	// is RegistryStatus.State.
	State string
	// Err is what a request would be refused with now; nil if it would not.
	Err       error
	Layout    Layout
	YearsLeft float64 // until the time bits are used up; negative: they are
	LastMs    int64   // timestamp of the last ID here, Unix ms; 0 none

	Issued           uint64
	RollbacksWaited  uint64 // requests that waited for a clock that stepped back
	RollbacksRefused uint64 // requests refused because of one
	Overflows        uint64 // sleeps to the next millisecond because one was used up
	ForwardJumps     uint64 // steps ahead that were not followed at once
	Doubted          bool   // such a step is not followed right now
	Extensions       uint64 // windows made longer
	ExtensionErrors  uint64
	WorkersLost      uint64

	DriftMono time.Duration // how far the wall clock went ahead (or behind: negative) of the monotonic one since the start
	Ahead     time.Duration // how far the last ID's timestamp is ahead of the clock; 0 if it is not
}

// Ready is nil when an ID can be issued now, else what a request would be refused with.
func (g *Generator) Ready() error {
	_, err := g.state()
	return err
}

func (g *Generator) state() (string, error) {
	i := g.cur.Load()
	if i == nil {
		err := g.noWorker()
		if errors.Is(err, ErrClosed) {
			return "stopped", err
		}
		return "waiting", err
	}
	s := i.state.Load()
	if s == sealed {
		return "waiting", g.noWorker()
	}
	r := g.read(i, s)
	last := s>>i.bits + i.epoch
	behind := msDuration(last - r.now)
	at := max(last, r.now)
	switch {
	case at > i.end+i.epoch:
		return "exhausted", &TimeUpError{Layout: g.o.Layout}
	case behind > g.o.ClockWait && !g.logical:
		return "clockback", &ClockBackError{Behind: behind, What: "the last ID", Until: last}
	case at > i.until.Load()+i.epoch:
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.failing != nil {
			return "exhausted", i.failing
		}
	}
	if behind > g.o.ClockWait {
		return "logical", nil
	}
	return "serving", nil
}

// Status tells how the generator is doing.
func (g *Generator) Status() Status {
	wall, mono := g.clock.Read()
	now := int64(wall / time.Millisecond)
	st := Status{
		RegistryStatus:   g.ids.Status(),
		Layout:           g.o.Layout,
		YearsLeft:        g.o.Layout.Left(now).Hours() / (365.2425 * 24),
		Issued:           g.issued.Load(),
		RollbacksWaited:  g.waited.Load(),
		RollbacksRefused: g.refused.Load(),
		Overflows:        g.overflows.Load(),
		ForwardJumps:     g.jumps.Load(),
		Doubted:          g.doubted.Load(),
		Extensions:       g.extends.Load(),
		ExtensionErrors:  g.extendErrs.Load(),
		WorkersLost:      g.lost.Load(),
		DriftMono:        (wall - g.wall0) - (mono - g.mono0),
	}
	st.State, st.Err = g.state()
	if last := g.Last(); last != 0 {
		if p, err := g.o.Layout.Unpack(last); err == nil {
			st.LastMs = p.Ms
			st.Ahead = max(0, msDuration(p.Ms-now))
		}
	}
	return st
}
