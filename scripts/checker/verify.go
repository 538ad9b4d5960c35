package checker

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// memoryRuns is how many runs of IDs are sorted in memory at once, 24 bytes each.
const memoryRuns = 1 << 20

// examples is how many findings of each kind a report shows.
const examples = 5

// Verify reads a history and returns the verdict. The error is for a file that cannot be read or is damaged; a history
// without an end, as a killed test leaves it, is checked as far as it goes and is not clean.
//
// Memory is bounded by the numbers of recorders and of keys, not of IDs; the sorting goes through a file without a name
// in the folder for temporary files.
func Verify(path string) (Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return Report{}, err
	}
	defer f.Close()
	v := &verifier{
		f: f, strings: []string{""}, layouts: map[uint32]Layout{}, high: map[uint32]int64{},
		grants: map[uint32]map[uint32]*ranges{}, faults: map[uint64]*FaultReport{},
	}
	v.r.File, v.r.Errors = path, map[string]int64{}
	if err := v.index(); err != nil {
		return Report{}, fmt.Errorf("%s: %w", path, err)
	}
	// The two passes read the file on their own and share only what index has found.
	var wg sync.WaitGroup
	var order timeOrder
	var orderErr error
	wg.Go(func() { orderErr = order.check(v) })
	err = v.values()
	wg.Wait()
	if err := errors.Join(err, orderErr); err != nil {
		return Report{}, fmt.Errorf("%s: %w", path, err)
	}
	v.r.TimeDisorder = order.disorder
	v.found = append(v.found, order.found...)
	v.finishFaults()
	if err := v.explain(); err != nil {
		return Report{}, fmt.Errorf("%s: %w", path, err)
	}
	return v.r, nil
}

type verifier struct {
	f         *os.File
	r         Report
	strings   []string
	recorders []*recorderState
	spans     []span // 'e' blocks in the order of the file
	layouts   map[uint32]Layout
	expect    []expectation
	high      map[uint32]int64
	grants    map[uint32]map[uint32]*ranges // by key, and by the instance that holds them, 0 for whoever does
	faults    map[uint64]*FaultReport
	order     []*FaultReport // as they began
	cured     []*FaultReport // as they were cured
	found     []finding
	shown     map[string]int
}

type span struct {
	at       int64
	size     int
	recorder uint64
}

type recorderState struct {
	name string
	of   []int // its spans

	conn    uint64
	last    map[uint32]int64 // by key: the largest ID on this connection
	key     uint32           // the key of the event before, and its entry of last
	lastID  int64
	hasLast bool

	first, end int64 // first invoke, last return
	any        bool
	cure       int // how many cured faults it has got over
}

type expectation struct {
	at    int64
	words map[uint32]bool
}

// finding is something against the history. With a value, the events that have it are looked up.
type finding struct {
	kind  string
	text  string
	key   uint32
	value int64
	other int64 // another value to look up, 0 = none
}

func (v *verifier) note(f finding) {
	if v.shown == nil {
		v.shown = map[string]int{}
	}
	if v.shown[f.kind]++; v.shown[f.kind] <= examples {
		v.found = append(v.found, f)
	}
}

func (v *verifier) name(id uint32) string {
	if int(id) < len(v.strings) {
		return v.strings[id]
	}
	return fmt.Sprintf("(string %d)", id)
}

