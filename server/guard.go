package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// The guard stands between the network and redcon, which by itself can be
// killed by 26 bytes and has no limits, deadlines or drain:
//
//	g := newGuard(guardConfig{MaxClients: 10000, …})
//	ln := g.Listener("resp", tcpListener) // as many as there are addresses
//	go redcon.NewServer(addr, handler, accept, closed).Serve(ln)
//	…
//	err := g.Drain(ctx) // then every Serve returns
//
// In the accept callback, conn.NetConn().(*guardConn) is the connection's
// guard; give it its lane and, when no password is needed, call
// Authenticated(true). It hands redcon only whole, checked commands, so redcon
// has nothing pending whenever it calls Read, and the replies of all commands
// read before are written by then. What a handler may do with the guard is
// listed at guardConn.
//
// Do not use redcon's SetIdleClose, AcceptError, Server.Close, Conn.Detach or
// WriteBulkFrom beside it.

// guardConfig says how a guard behaves. Zero values mean what the comment says.
type guardConfig struct {
	MaxClients  int           // connections at one time, over all listeners; 0 = no bound
	IdleTimeout time.Duration // longest wait for the next command; 0 = for ever

	CommandTimeout   time.Duration // from a command's first byte to its last; 0 = 30s
	WriteTimeout     time.Duration // longest a client may take no byte of a reply; 0 = 10s
	HandshakeTimeout time.Duration // TLS; 0 = 10s

	// MaxOutput bounds, in bytes, the replies that wait in the kernel for one
	// slow reader; a connection with more is not read until some are taken.
	// The guard itself holds at most 64 KiB and one reply. 0 = 1 MiB.
	MaxOutput int

	// MaxInput bounds, in bytes over all connections, what commands larger
	// than 16 KiB may occupy: half-read ones here, and what redcon keeps of
	// them until their connection closes. 0 = 256 MiB.
	MaxInput int64

	Limits *frameLimits // nil = frameDefaults

	// Refuse, if set, is asked in the accept loop about every new connection;
	// what it returns, an error reply without CRLF, is the answer before the
	// connection is closed. "" lets it in. It must not block.
	Refuse func(l *guardListener, remote net.Addr) string

	// Log, if set, gets what an operator may want to know, each kind at most
	// once a minute. It may be called from any goroutine and must not block.
	Log func(guardEvent)
}

// guardEvent is something worth a line in the log.
type guardEvent struct {
	Kind    guardEventKind
	Remote  net.Addr // nil for guardAcceptFailed
	Err     error    // of guardAcceptFailed; the recovered value of guardPanic
	Stack   []byte   // of guardPanic
	Omitted uint64   // events of this kind since the last one that was reported
}

type guardEventKind uint8

const (
	guardHTTP         guardEventKind = iota // POST or Host: was sent, by a browser made to do so
	guardTLS                                // a TLS hello came in on a plain listener
	guardFull                               // MaxClients reached
	guardRefused                            // Refuse said no
	guardAcceptFailed                       // accept(2) fails, for example for want of file descriptors
	guardSlowCommand                        // CommandTimeout
	guardSlowReader                         // WriteTimeout
	guardInputFull                          // MaxInput reached
	guardPanic                              // a bug, in the guard or in the lane; one connection was lost

	guardEventKinds
)

// guardLane answers hot commands inside guardConn.Read, in the connection's
// goroutine, without redcon. Each connection has its own; only that goroutine
// calls it. Replies keep the order of commands: nothing is offered to the lane
// while redcon has a command that it has not answered, and what the lane
// answered is written before redcon gets the next one, and before any wait.
type guardLane interface {
	// Begin is called before the first of a number of commands that were read
	// together, so time may be taken here. While it is false (a transaction is
	// open, replies are off, not authenticated, paused, …) every command of
	// that read goes to redcon. The state it depends on can change only by
	// commands that redcon runs, or by other goroutines.
	Begin(c *guardConn) bool

	// Hot reports whether Serve would want a command of this name. It has no
	// effects. It is asked only when redcon is about to get the commands
	// before this one; a true makes those go alone.
	Hot(cmd *frameCmd) bool

	// Serve answers cmd by appending exactly one reply to out, or declines:
	// then it returns out as it was, and redcon gets the command. It must
	// decline what could make it wait. cmd and its arguments are valid until
	// it returns; it has 1 to frameViews arguments.
	Serve(c *guardConn, cmd *frameCmd, out []byte) (reply []byte, served bool)
}

