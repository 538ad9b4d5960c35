package server

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"redleaf/segment/storetest"
)

// TestMultiRefused: the commonest counter recipe is MULTI, INCR, EXPIRE, EXEC in one write. The refusal comes at queue time,
// EXEC aborts, and the tag was neither created nor moved (cases R5).
func TestMultiRefused(t *testing.T) {
	r := startRig(t, rigOptions{})
	c := r.dial()
	c.wantLine(":1\r\n", "INCR warm")
	refusals := []string{"EXPIRE $k 60", "DEL $k", "DECR $k", "GETSET $k 0", "PEXPIREAT $k 1", "EVAL x 0", "SET $k 5 EX 60", "SETEX $k 1 1", "FLUSHALL", "SCRIPT LOAD x"}
	for i, refusal := range refusals {
		for _, first := range []bool{false, true} {
			for _, key := range []string{fmt.Sprintf("cold:%d:%v", i, first), "warm"} {
				// The INCR of another cold key makes the read wait, with the transaction already in it.
				other := fmt.Sprintf("other:%d:%v:%s", i, first, key)
				lines := []string{"INCR " + other, "MULTI", "INCR $k", refusal, "INCRBY $k 5", "EXEC", "PING"}
				if first {
					lines = []string{"INCR " + other, "MULTI", refusal, "INCR $k", "EXEC", "PING"}
				}
				c.send(laneStream(lines, key))
				for _, l := range lines {
					got := c.reply()
					switch {
					case l == refusal:
						if name := strings.Fields(refusal)[0]; !strings.HasPrefix(got, "-ERR "+name) || !strings.Contains(got, "is refused: ") {
							t.Errorf("%s: %q", l, got)
						}
					case l == "MULTI":
						wantReply(t, l, got, "+OK\r\n")
					case l == "EXEC":
						wantReply(t, l, got, "-EXECABORT Transaction discarded because of previous errors.\r\n")
					case l == "PING":
						wantReply(t, l, got, "+PONG\r\n")
					case strings.HasPrefix(l, "INCR other"):
						wantReply(t, l, got, ":1\r\n")
					default:
						wantReply(t, l, got, "+QUEUED\r\n")
					}
				}
			}
			if row, ok := r.store.DB().Row(fmt.Sprintf("cold:%d:%v", i, first)); ok {
				t.Errorf("%s: the tag was made: %+v", refusal, row)
			}
		}
	}
	c.wantLine(":2\r\n", "INCR warm")
}

