// Command mutants shows that the tests bite: it breaks a promise in a copy of the source, one at a time, and runs the test that has
// to notice.
//
//	go run ./scripts/mutants [-only TEXT] [-limit 1m]
//
// Each test must pass on the source as it is, and fail on the mutant within the limit; one that does not compile proves nothing and is
// an error, as is a text that is no longer in the source. The last line reads "mutants: caught=N missed=0", and the exit code is 0 only
// then.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A mutant is one change of one place, and the test that must see it.
type mutant struct {
	name, file, old, new string
	pkg, test            string
}

var mutants = []mutant{
	{"segment/local: the floor is left out of Reserve (I6)", "segment/local/local.go",
		"case r.Max < floor:", "case r.Max < 0:", "./segment/local", "^TestConformance$"},
	{"segment/local: the row is not moved by Reserve (I1)", "segment/local/local.go",
		"\t\tr.Max += n\n", "", "./segment/local", "^TestConformance$"},
	{"segment/local: give-back without its condition (I4)", "segment/local/local.go",
		"if err != nil || r.Max != span.Hi {", "if err != nil {", "./segment/local", "^TestConformance$"},
	{"segment/local: Fence lowers a row (I4)", "segment/local/local.go",
		"if found = r.Max; r.Max >= floor {", "if found = r.Max; r.Max == floor {", "./segment/local", "^TestConformance$"},
	{"segment/mysql: the floor is left out of Reserve (I6)", "segment/mysql/mysql.go",
		"low := max(floor, 1)", "low := int64(1)", "./segment/mysql", "^TestConformance$"},
	{"segment/mysql: give-back without its condition (I4)", "segment/mysql/mysql.go",
		`" AND max_id = ?"+g.sql`, `" AND max_id > 0 * ?"+g.sql`, "./segment/mysql", "^TestConformance$"},
	{"segment/mysql: epoch and beat are not guarded", "segment/mysql/mysql.go",
		`g.sql = " AND EXISTS (SELECT 1 FROM " + s.table.server() + " WHERE name = ? AND epoch = ? AND beat >= ? LOCK`,
		`g.sql = " AND EXISTS (SELECT 1 FROM " + s.table.server() + " WHERE name = ? AND epoch >= 0 * ? AND beat >= 0 * ? LOCK`, "./segment/mysql", "^TestRestoreUnderLiveInstances$|^TestFailoverToLaggingReplica$"},
	{"segment: a span gives more than it has (I2)", "segment/segment.go",
		"pos = s.pos.Add(1); pos > s.size {", "pos = s.pos.Add(1); pos > s.size+1 {", "./segment", "^TestManyGoroutines$|^TestRandomOperations$"},
	{"segment: the floor is lowered only after the row (I6)", "segment/close.go",
		"if err := a.floors.Lower(history, t.name, min(floor, tail.Lo)); err != nil {", "if err := error(nil); history == \"-\" {", "./segment", "^TestFloorBeforeRow$"},
	{"segment: the tail is given back without a seal (I1)", "segment/close.go",
		"\tfrom, left := a.retire(t)\n", "\tleft := cur.left()\n\tfrom := cur.lo + cur.size - left\n", "./segment", "^TestStopUnderLoad$|^TestGiveBack$|^TestRandomOperations$"},
	{"segment: a spare is published and stays a spare (I1)", "segment/refill.go",
		"\t\tt.next, fresh.next = fresh.next, nil\n", "\t\tcopied := &span{lo: fresh.lo, size: fresh.size, server: fresh.server, taint: fresh.taint}\n\t\tt.next, fresh.next = copied, nil\n", "./segment", "^TestManyGoroutines$|^TestRandomOperations$|^TestModel$|^TestMoreSpares$"},
	{"snowflake: the window is not looked at (I7)", "snowflake/issuer.go",
		"case ts > i.until.Load():", "case ts > i.end:", "./snowflake", "^TestWindowToItsEnd$|^TestExtensionFails$"},
	{"snowflake: the sequence is not increased (I8)", "snowflake/issuer.go",
		"case now == last && seq < i.mask:\n\t\tts, from = last, seq+1", "case now == last && seq < i.mask:\n\t\tts, from = last, seq", "./snowflake", "^TestBurstInOneMillisecond$"},
	{"snowflake: a clock that went back is followed (I8)", "snowflake/issuer.go",
		"case now > last:\n", "case now != last:\n", "./snowflake", "^TestStepBackRefused$"},
	{"snowflake: a sealed number goes on (I7)", "snowflake/issuer.go",
		"s := i.state.Swap(sealed)", "s := i.state.Load()", "./snowflake", "^TestSealed$|^TestCloseUnderLoad$"},
	{"snowflake: IDs without the worker number (I1)", "snowflake/issuer.go",
		"a.first = ts<<i.shift | i.number | from", "a.first = ts<<i.shift | from", "./snowflake", "^TestBurstInOneMillisecond$|^TestOrderAcrossNumbers$"},
	{"snowflake/local: the bound is used before it is written (I7)", "snowflake/local/local.go",
		"\tif err := r.write(record{Bound: until}); err != nil {\n\t\tr.set(w, err.Error())", "\tw.until.Store(until)\n\tif err := r.write(record{Bound: until}); err != nil {\n\t\tr.set(w, err.Error())", "./snowflake/local", "^TestDiskErrors$"},
	{"snowflake/local: the bound is not written at all (I7)", "snowflake/local/local.go",
		"if err := r.write(record{Bound: until}); err != nil {", "if err := error(nil); err != nil {", "./snowflake/local", "^TestWindows$|^TestConformance$|^TestKill9$"},
	{"server: the fast lane hands out a tag without the right to it", "server/lane.go",
		"if !c.account.allTags && row.keys[0] == 1 && !c.account.tag(l.args[1]) {", "if row.keys[0] == 7 {", "./server", "^TestReload$"},
}