// guardEnder is what a lane may be besides. End is called when everything that was
// read is answered and written, before the guard looks for more.
type guardEnder interface {
	End(c *guardConn)
}

const (
	guardFlush = 64 << 10 // replies of the lane beyond this are written at once
	guardTurn  = 4096     // commands after which, at the next read, other goroutines get the processor
)

// Errors that Read returns, and redcon passes to the closed callback. io.EOF
// stands for an orderly end: the client closed, QUIT, drain.
var (
	errGuardProtocol = errors.New("protocol error")
	errGuardHTTP     = errors.New("possible cross-protocol attack: POST or Host: received")
	errGuardTLS      = errors.New("TLS hello on a plain listener")
	errGuardIdle     = errors.New("idle timeout")
	errGuardSlow     = errors.New("command not completed in time")
	errGuardReader   = errors.New("client does not take its replies")
	errGuardInput    = errors.New("too many large commands at once")
	errGuardPanic    = errors.New("internal error")
	errGuardEarly    = errors.New("write before the TLS handshake")
)

// guard is the state that the listeners of one server share: the limit on
// clients, the counters and the drain. Its methods may be called from any
// goroutine.
type guard struct {
	cfg guardConfig
	now func() time.Time

	maxClients  atomic.Int64
	idleTimeout atomic.Int64

	draining atomic.Bool
	gone     chan struct{} // closed when it is over: Accept may return

	accepted, rejected, refused atomic.Uint64
	badProtocol                 atomic.Uint64
	bytesIn, bytesOut           atomic.Uint64 // of connections that are gone
	input                       atomic.Int64  // see MaxInput

	events [guardEventKinds]struct {
		last    atomic.Int64 // when one was reported, unix ns; 0 = never
		omitted atomic.Uint64
	}

	mu        sync.Mutex // guards what follows; never held across I/O
	listeners []*guardListener
	conns     map[*guardConn]struct{}
	empty     chan struct{} // closed when draining and conns is empty
	sweeping  bool
}

// newGuard returns a guard with no listeners.
func newGuard(cfg guardConfig) *guard {
	for _, d := range []struct {
		v  *time.Duration
		is time.Duration
	}{
		{&cfg.CommandTimeout, 30 * time.Second},
		{&cfg.WriteTimeout, 10 * time.Second},
		{&cfg.HandshakeTimeout, 10 * time.Second},
	} {
		if *d.v == 0 {
			*d.v = d.is
		}
	}
	if cfg.MaxOutput == 0 {
		cfg.MaxOutput = 1 << 20
	}
	if cfg.MaxInput == 0 {
		cfg.MaxInput = 256 << 20
	}
	if cfg.Limits == nil {
		cfg.Limits = &frameDefaults
	}
	g := &guard{
		cfg:   cfg,
		now:   time.Now,
		gone:  make(chan struct{}),
		conns: make(map[*guardConn]struct{}),
		empty: make(chan struct{}),
	}
	g.SetMaxClients(cfg.MaxClients)
	g.SetIdleTimeout(cfg.IdleTimeout)
	return g
}

// SetMaxClients changes the limit; connections beyond it stay.
func (g *guard) SetMaxClients(n int) { g.maxClients.Store(int64(n)) }

