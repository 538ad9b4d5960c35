// Package engine is Redleaf behind the wire: it holds the two engines together, decides what may be asked of them and when
// they serve, and turns every failure into one of a few words. It has two consumers, RESP (server) and HTTP (server/admin).
//
// Reading path of INCR: server/server.go → server/cmd_segment.go → TryIncr or Incr here → segment/segment.go.
package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tidwall/match"

	"redleaf/segment"
	"redleaf/snowflake"
)

// Options says what the engine is made of. A nil engine is off.
type Options struct {
	Segment   *segment.Allocator
	Snowflake *snowflake.Generator

	// SnowflakeKeys are glob patterns of keys for which INCR answers a snowflake, for clients that can't send SNOWFLAKE.NEXT.
	SnowflakeKeys []string

	Layout snowflake.Layout // of SNOWFLAKE.PARSE, which works with the engine off too

	Wait         time.Duration // segment.wait: a read's patience with refills
	StartTimeout time.Duration // how long LOADING is answered before the cause is
	MaxCount     int64         // largest INCRBY or RANGE
	MaxArray     int64         // largest COUNT
}

// Engine is safe for concurrent use.
type Engine struct {
	o        Options
	started  time.Time
	draining atomic.Bool
}

// New puts the engines together. Both may still be starting.
func New(o Options) *Engine { return &Engine{o: o, started: time.Now()} }

// Wait is the patience of one read: all commands that came in together share one deadline, and once a tag made a command
// wait in vain the rest of that tag's commands fail at once (I12). The zero value is ready; call Reset between reads. It
// belongs to one connection and is not safe for concurrent use.
type Wait struct {
	ctx    context.Context
	cancel context.CancelFunc
	tired  map[string]error
}

// Reset begins a new read. It costs nothing when the last read waited for nothing.
func (w *Wait) Reset() {
	if w.ctx == nil {
		return
	}
	w.cancel()
	*w = Wait{}
}

// Waited says whether a command of this read had to wait.
func (w *Wait) Waited() bool { return w.ctx != nil }

func (w *Wait) context(limit time.Duration) context.Context {
	if w.ctx == nil {
		w.ctx, w.cancel = context.WithTimeout(context.Background(), limit)
	}
	return w.ctx
}

// TryIncr is INCR and INCRBY on a warm key: no lock, no allocation, no clock, no I/O (I15). ok false means nothing was taken
// and Incr has the answer.
func (e *Engine) TryIncr(key []byte, n int64) (last int64, ok bool) {
	if len(e.o.SnowflakeKeys) > 0 && e.IsSnowflakeKey(key) {
		if n != 1 {
			return 0, false
		}
		return e.TrySnowflake()
	}
	if e.o.Segment == nil || n < 1 || n > e.o.MaxCount {
		return 0, false
	}
	return e.o.Segment.TryTake(key, n)
}

// Incr takes n contiguous IDs of key, (last-n, last]. It may wait, as long as w's read may.
func (e *Engine) Incr(w *Wait, key []byte, n int64) (last int64, err error) {
	if e.IsSnowflakeKey(key) {
		if n != 1 {
			return 0, errorf(PlainError, "'%s' gives snowflakes (snowflake.keys): they don't come in contiguous ranges; use INCR, or SNOWFLAKE.NEXT COUNT", key)
		}
		return e.Snowflake(w)
	}
	tag, err := e.tag(key)
	if err != nil {
		return 0, err
	}
	if n < 1 || n > e.o.MaxCount {
		return 0, errorf(PlainError, "the increment is %d: counters only move forward, by 1 to %d at a time (segment.max_count)", n, e.o.MaxCount)
	}
	if err := w.tired[tag]; err != nil {
		return 0, err
	}
	last, err = e.o.Segment.Take(w.context(e.o.Wait), tag, n)
	w.note(tag, err)
	return last, named(tag, err)
}

// NextIDs appends n IDs of key to dst, increasing but not always contiguous. On an error dst comes back as it was.
func (e *Engine) NextIDs(w *Wait, dst []int64, key []byte, n int64) ([]int64, error) {
	if e.IsSnowflakeKey(key) {
		return e.Snowflakes(w, dst, n)
	}
	tag, err := e.tag(key)
	if err != nil {
		return dst, err
	}
	if n < 1 || n > e.o.MaxArray {
		return dst, errorf(PlainError, "COUNT is %d: 1 to %d at a time (segment.max_array); SEGMENT.RANGE takes more", n, e.o.MaxArray)
	}
	if err := w.tired[tag]; err != nil {
		return dst, err
	}
	got, err := e.o.Segment.TakeMany(w.context(e.o.Wait), dst, tag, n)
	w.note(tag, err)
	if err != nil {
		return dst, named(tag, err)
	}
	return got, nil
}

