package snowflake

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// catchUp is how many milliseconds behind the clock one may be opened or filled, after one that was used up. A generator at
// its limit sleeps to each boundary, and a timer rings late by a millisecond or more; without this the capacity of every
// millisecond slept through would be lost.
const catchUp = 50

// sealed is the state of an issuer that issues no more.
const sealed = math.MinInt64

// issuer gives out the IDs of one worker number for as long as it is held. All of its progress is one integer:
//
//	state = (timestamp - epoch) << sequence bits | sequence       of the last ID issued
//
// moved on by compare-and-swap and never back (I8). So there is no lock that a sleeper could hold, an attempt that fails leaves
// no trace, and one exchange ends it for good and tells exactly what was issued.
type issuer struct {
	worker Worker
	epoch  int64 // Unix ms
	base   int64 // ms since epoch; nothing at or below it is issued
	end    int64 // last ms since epoch that the time bits hold
	bits   uint8 // sequence bits
	shift  uint8 // worker and sequence bits
	mask   int64 // highest sequence
	number int64 // worker number, shifted into its place
	seed   uint64

	extended chan struct{} // asks for a longer window; see extend
	done     chan struct{} // closed when the issuer was sealed

	_     [64]byte // state is written with every ID; what is above is only read
	state atomic.Int64
	_     [56]byte

	// creep is, while logical time is in force, what to add to Mono (ns) for the latest timestamp it may have reached; else 0.
	creep atomic.Int64

	until atomic.Int64 // end of the durable window, ms since epoch (I7)
	start atomic.Int64 // first sequence of the millisecond in state; a hint, written after the swap
	owed  atomic.Int64 // the millisecond, since epoch, that came after one used up and is to be filled; a hint as well
	asked atomic.Bool  // an extension is wanted and not done yet

	mu      sync.Mutex    // guards the two below
	attempt chan struct{} // closed at the end of the extension attempt now running or next
	failing error         // why the last attempt failed; nil after a success
}

func newIssuer(l Layout, w Worker, floor int64, seed uint64) *issuer {
	i := &issuer{
		worker:   w,
		epoch:    l.Epoch,
		bits:     l.SequenceBits,
		shift:    l.WorkerBits + l.SequenceBits,
		mask:     l.Sequences() - 1,
		number:   w.ID() << l.SequenceBits,
		end:      l.Last() - l.Epoch,
		seed:     seed,
		extended: make(chan struct{}, 1),
		done:     make(chan struct{}),
		attempt:  make(chan struct{}),
	}
	win := w.Window()
	// The epoch's own millisecond is left out, so that no ID is 0.
	i.base = max(win.Base, floor, l.Epoch) - l.Epoch
	i.state.Store(i.base<<i.bits | i.mask)
	i.start.Store(i.mask)
	i.until.Store(win.Until - l.Epoch)
	return i
}

// verdict is why an attempt issued nothing.
type verdict uint8

const (
	issued     verdict = iota
	isSealed           // the number was lost or given back
	isFull             // this millisecond's sequence is used up
	isBehind           // the clock stands before the last timestamp
	isPastEnd          // the window is not durable that far
	isTimeUp           // the time bits are used up
	isNotWhole         // fewer IDs left in the millisecond than the caller would take
)

// attempt is the outcome of take.
type attempt struct {
	verdict verdict
	first   int64   // first ID; the others follow it without a gap
	n       int64   // how many
	last    int64   // Unix ms of the state it was judged by
	at      int64   // Unix ms that it took
	read    reading // the clock it was judged by
}

// take issues up to most IDs of one millisecond, or none if there are fewer than least. spare of the millisecond's IDs are
// left for others. It neither waits nor allocates, and changes nothing unless it issues.
func (g *Generator) take(i *issuer, least, most, spare int64) attempt {
	s := i.state.Load()
	r, fresh := g.read(i, s), true // fresh: the clock was read after s
	for {
		a := i.judge(s, r, least, most, spare)
		switch {
		case a.verdict == issued:
			next := (a.at-i.epoch)<<i.bits | (a.first+a.n-1)&i.mask
			if i.state.CompareAndSwap(s, next) {
				if invariants {
					i.assertIssued(s, next, a.at)
				}
				if a.at != a.last {
					i.opened(s, a)
				}
				g.issued.Add(uint64(a.n))
				return a
			}
			// Another caller was quicker. This reading will do as long as the state is not ahead of it.
			s = i.state.Load()
			fresh = false
		case fresh:
			return a
		default:
			// The state may be of a millisecond that began after the reading. Only a clock read after the state it is compared
			// with can tell that time went back.
			s = i.state.Load()
			r, fresh = g.read(i, s), true
		}
	}
}

