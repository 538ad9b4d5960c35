package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/redcon"
	"go.uber.org/goleak"
)

// guardLimit is how long a test waits for what must happen.
const guardLimit = 20 * time.Second

// toy is a small server on guard and redcon: enough commands to see what
// reaches a handler, in Redis' words.
type toy struct {
	g     *guard
	addr  string
	lane  bool // INCR, PING and PANIC are answered by the lane
	auth  bool // AUTH is needed
	bench bool // benchLane answers
	block chan struct{}

	mu      sync.Mutex
	counter map[string]int
	ends    []error // what closed callbacks got

	handled atomic.Int64 // commands that redcon handled
	laned   atomic.Int64 // commands that the lane answered
	events  chan guardEvent
}

type toyConn struct {
	toy   *toy
	multi bool
	queue int
	shut  bool // lane closed by LANE OFF
}

// startToy serves on a TCP port of its own until the test ends. Nothing may be
// left running then.
func startToy(t testing.TB, cfg guardConfig, set ...func(*toy)) *toy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &toy{block: make(chan struct{}), counter: map[string]int{}, events: make(chan guardEvent, 100)}
	for _, f := range set {
		f(s)
	}
	if cfg.Log == nil {
		cfg.Log = func(e guardEvent) {
			select {
			case s.events <- e:
			default:
			}
		}
	}
	leak := goleak.IgnoreCurrent()
	s.g = newGuard(cfg)
	s.addr = l.Addr().String()
	served := s.serve(s.g.Listener("resp", l))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), guardLimit)
		defer cancel()
		if !s.g.draining.Load() {
			if err := s.g.Drain(ctx); err != nil {
				t.Errorf("drain at the test's end: %v", err)
			}
		}
		select {
		case <-served:
		case <-ctx.Done():
			t.Error("redcon's Serve did not return after the drain")
		}
		if got := s.g.Stats(); got.LargeInput != 0 || got.Clients != 0 {
			t.Errorf("after all: %d bytes of large input are counted, %d clients", got.LargeInput, got.Clients)
		}
		goleak.VerifyNone(t, leak)
	})
	return s
}

func (s *toy) serve(l net.Listener) (done chan struct{}) {
	done = make(chan struct{})
	r := redcon.NewServer("", s.handle, func(conn redcon.Conn) bool {
		c := &toyConn{toy: s}
		conn.SetContext(c)
		gc := conn.NetConn().(*guardConn)
		gc.Authenticated(!s.auth)
		if s.lane {
			gc.SetLane(c)
		}
		if s.bench {
			gc.SetLane(benchLane{})
		}
		return true
	}, func(_ redcon.Conn, err error) {
		s.mu.Lock()
		s.ends = append(s.ends, err)
		s.mu.Unlock()
	})
	go func() {
		defer close(done)
		r.Serve(l)
	}()
	return done
}

func (s *toy) incr(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counter[key]++
	return s.counter[key]
}

func (s *toy) handle(conn redcon.Conn, cmd redcon.Command) {
	s.handled.Add(1)
	c := conn.Context().(*toyConn)
	gc := conn.NetConn().(*guardConn)
	name := strings.ToLower(string(cmd.Args[0]))
	args := cmd.Args[1:]
	arity := map[string]int{"echo": 1, "get": 1, "incr": 1, "auth": 1, "big": 1, "block": 0, "multi": 0, "exec": 0, "quit": 0, "lane": 1}
	if n, ok := arity[name]; ok && n != len(args) {
		conn.WriteError("ERR wrong number of arguments for '" + name + "' command")
		return
	}
	if c.multi && name != "exec" {
		c.queue++
		conn.WriteString("QUEUED")
		return
	}
	switch name {
	case "ping":
		if len(args) == 1 {
			conn.WriteBulk(args[0])
			return
		}
		conn.WriteString("PONG")
	case "echo":
		conn.WriteBulk(args[0])
	case "incr":
		conn.WriteInt(s.incr(string(args[0])))
	case "get":
		s.mu.Lock()
		v, ok := s.counter[string(args[0])]
		s.mu.Unlock()
		if !ok {
			conn.WriteNull()
			return
		}
		conn.WriteBulkString(strconv.Itoa(v))
	case "auth":
		gc.Authenticated(true)
		conn.WriteString("OK")
	case "big":
		n, _ := strconv.Atoi(string(args[0]))
		n = max(0, min(n, 4<<20))
		conn.WriteBulk(bytes.Repeat([]byte("b"), n))
	case "block":
		conn.WriteString("BLOCKED")
		<-s.block
	case "multi":
		c.multi = true
		conn.WriteString("OK")
	case "exec":
		conn.WriteArray(c.queue)
		for range c.queue {
			conn.WriteInt(s.incr("tx"))
		}
		c.multi, c.queue = false, 0
	case "lane":
		c.shut = string(args[0]) == "off"
		conn.WriteString("OK")
	case "quit":
		conn.ReadPipeline()
		conn.WriteString("OK")
		gc.CloseAfterFlush()
	case frameTooLarge:
		conn.WriteError(fmt.Sprintf("ERR %s of '%s' too large: %s", args[1], args[0], args[2]))
	default:
		show := name
		if len(cmd.Args[0]) > 0 {
			show = string(cmd.Args[0])
		}
		b := fmt.Appendf(nil, "ERR unknown command '%.128s', with args beginning with: ", show)
		for from := len(b); len(args) > 0 && len(b)-from < 128; args = args[1:] {
			b = fmt.Appendf(b, "'%.*s' ", 128-(len(b)-from), args[0])
		}
		conn.WriteError(string(b))
	}
}

