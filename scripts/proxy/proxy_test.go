package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 30 * time.Second

// server answers every line with "name:line", and counts the lines it has carried out.
type server struct {
	net.Listener
	lines atomic.Int64
	wg    sync.WaitGroup
}

func serve(t *testing.T, name string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Listener: l}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					s.lines.Add(1)
					if _, err := fmt.Fprintf(c, "%s:%s", name, line); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); s.wg.Wait() })
	return s
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(limit))
	return c
}

// ask sends a line and returns what came back, up to the end of a line.
func ask(c net.Conn, line string) (string, error) {
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	s, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSuffix(s, "\n"), err
}

func want(t *testing.T, c net.Conn, line, reply string) {
	t.Helper()
	if got, err := ask(c, line); err != nil || got != reply {
		t.Errorf("%q is answered by %q, %v; want %q", line, got, err, reply)
	}
}

func TestForwardsAndChangesTarget(t *testing.T) {
	a, b := serve(t, "a"), serve(t, "b")
	p := Start(t, a.Addr().String())
	first := dial(t, p)
	want(t, first, "1", "a:1")
	p.SetTarget(b.Addr().String())
	want(t, dial(t, p), "2", "b:2")
	want(t, first, "3", "a:3")
	if s := p.Stats(); s.Accepted != 2 || s.Active != 2 || s.ToServer != 6 || s.ToClient != 12 {
		t.Errorf("counters %+v, want 2 accepted, 2 active, 6 bytes there, 12 back", s)
	}
	p.CloseAll()
	if s, err := ask(first, "4"); err == nil {
		t.Errorf("a closed connection answers %q", s)
	}
	want(t, dial(t, p), "5", "b:5")
}

func TestLargeStreamsArriveWhole(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { // echo, until the client closes its half
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.Copy(c, c)
	})
	p := Start(t, l.Addr().String())
	c := dial(t, p)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	wg.Go(func() {
		c.Write(sent)
		c.(*net.TCPConn).CloseWrite()
	})
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back, %v; want the %d that were sent", len(got), err, len(sent))
	}
}

func TestDelayTakesTimeAndNotThroughput(t *testing.T) {
	s := serve(t, "s")
	p := Start(t, s.Addr().String())
	p.Delay(40*time.Millisecond, 60*time.Millisecond)
	c := dial(t, p)
	began := time.Now()
	want(t, c, "1", "s:1")
	if d := time.Since(began); d < 100*time.Millisecond {
		t.Errorf("a round trip took %v, want 100 ms and more", d)
	}
	// 100 lines one after the other in the pipe: were each delayed behind the one before, it would take 10 s.
	began = time.Now()
	for i := range 100 {
		fmt.Fprintf(c, "%d\n", i)
		time.Sleep(100 * time.Microsecond)
	}
	r := bufio.NewReader(c)
	for i := range 100 {
		if line, err := r.ReadString('\n'); err != nil || line != fmt.Sprintf("s:%d\n", i) {
			t.Fatalf("line %d: %q, %v", i, line, err)
		}
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("100 lines took %v", d)
	}
	p.Delay(0, 0)
	want(t, c, "x", "s:x")
}

func TestHoldKeepsBytesAndDeliversThem(t *testing.T) {
	s := serve(t, "s")
	p := Start(t, s.Addr().String())
	c := dial(t, p)
	want(t, c, "1", "s:1")

	p.Hold(false, true)
	fmt.Fprintln(c, "2")
	wait(t, "the request at the server", func() bool { return s.lines.Load() == 2 })
	silent(t, c)
	p.Hold(true, false)
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "s:2\n" {
		t.Errorf("the held reply is %q, %v; want s:2", line, err)
	}
	fmt.Fprintln(c, "3")
	late := dial(t, p) // accepted, and waits
	fmt.Fprintln(late, "4")
	silent(t, c)
	if n := s.lines.Load(); n != 2 {
		t.Errorf("%d lines at the server, want 2", n)
	}
	p.Hold(false, false)
	for conn, want := range map[net.Conn]string{c: "s:3\n", late: "s:4\n"} {
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != want {
			t.Errorf("after the hold came %q, %v; want %q", line, err, want)
		}
	}
}

func TestSwallowAnswersNothingAndEndsWhatLostBytes(t *testing.T) {
	s := serve(t, "s")
	p := Start(t, s.Addr().String())
	c, idle := dial(t, p), dial(t, p)
	want(t, c, "1", "s:1")
	want(t, idle, "1", "s:1")
	p.Swallow(true)
	fmt.Fprintln(c, "2")
	late := dial(t, p)
	silent(t, c)
	silent(t, late)
	p.Swallow(false)
	if line, err := bufio.NewReader(c).ReadString('\n'); err == nil {
		t.Errorf("the connection that lost bytes goes on: %q", line)
	}
	want(t, idle, "3", "s:3")
	want(t, late, "4", "s:4")
	if n := s.lines.Load(); n != 4 {
		t.Errorf("%d lines at the server, want 4: one was swallowed", n)
	}
}

