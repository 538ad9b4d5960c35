package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"redleaf/engine"
	"redleaf/segment"
	"redleaf/segment/storetest"
)

// TestPipeline: a thousand commands in one write get a thousand replies in order, hot ones, slow ones and wrong ones mixed
// (leaf P1).
func TestPipeline(t *testing.T) {
	r := startRig(t, rigOptions{})
	c := r.dial()
	var in, want strings.Builder
	next := 0
	for i := range 1000 {
		switch i % 5 {
		case 0, 1:
			next++
			in.WriteString(wire("INCR", "order"))
			fmt.Fprintf(&want, ":%d\r\n", next)
		case 2:
			next += 3
			in.WriteString(wire("INCRBY", "order", "3"))
			fmt.Fprintf(&want, ":%d\r\n", next)
		case 3:
			in.WriteString(wire("ECHO", fmt.Sprint(i)))
			want.WriteString(string(appendBulk(nil, fmt.Sprint(i))))
		case 4:
			in.WriteString(wire("INCR"))
			want.WriteString("-ERR wrong number of arguments for 'incr' command\r\n")
		}
	}
	go io.WriteString(c.nc, in.String())
	got := make([]byte, want.Len())
	c.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(c.br, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Error("replies differ from what was asked")
	}
	// A read is counted when its replies are written, which the client may see first.
	var st Stats
	counts := map[string]CommandStats{}
	for deadline := time.Now().Add(10 * time.Second); counts["incr"].Calls < 400 && time.Now().Before(deadline); runtime.Gosched() {
		st = r.server.Stats()
		for _, s := range st.Commands {
			counts[s.Name] = s
		}
	}
	if counts["incr"].Calls != 400 || counts["incr"].Rejected != 200 || counts["incrby"].Calls != 200 || counts["echo"].Calls != 200 {
		t.Errorf("counted: %+v", st.Commands)
	}
	if len(st.Errors) != 1 || st.Errors[0] != (ErrorStats{"ERR", 200}) {
		t.Errorf("errors: %+v", st.Errors)
	}
}

// TestQuitDropsTheRest: nothing behind QUIT or a kill of oneself runs.
func TestQuitDropsTheRest(t *testing.T) {
	r := startRig(t, rigOptions{})
	for _, end := range []string{"QUIT", "CLIENT KILL TYPE normal SKIPME no"} {
		for _, before := range []string{"", "INCR order|", "ECHO a|"} {
			lines := strings.Split(before+end+"|INCR after|ECHO x|INCR after", "|")
			c := r.dial()
			c.send(laneStream(lines, ""))
			if before != "" {
				c.reply()
			}
			if got := c.reply(); got != "+OK\r\n" && got[0] != ':' {
				t.Errorf("%s: %q", end, got)
			}
			c.closed()
		}
	}
	if row, ok := r.store.DB().Row("after"); ok {
		t.Errorf("a command behind the end ran: %+v", row)
	}
}

// slowStore is a store that answers Reserve for tags beginning with "slow" only when it is told to.
func slowStore(release <-chan struct{}) *storetest.Mem {
	s := storetest.NewMem()
	s.Latency = func(op, tag string) time.Duration {
		if op == "Reserve" && strings.HasPrefix(tag, "slow") {
			<-release
		}
		return 0
	}
	return s
}

// TestWait: what is known is written before a command waits, and other connections go on meanwhile.
func TestWait(t *testing.T) {
	release := make(chan struct{})
	r := startRig(t, rigOptions{store: slowStore(release), wait: time.Minute, Options: Options{SlowlogThreshold: time.Microsecond}})
	c := r.dial()
	c.wantLine(":1\r\n", "INCR quick")
	c.send(laneStream([]string{"INCR quick", "ECHO a", "PING", "INCR slow", "INCR quick", "PING"}, ""))
	for _, want := range []string{":2\r\n", "$1\r\na\r\n", "+PONG\r\n"} {
		wantReply(t, "before the wait", c.reply(), want)
	}
	other := r.dial()
	other.wantLine(":3\r\n", "INCR quick")
	close(release)
	for _, want := range []string{":1\r\n", ":4\r\n", "+PONG\r\n"} {
		wantReply(t, "after the wait", c.reply(), want)
	}
	if got := c.line("SLOWLOG GET 1"); !regexp.MustCompile(`(?s)^\*1\r\n\*6\r\n:\d+\r\n:\d{10}\r\n:\d+\r\n\*2\r\n\$4\r\nINCR\r\n\$4\r\nslow\r\n\$\d+\r\n127\.0\.0\.1:\d+\r\n\$0\r\n\r\n$`).MatchString(got) {
		t.Errorf("SLOWLOG GET: %q", got)
	}
	if got := c.line("LATENCY LATEST"); !regexp.MustCompile(`(?s)^\*1\r\n\*4\r\n\$6\r\nrefill\r\n:\d{10}\r\n:\d+\r\n:\d+\r\n$`).MatchString(got) {
		t.Errorf("LATENCY LATEST: %q", got)
	}
	c.wantLine(":1\r\n", "LATENCY RESET refill nosuch")
	c.wantLine("*0\r\n", "LATENCY LATEST")
	if st := r.server.Stats(); st.Waits.Count < 2 || st.Reads.Count < 3 || st.SlowlogLen < 1 {
		t.Errorf("counted %d waits, %d reads, %d in the slow log", st.Waits.Count, st.Reads.Count, st.SlowlogLen)
	}
}