func (c *toyConn) Begin(*guardConn) bool { return !c.multi && !c.shut }

func (c *toyConn) Hot(cmd *frameCmd) bool {
	return toyIs(cmd.Arg(0), "incr") || toyIs(cmd.Arg(0), "ping") || toyIs(cmd.Arg(0), "panic")
}

func toyIs(name []byte, lower string) bool {
	if len(name) != len(lower) {
		return false
	}
	for i, c := range name {
		if c|0x20 != lower[i] {
			return false
		}
	}
	return true
}

func (c *toyConn) Serve(_ *guardConn, cmd *frameCmd, out []byte) ([]byte, bool) {
	name := cmd.Arg(0)
	switch {
	case toyIs(name, "ping") && cmd.Len() == 1:
		c.toy.laned.Add(1)
		return append(out, "+PONG\r\n"...), true
	case toyIs(name, "incr") && cmd.Len() == 2 && string(cmd.Arg(1)) != "decline":
		c.toy.laned.Add(1)
		out = append(out, ':')
		out = strconv.AppendInt(out, int64(c.toy.incr(string(cmd.Arg(1)))), 10)
		return append(out, "\r\n"...), true
	case toyIs(name, "panic"):
		panic("a bug in the lane")
	}
	return out, false
}

// dial connects to a test server.
func dial(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(guardLimit))
	return c.(*net.TCPConn)
}

// dialSlow connects with a small receive buffer. It must be small from the
// beginning: a window once offered is not taken back, the kernel would drop
// what it has no room for, and both ends would wait for retransmissions.
func dialSlow(t testing.TB, addr string) net.Conn {
	t.Helper()
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 16<<10)
		})
	}}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(guardLimit))
	return c
}

// say writes s and reads exactly the reply want.
func say(t testing.TB, c net.Conn, s, want string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatalf("%.200q: %v", s, err)
	}
	hear(t, c, want)
}

func hear(t testing.TB, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(c, got)
	if string(got[:n]) != want {
		t.Fatalf("got %.300q, %v\nwant %.300q", got[:n], err, want)
	}
}

// over reads to the end, which must come without a reset.
func over(t testing.TB, c net.Conn, want string) {
	t.Helper()
	got, err := io.ReadAll(c)
	if string(got) != want || err != nil {
		t.Fatalf("got %.300q, %v\nwant %.300q and the end", got, err, want)
	}
}

// eventually polls what cannot be waited for otherwise.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(guardLimit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", guardLimit, what)
		}
	}
}

func (s *toy) lastEnd() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ends) == 0 {
		return nil
	}
	return s.ends[len(s.ends)-1]
}

func incrs(n int, key string) string {
	return strings.Repeat(fmt.Sprintf("*2\r\n$4\r\nINCR\r\n$%d\r\n%s\r\n", len(key), key), n)
}

func numbers(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, ":%d\r\n", i)
	}
	return b.String()
}