// index reads everything but the events, and where those are.
func (v *verifier) index() error {
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(v.f, head); err != nil || string(head[:len(magic)]) != magic {
		return errors.New("this is no history of IDs")
	}
	if head[len(magic)] != version {
		return fmt.Errorf("a history of version %d; this program reads version %d", head[len(magic)], version)
	}
	b := blocks{r: bufio.NewReaderSize(v.f, 1<<20), at: int64(headerSize)}
	ended, events := false, uint64(0)
	for {
		k, err := b.next()
		if err == io.EOF {
			break
		}
		if errors.Is(err, errCut) {
			ended = false
			break
		}
		if err != nil {
			return err
		}
		f := fields{b: k.payload}
		switch k.kind {
		case 's':
			if id := f.u(); id != uint64(len(v.strings)) {
				f.bad = true
			}
			v.strings = append(v.strings, string(f.b))
		case 'r':
			if n := f.u(); n != uint64(len(v.recorders)) {
				f.bad = true
			}
			v.recorders = append(v.recorders, &recorderState{name: v.name(uint32(f.u())), last: map[uint32]int64{}})
		case 'e':
			n := f.u()
			events += f.u()
			if n >= uint64(len(v.recorders)) {
				f.bad = true
				break
			}
			v.recorders[n].of = append(v.recorders[n].of, len(v.spans))
			v.spans = append(v.spans, span{k.at, len(k.payload), n})
		case 'l':
			key := uint32(f.u())
			v.layouts[key] = Layout{f.z(), uint(f.u()), uint(f.u()), uint(f.u())}
			if l := v.layouts[key]; l.Worker > 62 || l.Sequence > 62 {
				f.bad = true
			}
		case 'x':
			x := expectation{at: int64(f.u()), words: map[uint32]bool{}}
			for n := f.u(); n > 0 && !f.bad; n-- {
				x.words[uint32(f.u())] = true
			}
			v.expect = append(v.expect, x)
		case 'f':
			n, at, name, cured := f.u(), time.Duration(f.u()), v.name(uint32(f.u())), f.u()
			switch r := v.faults[n]; {
			case cured == 0:
				r = &FaultReport{Name: name, Begin: at}
				v.faults[n] = r
				v.order = append(v.order, r)
			case r != nil:
				r.Cured = at
				v.cured = append(v.cured, r)
			}
		case 'g':
			back, key, instance := f.u(), uint32(f.u()), uint32(f.u())
			first, last := f.z(), f.z()
			if !f.bad && first <= last {
				v.grant(key, instance, back != 0, first, last)
			}
		case 'h':
			v.high[uint32(f.u())] = f.z()
		case '.':
			ended = f.u() == events
		default:
			return fmt.Errorf("unknown block %q at offset %d", k.kind, k.at)
		}
		if f.bad {
			return fmt.Errorf("the block %q at offset %d makes no sense", k.kind, k.at)
		}
	}
	v.r.Truncated = !ended
	v.r.Recorders = len(v.recorders)
	return nil
}

func (v *verifier) grant(key, instance uint32, back bool, first, last int64) {
	of := v.grants[key]
	if of == nil {
		of = map[uint32]*ranges{}
		v.grants[key] = of
	}
	if of[instance] == nil {
		of[instance] = &ranges{}
	}
	if back {
		of[instance].remove(first, last)
		return
	}
	for _, r := range of {
		v.r.Regranted += r.overlap(first, last)
	}
	of[instance].add(first, last)
}

// read returns the events of one span. buf is used when it is large enough.
func (v *verifier) read(s span, buf []byte) (events, []byte, error) {
	if cap(buf) < s.size {
		buf = make([]byte, s.size)
	}
	buf = buf[:s.size]
	if _, err := v.f.ReadAt(buf, s.at); err != nil {
		return events{}, buf, err
	}
	return openEvents(buf), buf, nil
}

func (s span) damaged() error { return fmt.Errorf("the events at offset %d make no sense", s.at) }

