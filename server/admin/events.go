package admin

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

const shownEvents = 20

// Events keeps the last log lines for the page and counts all of them for the metrics. It is a zerolog.Hook; the message alone is
// kept, which never holds a secret (I13). The zero value is ready, and a nil one keeps nothing. Safe for concurrent use.
type Events struct {
	counts [zerolog.PanicLevel + 1]atomic.Uint64

	mu   sync.Mutex
	ring []event // oldest first
}

type event struct {
	at    time.Time
	level string
	text  string
}

// Run implements zerolog.Hook.
func (e *Events) Run(_ *zerolog.Event, level zerolog.Level, msg string) {
	if level < zerolog.InfoLevel || level > zerolog.PanicLevel || msg == "" {
		return
	}
	e.counts[level].Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.ring) == shownEvents {
		e.ring = append(e.ring[:0], e.ring[1:]...)
	}
	e.ring = append(e.ring, event{time.Now(), level.String(), msg})
}

// last returns the events, newest first.
func (e *Events) last() []event {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]event, 0, len(e.ring))
	for i := len(e.ring) - 1; i >= 0; i-- {
		out = append(out, e.ring[i])
	}
	return out
}

// written is how many lines of a level were logged.
func (e *Events) written(level zerolog.Level) uint64 {
	if e == nil {
		return 0
	}
	return e.counts[level].Load()
}
