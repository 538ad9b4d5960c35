package mysql

import (
	"testing"

	"redleaf/segment"
)

// A base that is raised holds for every tag made by INCR from then on, through any instance; it never goes down.
func TestRaiseBase(t *testing.T) {
	name := database(t, leafTable)
	a, b := opened(t, name), opened(t, name)
	for _, c := range []struct {
		tag           string
		raise, starts int64
	}{{"x", 5000, 5000}, {"y", 70, 5000}, {"z", 6000, 6000}} {
		if err := a.RaiseBase(t.Context(), c.raise); err != nil {
			t.Fatalf("RaiseBase(%d): %v", c.raise, err)
		}
		now, created, err := b.Create(t.Context(), segment.Row{Tag: c.tag, Max: 1, Step: 10}, true)
		if err != nil || !created || now.Max != c.starts {
			t.Errorf("after RaiseBase(%d) a tag starts at %d (%v, %v), want %d", c.raise, now.Max, created, err, c.starts)
		}
	}
	// Made by an operator's word, a tag starts where it is told.
	if now, created, err := b.Create(t.Context(), segment.Row{Tag: "w", Max: 3, Step: 10}, false); err != nil || !created || now.Max != 3 {
		t.Errorf("a tag that inherits nothing starts at %d (%v, %v)", now.Max, created, err)
	}
}
