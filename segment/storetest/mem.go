// Package storetest holds what tests need to speak of stores: an in-memory database with faults that can go back in time, and
// one conformance suite that every segment.Store must pass.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"redleaf/segment"
)

// DB is a database in memory which several instances share, each through its own handle (Open). It follows the rules of
// DESIGN.md about a database that went back: one server row with history, epoch, beat, base and identity, a guard on every
// write, a skip and a pause. Safe for concurrent use.
type DB struct {
	// Check is the instances' segment.check: a pause lasts twice as long. Skip is failover_skip. Set both before Open.
	Check time.Duration
	Skip  int64
	// Granted, where set, is told every span that was granted, even if the caller sees an error. It runs under the lock.
	Granted func(tag string, g segment.Grant)

	mu       sync.Mutex
	data     data
	identity string    // of the server itself: it does not go along with backups
	up       time.Time // when this server started; zero: long ago
	down     error     // answered by every call, if set
	servers  int
}

// data is what a backup holds and a replica lags in.
type data struct {
	rows map[string]segment.Row
	srv  server
}

type server struct {
	history           string
	epoch, beat, base int64
	identity          string
	since             time.Time
}

func (d data) clone() data {
	d.rows = maps.Clone(d.rows)
	return d
}

// Backup is a copy of a DB's data at one moment.
type Backup struct{ data data }

// Row is a row as the backup has it.
func (b Backup) Row(tag string) (segment.Row, bool) {
	r, ok := b.data.rows[tag]
	return r, ok
}

// Beat is how far the beat had come.
func (b Backup) Beat() int64 { return b.data.srv.beat }

// NewDB returns an empty database with no pause and no skip.
func NewDB() *DB {
	d := &DB{identity: "server-1", servers: 1}
	d.data = data{rows: map[string]segment.Row{}, srv: server{history: "history-1", identity: "server-1", beat: 1}}
	return d
}

// Backup copies the data as they stand.
func (d *DB) Backup() Backup {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Backup{d.data.clone()}
}

// Restore puts an old copy back on the same server: a dump was restored.
func (d *DB) Restore(b Backup) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.data = b.data.clone()
}

// Failover puts another server in the old one's place. It has the data of b: a replica that lagged.
func (d *DB) Failover(b Backup) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.servers++
	d.identity = fmt.Sprintf("server-%d", d.servers)
	d.up = time.Now()
	d.data = b.data.clone()
}

// SetRow is an operator's SQL: it writes a row by hand, whatever stood there.
func (d *DB) SetRow(r segment.Row) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.data.rows[r.Tag] = r
}

// DeleteRow is an operator's SQL: it deletes a row by hand.
func (d *DB) DeleteRow(tag string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.data.rows, tag)
}

// Row reads a row past all faults.
func (d *DB) Row(tag string) (segment.Row, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.data.rows[tag]
	return r, ok
}

// SetDown makes every call of every handle fail with err until it is nil.
func (d *DB) SetDown(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = err
}

// Base is the bound from which tags are created by INCR.
func (d *DB) Base() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.data.srv.base
}

// Mem is one instance's handle on a DB. Once it is in use its hooks may be changed within Set alone.
type Mem struct {
	// Fault is asked before each call. A non-nil err is what the caller gets; apply tells whether the call took effect all
	// the same. op is the method's name; tag is "" for Pulse, List and Count, and for Rows the first tag.
	Fault func(op, tag string) (apply bool, err error)
	// Latency is slept before a call takes effect, Reply after it did. A ctx that ends meanwhile is an error, so one that ends
	// in Reply has taken effect.
	Latency, Reply func(op, tag string) time.Duration

	db   *DB
	seen *Seen

	mu      sync.Mutex
	epoch   int64
	beat    int64
	granted bool
	calls   map[string]int
}

// NewMem returns a handle on a database of its own.
func NewMem() *Mem { return NewDB().Open() }

// Seen is what an instance has seen of a database, kept across its restarts as data_dir keeps it.
type Seen struct {
	mu          sync.Mutex
	epoch, beat int64
}

// Beat is the highest beat seen.
func (s *Seen) Beat() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beat
}

