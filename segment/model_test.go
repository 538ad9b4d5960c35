package segment_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"redleaf/segment"
	"redleaf/segment/storetest"
)

var (
	seeds = flag.Int("segment.seeds", 20, "worlds that the model test plays for each of its kinds")
	seed0 = flag.Uint64("segment.seed", 0, "first seed of the model test; 0: by the clock")
)

// ledger re-proves everything after each step: IDs are unique, lie in spans the store granted or in SETs it confirmed, and
// increase for each instance.
type ledger struct {
	mu      sync.Mutex
	owner   map[string]map[int64]string
	last    map[string]int64 // per tag and instance
	granted map[string][]segment.Span
	errs    []string
	ids     int
	refused map[string]int // errors that takes got, by kind
}

func newLedger(db *storetest.DB) *ledger {
	l := &ledger{owner: map[string]map[int64]string{}, last: map[string]int64{}, granted: map[string][]segment.Span{}, refused: map[string]int{}}
	db.Granted = func(tag string, g segment.Grant) {
		l.mu.Lock()
		l.granted[tag] = append(l.granted[tag], g.Span)
		l.mu.Unlock()
	}
	return l
}

func (l *ledger) wrong(format string, args ...any) {
	if len(l.errs) < 5 {
		l.errs = append(l.errs, fmt.Sprintf(format, args...))
	}
}

// give books the IDs (last-n, last]. before is what the instance had given when the request began.
func (l *ledger) give(tag, who string, last, n, before int64, set bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owner[tag] == nil {
		l.owner[tag] = map[int64]string{}
	}
	for id := last - n + 1; id <= last; id++ {
		if id < 0 || id < 1 && !set {
			l.wrong("%s: ID %d by %s", tag, id, who)
		}
		if other, ok := l.owner[tag][id]; ok {
			l.wrong("%s: %d was handed out by %s and by %s (at %v)", tag, id, other, who, time.Now().Format("04:05.000"))
		}
		l.owner[tag][id] = who
	}
	if last-n+1 <= before && last > 0 {
		l.wrong("%s: %s gave %d after a reply of %d was received", tag, who, last-n+1, before)
	}
	l.last[tag+"/"+who] = max(l.last[tag+"/"+who], last)
	l.ids += int(n)
	if set {
		return
	}
	// Contiguous IDs lie in spans that together cover them.
	covered := int64(0)
	for _, s := range l.granted[tag] {
		covered += max(min(s.Hi, last+1)-max(s.Lo, last-n+1), 0)
	}
	if covered < n {
		l.wrong("%s: (%d, %d] by %s lies in no granted span", tag, last-n, last, who)
	}
}

func (l *ledger) before(tag, who string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[tag+"/"+who]
}

func (l *ledger) refuse(err error) {
	kind := "other: " + err.Error()
	var (
		again *segment.AgainError
		re    *segment.RegressedError
	)
	switch {
	case errors.As(err, &again):
		kind = "again"
	case errors.As(err, &re):
		kind = "regressed"
	case errors.Is(err, segment.ErrClosed):
		kind = "closed"
	case errors.Is(err, segment.ErrNoTag):
		kind = "no tag"
	}
	l.mu.Lock()
	l.refused[kind]++
	l.mu.Unlock()
}

// instance is one Redleaf: an allocator with its store handle, and a data_dir that outlives it.
type instance struct {
	name   string
	floors *storetest.Floors
	seen   storetest.Seen

	mu   sync.Mutex
	life *life // nil while it is down
	n    int
}

// life is one process of an instance.
type life struct {
	name string
	a    *segment.Allocator
	dead atomic.Bool // killed: nothing it does reaches the database or the disk any more
	cut  atomic.Bool // it can't reach the database
}

func (in *instance) now() *life {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.life
}

// lifeFloors are an instance's floors as one life sees them.
type lifeFloors struct {
	*storetest.Floors
	l *life
}

func (f lifeFloors) Save(history string, floors map[string]int64) error {
	if f.l.dead.Load() {
		return storetest.ErrLost
	}
	return f.Floors.Save(history, floors)
}

func (f lifeFloors) Lower(history, tag string, floor int64) error {
	if f.l.dead.Load() {
		return storetest.ErrLost
	}
	return f.Floors.Lower(history, tag, floor)
}

// world is two or three instances on a database that things happen to.
type world struct {
	t    *testing.T
	r    *rand.Rand
	db   *storetest.DB
	log  *ledger
	ins  []*instance
	born time.Time
	o    segment.Options

	faults atomic.Int64 // share of calls that fail, in thousandths
	stop   chan struct{}
	wg     sync.WaitGroup
	still  chan struct{} // holds one place for each request under way; who fills it has all clients stand still
}