// values checks everything but the order by time: event by event, and then all IDs sorted.
func (v *verifier) values() error {
	sorted := &sorter{limit: memoryRuns}
	defer sorted.close()
	keys := map[uint32]bool{}
	conns := map[uint64]bool{}
	var buf []byte
	first, last := int64(math.MaxInt64), int64(0)
	for _, s := range v.spans {
		e, b, err := v.read(s, buf)
		if err != nil {
			return err
		}
		buf = b
		rec := v.recorders[s.recorder]
		var pending run // consecutive replies to one client are one run, as long as they are of one hand
		var has bool
		var addErr error
		var key uint32
		var conn uint64
		for e.next() {
			ev := &e.e
			v.r.Events++
			if ev.key != key || !has {
				key = ev.key
				keys[key] = true
			}
			if ev.conn != conn {
				conn = ev.conn
				conns[conn] = true
			}
			first, last = min(first, ev.invoke), max(last, ev.ret)
			if !rec.any {
				rec.any, rec.first = true, ev.invoke
			}
			rec.end = max(rec.end, ev.ret)
			if ev.kind == kindNone {
				v.refused(rec, ev)
				continue
			}
			v.r.IDs += ev.count()
			v.recovered(rec, ev.ret)
			layout, isSnowflake := v.layouts[ev.key]
			ev.runs(func(first, last int64) {
				v.connectionOrder(rec, ev, first, last, layout, isSnowflake)
				if first < 1 {
					v.r.Invalid += min(last, 0) - first + 1
					v.note(finding{kind: "invalid", key: ev.key, value: first, text: "an ID below 1"})
				}
				for first <= last {
					end := last
					if isSnowflake {
						// One run never spans two worker numbers or milliseconds.
						end = min(last, first|(1<<layout.Sequence-1))
					}
					if has && pending.key == ev.key && pending.instance == ev.instance && pending.last < first && pending.last+1 == first &&
						(!isSnowflake || pending.first>>layout.Sequence == first>>layout.Sequence) {
						pending.last = end
					} else {
						if has {
							addErr = errors.Join(addErr, sorted.add(pending))
						}
						pending, has = run{first, end, ev.key, ev.instance}, true
					}
					if end == math.MaxInt64 {
						break
					}
					first = end + 1
				}
			})
			if addErr != nil {
				return addErr
			}
		}
		if has {
			if err := sorted.add(pending); err != nil {
				return err
			}
		}
		if e.f.bad {
			return s.damaged()
		}
	}
	delete(conns, 0)
	v.r.Keys, v.r.Connections = len(keys), int64(len(conns))
	if last > first {
		v.r.Span = time.Duration(last - first)
	}
	var m merge
	return errors.Join(sorted.each(func(r run) { m.run(v, r) }))
}

// refused counts a request without an ID.
func (v *verifier) refused(rec *recorderState, ev *event) {
	if ev.word == 0 {
		v.r.Lost++
		return
	}
	word := v.name(ev.word)
	v.r.Errors[word]++
	if v.isExpected(ev) {
		return
	}
	v.r.Unexpected++
	v.note(finding{kind: "unexpected", text: fmt.Sprintf("unexpected error %s: %s", word, v.describe(rec, ev))})
}

// isExpected tells whether any expectation that was in force while the request was under way allows its word.
func (v *verifier) isExpected(ev *event) bool {
	i, _ := slices.BinarySearchFunc(v.expect, ev.invoke, func(x expectation, at int64) int {
		if x.at <= at {
			return -1
		}
		return 1
	})
	if i == 0 {
		return true // begun before any was set
	}
	for i--; i < len(v.expect) && v.expect[i].at <= ev.ret; i++ {
		if v.expect[i].words[ev.word] {
			return true
		}
	}
	return false
}

// connectionOrder holds promise I5 on each connection.
func (v *verifier) connectionOrder(rec *recorderState, ev *event, first, last int64, l Layout, isSnowflake bool) {
	if ev.conn == 0 {
		// Inside one reply the order is known all the same.
		if ev.kind == kindList && first != ev.ids[0] {
			for i := 1; i < len(ev.ids); i++ {
				if ev.ids[i] == first && ev.ids[i-1] >= first {
					v.disorder(rec, ev, ev.ids[i-1], first)
				}
			}
		}
		return
	}
	if ev.conn != rec.conn {
		clear(rec.last)
		rec.conn, rec.hasLast = ev.conn, false
	}
	if !rec.hasLast || ev.key != rec.key {
		if rec.hasLast {
			rec.last[rec.key] = rec.lastID
		}
		rec.key = ev.key
		rec.lastID, rec.hasLast = rec.last[ev.key]
		if !rec.hasLast {
			rec.lastID, rec.hasLast = last, true
			return
		}
	}
	switch {
	case isSnowflake && l.worker(first) != l.worker(rec.lastID):
		v.r.WorkerChanges++
		rec.lastID = last
		return
	case first <= rec.lastID:
		v.disorder(rec, ev, rec.lastID, first)
	}
	rec.lastID = max(rec.lastID, last)
}

func (v *verifier) disorder(rec *recorderState, ev *event, before, now int64) {
	v.r.ConnectionDisorder++
	v.note(finding{kind: "disorder", key: ev.key, value: before, other: now,
		text: fmt.Sprintf("on one connection %d came after %d: %s", now, before, v.describe(rec, ev))})
}