func TestGuardMaxClients(t *testing.T) {
	s := startToy(t, guardConfig{MaxClients: 2})
	a, b := dial(t, s.addr), dial(t, s.addr)
	say(t, a, "PING\r\n", "+PONG\r\n")
	say(t, b, "PING\r\n", "+PONG\r\n")
	for range 3 {
		over(t, dial(t, s.addr), "-ERR max number of clients reached\r\n")
	}
	b.Close()
	eventually(t, "a place for another client", func() bool { return s.g.Clients() == 1 })
	say(t, dial(t, s.addr), "PING\r\n", "+PONG\r\n")
	s.g.SetMaxClients(1)
	over(t, dial(t, s.addr), "-ERR max number of clients reached\r\n")
	say(t, a, "PING\r\n", "+PONG\r\n")
	if got := s.g.Stats(); got.Accepted != 3 || got.Rejected != 4 || got.Clients != 2 {
		t.Errorf("stats: %+v", got)
	}
	if e := <-s.events; e.Kind != guardFull || e.Omitted != 0 {
		t.Errorf("event %+v", e)
	}
	select {
	case e := <-s.events:
		t.Errorf("a second event within a minute: %+v", e)
	default:
	}
	// A minute later the next one says how many were left out.
	s.g.events[guardFull].last.Add(-int64(time.Minute))
	over(t, dial(t, s.addr), "-ERR max number of clients reached\r\n")
	if e := <-s.events; e.Kind != guardFull || e.Omitted != 3 {
		t.Errorf("event %+v, want 3 omitted", e)
	}
}

func TestGuardRefuse(t *testing.T) {
	s := startToy(t, guardConfig{Refuse: func(l *guardListener, remote net.Addr) string {
		if l.Kind == "resp" && remote.(*net.TCPAddr).IP.IsLoopback() {
			return "DENIED set a password"
		}
		return ""
	}})
	over(t, dial(t, s.addr), "-DENIED set a password\r\n")
	if got := s.g.Stats(); got.Refused != 1 || got.Accepted != 0 || got.Clients != 0 {
		t.Errorf("stats: %+v", got)
	}
}

// failing is a listener whose Accept fails a number of times.
type failing struct {
	net.Listener
	calls atomic.Int64
	fail  int64
}