func (s *Seen) see(epoch, beat int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch, s.beat = max(s.epoch, epoch), max(s.beat, beat)
}

// Open returns a new handle: one more instance.
func (d *DB) Open() *Mem { return d.OpenAgain(&Seen{}) }

// OpenAgain returns a new handle for an instance that has seen the database before.
func (d *DB) OpenAgain(seen *Seen) *Mem {
	d.mu.Lock()
	defer d.mu.Unlock()
	if seen.Beat() == 0 {
		seen.see(d.data.srv.epoch, d.data.srv.beat)
	}
	return &Mem{db: d, seen: seen, epoch: seen.epoch, beat: seen.beat, calls: map[string]int{}}
}

// DB is the database behind m.
func (m *Mem) DB() *DB { return m.db }

// Set changes hooks of a handle that is in use.
func (m *Mem) Set(change func(m *Mem)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

// Calls is how often op was called through m.
func (m *Mem) Calls(op string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[op]
}

// ErrLost is an error of the kind that waiting cures: a reply that did not come.
var ErrLost = &segment.UnavailableError{Cause: errors.New("the connection was lost")}

func sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return &segment.UnavailableError{Cause: err}
	}
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return &segment.UnavailableError{Cause: ctx.Err()}
	}
}

// do runs one call: latency, fault, effect, reply. f runs with the database locked.
func (m *Mem) do(ctx context.Context, op, tag string, f func() error) error {
	m.mu.Lock()
	m.calls[op]++
	hookFault, latency, reply := m.Fault, m.Latency, m.Reply
	m.mu.Unlock()
	var d time.Duration
	if latency != nil {
		d = latency(op, tag)
	}
	if err := sleep(ctx, d); err != nil {
		return err
	}
	apply, fault := true, error(nil)
	if hookFault != nil {
		apply, fault = hookFault(op, tag)
		if fault == nil {
			apply = true
		}
	}
	var err error
	if apply {
		err = func() error {
			m.db.mu.Lock()
			defer m.db.mu.Unlock()
			if m.db.down != nil {
				return m.db.down
			}
			return f()
		}()
	}
	if fault != nil {
		return fault
	}
	if err == nil && reply != nil {
		err = sleep(ctx, reply(op, tag))
	}
	return err
}

// notice compares the server with what this handle knows, and counts that it went back if it did. The caller holds db.mu.
func (m *Mem) notice() {
	s := &m.db.data.srv
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.db.identity != s.identity || s.beat < m.beat {
		// Who notices first leaves the hole in every row, in one transaction.
		for tag, r := range m.db.data.rows {
			r.Max = min(r.Max, segment.MaxID-m.db.Skip) + m.db.Skip
			m.db.data.rows[tag] = r
		}
		s.epoch = max(s.epoch, m.epoch) + 1
		s.beat = max(s.beat, m.beat) + 1_000_000
		s.base += m.db.Skip
		s.identity = m.db.identity
		s.since = time.Now()
	}
	m.epoch = s.epoch
	m.beat = max(m.beat, s.beat)
	m.seen.see(m.epoch, m.beat)
}

// paused is how long no grant is given to this handle. The caller holds db.mu.
func (m *Mem) paused() time.Duration {
	var p time.Duration
	if s := m.db.data.srv.since; !s.IsZero() {
		p = time.Until(s.Add(2 * m.db.Check))
	}
	m.mu.Lock()
	first := !m.granted
	m.mu.Unlock()
	if first && !m.db.up.IsZero() {
		p = max(p, time.Until(m.db.up.Add(2*m.db.Check)))
	}
	return max(p, 0)
}

// guard lets a write pass only if the store has not gone back and is not paused. The caller holds db.mu.
func (m *Mem) guard() error {
	s := &m.db.data.srv
	m.mu.Lock()
	same := s.epoch == m.epoch && s.beat >= m.beat && m.db.identity == s.identity
	m.mu.Unlock()
	if !same {
		m.notice()
		return &segment.UnavailableError{Cause: errors.New("the database went back")}
	}
	if p := m.paused(); p > 0 {
		return &segment.UnavailableError{Cause: fmt.Errorf("no grants for %v after the database went back", p)}
	}
	return nil
}