// tags are the tags there are by now: two old ones, and one that is new every few seconds.
func (w *world) tags() []string {
	tags := []string{"order", "user"}
	for i := range int(time.Since(w.born)/(7*time.Second)) + 1 {
		tags = append(tags, fmt.Sprintf("ticket-%d", i))
	}
	return tags
}

// tag picks one of them, the newest as often as both old ones together.
func (w *world) tag(r *rand.Rand) string {
	tags := w.tags()
	if r.IntN(2) == 0 {
		return tags[len(tags)-1]
	}
	return tags[r.IntN(min(len(tags), 2+r.IntN(len(tags))))]
}

// places is more than there are clients.
const places = 10

func newWorld(t *testing.T, r *rand.Rand) *world {
	w := &world{t: t, r: r, db: storetest.NewDB(), stop: make(chan struct{}), still: make(chan struct{}, places)}
	w.log = newLedger(w.db)
	w.db.Check = 5 * time.Second
	w.born = time.Now()
	w.o = segment.Options{AutoCreate: []string{"*"}, Step: 1 + r.Int64N(40), MaxStep: 300, Target: 30 * time.Second, Check: w.db.Check, MaxCount: 100}
	return w
}

func (w *world) open(n int) {
	for i := range n {
		in := &instance{name: string(rune('A' + i)), floors: storetest.NewFloors()}
		w.ins = append(w.ins, in)
		w.begin(in)
		for range 2 {
			r := rand.New(rand.NewPCG(w.r.Uint64(), 1))
			w.wg.Go(func() { w.client(in, r) })
		}
	}
}

func (w *world) begin(in *instance) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.n++
	l := &life{name: fmt.Sprintf("%s.%d", in.name, in.n)}
	m := w.db.OpenAgain(&in.seen)
	r := rand.New(rand.NewPCG(w.r.Uint64(), 2))
	var mu sync.Mutex
	m.Fault = func(op, tag string) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		if l.dead.Load() || l.cut.Load() {
			return false, storetest.ErrLost
		}
		if r.Int64N(1000) < w.faults.Load() {
			return r.IntN(2) == 0, storetest.ErrLost // faults come in pairs: applied, and not
		}
		return true, nil
	}
	m.Latency = func(op, tag string) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(r.Int64N(int64(40 * time.Millisecond)))
	}
	m.Reply = m.Latency
	o := w.o
	if testing.Verbose() && *seeds == 1 {
		o.Log = zerolog.New(zerolog.NewTestWriter(w.t)).With().Str("life", l.name).Str("at", "").Logger().Hook(zerolog.HookFunc(func(e *zerolog.Event, _ zerolog.Level, _ string) { e.Str("at", time.Now().Format("04:05.000")) }))
	}
	l.a = segment.New(m, lifeFloors{in.floors, l}, o)
	l.a.Start()
	in.life = l
}

// end stops an instance: cleanly, or by kill -9.
func (w *world) end(in *instance, kill bool) {
	in.mu.Lock()
	l := in.life
	in.life = nil
	in.mu.Unlock()
	if l == nil {
		return
	}
	l.dead.Store(kill) // the Close below then only ends its goroutines
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = l.a.Close(ctx)
}

// client asks one instance for IDs until the world stops.
func (w *world) client(in *instance, r *rand.Rand) {
	for {
		select {
		case <-w.stop:
			return
		case <-time.After(time.Duration(r.Int64N(int64(300 * time.Millisecond)))):
		}
		w.still <- struct{}{}
		w.request(in, r)
		<-w.still
	}
}

func (w *world) request(in *instance, r *rand.Rand) {
	l := in.now()
	if l == nil {
		return
	}
	tag := w.tag(r)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	before := w.log.before(tag, l.name)
	n := int64(1)
	if r.IntN(3) == 0 {
		n = 1 + r.Int64N(30)
	}
	switch r.IntN(20) {
	case 0: // as django-redis does without EVAL
		got, exists, err := l.a.Last(ctx, tag)
		if err != nil || !exists {
			return
		}
		done, err := l.a.Set(ctx, tag, got+1, segment.SetMode(r.IntN(3)))
		if err == nil && done && !l.dead.Load() {
			w.log.give(tag, l.name, got+1, 1, before, true)
		}
	case 1:
		ids, err := l.a.TakeMany(ctx, nil, tag, n)
		if err != nil {
			w.log.refuse(err)
			return
		}
		for _, id := range ids {
			w.log.give(tag, l.name, id, 1, before, false)
			before = id
		}
	default:
		last, ok := l.a.TryTake([]byte(tag), n)
		if !ok {
			var err error
			if last, err = l.a.Take(ctx, tag, n); err != nil {
				w.log.refuse(err)
				return
			}
		}
		w.log.give(tag, l.name, last, n, before, false)
	}
}

