package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"redleaf/scripts/checker"
	"redleaf/scripts/process"
)

// number reads an ID, which is an integer or a bulk string.
func number(t *testing.T, reply string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.Trim(reply, `"`), 10, 64)
	if err != nil {
		t.Fatalf("the reply is %q, not a number", reply)
	}
	return n
}

// TestFirstSteps is what a new user does, on the embedded default.
func TestFirstSteps(t *testing.T) {
	p := process.Start(t, process.Options{Name: "first"})
	for i, want := range []string{"1", "2", "3"} {
		if got := p.Do("INCR", "order"); got != want {
			t.Fatalf("INCR number %d answered %s, want %s", i+1, got, want)
		}
	}
	if got := p.Do("INCRBY", "order", "10"); got != "13" {
		t.Fatalf("INCRBY 10 answered %s, want 13", got)
	}
	flake := number(t, p.Do("SNOWFLAKE.NEXT"))
	if code := p.Term(); code != 0 {
		t.Fatalf("SIGTERM: exit code %d, want 0\n%s", code, p.Log())
	}
	p.Start()
	if got := p.Do("INCR", "order"); got != "14" { // the tail went back: one instance, no gap
		t.Fatalf("after a clean restart INCR answered %s, want 14", got)
	}
	if next := number(t, p.Do("SNOWFLAKE.NEXT")); next <= flake {
		t.Fatalf("after a clean restart the snowflake is %d, not above %d", next, flake)
	} else {
		flake = next
	}
	p.Kill()
	p.Start()
	if got := number(t, p.Do("INCR", "order")); got <= 14 {
		t.Fatalf("after kill -9 INCR answered %d, not above 14", got)
	}
	if next := number(t, p.Do("SNOWFLAKE.NEXT")); next <= flake {
		t.Fatalf("after kill -9 the snowflake is %d, not above %d", next, flake)
	}
}