// SetIdleTimeout changes the timeout, from each connection's next wait on.
func (g *guard) SetIdleTimeout(d time.Duration) { g.idleTimeout.Store(int64(d)) }

// guardStats are counts since the start, but for Clients.
type guardStats struct {
	Clients           int    // connected now
	Accepted          uint64 // let in
	Rejected          uint64 // one too many
	Refused           uint64 // by Refuse
	ProtocolErrors    uint64
	BytesIn, BytesOut uint64
	LargeInput        int64 // bytes now, see MaxInput
}

// Stats takes time in proportion to the number of clients.
func (g *guard) Stats() guardStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := guardStats{
		Clients:        len(g.conns),
		Accepted:       g.accepted.Load(),
		Rejected:       g.rejected.Load(),
		Refused:        g.refused.Load(),
		ProtocolErrors: g.badProtocol.Load(),
		BytesIn:        g.bytesIn.Load(),
		BytesOut:       g.bytesOut.Load(),
		LargeInput:     g.input.Load(),
	}
	for c := range g.conns {
		s.BytesIn += c.BytesIn()
		s.BytesOut += c.BytesOut()
	}
	return s
}

// Clients is the number of connections now.
func (g *guard) Clients() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}

// event reports to Log, each kind once a minute but panics always.
func (g *guard) event(e guardEvent) {
	if g.cfg.Log == nil {
		return
	}
	k := &g.events[e.Kind]
	now, last := g.now().UnixNano(), k.last.Load()
	if e.Kind != guardPanic && last != 0 && now-last < int64(time.Minute) || !k.last.CompareAndSwap(last, now) {
		k.omitted.Add(1)
		return
	}
	e.Omitted = k.omitted.Swap(0)
	g.cfg.Log(e)
}

// Listener wraps a listener of any kind: TCP, unix, or TLS over either. kind
// is for the server's own use, so that it knows whom a connection serves.
// After Drain has begun it closes l.
func (g *guard) Listener(kind string, l net.Listener) *guardListener {
	gl := &guardListener{Kind: kind, g: g, inner: l, closed: make(chan struct{})}
	g.mu.Lock()
	g.listeners = append(g.listeners, gl)
	g.mu.Unlock()
	if g.draining.Load() {
		gl.stop()
	}
	return gl
}

