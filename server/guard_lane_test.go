package server

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// lanePipelines mix hot and slow commands, and every state that shuts the
// lane. Replies are the toy server's.
var lanePipelines = []struct {
	name, in, want string
	hot            int // commands the lane answers when all comes in one piece; -1 = not looked at
}{
	{"all hot", incrs(3, "k") + "PING\r\n", ":1\r\n:2\r\n:3\r\n+PONG\r\n", 4},
	{"all slow", "ECHO a\r\nECHO b\r\n", "$1\r\na\r\n$1\r\nb\r\n", 0},
	{"alternating", incrs(1, "k") + "ECHO a\r\n" + incrs(1, "k") + "ECHO b\r\n" + incrs(1, "k"), ":1\r\n$1\r\na\r\n:2\r\n$1\r\nb\r\n:3\r\n", 3},
	{"slow before hot", "ECHO a\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" + incrs(2, "k") + "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "$1\r\na\r\n$-1\r\n:1\r\n:2\r\n$1\r\n2\r\n", 2},
	{"a hot name the lane declines", incrs(1, "k") + incrs(2, "decline") + incrs(1, "k"), ":1\r\n:1\r\n:2\r\n:2\r\n", 2},
	{"a hot name with wrong arity", "*1\r\n$4\r\nINCR\r\n" + incrs(1, "k") + "*3\r\n$4\r\nINCR\r\n$1\r\na\r\n$1\r\nb\r\n" + incrs(1, "k"),
		"-ERR wrong number of arguments for 'incr' command\r\n:1\r\n-ERR wrong number of arguments for 'incr' command\r\n:2\r\n", 2},
	{"a hot name with more arguments than a view shows", "*9\r\n$4\r\nINCR\r\n" + strings.Repeat("$1\r\na\r\n", 8) + incrs(1, "k"),
		"-ERR wrong number of arguments for 'incr' command\r\n:1\r\n", 1},
	{"MULTI", incrs(1, "tx") + "MULTI\r\n" + incrs(2, "tx") + "EXEC\r\n" + incrs(1, "tx"), ":1\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:2\r\n:3\r\n:4\r\n", -1},
	{"lane shut and opened", incrs(1, "k") + "LANE off\r\n" + incrs(1, "k") + "LANE on\r\n" + incrs(1, "k"), ":1\r\n+OK\r\n:2\r\n+OK\r\n:3\r\n", -1},
	{"a large slow command between hot ones", incrs(1, "k") + "*2\r\n$4\r\nECHO\r\n$9000\r\n" + strings.Repeat("e", 9000) + "\r\n" + incrs(1, "k"),
		":1\r\n$9000\r\n" + strings.Repeat("e", 9000) + "\r\n:2\r\n", 2},
	{"skipped lines", "\r\n*0\r\n" + incrs(1, "k") + "*-1\r\nECHO a\r\n\r\nECHO b\r\n*0\r\n" + incrs(1, "k"), ":1\r\n$1\r\na\r\n$1\r\nb\r\n:2\r\n", 2},
	{"inline", "incr k\r\necho 'a b'\r\nincr k\r\n", ":1\r\n$3\r\na b\r\n:2\r\n", 2},
	{"a thrown-away command between", incrs(1, "k") + "*2\r\n$4\r\nINCR\r\n$70000\r\n" + strings.Repeat("x", 70000) + "\r\n" + incrs(1, "k"),
		":1\r\n-ERR argument of 'INCR' too large: 70000\r\n:2\r\n", 2},
	{"protocol error", incrs(1, "k") + "ECHO a\r\n" + incrs(1, "k") + "*1\r\n!\r\n" + incrs(1, "k"),
		":1\r\n$1\r\na\r\n:2\r\n-ERR Protocol error: expected '$', got '!'\r\n", 2},
	{"QUIT", incrs(1, "k") + "QUIT\r\n" + incrs(1, "k"), ":1\r\n+OK\r\n", 1},
	{"the last one unfinished", incrs(2, "k") + "*2\r\n$4\r\nINCR\r\n$1\r\n", ":1\r\n:2\r\n", 2},
	{"longer than redcon's buffer", strings.Repeat(incrs(1, "k")+"ECHO a\r\nECHO b\r\n", 200), mixed(200), 200},
	{"many slow", strings.Repeat("*2\r\n$4\r\nECHO\r\n$5\r\nabcde\r\n", 1000) + incrs(1, "k"), strings.Repeat("$5\r\nabcde\r\n", 1000) + ":1\r\n", 1},
	{"many hot", incrs(20000, "k"), numbers(1, 20000), 20000},
}

func mixed(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ":%d\r\n$1\r\na\r\n$1\r\nb\r\n", i+1)
	}
	return b.String()
}

