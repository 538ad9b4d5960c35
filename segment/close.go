package segment

import (
	"context"
	"sync"
	"time"
)

// giveBacks is how many tails go back at one time, at least.
const giveBacks = 32

// Close stops handing out and, as far as ctx leaves time, gives back what was not used, so that a single instance which is
// stopped cleanly leaves no hole. It does not close the store.
//
// The order keeps every ID unique: each span is sealed first, by one atomic exchange that also tells what was given. Then the
// floor on disk is lowered to the end of what was given, durably: were the row lowered first and the process killed, the next start would take
// the row for one that went back. Then the row moves down, only if it still stands at the tail's end, on the server that
// granted it (I4). A tag that saw a SET, a store that went back or an unknown result since its tail was granted keeps its
// hole.
func (a *Allocator) Close(ctx context.Context) error {
	if !a.closed.CompareAndSwap(false, true) {
		return nil
	}
	// No check may read a row that is about to move down, or a floor that is about to be lowered.
	a.endLoop()
	a.loops.Wait()

	// What is in flight comes home first: a span that arrives now goes back with the rest.
	a.queue.mu.Lock()
	a.queue.closed = true
	a.queue.mu.Unlock()
	var all []*tag
	a.tags.all(func(t *tag) { all = append(all, t) })
	for _, t := range all {
		t.mu.Lock()
		a.failWaiters(t, ErrClosed, nil)
		if t.job != nil && !t.job.running {
			a.end(t)
		}
		t.mu.Unlock()
	}
	a.quiet(ctx)

	type tail struct {
		t      *tag
		span   Span
		server string
		floor  int64
	}
	var tails []tail
	for _, t := range all {
		t.mu.Lock()
		span, server := a.sealTail(t)
		// The end of what was really given, which may lie below the tail: another instance may hold what is between, stop after
		// us, and give that back. The row then stands below our tail, and nothing is wrong.
		floor := t.given
		if t.issued > 0 || t.sets > 0 {
			floor = max(floor, t.last+1)
		}
		t.mu.Unlock()
		if span.Len() > 0 && server != "" {
			tails = append(tails, tail{t, span, server, floor})
		}
	}
	// Tails that would make the stop late stay holes: a part of the time is kept for the rest of it.
	giving, cancel := ctx, func() {}
	if end, ok := ctx.Deadline(); ok {
		giving, cancel = context.WithDeadline(ctx, end.Add(-time.Until(end)/5))
	}
	defer cancel()
	var back, hole counter
	if !a.stopSaving(giving) {
		a.o.Log.Warn().Msg("data_dir does not answer: no floor can be lowered, so the tails stay holes")
		for _, w := range tails {
			hole.add(w.span.Len())
		}
		tails = nil
	}
	work := make(chan tail)
	var wg sync.WaitGroup
	for range min(max(giveBacks, a.o.MaxRefills), len(tails)) {
		wg.Go(func() {
			for w := range work {
				if a.giveBack(giving, w.t, w.span, w.server, w.floor) {
					back.add(w.span.Len())
				} else {
					hole.add(w.span.Len())
				}
			}
		})
	}
	for _, w := range tails {
		if giving.Err() != nil {
			hole.add(w.span.Len())
			continue
		}
		work <- w
	}
	close(work)
	wg.Wait()

	a.cancel()
	err := waitFor(ctx, &a.wg)
	a.o.Log.Info().Int64("given_back", back.load()).Int64("kept", hole.load()).Msg("segment engine stopped")
	return err
}

// quiet waits until no refill is running, or ctx ends.
func (a *Allocator) quiet(ctx context.Context) {
	a.queue.mu.Lock()
	busy := a.queue.workers
	a.queue.mu.Unlock()
	if busy == 0 {
		return
	}
	select {
	case <-a.queue.idle:
	case <-ctx.Done():
	}
}

// sealTail seals what t holds and returns the last run of it that ends at the highest bound granted here, and who granted it;
// nothing where it may not go back. The caller holds t.mu.
func (a *Allocator) sealTail(t *tag) (Span, string) {
	cur := t.cur.Load()
	from, left := a.retire(t)
	tail, server, taint := Span{from, from + left}, cur.server, cur.taint
	for s := t.next; s != nil; s = s.next {
		if s.lo != tail.Hi || tail.Len() == 0 || s.server != server || s.taint != taint {
			tail, server, taint = Span{s.lo, s.lo}, s.server, s.taint
		}
		tail.Hi = s.hi()
	}
	t.next = nil
	running := t.job != nil && t.job.running // a refill did not come home: its result is unknown
	t.trouble = &trouble{err: ErrClosed, stop: true}
	if running || tail.Hi != t.floor || taint != a.taint(t) {
		return Span{}, ""
	}
	if invariants && tail.Len() > 0 {
		check(tail.Lo > t.last, "tag %q: tail [%d, %d) after %d", t.name, tail.Lo, tail.Hi, t.last)
	}
	return tail, a.serverName(server)
}

// giveBack moves one tail back to the store.
func (a *Allocator) giveBack(ctx context.Context, t *tag, tail Span, server string, floor int64) bool {
	if a.floors != nil {
		history, _ := a.health.line()
		lowered := make(chan error, 1)
		go func() { lowered <- a.floors.Lower(history, t.name, min(floor, tail.Lo)) }()
		var err error
		select {
		case err = <-lowered:
		case <-ctx.Done(): // a disk that hangs must not hold up the stop; a floor lowered later than this does no harm: the row stays above
			err = ctx.Err()
		}
		if err != nil {
			a.o.Log.Warn().Err(err).Str("tag", t.name).Msg("the floor could not be lowered: the tail stays a hole")
			return false
		}
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	done, err := a.store.GiveBack(ctx, t.name, tail, server)
	if err != nil {
		a.o.Log.Warn().Err(err).Str("tag", t.name).Int64("from", tail.Lo).Int64("to", tail.Hi).Msg("the tail may not have gone back")
	}
	return done && err == nil
}

// waitFor waits for wg, or until ctx ends and a little longer.
func waitFor(ctx context.Context, wg *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return ctx.Err()
	}
}
