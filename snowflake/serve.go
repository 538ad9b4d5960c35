package snowflake

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// lead is how far ahead of the last timestamp the window's end is kept while IDs are issued.
	lead = time.Second
	// warm is how long after the last ID the window is still kept ahead of the clock.
	warm = time.Minute
	// extendFor is the longest that one extension may take.
	extendFor = 5 * time.Second
	// startWait is how far a number's base may lie ahead of the clock to be waited for; beyond, another number is better.
	startWait = 10 * time.Second
	// longStop is how far the clock may be past a number's base, where there is no other clock to compare it with.
	longStop = 30 * day

	firstRetry, lastRetry = 100 * time.Millisecond, 5 * time.Second

	day  = 24 * time.Hour
	year = 365 * day
)

// SkewError says that this machine's clock is too far from the registry's to begin with.
type SkewError struct{ Off, Max time.Duration } // Off: this clock minus the registry's

func (e *SkewError) Error() string {
	way := "ahead of"
	if e.Off < 0 {
		way = "behind"
	}
	return fmt.Sprintf("this machine's clock is %s %s the registry's, and snowflake.max_skew is %s: set the clock right, IDs flow then", e.Off.Abs(), way, e.Max)
}

// usedUp refuses a layout whose time bits end within 30 days.
func (l Layout) usedUp(now int64) error {
	if left := l.Left(now); left < 30*day {
		return fmt.Errorf("snowflake.bits %s counted from snowflake.epoch %d end on %s, %d days from now, and a start needs 30: use a new layout or epoch in a new root (or check this machine's clock)",
			l, l.Epoch, time.UnixMilli(l.Last()).UTC().Format(time.RFC3339), int(left/day))
	}
	return nil
}

// check refuses a clock that the layout can't tell.
func (l Layout) check(now int64) error {
	if now <= l.Epoch {
		return &ClockBackError{Behind: msDuration(l.Epoch - now), What: "snowflake.epoch", Until: l.Epoch}
	}
	return l.usedUp(now)
}

// Start begins to acquire a worker number, in the background, and to acquire another whenever it is lost.
func (g *Generator) Start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running || g.closing {
		return
	}
	g.running = true
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	go func() {
		defer close(g.stopped)
		g.acquireAndServe(ctx)
	}()
}

