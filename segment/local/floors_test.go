package local

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"redleaf/conf/datadir"
)

func openFloors(t *testing.T, d *datadir.Dir) *Floors {
	t.Helper()
	f, err := OpenFloors(d, Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func wantFloor(t *testing.T, f *Floors, history, tag string, want int64) {
	t.Helper()
	if got, err := f.Floor(history, tag); err != nil || got != want {
		t.Errorf("floor of %s in %s = %d, %v; want %d", tag, history, got, err, want)
	}
}

func TestFloors(t *testing.T) {
	d := openDir(t, t.TempDir())
	defer d.Close()
	f := openFloors(t, d)
	wantFloor(t, f, "h1", "a", 0)
	save := func(h string, m map[string]int64) {
		t.Helper()
		if err := f.Save(h, m); err != nil {
			t.Fatal(err)
		}
	}
	save("h1", map[string]int64{"a": 1001, "b": 5})
	save("h2", map[string]int64{"a": 7})
	save("h1", map[string]int64{"a": 900}) // an older one never lowers
	wantFloor(t, f, "h1", "a", 1001)
	wantFloor(t, f, "h1", "b", 5)
	wantFloor(t, f, "h2", "a", 7)
	wantFloor(t, f, "h3", "a", 0)
	if err := f.Lower("h1", "a", 950); err != nil {
		t.Fatal(err)
	}
	wantFloor(t, f, "h1", "a", 950)
	for _, bad := range []error{f.Save("", map[string]int64{"a": 1}), f.Save("h1", map[string]int64{"": 1}), f.Save("h1", map[string]int64{"a": -1})} {
		if bad == nil {
			t.Error("a bad floor was saved")
		}
	}
	if err := f.Note("server", "one\ntwo"); err != nil {
		t.Fatal(err)
	}
	f.Close()

	f = openFloors(t, d)
	defer f.Close()
	wantFloor(t, f, "h1", "a", 950)
	wantFloor(t, f, "h2", "a", 7)
	if text, err := f.Read("server"); text != "one\ntwo" || err != nil {
		t.Errorf("note %q, %v", text, err)
	}
	if text, err := f.Read("other"); text != "" || err != nil {
		t.Errorf("note that was never made: %q, %v", text, err)
	}
}

func TestFloorsEach(t *testing.T) {
	d := openDir(t, t.TempDir())
	defer d.Close()
	f := openFloors(t, d)
	defer f.Close()
	want := map[string]int64{}
	for i := range 3000 {
		want[fmt.Sprintf("tag%d", i)] = int64(i + 1)
	}
	if err := f.Save("h", want); err != nil {
		t.Fatal(err)
	}
	got, last := map[string]int64{}, ""
	err := f.Each("h", func(tag string, floor int64) error {
		if tag <= last {
			t.Errorf("%s after %s", tag, last)
		}
		last, got[tag] = tag, floor
		if len(got)%1000 == 0 {
			return f.Save("h", map[string]int64{tag: floor + 1}) // may write while it reads
		}
		return nil
	})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%d of %d floors, %v", len(got), len(want), err)
	}
	stop := errors.New("stop")
	n := 0
	if err := f.Each("h", func(string, int64) error { n++; return stop }); err != stop || n != 1 {
		t.Errorf("Each went on after an error: %d, %v", n, err)
	}
	if err := f.Each("none", func(string, int64) error { return stop }); err != nil {
		t.Errorf("Each of an unknown history: %v", err)
	}
}

func TestFloorsConcurrently(t *testing.T) {
	d := openDir(t, t.TempDir())
	defer d.Close()
	f := openFloors(t, d)
	defer f.Close()
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 50 {
				tag := fmt.Sprintf("t%d", (w+i)%5)
				if err := f.Save("h", map[string]int64{tag: int64(i*16 + w)}); err != nil {
					t.Error(err)
				}
				if got, err := f.Floor("h", tag); err != nil || got < int64(i*16+w) {
					t.Errorf("saved %d, read %d, %v", i*16+w, got, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestFloorsLost(t *testing.T) { // I11
	d := openDir(t, t.TempDir())
	defer d.Close()
	f := openFloors(t, d)
	f.Save("h", map[string]int64{"a": 12345})
	f.Close()
	b, err := os.ReadFile(d.Path(floorsName))
	if err != nil {
		t.Fatal(err)
	}
	i := strings.Index(string(b), "floor=12345")
	b[i+6] = '0'
	os.WriteFile(d.Path(floorsName), b, 0o600)
	if _, err := OpenFloors(d, Options{}); err == nil || !strings.Contains(err.Error(), "floors.db is damaged: the floor of tag \"a\" is unreadable") {
		t.Errorf("a changed digit: %v", err)
	}
	os.Remove(d.Path(floorsName))
	if _, err := OpenFloors(d, Options{}); err == nil || !strings.Contains(err.Error(), "floors.db is missing although identity.json lists it") {
		t.Errorf("a removed file: %v", err)
	}
}