// recovered moves a client past the faults that were cured before it had this ID.
func (v *verifier) recovered(rec *recorderState, ret int64) {
	for rec.cure < len(v.cured) && int64(v.cured[rec.cure].Cured) <= ret {
		f := v.cured[rec.cure]
		rec.cure++
		if rec.first < int64(f.Cured) {
			f.Recovery = max(f.Recovery, time.Duration(ret)-f.Cured)
		}
	}
}

func (v *verifier) finishFaults() {
	for _, rec := range v.recorders {
		for ; rec.cure < len(v.cured); rec.cure++ {
			f := v.cured[rec.cure]
			if rec.any && rec.first < int64(f.Cured) && rec.end > int64(f.Cured) {
				f.Stuck++
				f.Recovery = max(f.Recovery, time.Duration(rec.end)-f.Cured)
			}
		}
	}
	for _, f := range v.order {
		v.r.Faults = append(v.r.Faults, *f)
	}
}

// merge looks at all runs in the order of key and value.
type merge struct {
	key     uint32
	started bool
	end     int64 // the largest ID so far
	workers map[int64]*hands
}

// hands is who has used one worker number, in the order of the timestamps.
type hands struct {
	now  uint32
	time int64
	past map[uint32]bool
}

func (m *merge) run(v *verifier, r run) {
	l, isSnowflake := v.layouts[r.key]
	if m.started && r.key != m.key {
		*m = merge{}
	}
	if m.started && r.first <= m.end {
		v.r.Duplicates += min(r.last, m.end) - r.first + 1
		v.note(finding{kind: "duplicate", key: r.key, value: r.first, text: fmt.Sprintf("%d was handed out twice", r.first)})
	}
	if !m.started {
		m.key, m.end, m.started = r.key, r.last, true
	}
	m.end = max(m.end, r.last)
	if bound, ok := v.high[r.key]; ok && r.last >= bound {
		v.r.AboveHighWater += r.last - max(r.first, bound) + 1
		v.note(finding{kind: "high water", key: r.key, value: max(r.first, bound),
			text: fmt.Sprintf("%d is not below %d, where the store stands", max(r.first, bound), bound)})
	}
	if of := v.grants[r.key]; of != nil {
		if n, example := outside(of, r); n > 0 {
			v.r.Ungranted += n
			v.note(finding{kind: "ungranted", key: r.key, value: example, text: fmt.Sprintf("%d is in no range that the store granted", example)})
		}
	}
	if isSnowflake && r.instance != 0 {
		m.hold(v, l, r)
	}
}

// hold follows a worker number from hand to hand. One instance may follow another, never one that it has been before, and not
// within a millisecond: a window begins after the one before it.
func (m *merge) hold(v *verifier, l Layout, r run) {
	if m.workers == nil {
		m.workers = map[int64]*hands{}
	}
	w, at := l.worker(r.first), l.time(r.first)
	h := m.workers[w]
	if h == nil {
		m.workers[w] = &hands{now: r.instance, time: at}
		return
	}
	if r.instance != h.now {
		if at == h.time || h.past[r.instance] {
			v.r.WorkerOverlaps++
			v.note(finding{kind: "worker", key: r.key, value: r.first, text: fmt.Sprintf("worker %d is used by %s and %s at the same time, around %s",
				w, v.name(h.now), v.name(r.instance), time.UnixMilli(at+l.Epoch).UTC().Format(time.RFC3339Nano))})
		}
		if h.past == nil {
			h.past = map[uint32]bool{}
		}
		h.past[h.now] = true
		h.now = r.instance
	}
	h.time = at
}

// outside returns how many IDs of a run are in no granted range that its instance could have, and one of them.
func outside(of map[uint32]*ranges, r run) (n, example int64) {
	var free ranges
	for instance, g := range of {
		if r.instance != 0 && instance != 0 && instance != r.instance {
			continue
		}
		for _, s := range g.within(r.first, r.last) {
			if s.first <= r.first && r.last <= s.last {
				return 0, 0 // nearly always
			}
			if free.s == nil {
				free.add(r.first, r.last)
			}
			free.remove(s.first, s.last)
			if len(free.s) == 0 {
				return 0, 0
			}
		}
	}
	if free.s == nil {
		return r.last - r.first + 1, r.first
	}
	for _, s := range free.s {
		n += s.last - s.first + 1
	}
	return n, free.s[0].first
}

// ranges is a set of numbers, kept as sorted ranges that do not touch.
type ranges struct{ s []stretch }