// Close stops issuing, gives the number back with its last timestamp, and ends the background work, or returns ctx's error when
// that takes too long. It leaves the registry open.
func (g *Generator) Close(ctx context.Context) error {
	g.mu.Lock()
	if !g.closing {
		g.closing, g.closeCtx = true, ctx
		g.why = ErrClosed
		if g.running {
			g.stop()
		} else {
			close(g.stopped)
		}
	}
	g.mu.Unlock()
	select {
	case <-g.stopped:
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.closeErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *Generator) acquireAndServe(ctx context.Context) {
	avoid, left, pause := int64(-1), 0, firstRetry
	for ctx.Err() == nil {
		w, err := g.acquire(ctx, avoid)
		if err == nil {
			// The number that was to be avoided is back, or one as bad: there is nothing better.
			stay := w.ID() == avoid || left >= 3
			if avoid, err = g.serve(ctx, w, stay); err == nil {
				left, pause = 0, firstRetry
				continue
			}
			if errors.Is(err, errFarAhead) {
				avoid = w.ID()
				left++
				continue
			}
		}
		if ctx.Err() != nil {
			break
		}
		g.setWhy(err)
		if g.alarm(&g.failLogged) {
			g.log.Error().Err(err).Msg("no worker number to issue snowflakes with")
		}
		g.clock.Sleep(ctx, pause)
		pause = min(2*pause, lastRetry)
	}
}

// acquire claims a number once the clock is fit for it.
func (g *Generator) acquire(ctx context.Context, avoid int64) (Worker, error) {
	if err := g.checkClock(ctx); err != nil {
		return nil, err
	}
	g.setWhy(nil) // from here on the registry knows what it waits for
	w, err := g.ids.Acquire(ctx, avoid)
	if err != nil {
		return nil, err
	}
	if id := w.ID(); id < 0 || id >= g.o.Layout.Workers() {
		return nil, errors.Join(&NoWorkerError{Permanent: true, Cause: fmt.Errorf(
			"worker number %d does not fit snowflake.bits %s, which has room for 0 to %d: set snowflake.worker_id or snowflake.workers", id, g.o.Layout, g.o.Layout.Workers()-1)},
			w.Release(ctx, 0))
	}
	return w, nil
}

// serve issues with a number until it is lost, given up or the generator closes. It returns a number to avoid next (-1: none),
// or an error if it never came to issuing. stay: there is no better number to be had.
func (g *Generator) serve(ctx context.Context, w Worker, stay bool) (avoid int64, err error) {
	i, err := g.prepare(ctx, w, stay)
	if i == nil {
		g.release(ctx, w, 0)
		return -1, err
	}
	g.setWhy(nil)
	g.failLogged.Store(0)
	win := w.Window()
	g.log.Info().Int64("worker", w.ID()).Int64("base", win.Base).Int64("until", win.Until).Msg("issuing snowflakes")
	g.cur.Store(i)

	beside, cancel := context.WithCancel(ctx)
	ended := make(chan struct{}, 2)
	go func() { g.extend(beside, i); ended <- struct{}{} }()
	go func() { g.watch(beside, i); ended <- struct{}{} }()

	avoid = -1
	held := true
	for serving := true; serving; {
		select {
		case <-ctx.Done():
			serving = false
		case <-w.Lost():
			serving, held = false, false
			g.lost.Add(1)
			g.setWhy(&NoWorkerError{Cause: fmt.Errorf("worker %d was lost; another number is being acquired", w.ID())})
		case who := <-g.leave:
			if who == i {
				serving, avoid = false, w.ID()
			}
		}
	}
	ts := g.retire(i)
	cancel()
	<-ended
	<-ended // Release begins after the last Extend
	if held {
		g.release(ctx, w, ts)
	} else {
		g.log.Error().Int64("worker", w.ID()).Msg("the worker number was lost; acquiring another")
	}
	return avoid, nil
}

// retire ends an issuer and keeps what it issued last.
func (g *Generator) retire(i *issuer) (ts int64) {
	g.cur.Store(nil)
	last, ts := i.seal()
	g.mu.Lock()
	defer g.mu.Unlock()
	if last != 0 {
		g.prev, g.prevTs = last, ts
		g.highest[i.worker.ID()] = ts
	}
	return ts
}

func (g *Generator) release(ctx context.Context, w Worker, ts int64) {
	g.mu.Lock()
	if g.closing {
		ctx = g.closeCtx
	}
	g.mu.Unlock()
	err := w.Release(ctx, ts)
	if err == nil {
		return
	}
	g.log.Warn().Int64("worker", w.ID()).Err(err).Msg("the worker number could not be given back; its next holder starts above the whole window")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		g.closeErr = err
	}
}

var errFarAhead = errors.New("the number's base is far ahead of the clock")

// prepare makes the issuer of a number that was just acquired, or says why it can't issue: errFarAhead if another number would
// be better.
func (g *Generator) prepare(ctx context.Context, w Worker, stay bool) (*issuer, error) {
	base := w.Window().Base
	if base >= g.o.Layout.Last() {
		return nil, &TimeUpError{Layout: g.o.Layout}
	}
	g.mu.Lock()
	used, again := g.highest[w.ID()]
	floor := g.prevTs
	g.mu.Unlock()
	if again && base < used {
		// The registry went back: what it grants now was granted to this very process before (I7).
		return nil, &NoWorkerError{Permanent: true, Cause: fmt.Errorf(
			"worker %d was granted from %d on, and this process issued up to %d with it before: the registry has lost that bound. Give this instance another number, or wait until the clock is past it and restart", w.ID(), base, used)}
	}
	if err := g.awaitBase(ctx, w, stay); err != nil {
		return nil, err
	}
	if err := g.checkClock(ctx); err != nil { // acquiring and waiting may have taken hours
		return nil, err
	}
	if now := g.now(); !g.hasClock.Load() && !g.o.AcceptClock && base > 0 && msDuration(now-base) > longStop {
		return nil, &NoWorkerError{Permanent: true, Cause: fmt.Errorf(
			"the clock is %d days past the last use of worker %d (%s): if it really rested so long, set snowflake.accept_clock = true for one start; else set this machine's clock right", (now-base)/day.Milliseconds(), w.ID(), time.UnixMilli(base).UTC().Format(time.RFC3339))}
	}
	// IDs go on increasing when the number changes, unless the last one came of a clock that was wrong: order is promised for one
	// number only, and a new number is what frees us of such a timestamp.
	if floor > g.now()+g.o.ClockWait.Milliseconds() {
		floor = 0
	}
	if err := g.firstWindow(ctx, w, floor); err != nil {
		return nil, err
	}
	i := newIssuer(g.o.Layout, w, floor, g.seed())
	if g.logical {
		if last := i.lastMs(); last > g.now() {
			_, mono := g.clock.Read()
			i.creep.Store(int64(msDuration(last) - mono))
			g.alarmed.Store(true)
			g.log.Error().Stringer("behind", msDuration(last-g.now())).
				Msg("the clock is behind the bound of the last run; going on from there (clock_policy logical). Check this machine's time service")
		}
	}
	return i, nil
}