// TestKillLoop kills the instance 200 times while 8 clients draw.
func TestKillLoop(t *testing.T) {
	const kills = 200
	h, err := checker.Create(filepath.Join(t.TempDir(), "history"))
	if err != nil {
		t.Fatal(err)
	}
	h.Snowflake(checker.SnowflakeKey, checker.Layout{Epoch: 1288834974657, Time: 41, Worker: 10, Sequence: 12})
	// A killed instance issues snowflakes again when the clock has passed the bound it had reserved, seconds later: the loop goes on
	// as soon as the segment engine serves.
	p := process.Start(t, process.Options{Name: "loop", Set: []string{`admin.require=["segment"]`}})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var life sync.Mutex // the instance's name changes with each of its lives
	instance := func(string) string { life.Lock(); defer life.Unlock(); return p.Instance() }
	commands := []checker.Command{checker.Incr, checker.IncrBy, checker.SegmentNext, checker.SnowflakeNext}
	ids := make([]int64, 8)
	for i := range 8 {
		wg.Go(func() {
			c := checker.Client{History: h, Name: fmt.Sprint("client", i), Addrs: []string{p.Addr}, Instance: instance,
				Command: commands[i%4], Keys: []string{"order", fmt.Sprint("own", i)}, Count: 5, Pipeline: 1 + i}
			ids[i] = c.Run(ctx).IDs
		})
	}
	for i := range kills {
		time.Sleep(time.Duration(20+i%5*20) * time.Millisecond) // how long a life lasts is the load, not a wait
		p.Kill()
		life.Lock()
		p.Start()
		life.Unlock()
	}
	// One life long enough for every client to have drawn, snowflakes included, which wait for the bound of the last life.
	for deadline := time.Now().Add(20 * time.Second); strings.HasPrefix(p.Do("SNOWFLAKE.NEXT"), "LOADING"); {
		if time.Now().After(deadline) {
			t.Fatalf("no snowflake 20 s after the last start\n%s", p.Log())
		}
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond)
	cancel()
	wg.Wait()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := checker.Verify(h.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d kills: %s", kills, report)
	if !report.Clean() {
		t.Fatal("the history is not clean")
	}
	for i, n := range ids {
		if n == 0 {
			t.Errorf("client %d drew nothing: the loop proves nothing for it", i)
		}
	}
}

// TestRefusedStarts: whatever makes a start impossible is one clear line that names it, and exit code 1.
func TestRefusedStarts(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	running := process.Start(t, process.Options{Name: "running"})

	// A directory with a history whose files are then damaged, one way per case.
	made := func(t *testing.T) string {
		p := process.Start(t, process.Options{Name: "made"})
		p.Do("INCR", "order")
		if code := p.Term(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		return p.DataDir
	}
	cases := []struct {
		name string
		o    func(t *testing.T) process.Options
		want []string
	}{
		{"occupied port", func(*testing.T) process.Options { return process.Options{Listen: busy.Addr().String()} },
			[]string{"listen", busy.Addr().String(), "address already in use"}},
		{"unknown setting", func(*testing.T) process.Options { return process.Options{Set: []string{"segment.stepp=5"}} },
			[]string{"segment.stepp", "segment.step"}},
		{"every mistake at once", func(*testing.T) process.Options {
			return process.Options{Set: []string{"segment.step=none", "snowflake.bits=1-2"}, Env: []string{"REDLEAF_NOSUCH=1"}}
		}, []string{"segment.step", "snowflake.bits", "REDLEAF_NOSUCH"}},
		{"locked data dir", func(*testing.T) process.Options { return process.Options{DataDir: running.DataDir} },
			[]string{running.DataDir, "in use", strconv.Itoa(running.Pid())}},
		{"store gone", func(t *testing.T) process.Options {
			dir := made(t)
			remove(t, filepath.Join(dir, "segment.db"))
			return process.Options{DataDir: dir}
		}, []string{"segment.db"}},
		{"store emptied", func(t *testing.T) process.Options {
			dir := made(t)
			truncate(t, filepath.Join(dir, "segment.db"), 0)
			return process.Options{DataDir: dir}
		}, []string{"segment.db"}},
		{"store cut short", func(t *testing.T) process.Options {
			dir := made(t)
			truncate(t, filepath.Join(dir, "segment.db"), 5000)
			return process.Options{DataDir: dir}
		}, []string{"segment.db"}},
		{"worker state gone", func(t *testing.T) process.Options {
			dir := made(t)
			remove(t, filepath.Join(dir, "snowflake.db"))
			return process.Options{DataDir: dir}
		}, []string{"snowflake.db"}},
		{"identity gone", func(t *testing.T) process.Options {
			dir := made(t)
			remove(t, filepath.Join(dir, "identity.json"))
			return process.Options{DataDir: dir}
		}, []string{"identity.json"}},
		{"copied data dir", func(t *testing.T) process.Options {
			dir := made(t)
			copied := t.TempDir()
			if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			return process.Options{DataDir: copied}
		}, []string{"accept_moved_data"}},
		{"another layout", func(t *testing.T) process.Options {
			return process.Options{DataDir: made(t), Set: []string{"snowflake.bits=41-8-14"}}
		}, []string{"41-8-14", "41-10-12"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := c.o(t)
			o.NoWait = true
			code, log := process.RunToExit(t, o)
			if code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			for _, w := range c.want {
				if !strings.Contains(log, w) {
					t.Errorf("the log does not name %q:\n%s", w, log)
				}
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// TestVersionAndCheck: both print and exit 0, and touch nothing.
func TestVersionAndCheck(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if code, out := process.RunToExit(t, process.Options{DataDir: dir, Args: []string{"-version"}}); code != 0 || !strings.HasPrefix(out, "redleaf ") {
		t.Errorf("-version: exit code %d, output %q", code, out)
	}
	code, out := process.RunToExit(t, process.Options{DataDir: dir, Args: []string{"-check"}, Set: []string{"auth.password=s3cret-of-mine"}})
	if code != 0 || !strings.Contains(out, "segment.step = 1000") {
		t.Errorf("-check: exit code %d, output %q", code, out)
	}
	if strings.Contains(out, "s3cret-of-mine") {
		t.Errorf("-check shows the password (I13):\n%s", out)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data directory was made: %v", err)
	}
}