func TestRefuse(t *testing.T) {
	s := serve(t, "s")
	p := Start(t, s.Addr().String())
	c := dial(t, p)
	want(t, c, "1", "s:1")
	for range 3 {
		if err := p.Refuse(true); err != nil {
			t.Fatal(err)
		}
		if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v, want ECONNREFUSED", err)
		}
		want(t, c, "2", "s:2")
		if err := p.Refuse(false); err != nil {
			t.Fatal(err)
		}
		want(t, dial(t, p), "3", "s:3")
	}
}

func TestDeadTargetResets(t *testing.T) {
	s := serve(t, "s")
	addr := s.Addr().String()
	s.Close()
	p := Start(t, addr)
	// The reset may come as early as the dial.
	if c, err := net.Dial("tcp", p.Addr()); err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(limit))
		if _, err := ask(c, "1"); err == nil {
			t.Error("a dead target answers")
		}
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("dial: %v", err)
	}
	wait(t, "one failed connection", func() bool { return p.Stats().Failed == 1 })
}

func TestCutAfterBytes(t *testing.T) {
	s := serve(t, "s")
	p := Start(t, s.Addr().String())
	open := dial(t, p)
	want(t, open, "12345", "s:12345")

	p.CutAfter(ToClient, 3)
	fmt.Fprintln(open, "abc")
	if got, err := io.ReadAll(open); string(got) != "s:a" {
		t.Errorf("an open connection gave %q, %v; want the 3 bytes s:a", got, err)
	}
	c := dial(t, p)
	fmt.Fprintln(c, "xyz")
	if got, err := io.ReadAll(c); string(got) != "s:x" {
		t.Errorf("a new connection gave %q, %v; want the 3 bytes s:x", got, err)
	}
	p.CutAfter(ToClient, 0)
	c = dial(t, p)
	fmt.Fprintln(c, "q")
	if got, _ := io.ReadAll(c); len(got) != 0 {
		t.Errorf("cut at 0 let %q through", got)
	}
	if n := s.lines.Load(); n != 4 {
		t.Errorf("%d lines at the server, want 4", n)
	}
	p.CutAfter(ToClient, -1)
	p.CutAfter(ToServer, 2)
	c = dial(t, p)
	fmt.Fprintln(c, "long line")
	if got, _ := io.ReadAll(c); len(got) != 0 {
		t.Errorf("half a request was answered by %q", got)
	}
	if n := s.lines.Load(); n != 4 {
		t.Errorf("half a line was carried out: %d lines", n)
	}
	if !p.WaitCuts(4, limit) {
		t.Errorf("%d cuts, want 4", p.Cuts())
	}
	p.CutAfter(ToServer, -1)
	want(t, dial(t, p), "1", "s:1")
}

// The reply that is lost after the work was done.
func TestCutOnReply(t *testing.T) {
	s := serve(t, "s")
	p := Start(t, s.Addr().String())
	c := dial(t, p)
	p.CutOnReply(1, func(request []byte) bool { return bytes.Contains(request, []byte("UPDATE")) })
	want(t, c, "SELECT", "s:SELECT")
	if p.WaitCuts(1, time.Millisecond) {
		t.Error("a cut without a matching request")
	}
	io.WriteString(c, "UPD") // a request may come in pieces
	wait(t, "the first piece", func() bool { return p.Stats().ToServer == 10 })
	if got, err := ask(c, "ATE"); err == nil {
		t.Errorf("the reply that was to be lost arrived: %q", got)
	}
	if !p.WaitCuts(1, limit) {
		t.Error("no cut was counted")
	}
	if n := s.lines.Load(); n != 2 {
		t.Errorf("%d lines carried out, want 2: the lost reply's request is one", n)
	}
	want(t, dial(t, p), "UPDATE", "s:UPDATE") // once only
}

func TestRewrite(t *testing.T) {
	s := serve(t, "s")
	p := Start(t, s.Addr().String())
	p.Rewrite(func(d Dir, b []byte) []byte {
		if d == ToServer {
			return bytes.ReplaceAll(b, []byte("a"), []byte("bb"))
		}
		return bytes.ToUpper(b)
	})
	c := dial(t, p)
	want(t, c, "aca", "S:BBCBB")
	p.Rewrite(nil)
	want(t, c, "aca", "s:aca")
}

func TestUnixTarget(t *testing.T) {
	dir, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		if c, err := l.Accept(); err == nil {
			io.WriteString(c, "hello")
			c.Close()
		}
	})
	p := Start(t, "unix:"+dir+"/s")
	if b, err := io.ReadAll(dial(t, p)); string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
}

// Everything at once, for the race detector and for goroutines that stay.
func TestCloseInTheMiddle(t *testing.T) {
	s := serve(t, "s")
	p := Start(t, s.Addr().String())
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			c, err := net.Dial("tcp", p.Addr())
			if err != nil {
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(limit))
			for {
				if _, err := ask(c, fmt.Sprint(i)); err != nil {
					return
				}
			}
		})
	}
	wait(t, "traffic", func() bool { return s.lines.Load() > 500 })
	p.Delay(time.Hour, time.Hour)
	p.Hold(true, true)
	p.Swallow(true)
	p.CutOnReply(3, nil)
	p.Close()
	wg.Wait()
	if n := p.Stats().Active; n != 0 {
		t.Errorf("%d connections after Close", n)
	}
}

func silent(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	n, err := c.Read(make([]byte, 1))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v; want silence", n, err)
	}
	c.SetDeadline(time.Now().Add(limit))
}

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