// opened keeps up with a new millisecond, which came after state s.
func (i *issuer) opened(s int64, a attempt) {
	i.start.Store(a.first & i.mask)
	if s&i.mask == i.mask && a.at == a.last+1 {
		i.owed.Store(a.at - i.epoch)
	}
	if i.until.Load()-(a.at-i.epoch) < lead.Milliseconds() {
		i.wantMore()
	}
}

// judge says what an attempt on state s at time r comes to, without doing it.
func (i *issuer) judge(s int64, r reading, least, most, spare int64) attempt {
	if s == sealed {
		return attempt{verdict: isSealed}
	}
	last, seq := s>>i.bits, s&i.mask
	now := r.now - i.epoch
	a := attempt{last: last + i.epoch, read: r}
	var ts, from int64
	switch {
	case now > last:
		ts, from = i.open(now, last, seq)
	case now == last && seq < i.mask:
		ts, from = last, seq+1
	default:
		// The clock has not come past the last timestamp. Logical time, when it is in force, goes on from there all the same.
		switch creep := i.creep.Load(); {
		case creep != 0 && seq < i.mask:
			ts, from = last, seq+1
		case creep != 0 && last+1+i.epoch <= int64((r.mono+time.Duration(creep))/time.Millisecond):
			ts, from = last+1, 0
		case creep != 0 || now == last:
			a.verdict = isFull
			return a
		default:
			a.verdict = isBehind
			return a
		}
	}
	a.at = ts + i.epoch
	switch {
	case ts > i.end:
		a.verdict = isTimeUp
		return a
	case ts > i.until.Load():
		a.verdict = isPastEnd
		return a
	}
	a.n = min(most, i.mask-from+1-spare)
	if a.n < least {
		a.n, a.verdict = 0, isNotWhole
		return a
	}
	a.first = ts<<i.shift | i.number | from
	return a
}

// open chooses the next timestamp and its first sequence when the clock has moved on from last, whose highest sequence is seq.
//
// After a quiet millisecond the sequence starts anywhere in the lower half, so that IDs drawn at a low rate spread evenly over
// any shard count that is a power of two; there is no state to it, so that callers who race choose the same. The busier the
// last millisecond was, the nearer to 0 the next one starts, and the whole capacity is there when it is needed. While they are
// used up one after the other, each is filled to its end, also when the clock has gone on by up to catchUp.
func (i *issuer) open(now, last, seq int64) (ts, from int64) {
	late := now - last
	if late <= catchUp && last > i.base {
		switch {
		case seq == i.mask:
			return last + 1, 0
		case last == i.owed.Load():
			return last, seq + 1
		}
	}
	if late > 1 {
		return now, i.spread(now) & (i.mask >> 1)
	}
	switch used := max(seq-i.start.Load()+1, 0); {
	case used<<3 <= i.mask+1:
		return now, i.spread(now) & (i.mask >> 1)
	case used<<2 <= i.mask+1:
		return now, i.spread(now) & (i.mask >> 2)
	}
	return now, 0
}

// spread hashes a timestamp (the finalizer of SplitMix64).
func (i *issuer) spread(ts int64) int64 {
	z := uint64(ts)*0x9e3779b97f4a7c15 + i.seed
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int64((z ^ z>>31) >> 1)
}

// seal ends the issuer and returns the last ID and its timestamp (Unix ms), both 0 if it issued none. Nothing is issued
// afterwards, whoever still holds a pointer to it.
func (i *issuer) seal() (last, ts int64) {
	s := i.state.Swap(sealed)
	if s == sealed {
		return 0, 0
	}
	close(i.done)
	return i.id(s)
}

// id is the last ID of a state and its timestamp, 0 if nothing was issued.
func (i *issuer) id(s int64) (id, ts int64) {
	rel := s >> i.bits
	if s == sealed || rel <= i.base {
		return 0, 0
	}
	return rel<<i.shift | i.number | s&i.mask, rel + i.epoch
}

// lastMs is the highest timestamp used up, Unix ms.
func (i *issuer) lastMs() int64 {
	s := i.state.Load()
	if s == sealed {
		return 0
	}
	return s>>i.bits + i.epoch
}

// wantMore asks for a longer window, once until it is there.
func (i *issuer) wantMore() {
	if !i.asked.Load() && i.asked.CompareAndSwap(false, true) {
		select {
		case i.extended <- struct{}{}:
		default:
		}
	}
}