func (l *failing) Accept() (net.Conn, error) {
	if l.calls.Add(1) <= l.fail {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// Without descriptors to accept with, redcon by itself calls Accept ten
// million times a second.
func TestGuardAcceptBacksOff(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan guardEvent, 10)
	g := newGuard(guardConfig{Log: func(e guardEvent) { events <- e }})
	l := &failing{Listener: inner, fail: 4}
	gl := g.Listener("resp", l)
	begin := time.Now()
	c := dial(t, inner.Addr().String())
	nc, err := gl.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 75*time.Millisecond { // 5+10+20+40
		t.Errorf("four failures were waited out in %v", took)
	}
	nc.Close()
	c.Close()
	if e := <-events; e.Kind != guardAcceptFailed || !errors.Is(e.Err, syscall.EMFILE) {
		t.Errorf("event %+v", e)
	}
	if len(events) != 0 {
		t.Error("more than one event")
	}
	l.calls.Store(0)
	l.fail = 1 << 62
	done := make(chan error)
	go func() { _, err := gl.Accept(); done <- err }()
	eventually(t, "two failures", func() bool { return l.calls.Load() > 1 })
	gl.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}

func TestGuardListenersShareState(t *testing.T) {
	s := startToy(t, guardConfig{MaxClients: 2})
	path := filepath.Join(t.TempDir(), "sock")
	ul, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := s.serve(s.g.Listener("unix", ul))
	u, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	u.SetDeadline(time.Now().Add(guardLimit))
	say(t, u, "PING\r\n", "+PONG\r\n")
	say(t, dial(t, s.addr), "PING\r\n", "+PONG\r\n")
	over(t, dial(t, s.addr), "-ERR max number of clients reached\r\n")
	u2, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer u2.Close()
	over(t, u2, "-ERR max number of clients reached\r\n")
	if err := s.g.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	<-served
	over(t, u, "")
	if _, err := net.Dial("unix", path); err == nil {
		t.Error("the unix listener is still open")
	}
}

func TestGuardIdleTimeout(t *testing.T) {
	s := startToy(t, guardConfig{IdleTimeout: 300 * time.Millisecond})
	c := dial(t, s.addr)
	say(t, c, "PING\r\n", "+PONG\r\n")
	over(t, c, "")
	eventually(t, "the reason", func() bool { return s.lastEnd() == errGuardIdle })
	s.g.SetIdleTimeout(0)
	c = dial(t, s.addr)
	say(t, c, "PING\r\n", "+PONG\r\n")
}

// A deadline that was set for a wait must not end the connection later, when
// it has passed while a handler ran.
func TestGuardDeadlineOfAnEarlierWait(t *testing.T) {
	const timeout = time.Second
	s := startToy(t, guardConfig{CommandTimeout: timeout, IdleTimeout: timeout})
	c := dial(t, s.addr)
	io.WriteString(c, "*1\r\n$5\r\n")
	eventually(t, "the first half is read", func() bool { return s.g.Stats().BytesIn == 8 })
	io.WriteString(c, "BLOCK\r\n"+"PING\r\n*1\r\n$4\r\nPI")
	eventually(t, "BLOCK runs", func() bool { return s.handled.Load() == 1 })
	time.Sleep(timeout + timeout/2) // the passing of time is what is tested
	io.WriteString(c, "NG\r\n")
	s.block <- struct{}{}
	hear(t, c, "+BLOCKED\r\n+PONG\r\n+PONG\r\n")
}

func TestGuardSlowCommand(t *testing.T) {
	s := startToy(t, guardConfig{CommandTimeout: 300 * time.Millisecond})
	inputs := []string{"*1\r\n$4\r\nPI", "PIN", "*", "a\x00b\r\n", "*2\r\n$4\r\nECHO\r\n$100000\r\nxxx"}
	var conns []net.Conn
	begin := time.Now()
	for _, in := range inputs {
		c := dial(t, s.addr)
		conns = append(conns, c)
		// A byte now and then does not help.
		io.WriteString(c, "PING\r\n")
		for _, b := range []byte(in) {
			c.Write([]byte{b})
		}
	}
	for _, c := range conns {
		over(t, c, "+PONG\r\n-ERR Protocol error: command not complete after 300ms\r\n")
	}
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Errorf("ended after %v", took)
	}
	for _, c := range conns {
		c.Close()
	}
	eventually(t, "the reasons", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.ends) == len(inputs)
	})
	for _, err := range s.ends {
		if err != errGuardSlow {
			t.Errorf("one ended with %v", err)
		}
	}
}

// A client that sends but does not read: its connection is no longer read,
// and what waits for it is bounded.
func TestGuardSlowReader(t *testing.T) {
	for _, lane := range []bool{true, false} {
		s := startToy(t, guardConfig{MaxOutput: 64 << 10, WriteTimeout: time.Second}, func(s *toy) { s.lane = lane })
		c := dialSlow(t, s.addr)
		in := []byte(strings.Repeat("*2\r\n$4\r\nECHO\r\n$400\r\n"+strings.Repeat("e", 400)+"\r\n", 9))
		if lane {
			in = []byte(incrs(1000, "order"))
		}
		c.SetWriteDeadline(time.Now().Add(guardLimit))
		sent := 0
		var err error
		for err == nil && sent < 256<<20 {
			var n int
			n, err = c.Write(in)
			sent += n
		}
		if err == nil || os.IsTimeout(err) {
			t.Fatalf("lane %v: %d bytes were taken, %v", lane, sent, err)
		}
		eventually(t, "the reason", func() bool { return s.lastEnd() == errGuardReader })
		got := s.g.Stats()
		if got.BytesOut > 2<<20 {
			t.Errorf("lane %v: %d bytes of replies were written though nobody read", lane, got.BytesOut)
		}
		if e := <-s.events; e.Kind != guardSlowReader {
			t.Errorf("event %+v", e)
		}
	}
}

// One that reads slowly but steadily is served however long it takes.
func TestGuardSteadyReader(t *testing.T) {
	const timeout = time.Second
	s := startToy(t, guardConfig{MaxOutput: 16 << 10, WriteTimeout: timeout})
	c := dialSlow(t, s.addr)
	const size = 2 << 20
	io.WriteString(c, fmt.Sprintf("BIG %d\r\nPING\r\n", size))
	hear(t, c, fmt.Sprintf("$%d\r\n", size))
	buf := make([]byte, size+2)
	begin := time.Now()
	for at := 0; at < len(buf); {
		n, err := io.ReadFull(c, buf[at:min(len(buf), at+size/8)])
		at += n
		if err != nil {
			t.Fatalf("after %d bytes and %v: %v", at, time.Since(begin), err)
		}
		time.Sleep(timeout / 5) // in sum more than the timeout, each time less
	}
	hear(t, c, "+PONG\r\n")
}

