package snowflake

import (
	"context"
	"errors"
	"time"
)

const (
	// maxForward is the largest step ahead, of the wall clock against the monotonic one, that is followed at once.
	maxForward = time.Second
	// doubt is how long a step ahead that nobody can confirm is not followed.
	doubt = time.Minute
	// watchEvery is how often the clocks are compared while nothing is issued.
	watchEvery = 250 * time.Millisecond
	// askEvery is how often the registry is asked about a clock in doubt.
	askEvery = time.Second
	// askFor is the longest one such question may take.
	askFor = 2 * time.Second
)

// reading is both clocks at one moment.
type reading struct {
	wall time.Duration // Unix time as the wall clock has it
	mono time.Duration
	now  int64 // Unix ms to go by
}

// read takes the time to judge state s by. The wall clock is believed as far as the line goes: what it had when it was last
// vouched for, plus the monotonic time since. Beyond the line by more than maxForward it is a step that is not followed until
// the watch confirms it, and time goes on along the line. Behind the line it needs no vouching: a clock that is too low repeats
// nothing, since the state is compared with it.
func (g *Generator) read(i *issuer, s int64) reading {
	wall, mono := g.clock.Read()
	r := reading{wall: wall, mono: mono}
	believed := wall
	if line := mono + time.Duration(g.line.Load()); wall-line > maxForward {
		// What was issued vouches too: a clock that went back and comes home is followed at once.
		if s == sealed || int64(wall/time.Millisecond)-(s>>i.bits+i.epoch) > maxForward.Milliseconds() { // sealed: i may be nil
			believed = line
		}
	}
	r.now = int64(believed / time.Millisecond)
	if believed < 0 {
		r.now--
	}
	return r
}

// now is the time to go by where no state is at hand, Unix ms.
func (g *Generator) now() int64 { return g.read(nil, sealed).now }

// vouch draws the line through the wall clock as it stands.
func (g *Generator) vouch() {
	wall, mono := g.clock.Read()
	g.line.Store(int64(wall - mono))
}

// jump is a step ahead that the watch has not made up its mind about.
type jump struct {
	by    time.Duration // beyond the line
	since time.Duration // Mono
	boot  time.Duration // Boot - Mono before it
	asked time.Duration // Mono of the last question to the registry; 0: none
}

// watch compares the clocks and keeps the window warm, until ctx ends. It runs beside one issuer.
func (g *Generator) watch(ctx context.Context, i *issuer) {
	var (
		j       *jump
		seen    = i.state.Load()
		usedAt  = g.clock.Mono()
		leaving time.Duration // Mono of the last question whether to leave a number; 0: none
	)
	asleep := g.clock.Boot() - g.clock.Mono() // Boot - Mono: grows with each suspend
	for g.clock.Sleep(ctx, watchEvery) == nil {
		wall, mono := g.clock.Read()
		ahead := wall - mono - time.Duration(g.line.Load())
		slept := g.clock.Boot() - g.clock.Mono()
		switch {
		case ahead <= maxForward:
			if j != nil {
				g.log.Info().Stringer("by", j.by).Msg("the clock is back from its step ahead, which was not followed")
				j = nil
			}
			// Slewing and small steps move the line. It stays where it is when the clock steps far back, so that the clock may
			// come home without being doubted.
			if ahead > -maxForward {
				g.line.Store(int64(wall - mono))
			}
			asleep = slept
		case int64(wall/time.Millisecond)-i.lastMs() <= maxForward.Milliseconds():
			g.line.Store(int64(wall - mono))
			j, asleep = nil, slept
		default:
			if j == nil || (j.by-ahead).Abs() > maxForward {
				j = &jump{by: ahead, since: mono, boot: asleep}
				g.jumps.Add(1)
				g.log.Warn().Stringer("by", ahead.Round(time.Millisecond)).
					Msg("the clock stepped ahead; IDs go on without following it until the step is confirmed")
			}
			if g.confirm(ctx, j, wall, mono, slept) {
				g.line.Store(int64(wall - mono))
				j, asleep = nil, slept
			}
		}
		g.doubted.Store(j != nil)

		s := i.state.Load()
		if s == sealed {
			return
		}
		now, last := g.read(i, s).now, s>>i.bits+i.epoch
		behind := last - now
		if behind <= 0 {
			g.recovered(i)
		}
		if s != seen {
			seen, usedAt = s, mono
		}
		// A key in use stays warm (I15): after a pause of some seconds its next ID needs no disk either.
		if mono-usedAt < warm && i.until.Load()+i.epoch-max(now, last) < lead.Milliseconds() {
			i.wantMore()
		}
		if behind > startWait.Milliseconds() && !g.logical && mono-leaving > 10*askEvery {
			leaving = mono
			g.leaveIfPoisoned(ctx, i, now)
		}
		g.checkSkew()
	}
}