// TestColdKeysLoadTogether: the cold keys of one pipeline cost one wait, not one each. Each load waits until all have begun.
func TestColdKeysLoadTogether(t *testing.T) {
	const n = 12 // below the number of refills at one time
	for _, multi := range []bool{false, true} {
		var mu sync.Mutex
		began, all := map[string]bool{}, make(chan struct{})
		store := storetest.NewMem()
		store.Latency = func(op, tag string) time.Duration {
			if strings.HasPrefix(tag, "cold") && op != "Rows" {
				mu.Lock()
				if !began[tag] {
					began[tag] = true
					if len(began) == n {
						close(all)
					}
				}
				mu.Unlock()
				<-all
			}
			return 0
		}
		r := startRig(t, rigOptions{store: store, wait: time.Minute})
		c := r.dial()
		var lines []string
		if multi {
			lines = append(lines, "MULTI")
		}
		for i := range n {
			lines = append(lines, []string{fmt.Sprintf("INCR cold%d", i), fmt.Sprintf("INCRBY cold%d 1", i), fmt.Sprintf("SEGMENT.NEXT cold%d", i)}[i%3])
		}
		if multi {
			lines = append(lines, "EXEC")
		}
		c.send(laneStream(lines, ""))
		for _, l := range lines {
			want := ":1\r\n"
			switch {
			case l == "MULTI":
				want = "+OK\r\n"
			case l == "EXEC":
				want = "*12\r\n" + strings.Repeat(":1\r\n", n)
			case multi:
				want = "+QUEUED\r\n"
			}
			wantReply(t, l, c.reply(), want)
		}
	}
}

// TestOnePatiencePerRead: all commands of a read share segment.wait, whatever the number of dead tags and of redcon's batches.
func TestOnePatiencePerRead(t *testing.T) {
	store := storetest.NewMem()
	r := startRig(t, rigOptions{store: store, wait: 300 * time.Millisecond})
	c := r.dial()
	c.wantLine(":1\r\n", "INCR live")
	store.DB().SetDown(&segment.UnavailableError{Cause: errors.New("it is down")})
	var lines []string
	for i := range 40 {
		lines = append(lines, fmt.Sprintf("INCR dead%d", i), "ECHO x", "INCR live")
	}
	start := time.Now()
	c.send(laneStream(lines, ""))
	for _, l := range lines {
		got := c.reply()
		if strings.HasPrefix(l, "INCR dead") != strings.HasPrefix(got, "-TRYAGAIN ") {
			t.Fatalf("%s: %q", l, got)
		}
	}
	// 40 waits one after another would be 12 s.
	if took := time.Since(start); took > 6*time.Second {
		t.Errorf("the read took %v", took)
	}
}

