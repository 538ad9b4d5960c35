package snowflake

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// windowWait is the longest a call waits for its window to be made durable.
const windowWait = 2 * time.Second

// standstill is how long the wall clock may stand on one millisecond before a caller who waits for the next one gives up on it.
const standstill = 50 * time.Millisecond

// patience is what one call still has in it. While it waits it holds nothing that another needs; see takeTurn for the one
// exception.
type patience struct {
	g       *Generator
	began   bool
	until   time.Duration // Mono at which waiting for a clock that stepped back is over
	full    int64         // the millisecond found full, and since when
	since   time.Duration
	counted bool // in g.singles
	turn    bool
}

// single counts the caller among those who wait for one ID, so that large runs leave room for them.
func (p *patience) single() {
	if !p.counted {
		p.counted = true
		p.g.singles.Add(1)
	}
}

// takeTurn waits until no other caller takes large runs. The turn is held over the sleep to the next millisecond only, and goes
// from one to the next in the order they came.
func (p *patience) takeTurn(ctx context.Context) error {
	if p.turn {
		return nil
	}
	select {
	case <-p.g.turn:
		p.turn = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *patience) passTurn() {
	if p.turn {
		p.turn = false
		p.g.turn <- struct{}{}
	}
}

func (p *patience) end() {
	p.passTurn()
	if p.counted {
		p.g.singles.Add(-1)
	}
}

// wait returns nil when it is worth trying again, or why it is not.
func (p *patience) wait(ctx context.Context, i *issuer, a attempt) error {
	switch a.verdict {
	case isFull:
		return p.waitNext(ctx, i, a)
	case isBehind:
		return p.waitBack(ctx, i, a)
	case isPastEnd:
		return p.g.awaitWindow(ctx, i)
	case isTimeUp:
		return &TimeUpError{Layout: p.g.o.Layout}
	}
	return nil // sealed: there is another issuer now, or none
}

// waitNext sleeps to the next millisecond. The clock may step back meanwhile, which the next attempt finds; it may also stand
// still, which would keep a caller for ever.
func (p *patience) waitNext(ctx context.Context, i *issuer, a attempt) error {
	g := p.g
	g.overflows.Add(1)
	if p.full != a.read.now {
		p.full, p.since = a.read.now, a.read.mono
	} else if stood := a.read.mono - p.since; stood > g.o.ClockWait+standstill && i.creep.Load() == 0 {
		return g.back(i, a, stood, "its own monotonic time (it stands still)", 0)
	}
	if creep := i.creep.Load(); creep != 0 && int64(msDuration(a.last)-a.read.mono) > creep {
		// A clock that runs wild has been ahead of logical time meanwhile; from there it is no more than a millisecond either.
		i.creep.CompareAndSwap(creep, int64(msDuration(a.last)-a.read.mono))
	}
	d := time.Millisecond
	if a.read.now == int64(a.read.wall/time.Millisecond) {
		d -= a.read.wall % time.Millisecond
	}
	return g.clock.Sleep(ctx, d)
}

// waitBack waits for a clock that stepped back, as often as it is woken early, but for ClockWait in all.
func (p *patience) waitBack(ctx context.Context, i *issuer, a attempt) error {
	g := p.g
	behind := msDuration(a.last - a.read.now)
	if a.read.now == int64(a.read.wall/time.Millisecond) && a.read.wall > 0 {
		behind -= a.read.wall % time.Millisecond
	}
	if !p.began {
		p.began, p.until = true, a.read.mono+g.o.ClockWait
		if behind <= g.o.ClockWait {
			g.waited.Add(1)
		}
	}
	if behind > p.until-a.read.mono {
		what := "the last ID"
		switch {
		case a.read.now <= i.epoch:
			what = "snowflake.epoch"
		case a.last <= i.base+i.epoch:
			what = "the bound of the last run"
		}
		return g.back(i, a, behind, what, a.last)
	}
	return g.clock.Sleep(ctx, behind)
}

// back is what happens beyond ClockWait: nil if logical time takes over, else the refusal.
func (g *Generator) back(i *issuer, a attempt, behind time.Duration, what string, until int64) error {
	if g.logical && what != "snowflake.epoch" {
		// From here on a millisecond may be opened for each that passes, beginning at the last one.
		if i.creep.CompareAndSwap(0, int64(msDuration(a.last)-a.read.mono)) && g.alarm(&g.backLogged) {
			g.alarmed.Store(true)
			g.log.Error().Stringer("behind", behind).Str("of", what).
				Msg("the clock stepped back; going on from the last timestamp until it has caught up (clock_policy logical). Check this machine's time service")
		}
		return nil
	}
	g.refused.Add(1)
	err := &ClockBackError{Behind: behind, What: what, Until: until}
	if g.alarm(&g.backLogged) {
		g.alarmed.Store(true)
		g.log.Error().Stringer("behind", behind).Str("of", what).Uint64("refused", g.refused.Load()).
			Msg("the clock stepped back; refusing IDs until it has caught up. Check this machine's time service")
	}
	return err
}

// recovered ends what back began, and says so as often as back did.
func (g *Generator) recovered(i *issuer) {
	i.creep.Store(0)
	if g.alarmed.Load() && g.alarmed.CompareAndSwap(true, false) {
		g.log.Info().Uint64("refused", g.refused.Load()).Msg("the clock has caught up with the last ID")
	}
}

// alarmEvery is how often one alarm is repeated in the log.
const alarmEvery = 10 * time.Second

// alarm says whether to log: at once the first time, then every alarmEvery.
func (g *Generator) alarm(last *atomic.Int64) bool {
	now := int64(g.clock.Mono()) | 1
	was := last.Load()
	return (was == 0 || now-was >= int64(alarmEvery)) && last.CompareAndSwap(was, now)
}

// awaitWindow waits for the end of the extension attempt that is running, or of a new one.
func (g *Generator) awaitWindow(ctx context.Context, i *issuer) error {
	i.mu.Lock()
	attempt, failing := i.attempt, i.failing
	i.mu.Unlock()
	if failing != nil {
		return failing // it is being tried again all the time; nobody need wait for that
	}
	i.wantMore()
	ctx, cancel := context.WithTimeoutCause(ctx, windowWait, errSlowWindow)
	defer cancel()
	select {
	case <-attempt:
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.failing
	case <-i.done:
		return nil
	case <-ctx.Done():
		if context.Cause(ctx) == errSlowWindow {
			return &NoWorkerError{Cause: fmt.Errorf("worker %d: %w", i.worker.ID(), errSlowWindow)}
		}
		return ctx.Err()
	}
}

var errSlowWindow = errors.New("the next window could not be made durable within 2s: the disk or the registry is slow")