func TestGuardKill(t *testing.T) {
	s := startToy(t, guardConfig{})
	c := dial(t, s.addr)
	say(t, c, "PING\r\n", "+PONG\r\n")
	busy := dial(t, s.addr)
	io.WriteString(busy, "BLOCK\r\n")
	eventually(t, "BLOCK runs", func() bool { return s.handled.Load() == 2 })
	s.g.mu.Lock()
	for c := range s.g.conns {
		c.Kill()
	}
	s.g.mu.Unlock()
	over(t, c, "")
	if b, _ := io.ReadAll(busy); len(b) > 0 {
		t.Errorf("a killed connection was answered: %q", b)
	}
	close(s.block)
	eventually(t, "both gone", func() bool { return s.g.Clients() == 0 })
}

func TestGuardQuit(t *testing.T) {
	for _, lane := range []bool{false, true} {
		s := startToy(t, guardConfig{}, func(s *toy) { s.lane = lane })
		c := dial(t, s.addr)
		say(t, c, incrs(1, "q")+"QUIT\r\n"+incrs(3000, "q"), ":1\r\n+OK\r\n")
		over(t, c, "")
		if n := s.incr("q"); n != 2 {
			t.Errorf("commands after QUIT were executed: %d", n-2)
		}
	}
}

// Before the answer to AUTH each command is judged as a stranger's.
func TestGuardBeforeAuth(t *testing.T) {
	eleven := "*11\r\n" + strings.Repeat("$1\r\na\r\n", 11)
	long := "*2\r\n$4\r\nECHO\r\n$16385\r\n" + strings.Repeat("e", 16385) + "\r\n"
	for _, c := range []struct{ in, want string }{
		{"PING\r\n" + eleven, "+PONG\r\n-ERR Protocol error: unauthenticated multibulk length\r\n"},
		{"PING\r\n" + long, "+PONG\r\n-ERR Protocol error: unauthenticated bulk length\r\n"},
		{"PING\r\n*1025\r\n", "+PONG\r\n-ERR Protocol error: unauthenticated multibulk length\r\n"},
		{"PING\r\n*2\r\n$4\r\nINCR\r\n$1048576\r\n", "+PONG\r\n-ERR Protocol error: unauthenticated bulk length\r\n"},
	} {
		s := startToy(t, guardConfig{}, func(s *toy) { s.auth = true })
		conn := dial(t, s.addr)
		io.WriteString(conn, c.in)
		over(t, conn, c.want)
	}
	s := startToy(t, guardConfig{}, func(s *toy) { s.auth = true; s.lane = true })
	c := dial(t, s.addr)
	say(t, c, "*10\r\n$4\r\nECHO\r\n"+strings.Repeat("$0\r\n\r\n", 9), "-ERR wrong number of arguments for 'echo' command\r\n")
	say(t, c, "*2\r\n$4\r\nECHO\r\n$16384\r\n"+long[len("*2\r\n$4\r\nECHO\r\n$16385\r\nx"):], "$16384\r\n"+strings.Repeat("e", 16384)+"\r\n")
	// In one packet with AUTH, what comes after it is an authenticated client's.
	say(t, c, "AUTH pw\r\n"+eleven+long, "+OK\r\n-ERR unknown command 'a', with args beginning with: "+
		strings.Repeat("'a' ", 10)+"\r\n$16385\r\n"+strings.Repeat("e", 16385)+"\r\n")
}