// note remembers a tag that made this read wait in vain.
func (w *Wait) note(tag string, err error) {
	if err == nil {
		return
	}
	if word, _ := Explain(err); word == TryAgain {
		if w.tired == nil {
			w.tired = make(map[string]error)
		}
		w.tired[tag] = err
	}
}

// Warm starts the load of a cold key and does not wait, so that the cold keys of one read load together.
func (e *Engine) Warm(key []byte) {
	if e.o.Segment != nil && e.o.Segment.Ready() == nil && CheckKey(key) == nil && !e.IsSnowflakeKey(key) {
		e.o.Segment.Load(string(key))
	}
}

// IsSnowflakeKey says whether INCR of key answers a snowflake.
func (e *Engine) IsSnowflakeKey(key []byte) bool {
	for _, p := range e.o.SnowflakeKeys {
		if match.Match(string(key), p) {
			return true
		}
	}
	return false
}

// TrySnowflake is SNOWFLAKE.NEXT where nothing has to be waited for.
func (e *Engine) TrySnowflake() (id int64, ok bool) {
	if e.o.Snowflake == nil {
		return 0, false
	}
	return e.o.Snowflake.TryNext()
}

// Snowflake is one snowflake.
func (e *Engine) Snowflake(w *Wait) (int64, error) {
	if err := e.snowflakeOn(); err != nil {
		return 0, err
	}
	id, err := e.o.Snowflake.Next(w.context(e.o.Wait))
	return id, e.snowflakeRefused(err)
}

// Snowflakes appends n increasing snowflakes to dst. On an error dst comes back as it was.
func (e *Engine) Snowflakes(w *Wait, dst []int64, n int64) ([]int64, error) {
	if err := e.snowflakeOn(); err != nil {
		return dst, err
	}
	if n < 1 || n > e.o.MaxArray {
		return dst, errorf(PlainError, "COUNT is %d: 1 to %d at a time (segment.max_array)", n, e.o.MaxArray)
	}
	got, err := e.o.Snowflake.Append(w.context(e.o.Wait), dst, int(n))
	if err != nil {
		return dst, e.snowflakeRefused(err)
	}
	return got, nil
}

// Parse takes a snowflake apart by the layout in force.
func (e *Engine) Parse(id int64) (snowflake.Parts, error) {
	p, err := e.o.Layout.Unpack(id)
	if err != nil {
		return p, errorf(PlainError, "%s", err)
	}
	return p, nil
}

// TryLast is GET where the last ID is at hand: no lock, no allocation, no I/O. ok false means that Last has the answer.
func (e *Engine) TryLast(key []byte) (last int64, ok bool) {
	if e.o.Segment == nil || (len(e.o.SnowflakeKeys) > 0 && e.IsSnowflakeKey(key)) {
		return 0, false
	}
	return e.o.Segment.TryLast(key)
}

// Last is GET: the last ID handed out here; for a tag not used here yet, the row's bound - 1. It consumes nothing.
func (e *Engine) Last(w *Wait, key []byte) (last int64, exists bool, err error) {
	if e.IsSnowflakeKey(key) {
		if e.o.Snowflake == nil {
			return 0, false, e.snowflakeOn()
		}
		last = e.o.Snowflake.Last()
		return last, last != 0, nil
	}
	tag, err := e.tag(key)
	if err != nil {
		return 0, false, err
	}
	return e.o.Segment.Last(w.context(e.o.Wait), tag)
}

// Set is SET and SETNX: see segment.Allocator.Set for what OK means.
func (e *Engine) Set(w *Wait, key []byte, n int64, mode segment.SetMode) (done bool, err error) {
	if e.IsSnowflakeKey(key) {
		return false, errorf(PlainError, "'%s' gives snowflakes (snowflake.keys): they can't be set", key)
	}
	tag, err := e.tag(key)
	if err != nil {
		return false, err
	}
	return e.o.Segment.Set(w.context(e.o.Wait), tag, n, mode)
}

