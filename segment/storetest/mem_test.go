package storetest

import (
	"errors"
	"testing"
	"time"

	"redleaf/segment"
)

func TestMem(t *testing.T) {
	Run(t, func(t *testing.T) (segment.Store, func() segment.Store) {
		db := NewDB()
		return db.Open(), func() segment.Store { return db.Open() }
	})
	RunShared(t, func(t *testing.T) (a, b segment.Store) {
		db := NewDB()
		return db.Open(), db.Open()
	})
}

// Faults come in pairs: an error that moved nothing and an error that moved the row. The caller owns nothing in both (I3).
func TestMemFaults(t *testing.T) {
	for _, apply := range []bool{false, true} {
		m := NewMem()
		create(t, m, "a", 1)
		m.Fault = func(op, tag string) (bool, error) { return apply, ErrLost }
		if g, err := m.Reserve(t.Context(), "a", 10, 0); !errors.Is(err, error(ErrLost)) || g != (segment.Grant{}) {
			t.Fatalf("Reserve = %+v, %v; want the fault and no grant", g, err)
		}
		m.Fault = nil
		want := int64(1)
		if apply {
			want = 11
		}
		wantRow(t, m, "a", want)
	}
}

func TestDBGoesBack(t *testing.T) {
	db := NewDB()
	db.Skip, db.Check = 100, 20*time.Millisecond
	a, b := db.Open(), db.Open()
	create(t, a, "x", 1)
	old := db.Backup()
	reserve(t, a, "x", 10, 0)
	reserve(t, b, "x", 10, 0)
	if _, err := b.Pulse(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Failover(old)
	var u *segment.UnavailableError
	if _, err := b.Reserve(t.Context(), "x", 10, 0); !errors.As(err, &u) {
		t.Fatalf("Reserve on another server: %v, want *UnavailableError", err)
	}
	wantRow(t, a, "x", 101) // 1 + the skip: the two lost spans lie below it
	p, err := a.Pulse(t.Context())
	if err != nil || p.Epoch != 1 || p.Paused <= 0 || p.Skip != 100 {
		t.Fatalf("Pulse = %+v, %v; want epoch 1 and a pause", p, err)
	}
	if _, err := a.Fence(t.Context(), "x", 150, nil); err != nil {
		t.Fatalf("Fence during the pause: %v", err)
	}
	awaitGrants(t, a)
	if g := reserve(t, a, "x", 10, 150); g.Lo != 150 {
		t.Fatalf("after the pause the next ID is %d, want 150", g.Lo)
	}
	if now, created, err := a.Create(t.Context(), segment.Row{Tag: "y", Max: 1, Step: 10}, true); err != nil || !created || now.Max != 100 {
		t.Fatalf("a tag made after the skip starts at %d (%v, %v), want 100", now.Max, created, err)
	}
	db.Restore(old) // the same server, an old dump: the beat shows it
	if p, err := b.Pulse(t.Context()); err != nil || p.Epoch != 2 {
		t.Fatalf("Pulse after the restore = %+v, %v; want epoch 2", p, err)
	}
}