// A key of 1 MB: an error in its turn, nothing consumed, the connection lives.
func TestGuardTooLarge(t *testing.T) {
	for _, lane := range []bool{false, true} {
		s := startToy(t, guardConfig{}, func(s *toy) { s.lane = lane })
		c := dial(t, s.addr)
		go io.WriteString(c, incrs(2, "order")+
			"*2\r\n$4\r\nINCR\r\n$1048576\r\n"+strings.Repeat("k", 1<<20)+"\r\n"+
			incrs(1, "order")+
			"*1025\r\n$4\r\nMGET\r\n"+strings.Repeat("$1\r\nk\r\n", 1024)+
			"*6\r\n$4\r\nMGET\r\n"+strings.Repeat("$60000\r\n"+strings.Repeat("k", 60000)+"\r\n", 5)+
			"MGET "+strings.Repeat("k ", 1024)+"\r\n"+
			incrs(1, "order"))
		hear(t, c, ":1\r\n:2\r\n-ERR argument of 'INCR' too large: 1048576\r\n:3\r\n"+
			"-ERR arguments of 'MGET' too large: 1025\r\n-ERR command of 'MGET' too large: 300064\r\n"+
			"-ERR arguments of 'MGET' too large: 1025\r\n:4\r\n")
		c.CloseWrite()
		over(t, c, "")
	}
}

// Commands as large as is allowed pass unchanged, in parts, between others.
func TestGuardLargeCommand(t *testing.T) {
	for _, lane := range []bool{false, true} {
		s := startToy(t, guardConfig{}, func(s *toy) { s.lane = lane })
		c := dial(t, s.addr)
		var in, want strings.Builder
		for i, n := range []int{4050, 4096, 8192, 65536, 3, 40000, 65536} {
			arg := strings.Repeat(string(rune('a'+i)), n)
			fmt.Fprintf(&in, "*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n", n, arg)
			fmt.Fprintf(&want, "$%d\r\n%s\r\n", n, arg)
			in.WriteString(incrs(1, "order"))
			fmt.Fprintf(&want, ":%d\r\n", i+1)
		}
		go io.WriteString(c, in.String())
		hear(t, c, want.String())
		c.Close()
		eventually(t, "the end", func() bool { return s.g.Clients() == 0 })
	}
}

// When large commands of all clients together are too many, those that add to
// them are turned away, and nobody else is.
func TestGuardMaxInput(t *testing.T) {
	s := startToy(t, guardConfig{MaxInput: 300 << 10})
	half := "*2\r\n$4\r\nECHO\r\n$60000\r\n" + strings.Repeat("h", 40000)
	var held []net.Conn
	for i := range 4 { // each takes a buffer of 80 KiB, of which 16 count for nothing
		c := dial(t, s.addr)
		io.WriteString(c, half)
		eventually(t, "a large buffer", func() bool { return s.g.Stats().LargeInput == int64(i+1)*(64<<10) })
		held = append(held, c)
	}
	c := dial(t, s.addr)
	io.WriteString(c, half)
	over(t, c, "-ERR too many large commands at once, try again later\r\n")
	say(t, dial(t, s.addr), "PING\r\n", "+PONG\r\n")
	for _, c := range held[1:] {
		c.Close()
	}
	eventually(t, "room", func() bool { return s.g.Stats().LargeInput == 64<<10 })
	// What redcon keeps of it counts until the connection ends.
	say(t, held[0], strings.Repeat("h", 20000)+"\r\n", "$60000\r\n"+strings.Repeat("h", 60000)+"\r\n")
	eventually(t, "redcon's share", func() bool { return s.g.Stats().LargeInput == 2*60024 })
	// The one that goes over the limit by that is answered, then closed.
	c = dial(t, s.addr)
	go io.WriteString(c, half+strings.Repeat("h", 20000)+"\r\n")
	hear(t, c, "$60000\r\n"+strings.Repeat("h", 60000)+"\r\n")
	c2 := dial(t, s.addr)
	go io.WriteString(c2, half+strings.Repeat("h", 20000)+"\r\n")
	over(t, c2, "$60000\r\n"+strings.Repeat("h", 60000)+"\r\n")
}

func TestGuardTLSBytesOnPlainPort(t *testing.T) {
	s := startToy(t, guardConfig{})
	c := dial(t, s.addr)
	io.WriteString(c, "\x16\x03\x01\x00\xc5\x01\x00\x00\xc1\x03\x03")
	if b, _ := io.ReadAll(c); len(b) != 0 {
		t.Errorf("answered %q", b)
	}
	if e := <-s.events; e.Kind != guardTLS {
		t.Errorf("event %+v", e)
	}
}

