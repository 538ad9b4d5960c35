package local

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"redleaf/conf/datadir"
	"redleaf/snowflake"
)

// livesEnv is how many lives TestKill9 takes, if not four.
const livesEnv = "REDLEAF_TEST_LIVES"

// drawerDir, when set, makes this test binary a process that draws IDs from the data directory it names and writes them to
// standard output, one run a line, until it is killed.
const drawerDir = "REDLEAF_TEST_DRAWER_DIR"

func drawer(path string) {
	die := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	d, err := datadir.Open(path, datadir.Options{})
	die(err)
	ids, err := Open(d, Options{Worker: 3, Layout: leaf})
	die(err)
	g, err := snowflake.New(ids, snowflake.SystemClock{}, snowflake.Options{Layout: leaf, ClockWait: 5 * time.Millisecond})
	die(err)
	g.Start()
	for g.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("ready")
	buf := make([]int64, 0, 100)
	for {
		buf, err = g.Append(context.Background(), buf[:0], 100)
		die(err)
		// One write a run: what the parent has not read yet when the kill comes is lost, and lost is all it may be.
		if _, err := fmt.Println(buf[0], buf[len(buf)-1], len(buf)); err != nil {
			os.Exit(1)
		}
	}
}

// leaf F2, peers S25, W24: kill -9 at any moment, again and again. The runs of IDs seen never meet, across all lives, and none
// of a later life lies below one of an earlier.
func TestKill9(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	lives := 4
	if s := os.Getenv(livesEnv); s != "" {
		var err error
		lives, err = strconv.Atoi(s)
		check(t, err)
	}
	var highest, runs int64
	for life := range lives {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), drawerDir+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		check(t, err)
		began := time.Now()
		check(t, cmd.Start())
		in := bufio.NewScanner(out)
		if !in.Scan() || in.Text() != "ready" {
			t.Errorf("life %d: said %q", life, in.Text())
		}
		took := time.Since(began)
		if took > 20*time.Second { // the bound is three seconds ahead at most; the rest is the machine
			t.Errorf("life %d: ready after %s", life, took)
		}
		for lines := 0; lines < 50*(life%7+1) && in.Scan(); lines++ {
			f := strings.Fields(in.Text())
			if len(f) != 3 {
				t.Fatalf("life %d: line %q", life, in.Text())
			}
			first, _ := strconv.ParseInt(f[0], 10, 64)
			last, _ := strconv.ParseInt(f[1], 10, 64)
			if first <= highest || last < first+99 || f[2] != "100" {
				t.Errorf("life %d: %s to %s after %d", life, f[0], f[1], highest)
			}
			highest = last
			runs++
		}
		check(t, cmd.Process.Kill())
		for in.Scan() { // written before the kill
			if f := strings.Fields(in.Text()); len(f) == 3 {
				last, _ := strconv.ParseInt(f[1], 10, 64)
				highest = max(highest, last)
			}
		}
		cmd.Wait()
	}
	t.Logf("%d lives, %d runs", lives, runs)
}
