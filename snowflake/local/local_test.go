package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"redleaf/conf/datadir"
	"redleaf/snowflake"
	"redleaf/snowflake/workertest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(drawerDir); dir != "" {
		drawer(dir)
	}
	goleak.VerifyTestMain(m)
}

var leaf = snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: 10, SequenceBits: 12}

// machine is one start of a process on a data directory.
type machine struct {
	dir *datadir.Dir
	ids *Registry
}

func start(t *testing.T, path string, o Options) (*machine, error) {
	t.Helper()
	d, err := datadir.Open(path, datadir.Options{})
	if err != nil {
		return nil, err
	}
	if o.Layout == (snowflake.Layout{}) {
		o.Layout = leaf
	}
	ids, err := Open(d, o)
	if err != nil {
		d.Close()
		return nil, err
	}
	m := &machine{dir: d, ids: ids}
	t.Cleanup(m.kill)
	return m, nil
}

func mustStart(t *testing.T, path string, o Options) *machine {
	t.Helper()
	m, err := start(t, path, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// kill leaves the file as it is: every bound in it was on disk before it was granted.
func (m *machine) kill() {
	m.ids.Close(context.Background())
	m.dir.Close()
}

func (m *machine) acquire(t *testing.T) snowflake.Worker {
	t.Helper()
	w, err := m.ids.Acquire(t.Context(), -1)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestConformance(t *testing.T) {
	workertest.Run(t, func(t *testing.T, clock *workertest.Clock) workertest.Env {
		path := filepath.Join(t.TempDir(), "data")
		var mu sync.Mutex
		running := map[string]*machine{}
		return workertest.Env{
			Start: func(t *testing.T, name string) (snowflake.WorkerIDs, error) {
				mu.Lock()
				defer mu.Unlock()
				if m := running[name]; m != nil { // an instance that stopped cleanly has closed its registry only
					m.dir.Close()
				}
				m, err := start(t, path, Options{Clock: clock})
				if err != nil {
					return nil, err
				}
				running[name] = m
				return m.ids, nil
			},
			Kill: func(t *testing.T, name string) {
				mu.Lock()
				defer mu.Unlock()
				running[name].kill()
				delete(running, name)
			},
		}
	})
}

const day = 24 * time.Hour

func TestWindows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	clock := workertest.NewClock(1_700_000_000_000)
	m := mustStart(t, path, Options{Worker: 5, Clock: clock})
	w := m.acquire(t)
	// A history begins at the clock, not at the epoch: what lies before was somebody's, or nobody's.
	if got, want := w.Window(), (snowflake.Window{Base: 1_700_000_000_000, Until: 1_700_000_000_000}); w.ID() != 5 || got != want {
		t.Fatalf("worker %d, window %v, want 5, %v", w.ID(), got, want)
	}
	win, err := w.Extend(t.Context(), 1_700_000_001_000)
	if want := (snowflake.Window{Base: 1_700_000_000_000, Until: 1_700_000_003_000}); err != nil || win != want {
		t.Fatalf("%v, %v, want %v", win, err, want)
	}
	m.kill()

	// leaf F2, peers W24: after kill -9 the window begins above what was reserved, whatever the clock says.
	clock.Step(-time.Second)
	m = mustStart(t, path, Options{Worker: 5, Clock: clock})
	w = m.acquire(t)
	if got := w.Window().Base; got != 1_700_000_003_000 {
		t.Fatalf("base %d, want 1700000003000", got)
	}
	if _, err := w.Extend(t.Context(), 1_700_000_004_000); err != nil {
		t.Fatal(err)
	}
	if err := w.Release(t.Context(), 1_700_000_003_001); err != nil {
		t.Fatal(err)
	}
	m.kill()

	// A clean stop leaves the last timestamp itself.
	m = mustStart(t, path, Options{Worker: 5, Clock: clock})
	if got := m.acquire(t).Window().Base; got != 1_700_000_003_001 {
		t.Fatalf("base %d, want 1700000003001", got)
	}
}

// Each number keeps its bound: changed and changed back, nothing is repeated.
func TestWorkerChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	clock := workertest.NewClock(1_700_000_000_000)
	m := mustStart(t, path, Options{Worker: 1, Clock: clock})
	if _, err := m.acquire(t).Extend(t.Context(), 1_700_000_050_000); err != nil {
		t.Fatal(err)
	}
	m.kill()
	m = mustStart(t, path, Options{Worker: 2, Clock: clock})
	if got := m.acquire(t).Window().Base; got != 1_700_000_000_000 {
		t.Errorf("worker 2: base %d, want 1700000000000", got)
	}
	m.kill()
	m = mustStart(t, path, Options{Worker: 1, Clock: clock})
	if got := m.acquire(t).Window().Base; got != 1_700_000_052_000 {
		t.Errorf("worker 1: base %d, want 1700000052000", got)
	}
}

// peers W16, leaf F3: the absence of the state is not evidence that nothing was used (I11).
func TestRefusedFiles(t *testing.T) {
	for _, c := range []struct {
		name   string
		spoil  func(t *testing.T, file string)
		o      Options
		expect []string
	}{
		{"missing", func(t *testing.T, file string) { check(t, os.Remove(file)) }, Options{},
			[]string{"snowflake.db is missing"}},
		{"empty", func(t *testing.T, file string) { check(t, os.Truncate(file, 0)) }, Options{},
			[]string{"snowflake.db is empty"}},
		{"cut", func(t *testing.T, file string) { check(t, os.Truncate(file, 5000)) }, Options{},
			[]string{"snowflake.db is damaged", "5000 bytes"}},
		{"cut to its heads", func(t *testing.T, file string) { check(t, os.Truncate(file, 4*int64(os.Getpagesize()))) }, Options{},
			[]string{"snowflake.db is damaged"}},
		{"zeroes", func(t *testing.T, file string) { scribble(t, file, 0, 64<<10, 0) }, Options{},
			[]string{"snowflake.db is damaged"}},
		{"text", func(t *testing.T, file string) {
			check(t, os.WriteFile(file, []byte(strings.Repeat("worker=1\n", 8000)), 0o600))
		}, Options{}, []string{"snowflake.db is damaged"}},
		{"pages overwritten", func(t *testing.T, file string) { scribble(t, file, 2*os.Getpagesize(), 64<<10, 0xff) }, Options{},
			[]string{"snowflake.db is damaged"}},
		{"record changed", func(t *testing.T, file string) { rewrite(t, file, `{"bound":1,"clean":true,"sum":77}`) }, Options{},
			[]string{"snowflake.db is damaged", "worker 0", "checksum"}},
		{"record of garbage", func(t *testing.T, file string) { rewrite(t, file, `{"bound":-`) }, Options{},
			[]string{"snowflake.db is damaged", "worker 0"}},
		{"other bits", nil, Options{Layout: snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: 8, SequenceBits: 14}},
			[]string{"snowflake.bits is 41-8-14", "made with 41-10-12"}}, // peers W20
		{"other epoch", nil, Options{Layout: snowflake.Layout{Epoch: 1, TimeBits: 41, WorkerBits: 10, SequenceBits: 12}},
			[]string{"snowflake.epoch is 1", "made with 1288834974657"}}, // leaf F19
		{"of another directory", func(t *testing.T, file string) {
			other := filepath.Join(t.TempDir(), "data")
			m := mustStart(t, other, Options{})
			m.acquire(t)
			m.kill()
			b, err := os.ReadFile(filepath.Join(other, fileName))
			check(t, err)
			check(t, os.WriteFile(file, b, 0o600))
		}, Options{}, []string{"was made in another data_dir"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "data")
			m := mustStart(t, path, Options{})
			m.acquire(t)
			m.kill()
			if c.spoil != nil {
				c.spoil(t, filepath.Join(path, fileName))
			}
			_, err := start(t, path, c.o)
			if err == nil {
				t.Fatal("started")
			}
			for _, want := range c.expect {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func scribble(t *testing.T, file string, from, to int, with byte) {
	t.Helper()
	b, err := os.ReadFile(file)
	check(t, err)
	for i := from; i < min(to, len(b)); i++ {
		b[i] = with
	}
	check(t, os.WriteFile(file, b, 0o600))
}

func rewrite(t *testing.T, file, record string) {
	t.Helper()
	db, err := bbolt.Open(file, 0o600, nil)
	check(t, err)
	check(t, db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(workerBucket).Put([]byte("0"), []byte(record)) }))
	check(t, db.Close())
}

// What a crash left before the file was recorded was never used: it is made anew.
func TestCrashBeforeRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	d, err := datadir.Open(path, datadir.Options{})
	check(t, err)
	check(t, d.Close())
	check(t, os.WriteFile(filepath.Join(path, fileName), []byte("half a file"), 0o600))
	m := mustStart(t, path, Options{})
	m.acquire(t)
}

func TestNumberOutOfRange(t *testing.T) { // peers W18
	d, err := datadir.Open(filepath.Join(t.TempDir(), "data"), datadir.Options{})
	check(t, err)
	defer d.Close()
	for _, n := range []int64{-1, 1024} {
		_, err := Open(d, Options{Worker: n, Layout: leaf})
		if want := fmt.Sprintf("snowflake.worker_id %d does not fit snowflake.bits 41-10-12: it must be 0 to 1023", n); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// A start 31 days past the bound may be a clock that is a month ahead: the operator has to say which.
func TestAcceptClock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	clock := workertest.NewClock(1_700_000_000_000)
	m := mustStart(t, path, Options{Clock: clock})
	check(t, m.acquire(t).Release(t.Context(), 0))
	m.kill()

	clock.Advance(30 * day)
	m = mustStart(t, path, Options{Clock: clock})
	check(t, m.acquire(t).Release(t.Context(), 0))
	m.kill()

	clock.Advance(day)
	m = mustStart(t, path, Options{Clock: clock})
	_, err := m.ids.Acquire(t.Context(), -1)
	var no *snowflake.NoWorkerError
	if !errors.As(err, &no) || !no.Permanent || !strings.Contains(err.Error(), "31 days past the last use of worker 0") || !strings.Contains(err.Error(), "snowflake.accept_clock = true") {
		t.Fatalf("got %v", err)
	}
	if st := m.ids.Status(); st.State != "waiting" || st.Reason != err.Error() {
		t.Errorf("status %q, %q", st.State, st.Reason)
	}
	// The clock set right, no setting is needed.
	clock.Step(-2 * day)
	check(t, m.acquire(t).Release(t.Context(), 0))
	m.kill()

	clock.Step(300 * day)
	m = mustStart(t, path, Options{Clock: clock, AcceptClock: true})
	m.acquire(t)
}

// A full disk is told, and over as soon as there is space; any other failure ends the file's use (I3 for the bound).
func TestDiskErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	m := mustStart(t, path, Options{})
	w := m.acquire(t)
	before, err := w.Extend(t.Context(), w.Window().Base+1)
	check(t, err)

	works := m.ids.file.commit
	m.ids.file.commit = func(func(*bbolt.Tx) error) error {
		return &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	}
	var no *snowflake.NoWorkerError
	win, err := w.Extend(t.Context(), before.Until+1)
	if !errors.As(err, &no) || no.Permanent || !strings.Contains(err.Error(), "Free space") || win != before {
		t.Fatalf("got %v, %v", win, err)
	}
	if st := m.ids.Status(); st.State != "serving" || st.Reason != err.Error() {
		t.Errorf("status %q, %q", st.State, st.Reason)
	}
	m.ids.file.commit = works
	if before, err = w.Extend(t.Context(), before.Until+1); err != nil {
		t.Fatal(err)
	}
	if st := m.ids.Status(); st.Reason != "" {
		t.Errorf("reason %q", st.Reason)
	}

	m.ids.file.commit = func(func(*bbolt.Tx) error) error { return syscall.EIO }
	win, err = w.Extend(t.Context(), before.Until+1)
	if !errors.As(err, &no) || !no.Permanent || !errors.Is(err, syscall.EIO) || win != before {
		t.Fatalf("got %v, %v", win, err)
	}
	m.ids.file.commit = works // the disk is said to work again: it proves nothing about what was written
	if _, err := w.Extend(t.Context(), before.Until+1); !errors.As(err, &no) || !no.Permanent {
		t.Errorf("got %v", err)
	}
	if err := w.Release(t.Context(), before.Base+1); !errors.As(err, &no) {
		t.Errorf("release: %v", err)
	}
	if st := m.ids.Status(); st.State != "fenced" {
		t.Errorf("state %q", st.State)
	}
	m.kill()
	m = mustStart(t, path, Options{})
	if got := m.acquire(t).Window().Base; got != before.Until {
		t.Errorf("base %d, want %d", got, before.Until)
	}
}

// Somebody removes the data directory under the running process: another could start from it, so nothing more is granted.
func TestDirectoryReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	m := mustStart(t, path, Options{})
	w := m.acquire(t)
	check(t, os.Rename(path, path+".old"))
	var no *snowflake.NoWorkerError
	if _, err := w.Extend(t.Context(), w.Window().Base+1); !errors.As(err, &no) || !no.Permanent {
		t.Errorf("got %v", err)
	}
}

