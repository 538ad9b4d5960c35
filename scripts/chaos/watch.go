package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A watch samples what may grow: memory, goroutines, descriptors and logs of each instance.
type watch struct {
	c     *cluster
	began time.Time
	every time.Duration
	last  time.Time
	f     *os.File
	rows  []sampled
}

type sampled struct {
	at                             time.Duration
	node                           int
	rss, goroutines, files, logged int64 // bytes, -, -, bytes
}

func newWatch(c *cluster, path string, long time.Duration) *watch {
	f, err := os.Create(path)
	if err != nil {
		c.s.Fatalf("%v", err)
	}
	fmt.Fprintln(f, "seconds,instance,rss_bytes,goroutines,descriptors,log_bytes")
	return &watch{c: c, began: time.Now(), every: max(time.Second, long/300), f: f}
}

func (w *watch) sample() {
	if time.Since(w.last) < w.every {
		return
	}
	w.last = time.Now()
	for i, n := range w.c.nodes {
		s := sampled{at: time.Since(w.began), node: i, logged: int64(len(n.Log()))}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Pid()))
		for line := range strings.Lines(string(status)) {
			if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				kb, _ := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
				s.rss = kb << 10
			}
		}
		open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", n.Pid()))
		s.files = int64(len(open))
		_, metrics := n.Get("/metrics")
		for sc := bufio.NewScanner(strings.NewReader(metrics)); sc.Scan(); {
			if v, ok := strings.CutPrefix(sc.Text(), "go_goroutines "); ok {
				s.goroutines, _ = strconv.ParseInt(v, 10, 64)
			}
		}
		w.rows = append(w.rows, s)
		fmt.Fprintf(w.f, "%.1f,%d,%d,%d,%d,%d\n", s.at.Seconds(), i, s.rss, s.goroutines, s.files, s.logged)
	}
}

// flat compares the last quarter with the second: what leaks goes on growing, what was being warmed up does not.
func (w *watch) flat() bool {
	if err := w.f.Close(); err != nil || len(w.rows) < 8*len(w.c.nodes) {
		fmt.Printf("soak: %d samples in %s, too few: %v\n", len(w.rows), w.f.Name(), err)
		return false
	}
	whole := w.rows[len(w.rows)-1].at
	ok := true
	for i := range w.c.nodes {
		median := func(from, to float64, of func(s sampled) int64) int64 {
			var list []int64
			for _, s := range w.rows {
				if s.node == i && s.at >= time.Duration(from*float64(whole)) && s.at <= time.Duration(to*float64(whole)) {
					list = append(list, of(s))
				}
			}
			return middle(list)
		}
		for _, m := range []struct {
			name  string
			slack int64
			of    func(s sampled) int64
		}{
			{"memory", 16 << 20, func(s sampled) int64 { return s.rss }},
			{"goroutines", 20, func(s sampled) int64 { return s.goroutines }},
			{"descriptors", 20, func(s sampled) int64 { return s.files }},
		} {
			early, late := median(0.25, 0.5, m.of), median(0.75, 1, m.of)
			verdict := "flat"
			if late > early+early/4+m.slack {
				verdict, ok = "GROWS", false
			}
			fmt.Printf("soak: i%d %-11s %12d in the second quarter, %12d in the last: %s\n", i, m.name, early, late, verdict)
		}
		logged := w.rows[len(w.rows)-len(w.c.nodes)+i].logged
		perHour := float64(logged) / whole.Hours()
		verdict := "bounded"
		if perHour > 20<<20 { // several lines a second, hour after hour
			verdict, ok = "TOO MUCH", false
		}
		fmt.Printf("soak: i%d log %d bytes, %.0f an hour: %s\n", i, logged, perHour, verdict)
	}
	fmt.Printf("soak: samples in %s\n", w.f.Name())
	return ok
}

func middle(list []int64) int64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[len(list)/2]
}
