// Package services starts private servers for tests: MariaDB (also with a replica, also as a Galera cluster), ZooKeeper
// and redis-server, each in a temporary folder on free loopback ports.
//
// A server belongs to the test that started it and ends with it, also when the test run is killed. Every wait asks the
// server itself, and is bounded. The programs come from scripts/deps.sh; a missing one fails the test and says so.
// Set SERVICES_KEEP=1 to keep the folders, logs included.
package services

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"redleaf/scripts/ports"
	"redleaf/scripts/process"
)

// T is the part of testing.TB that the servers need.
type T = process.T

// FreePort returns a loopback TCP port that no other test on this machine is given.
func FreePort() int { return ports.Free() }

// need returns the path of a program, or ends the test with the way to install it.
func need(t T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%s is missing: run scripts/deps.sh", program)
	}
	return path
}

// until polls a condition of a server; the test ends when it does not hold in time.
func until(t T, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(process.StartLimit)
	for pause := 2 * time.Millisecond; !ok(); pause = min(pause*3/2, 100*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", process.StartLimit, what)
		}
		time.Sleep(pause)
	}
}

// copyTree copies a folder with its files' modes.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case e.IsDir():
			return os.MkdirAll(target, info.Mode().Perm()|0o700)
		case info.Mode().IsRegular():
			return copyFile(path, target, info.Mode().Perm())
		}
		return nil // sockets and the like are not state
	})
}

func copyFile(from, to string, mode fs.FileMode) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if _, err := dst.ReadFrom(src); err != nil { // copy_file_range, a reflink where the file system has them
		dst.Close()
		return err
	}
	return dst.Close()
}

func chownTree(dir string, c *syscall.Credential) error {
	if c == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(c.Uid), int(c.Gid))
	})
}

// save copies the data folder of a server that does not run, as a backup would hold it.
func save(t T, d *process.Daemon, data string) string {
	t.Helper()
	if d.Alive() {
		t.Fatalf("%s runs: stop it before its data is copied", d.Name)
	}
	to := filepath.Join(d.Dir, fmt.Sprintf("save-%d", time.Now().UnixNano()))
	if err := copyTree(data, to); err != nil {
		t.Fatalf("copying the data of %s: %v", d.Name, err)
	}
	return to
}

// restore puts back what save returned.
func restore(t T, d *process.Daemon, data, saved string) {
	t.Helper()
	if d.Alive() {
		t.Fatalf("%s runs: stop it before its data is put back", d.Name)
	}
	if err := os.RemoveAll(data); err != nil {
		t.Fatalf("%v", err)
	}
	if err := copyTree(saved, data); err != nil {
		t.Fatalf("putting back the data of %s: %v", d.Name, err)
	}
	if err := chownTree(data, d.User); err != nil {
		t.Fatalf("%v", err)
	}
}