func TestReleaseBeyondTheWindow(t *testing.T) {
	m := mustStart(t, filepath.Join(t.TempDir(), "data"), Options{})
	w := m.acquire(t)
	if err := w.Release(t.Context(), w.Window().Until+1); err == nil || !strings.Contains(err.Error(), "beyond its window") {
		t.Errorf("got %v", err)
	}
}

func TestFirstStartIsSaidAloud(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	var said strings.Builder
	m := mustStart(t, path, Options{Log: zerolog.New(&said)})
	m.acquire(t)
	m.kill()
	if !strings.Contains(said.String(), filepath.Join(path, fileName)) || strings.Count(said.String(), `"level":"warn"`) != 2 {
		t.Errorf("said %s", said.String())
	}
	said.Reset()
	m = mustStart(t, path, Options{Log: zerolog.New(&said)})
	m.acquire(t)
	if said.String() != "" {
		t.Errorf("second start said %s", said.String())
	}
}

// A disk that hangs: nobody waits for it to learn how things stand, and what can wait waits for its context.
func TestDiskHangs(t *testing.T) {
	m := mustStart(t, filepath.Join(t.TempDir(), "data"), Options{})
	w := m.acquire(t)
	release, hung := make(chan struct{}), make(chan struct{})
	works := m.ids.file.commit
	m.ids.file.commit = func(f func(*bbolt.Tx) error) error {
		close(hung)
		<-release
		return works(f)
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.Extend(context.Background(), w.Window().Base+1)
		done <- err
	}()
	<-hung
	if st := m.ids.Status(); st.State != "serving" || st.Window.Until != w.Window().Base {
		t.Errorf("%+v", st)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.ids.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("close: %v", err)
	}
	if err := w.Release(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("release: %v", err)
	}
	close(release)
	check(t, <-done)
}
