package snowflake_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"redleaf/snowflake"
	"redleaf/snowflake/workertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var leaf = snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: 10, SequenceBits: 12}

// noon is where most tests' clocks begin.
const noon = 1_800_000_000_000

const day = 24 * time.Hour

// rig is a generator on a registry in memory, in a synctest bubble: time goes on only while everybody waits.
type rig struct {
	*snowflake.Generator
	t     *testing.T
	clock *workertest.Clock
	mem   *workertest.Mem
	ids   *workertest.MemIDs
	log   logbook
	last  int64 // the last ID seen
}

type setup struct {
	snowflake.Options
	numbers int
	clock   *workertest.Clock
	mem     *workertest.Mem
	early   bool // don't wait until it is ready
	manual  bool
}

// bubble runs f with a started generator, and closes it.
func bubble(t *testing.T, s setup, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, s)
		defer r.close()
		f(t, r)
	})
}

func newRig(t *testing.T, s setup) *rig {
	t.Helper()
	if s.Layout == (snowflake.Layout{}) {
		s.Layout = leaf
	}
	if s.ClockWait == 0 {
		s.ClockWait = 5 * time.Millisecond
	}
	if s.numbers == 0 {
		s.numbers = 1
	}
	r := &rig{t: t, clock: s.clock, mem: s.mem}
	if r.clock == nil {
		r.clock = workertest.NewRunningClock(noon)
		if s.manual {
			r.clock = workertest.NewClock(noon)
		}
	}
	if r.mem == nil {
		r.mem = workertest.NewMem(s.numbers)
	}
	s.Log = zerolog.New(&r.log)
	r.ids = r.mem.Open("a")
	g, err := snowflake.New(r.ids, r.clock, s.Options)
	if err != nil {
		t.Fatal(err)
	}
	g.SetSeed(1)
	r.Generator = g
	g.Start()
	if !s.early {
		r.ready()
	}
	return r
}

// ready waits until IDs can be had, and says how long that took.
func (r *rig) ready() time.Duration {
	r.t.Helper()
	began := time.Now()
	for {
		synctest.Wait()
		err := r.Ready()
		if err == nil {
			return time.Since(began)
		}
		switch waited := time.Since(began); {
		case waited > 10*time.Hour:
			r.t.Fatalf("not ready after %s: %v", waited, err)
		case waited > 10*time.Second:
			time.Sleep(time.Second)
		default:
			time.Sleep(time.Millisecond)
		}
	}
}

func (r *rig) close() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		r.t.Errorf("close: %v", err)
	}
	r.ids.Close(ctx)
}

// kill ends the instance without giving anything back, and frees the number for the next one.
func (r *rig) kill() {
	r.ids.Kill() // from here on nothing it writes takes effect
	r.Close(context.Background())
}

// next draws an ID that must be larger than all before.
func (r *rig) next() (ms int64) {
	r.t.Helper()
	ms, err := r.try()
	if err != nil {
		r.t.Fatalf("next: %v", err)
	}
	return ms
}

func (r *rig) try() (ms int64, err error) {
	r.t.Helper()
	began := time.Now()
	id, err := r.Next(r.t.Context())
	if took := time.Since(began); took > 10*time.Millisecond {
		r.t.Errorf("next took %s (%v)", took, err)
	}
	if err != nil {
		if id != 0 {
			r.t.Errorf("an ID, %d, beside the error %v", id, err)
		}
		return 0, err
	}
	if id <= r.last {
		r.t.Fatalf("%d after %d", id, r.last)
	}
	r.last = id
	if got := r.Last(); got != id {
		r.t.Errorf("Last %d after %d", got, id)
	}
	return parts(r.t, r.Layout(), id).Ms, nil
}

func parts(t testing.TB, l snowflake.Layout, id int64) snowflake.Parts {
	t.Helper()
	p, err := l.Unpack(id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// refused expects the next request to be refused as behind by so much of what.
func (r *rig) refused(behind time.Duration, what string) {
	r.t.Helper()
	var back *snowflake.ClockBackError
	_, err := r.try()
	if !errors.As(err, &back) {
		r.t.Fatalf("got %v, want *ClockBackError", err)
	}
	if back.Behind != behind || back.What != what {
		r.t.Errorf("behind %s of %s, want %s of %s", back.Behind, back.What, behind, what)
	}
	if id, ok := r.TryNext(); ok {
		r.t.Errorf("TryNext gave %d", id)
	}
}

// logbook is a log to look at.
type logbook struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logbook) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