// awaitBase waits until the clock is past the number's base: another holder, or a former run, may have issued up to it.
func (g *Generator) awaitBase(ctx context.Context, w Worker, stay bool) error {
	base := w.Window().Base
	for waited := false; ; waited = true {
		now := g.clock.Now() // not along the line: a clock that is set right while we wait is what we wait for
		behind := msDuration(base - now)
		switch {
		case behind <= 0:
			return nil
		case behind > startWait && !stay:
			g.log.Warn().Int64("worker", w.ID()).Stringer("behind", behind).Msg("the clock is far behind the last use of this worker number; trying another")
			return errFarAhead
		case g.logical:
			return nil
		}
		err := &ClockBackError{Behind: behind, What: "the bound of the last run", Until: base}
		g.setWhy(err)
		if !waited || (behind > startWait && g.alarm(&g.backLogged)) {
			g.log.Warn().Int64("worker", w.ID()).Stringer("for", behind).Msg("waiting for the clock to pass the bound of the last run")
		}
		g.clock.Sleep(ctx, min(behind, watchEvery))
		select {
		case <-w.Lost():
			return &NoWorkerError{Cause: fmt.Errorf("worker %d was lost", w.ID())}
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
	}
}

// firstWindow makes the window durable ahead of the first ID, so that being ready means that nobody has to wait for that.
func (g *Generator) firstWindow(ctx context.Context, w Worker, floor int64) error {
	ctx, cancel := context.WithTimeout(ctx, extendFor)
	defer cancel()
	win := w.Window()
	at := min(max(g.now(), win.Base+1, floor+1)+lead.Milliseconds(), g.o.Layout.Last())
	if win.Until >= at {
		return nil
	}
	_, err := w.Extend(ctx, at)
	return err
}

// extend makes the window longer whenever it is asked to, until ctx ends, and keeps trying after a failure while the issuer
// lives off what it has.
func (g *Generator) extend(ctx context.Context, i *issuer) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.extended:
		}
		for pause := firstRetry; ctx.Err() == nil && !g.extendOnce(ctx, i); pause = min(2*pause, time.Second) {
			g.clock.Sleep(ctx, pause)
		}
	}
}

func (g *Generator) extendOnce(ctx context.Context, i *issuer) bool {
	ctx, cancel := context.WithTimeout(ctx, extendFor)
	defer cancel()
	s := i.state.Load()
	// Not the wall clock, which may be years ahead by mistake: what is granted can't be taken back.
	at := min(max(g.read(i, s).now, i.lastMs()+1)+lead.Milliseconds(), g.o.Layout.Last())
	win, err := i.worker.Window(), error(nil)
	if win.Until < at {
		win, err = i.worker.Extend(ctx, at)
		g.extends.Add(1)
	}
	i.until.Store(max(i.until.Load(), win.Until-i.epoch)) // beside an error too: the last of a window that grows no more
	if err != nil {
		var no *NoWorkerError
		if !errors.As(err, &no) {
			err = &NoWorkerError{Cause: err}
		}
		g.extendErrs.Add(1)
		if g.alarm(&g.failLogged) {
			g.log.Error().Err(err).Int64("worker", i.worker.ID()).Stringer("left", msDuration(i.until.Load()+i.epoch-g.now())).
				Msg("the worker's window could not be extended; IDs flow until it is used up")
		}
	} else {
		i.asked.Store(false)
	}
	i.mu.Lock()
	if err == nil && i.failing != nil {
		g.failLogged.Store(0)
		g.log.Info().Int64("worker", i.worker.ID()).Msg("the worker's window is extended again")
	}
	i.failing = err
	close(i.attempt)
	i.attempt = make(chan struct{})
	i.mu.Unlock()
	return err == nil
}

func (g *Generator) setWhy(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closing {
		g.why = err
	}
}

// noWorker is why there is no issuer.
func (g *Generator) noWorker() error {
	g.mu.Lock()
	err, running := g.why, g.running
	g.mu.Unlock()
	if err != nil {
		return err
	}
	if !running {
		return &NoWorkerError{Cause: errors.New("the snowflake engine has not been started")}
	}
	reason := g.ids.Status().Reason
	if reason == "" {
		reason = "a worker number is being acquired"
	}
	return &NoWorkerError{Cause: errors.New(reason)}
}
