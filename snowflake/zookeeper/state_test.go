package zookeeper

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestStateCutShort: a state file that lost its second record is damaged, although the first one is whole: that one may be the
// older of the two, and nothing may be continued from it.
func TestStateCutShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), StateFile)
	if err := os.WriteFile(path, make([]byte, stateSize), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &state{disk: f}
	defer s.close()
	for i := range 2 {
		if err := s.store(record{Slot: int64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, found, err := s.load(); !found || err != nil {
		t.Fatalf("whole: found %v, %v", found, err)
	}
	for _, size := range []int64{1, recordSize - 1, recordSize, recordSize + 1, stateSize - 1} {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.load(); !errors.Is(err, errStateDamaged) {
			t.Errorf("cut to %d bytes: %v, want %v", size, err, errStateDamaged)
		}
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, found, err := s.load(); found || err != nil {
		t.Errorf("empty: found %v, %v; the identity tells whether it may be", found, err)
	}
}