// Drain ends service in an orderly way: listeners are closed, each connection
// executes and answers the whole commands that have arrived and is closed;
// then Accept returns net.ErrClosed, so that redcon's Serve returns. Redcon
// would close the connections itself if Accept returned earlier.
//
// When ctx ends first the remaining connections are closed where they stand,
// and Drain returns ctx's error. A handler that runs is not interrupted: its
// reply is lost, and with it the ID (I10). A second call waits for the first.
//
// Redcon's closed callbacks come after a connection is closed, so the last of
// them may still run when Drain and Serve have returned.
func (g *guard) Drain(ctx context.Context) error {
	if g.draining.Swap(true) {
		select {
		case <-g.gone:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	g.mu.Lock()
	listeners := g.listeners
	for c := range g.conns {
		c.wake()
	}
	g.checkEmpty()
	g.mu.Unlock()
	for _, l := range listeners {
		l.stop()
	}

	defer close(g.gone)
	select {
	case <-g.empty:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	for c := range g.conns {
		c.Kill()
	}
	g.mu.Unlock()
	return ctx.Err()
}

// add takes a connection in, unless there are too many already, or a drain
// has begun.
func (g *guard) add(c *guardConn) (ok, draining bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining.Load() {
		return false, true
	}
	if limit := g.maxClients.Load(); limit > 0 && int64(len(g.conns)) >= limit {
		return false, false
	}
	g.conns[c] = struct{}{}
	if !g.sweeping && c.raw != nil {
		g.sweeping = true
		go g.sweep()
	}
	return true, false
}

// sweepEvery is how late, at most twice over, the end of a stream may be noticed that came along with the last bytes.
const sweepEvery = 100 * time.Millisecond

// sweep looks after connections that wait without having read until there was nothing: the ones that did so for a whole round
// are made to read once. A busy connection never waits that long, so it pays nothing; one that falls idle pays one read. It
// runs while there are connections.
func (g *guard) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for range tick.C {
		g.mu.Lock()
		if len(g.conns) == 0 {
			g.sweeping = false
			g.mu.Unlock()
			return
		}
		for c := range g.conns {
			parks := c.parks.Load()
			if parks&1 == 1 && parks == c.swept {
				c.wake()
			}
			c.swept = parks
		}
		g.mu.Unlock()
	}
}

func (g *guard) remove(c *guardConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.conns[c]; !ok {
		return
	}
	delete(g.conns, c)
	g.bytesIn.Add(c.BytesIn())
	g.bytesOut.Add(c.BytesOut())
	g.checkEmpty()
}

// checkEmpty announces that the last connection is gone, once. g.mu is held.
func (g *guard) checkEmpty() {
	if !g.draining.Load() || len(g.conns) > 0 {
		return
	}
	select {
	case <-g.empty:
	default:
		close(g.empty)
	}
}

// guardListener is a net.Listener for redcon. Its connections are *guardConn.
type guardListener struct {
	Kind string

	g     *guard
	inner net.Listener
	once  sync.Once
	// closed is closed by Close; redcon calls that when Serve ends.
	closed chan struct{}
}

// Addr is the address of the listener inside.
func (l *guardListener) Addr() net.Addr { return l.inner.Addr() }

// stop closes the listener inside.
func (l *guardListener) stop() {
	l.once.Do(func() {
		close(l.closed)
		l.inner.Close()
	})
}

// Close ends Accept at once. Redcon then closes every connection without
// regard to replies: use guard.Drain.
func (l *guardListener) Close() error {
	l.stop()
	return nil
}

// Accept waits for a connection and returns it, a *guardConn. The only error
// it returns is net.ErrClosed, which ends redcon's loop; any other one makes
// redcon call again at once, so those are waited out here.
func (l *guardListener) Accept() (net.Conn, error) {
	var delay time.Duration
	for {
		nc, err := l.inner.Accept()
		if err == nil {
			delay = 0
			if c := l.admit(nc); c != nil {
				return c, nil
			}
			continue
		}
		select {
		case <-l.closed:
			if l.g.draining.Load() {
				<-l.g.gone
			}
			return nil, net.ErrClosed
		default:
		}
		if errors.Is(err, net.ErrClosed) {
			return nil, net.ErrClosed
		}
		l.g.event(guardEvent{Kind: guardAcceptFailed, Err: err})
		delay = min(max(2*delay, 5*time.Millisecond), time.Second)
		select {
		case <-time.After(delay):
		case <-l.closed:
		}
	}
}

// admit returns the connection for nc, or nil after having turned it away. It
// runs in the accept loop and so never waits for the client: a TLS handshake
// is left to the connection's own goroutine, and a TLS client that is turned
// away gets no answer.
func (l *guardListener) admit(nc net.Conn) *guardConn {
	g := l.g
	c := newGuardConn(g, l, nc)
	ok, draining := g.add(c)
	if !ok {
		if !draining {
			g.rejected.Add(1)
			g.event(guardEvent{Kind: guardFull, Remote: nc.RemoteAddr()})
			c.turnAway("ERR max number of clients reached")
		}
		nc.Close()
		return nil
	}
	if g.cfg.Refuse != nil {
		if text := g.cfg.Refuse(l, nc.RemoteAddr()); text != "" {
			g.remove(c)
			g.refused.Add(1)
			g.event(guardEvent{Kind: guardRefused, Remote: nc.RemoteAddr()})
			c.turnAway(text)
			nc.Close()
			return nil
		}
	}
	g.accepted.Add(1)
	return c
}
