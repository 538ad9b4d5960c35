package segment

import (
	"encoding/binary"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// tag is one tag in memory. A warm one costs about 330 bytes, span, name and slot included, so what only some tags need
// stands behind a pointer.
type tag struct {
	// The hot path reads these two alone.
	name string
	cur  atomic.Pointer[span] // never nil; written under mu

	hash    uint64
	mu      sync.Mutex // never held during a call to the store or the disk
	next    *span      // spares, in order; no two of them touch
	job     *job       // the refill that was asked for; nil: none
	trouble *trouble   // why it gives no new IDs; nil: none
	demand  *demand    // nil until the second refill

	last  int64 // last ID given by the spans before cur, or named in a SET here; before the first ID the one below it
	floor int64 // highest bound granted to this instance or named in its SET, less nothing: it never goes down (I6)
	saved int64 // the floor that is known to be on disk
	given int64 // floor of earlier lives, as it was when the tag was loaded

	step     int64         // of the row
	size     int64         // of the last refill
	stepAt   time.Duration // when step was read
	pace     float64       // IDs a second while the span before cur was in use
	row      int64         // the row's bound as last seen
	updated  int64         // the row's time of update, in Unix seconds
	issued   int64         // IDs given by the spans before cur
	burnt    int64
	seen     int64         // IDs given when the sweep came by
	seenAt   time.Duration // when that had changed last
	waitTime time.Duration
	waits    uint64

	refillTime time.Duration
	refills    uint32
	failures   uint32
	sets       uint32 // SETs here
	taints     uint32 // what forbids to give back spans granted before
	serial     uint32 // tells this life in memory from others of the same name

	known   bool // there is a row: the tag stands in the table
	gone    bool // it has left memory; whoever still has the pointer looks again
	waited  bool // a request waited since the last refill
	badStep bool // the row's step can't be used; logged
}

// used tells whether t had a span or a SET in its life here. The caller holds t.mu.
func (t *tag) used() bool { return t.size > 0 || t.sets > 0 }

// table finds tags by name without a lock. Where the slots stand does not depend on the name, so that the processor has them
// at hand while it still hashes. Growing copies them (some 50 ms at a million tags); only tags being loaded wait for that.
type table struct {
	slots atomic.Pointer[slots]
	seed  [2]uint64 // secret, so that nobody can choose names that collide

	n      atomic.Int64 // tags in the slots
	serial atomic.Uint32
	room   atomic.Uint64 // where makeRoom goes on
	left   atomic.Uint64 // IDs issued by tags that left memory

	mu   sync.Mutex      // for all who change what follows, or the slots
	dead int             // slots whose tag left
	cold map[string]*tag // tags that are being loaded: nobody knows yet whether they exist
	peak int             // size of cold at its largest
}

// slots are an open-addressed hash table: its length is a power of two, a search ends at the first nil.
type slots []atomic.Pointer[tag]

// left stands where a tag was. No key matches its name, and it would give nothing.
var leftTag = func() *tag {
	t := &tag{name: "\xff left"}
	t.cur.Store(unusable)
	return t
}()

func (tb *table) init() {
	tb.seed = [2]uint64{rand.Uint64() | 1, rand.Uint64() | 1}
	tb.cold = map[string]*tag{}
	s := make(slots, 64)
	tb.slots.Store(&s)
}

// hash mixes a name, eight bytes by one multiplication. It costs a third of hash/maphash, whose calls a take would feel.
func (tb *table) hash(b []byte) uint64 {
	h := tb.seed[0] ^ uint64(len(b))*0x9e3779b97f4a7c15
	for len(b) > 8 {
		h = mix(h^binary.LittleEndian.Uint64(b), tb.seed[1])
		b = b[8:]
	}
	var last uint64
	switch {
	case len(b) == 8:
		last = binary.LittleEndian.Uint64(b)
	case len(b) >= 4:
		last = uint64(binary.LittleEndian.Uint32(b)) | uint64(binary.LittleEndian.Uint32(b[len(b)-4:]))<<32
	case len(b) > 0:
		last = uint64(b[0]) | uint64(b[len(b)/2])<<8 | uint64(b[len(b)-1])<<16
	}
	return mix(h^last, tb.seed[1])
}

func mix(x, y uint64) uint64 {
	hi, lo := bits.Mul64(x, y)
	return hi ^ lo
}

// find is the hot path's lookup.
func (tb *table) find(name []byte) *tag {
	s := *tb.slots.Load()
	mask := uint64(len(s) - 1)
	for i := tb.hash(name); ; i++ {
		t := s[i&mask].Load()
		if t == nil || t.name == string(name) {
			return t
		}
	}
}

func (tb *table) lookup(name string) *tag { return tb.find([]byte(name)) }

// any is the tag of that name, loaded or being loaded, or nil.
func (tb *table) any(name string) *tag {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if t := tb.cold[name]; t != nil {
		return t
	}
	return tb.lookup(name)
}

// tag is the tag of that name, made cold if there is none.
func (a *Allocator) tag(name string) (*tag, error) {
	tb := &a.tags
	if t := tb.lookup(name); t != nil {
		return t, nil
	}
	if a.closed.Load() {
		return nil, ErrClosed
	}
	if tb.n.Load() >= a.o.MaxTags && !a.makeRoom() {
		return nil, &FullError{Tag: name, Max: a.o.MaxTags}
	}
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if t := tb.cold[name]; t != nil {
		return t, nil
	}
	if t := tb.lookup(name); t != nil {
		return t, nil
	}
	if err := a.neg.get(name, a.o.Now()); err != nil {
		return nil, err
	}
	t := a.newTag(name)
	tb.cold[t.name] = t
	return t, nil
}

func (a *Allocator) newTag(name string) *tag {
	t := &tag{name: strings.Clone(name), hash: a.tags.hash([]byte(name)), serial: a.tags.serial.Add(1), seenAt: a.o.Now()}
	t.cur.Store(unusable)
	return t
}

// promote puts a cold tag, whose row was found, into the slots. The caller holds t.mu.
func (tb *table) promote(t *tag) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.uncool(t)
	s := *tb.slots.Load()
	if n := int(tb.n.Add(1)); (n+tb.dead)*8 > len(s)*5 {
		s = tb.grow(n)
	}
	s.put(t)
}

