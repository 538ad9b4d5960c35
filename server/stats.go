package server

import (
	"math/bits"
	"sync/atomic"
	"time"

	"redleaf/engine"
)

// Stats is a snapshot of what the server counts. Counts are since the start; CONFIG RESETSTAT does not change them (it sets
// the zero of INFO alone), so that Prometheus sees them only rise.
type Stats struct {
	Clients    int
	MaxClients int
	Accepted   uint64 // connections let in
	Rejected   uint64 // one too many
	Refused    uint64 // by protected mode

	ProtocolErrors uint64
	BytesIn        uint64
	BytesOut       uint64
	Panics         uint64
	AuthFailures   uint64
	LimitRefusals  uint64 // for want of a user's IDs per second

	Commands []CommandStats // every row that was called, by name
	Errors   []ErrorStats   // every word that was sent
	Reads    Histogram      // from the bytes' arrival to the last reply, per read
	Waits    Histogram      // per command that waited for an engine

	Paused     bool
	SlowlogLen int
}

// CommandStats counts one row of the command table. Calls are executions, Failed those of them that answered an error,
// Rejected what was refused before (arity, rights, MULTI's rules).
type CommandStats struct {
	Name                    string
	Calls, Failed, Rejected uint64
	Time                    time.Duration // of the reads it was part of, in proportion
}

// ErrorStats counts the errors that began with Word.
type ErrorStats struct {
	Word  string
	Count uint64
}

// Histogram counts durations. Bounds are upper ends in seconds, ascending; Counts has one more, for what is larger, and is
// not cumulative.
type Histogram struct {
	Bounds []float64
	Counts []uint64
	Sum    float64 // seconds
	Count  uint64
}

// shard is one of several sets of counters, so that cores do not pass one cache line around. A connection uses the same one
// all its life.
type shard struct {
	rows   []rowCounts
	errors []atomic.Uint64 // by index in words
	reads  histogram
	waits  histogram
	_      [64]byte
}

type rowCounts struct {
	calls, failed, rejected atomic.Uint64
	ns                      atomic.Uint64
}

func (s *shard) failed(word int) { s.errors[word].Add(1) }

const buckets = 25 // 1.024 µs, twice that, … 17 s

type histogram struct {
	counts [buckets + 1]atomic.Uint64
	sum    atomic.Int64 // ns
}

func (h *histogram) observe(ns int64) {
	i := 0
	if ns > 1024 {
		i = min(bits.Len64(uint64(ns-1)>>10), buckets)
	}
	h.counts[i].Add(1)
	h.sum.Add(ns)
}

func (h *histogram) addTo(to *Histogram) {
	for i := range h.counts {
		n := h.counts[i].Load()
		to.Counts[i] += n
		to.Count += n
	}
	to.Sum += time.Duration(h.sum.Load()).Seconds()
}

func newHistogram() Histogram {
	h := Histogram{Bounds: make([]float64, buckets), Counts: make([]uint64, buckets+1)}
	for i := range h.Bounds {
		h.Bounds[i] = (1024 * time.Nanosecond << i).Seconds()
	}
	return h
}

// Stats takes time in proportion to the number of clients; call it as often as a scrape.
func (s *Server) Stats() Stats {
	g := s.guard.Stats()
	st := Stats{
		Clients:        g.Clients,
		MaxClients:     int(s.guard.maxClients.Load()),
		Accepted:       g.Accepted,
		Rejected:       g.Rejected,
		Refused:        g.Refused,
		ProtocolErrors: g.ProtocolErrors,
		BytesIn:        g.BytesIn,
		BytesOut:       g.BytesOut,
		Panics:         s.panics.Load(),
		AuthFailures:   s.authFailures.Load(),
		Reads:          newHistogram(),
		Waits:          newHistogram(),
		Paused:         s.pause.on(),
		SlowlogLen:     s.slowlog.len(),
	}
	errors := make([]uint64, len(words))
	rows := make([]CommandStats, len(s.rows))
	for i := range s.shards {
		sh := &s.shards[i]
		for j := range sh.rows {
			rows[j].Calls += sh.rows[j].calls.Load()
			rows[j].Failed += sh.rows[j].failed.Load()
			rows[j].Rejected += sh.rows[j].rejected.Load()
			rows[j].Time += time.Duration(sh.rows[j].ns.Load())
		}
		for j := range sh.errors {
			errors[j] += sh.errors[j].Load()
		}
		sh.reads.addTo(&st.Reads)
		sh.waits.addTo(&st.Waits)
	}
	for i, r := range rows {
		if r.Calls+r.Rejected > 0 {
			r.Name = s.rows[i].full
			st.Commands = append(st.Commands, r)
		}
	}
	for i, n := range errors {
		if words[i] == engine.Limit {
			st.LimitRefusals = n
		}
		if n > 0 {
			st.Errors = append(st.Errors, ErrorStats{string(words[i]), n})
		}
	}
	return st
}