// Reserve implements segment.Store.
func (m *Mem) Reserve(ctx context.Context, tag string, n, floor int64) (g segment.Grant, err error) {
	err = m.do(ctx, "Reserve", tag, func() error {
		if n < 1 {
			return &segment.RefusedError{Cause: fmt.Errorf("reserve of %d", n)}
		}
		if err := m.guard(); err != nil {
			return err
		}
		r, ok := m.db.data.rows[tag]
		switch {
		case !ok:
			return segment.ErrNoTag
		case r.Err != nil:
			return r.Err
		case r.Max < floor:
			return &segment.RegressedError{Tag: tag, Row: r.Max, Floor: floor}
		case r.Max > segment.MaxID-n:
			return segment.ErrExhausted
		}
		g = segment.Grant{Span: segment.Span{Lo: r.Max, Hi: r.Max + n}, Server: m.db.identity}
		r.Max += n
		m.put(r)
		m.mu.Lock()
		m.granted = true
		m.mu.Unlock()
		if m.db.Granted != nil {
			m.db.Granted(tag, g)
		}
		return nil
	})
	if err != nil {
		return segment.Grant{}, err
	}
	return g, nil
}

func (m *Mem) put(r segment.Row) {
	r.Updated = time.Now()
	m.db.data.rows[r.Tag] = r
}

