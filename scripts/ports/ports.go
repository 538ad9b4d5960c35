// Package ports gives tests TCP ports that no other test on the machine will take.
//
// Listening on port 0, closing and using the number later loses to whoever dials in between: the kernel gives the same
// range to outgoing connections. A server that a test kills and starts again on its old port would then not come back.
// The ports here lie below that range, and each one is held by a lock on a file until this process ends.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

var (
	mu   sync.Mutex
	held = map[int]*os.File{} // never closed: the lock lives as long as the process
)

// Free returns a TCP port on which 127.0.0.1 can listen, and keeps it from every other process that asks here.
// It is safe for concurrent use. It panics when no port is to be had, since no test could go on.
func Free() int {
	mu.Lock()
	defer mu.Unlock()
	low, high := 10000, firstEphemeral()
	if high < low+1000 {
		low, high = 1024, max(high, 2048)
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("redleaf-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		panic("ports: " + err.Error())
	}
	for range 1000 {
		port := low + rand.IntN(high-low)
		if held[port] != nil {
			continue
		}
		f, err := lock(filepath.Join(dir, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			f.Close()
			continue
		}
		l.Close()
		held[port] = f
		return port
	}
	panic(fmt.Sprintf("ports: none free between %d and %d on 127.0.0.1", low, high))
}

// Addr returns 127.0.0.1 with a port from Free.
func Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(Free())) }

func lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// firstEphemeral is where the kernel's range for outgoing connections begins.
func firstEphemeral() int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		if f := strings.Fields(string(b)); len(f) == 2 {
			if n, err := strconv.Atoi(f[0]); err == nil {
				return n
			}
		}
	}
	return 32768
}
