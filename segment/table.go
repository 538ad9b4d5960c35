package segment

import (
	"hash/maphash"
	"maps"
	"math"
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

	mu      sync.Mutex // never held during a call to the store or the disk
	next    *span      // spares, in order; no two of them touch
	job     *job       // the refill that was asked for; nil: none
	trouble *trouble   // why it gives no new IDs; nil: none
	demand  *demand    // nil until the second refill

	last  int64 // last ID given by the spans before cur, or named in a SET here; before the first ID the one below it
	floor int64 // highest bound granted to this instance or named in its SET, less nothing: it never goes down (I6)
	saved int64 // the floor that is known to be on disk

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

// table finds tags by name without a lock. It is split so that growing one part, which copies it, stays short.
type table struct {
	seed   maphash.Seed
	shards [64]shard
	n      atomic.Int64 // tags in the slots
	serial atomic.Uint32
	room   atomic.Uint64 // where makeRoom goes on
	left   atomic.Uint64 // IDs issued by tags that left memory
}

type shard struct {
	slots atomic.Pointer[slots]
	mu    sync.Mutex
	n     int             // slots in use
	dead  int             // slots whose tag left
	cold  map[string]*tag // tags that are being loaded: nobody knows yet whether they exist
	_     [64]byte
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
	tb.seed = maphash.MakeSeed()
	for i := range tb.shards {
		s := make(slots, 8)
		tb.shards[i].slots.Store(&s)
	}
}

// find is the hot path's lookup.
func (tb *table) find(name []byte) *tag {
	h := maphash.Bytes(tb.seed, name)
	s := *tb.shards[h>>58].slots.Load()
	for i := h; ; i++ {
		t := s[i&uint64(len(s)-1)].Load()
		if t == nil || t.name == string(name) {
			return t
		}
	}
}

func (tb *table) lookup(name string) *tag {
	h := maphash.String(tb.seed, name)
	return tb.shards[h>>58].lookup(h, name)
}

func (sh *shard) lookup(h uint64, name string) *tag {
	s := *sh.slots.Load()
	for i := h; ; i++ {
		t := s[i&uint64(len(s)-1)].Load()
		if t == nil || t.name == name {
			return t
		}
	}
}

// any is the tag of that name, loaded or being loaded, or nil.
func (tb *table) any(name string) *tag {
	h := maphash.String(tb.seed, name)
	sh := &tb.shards[h>>58]
	if t := sh.lookup(h, name); t != nil {
		return t
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if t := sh.cold[name]; t != nil {
		return t
	}
	return sh.lookup(h, name)
}

// tag is the tag of that name, made cold if there is none.
func (a *Allocator) tag(name string) (*tag, error) {
	if t := a.tags.lookup(name); t != nil {
		return t, nil
	}
	if a.closed.Load() {
		return nil, ErrClosed
	}
	if a.tags.n.Load() >= a.o.MaxTags && !a.makeRoom() {
		return nil, &FullError{Tag: name, Max: a.o.MaxTags}
	}
	h := maphash.String(a.tags.seed, name)
	sh := &a.tags.shards[h>>58]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if t := sh.cold[name]; t != nil {
		return t, nil
	}
	if t := sh.lookup(h, name); t != nil {
		return t, nil
	}
	if err := a.neg.get(name, a.o.Now()); err != nil {
		return nil, err
	}
	t := a.newTag(name)
	if sh.cold == nil {
		sh.cold = map[string]*tag{}
	}
	sh.cold[t.name] = t
	return t, nil
}

func (a *Allocator) newTag(name string) *tag {
	t := &tag{name: strings.Clone(name), serial: a.tags.serial.Add(1), seenAt: a.o.Now()}
	t.cur.Store(unusable)
	return t
}

// promote puts a cold tag, whose row was found, into the table. The caller holds t.mu.
func (tb *table) promote(t *tag) {
	h := maphash.String(tb.seed, t.name)
	sh := &tb.shards[h>>58]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.cold[t.name] == t {
		delete(sh.cold, t.name)
		if len(sh.cold) == 0 {
			sh.cold = nil // a map keeps the size of its largest hour
		}
	}
	s := *sh.slots.Load()
	if (sh.n+sh.dead+1)*8 > len(s)*5 {
		s = sh.grow(tb.seed)
	}
	s.put(h, t)
	sh.n++
	tb.n.Add(1)
}

func (s slots) put(h uint64, t *tag) {
	for i := h; ; i++ {
		if p := &s[i&uint64(len(s)-1)]; p.Load() == nil {
			p.Store(t)
			return
		}
	}
}

// grow copies the slots to larger ones, or to as many without the dead. Readers go on with the old ones: what they miss there
// they find by the slow path, which looks under the lock.
func (sh *shard) grow(seed maphash.Seed) slots {
	old := *sh.slots.Load()
	size := 8
	for size*5 < (sh.n+1)*8*5/4 {
		size *= 2
	}
	s := make(slots, size)
	for i := range old {
		if t := old[i].Load(); t != nil && t != leftTag {
			s.put(maphash.String(seed, t.name), t)
		}
	}
	sh.dead = 0
	sh.slots.Store(&s)
	return s
}

// remove takes t out, cold or not. The caller holds t.mu and has set t.gone.
func (tb *table) remove(t *tag) {
	h := maphash.String(tb.seed, t.name)
	sh := &tb.shards[h>>58]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.cold[t.name] == t {
		delete(sh.cold, t.name)
		return
	}
	s := *sh.slots.Load()
	for i := h; ; i++ {
		p := &s[i&uint64(len(s)-1)]
		switch p.Load() {
		case nil:
			return
		case t:
			p.Store(leftTag)
			sh.n--
			sh.dead++
			tb.n.Add(-1)
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

// walk calls f for up to n slots' tags from the hand on, and returns where the next walk goes on. A whole round is made when
// it returns 0.
func (tb *table) walk(hand uint64, n int, f func(t *tag)) uint64 {
	i, k := hand>>32, hand&(1<<32-1)
	for ; i < uint64(len(tb.shards)); i, k = i+1, 0 {
		s := *tb.shards[i].slots.Load()
		for ; k < uint64(len(s)); k++ {
			if n--; n < 0 {
				return i<<32 | k
			}
			if t := s[k].Load(); t != nil && t != leftTag {
				f(t)
			}
		}
	}
	return 0
}

// all calls f for every tag, those being loaded included.
func (tb *table) all(f func(t *tag)) {
	tb.walk(0, math.MaxInt, f)
	for i := range tb.shards {
		sh := &tb.shards[i]
		sh.mu.Lock()
		cold := slices.Collect(maps.Values(sh.cold))
		sh.mu.Unlock()
		for _, t := range cold {
			f(t)
		}
	}
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