// Rows implements segment.Store.
func (m *Mem) Rows(ctx context.Context, tags []string) (map[string]segment.Row, error) {
	first := ""
	if len(tags) > 0 {
		first = tags[0]
	}
	rows := map[string]segment.Row{}
	err := m.do(ctx, "Rows", first, func() error {
		for _, t := range tags {
			if r, ok := m.db.data.rows[t]; ok {
				rows[t] = r
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Create implements segment.Store.
func (m *Mem) Create(ctx context.Context, row segment.Row, inherit bool) (now segment.Row, created bool, err error) {
	err = m.do(ctx, "Create", row.Tag, func() error {
		if row.Max < 1 || row.Step < 1 {
			return &segment.RefusedError{Cause: fmt.Errorf("create with max %d, step %d", row.Max, row.Step)}
		}
		if err := m.guard(); err != nil {
			return err
		}
		if r, ok := m.db.data.rows[row.Tag]; ok {
			now = r
			return nil
		}
		if inherit {
			row.Max = max(row.Max, m.db.data.srv.base)
		}
		m.put(row)
		now, created = m.db.data.rows[row.Tag], true
		return nil
	})
	if err != nil {
		return segment.Row{}, false, err
	}
	return now, created, nil
}

// Advance implements segment.Store.
func (m *Mem) Advance(ctx context.Context, tag string, n int64) (found int64, moved bool, err error) {
	err = m.do(ctx, "Advance", tag, func() error {
		if n < 0 || n == segment.MaxID {
			return &segment.RefusedError{Cause: fmt.Errorf("advance to %d", n)}
		}
		if err := m.guard(); err != nil {
			return err
		}
		r, ok := m.db.data.rows[tag]
		if !ok {
			return segment.ErrNoTag
		}
		found = r.Max
		if r.Max <= n {
			r.Max, moved = n+1, true
			m.put(r)
		}
		return nil
	})
	if err != nil {
		return 0, false, err
	}
	return found, moved, nil
}

// Fence implements segment.Store.
func (m *Mem) Fence(ctx context.Context, tag string, floor int64, restore *segment.Row) (found int64, err error) {
	err = m.do(ctx, "Fence", tag, func() error {
		m.notice()
		r, ok := m.db.data.rows[tag]
		if !ok {
			if restore == nil {
				return segment.ErrNoTag
			}
			r := *restore
			r.Tag = tag
			m.put(r)
			return nil
		}
		found = r.Max
		if r.Max < floor {
			r.Max = floor
			m.put(r)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return found, nil
}

// GiveBack implements segment.Store.
func (m *Mem) GiveBack(ctx context.Context, tag string, span segment.Span, server string) (done bool, err error) {
	err = m.do(ctx, "GiveBack", tag, func() error {
		if m.guard() != nil || server != m.db.identity {
			return nil
		}
		r, ok := m.db.data.rows[tag]
		if ok && r.Max == span.Hi && span.Lo < span.Hi && span.Lo >= 1 {
			r.Max, done = span.Lo, true
			m.put(r)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	return done, nil
}

// List implements segment.Store.
func (m *Mem) List(ctx context.Context, after string, limit int) ([]segment.Row, error) {
	var rows []segment.Row
	err := m.do(ctx, "List", "", func() error {
		for _, tag := range slices.Sorted(maps.Keys(m.db.data.rows)) {
			if tag > after && len(rows) < limit {
				rows = append(rows, m.db.data.rows[tag])
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Count implements segment.Store.
func (m *Mem) Count(ctx context.Context) (n int64, err error) {
	err = m.do(ctx, "Count", "", func() error {
		n = int64(len(m.db.data.rows))
		return nil
	})
	return n, err
}

// Pulse implements segment.Store.
func (m *Mem) Pulse(ctx context.Context) (p segment.Pulse, err error) {
	err = m.do(ctx, "Pulse", "", func() error {
		m.notice()
		s := &m.db.data.srv
		s.beat++
		m.mu.Lock()
		m.beat = s.beat
		m.seen.see(m.epoch, m.beat)
		m.mu.Unlock()
		p = segment.Pulse{History: s.history, Epoch: s.epoch, Paused: m.paused(), Skip: m.db.Skip}
		return nil
	})
	if err != nil {
		return segment.Pulse{}, err
	}
	return p, nil
}

// RaiseBase implements segment.BaseRaiser.
func (m *Mem) RaiseBase(ctx context.Context, floor int64) error {
	return m.do(ctx, "RaiseBase", "", func() error {
		m.notice()
		m.db.data.srv.base = max(m.db.data.srv.base, floor)
		return nil
	})
}

// Close implements segment.Store.
func (m *Mem) Close() error { return nil }

// Floors is a segment.Floors in memory that outlives the instance which uses it.
type Floors struct {
	// Fault is asked before each call, as Mem.Fault is; op is the method's name.
	Fault func(op string) (apply bool, err error)

	mu    sync.Mutex
	m     map[string]map[string]int64
	saves int
}

// NewFloors returns Floors that know nothing.
func NewFloors() *Floors { return &Floors{m: map[string]map[string]int64{}} }

func (f *Floors) do(op string, g func()) error {
	apply, err := true, error(nil)
	if f.Fault != nil {
		apply, err = f.Fault(op)
	}
	if apply || err == nil {
		f.mu.Lock()
		g()
		f.mu.Unlock()
	}
	return err
}

// Floor implements segment.Floors.
func (f *Floors) Floor(history, tag string) (n int64, err error) {
	err = f.do("Floor", func() { n = f.m[history][tag] })
	return n, err
}

// Save implements segment.Floors. It never lowers a floor.
func (f *Floors) Save(history string, floors map[string]int64) error {
	return f.do("Save", func() {
		f.saves++
		if f.m[history] == nil {
			f.m[history] = map[string]int64{}
		}
		for tag, n := range floors {
			f.m[history][tag] = max(f.m[history][tag], n)
		}
	})
}

// Lower implements segment.Floors.
func (f *Floors) Lower(history, tag string, floor int64) error {
	return f.do("Lower", func() {
		if f.m[history] == nil {
			f.m[history] = map[string]int64{}
		}
		f.m[history][tag] = floor
	})
}

// Each implements segment.Floors.
func (f *Floors) Each(history string, fn func(tag string, floor int64) error) error {
	var all map[string]int64
	if err := f.do("Each", func() { all = maps.Clone(f.m[history]) }); err != nil {
		return err
	}
	for _, tag := range slices.Sorted(maps.Keys(all)) {
		if err := fn(tag, all[tag]); err != nil {
			return err
		}
	}
	return nil
}

// Saves is how often Save was called.
func (f *Floors) Saves() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.saves
}

// Close implements segment.Floors.
func (f *Floors) Close() error { return nil }
