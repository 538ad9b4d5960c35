package segment

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// saveWait bounds the wait for a floor to be durable. A disk that hangs longer is alarmed, and IDs flow: the floor is in force
// in memory from the grant on, and goes along with each Reserve.
const saveWait = 2 * time.Second

// saver writes floors in groups: what comes while a Save is under way goes with the next one.
type saver struct {
	mu      sync.Mutex
	batch   *saveBatch // what the next Save takes; nil: nothing
	running bool
	idle    chan struct{} // closed when the run that is under way ends
	closed  bool
	err     error // of the last Save
	since   time.Duration
}

type saveBatch struct {
	floors map[string]int64
	done   chan struct{}
	err    error
}

// saveFloor makes t's floor durable, at best effort, before a span below it is used (I6).
func (a *Allocator) saveFloor(t *tag, floor int64) {
	if a.floors == nil {
		return
	}
	b := a.saveLater(t.name, floor)
	if b == nil {
		return
	}
	if a.awaitSave(b, t.name, floor) {
		t.mu.Lock()
		t.saved = max(t.saved, floor)
		t.mu.Unlock()
	}
}

// awaitSave waits until b is saved, failed, or late, and reports whether it is saved.
func (a *Allocator) awaitSave(b *saveBatch, tag string, floor int64) bool {
	timer := time.NewTimer(saveWait)
	defer timer.Stop()
	select {
	case <-b.done:
		return b.err == nil
	case <-timer.C:
		a.o.Log.Error().Str("tag", tag).Int64("floor", floor).Msg("data_dir does not answer: floors are kept in memory only")
		return false
	}
}

// saveLater adds a floor to the next Save. It returns nil when no Save follows any more.
func (a *Allocator) saveLater(tag string, floor int64) *saveBatch {
	s := &a.saver
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if s.batch == nil {
		s.batch = &saveBatch{floors: map[string]int64{}, done: make(chan struct{})}
	}
	b := s.batch
	b.floors[tag] = max(b.floors[tag], floor)
	if !s.running {
		s.running = true
		s.idle = make(chan struct{})
		a.wg.Go(a.save)
	}
	return b
}

func (a *Allocator) save() {
	s := &a.saver
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.batch != nil {
		b := s.batch
		s.batch = nil
		s.mu.Unlock()
		history, _ := a.health.line()
		b.err = a.floors.Save(history, b.floors)
		s.mu.Lock()
		if b.err != nil && s.err == nil {
			s.since = a.o.Now()
			a.o.Log.Error().Err(b.err).Msg("floors can't be written to data_dir: they are kept in memory only. Free space or make it writable; until then a restart would not know them")
		}
		if b.err == nil && s.err != nil {
			a.o.Log.Info().Msg("floors are written to data_dir again")
		}
		s.err = b.err
		close(b.done)
	}
	s.running = false
	close(s.idle)
}

// stopSaving lets no more floors be saved and waits until those under way are, or ctx ends: it reports whether they are. A floor
// that is saved after it was lowered would stand above the row at the next start.
func (a *Allocator) stopSaving(ctx context.Context) bool {
	s := &a.saver
	s.mu.Lock()
	s.closed = true
	running, idle := s.running, s.idle
	s.mu.Unlock()
	if !running {
		return true
	}
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// storedFloor is what is known of a tag's floor from before it was loaded. An error means that nothing is known, which is not
// the same as none (I11): no row may be made then.
func (a *Allocator) storedFloor(tag string) (int64, error) {
	if a.floors == nil {
		return 0, nil
	}
	history, _ := a.health.line()
	floor, err := a.floors.Floor(history, tag)
	if err != nil {
		a.o.Log.Error().Err(err).Str("tag", tag).Msg("the tag's floor can't be read from data_dir")
		return 0, &RefusedError{fmt.Errorf("tag '%s': its floor can't be read from data_dir, so nobody knows what was handed out: %w. Repair the disk", tag, err)}
	}
	return floor, nil
}