// Create makes a tag; false means that it was there already.
func (e *Engine) Create(w *Wait, key []byte, row segment.Row) (bool, error) {
	if e.IsSnowflakeKey(key) {
		return false, errorf(PlainError, "'%s' gives snowflakes (snowflake.keys): a tag of that name would never be used", key)
	}
	tag, err := e.tag(key)
	if err != nil {
		return false, err
	}
	row.Tag = tag
	return e.o.Segment.Create(w.context(e.o.Wait), row)
}

// Info describes a tag.
func (e *Engine) Info(w *Wait, key []byte) (segment.TagInfo, error) {
	tag, err := e.tag(key)
	if err != nil {
		return segment.TagInfo{}, err
	}
	info, err := e.o.Segment.Info(w.context(e.o.Wait), tag)
	return info, named(tag, err)
}

// Exists counts how many of keys name a tag, duplicates counted as Redis does. A key that no tag can have does not exist.
// A store that can't be asked is an error, never "no" (I11).
func (e *Engine) Exists(w *Wait, keys [][]byte) ([]bool, error) {
	if err := e.segmentReady(); err != nil {
		return nil, err
	}
	out := make([]bool, len(keys))
	ask := make([]string, 0, len(keys))
	for i, k := range keys {
		switch {
		case e.IsSnowflakeKey(k):
			out[i] = e.o.Snowflake != nil && e.o.Snowflake.Last() != 0
		case CheckKey(k) == nil:
			ask = append(ask, string(k))
		}
	}
	if len(ask) == 0 {
		return out, nil
	}
	there, err := e.o.Segment.Exists(w.context(e.o.Wait), ask)
	if err != nil {
		return nil, err
	}
	for i, k := range keys {
		out[i] = out[i] || there[string(k)]
	}
	return out, nil
}

// List pages through the store's tags in byte order; next is "" at the end.
func (e *Engine) List(w *Wait, match, after string, limit int) (rows []segment.Row, next string, err error) {
	if err := e.segmentReady(); err != nil {
		return nil, "", err
	}
	return e.o.Segment.List(w.context(e.o.Wait), match, after, limit)
}

// Count is the number of tags, at most 5 s old.
func (e *Engine) Count(w *Wait) (int64, error) {
	if err := e.segmentReady(); err != nil {
		return 0, err
	}
	return e.o.Segment.Count(w.context(e.o.Wait))
}

// Version changes whenever key moves on this instance; WATCH compares it.
func (e *Engine) Version(key []byte) uint64 {
	if e.IsSnowflakeKey(key) && e.o.Snowflake != nil {
		return uint64(e.o.Snowflake.Last())
	}
	if e.o.Segment == nil {
		return 0
	}
	return e.o.Segment.Version(string(key))
}

// SegmentOn and SnowflakeOn say which engines there are; Layout is that of the snowflakes.
func (e *Engine) SegmentOn() bool              { return e.o.Segment != nil }
func (e *Engine) SnowflakeOn() bool            { return e.o.Snowflake != nil }
func (e *Engine) Layout() snowflake.Layout     { return e.o.Layout }
func (e *Engine) Limits() (count, array int64) { return e.o.MaxCount, e.o.MaxArray }

// tag checks that the segment engine serves and that key may name a tag.
func (e *Engine) tag(key []byte) (string, error) {
	if err := e.segmentReady(); err != nil {
		return "", err
	}
	if err := CheckKey(key); err != nil {
		return "", err
	}
	return string(key), nil
}

func (e *Engine) segmentReady() error {
	if e.o.Segment == nil {
		return errorf(Disabled, "the segment engine is off: set segment.store to local or mysql")
	}
	return e.gate(e.o.Segment.Ready())
}

func (e *Engine) snowflakeOn() error {
	if e.o.Snowflake == nil {
		return errorf(Disabled, "the snowflake engine is off: set snowflake.registry to zookeeper, or to local with a worker_id of its own")
	}
	return nil
}

// snowflakeRefused is what becomes of the generator's refusal. The generator is asked even when it is known not to be ready:
// it counts what it refuses, and raises the alarm. It is starting only as long as it never issued anything.
func (e *Engine) snowflakeRefused(err error) error {
	if err == nil || e.o.Snowflake.Last() != 0 {
		return err
	}
	return e.gate(err)
}

// gate answers LOADING for the first start_timeout, then the cause: a client that retries must not do so for ever.
func (e *Engine) gate(cause error) error {
	if cause == nil {
		return nil
	}
	if time.Since(e.started) < e.o.StartTimeout {
		return &Error{Word: Loading, Text: "this engine is starting: " + cause.Error(), Cause: cause}
	}
	return cause
}