// TestPanics: a bug in a handler, in the lane or out of it, costs one connection.
func TestPanics(t *testing.T) {
	var log syncBuffer
	r := startRig(t, rigOptions{Options: Options{Log: zerolog.New(&log)}})
	r.server.table.byName["lolwut"].run = func(*conn, [][]byte, []byte) []byte { panic("slow bug") }
	ping := r.server.table.byName["ping"].run
	r.server.table.byName["ping"].run = func(c *conn, args [][]byte, out []byte) []byte {
		if len(args) == 2 {
			panic("hot bug")
		}
		return ping(c, args, out)
	}
	bystander := r.dial()
	bystander.wantLine("+PONG\r\n", "PING")
	for _, bad := range []string{"LOLWUT", "PING x"} {
		c := r.dial()
		c.send(laneStream([]string{"ECHO a", bad, "INCR order"}, ""))
		wantReply(t, bad, c.reply(), "$1\r\na\r\n")
		if got := c.reply(); !strings.HasPrefix(got, "-ERR internal error") {
			t.Errorf("%s: %q", bad, got)
		}
		c.closed()
	}
	// What was written before a wait is not written again.
	r.server.table.byName["randomkey"].run = func(c *conn, _ [][]byte, out []byte) []byte { c.beforeWait(out); panic("late bug") }
	late := r.dial()
	late.send(laneStream([]string{"ECHO a", "RANDOMKEY"}, ""))
	wantReply(t, "ECHO", late.reply(), "$1\r\na\r\n")
	wantReply(t, "RANDOMKEY", late.reply(), "-"+errInternal+"\r\n")
	late.closed()
	m := r.dial()
	m.wantLine("+OK\r\n", "MULTI")
	m.wantLine("+QUEUED\r\n", "LOLWUT")
	m.send(wire("EXEC"))
	m.reply() // the array's beginning may be there
	bystander.wantLine(":1\r\n", "INCR order")
	if n := r.server.Stats().Panics; n != 4 {
		t.Errorf("%d panics counted, want 4", n)
	}
	if s := log.String(); !strings.Contains(s, "slow bug") || !strings.Contains(s, "hot bug") || !strings.Contains(s, "server_test.go") {
		t.Errorf("the log does not tell where: %s", s)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestShutdown: commands that have arrived are answered, a waiting one included; then connections close and Serve returns.
func TestShutdown(t *testing.T) {
	release := make(chan struct{})
	r := startRig(t, rigOptions{store: slowStore(release), wait: time.Minute})
	s, err := New(r.engine, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(Listener{Listener: ln}) }()
	idle, busy := connect(t, ln.Addr().String()), connect(t, ln.Addr().String())
	idle.wantLine("+PONG\r\n", "PING")
	busy.send(laneStream([]string{"PING", "INCR slow", "INCR slow", "PING"}, ""))
	wantReply(t, "PING", busy.reply(), "+PONG\r\n")
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(context.Background()) }()
	idle.closed()
	close(release)
	for _, want := range []string{":1\r\n", ":2\r\n", "+PONG\r\n"} {
		wantReply(t, "while draining", busy.reply(), want)
	}
	busy.closed()
	if err := <-stopped; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// TestKeys: what can't name a tag is refused with its bytes shown, and consumes nothing.
func TestKeys(t *testing.T) {
	r := startRig(t, rigOptions{})
	c := r.dial()
	for key, want := range map[string]string{
		"":                       "-ERR the key is empty: a tag is 1 to 128 bytes of UTF-8\r\n",
		strings.Repeat("x", 129): "-ERR the key is 129 bytes long: a tag is 1 to 128 bytes of UTF-8\r\n",
		"\xac\xed\x00\x05t":      `-ERR the key "\xac\xed\x00\x05t" is not valid UTF-8: set your client's key serializer to a string one` + "\r\n",
		"a\r\nb":                 `-ERR the key "a\r\nb" holds a control character: set your client's key serializer to a string one` + "\r\n",
		" a":                     `-ERR the key " a" begins or ends with a space: databases drop it, so it is refused` + "\r\n",
	} {
		for _, args := range [][]string{{"INCR", key}, {"INCRBY", key, "5"}, {"SEGMENT.NEXT", key, "COUNT", "2"}, {"SEGMENT.RANGE", key, "5"}, {"SET", key, "5"}, {"SETNX", key, "5"}, {"SEGMENT.CREATE", key}, {"GET", key}} {
			if got := c.do(args...); got != want {
				t.Errorf("%q: got %q, want %q", args, got, want)
			}
		}
		c.want(":0\r\n", "EXISTS", key)
	}
	big := strings.Repeat("k", 1<<20)
	c.want("-ERR argument of 1048576 bytes for \"INCR\" is too large: at most 65536 bytes\r\n", "INCR", big)
	c.wantLine("+OK\r\n", "MULTI")
	c.wantLine("+QUEUED\r\n", "INCR order")
	c.want("-ERR argument of 1048576 bytes for \"ECHO\" is too large: at most 65536 bytes\r\n", "ECHO", big)
	c.wantLine("-"+errExecAbort+"\r\n", "EXEC")
	many := append([]string{"MGET"}, make([]string, 2000)...)
	c.want("-ERR 2001 arguments for \"MGET\" are too many: at most 1024\r\n", many...)
	for _, n := range []string{"0", "-1", "1000001", "9223372036854775807"} {
		c.want("-ERR the increment is "+n+": counters only move forward, by 1 to 1000000 at a time (segment.max_count)\r\n", "INCRBY", "order", n)
	}
	if n := r.store.Calls("Reserve") + r.store.Calls("Create") + r.store.Calls("Advance"); n != 0 {
		t.Errorf("bad input moved the store %d times", n)
	}
	// One reply per command, whatever stands in it (cases R14).
	c.send(wire("INCR", "order") + wire("EVAL", "local x\r\n+OK\r\nreturn x", "0") + wire("BOGUS\r\n:7", "\r\n+OK") + wire("INCR", "order"))
	wantReply(t, "INCR", c.reply(), ":1\r\n")
	if got := c.reply(); !strings.HasPrefix(got, "-ERR EVAL is refused: ") {
		t.Errorf("EVAL: %q", got)
	}
	wantReply(t, "BOGUS", c.reply(), "-ERR unknown command 'BOGUS  :7', with args beginning with: '  +OK' \r\n")
	wantReply(t, "INCR", c.reply(), ":2\r\n")
}

func TestUnknownTag(t *testing.T) {
	r := startRig(t, rigOptions{autoCreate: []string{"auto:*"}})
	c := r.dial()
	const no = "-NOTAG there is no tag 'order', and segment.auto_create does not let INCR make it: make it with SEGMENT.CREATE or SET\r\n"
	for _, line := range []string{"INCR order", "INCRBY order 5", "SEGMENT.NEXT order", "SEGMENT.NEXT order COUNT 3", "SEGMENT.RANGE order 3"} {
		c.wantLine(no, line)
	}
	c.wantLine(":1\r\n", "INCR auto:1")
	c.wantLine("+OK\r\n", "SET order 10")
	c.wantLine(":11\r\n", "INCR order")
}

// TestSnowflakeReply: an integer where no client can misread it, else a bulk string; and as forced.
func TestSnowflakeReply(t *testing.T) {
	for _, c := range []struct {
		layout *engine.Layout
		reply  string
		want   string
	}{
		{&layout63, "auto", `^\$19\r\n\d{19}\r\n$`}, {&layout63, "", `^\$19\r\n`}, {&layout63, "integer", `^:\d{19}\r\n$`},
		{&layout53, "auto", `^:\d{15,16}\r\n$`}, {&layout53, "bulk", `^\$1[56]\r\n\d{15,16}\r\n$`},
	} {
		r := startRig(t, rigOptions{layout: c.layout, Options: Options{SnowflakeReply: c.reply}})
		cl := r.dial()
		re := regexp.MustCompile(c.want)
		if got := cl.line("SNOWFLAKE.NEXT"); !re.MatchString(got) {
			t.Errorf("%v %q: %q", c.layout, c.reply, got)
		}
		one := strings.TrimSuffix(strings.TrimPrefix(c.want, "^"), "$")
		if got := cl.line("SNOWFLAKE.NEXT COUNT 1"); !regexp.MustCompile(`^\*1\r\n` + one).MatchString(got) {
			t.Errorf("%v %q: %q", c.layout, c.reply, got)
		}
	}
	if _, err := New(engine.New(engine.Options{}), Options{SnowflakeReply: "float"}); err == nil || !strings.Contains(err.Error(), "snowflake.reply 'float'") {
		t.Errorf("a bad reply type: %v", err)
	}
}

// TestSnowflakeKeys: INCR of such a key is a snowflake, for clients that can't send SNOWFLAKE.NEXT (leaf P6).
func TestSnowflakeKeys(t *testing.T) {
	r := startRig(t, rigOptions{keys: []string{"sf:*"}})
	c := r.dial()
	re := regexp.MustCompile(`^:(\d{19})\r\n$`)
	last := ""
	for _, line := range []string{"INCR sf:a", "INCRBY sf:b 1", "SEGMENT.NEXT sf:a"} {
		m := re.FindStringSubmatch(c.line(line))
		if m == nil || m[1] <= last {
			t.Fatalf("%s: %q after %s", line, m, last)
		}
		last = m[1]
	}
	c.wantLine("$19\r\n"+last+"\r\n", "GET sf:z")
	c.wantLine(":1\r\n", "EXISTS sf:z")
	if got := c.line("SEGMENT.NEXT sf:a COUNT 2"); !regexp.MustCompile(`^\*2\r\n:\d{19}\r\n:\d{19}\r\n$`).MatchString(got) {
		t.Errorf("COUNT 2: %q", got)
	}
	for _, line := range []string{"INCRBY sf:a 2", "SET sf:a 5", "SEGMENT.RANGE sf:a 5", "SEGMENT.CREATE sf:a"} {
		if got := c.line(line); !strings.HasPrefix(got, "-ERR ") || !strings.Contains(got, "snowflake.keys") {
			t.Errorf("%s: %q", line, got)
		}
	}
	c.wantLine(":1\r\n", "INCR plain")
}

// TestEnginesOff: each command of an engine that is off says what to set; the rest works.
func TestEnginesOff(t *testing.T) {
	r := startRig(t, rigOptions{noSegment: true, noSnow: true})
	c := r.dial()
	for _, line := range []string{"INCR a", "INCRBY a 5", "GET a", "SET a 5", "EXISTS a", "SCAN 0", "DBSIZE", "SEGMENT.NEXT a", "SEGMENT.LIST", "SEGMENT.INFO a"} {
		c.wantLine("-DISABLED the segment engine is off: set segment.store to local or mysql\r\n", line)
	}
	for _, line := range []string{"SNOWFLAKE.NEXT", "SNOWFLAKE.NEXT COUNT 3"} {
		if got := c.line(line); !strings.HasPrefix(got, "-DISABLED the snowflake engine is off: ") {
			t.Errorf("%s: %q", line, got)
		}
	}
	c.wantLine("+PONG\r\n", "PING")
	// Netdata takes the first line that holds _version (cases R11); Datadog divides by db0's keys (cases R12).
	for _, line := range []string{"INFO", "INFO all", "INFO server", "INFO everything", "INFO default"} {
		got := c.line(line)
		if i := strings.Index(got, "_version"); i < 0 || !strings.HasPrefix(got[strings.LastIndex(got[:i], "\n")+1:], "redis_version:7.2.4\r\n") {
			t.Errorf("%s: the first _version line is not redis_version", line)
		}
		if strings.Contains(got, "db0:") || !strings.Contains(got, "loading:0\r\n") && line != "INFO server" {
			t.Errorf("%s: %q", line, got)
		}
	}
	for _, name := range []string{"slowlog-max-len", "slowlog-log-slower-than", "maxclients", "maxmemory", "databases", "timeout", "save", "appendonly", "replica-read-only"} {
		if got := c.line("CONFIG GET " + name); !strings.HasPrefix(got, "*2\r\n") {
			t.Errorf("CONFIG GET %s: %q", name, got)
		}
	}
}

func TestKeyspace(t *testing.T) {
	c := startRig(t, rigOptions{}).dial()
	c.wantLine("$12\r\n# Keyspace\r\n\r\n", "INFO keyspace")
	c = startRig(t, rigOptions{}).dial()
	c.wantLine(":1\r\n", "INCR order")
	c.wantLine("$44\r\n# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0\r\n\r\n", "INFO keyspace")
}

// TestLoading: INFO says loading:1 and commands LOADING while no engine is ready; PING answers.
func TestLoading(t *testing.T) {
	store := storetest.NewMem()
	store.DB().SetDown(&segment.UnavailableError{Cause: errors.New("it is down")})
	alloc := segment.New(store, nil, segment.Options{Check: 50 * time.Millisecond})
	alloc.Start()
	defer alloc.Close(context.Background())
	e := engine.New(engine.Options{Segment: alloc, Wait: time.Second, StartTimeout: time.Minute, MaxCount: 10, MaxArray: 10})
	r := &rig{t: t, engine: e}
	l := r.servePipes(t, Options{}, true)
	got := l.exchange(t, laneStream([]string{"PING", "INCR order", "GET order", "INFO persistence", "MULTI", "INCR order", "EXEC", "QUIT"}, ""))
	want := regexp.MustCompile(`(?s)^\+PONG\r\n-LOADING [^\n]*\r\n-LOADING [^\n]*\r\n\$\d+\r\n# Persistence\r\nloading:1\r\n.*\+OK\r\n\+QUEUED\r\n\*1\r\n-LOADING [^\n]*\r\n\+OK\r\n$`)
	if !want.MatchString(got) {
		t.Errorf("got %q", got)
	}
}

// TestInternalError: a text that is not for clients stays in the log (I13).
func TestInternalError(t *testing.T) {
	var log syncBuffer
	store := storetest.NewMem()
	r := startRig(t, rigOptions{store: store, Options: Options{Log: zerolog.New(&log)}})
	c := r.dial()
	c.wantLine(":1\r\n", "INCR order")
	store.DB().SetDown(errors.New("dial root:hunter2@db: no such host"))
	if got := c.line("SCAN 0"); strings.Contains(got, "hunter2") || got[0] != '-' {
		t.Errorf("SCAN: %q", got)
	}
	if !strings.Contains(log.String(), "no such host") {
		t.Errorf("the log does not tell: %s", log.String())
	}
}