func main() {
	only := flag.String("only", "", "only mutants whose name has this text")
	limit := flag.Duration("limit", time.Minute, "longest one test may take")
	flag.Parse()
	dir, err := os.MkdirTemp("", "redleaf-mutants-")
	if err != nil {
		fail("%v", err)
	}
	code := run(dir, *only, *limit)
	if err := os.RemoveAll(dir); err != nil {
		fail("%v", err)
	}
	os.Exit(code)
}

func run(dir, only string, limit time.Duration) int {
	if err := copyTree(dir); err != nil {
		fmt.Println("mutants:", err)
		return 1
	}
	caught, missed, broken := 0, 0, 0
	passes := map[string]bool{}
	for i, m := range mutants {
		if !strings.Contains(m.name, only) {
			continue
		}
		began := time.Now()
		path := filepath.Join(dir, m.file)
		source, err := os.ReadFile(path)
		if err != nil || bytes.Count(source, []byte(m.old)) != 1 {
			fmt.Printf("%2d ERROR   %s: the text is in %s %d times, not once (%v)\n", i+1, m.name, m.file, bytes.Count(source, []byte(m.old)), err)
			broken++
			continue
		}
		key := m.pkg + " " + m.test
		if !passes[key] {
			if ok, out := test(dir, m, limit); !ok {
				fmt.Printf("%2d ERROR   %s: the test does not pass on the source as it is\n%s", i+1, m.name, tail(out))
				broken++
				continue
			}
			passes[key] = true
		}
		if err := os.WriteFile(path, bytes.Replace(source, []byte(m.old), []byte(m.new), 1), 0o644); err != nil {
			fail("%v", err)
		}
		ok, out := test(dir, m, limit)
		if err := os.WriteFile(path, source, 0o644); err != nil {
			fail("%v", err)
		}
		took := time.Since(began).Round(100 * time.Millisecond)
		switch {
		case ok:
			missed++
			fmt.Printf("%2d MISSED  %s by %s in %s (%v)\n", i+1, m.name, m.test, m.pkg, took)
		case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]") || strings.Contains(out, "no tests to run"):
			broken++
			fmt.Printf("%2d ERROR   %s: the mutant proves nothing\n%s", i+1, m.name, tail(out))
		default:
			caught++
			fmt.Printf("%2d caught  %s by %s (%v)\n", i+1, m.name, first(out), took)
		}
	}
	fmt.Printf("mutants: caught=%d missed=%d\n", caught, missed+broken)
	if missed+broken > 0 || caught == 0 {
		return 1
	}
	return 0
}

// test runs the test of a mutant, with all that it starts in a group that ends with it.
func test(dir string, m mutant, limit time.Duration) (ok bool, out string) {
	ctx, cancel := context.WithTimeout(context.Background(), limit+10*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, "go", "test", "-vet=off", "-failfast", "-timeout", limit.String(), "-run", m.test, m.pkg)
	c.Dir = dir
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	b, err := c.CombinedOutput()
	return err == nil && !bytes.Contains(b, []byte("no tests to run")), string(b)
}

// copyTree copies what Go needs, without what was built.
func copyTree(dir string) error {
	if _, err := os.Stat("go.mod"); err != nil {
		return fmt.Errorf("%w: run it in the root of the source", err)
	}
	c := exec.Command("sh", "-c", `tar -cf - --exclude=./.git --exclude=./bin --exclude=./data --exclude=node_modules . | tar -xf - -C "$0"`, dir)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// first is the test that failed first.
func first(out string) string {
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			return name
		}
		if strings.HasPrefix(line, "panic: ") {
			return strings.TrimSpace(line)
		}
	}
	return "its end"
}

func tail(out string) string {
	lines := strings.SplitAfter(out, "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "")
}

func fail(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "mutants: "+format+"\n", a...)
	os.Exit(1)
}
