package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"redleaf/segment"
	"redleaf/snowflake"
)

// Health says whether a request would be served now, engine by engine.
type Health struct {
	Segment, Snowflake EngineHealth
	Draining           bool
}

// EngineHealth is one engine's part. Reason is empty while Ready.
type EngineHealth struct {
	On     bool   `json:"on"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
}

// Health is cheap enough for a probe each second. It turns red when a request would fail, not when a backend hiccups: while
// buffered IDs last, a database that is down leaves it green. One REGRESSED tag never turns it red.
func (e *Engine) Health() Health {
	h := Health{Draining: e.draining.Load()}
	if e.o.Segment != nil {
		h.Segment.On = true
		h.Segment.Reason = reason(e.segmentHealth())
		h.Segment.Ready = h.Segment.Reason == "" && !h.Draining
	}
	if e.o.Snowflake != nil {
		h.Snowflake.On = true
		h.Snowflake.Reason = reason(e.o.Snowflake.Ready())
		h.Snowflake.Ready = h.Snowflake.Reason == "" && !h.Draining
	}
	return h
}

func (e *Engine) segmentHealth() error {
	if err := e.o.Segment.Ready(); err != nil {
		return err
	}
	down := e.o.Segment.StoreErr()
	if pause := e.o.Segment.Paused(); down == nil && pause > 0 {
		down = fmt.Errorf("the store went back or has just started: no grants for another %s, until every instance has compared its rows", pause.Round(time.Millisecond))
	}
	if down == nil {
		return nil
	}
	for _, t := range e.o.Segment.Tags(1) { // the busiest first: while it has IDs, somebody is served
		if t.Remaining > 0 {
			return nil
		}
	}
	return down
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Loading says whether no engine is ready yet, which is when INFO says loading:1.
func (e *Engine) Loading() bool {
	seg := e.o.Segment != nil && e.o.Segment.Ready() == nil
	snow := e.o.Snowflake != nil && e.o.Snowflake.Ready() == nil
	off := e.o.Segment == nil && e.o.Snowflake == nil
	return !seg && !snow && !off && time.Since(e.started) < e.o.StartTimeout
}

// Stats is what INFO, /metrics and the status page show.
type Stats struct {
	Segment   segment.Stats
	Snowflake snowflake.Status
	Uptime    time.Duration
}

func (e *Engine) Stats() Stats {
	s := Stats{Uptime: time.Since(e.started)}
	if e.o.Segment != nil {
		s.Segment = e.o.Segment.Stats()
	}
	if e.o.Snowflake != nil {
		s.Snowflake = e.o.Snowflake.Status()
	}
	return s
}

// Tags lists up to most tags in memory, the busiest first.
func (e *Engine) Tags(most int) []segment.TagInfo {
	if e.o.Segment == nil {
		return nil
	}
	return e.o.Segment.Tags(most)
}

// Stopped lists up to most tags that are stopped (REGRESSED), by name; they need not be among Tags.
func (e *Engine) Stopped(most int) []segment.TagInfo {
	if e.o.Segment == nil {
		return nil
	}
	return e.o.Segment.Stopped(most)
}

// RefillBounds are the upper bounds, in seconds, of Stats.Segment.RefillBuckets.
func RefillBounds() []float64 { return segment.RefillBounds[:] }

// Drain turns readiness red: the first step of a stop, so that balancers look elsewhere while requests still flow.
func (e *Engine) Drain() { e.draining.Store(true) }

// Close seals both engines: spans go back, the worker number is released. Requests that come later are refused.
func (e *Engine) Close(ctx context.Context) error {
	e.Drain()
	var errs []error
	if e.o.Segment != nil {
		errs = append(errs, e.o.Segment.Close(ctx))
	}
	if e.o.Snowflake != nil {
		errs = append(errs, e.o.Snowflake.Close(ctx))
	}
	return errors.Join(errs...)
}