type stretch struct{ first, last int64 }

// at returns the index of the first stretch that ends at or after x.
func (r *ranges) at(x int64) int {
	i, _ := slices.BinarySearchFunc(r.s, x, func(s stretch, x int64) int { return cmp.Compare(s.last, x) })
	return i
}

func (r *ranges) within(first, last int64) []stretch {
	i := r.at(first)
	j := i
	for j < len(r.s) && r.s[j].first <= last {
		j++
	}
	return r.s[i:j]
}

func (r *ranges) overlap(first, last int64) (n int64) {
	for _, s := range r.within(first, last) {
		n += min(last, s.last) - max(first, s.first) + 1
	}
	return n
}

func (r *ranges) add(first, last int64) {
	i, j := r.at(max(first, math.MinInt64+1)-1), 0
	for j = i; j < len(r.s) && (last == math.MaxInt64 || r.s[j].first <= last+1); j++ {
		first, last = min(first, r.s[j].first), max(last, r.s[j].last)
	}
	r.s = slices.Replace(r.s, i, j, stretch{first, last})
}

func (r *ranges) remove(first, last int64) {
	i := r.at(first)
	j := i
	var keep []stretch
	for ; j < len(r.s) && r.s[j].first <= last; j++ {
		if s := r.s[j]; s.first < first {
			keep = append(keep, stretch{s.first, first - 1})
		}
		if s := r.s[j]; s.last > last {
			keep = append(keep, stretch{last + 1, s.last})
		}
	}
	r.s = slices.Replace(r.s, i, j, keep...)
}

// timeOrder holds promise I5 over all connections: a request that begins after a reply was received gets a larger ID of the
// same key from the same instance; of snowflakes, while it holds one worker number.
type timeOrder struct {
	disorder int64
	found    []finding
	max      map[order]int64
	pending  heap[group]
}

type order struct {
	key, instance uint32
	worker        int64
}

// group is a row of events of one recorder that were under way at the same time: a pipeline.
type group struct {
	invoke, ret int64
	order
	low, high int64
}

func (o *timeOrder) check(v *verifier) error {
	o.max = map[order]int64{}
	o.pending.less = func(a, b group) bool { return a.ret < b.ret }
	cursors := heap[*cursor]{less: func(a, b *cursor) bool { return a.g.invoke < b.g.invoke }}
	for _, rec := range v.recorders {
		c := &cursor{v: v, spans: rec.of}
		ok, err := c.next()
		if err != nil {
			return err
		}
		if ok {
			cursors.push(c)
		}
	}
	for len(cursors.items) > 0 {
		c := cursors.items[0]
		o.step(v, c.g)
		ok, err := c.next()
		if err != nil {
			return err
		}
		if ok {
			cursors.fix()
		} else {
			cursors.pop()
		}
	}
	return nil
}

func (o *timeOrder) step(v *verifier, g group) {
	for len(o.pending.items) > 0 && o.pending.items[0].ret < g.invoke {
		p := o.pending.pop()
		if high, ok := o.max[p.order]; !ok || p.high > high {
			o.max[p.order] = p.high
		}
	}
	if high, ok := o.max[g.order]; ok && g.low <= high {
		o.disorder++
		if len(o.found) < examples {
			o.found = append(o.found, finding{kind: "time", key: g.key, value: high, other: g.low, text: fmt.Sprintf(
				"%s gave %d to a request begun at %.6fs, when %d had been received", v.name(g.instance), g.low, time.Duration(g.invoke).Seconds(), high)})
		}
	}
	o.pending.push(g)
}

// cursor walks through the groups of one recorder.
type cursor struct {
	v     *verifier
	spans []int
	s     span
	buf   []byte
	e     events
	open  bool
	queue []group // of one event, which may hold several worker numbers
	used  int     // of queue
	g     group
	ahead group
	has   bool // ahead holds a group
}

// next sets c.g to the next group.
func (c *cursor) next() (bool, error) {
	if !c.has {
		ok, err := c.one()
		if !ok || err != nil {
			return false, err
		}
	}
	c.g, c.has = c.ahead, false
	for {
		ok, err := c.one()
		if err != nil {
			return false, err
		}
		if !ok {
			return true, nil
		}
		if c.ahead.order != c.g.order || c.ahead.invoke != c.g.invoke || c.ahead.ret != c.g.ret {
			return true, nil
		}
		c.g.low, c.g.high = min(c.g.low, c.ahead.low), max(c.g.high, c.ahead.high)
		c.has = false
	}
}