// runbook does what REGRESSED says: SET to the highest floor of all instances that ever served the tag, and beyond what lost
// ones may have had.
func (w *world) runbook() {
	for _, tag := range w.tags() {
		var floor int64
		var stopped *life
		for _, in := range w.ins {
			if n, _ := in.floors.Floor("history-1", tag); n > floor {
				floor = n
			}
			l := in.now()
			if l == nil {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			if i, err := l.a.Info(ctx, tag); err == nil {
				floor = max(floor, i.Floor)
				if i.State == "regressed" || i.State == "missing" {
					stopped = l
				}
			}
			cancel()
		}
		if stopped == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		n := floor + 2*w.db.Skip + 5
		before := w.log.before(tag, stopped.name)
		if done, err := stopped.a.Set(ctx, tag, n, segment.SetAlways); err == nil && done {
			w.log.give(tag, stopped.name, n, 1, before, true)
		}
		cancel()
	}
}

// backup is a copy of the data and the time it was made.
type backup struct {
	storetest.Backup
	rows map[string]int64
	at   time.Time
}

func (w *world) backup() backup {
	b := backup{rows: map[string]int64{}, at: time.Now()}
	b.Backup = w.db.Backup()
	for _, tag := range w.tags() {
		if r, ok := b.Row(tag); ok {
			b.rows[tag] = r.Max
		}
	}
	return b
}

// lag is how far the rows have moved since b. A tag younger than b would be made again at the base.
func (w *world) lag(b backup) int64 {
	var lag int64
	for _, tag := range w.tags() {
		if r, ok := w.db.Row(tag); ok {
			was, ok := b.rows[tag]
			if !ok {
				was = 1
			}
			lag = max(lag, r.Max-was)
		}
	}
	return lag
}

// finish cures everything and lets each instance serve each tag once more.
func (w *world) finish() {
	w.faults.Store(0)
	for _, in := range w.ins {
		if l := in.now(); l != nil {
			l.cut.Store(false)
		} else {
			w.begin(in)
		}
	}
	time.Sleep(4 * w.db.Check)
	for range 3 {
		w.runbook()
		time.Sleep(3 * time.Second)
	}
	close(w.stop)
	w.wg.Wait()
	for _, in := range w.ins {
		l := in.now()
		for _, tag := range w.tags() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			before := w.log.before(tag, l.name)
			last, err := l.a.Take(ctx, tag, 1)
			cancel()
			if err != nil {
				w.log.wrong("%s: %s is stuck after all was cured: %v", tag, l.name, err)
				continue
			}
			w.log.give(tag, l.name, last, 1, before, false)
		}
	}
	for _, in := range w.ins {
		w.end(in, false)
	}
}

// TestModel plays worlds of two or three instances whose database goes back: by failover to a replica that lags, by the
// restore of an old dump, by rows that are lowered or deleted by hand. Every duplicate that DESIGN.md does not list among what is
// not promised is a failure; so are a tag that stays stuck, an ID outside all spans, and one below a reply that was received.
func TestModel(t *testing.T) {
	first := *seed0
	if first == 0 {
		first = uint64(time.Now().UnixNano()) >> 10
	}
	worlds := uint64(*seeds)
	if segment.Checked && worlds > 1 {
		worlds = (worlds + 3) / 4
	}
	for _, kind := range []struct {
		name string
		play func(w *world)
	}{
		{"faults", playFaults},
		{"lag below the skip", playLag},
		{"lag above the skip", playDeepLag},
		{"no skip", playNoSkip},
		{"rows changed by hand", playHands},
	} {
		t.Run(kind.name, func(t *testing.T) {
			ids, refused := 0, map[string]int{}
			for seed := first; seed < first+worlds; seed++ {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, rand.New(rand.NewPCG(seed, 0)))
					kind.play(w)
					w.finish()
					for _, e := range w.log.errs {
						t.Errorf("seed %d: %s", seed, e)
					}
					if n := w.log.refused["regressed"]; n > 0 && kind.name == "faults" {
						t.Errorf("seed %d: %d refusals for a database that went back, and it did not", seed, n)
					}
					ids += w.log.ids
					for k, n := range w.log.refused {
						refused[k] += n
					}
				})
				if t.Failed() {
					t.Fatalf("again with -segment.seeds=1 -segment.seed=%d", seed)
				}
			}
			t.Logf("%d worlds from seed %d: %d IDs, refused %v", worlds, first, ids, refused)
		})
	}
}

