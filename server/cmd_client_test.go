package server

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestTracking: rueidis' DoCache reads by CLIENT CACHING YES, MULTI, PTTL, GET, EXEC. The key is said to have moved right
// behind the reply, so that nothing stale is ever served from the client's cache.
func TestTracking(t *testing.T) {
	r := startRig(t, rigOptions{})
	c := r.dial()
	const push = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$5\r\norder\r\n"
	if !strings.HasPrefix(c.line("HELLO 3"), "%7\r\n") {
		t.Fatal("no RESP3")
	}
	c.wantLine(":1\r\n", "INCR order")
	c.wantLine("+OK\r\n", "CLIENT TRACKING ON OPTIN")
	for range 2 {
		c.send(laneStream([]string{"CLIENT CACHING YES", "MULTI", "PTTL order", "GET order", "EXEC", "GET order", "PING"}, ""))
		for _, want := range []string{"+OK\r\n", "+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n:0\r\n$1\r\n1\r\n", push, push, "$1\r\n1\r\n", "+PONG\r\n"} {
			wantReply(t, "DoCache", c.reply(), want)
		}
	}
	c.wantLine("+OK\r\n", "CLIENT CACHING YES")
	c.wantLine("$1\r\n1\r\n", "GET order")
	wantReply(t, "a tracked GET", c.reply(), push)
	c.wantLine("$1\r\n1\r\n", "GET order") // not tracked any more
	c.wantLine("+OK\r\n", "CLIENT TRACKING OFF")
	c.wantLine("+OK\r\n", "CLIENT TRACKING ON")
	c.wantLine(":2\r\n", "INCR order")
	for _, line := range []string{"GET order", "EXISTS order", "TTL order", "TYPE order", "MGET order"} {
		if got := c.line(line); got[0] == '>' {
			t.Errorf("%s: the push came first: %q", line, got)
		}
		wantReply(t, line, c.reply(), push)
	}
	c.wantLine("+OK\r\n", "CLIENT TRACKING OFF")
	c.wantLine("$1\r\n2\r\n", "GET order")
	c.wantLine("+PONG\r\n", "PING")
	// RESP2 has no pushes.
	two := r.dial()
	two.wantLine("+OK\r\n", "CLIENT TRACKING ON")
	two.wantLine("$1\r\n2\r\n", "GET order")
	two.wantLine("+PONG\r\n", "PING")
}

func TestClientReply(t *testing.T) {
	r := startRig(t, rigOptions{})
	c := r.dial()
	c.send(laneStream([]string{"CLIENT REPLY OFF", "INCR order", "PING", "ECHO a", "BOGUS", "CLIENT REPLY SKIP", "INCR order", "CLIENT REPLY ON", "INCR order"}, ""))
	wantReply(t, "ON", c.reply(), "+OK\r\n")
	wantReply(t, "INCR", c.reply(), ":3\r\n")
	c.send(laneStream([]string{"CLIENT REPLY SKIP", "INCR order", "INCR order", "CLIENT REPLY SKIP", "ECHO x", "PING"}, ""))
	wantReply(t, "INCR", c.reply(), ":5\r\n")
	wantReply(t, "PING", c.reply(), "+PONG\r\n")
	// A muted cold key waits without a word either.
	c.send(laneStream([]string{"CLIENT REPLY OFF", "INCR cold", "MULTI", "INCR cold2", "EXEC", "CLIENT REPLY ON"}, ""))
	wantReply(t, "ON", c.reply(), "+OK\r\n")
	c.wantLine(":2\r\n", "INCR cold")
	c.wantLine(":2\r\n", "INCR cold2")
	// What is muted drops nothing of what came before it, and is not gathered.
	c.send(laneStream([]string{"ECHO a", "CLIENT REPLY OFF", "MULTI", "SEGMENT.NEXT big COUNT 10000", "SEGMENT.NEXT big COUNT 10000", "ECHO x", "EXEC", "CLIENT REPLY ON"}, ""))
	wantReply(t, "ECHO", c.reply(), "$1\r\na\r\n")
	wantReply(t, "ON", c.reply(), "+OK\r\n")
	c.wantLine(":20001\r\n", "INCR big")
	// Inside MULTI it would leave EXEC's array one short.
	c.wantLine("+OK\r\n", "MULTI")
	c.wantLine("-"+errNotInMulti+"\r\n", "CLIENT REPLY SKIP")
	c.wantLine("-"+errExecAbort+"\r\n", "EXEC")
}

