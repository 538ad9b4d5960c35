package clients

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// node makes the command of a JavaScript client; the name is the one in node/package.json.
func node(name string) func(*testing.T) (*exec.Cmd, error) {
	return func(*testing.T) (*exec.Cmd, error) {
		modules, err := nodeModules()
		if err != nil {
			return nil, err
		}
		script, err := filepath.Abs("node/client.js")
		if err != nil {
			return nil, err
		}
		cmd := exec.Command("node", script)
		cmd.Env = append(os.Environ(), "NODE_PATH="+modules, "MATRIX_LIB="+name)
		return cmd, nil
	}
}

// nodeModules installs what package-lock.json names, exactly, in a folder for temporary files that is named after its
// content, so that the next run finds it there. The lock file holds checksums and no addresses: packages come from
// whatever registry npm is set up for.
var nodeModules = sync.OnceValues(func() (string, error) {
	manifest, err1 := os.ReadFile("node/package.json")
	lock, err2 := os.ReadFile("node/package-lock.json")
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(manifest, lock...))
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("redleaf-npm-%d-x%x", os.Getuid(), sum[:8]))
	modules, whole := filepath.Join(dir, "node_modules"), filepath.Join(dir, "installed")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer f.Close()
	// Another run may be installing at this moment: it waits here, and then finds everything in place.
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(whole); err == nil {
		return modules, nil
	}
	err = errors.Join(os.WriteFile(filepath.Join(dir, "package.json"), manifest, 0o644), os.WriteFile(filepath.Join(dir, "package-lock.json"), lock, 0o644))
	if err != nil {
		return "", err
	}
	var text []byte
	for attempt := 1; ; attempt++ {
		cmd := exec.Command("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
		cmd.Dir = dir
		if text, err = cmd.CombinedOutput(); err == nil {
			return modules, os.WriteFile(whole, nil, 0o644)
		}
		if attempt == 3 {
			return "", fmt.Errorf("npm ci: %w\n%s", err, text)
		}
		time.Sleep(time.Duration(attempt) * time.Second) // a registry that hiccups is asked again
	}
})