// Replies come in the order of commands, and each command is executed once:
// with the lane, without it. leaf P1
func TestLaneOrder(t *testing.T) {
	for _, p := range lanePipelines {
		for _, lane := range []bool{false, true} {
			s := startToy(t, guardConfig{}, func(s *toy) { s.lane = lane })
			c := dial(t, s.addr)
			go func() {
				io.WriteString(c, p.in)
				c.CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if string(got) != p.want || err != nil {
				t.Fatalf("%s, lane %v: got %.300q, %v\nwant %.300q", p.name, lane, got, err, p.want)
			}
			if n := s.laned.Load(); lane && p.hot >= 0 && n != int64(p.hot) || !lane && n > 0 {
				t.Errorf("%s, lane %v: the lane answered %d commands, want %d", p.name, lane, n, p.hot)
			}
		}
	}
}

// pipeListener hands out connections that are no sockets.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	client.SetDeadline(time.Now().Add(guardLimit))
	return client
}

// Each pipeline is cut at every place, so that any two neighbouring bytes come
// in different reads. A pipe passes each piece on by itself.
func TestLaneEverySplit(t *testing.T) {
	for _, lane := range []bool{false, true} {
		s := startToy(t, guardConfig{}, func(s *toy) { s.lane = lane })
		l := newPipeListener()
		served := s.serve(s.g.Listener("pipe", l))
		for _, p := range lanePipelines {
			if len(p.in) > 20000 {
				continue
			}
			step := 1 + len(p.in)/200
			for cut := 0; cut < len(p.in); cut += step {
				s.mu.Lock()
				clear(s.counter)
				s.mu.Unlock()
				c := l.dial()
				go func() {
					if cut == 0 { // byte by byte, or nearly so
						for i := 0; i < len(p.in); i += step {
							io.WriteString(c, p.in[i:min(len(p.in), i+step)])
						}
						return
					}
					io.WriteString(c, p.in[:cut])
					io.WriteString(c, p.in[cut:])
				}()
				got := make([]byte, len(p.want))
				n, err := io.ReadFull(c, got)
				if string(got[:n]) != p.want {
					t.Fatalf("%s, lane %v, cut at %d: got %.300q, %v\nwant %.300q", p.name, lane, cut, got[:n], err, p.want)
				}
				c.Close()
			}
		}
		s.g.Drain(t.Context())
		<-served
	}
}

// watched is a connection that keeps what passes through it in order.
type watched struct {
	net.Conn
	say func(string, int)
}

func (c *watched) Read(p []byte) (int, error) {
	c.say("wait", 0)
	n, err := c.Conn.Read(p)
	c.say("read", n)
	return n, err
}

func (c *watched) Write(p []byte) (int, error) {
	c.say("write", len(p))
	return c.Conn.Write(p)
}

type watchedListener struct {
	net.Listener
	log chan string
}

func (l *watchedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watched{c, func(what string, n int) { l.log <- fmt.Sprint(what, " ", n) }}, nil
}

// All replies of one read go out in one write, before the next wait; those of
// the lane before redcon gets a command.
func TestLaneWritesBeforeItWaits(t *testing.T) {
	s := startToy(t, guardConfig{}, func(s *toy) { s.lane = true })
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := make(chan string, 100)
	served := s.serve(s.g.Listener("watched", &watchedListener{inner, log}))
	c := dial(t, inner.Addr().String())
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			select {
			case got := <-log:
				if got != w {
					t.Fatalf("got %q, want %q", got, w)
				}
			case <-time.After(guardLimit):
				t.Fatalf("nothing happened, want %q", w)
			}
		}
	}
	expect("wait 0")
	say(t, c, incrs(100, "k"), numbers(1, 100))
	expect("read 2100", fmt.Sprint("write ", len(numbers(1, 100))), "wait 0")
	say(t, c, incrs(1, "k")+"ECHO a\r\n"+incrs(2, "k"), ":101\r\n$1\r\na\r\n:102\r\n:103\r\n")
	expect("read 71", "write 6", "write 7", "write 12", "wait 0")
	say(t, c, "*1\r\n$5\r\nMULTI\r\n"+incrs(2, "tx")+"*1\r\n$4\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:2\r\n")
	expect("read 73", "write 5", "write 30", "wait 0")
	// Replies before a handler that waits are out before it waits.
	io.WriteString(c, incrs(1, "k")+"BLOCK\r\n")
	expect("read 28", "write 6")
	hear(t, c, ":104\r\n")
	close(s.block)
	hear(t, c, "+BLOCKED\r\n")
	expect("write 10", "wait 0")
	// A long pipeline does not gather replies without bound.
	in := incrs(20000, "k")
	go io.WriteString(c, in)
	hear(t, c, numbers(105, 20104))
	for written := 0; written < len(numbers(105, 20104)); {
		what := ""
		select {
		case what = <-log:
		case <-time.After(guardLimit):
			t.Fatal("not all was written")
		}
		var n int
		if _, err := fmt.Sscanf(what, "write %d", &n); err == nil {
			written += n
			if n > guardFlush+20 {
				t.Errorf("a write of %d bytes", n)
			}
		}
	}
	c.Close()
	go func() {
		for range log {
		}
	}()
	s.g.Drain(t.Context())
	<-served
	close(log)
}
