// Package checker keeps every ID that a server acknowledged in a test, and says afterwards whether the promises held:
// none twice, in order on each connection, in order for requests that follow each other at one instance, inside what
// the store granted, each worker number in one hand, errors only of the words that were expected.
//
// A History takes the events of any number of clients and writes them to a file; Verify computes the verdict from the
// file alone, in bounded memory, so that it can be asked again later (scripts/checker/verify). Client is a load that
// records itself.
package checker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// SnowflakeKey is the key under which IDs of commands without a key are recorded.
const SnowflakeKey = "(snowflake)"

// Layout is how the IDs of a key hold a time, a worker number and a sequence.
type Layout struct {
	Epoch                  int64 // milliseconds
	Time, Worker, Sequence uint  // bits
}

// DefaultLayout is the one that redleaf has without settings.
var DefaultLayout = Layout{Epoch: 1288834974657, Time: 41, Worker: 10, Sequence: 12}

func (l Layout) worker(id int64) int64 { return id >> l.Sequence & (1<<l.Worker - 1) }
func (l Layout) time(id int64) int64   { return id >> (l.Sequence + l.Worker) }

// History collects the events of a test in a file. All methods are safe for concurrent use.
type History struct {
	start  time.Time
	conns  atomic.Uint64
	events atomic.Int64

	mu        sync.Mutex
	f         *os.File
	err       error // the first one; Close returns it
	strings   map[string]uint32
	recorders []*Recorder
	faults    uint64
	closed    bool
}

// Create starts a history in a new file, or over an old one.
func Create(path string) (*History, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("no history file: %w", err)
	}
	h := &History{start: time.Now(), f: f, strings: map[string]uint32{"": 0}}
	head := append([]byte(magic), version)
	head = binary.LittleEndian.AppendUint64(head, uint64(h.start.UnixNano()))
	if _, err := f.Write(head); err != nil {
		return nil, errors.Join(fmt.Errorf("no history file: %w", err), f.Close())
	}
	return h, nil
}

// Path returns the name of the file.
func (h *History) Path() string { return h.f.Name() }

// Now returns the time since the start, which is how events are dated.
func (h *History) Now() time.Duration { return time.Since(h.start) }

// write appends a block; h.mu is held.
func (h *History) write(kind byte, payload []byte) {
	if h.err != nil {
		return
	}
	if _, err := h.f.Write(appendBlock(nil, kind, payload)); err != nil {
		h.err = fmt.Errorf("the history is incomplete: %w", err)
	}
}

func (h *History) intern(s string) uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.internLocked(s)
}

func (h *History) internLocked(s string) uint32 {
	id, ok := h.strings[s]
	if !ok {
		id = uint32(len(h.strings))
		h.strings[s] = id
		h.write('s', append(binary.AppendUvarint(nil, uint64(id)), s...))
	}
	return id
}

func payload(v ...any) []byte {
	var b []byte
	for _, x := range v {
		switch x := x.(type) {
		case uint64:
			b = binary.AppendUvarint(b, x)
		case uint32:
			b = binary.AppendUvarint(b, uint64(x))
		case uint:
			b = binary.AppendUvarint(b, uint64(x))
		case int64:
			b = binary.AppendVarint(b, x)
		}
	}
	return b
}

// Snowflake says that the IDs recorded under key are snowflakes of this layout: worker numbers are checked, and order is
// only asked for while the worker number stays the same.
func (h *History) Snowflake(key string, l Layout) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.write('l', payload(h.internLocked(key), l.Epoch, l.Time, l.Worker, l.Sequence))
}

// Expect says which error words are no finding from now on, until the next call. A request that was under way at the change
// may have a word of either side. Before the first call every word is only counted.
func (h *History) Expect(words ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := make([]any, 0, len(words)+2)
	ids = append(ids, uint64(h.Now()), uint64(len(words)))
	for _, w := range words {
		ids = append(ids, h.internLocked(w))
	}
	h.write('x', payload(ids...))
}

// Fault is something that a test did to the system.
type Fault struct {
	h      *History
	number uint64
	name   uint32
}

// Fault notes that something is being broken.
func (h *History) Fault(name string) *Fault {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := &Fault{h, h.faults, h.internLocked(name)}
	h.faults++
	h.write('f', payload(f.number, uint64(h.Now()), f.name, uint64(0)))
	return f
}

