package ports

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestPortsAreDistinctFreeAndLocked(t *testing.T) {
	var wg sync.WaitGroup
	got := make(chan int, 64)
	for range 8 {
		wg.Go(func() {
			for range 8 {
				got <- Free()
			}
		})
	}
	wg.Wait()
	close(got)
	seen := map[int]bool{}
	for p := range got {
		if seen[p] {
			t.Errorf("port %d was given twice", p)
		}
		seen[p] = true
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			t.Errorf("port %d is not free: %v", p, err)
			continue
		}
		l.Close()
		// Another process asks by the same lock; flock is per open file, so this one is refused just the same.
		path := filepath.Join(os.TempDir(), fmt.Sprintf("redleaf-ports-%d", os.Getuid()), fmt.Sprint(p))
		if f, err := lock(path); err == nil {
			f.Close()
			t.Errorf("port %d is not locked against other processes", p)
		}
	}
}