func wantReply(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// TestMultiTakesAtExec: IDs are taken when EXEC runs, not when commands are queued.
func TestMultiTakesAtExec(t *testing.T) {
	r := startRig(t, rigOptions{})
	a, b := r.dial(), r.dial()
	a.wantLine("+OK\r\n", "MULTI")
	a.wantLine("+QUEUED\r\n", "INCR order")
	a.wantLine("+QUEUED\r\n", "INCRBY order 3")
	b.wantLine(":1\r\n", "INCR order")
	a.wantLine("*2\r\n:2\r\n:5\r\n", "EXEC")
	a.wantLine("+OK\r\n", "MULTI")
	a.wantLine("+QUEUED\r\n", "INCR order")
	a.wantLine("+OK\r\n", "DISCARD")
	b.wantLine(":6\r\n", "INCR order")
}

// TestWatch: EXEC answers null when a watched key moved on this instance in any way.
func TestWatch(t *testing.T) {
	r := startRig(t, rigOptions{})
	a, b := r.dial(), r.dial()
	b.wantLine(":1\r\n", "INCR order")
	for _, move := range []struct {
		line  string
		moved bool
	}{
		{"INCR order", true}, {"INCRBY order 5", true}, {"SEGMENT.NEXT order COUNT 2", true}, {"SET order 100000", true}, {"INCR created", true},
		{"GET order", false}, {"INCR unrelated", false}, {"EXISTS order created", false}, {"SET order 1", false},
	} {
		a.wantLine("+OK\r\n", "WATCH order created")
		b.line(move.line)
		a.wantLine("+OK\r\n", "MULTI")
		a.wantLine("+QUEUED\r\n", "PING")
		want := "*1\r\n+PONG\r\n"
		if move.moved {
			want = "*-1\r\n"
		}
		wantReply(t, move.line, a.line("EXEC"), want)
	}
	// One's own command before MULTI counts too; UNWATCH, DISCARD and EXEC forget.
	for _, forget := range []string{"", "UNWATCH", "DISCARD", "EXEC"} {
		a.wantLine("+OK\r\n", "WATCH order")
		if forget == "DISCARD" || forget == "EXEC" {
			a.line("MULTI")
		}
		if forget != "" {
			a.line(forget)
		}
		a.line("INCR order")
		a.wantLine("+OK\r\n", "MULTI")
		want := "*0\r\n"
		if forget == "" {
			want = "*-1\r\n"
		}
		wantReply(t, forget, a.line("EXEC"), want)
	}
	many := []string{"WATCH"}
	for i := range 1025 - 2 {
		many = append(many, fmt.Sprint("k", i))
	}
	if len(many) > frameDefaults.Args {
		t.Fatal("the test asks too much")
	}
	a.want("+OK\r\n", many...)
	a.wantLine("-ERR a connection may watch 1024 keys at most\r\n", "WATCH a b")
}

// TestGetSetRace: some clients read a counter, add one, SET it and use the number: django-redis does when EVAL is refused, and
// Spring's compare-and-set does it in a transaction. Numbers for which SET answered OK, and INCR's, are all distinct, on one
// instance and on two (cases R2).
func TestGetSetRace(t *testing.T) {
	db := storetest.NewDB()
	a := startRig(t, rigOptions{store: db.Open()})
	b := startRig(t, rigOptions{store: db.Open()})
	for _, rigs := range [][]*rig{{a}, {a, b}} {
		key := fmt.Sprintf("race:%d", len(rigs))
		var mu sync.Mutex
		seen := map[int64]string{}
		take := func(id int64, who string) {
			mu.Lock()
			defer mu.Unlock()
			if was, ok := seen[id]; ok {
				t.Errorf("%d was given to %s and to %s", id, was, who)
			}
			seen[id] = who
		}
		parse := func(s string) (int64, bool) {
			s = strings.TrimRight(s, "\r\n")
			if i := strings.LastIndexByte(s, '\n'); i >= 0 {
				s = s[i+1:]
			}
			return parseInt([]byte(strings.TrimPrefix(s, ":")))
		}
		var wg sync.WaitGroup
		for i := range 6 {
			c := rigs[i%len(rigs)].dial()
			who := []string{"incr", "set", "watch"}[i/2]
			wg.Go(func() {
				for range 60 {
					switch who {
					case "incr":
						if id, ok := parse(c.line("INCR " + key)); ok {
							take(id, who)
						}
					case "set":
						c.line("TTL " + key)
						if n, ok := parse(c.line("GET " + key)); ok && c.line(fmt.Sprintf("SET %s %d", key, n+1)) == "+OK\r\n" {
							take(n+1, who)
						}
					case "watch":
						c.line("WATCH " + key)
						n, ok := parse(c.line("GET " + key))
						c.line("MULTI")
						if ok {
							c.line(fmt.Sprintf("SET %s %d", key, n+1))
						}
						if c.line("EXEC") == "*1\r\n+OK\r\n" && ok {
							take(n+1, who)
						}
					}
				}
			})
		}
		wg.Wait()
		t.Logf("%d instances: %d numbers, all distinct", len(rigs), len(seen))
	}
}

// TestSetnxRace: code generators call SETNX k start and use start if it says 1, else INCRBY. At most one of those that try at
// the same moment gets the number (cases R8).
func TestSetnxRace(t *testing.T) {
	db := storetest.NewDB()
	a := startRig(t, rigOptions{store: db.Open()})
	b := startRig(t, rigOptions{store: db.Open()})
	clients := []*client{a.dial(), b.dial(), a.dial()}
	for round := range 200 {
		key := fmt.Sprint("nx:", round)
		got := make([]string, len(clients))
		var wg sync.WaitGroup
		for i, c := range clients {
			wg.Go(func() {
				if i == 2 {
					got[i] = c.do("INCR", key)
				} else {
					got[i] = c.do("SETNX", key, "1")
				}
			})
		}
		wg.Wait()
		owners := 0
		for i, g := range got {
			if g == ":1\r\n" { // SETNX's yes, and INCR's first ID
				owners++
			} else if i < 2 && g != ":0\r\n" {
				t.Fatalf("round %d: %q", round, got)
			}
		}
		if owners > 1 {
			t.Fatalf("round %d: the number 1 has %d owners: %q", round, owners, got)
		}
	}
}

// TestExecStreams: what EXEC answers is not gathered in memory first.
func TestExecStreams(t *testing.T) {
	r := startRig(t, rigOptions{})
	c := r.dial()
	const n = 60
	c.wantLine("+OK\r\n", "MULTI")
	for range n {
		c.wantLine("+QUEUED\r\n", "SEGMENT.NEXT order COUNT 10000")
	}
	c.send(wire("EXEC"))
	buf, ids := make([]byte, 64<<10), 0
	for ids < n*10000 {
		k, err := c.br.Read(buf)
		if err != nil {
			t.Fatalf("%v after %d IDs", err, ids)
		}
		ids += bytes.Count(buf[:k], []byte{':'})
	}
	c.br.Discard(c.br.Buffered())
	waitFor(t, func() bool { return r.server.queued.Load() == 0 })
}

// TestQueueIsBounded: open transactions hold no more together than they may.
func TestQueueIsBounded(t *testing.T) {
	r := startRig(t, rigOptions{})
	r.server.queued.Store(maxQueued - 1000)
	c := r.dial()
	c.wantLine("+OK\r\n", "MULTI")
	c.wantLine("+QUEUED\r\n", "INCR order")
	c.want("-ERR the open transactions hold too much together: EXEC more often\r\n", "ECHO", strings.Repeat("x", 2000))
	c.wantLine("-"+errExecAbort+"\r\n", "EXEC")
	c.wantLine(":1\r\n", "INCR order")
	// A connection that goes away gives back what it held.
	c.wantLine("+OK\r\n", "MULTI")
	c.wantLine("+QUEUED\r\n", "INCR order")
	c.nc.Close()
	waitFor(t, func() bool { return r.server.queued.Load() == maxQueued-1000 })
}