// upsets does things to instances that no promise excludes: kills, clean stops, cuts, errors.
func (w *world) upset() {
	in := w.ins[w.r.IntN(len(w.ins))]
	switch w.r.IntN(5) {
	case 0:
		w.end(in, true)
	case 1:
		w.end(in, false)
	case 2:
		if l := in.now(); l != nil {
			l.cut.Store(!l.cut.Load())
		}
	case 3:
		w.faults.Store(w.r.Int64N(300))
	default:
		if in.now() == nil {
			w.begin(in)
		}
	}
}

func (w *world) pause(d time.Duration) { time.Sleep(time.Duration(w.r.Int64N(int64(d)))) }

// playFaults: the database never goes back (peers S1, S2, S14, S19; leaf S17, S23).
func playFaults(w *world) {
	w.db.Skip = 3000
	w.open(2 + w.r.IntN(2))
	for range 15 {
		w.pause(4 * time.Second)
		w.upset()
	}
}

// playLag: failovers and restores that lose less than the skip, with instances dying, cut off and coming back at any time
// (leaf S18, peers S10, S12).
func playLag(w *world) {
	w.db.Skip = 3000
	w.open(2 + w.r.IntN(2))
	var backups []backup
	for range 20 {
		w.pause(4 * time.Second)
		switch w.r.IntN(4) {
		case 0:
			w.upset()
		case 1, 2:
			backups = append(backups, w.backup())
		default:
			var old []backup
			for _, b := range backups {
				// The beat has moved since: what is younger than the last beat is not promised.
				if w.lag(b) < w.db.Skip && time.Since(b.at) > 2*w.db.Check {
					old = append(old, b)
				}
			}
			if len(old) == 0 {
				continue
			}
			b := old[w.r.IntN(len(old))]
			if w.r.IntN(2) == 0 {
				w.db.Failover(b.Backup)
			} else if w.witnessed(b) {
				w.db.Restore(b.Backup)
				time.Sleep(w.db.Check + 2*time.Second)
			}
		}
	}
}

// witnessed tells whether all instances that are up and connected saw a later beat than b's, and there are some. An old dump put
// back on the same server is rows lowered by hand to one who was away since, or is new: until a witness's next check only those
// can tell.
func (w *world) witnessed(b backup) bool {
	n := 0
	for _, in := range w.ins {
		if l := in.now(); l != nil && !l.cut.Load() {
			if in.seen.Beat() <= b.Beat() {
				return false
			}
			n++
		}
	}
	return n > 0
}

// playDeepLag: the database goes back by more than the skip, while all who ever served live and are connected.
func playDeepLag(w *world) {
	w.db.Skip = 1 + w.r.Int64N(50)
	deepLag(w)
}

// playNoSkip: the same with the skip off.
func playNoSkip(w *world) { deepLag(w) }

func deepLag(w *world) {
	w.open(2 + w.r.IntN(2))
	var backups []backup
	for range 8 {
		w.pause(6 * time.Second)
		backups = append(backups, w.backup())
		w.pause(6 * time.Second)
		if b := backups[w.r.IntN(len(backups))]; time.Since(b.at) > 2*w.db.Check {
			if w.r.IntN(2) == 0 {
				w.db.Failover(b.Backup)
			} else {
				w.db.Restore(b.Backup)
			}
			time.Sleep(3 * w.db.Check)
			if w.r.IntN(2) == 0 {
				w.runbook()
			}
		}
	}
}

// playHands: rows are lowered, deleted, put back at 1 or raised by SQL, and nobody refills before the next check (leaf S13,
// S16; peers S13).
func playHands(w *world) {
	w.db.Skip = 3000
	w.open(2 + w.r.IntN(2))
	for range 8 {
		w.pause(8 * time.Second)
		tag := w.tag(w.r)
		for range places {
			w.still <- struct{}{}
		}
		time.Sleep(5 * time.Second) // what is in flight comes home
		r, ok := w.db.Row(tag)
		if !ok {
			r = segment.Row{Tag: tag, Max: 1, Step: 10}
		}
		switch w.r.IntN(4) {
		case 0:
			w.db.DeleteRow(tag)
		case 1:
			r.Max = 1 + w.r.Int64N(r.Max)
			w.db.SetRow(r)
		case 2:
			r.Max = 1
			w.db.SetRow(r)
		default:
			r.Max += w.r.Int64N(1000)
			r.Step = 1 + w.r.Int64N(60)
			w.db.SetRow(r)
		}
		time.Sleep(2*w.db.Check + time.Second)
		for range places {
			<-w.still
		}
		w.pause(4 * time.Second)
		if w.r.IntN(2) == 0 {
			w.runbook()
		}
	}
}