func TestGuardHTTP(t *testing.T) {
	s := startToy(t, guardConfig{})
	for _, in := range []string{"POST / HTTP/1.1\r\nHost: a\r\n\r\nINCR h\r\n", "host: a\r\nINCR h\r\n", "*2\r\n$4\r\npOST\r\n$1\r\n/\r\nINCR h\r\n"} {
		c := dial(t, s.addr)
		io.WriteString(c, in)
		if b, _ := io.ReadAll(c); len(b) != 0 {
			t.Errorf("%q was answered: %q", in, b)
		}
	}
	if e := <-s.events; e.Kind != guardHTTP {
		t.Errorf("event %+v", e)
	}
	if len(s.events) != 0 {
		t.Error("more than one event within a minute")
	}
	if s.incr("h") != 1 {
		t.Error("a browser's request drew an ID")
	}
}

func TestGuardPanic(t *testing.T) {
	s := startToy(t, guardConfig{}, func(s *toy) { s.lane = true })
	other := dial(t, s.addr)
	c := dial(t, s.addr)
	say(t, c, incrs(2, "order")+"PANIC\r\n"+incrs(1, "order"), ":1\r\n:2\r\n-ERR internal error\r\n")
	if b, _ := io.ReadAll(c); len(b) != 0 {
		t.Errorf("went on: %q", b)
	}
	e := <-s.events
	if e.Kind != guardPanic || e.Err.Error() != "a bug in the lane" || !bytes.Contains(e.Stack, []byte("toyConn")) {
		t.Errorf("event %+v", e)
	}
	eventually(t, "the reason", func() bool { return s.lastEnd() == errGuardPanic })
	say(t, other, incrs(1, "order"), ":3\r\n")
}

func TestGuardDrain(t *testing.T) {
	for _, lane := range []bool{false, true} {
		s := startToy(t, guardConfig{}, func(s *toy) { s.lane = lane })
		idle := dial(t, s.addr)
		say(t, idle, incrs(1, "order"), ":1\r\n")
		never := dial(t, s.addr)
		half := dial(t, s.addr)
		io.WriteString(half, incrs(1, "order")+"*2\r\n$4\r\nINCR\r\n")
		hear(t, half, ":2\r\n")
		busy := dial(t, s.addr)
		io.WriteString(busy, "BLOCK\r\n")
		eventually(t, "BLOCK runs", func() bool { return s.g.Clients() == 4 && s.handled.Load() > 0 })
		// These wait in the socket while the handler runs.
		io.WriteString(busy, incrs(5000, "order")+"ECHO hi\r\n*2\r\n$4")

		before := s.handled.Load()
		done := make(chan error)
		go func() { done <- s.g.Drain(context.Background()) }()
		over(t, idle, "")
		over(t, never, "")
		over(t, half, "")
		eventually(t, "three are gone", func() bool { return s.g.Clients() == 1 })
		if _, err := net.Dial("tcp", s.addr); err == nil {
			t.Error("the listener is still open")
		}
		select {
		case err := <-done:
			t.Fatalf("drained while a handler ran: %v", err)
		default:
		}
		close(s.block)
		over(t, busy, "+BLOCKED\r\n"+numbers(3, 5002)+"$2\r\nhi\r\n")
		busy.Close()
		if err := <-done; err != nil {
			t.Errorf("drain: %v", err)
		}
		if s.handled.Load() == before {
			t.Error("what had arrived was not handled")
		}
		s.mu.Lock()
		for _, err := range s.ends {
			if err != nil {
				t.Errorf("a connection ended with %v", err)
			}
		}
		s.mu.Unlock()
	}
}

// Clients that go on sending all the while get a reply to all that the server
// read, and then the end: nothing is answered twice or out of order.
func TestGuardDrainUnderLoad(t *testing.T) {
	s := startToy(t, guardConfig{}, func(s *toy) { s.lane = true })
	const clients = 8
	var wg sync.WaitGroup
	var replies atomic.Int64
	began := make(chan struct{}, clients)
	for i := range clients {
		c := dial(t, s.addr)
		in := []byte(incrs(50, fmt.Sprint("k", i)) + "*2\r\n$4\r\nECHO\r\n$1\r\n-\r\n")
		wg.Go(func() {
			for {
				if _, err := c.Write(in); err != nil {
					return
				}
			}
		})
		wg.Go(func() {
			defer c.Close()
			in := bufio.NewReader(c)
			for want := 1; ; {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				if line == "$1\r\n" || line == "-\r\n" {
					continue
				}
				if line != fmt.Sprintf(":%d\r\n", want) {
					t.Errorf("got %q, want :%d", line, want)
					return
				}
				if want == 1 {
					began <- struct{}{}
				}
				want++
				replies.Add(1)
			}
		})
	}
	for range clients {
		<-began
	}
	ctx, cancel := context.WithTimeout(context.Background(), guardLimit)
	defer cancel()
	if err := s.g.Drain(ctx); err != nil {
		t.Errorf("drain: %v", err)
	}
	wg.Wait()
	if replies.Load() == 0 {
		t.Error("no replies")
	}
}