// uncool takes t from the cold ones. The caller holds tb.mu.
func (tb *table) uncool(t *tag) bool {
	if tb.cold[t.name] != t {
		return false
	}
	tb.peak = max(tb.peak, len(tb.cold))
	if delete(tb.cold, t.name); len(tb.cold) == 0 && tb.peak > 1000 {
		tb.cold, tb.peak = map[string]*tag{}, 0 // a map keeps the size of its largest hour
	}
	return true
}

func (s slots) put(t *tag) {
	for i := t.hash; ; i++ {
		if p := &s[i&uint64(len(s)-1)]; p.Load() == nil {
			p.Store(t)
			return
		}
	}
}

// grow copies the slots to larger ones, or to as many without the dead. Readers go on with the old ones: what they miss there
// they find by the slow path, which looks under the lock.
func (tb *table) grow(n int) slots {
	old := *tb.slots.Load()
	size := 64
	for size < 2*n {
		size *= 2
	}
	s := make(slots, size)
	for i := range old {
		if t := old[i].Load(); t != nil && t != leftTag {
			s.put(t)
		}
	}
	tb.dead = 0
	tb.slots.Store(&s)
	return s
}

// remove takes t out, cold or not. The caller holds t.mu and has set t.gone.
func (tb *table) remove(t *tag) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if tb.uncool(t) {
		return
	}
	s := *tb.slots.Load()
	for i := t.hash; ; i++ {
		p := &s[i&uint64(len(s)-1)]
		switch p.Load() {
		case nil:
			return
		case t:
			p.Store(leftTag)
			tb.n.Add(-1)
			tb.dead++
			return
		}
	}
}

// forget takes a tag out of memory. The caller holds t.mu.
func (a *Allocator) forget(t *tag) {
	t.gone = true
	a.tags.left.Add(uint64(t.issuedLocked()))
	a.tags.remove(t)
}

// walk calls f for up to n slots' tags from the hand on, and returns where the next walk goes on: 0 after the last.
func (tb *table) walk(hand uint64, n int, f func(t *tag)) uint64 {
	s := *tb.slots.Load()
	if hand >= uint64(len(s)) {
		return 0
	}
	end := hand + min(uint64(n), uint64(len(s))-hand)
	for i := hand; i < end; i++ {
		if t := s[i].Load(); t != nil && t != leftTag {
			f(t)
		}
	}
	if end == uint64(len(s)) {
		return 0
	}
	return end
}

// all calls f for every tag, those being loaded included.
func (tb *table) all(f func(t *tag)) {
	tb.mu.Lock()
	cold := slices.Collect(maps.Values(tb.cold))
	tb.mu.Unlock()
	for _, t := range cold {
		f(t)
	}
	tb.walk(0, math.MaxInt, f)
}

// negatives remember for a short time which tags can't be had, so that a flood of requests for them does not reach the store.
// Two generations bound it in time and size.
type negatives struct {
	mu       sync.Mutex
	now, old map[string]negative
	turned   time.Duration
}

type negative struct {
	err   error
	until time.Duration
}

// The bounds of the negative cache: a tag that is made is seen by all within negativeTime.
const (
	negativeTime = 2 * time.Second
	negativeSize = 8192 // per generation
)

func (n *negatives) init() { n.now = map[string]negative{} }

// turn begins a new generation where the one in use is old or full.
func (n *negatives) turn(now time.Duration) {
	if now-n.turned < negativeTime && len(n.now) < negativeSize {
		return
	}
	n.old, n.now = n.now, map[string]negative{}
	n.turned = now
}

func (n *negatives) add(tag string, err error, now time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.turn(now)
	n.now[tag] = negative{err, now + negativeTime}
}

func (n *negatives) get(tag string, now time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ok := n.now[tag]
	if !ok {
		e = n.old[tag]
	}
	if e.err == nil || now >= e.until {
		return nil
	}
	return e.err
}

func (n *negatives) forget(tag string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.now, tag)
	delete(n.old, tag)
}
