package clients

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// large is where the counter "large" starts: past 2^53 by an odd number, which no double can hold.
const large = 1<<53 + 1

func hash(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

// verdict is one check of one client.
type verdict struct {
	check, version, fault string // fault "" = passed
}

// judge collects every ID of one mode. Its methods may be called by one goroutine at a time.
type judge struct {
	began  time.Time
	owners map[string]map[int64]string // key -> ID -> who has it
	dups   []string
	issued int
}

func newJudge(began time.Time) *judge {
	return &judge{began: began, owners: map[string]map[int64]string{}}
}

// client judges the lines of one client. A check that was asked for and has no line is a failure, whatever the reason.
func (j *judge) client(m mode, c client, checks []string, lines []line, runErr error) []verdict {
	var all []verdict
	last := map[string]int64{} // of the keys, for this client's own order
	version := ""
	for _, l := range lines {
		if version == "" {
			version = l.Version
		}
	}
	for i, check := range checks {
		v := verdict{check: check, version: version}
		switch at := slices.IndexFunc(lines, func(l line) bool { return l.Check == check }); {
		case at < 0:
			v.fault = "no answer"
			if runErr != nil {
				v.fault = fmt.Sprintf("no answer: %v", runErr)
			}
		case at != i:
			v.fault = fmt.Sprintf("answered as number %d instead of %d", at, i)
		case lines[at].Lib != c.name:
			v.fault = fmt.Sprintf("answered by %q", lines[at].Lib)
		case lines[at].Version == "":
			v.fault = "which version it was is not said"
		case !lines[at].OK:
			v.fault = lines[at].Detail
		default:
			if err := j.line(m, c, lines[at], last); err != nil {
				v.fault = err.Error()
			}
		}
		all = append(all, v)
	}
	if runErr != nil && !slices.ContainsFunc(all, func(v verdict) bool { return v.fault != "" }) {
		all = append(all, verdict{check: "end", version: version, fault: runErr.Error()})
	}
	return all
}

// line judges one answer and keeps its IDs.
func (j *judge) line(m mode, c client, l line, last map[string]int64) error {
	ids, err := integers(l.IDs)
	if err != nil {
		return err
	}
	key, want := "order", -1
	switch l.Check {
	case "incr":
		want = 10
	case "incrby":
		want = 1
	case "pipeline", "tick", "pipe":
		want = 1000
	case "multi":
		want = 3
	case "segment", "restart", "other protocol":
		want = 1
	case "segments":
		want = 10
	case "range":
		want = 2
	case "snowflake", "recipe snowflake":
		key, want = "snowflake", 20
	case "snowflakes", "recipe snowflakes":
		key, want = "snowflake", 100
	case "alias":
		key, want = "snowflake", 10
	case "recipe incr":
		key, want = "large", 10
	case "watch":
		key, want = "own:"+c.name, 2
	}
	if c.plain || l.Check == "pipe" {
		want = 0 // they tell figures, not replies
	}
	if want >= 0 && len(ids) != want {
		return fmt.Errorf("%d IDs instead of %d: %.200s", len(ids), want, fmt.Sprint(ids))
	}

	// What the checks say in words.
	contains := func(words ...string) error {
		for _, w := range words {
			if strings.Contains(strings.ToLower(l.Detail), w) {
				return nil
			}
		}
		return fmt.Errorf("%q says nothing of %q", l.Detail, words)
	}
	var fault error
	switch l.Check {
	case "connect":
		if l.Detail != "PONG" {
			fault = fmt.Errorf("PING was answered by %q", l.Detail)
		}
	case "nopassword":
		// The second is the answer to HELLO, with which some begin.
		fault = contains("authentication required", "must be called with the client already authenticated")
	case "wrongpassword":
		fault = contains("invalid username-password pair")
	case "refusal":
		fault = contains("is refused: counters only move forward") // redis-py's decr() sends DECRBY
	case "restart":
		var n int
		if _, err := fmt.Sscanf(l.Detail, "%d attempts", &n); err != nil {
			fault = fmt.Errorf("no answer after a restart: %s", l.Detail)
		} else if n > max(c.attempts, 1) {
			fault = fmt.Errorf("%d calls until the first answer after a restart, not %d (%s)", n, max(c.attempts, 1), l.Detail)
		}
	case "get":
		if read, err := strconv.ParseInt(l.Detail, 10, 64); err != nil || read < last["order"] {
			fault = fmt.Errorf("GET reads %q after the ID %d", l.Detail, last["order"])
		}
	case "cache":
		if l.Detail != "fresh" {
			fault = fmt.Errorf("%s", l.Detail)
		}
	case "watch":
		if l.Detail != "WatchError" {
			fault = fmt.Errorf("a transaction whose key had changed: %s", l.Detail)
		}
	}
	if fault != nil {
		return fault
	}
	if len(ids) == 0 {
		return nil
	}

	// What a block means: INCRBY answers the last of n, SEGMENT.RANGE the first and the last.
	switch l.Check {
	case "incrby":
		ids = block(ids[0]-99, ids[0])
	case "multi":
		ids = append(ids[:2], block(ids[2]-4, ids[2])...)
	case "range":
		if ids[1]-ids[0] != 49 {
			return fmt.Errorf("a block of 50 from %d to %d", ids[0], ids[1])
		}
		ids = block(ids[0], ids[1])
	}
	if err := j.exact(m, key, ids); err != nil {
		return err
	}
	// A client asks for one thing after the other, of one instance: whatever connection it takes, the next ID is larger.
	for _, id := range ids {
		if id <= last[key] {
			return fmt.Errorf("%s: %d came after %d", key, id, last[key])
		}
		last[key] = id
	}
	j.keep(key, c.name+", "+l.Check, ids)
	return nil
}

// exact finds IDs that were rounded on their way, which a check for duplicates alone may miss.
func (j *judge) exact(m mode, key string, ids []int64) error {
	switch key {
	case "large":
		if ids[0] < large || allEven(ids) {
			return fmt.Errorf("IDs past 2^53 were rounded: %v", ids)
		}
	case "snowflake":
		timeShift, worker := uint(22), int64(1<<10-1)
		seqBits := uint(12)
		if m.name == "53 bits" {
			timeShift, worker, seqBits = 12, 1<<3-1, 9
		}
		const epoch = 1288834974657
		for _, id := range ids {
			at := time.UnixMilli(epoch + id>>timeShift)
			if at.Before(j.began.Add(-10*time.Minute)) || at.After(time.Now().Add(10*time.Minute)) {
				return fmt.Errorf("snowflake %d is of %v", id, at.UTC())
			}
			if w := id >> seqBits & worker; w != 0 {
				return fmt.Errorf("snowflake %d is of worker %d, not 0", id, w)
			}
			if m.name == "53 bits" && id >= 1<<53 {
				return fmt.Errorf("snowflake %d does not fit 53 bits", id)
			}
		}
		// Doubles near 2^61 are 256 and 512 apart: of IDs that were rounded, all are even.
		if allEven(ids) {
			return fmt.Errorf("snowflakes were rounded: %v", ids)
		}
		if len(ids) == 100 {
			runs := 0
			for i := 1; i < len(ids); i++ {
				if ids[i] == ids[i-1]+1 {
					runs++
				}
			}
			if runs == 0 {
				return fmt.Errorf("no two of 100 snowflakes are neighbours: %v", ids)
			}
		}
	}
	return nil
}

func (j *judge) keep(key, who string, ids []int64) {
	owners := j.owners[key]
	if owners == nil {
		owners = map[int64]string{}
		j.owners[key] = owners
	}
	for _, id := range ids {
		j.issued++
		if other, taken := owners[id]; taken {
			j.dups = append(j.dups, fmt.Sprintf("%s %d: %s and %s", key, id, other, who))
		}
		owners[id] = who
	}
}

// together judges all IDs of a mode.
func (j *judge) together() []verdict {
	v := verdict{check: fmt.Sprintf("no duplicate among %d IDs", j.issued)}
	if len(j.dups) > 0 {
		v.fault = fmt.Sprintf("%d duplicates: %.1000s", len(j.dups), strings.Join(j.dups, "; "))
	}
	if j.issued == 0 {
		v.fault = "there are no IDs"
	}
	return []verdict{v}
}

func allEven(ids []int64) bool {
	return !slices.ContainsFunc(ids, func(id int64) bool { return id&1 == 1 })
}

func block(first, last int64) []int64 {
	var ids []int64
	for id := first; id <= last; id++ {
		ids = append(ids, id)
	}
	return ids
}

func integers(texts []string) ([]int64, error) {
	ids := make([]int64, len(texts))
	for i, s := range texts {
		id, err := strconv.ParseInt(s, 10, 64)
		if err != nil || id <= 0 {
			return nil, fmt.Errorf("%q is no ID", s)
		}
		ids[i] = id
	}
	return ids, nil
}

// score is the table of all modes and clients.
type score struct {
	mu   sync.Mutex
	rows []scoreRow
}

type scoreRow struct {
	mode, client string
	verdicts     []verdict
}

func newScore() *score { return new(score) }

func (s *score) add(m mode, c client, v []verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows = append(s.rows, scoreRow{m.name, c.name, v})
}

// count returns the libraries that gave at least one good answer, and the checks.
func (s *score) count() (libraries, checks, failed int) {
	seen := map[string]bool{}
	for _, r := range s.rows {
		for _, v := range r.verdicts {
			checks++
			if v.fault != "" {
				failed++
			} else if v.version != "" {
				seen[r.client] = true
			}
		}
	}
	return len(seen), checks, failed
}

// print logs the rows of a mode, and fails the test for each fault.
func (s *score) print(t *testing.T, m mode) {
	for _, r := range s.rows {
		if r.mode != m.name {
			continue
		}
		version, bad := "", 0
		for _, v := range r.verdicts {
			version = v.version
			if v.fault != "" {
				bad++
				t.Errorf("%s, %s %s, %s: %s", r.mode, r.client, v.version, v.check, v.fault)
			}
		}
		if version == "" && len(r.verdicts) == 1 {
			t.Logf("%-16s %-22s %s", r.mode, r.client, r.verdicts[0].check)
			continue
		}
		t.Logf("%-16s %-22s %-8s %2d checks, %d failed", r.mode, r.client, version, len(r.verdicts), bad)
	}
}

// TestJudge shows the judge answers that are wrong: each fault must be found, and named.
func TestJudge(t *testing.T) {
	began := time.Now()
	now := (began.UnixMilli() - 1288834974657) << 22
	snow := func(step, n int64) (ids []string) {
		for i := range n {
			ids = append(ids, fmt.Sprint(now/1024*1024+i*step))
		}
		return ids
	}
	count := func(from, n int64) (ids []string) {
		for i := range n {
			ids = append(ids, fmt.Sprint(from+i))
		}
		return ids
	}
	c := client{name: "x"}
	for _, test := range []struct {
		name string
		line line
		want string
	}{
		{"good", line{Check: "incr", OK: true, IDs: count(1, 10)}, ""},
		{"too few", line{Check: "incr", OK: true, IDs: count(1, 9)}, "9 IDs instead of 10"},
		{"order", line{Check: "incr", OK: true, IDs: append(count(2, 9), "1")}, "1 came after 10"},
		{"the same twice", line{Check: "incr", OK: true, IDs: append(count(1, 9), "9")}, "9 came after 9"},
		{"no number", line{Check: "segment", OK: true, IDs: []string{"1.5e3"}}, "is no ID"},
		{"zero", line{Check: "segment", OK: true, IDs: []string{"0"}}, "is no ID"},
		{"block", line{Check: "range", OK: true, IDs: []string{"1", "49"}}, "a block of 50 from 1 to 49"},
		{"an exception", line{Check: "incr", Detail: "connection reset"}, "connection reset"},
		{"PONG", line{Check: "connect", OK: true, Detail: "PING"}, "answered by"},
		{"let in", line{Check: "nopassword", OK: true, Detail: "no error but 5"}, "authentication required"},
		{"stale", line{Check: "cache", OK: true, Detail: "stale: 1"}, "stale"},
		{"three attempts", line{Check: "restart", OK: true, Detail: "3 attempts", IDs: []string{"1"}}, "3 calls until"},
		{"snowflakes", line{Check: "snowflakes", OK: true, IDs: snow(1, 100)}, ""},
		{"rounded", line{Check: "snowflake", OK: true, IDs: snow(128, 20)}, "rounded"},
		{"rounded, past 2^53", line{Check: "recipe incr", OK: true, IDs: []string{"9007199254740992", "9007199254740994", "9007199254740996", "9007199254740998",
			"9007199254741000", "9007199254741002", "9007199254741004", "9007199254741006", "9007199254741008", "9007199254741010"}}, "rounded"},
		{"old", line{Check: "snowflakes", OK: true, IDs: count(1, 100)}, "is of 2010"},
		{"another library", line{Check: "incr", Lib: "y", OK: true, IDs: count(1, 10)}, "answered by"},
	} {
		if test.line.Lib == "" {
			test.line.Lib = "x"
		}
		test.line.Version = "1"
		v := newJudge(began).client(mode{}, c, []string{test.line.Check}, []line{test.line}, nil)
		if len(v) != 1 || (test.want == "") != (v[0].fault == "") || !strings.Contains(v[0].fault, test.want) {
			t.Errorf("%s: judged %q, want %q", test.name, v, test.want)
		}
	}
	if v := newJudge(began).client(mode{}, c, []string{"incr", "get"}, nil, nil); len(v) != 2 || v[0].fault != "no answer" || v[1].fault != "no answer" {
		t.Errorf("a client that prints nothing: %q", v)
	}
	j := newJudge(began)
	incr := line{Lib: "x", Version: "1", Check: "incr", OK: true, IDs: count(1, 10)}
	j.client(mode{}, c, []string{"incr"}, []line{incr}, nil)
	incr.IDs = count(10, 10)
	j.client(mode{}, c, []string{"incr"}, []line{incr}, nil)
	if v := j.together(); !strings.Contains(v[0].fault, "1 duplicates: order 10: x, incr and x, incr") {
		t.Errorf("the ID 10 twice: %q", v)
	}
}

// TestMissingLibrary shows that a library that is not installed is a failure of all its checks, and says what to do.
func TestMissingLibrary(t *testing.T) {
	c := client{name: "x", command: program("/nowhere/interpreter", "python/client.py")}
	err := runProgram(t, c, &session{ctx: t.Context(), out: func(line) {}})
	if err == nil || !strings.Contains(err.Error(), "scripts/deps.sh clients") {
		t.Fatalf("error %v, want one that names scripts/deps.sh clients", err)
	}
	results := newScore()
	results.add(mode{}, c, newJudge(time.Now()).client(mode{}, c, asked(c, mode{}), nil, err))
	libraries, checks, failed := results.count()
	if libraries != 0 || checks != 15 || failed != 15 {
		t.Errorf("%d libraries, %d checks, %d failed; want 0, 15, 15", libraries, checks, failed)
	}
}
