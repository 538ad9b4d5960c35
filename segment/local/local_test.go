package local

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"redleaf/conf/datadir"
	"redleaf/segment"
	"redleaf/segment/storetest"
)

// A child of the test reserves from the directory named in childDir, and prints each span after it was granted.
const childDir = "REDLEAF_TEST_SEGMENT_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(m.Run())
}

func child(dir string) int {
	d, err := datadir.Open(dir, datadir.Options{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	s, err := Open(d, Options{Log: zerolog.Nop()})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	ctx := context.Background()
	fmt.Println("open")
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				tag := fmt.Sprintf("tag%d", (w+i)%6)
				if _, _, err := s.Create(ctx, segment.Row{Tag: tag, Max: 1, Step: 10}, true); err != nil {
					panic(err)
				}
				g, err := s.Reserve(ctx, tag, int64(1+i%50), 0)
				if err != nil {
					panic(err)
				}
				mu.Lock()
				fmt.Println(tag, g.Lo, g.Hi)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return 0
}

func openDir(t testing.TB, dir string) *datadir.Dir {
	t.Helper()
	d, err := datadir.Open(dir, datadir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func open(t testing.TB, d *datadir.Dir) *Store {
	t.Helper()
	s, err := Open(d, Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func refused(t *testing.T, d *datadir.Dir, want ...string) {
	t.Helper()
	s, err := Open(d, Options{Log: zerolog.Nop()})
	if err == nil {
		s.Close()
		t.Fatalf("opened, want an error with %q", want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func reserve(t *testing.T, s segment.Store, tag string, n int64) segment.Grant {
	t.Helper()
	g, err := s.Reserve(t.Context(), tag, n, 0)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func create(t *testing.T, s segment.Store, tag string, bound int64) {
	t.Helper()
	if _, created, err := s.Create(t.Context(), segment.Row{Tag: tag, Max: bound, Step: 10}, false); err != nil || !created {
		t.Fatalf("Create(%q): %v, %v", tag, created, err)
	}
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (segment.Store, func() segment.Store) {
		d := openDir(t, t.TempDir())
		t.Cleanup(func() { d.Close() })
		return open(t, d), func() segment.Store { return open(t, d) }
	})
}

func TestFirstStartIsLoud(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir)
	defer d.Close()
	for start := range 2 {
		var log bytes.Buffer
		s, err := Open(d, Options{Log: zerolog.New(&log)})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if loud := strings.Contains(log.String(), `"file":"`+filepath.Join(dir, "segment.db")+`"`) && strings.Contains(log.String(), `"warn"`); loud != (start == 0) {
			t.Errorf("start %d logged %s", start, log.String())
		}
	}
}

// A kill -9 at any moment loses no grant that was answered: the next process starts above all of them. (cases S7, S25, P7)
func TestKill9(t *testing.T) {
	dir := t.TempDir()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	next := map[string]int64{} // first ID above all that was granted in the rounds before
	for round := range 8 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		lines.Scan()
		if lines.Text() != "open" {
			t.Fatalf("round %d: the child says %q", round, lines.Text())
		}
		end := 20 + rnd.IntN(200)
		spans := map[string][]segment.Span{}
		for n := 0; lines.Scan(); n++ {
			if n == end {
				cmd.Process.Kill()
			}
			var tag string
			var g segment.Span
			if k, err := fmt.Sscan(lines.Text(), &tag, &g.Lo, &g.Hi); k != 3 {
				if n < end {
					t.Fatalf("round %d: the child says %q (%v)", round, lines.Text(), err)
				}
				break // cut by the kill
			}
			if g.Lo < next[tag] || g.Hi <= g.Lo {
				t.Fatalf("round %d: %s was granted [%d,%d) after %d was", round, tag, g.Lo, g.Hi, next[tag]-1)
			}
			spans[tag] = append(spans[tag], g)
		}
		cmd.Wait()
		for tag, all := range spans {
			slices.SortFunc(all, func(a, b segment.Span) int { return cmp.Compare(a.Lo, b.Lo) })
			for _, g := range all {
				if g.Lo < next[tag] {
					t.Fatalf("round %d: %s was granted [%d,%d) after %d was", round, tag, g.Lo, g.Hi, next[tag]-1)
				}
				next[tag] = g.Hi
			}
		}
	}
	if len(next) != 6 {
		t.Errorf("only %d tags were used", len(next))
	}
}

func TestSecondProcess(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir)
	defer d.Close()
	s := open(t, d)
	defer s.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), fmt.Sprintf("in use by process %d", os.Getpid())) {
		t.Errorf("the second process says %q, %v", out, err)
	}
	// A program that looks into the file must not hang the next start.
	create(t, s, "a", 1)
	s.Close()
	other, err := bolt.Open(d.Path(storeName), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	refused(t, d, "segment.db is locked by another process")
	other.Close()
	s = open(t, d)
	if g := reserve(t, s, "a", 1); g.Lo != 1 {
		t.Errorf("got %d", g.Lo)
	}
}

// filled leaves a closed store with n tags.
func filled(t testing.TB, d *datadir.Dir, n int) {
	t.Helper()
	s := open(t, d)
	err := s.f.update(t.Context(), func(tx *bolt.Tx) (bool, error) {
		tags := tx.Bucket(tagsBucket)
		tags.FillPercent = 0.9
		for i := range n {
			r := segment.Row{Tag: fmt.Sprintf("tag-%08d", i), Max: 1, Step: 1000, Updated: time.Now()}
			if err := tags.Put([]byte(r.Tag), formatRow(r)); err != nil {
				return false, err
			}
		}
		return true, tx.Bucket(metaBucket).Put(countKey, fmt.Append(nil, n))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Whatever happens to the file, the answer is a refusal that names it: never an older state, never a crash. (I11)
func TestDamagedFile(t *testing.T) {
	base := t.TempDir()
	d := openDir(t, base)
	defer d.Close()
	filled(t, d, 2000)
	name := d.Path(storeName)
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 1; return b }
	}
	for _, c := range []struct {
		name string
		do   func([]byte) []byte
		want string
	}{
		{"empty", func(b []byte) []byte { return nil }, "segment.db is empty although identity.json lists it"},
		{"one byte", func(b []byte) []byte { return b[:1] }, "segment.db is damaged: its page 0 is missing"},
		{"one page", func(b []byte) []byte { return b[:page] }, "segment.db is damaged: its page 1 is missing"},
		{"cut in the middle", func(b []byte) []byte { return b[:10*page] }, "segment.db is damaged: it ends after 10 of"},
		{"text", func(b []byte) []byte { return bytes.Repeat([]byte("hello "), len(b)/6) }, "segment.db is damaged: the checksum of its page 0"},
		{"zeros", func(b []byte) []byte { return make([]byte, len(b)) }, "segment.db is damaged"},
		{"meta 0", flip(16 + 30), "segment.db is damaged: the checksum of its page 0 is wrong"},
		{"meta 1", flip(page + 16 + 30), "segment.db is damaged: the checksum of its page 1 is wrong"},
		{"an old meta page", func(b []byte) []byte { copy(b[:page], b[page:2*page]); return b }, "do not follow each other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(name, c.do(bytes.Clone(good)), 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, d, name, c.want, "Put back")
		})
	}

	// Any single digit of any record, and any single page.
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 30 {
		b := bytes.Clone(good)
		at := rnd.IntN(len(b) - 6)
		i := bytes.Index(b[at:], []byte("max=1 "))
		if i < 0 {
			continue
		}
		b[at+i+4] = '0' + byte(2+rnd.IntN(8))
		checkNothingLost(t, d, b)
	}
	// The checker itself never panics nor hangs, whatever stands in the pages.
	for range 2000 {
		b := bytes.Clone(good)
		for range 1 + rnd.IntN(4) {
			p := 2 + rnd.IntN(len(b)/page-2)
			b[p*page+rnd.IntN(200)] = byte(rnd.Uint32())
		}
		err := guarded(func() error { return checkPages(b, func([]string, []byte, []byte) error { return nil }) })
		if pe := (*panicError)(nil); errors.As(err, &pe) {
			t.Fatalf("the checker panics: %v", pe)
		}
	}
	for p := 2; p < len(good)/page && p < 80; p += 3 {
		b := bytes.Clone(good)
		for i := range page {
			b[p*page+i] = byte(rnd.Uint32())
		}
		checkNothingLost(t, d, b)
	}
	if err := os.WriteFile(name, good, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, d)
	defer s.Close()
	if n, err := s.Count(t.Context()); n != 2000 || err != nil {
		t.Errorf("the good file counts %d, %v", n, err)
	}
}

// checkNothingLost opens a changed file. It must be refused, or hold exactly what it held: then only unused pages changed.
func checkNothingLost(t *testing.T, d *datadir.Dir, content []byte) {
	t.Helper()
	if err := os.WriteFile(d.Path(storeName), content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(d, Options{Log: zerolog.Nop()})
	if err != nil {
		if !strings.Contains(err.Error(), "segment.db is damaged") {
			t.Errorf("error: %v", err)
		}
		return
	}
	defer s.Close()
	rows, err := s.List(t.Context(), "", 3000)
	if err != nil || len(rows) != 2000 {
		t.Fatalf("a damaged file was opened and lists %d rows, %v", len(rows), err)
	}
	for _, r := range rows {
		if r.Max != 1 {
			t.Fatalf("a damaged file was opened and says %+v", r)
		}
	}
}

// A file that is cut while it is mapped must not take the process down.
func TestCutWhileOpen(t *testing.T) {
	d := openDir(t, t.TempDir())
	defer d.Close()
	filled(t, d, 2000)
	s := open(t, d)
	defer s.Close()
	if err := os.Truncate(d.Path(storeName), 2*int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	var refused *segment.RefusedError
	if _, err := s.List(t.Context(), "", 3000); !errors.As(err, &refused) || !strings.Contains(err.Error(), "segment.db is damaged") {
		t.Errorf("List: %v", err)
	}
	for range 2 {
		if _, err := s.Reserve(t.Context(), "tag-00000001", 10, 0); !errors.As(err, &refused) {
			t.Errorf("Reserve: %v", err)
		}
	}
	if _, err := s.Pulse(t.Context()); !errors.As(err, &refused) {
		t.Errorf("Pulse: %v", err)
	}
}

func TestFileOfAnotherDirectory(t *testing.T) {
	a, b := openDir(t, t.TempDir()), openDir(t, t.TempDir())
	defer a.Close()
	defer b.Close()
	filled(t, a, 10)
	foreign, err := os.ReadFile(a.Path(storeName))
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(b.Path(storeName), foreign, 0o600)
	refused(t, b, b.Path(storeName), "belongs to another data directory")
	os.Remove(b.Path(storeName))
	open(t, b).Close()
	os.WriteFile(b.Path(storeName), foreign, 0o600)
	refused(t, b, b.Path(storeName), "belongs to another data directory")
}

func TestUnrecordedFile(t *testing.T) {
	dir := t.TempDir()
	unrecord := func() {
		t.Helper()
		name := filepath.Join(dir, "identity.json")
		b, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(b, []byte(`"segment.db"`)) {
			t.Fatalf("%s, %v", b, err)
		}
		// Written in place: the inode stays, so the directory does not look moved.
		if err := os.WriteFile(name, bytes.Replace(b, []byte(`"segment.db"`), nil, 1), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := openDir(t, dir)
	open(t, d).Close()
	d.Close()
	// A crash between the file's rename and its record: nothing was granted, so it is taken.
	unrecord()
	d = openDir(t, dir)
	s := open(t, d)
	create(t, s, "a", 1)
	s.Close()
	d.Close()
	// An identity from before the store, beside a store that was used.
	unrecord()
	d = openDir(t, dir)
	defer d.Close()
	refused(t, d, "segment.db has 1 entries but identity.json does not list it")
}

func TestNewerFormat(t *testing.T) {
	d := openDir(t, t.TempDir())
	defer d.Close()
	s := open(t, d)
	err := s.f.update(t.Context(), func(tx *bolt.Tx) (bool, error) {
		return true, tx.Bucket(metaBucket).Put(formatKey, []byte("2"))
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	refused(t, d, `segment.db has format "2" and this version reads 1`)
}

// A full disk refuses with the word STORE, loses nothing, and ends by itself.
func TestDiskFull(t *testing.T) {
	mount := filepath.Join(t.TempDir(), "mnt")
	os.Mkdir(mount, 0o700)
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=1m"); err != nil {
		t.Logf("no mount (%v), so no full disk here: the tests need root for it", err)
		return
	}
	t.Cleanup(func() { unix.Unmount(mount, unix.MNT_DETACH) })
	d := openDir(t, filepath.Join(mount, "data"))
	t.Cleanup(func() { d.Close() })
	s := open(t, d)
	t.Cleanup(func() { s.Close() })
	floors, err := OpenFloors(d, Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { floors.Close() })
	create(t, s, "a", 1)
	next := reserve(t, s, "a", 10).Hi
	fill := filepath.Join(mount, "fill")
	os.WriteFile(fill, make([]byte, 2<<20), 0o600) // as much as fits

	// bbolt reuses free pages for a while; new tags need new ones.
	var refused *segment.RefusedError
	made, full := 0, false
	for i := range 5000 {
		tag := fmt.Sprintf("%s-%d", strings.Repeat("x", 100), i)
		_, created, err := s.Create(t.Context(), segment.Row{Tag: tag, Max: 1, Step: 10}, false)
		if err != nil {
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), "segment.db can't grow: no space left on device. Free space in data_dir") {
				t.Fatalf("Create on a full disk: %v", err)
			}
			full = true
			break
		}
		if created {
			made++
		}
	}
	if !full {
		t.Fatal("the disk never got full")
	}
	if _, err := s.Reserve(t.Context(), "a", 10, 0); !errors.As(err, &refused) {
		t.Errorf("Reserve on a full disk: %v", err)
	}
	if n, err := s.Count(t.Context()); err != nil || n != int64(made+1) {
		t.Errorf("reading on a full disk: %d, %v; want %d", n, err, made+1)
	}
	big := map[string]int64{}
	for i := range 3000 {
		big[fmt.Sprintf("%s-%d", strings.Repeat("x", 100), i)] = 1000
	}
	if err := floors.Save("h", big); !errors.As(err, &refused) || !strings.Contains(err.Error(), "floors.db can't grow") {
		t.Errorf("Save on a full disk: %v", err)
	}

	os.Remove(fill)
	deadline := time.Now().Add(30 * time.Second)
	for {
		g, err := s.Reserve(t.Context(), "a", 10, 0)
		if err == nil {
			if g.Lo < next {
				t.Fatalf("after the disk was full [%d,%d) was granted, %d was before", g.Lo, g.Hi, next-1)
			}
			break
		}
		if !errors.As(err, &refused) || time.Now().After(deadline) {
			t.Fatalf("with space again: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	for floors.Err() != nil && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	if err := floors.Save("h", map[string]int64{"a": 7}); err != nil {
		t.Errorf("floors with space again: %v", err)
	}
	if n, err := s.Count(t.Context()); err != nil || n != int64(made+1) {
		t.Errorf("afterwards: %d tags, %v; want %d", n, err, made+1)
	}
	s.Close()
	open(t, d).Close() // and the file verifies
}

// A commit that went wrong for another reason than space is final: nothing may be built on pages of unknown content.
func TestCommitErrorIsFinal(t *testing.T) {
	d := openDir(t, t.TempDir())
	defer d.Close()
	var log bytes.Buffer
	s, err := Open(d, Options{Log: zerolog.New(&log)})
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, "a", 1)
	s.f.fail(fmt.Errorf("sync: %w", unix.EIO))
	var refused *segment.RefusedError
	for range 3 {
		_, err := s.Reserve(t.Context(), "a", 10, 0)
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "segment.db can't be written") || !strings.Contains(err.Error(), "restart") {
			t.Fatalf("Reserve: %v", err)
		}
	}
	if _, err := s.Pulse(t.Context()); !errors.As(err, &refused) {
		t.Errorf("Pulse: %v", err)
	}
	if n := strings.Count(log.String(), `"level":"error"`); n != 1 {
		t.Errorf("%d error lines, want one: %s", n, log.String())
	}
	s.Close()
	s = open(t, d)
	defer s.Close()
	if g := reserve(t, s, "a", 1); g.Lo != 1 {
		t.Errorf("after a restart: %d", g.Lo)
	}
}

func TestDirectoryReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := openDir(t, dir)
	defer d.Close()
	s := open(t, d)
	defer s.Close()
	create(t, s, "a", 1)
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	var refused *segment.RefusedError
	if _, err := s.Pulse(t.Context()); !errors.As(err, &refused) || !strings.Contains(err.Error(), "removed or replaced") {
		t.Errorf("Pulse: %v", err)
	}
	if _, err := s.Reserve(t.Context(), "a", 1, 0); !errors.As(err, &refused) {
		t.Errorf("Reserve: %v", err)
	}
}

// Grants of many tags share commits: the number of fsyncs follows the disk, not the number of tags.
func TestGroupCommit(t *testing.T) {
	d := openDir(t, t.TempDir())
	defer d.Close()
	filled(t, d, 3000)
	s := open(t, d)
	defer s.Close()
	txid := func() (id int) {
		s.f.view(t.Context(), func(tx *bolt.Tx) error { id = tx.ID(); return nil })
		return id
	}
	before := txid()
	var wg sync.WaitGroup
	for i := range 3000 {
		wg.Go(func() {
			g, err := s.Reserve(t.Context(), fmt.Sprintf("tag-%08d", i), 10, 0)
			if err != nil || g.Lo != 1 {
				t.Errorf("tag %d: %+v, %v", i, g, err)
			}
		})
	}
	wg.Wait()
	if n := txid() - before; n > 600 {
		t.Errorf("3000 grants took %d commits", n)
	}
}

func TestCallerGoesAway(t *testing.T) {
	d := openDir(t, t.TempDir())
	defer d.Close()
	s, err := Open(d, Options{Log: zerolog.Nop(), CommitDelay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	left, stayed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := s.Reserve(ctx, "a", 1, 0)
		left <- err
	}()
	go func() {
		_, err := s.Reserve(t.Context(), "a", 1, 0)
		stayed <- err
	}()
	for len(s.f.jobs) == 0 { // one is with the committer, which waits for company; the other is queued
		time.Sleep(time.Millisecond)
	}
	cancel()
	var un *segment.UnavailableError
	if err := <-left; !errors.As(err, &un) {
		t.Errorf("after its context ended: %v", err)
	}
	s.Close()
	if err := <-stayed; !errors.Is(err, segment.ErrClosed) && !errors.Is(err, segment.ErrNoTag) {
		t.Errorf("at Close: %v", err)
	}
}

func TestRecordsAreReadable(t *testing.T) {
	d := openDir(t, t.TempDir())
	defer d.Close()
	s := open(t, d)
	defer s.Close()
	if _, _, err := s.Create(t.Context(), segment.Row{Tag: "order", Max: 1001, Step: 1000, Desc: "a sum=b\n desc=c"}, false); err != nil {
		t.Fatal(err)
	}
	var v string
	s.f.view(t.Context(), func(tx *bolt.Tx) error {
		v = string(tx.Bucket(tagsBucket).Get([]byte("order")))
		return nil
	})
	if !strings.HasPrefix(v, "max=1001 step=1000 updated=") || !strings.HasSuffix(v, " desc=a sum=b\n desc=c") {
		t.Errorf("the record is %q", v)
	}
	rows, err := s.Rows(t.Context(), []string{"order"})
	if r := rows["order"]; err != nil || r.Desc != "a sum=b\n desc=c" || r.Max != 1001 {
		t.Errorf("read back: %+v, %v", rows, err)
	}
}

// Start-up with a million tags stays within three seconds (DESIGN.md, speed): BenchmarkOpenMillion measures it, this holds a part of it.
func TestManyTags(t *testing.T) {
	d := openDir(t, t.TempDir())
	defer d.Close()
	filled(t, d, 30_000)
	start := time.Now()
	s := open(t, d)
	took := time.Since(start)
	defer s.Close()
	t.Logf("opened 30,000 tags in %v", took)
	if took > 2*time.Second {
		t.Errorf("opening 30,000 tags took %v", took)
	}
	if n, err := s.Count(t.Context()); n != 30_000 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
	rows, err := s.List(t.Context(), "tag-00020000", 2)
	if err != nil || len(rows) != 2 || rows[0].Tag != "tag-00020001" {
		t.Errorf("list %+v, %v", rows, err)
	}
}

func BenchmarkOpenMillion(b *testing.B) {
	d := openDir(b, b.TempDir())
	defer d.Close()
	filled(b, d, 1_000_000)
	for b.Loop() {
		open(b, d).Close()
	}
}

func BenchmarkReserve(b *testing.B) {
	d := openDir(b, b.TempDir())
	defer d.Close()
	filled(b, d, 1000)
	s := open(b, d)
	defer s.Close()
	for b.Loop() {
		if _, err := s.Reserve(b.Context(), "tag-00000001", 1, 0); err != nil {
			b.Fatal(err)
		}
	}
}