// The last client leaves while the drain begins; more than one asks for it.
func TestGuardDrainTwice(t *testing.T) {
	for range 200 {
		s := startToy(t, guardConfig{})
		c := dial(t, s.addr)
		say(t, c, "PING\r\n", "+PONG\r\n")
		go c.Close()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := s.g.Drain(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

func TestGuardDrainTimesOut(t *testing.T) {
	s := startToy(t, guardConfig{})
	c := dial(t, s.addr)
	io.WriteString(c, "BLOCK\r\n")
	eventually(t, "BLOCK runs", func() bool { return s.handled.Load() == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := s.g.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drain: %v", err)
	}
	if b, _ := io.ReadAll(c); len(b) > 0 {
		t.Errorf("answered %q", b)
	}
	close(s.block)
	eventually(t, "gone", func() bool { return s.g.Clients() == 0 })
}

// A thousand clients that begin a command and stop: each holds little.
func TestGuardHalfCommands(t *testing.T) {
	s := startToy(t, guardConfig{CommandTimeout: time.Minute})
	const clients = 1000
	heap := liveHeap()
	fds := rawClients(t, s.addr, clients, "*2\r\n$4\r\nINCR\r\n$5\r\nor")
	eventually(t, "all are read", func() bool { return s.g.Stats().BytesIn == clients*20 })
	if each := (liveHeap() - heap) / clients; each > 28<<10 {
		t.Errorf("%d bytes for each half command", each)
	}
	say(t, dial(t, s.addr), "INCR order\r\n", ":1\r\n")
	for _, fd := range fds {
		syscall.Write(fd, []byte("der\r\n"))
	}
	eventually(t, "all are answered", func() bool { return s.handled.Load() == clients+1 })
}

// rawClients connects without taking memory of this process, which the server
// shares with the test.
func rawClients(t testing.TB, addr string, n int, send string) []int {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	to := &syscall.SockaddrInet4{Port: a.Port, Addr: [4]byte(a.IP.To4())}
	fds := make([]int, 0, n)
	t.Cleanup(func() {
		for _, fd := range fds {
			syscall.Close(fd)
		}
	})
	for range n {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
		if err := syscall.Connect(fd, to); err != nil {
			t.Fatal(err)
		}
		if _, err := syscall.Write(fd, []byte(send)); err != nil {
			t.Fatal(err)
		}
	}
	return fds
}

// liveHeap is what is in use of heap and stacks after garbage collection.
func liveHeap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}

// Connections that wait after a command hold nothing of the guard's: the rest
// is redcon's.
func TestGuardIdleMemory(t *testing.T) {
	for _, lane := range []bool{false, true} {
		s := startToy(t, guardConfig{}, func(s *toy) { s.lane = lane })
		const clients = 2000
		heap := liveHeap()
		rawClients(t, s.addr, clients, "*1\r\n$4\r\nPING\r\n")
		eventually(t, "all are answered", func() bool { return s.handled.Load()+s.laned.Load() == clients })
		eventually(t, "all wait", func() bool { return s.g.Stats().BytesOut == clients*7 })
		each := (liveHeap() - heap) / clients
		t.Logf("lane %v: %d bytes each", lane, each)
		if each > 28<<10 {
			t.Errorf("lane %v: %d bytes for each idle connection", lane, each)
		}
	}
}

// TestGuardEndBehindBytes: an end of the stream that arrives together with the last command is noticed, although the wait behind
// that command begins without a read that finds nothing.
func TestGuardEndBehindBytes(t *testing.T) {
	rig := startRig(t, rigOptions{})
	for range 20 {
		c, err := net.Dial("tcp", rig.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("*2\r\n$4\r\nINCR\r\n$5\r\norder\r\n")); err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if reply, err := io.ReadAll(c); err != nil || !bytes.HasPrefix(reply, []byte(":")) {
			t.Fatalf("%q, %v: want a reply and the end", reply, err)
		}
	}
}