func TestClientPause(t *testing.T) {
	r := startRig(t, rigOptions{})
	admin, c := r.dial(), r.dial()
	c.wantLine(":1\r\n", "INCR order")
	admin.wantLine("+OK\r\n", "CLIENT PAUSE 3600000 WRITE")
	// Reads go on, INCR waits, and what came before it is answered.
	c.send(laneStream([]string{"GET order", "PING", "INCR order", "PING"}, ""))
	wantReply(t, "GET", c.reply(), "$1\r\n1\r\n")
	wantReply(t, "PING", c.reply(), "+PONG\r\n")
	tx := r.dial()
	tx.wantLine("+OK\r\n", "MULTI")
	tx.wantLine("+QUEUED\r\n", "INCR order")
	tx.send(wire("EXEC"))
	if !r.server.Stats().Paused {
		t.Error("Stats does not tell of the pause")
	}
	admin.wantLine("$1\r\n1\r\n", "GET order")
	admin.wantLine("+OK\r\n", "CLIENT UNPAUSE")
	got := map[string]bool{c.reply(): true, tx.reply(): true}
	if !(got[":2\r\n"] && got["*1\r\n:3\r\n"]) && !(got[":3\r\n"] && got["*1\r\n:2\r\n"]) {
		t.Errorf("after the pause: %v", got)
	}
	wantReply(t, "PING", c.reply(), "+PONG\r\n")

	// ALL holds everything but CLIENT; a pause ends by itself.
	admin.wantLine("+OK\r\n", "CLIENT PAUSE 50")
	start := time.Now()
	c.wantLine("+PONG\r\n", "PING")
	if took := time.Since(start); took < 20*time.Millisecond {
		t.Errorf("PING was answered after %v of 50ms", took)
	}
	// A client that is killed while it waits is gone.
	admin.wantLine("+OK\r\n", "CLIENT PAUSE 3600000")
	c.send(wire("PING"))
	id := strings.TrimPrefix(strings.TrimSpace(tx.line("CLIENT ID")), ":")
	tx.send(wire("INCR", "order"))
	admin.wantLine(":1\r\n", "CLIENT KILL ID "+id)
	waitFor(t, func() bool { return r.server.guard.Clients() == 2 })
	// The end of the server ends the pause: the rig's shutdown proves it.
}

func TestClientListAndKill(t *testing.T) {
	r := startRig(t, rigOptions{})
	admin, c := r.dial(), r.dial()
	c.wantLine("+OK\r\n", "CLIENT SETNAME app")
	c.wantLine("+OK\r\n", "MULTI")
	c.wantLine("+QUEUED\r\n", "INCR order")
	sub := r.dial()
	sub.line("SUBSCRIBE a")
	list := admin.line("CLIENT LIST")
	for _, want := range []string{`\nid=2 addr=[^ ]+ .* name=app .* flags=x .* multi=1 .* cmd=incr `, `\nid=3 .* flags=P .* sub=1 .* cmd=subscribe `, `\r\nid=1 .* cmd=client\|list `} {
		if !regexp.MustCompile(want).MatchString(list) {
			t.Errorf("%s is not in %q", want, list)
		}
	}
	if got := admin.line("CLIENT LIST TYPE pubsub"); strings.Count(got, "id=") != 1 {
		t.Errorf("TYPE pubsub: %q", got)
	}
	if got := admin.line("CLIENT LIST ID 2 3 99"); strings.Count(got, "id=") != 2 {
		t.Errorf("ID: %q", got)
	}
	addr := regexp.MustCompile(`id=3 addr=([^ ]+) `).FindStringSubmatch(list)[1]
	admin.wantLine("+OK\r\n", "CLIENT KILL "+addr)
	sub.closed()
	admin.wantLine(":1\r\n", "CLIENT KILL TYPE normal") // SKIPME is yes
	c.closed()
	admin.wantLine("-ERR No such client\r\n", "CLIENT KILL "+addr)
	waitFor(t, func() bool { return strings.Count(admin.line("CLIENT LIST"), "id=") == 1 })
	admin.wantLine("+PONG\r\n", "PING")
}

// TestKillWhileBusy: a connection that streams INCRs through the fast lane is killed from another one.
func TestKillWhileBusy(t *testing.T) {
	r := startRig(t, rigOptions{})
	c, admin := r.dial(), r.dial()
	c.wantLine(":1\r\n", "INCR order")
	done := make(chan struct{})
	go func() {
		defer close(done)
		chunk := []byte(strings.Repeat(wire("INCR", "order"), 500))
		for {
			if _, err := c.nc.Write(chunk); err != nil {
				return
			}
		}
	}()
	go func() {
		buf := make([]byte, 64<<10)
		for {
			if _, err := c.nc.Read(buf); err != nil {
				return
			}
		}
	}()
	admin.wantLine(":1\r\n", "CLIENT KILL ID 1")
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("it goes on")
	}
}

// TestSubscribeIsBounded: names of channels take no memory without end.
func TestSubscribeIsBounded(t *testing.T) {
	c := startRig(t, rigOptions{}).dial()
	for i := 0; ; i++ {
		got := c.do("SUBSCRIBE", strings.Repeat("x", 1000)+fmt.Sprint(i))
		if strings.HasPrefix(got, "-ERR too many channels") {
			if i < 10 || i > 70 {
				t.Errorf("refused after %d channels", i)
			}
			break
		}
	}
	c.wantLine("+RESET\r\n", "RESET")
	c.wantLine("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", "SUBSCRIBE a")
}
