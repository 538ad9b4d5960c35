package server

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// slowlogMax is how many entries SLOWLOG keeps, as in Redis.
const slowlogMax = 128

// slowlog keeps the commands that waited longest for an engine: here that is what slow means. Nothing that carries a
// password waits, so none is ever kept (I13).
type slowlog struct {
	mu      sync.Mutex
	nextID  int64
	entries []slowEntry // oldest first
}

type slowEntry struct {
	id         int64
	at         time.Time
	took       time.Duration
	args       []string
	addr, name string
}

// add notes the command that c runs. Of long commands it keeps what Redis does: 32 arguments, 128 bytes of each.
func (l *slowlog) add(c *conn, took time.Duration) {
	const most, longest = 32, 128
	var args []string
	for i, a := range c.args {
		if i == most-1 && len(c.args) > most {
			args = append(args, fmt.Sprintf("... (%d more arguments)", len(c.args)-most+1))
			break
		}
		if len(a) > longest {
			args = append(args, fmt.Sprintf("%s... (%d more bytes)", a[:longest], len(a)-longest))
			continue
		}
		args = append(args, string(a))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) == slowlogMax {
		l.entries = slices.Delete(l.entries, 0, 1)
	}
	l.entries = append(l.entries, slowEntry{l.nextID, time.Now(), took, args, c.addr, c.name})
	l.nextID++
}

func (l *slowlog) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

func (l *slowlog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = nil
}

// newest returns up to n entries, the newest first; n < 0 means all.
func (l *slowlog) newest(n int64) []slowEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < 0 || n > int64(len(l.entries)) {
		n = int64(len(l.entries))
	}
	out := slices.Clone(l.entries[int64(len(l.entries))-n:])
	slices.Reverse(out)
	return out
}

// latency keeps the last and the worst of each kind of wait over the slow log's threshold, for LATENCY LATEST.
type latency struct {
	mu     sync.Mutex
	events map[string]latencyEvent
}

type latencyEvent struct {
	at           time.Time
	latest, most time.Duration
}

func (l *latency) add(event string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.events == nil {
		l.events = make(map[string]latencyEvent)
	}
	l.events[event] = latencyEvent{time.Now(), took, max(took, l.events[event].most)}
}

// reset forgets the events named, or all, and returns how many those were.
func (l *latency) reset(names ...string) (n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(names) == 0 {
		n = int64(len(l.events))
		l.events = nil
	}
	for _, name := range names {
		if _, ok := l.events[name]; ok {
			delete(l.events, name)
			n++
		}
	}
	return n
}

func (l *latency) list() (names []string, events []latencyEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.events {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		events = append(events, l.events[name])
	}
	return names, events
}