// Cured notes that it was mended: the time until each client has an ID again is the recovery.
func (f *Fault) Cured() {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.h.write('f', payload(f.number, uint64(f.h.Now()), f.name, uint64(1)))
}

// Grant notes that the store granted first..last of a key, to an instance, or with "" to whomever. Once a key has a grant,
// every ID of it must be inside one, and inside one of its own instance where both are named.
func (h *History) Grant(key, instance string, first, last int64) {
	h.grant(0, key, instance, first, last)
}

// Return notes that an instance gave first..last back unused.
func (h *History) Return(key, instance string, first, last int64) {
	h.grant(1, key, instance, first, last)
}

func (h *History) grant(back uint64, key, instance string, first, last int64) {
	if first > last {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.write('g', payload(back, h.internLocked(key), h.internLocked(instance), first, last))
}

// Move notes a change of the row of a key in a table of Leaf's form, half-open as there: upwards it grants from..to-1,
// downwards it takes to..from-1 back. from is 0 for a new row, to is 0 for a deleted one, which takes nothing back.
func (h *History) Move(key string, from, to int64) {
	switch {
	case to == 0:
	case to > from:
		h.Grant(key, "", max(from, 1), to-1)
	default:
		h.Return(key, "", to, from-1)
	}
}

// HighWater says that every ID of the key must be below bound, what the store stands at when the test is over.
func (h *History) HighWater(key string, bound int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.write('h', payload(h.internLocked(key), bound))
}

// Close writes what the recorders hold and ends the file. Nothing may be recorded afterwards.
func (h *History) Close() error {
	h.mu.Lock()
	recorders := h.recorders
	closed := h.closed
	h.closed = true
	h.mu.Unlock()
	if closed {
		return nil
	}
	for _, r := range recorders {
		r.mu.Lock()
		r.flush()
		r.closed = true
		r.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.write('.', payload(uint64(h.events.Load())))
	return errors.Join(h.err, h.f.Close())
}

// Flush writes what the recorders hold.
func (h *History) Flush() {
	h.mu.Lock()
	recorders := h.recorders
	h.mu.Unlock()
	for _, r := range recorders {
		r.mu.Lock()
		r.flush()
		r.mu.Unlock()
	}
}

// Recorder takes the events of one client. Its events must be recorded in the order of their replies, with invoke times that
// do not go back: one goroutine, or one that waits for the others.
type Recorder struct {
	h      *History
	number uint64

	mu       sync.Mutex
	closed   bool
	buf      []byte
	count    uint64
	since    int64 // return time of the first event in buf
	conn     uint64
	instance uint32

	// What the events in buf were last, for the deltas.
	fresh                bool // nothing yet
	invoke, ret, id      int64
	key, cmd             uint32
	saidConn             uint64
	saidInstance         uint32
	lastInvoke           int64 // over all blocks
	keyString, cmdString string
	keyNumber, cmdNumber uint32
	known                map[string]uint32
}

// Recorder makes a recorder. The name is for people.
func (h *History) Recorder(name string) *Recorder {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &Recorder{h: h, number: uint64(len(h.recorders)), known: map[string]uint32{"": 0}, fresh: true}
	h.recorders = append(h.recorders, r)
	h.write('r', payload(r.number, h.internLocked(name)))
	return r
}

// Conn begins a new connection to an instance: its IDs must increase for each key, whatever came before it. Name the
// life of a process, "a#2", not only its address.
func (r *Recorder) Conn(instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conn, r.instance = r.h.conns.Add(1), r.intern(instance)
}

// Pool says that the connection is not known from now on, as with a client that keeps several: no order by connection is
// asked for. Without an instance ("") none by time either.
func (r *Recorder) Pool(instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conn, r.instance = 0, r.intern(instance)
}

// ID records that a command was answered by an ID. invoke is when the request was sent, before any byte of it; ret is when the
// reply was there, or later. Both are History.Now.
func (r *Recorder) ID(cmd, key string, invoke, ret time.Duration, id int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin(kindID, cmd, key, invoke, ret, 0)
	r.putID(id)
	r.end()
}

// Range records that first..last now belong to the client. INCRBY key n that is answered by r is the range r-n+1..r.
func (r *Recorder) Range(cmd, key string, invoke, ret time.Duration, first, last int64) {
	if last < first {
		// An answer that owns nothing is as wrong as one that is no ID.
		r.IDs(cmd, key, invoke, ret, []int64{first, last})
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin(kindRange, cmd, key, invoke, ret, 0)
	r.putID(first)
	r.buf = binary.AppendUvarint(r.buf, uint64(last-first))
	r.id = last
	r.end()
}

// IDs records an array of IDs, in its order.
func (r *Recorder) IDs(cmd, key string, invoke, ret time.Duration, ids []int64) {
	if len(ids) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin(kindList, cmd, key, invoke, ret, 0)
	r.buf = binary.AppendUvarint(r.buf, uint64(len(ids)))
	for _, id := range ids {
		r.putID(id)
	}
	r.end()
}

// Error records that a command was refused, with the first word of the error.
func (r *Recorder) Error(cmd, key string, invoke, ret time.Duration, word string) {
	if word == "" {
		word = "(empty)"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin(kindNone, cmd, key, invoke, ret, r.intern(word))
	r.end()
}

// Lost records that no reply came: the connection broke or the wait was given up at ret.
func (r *Recorder) Lost(cmd, key string, invoke, ret time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin(kindNone, cmd, key, invoke, ret, 0)
	r.end()
}

func (r *Recorder) intern(s string) uint32 {
	id, ok := r.known[s]
	if !ok {
		id = r.h.intern(s)
		r.known[s] = id
	}
	return id
}

func (r *Recorder) begin(kind byte, cmd, key string, invoke, ret time.Duration, word uint32) {
	if r.closed {
		panic("checker: an event was recorded after History.Close")
	}
	if int64(invoke) < r.lastInvoke {
		// Order by time could not be checked exactly, and a wrong verdict is worse than none.
		panic(fmt.Sprintf("checker: an event invoked at %v is recorded after one invoked at %v", invoke, time.Duration(r.lastInvoke)))
	}
	if ret < invoke {
		panic(fmt.Sprintf("checker: an event invoked at %v returned at %v", invoke, ret))
	}
	if cmd != r.cmdString || r.cmdNumber == 0 {
		r.cmdString, r.cmdNumber = cmd, r.intern(cmd)
	}
	if key != r.keyString || r.keyNumber == 0 {
		r.keyString, r.keyNumber = key, r.intern(key)
	}
	flags := kind
	if r.fresh {
		r.since = int64(ret)
	}
	if r.fresh || r.conn != r.saidConn || r.instance != r.saidInstance {
		flags |= flagConn
	}
	if r.fresh || r.keyNumber != r.key {
		flags |= flagKey
	}
	if r.fresh || r.cmdNumber != r.cmd {
		flags |= flagCmd
	}
	if word != 0 {
		flags |= flagWord
	}
	b := append(r.buf, flags)
	b = binary.AppendVarint(b, int64(invoke)-r.invoke)
	b = binary.AppendVarint(b, int64(ret)-r.ret)
	if flags&flagConn != 0 {
		b = binary.AppendUvarint(b, r.conn)
		b = binary.AppendUvarint(b, uint64(r.instance))
	}
	if flags&flagKey != 0 {
		b = binary.AppendUvarint(b, uint64(r.keyNumber))
	}
	if flags&flagCmd != 0 {
		b = binary.AppendUvarint(b, uint64(r.cmdNumber))
	}
	if word != 0 {
		b = binary.AppendUvarint(b, uint64(word))
	}
	r.buf = b
	r.fresh = false
	r.invoke, r.ret, r.lastInvoke = int64(invoke), int64(ret), int64(invoke)
	r.saidConn, r.saidInstance, r.key, r.cmd = r.conn, r.instance, r.keyNumber, r.cmdNumber
}

func (r *Recorder) putID(id int64) {
	r.buf = binary.AppendVarint(r.buf, id-r.id)
	r.id = id
}

// end counts the event, and writes the block when it is full or has waited for a second: a test that is killed loses little.
func (r *Recorder) end() {
	r.count++
	if len(r.buf) >= blockSize || r.ret-r.since > int64(time.Second) {
		r.flush()
	}
}

func (r *Recorder) flush() {
	if r.count == 0 {
		return
	}
	head := binary.AppendUvarint(nil, r.number)
	head = binary.AppendUvarint(head, r.count)
	r.h.mu.Lock()
	r.h.write('e', append(head, r.buf...))
	r.h.mu.Unlock()
	r.h.events.Add(int64(r.count))
	r.buf, r.count, r.fresh = r.buf[:0], 0, true
	r.invoke, r.ret, r.id = 0, 0, 0
}
