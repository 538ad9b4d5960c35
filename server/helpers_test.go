package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"redleaf/engine"
	"redleaf/segment"
	"redleaf/segment/storetest"
	"redleaf/snowflake"
	"redleaf/snowflake/workertest"
)

// layout63 is the default layout, layout53 one whose IDs fit JavaScript's numbers.
var (
	layout63 = snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: 10, SequenceBits: 12}
	layout53 = snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: 3, SequenceBits: 9}
)

// rig is a server on real engines over a store in memory.
type rig struct {
	t      *testing.T
	store  *storetest.Mem
	engine *engine.Engine
	server *Server
	addr   string
	alloc  *segment.Allocator
	gen    *snowflake.Generator
}

var leakChecked sync.Map

type rigOptions struct {
	Options
	store      *storetest.Mem
	autoCreate []string
	keys       []string
	layout     *snowflake.Layout
	wait       time.Duration
	noSegment  bool
	noSnow     bool
	maxCount   int64
	network    string
}

func startRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	if _, again := leakChecked.LoadOrStore(t.Name(), true); !again { // of several rigs, the first ends last
		leak := goleak.IgnoreCurrent()
		t.Cleanup(func() {
			goleak.VerifyNone(t, leak)
			leakChecked.Delete(t.Name())
		})
	}
	r := &rig{t: t, store: o.store}
	if r.store == nil {
		r.store = storetest.NewMem()
	}
	if o.autoCreate == nil {
		o.autoCreate = []string{"*"}
	}
	if o.wait == 0 {
		o.wait = 2 * time.Second
	}
	if o.maxCount == 0 {
		o.maxCount = 1_000_000
	}
	l := layout63
	if o.layout != nil {
		l = *o.layout
	}
	eo := engine.Options{Wait: o.wait, StartTimeout: 5 * time.Second, MaxCount: o.maxCount, MaxArray: 10_000, Layout: l, SnowflakeKeys: o.keys}
	if !o.noSegment {
		eo.Segment = segment.New(r.store, nil, segment.Options{
			AutoCreate: o.autoCreate, Step: 1000, MaxStep: 1_000_000, Target: time.Minute, Check: time.Second,
			MaxCount: o.maxCount, MaxArray: 10_000, MaxTags: 100_000, Log: zerolog.Nop(),
		})
		eo.Segment.Start()
	}
	var registry snowflake.WorkerIDs
	if !o.noSnow {
		registry = newTestRegistry(t)
		g, err := snowflake.New(registry, snowflake.SystemClock{}, snowflake.Options{Layout: l, ClockWait: 5 * time.Millisecond, Policy: "refuse", MaxSkew: 5 * time.Second, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		eo.Snowflake = g
	}
	r.alloc, r.gen = eo.Segment, eo.Snowflake
	r.engine = engine.New(eo)
	waitFor(t, func() bool {
		h := r.engine.Health()
		return (o.noSegment || eo.Segment.Ready() == nil) && (o.noSnow || h.Snowflake.Ready)
	})
	s, err := New(r.engine, o.Options)
	if err != nil {
		t.Fatal(err)
	}
	r.server = s
	if o.network == "" {
		o.network = "tcp"
	}
	address := "127.0.0.1:0"
	if o.network == "unix" {
		address = t.TempDir() + "/s"
	}
	ln, err := net.Listen(o.network, address)
	if err != nil {
		t.Fatal(err)
	}
	r.addr = ln.Addr().String()
	done := make(chan error, 1)
	go func() { done <- s.Serve(Listener{Listener: ln, Kind: "resp"}) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Shutdown(ctx)
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		r.engine.Close(ctx)
		if registry != nil {
			registry.Close(ctx)
		}
	})
	return r
}

func newTestRegistry(t *testing.T) snowflake.WorkerIDs {
	return workertest.NewMem(8).Open("a")
}

// waitFor polls until is says true.
func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); {
		if time.Now().After(end) {
			t.Fatal("waited in vain")
		}
		time.Sleep(time.Millisecond)
	}
}

// client speaks RESP by hand.
type client struct {
	t  testing.TB
	nc net.Conn
	br *bufio.Reader
}

func (r *rig) dial() *client { r.t.Helper(); return connect(r.t, r.addr) }

func connect(t testing.TB, addr string) *client {
	t.Helper()
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	nc, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return &client{t, nc, bufio.NewReader(nc)}
}

// wire is args as a RESP array.
func wire(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

func (c *client) send(raw string) {
	c.t.Helper()
	c.nc.SetWriteDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c.nc, raw); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// do sends one command and returns the raw bytes of its reply.
func (c *client) do(args ...string) string {
	c.t.Helper()
	c.send(wire(args...))
	return c.reply()
}

// line sends a command split at spaces.
func (c *client) line(s string) string {
	c.t.Helper()
	return c.do(strings.Fields(s)...)
}

// reply reads one reply, whatever its type, and returns its bytes.
func (c *client) reply() string {
	c.t.Helper()
	c.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	s, err := readReply(c.br)
	if err != nil {
		c.t.Fatalf("reply: %v after %q", err, s)
	}
	return s
}

func readReply(br *bufio.Reader) (string, error) {
	line, err := br.ReadString('\n')
	if err != nil {
		return line, err
	}
	n := func() int { n, _ := strconv.Atoi(strings.TrimSpace(line[1:])); return n }
	rest := func(k int) (string, error) {
		all := line
		for range k {
			s, err := readReply(br)
			all += s
			if err != nil {
				return all, err
			}
		}
		return all, nil
	}
	switch line[0] {
	case '+', '-', ':', ',', '_', '#', '(':
		return line, nil
	case '$', '=', '!':
		if n() < 0 {
			return line, nil
		}
		b := make([]byte, n()+2)
		_, err := io.ReadFull(br, b)
		return line + string(b), err
	case '*', '~', '>':
		return rest(n())
	case '%', '|':
		return rest(2 * n())
	}
	return line, fmt.Errorf("no reply begins with %q", line[0])
}

// want fails the test unless got is the reply.
func (c *client) want(reply string, args ...string) {
	c.t.Helper()
	if got := c.do(args...); got != reply {
		c.t.Errorf("%q: got %q, want %q", args, got, reply)
	}
}

// wantLine is want with the command as one string.
func (c *client) wantLine(reply, line string) {
	c.t.Helper()
	c.want(reply, strings.Fields(line)...)
}

// closed says that the server closed the connection and sent nothing more.
func (c *client) closed() {
	c.t.Helper()
	c.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	if b, err := io.ReadAll(c.br); err != nil || len(b) > 0 {
		c.t.Errorf("not closed in silence: %q, %v", b, err)
	}
}
