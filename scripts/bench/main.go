// Command bench measures Redleaf against redis-server on this machine: both are started here, the same redis-benchmark drives
// them in turn, and every figure is a ratio of medians taken in one run. Absolute times on a shared machine mean nothing.
//
//	go run ./scripts/bench -redleaf bin/redleaf [-pairs 5] [-seconds 2] [-only REGEXP] [-json FILE]
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// row is one line of the table: a figure, its bar and what was measured.
type row struct {
	Name   string    `json:"name"`
	Bar    string    `json:"bar"`
	Got    float64   `json:"got"`
	Low    float64   `json:"low"`
	High   float64   `json:"high"`
	Pairs  []float64 `json:"pairs"`
	Passed string    `json:"passed"` // "yes", "no", "" (reported only)
	Note   string    `json:"note,omitempty"`
}

func main() {
	var (
		bin     = flag.String("redleaf", "bin/redleaf", "the Redleaf binary")
		pairs   = flag.Int("pairs", 5, "pairs of runs, interleaved; the median is taken")
		seconds = flag.Float64("seconds", 2, "length of one run")
		only    = flag.String("only", "", "regular expression: only groups whose name it matches")
		out     = flag.String("json", "", "write rows and the machine's description here as well")
	)
	flag.Parse()
	b := &bench{bin: *bin, pairs: *pairs, seconds: *seconds}
	if err := b.run(regexp.MustCompile(*only)); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	b.print(os.Stdout)
	if *out != "" {
		data, _ := json.MarshalIndent(map[string]any{"machine": machine(), "date": time.Now().UTC().Format(time.DateOnly), "rows": b.rows}, "", "  ")
		if err := os.WriteFile(*out, append(data, '\n'), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
	}
}

type bench struct {
	bin     string
	pairs   int
	seconds float64
	rows    []row
}

// group is a set of rows that share their runs.
type group struct {
	name string
	run  func(*bench) error
}

func (b *bench) run(only *regexp.Regexp) error {
	groups := []group{
		{"incr", func(b *bench) error { return b.wire("INCR", []string{"INCR", "order"}, nil) }},
		{"incrby", func(b *bench) error { return b.wire("INCRBY 100", []string{"INCRBY", "order", "100"}, nil) }},
		{"always", func(b *bench) error {
			return b.wire("INCR ÷ appendfsync always", []string{"INCR", "order"}, []string{"--appendonly", "yes", "--appendfsync", "always"})
		}},
		{"snowflake", (*bench).snowflake},
		{"tags", (*bench).tags},
		{"idle", (*bench).idle},
		{"database", (*bench).database},
	}
	for _, g := range groups {
		if !only.MatchString(g.name) {
			continue
		}
		progress("== %s", g.name)
		if err := g.run(b); err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
	}
	return nil
}

// wire compares CPU per command, throughput and p50 at three pipeline depths. redisArgs nil is redis-server without persistence.
func (b *bench) wire(name string, command, redisArgs []string) error {
	bars := map[int][3]float64{1: {1.25, 0.9, 1.15}, 16: {0.90, 0.95, 1.15}, 128: {0.45, 2, 1.15}}
	judged := redisArgs == nil
	redis, err := startRedis(redisArgs...)
	if err != nil {
		return err
	}
	defer redis.stop()
	leaf, err := startRedleaf(b.bin)
	if err != nil {
		return err
	}
	defer leaf.stop()
	for _, depth := range []int{1, 16, 128} {
		// One short run each finds how many requests fill the time, and warms both.
		nr, err := redis.calibrate(depth, b.seconds, command)
		if err != nil {
			return err
		}
		nl, err := leaf.calibrate(depth, b.seconds, command)
		if err != nil {
			return err
		}
		var cpu, rate, p50 []float64
		idle := 0.0
		for i := range b.pairs {
			first, second := redis, leaf
			n1, n2 := nr, nl
			if i%2 == 1 { // whoever goes second may find a warmer or a more throttled machine
				first, second, n1, n2 = leaf, redis, nl, nr
			}
			r1, err := first.load(depth, n1, command)
			if err != nil {
				return err
			}
			r2, err := second.load(depth, n2, command)
			if err != nil {
				return err
			}
			l, r := r1, r2
			if first == redis {
				l, r = r2, r1
			}
			cpu = append(cpu, l.cpu/r.cpu)
			rate = append(rate, l.rate/r.rate)
			p50 = append(p50, l.p50/r.p50)
			idle += l.busy / float64(b.pairs)
			progress("%s, pipeline %d, pair %d/%d: cpu %.2f (%.2f µs ÷ %.2f µs), throughput %.2f, p50 %.2f", name, depth, i+1, b.pairs, l.cpu/r.cpu, l.cpu, r.cpu, l.rate/r.rate, l.p50/r.p50)
		}
		bar := bars[depth]
		note := fmt.Sprintf("server busy %.0f %% of one core", idle*100)
		if idle < 0.9 {
			note += ": the client was the limit"
		}
		b.add(fmt.Sprintf("%s, pipeline %d: server CPU ÷ redis", name, depth), bar[0], true, judged, cpu, note)
		b.add(fmt.Sprintf("%s, pipeline %d: throughput ÷ redis", name, depth), bar[1], false, judged, rate, "")
		b.add(fmt.Sprintf("%s, pipeline %d: p50 ÷ redis", name, depth), bar[2], true, judged, p50, "")
	}
	return nil
}

// add appends a row; most says that the bar is an upper one. Where judged is false the figure is only reported.
func (b *bench) add(name string, bar float64, most, judged bool, got []float64, note string) {
	m := median(got)
	r := row{Name: name, Got: m, Low: slices.Min(got), High: slices.Max(got), Pairs: got, Note: note}
	if judged {
		ok := m >= bar
		sign := "≥"
		if most {
			ok, sign = m <= bar, "≤"
		}
		r.Bar = fmt.Sprintf("%s %g", sign, bar)
		r.Passed = "no"
		if ok {
			r.Passed = "yes"
		}
	}
	b.rows = append(b.rows, r)
}

func (b *bench) print(w *os.File) {
	fmt.Fprintf(w, "\n%s\n\n", machine())
	fmt.Fprintln(w, "| figure | bar | median | spread | reached | |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	missed := 0
	for _, r := range b.rows {
		if r.Passed == "no" {
			missed++
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s … %s | %s | %s |\n", r.Name, r.Bar, num(r.Got), num(r.Low), num(r.High), r.Passed, r.Note)
	}
	fmt.Fprintf(w, "\nbench: %d rows, %d missed\n", len(b.rows), missed)
}

func num(f float64) string {
	if f >= 100 {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.3g", f)
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// machine describes where the figures come from.
func machine() string {
	cpu, kernel := "unknown CPU", "unknown kernel"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`model name\s*:\s*(.*)`).FindSubmatch(data); m != nil {
			cpu = string(m[1])
		}
	}
	if data, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = strings.TrimSpace(string(data))
	}
	return fmt.Sprintf("%d × %s, Linux %s, %s", cores(), cpu, kernel, redisVersion())
}
