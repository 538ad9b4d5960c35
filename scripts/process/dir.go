package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// KeepVariable names the environment variable that makes the folders of servers stay after the test.
const KeepVariable = "SERVICES_KEEP"

var (
	sweepOnce sync.Once
	lockMu    sync.Mutex
	locks     = map[string]*os.File{}
)

// Dir makes a folder for one server, with a path short enough for a Unix socket, and removes it when the test ends.
// What a killed test run left behind is removed by the next one: a folder belongs to whoever holds the lock in it.
func Dir(t T, name string) string {
	t.Helper()
	sweepOnce.Do(sweep)
	dir, err := os.MkdirTemp("", "redleaf-"+name+"-")
	if err != nil {
		t.Fatalf("no temporary folder: %v", err)
	}
	f, err := lockDir(dir)
	if err != nil {
		t.Fatalf("no lock in %s: %v", dir, err)
	}
	lockMu.Lock()
	locks[dir] = f
	lockMu.Unlock()
	keep := os.Getenv(KeepVariable) != ""
	if keep {
		if err := os.WriteFile(filepath.Join(dir, ".keep"), nil, 0o644); err != nil {
			t.Fatalf("%v", err)
		}
	}
	t.Cleanup(func() {
		lockMu.Lock()
		delete(locks, dir)
		lockMu.Unlock()
		if keep {
			t.Logf("kept: %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Errorf("%v", err)
		}
		f.Close()
	})
	return dir
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// sweep removes the folders of test runs that were killed.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), "redleaf-*-[0-9]*"))
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		// A young folder may be one that its owner has not locked yet.
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < 2*time.Minute {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, ".lock")); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, ".keep")); err == nil {
			continue
		}
		if f, err := lockDir(dir); err == nil {
			if err := os.RemoveAll(dir); err != nil {
				fmt.Fprintln(os.Stderr, "left behind by a killed test:", err)
			}
			f.Close()
		}
	}
}