// confirm says whether a step ahead is to be followed. The registry's clock decides where there is one. Without, a suspend
// explains it if CLOCK_BOOTTIME went on by as much; failing that it is followed after a minute, aloud.
func (g *Generator) confirm(ctx context.Context, j *jump, wall, mono, slept time.Duration) bool {
	if j.asked != 0 && mono-j.asked < askEvery && g.hasClock.Load() {
		return false
	}
	j.asked = mono
	skew, err := g.skew(ctx)
	switch {
	case err == nil && skew.Abs() <= g.o.MaxSkew:
		g.log.Info().Stringer("by", j.by.Round(time.Millisecond)).Msg("the registry's clock confirms the step ahead; following it")
		return true
	case err == nil:
		if g.alarm(&g.jumpLogged) {
			g.log.Error().Stringer("by", j.by.Round(time.Millisecond)).Stringer("off", skew.Round(time.Millisecond)).
				Msg("the clock stepped ahead and the registry's clock says it is wrong; not followed. Check this machine's time service")
		}
		return false
	case g.hasClock.Load(): // it can't be asked now; what it says will count
		return false
	}
	if (slept - j.boot - j.by).Abs() <= maxForward {
		g.log.Info().Stringer("for", j.by.Round(time.Millisecond)).Msg("the machine was suspended; following the clock")
		return true
	}
	if mono-j.since < doubt {
		return false
	}
	g.log.Error().Stringer("by", j.by.Round(time.Millisecond)).
		Msg("the clock stepped ahead a minute ago and stayed there; following it with nothing to confirm it. Check this machine's time service")
	return true
}

// skew is this machine's clock minus the registry's.
func (g *Generator) skew(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	before := g.clock.Now()
	theirs, err := g.ids.Time(ctx)
	if err != nil {
		return 0, err
	}
	after := g.clock.Now()
	g.hasClock.Store(true)
	// The answer was true at some moment between the two readings; only what lies outside of them is skew.
	var ms int64
	switch {
	case before > after: // the clock stepped back in between
		ms = after - theirs
	case theirs < before:
		ms = before - theirs
	case theirs > after:
		ms = after - theirs
	}
	return msDuration(ms), nil
}

// msDuration is ms milliseconds, or the largest Duration of that sign.
func msDuration(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}

// checkSkew raises an alarm when the clock left the registry's behind it after the start. IDs stay unique, so they flow on; the
// registry itself grants no window so far from its own time.
func (g *Generator) checkSkew() {
	st := g.ids.Status()
	if !st.SkewOK || st.Skew.Abs() <= g.o.MaxSkew || !g.alarm(&g.skewLogged) {
		return
	}
	g.log.Error().Stringer("off", st.Skew).Stringer("max_skew", g.o.MaxSkew).
		Msg("this machine's clock is off the registry's by more than snowflake.max_skew. Check its time service")
}

// leaveIfPoisoned gives up a number whose last timestamp lies far ahead of the clock, if the registry's clock says that the
// clock is right now: it was wrong when that timestamp was issued. Another number has no such past.
func (g *Generator) leaveIfPoisoned(ctx context.Context, i *issuer, now int64) {
	skew, err := g.skew(ctx)
	if err != nil || skew.Abs() > g.o.MaxSkew {
		return
	}
	g.log.Error().Int64("worker", i.worker.ID()).Stringer("behind", msDuration(i.lastMs()-now)).
		Msg("this worker number was used while the clock was wrong, ahead of the registry's; leaving it for another one")
	select {
	case g.leave <- i:
	default:
	}
}

// checkClock refuses a start whose clock can't be right.
func (g *Generator) checkClock(ctx context.Context) error {
	g.vouch() // a start takes the clock as it is, or not at all
	if err := g.o.Layout.check(g.now()); err != nil {
		return err
	}
	skew, err := g.skew(ctx)
	switch {
	case err == nil && skew.Abs() > g.o.MaxSkew:
		return &NoWorkerError{Cause: &SkewError{Off: skew, Max: g.o.MaxSkew}}
	case err != nil && ctx.Err() != nil && !errors.Is(err, ErrNoClock):
		return &NoWorkerError{Cause: err}
	}
	return nil // a registry without a clock, or out of reach: Acquire will say so where it matters
}