// one sets c.ahead to the part of the next event that is of one order.
func (c *cursor) one() (bool, error) {
	for {
		if c.used < len(c.queue) {
			c.ahead, c.has = c.queue[c.used], true
			c.used++
			return true, nil
		}
		if !c.open {
			if len(c.spans) == 0 {
				return false, nil
			}
			c.s = c.v.spans[c.spans[0]]
			c.spans = c.spans[1:]
			var err error
			if c.e, c.buf, err = c.v.read(c.s, c.buf); err != nil {
				return false, err
			}
			c.open = true
		}
		if !c.e.next() {
			if c.e.f.bad {
				return false, c.s.damaged()
			}
			c.open = false
			continue
		}
		ev := &c.e.e
		if ev.kind == kindNone || ev.instance == 0 {
			continue
		}
		g := group{invoke: ev.invoke, ret: ev.ret, order: order{key: ev.key, instance: ev.instance}}
		l, isSnowflake := c.v.layouts[ev.key]
		if !isSnowflake {
			g.low, g.high = ev.bounds()
			c.ahead, c.has = g, true
			return true, nil
		}
		c.queue, c.used = c.queue[:0], 0
		ev.runs(func(first, last int64) {
			g.worker = l.worker(first)
			if n := len(c.queue); n > 0 && c.queue[n-1].worker == g.worker {
				q := &c.queue[n-1]
				q.low, q.high = min(q.low, first), max(q.high, last)
				return
			}
			g.low, g.high = first, last
			c.queue = append(c.queue, g)
		})
	}
}

func (v *verifier) describe(rec *recorderState, ev *event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", rec.name)
	if ev.conn != 0 {
		fmt.Fprintf(&b, ", connection %d", ev.conn)
	}
	if ev.instance != 0 {
		fmt.Fprintf(&b, " to %s", v.name(ev.instance))
	}
	fmt.Fprintf(&b, ", %s %s", v.name(ev.cmd), v.name(ev.key))
	if ev.kind != kindNone {
		low, high := ev.bounds()
		fmt.Fprintf(&b, " -> %d", low)
		if high != low {
			fmt.Fprintf(&b, "..%d", high)
		}
	}
	fmt.Fprintf(&b, ", %.6fs to %.6fs", time.Duration(ev.invoke).Seconds(), time.Duration(ev.ret).Seconds())
	return b.String()
}

// explain turns findings into text: those that are about values get the events that have them.
func (v *verifier) explain() error {
	if len(v.found) == 0 {
		return nil
	}
	type value struct {
		key uint32
		id  int64
	}
	wanted := map[value][]string{}
	for _, f := range v.found {
		if f.value != 0 {
			wanted[value{f.key, f.value}] = nil
		}
		if f.other != 0 {
			wanted[value{f.key, f.other}] = nil
		}
	}
	byKey := map[uint32][]int64{}
	for w := range wanted {
		byKey[w.key] = append(byKey[w.key], w.id)
	}
	var buf []byte
	for _, s := range v.spans {
		if len(wanted) == 0 {
			break
		}
		e, b, err := v.read(s, buf)
		if err != nil {
			return err
		}
		buf = b
		for e.next() {
			ids := byKey[e.e.key]
			if len(ids) == 0 {
				continue
			}
			e.e.runs(func(first, last int64) {
				for _, id := range ids {
					w := value{e.e.key, id}
					if first <= id && id <= last && len(wanted[w]) < 4 {
						wanted[w] = append(wanted[w], v.describe(v.recorders[s.recorder], &e.e))
					}
				}
			})
		}
	}
	for _, f := range v.found {
		text := "- "
		if f.key != 0 || f.value != 0 {
			text += "key " + v.name(f.key) + ": "
		}
		text += f.text
		for i, id := range []int64{f.value, f.other} {
			if id == 0 || i == 1 && f.other == f.value {
				continue
			}
			for _, line := range wanted[value{f.key, id}] {
				text += "\n    " + line
			}
		}
		v.r.Findings = append(v.r.Findings, text)
	}
	return nil
}
