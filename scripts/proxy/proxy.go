// Package proxy is a TCP proxy that tests put on a link to break it: delay, partition, half-open connections, refused
// connections, a cut at a byte, and the reply that is lost after the server has done the work.
package proxy

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"redleaf/scripts/ports"
)

// Dir is a direction through the proxy.
type Dir int

// The two directions.
const (
	ToServer Dir = iota
	ToClient
)

func (d Dir) String() string {
	if d == ToServer {
		return "to server"
	}
	return "to client"
}

// Stats counts what passed since the start.
type Stats struct {
	Accepted int64 // connections of clients
	Active   int64 // of those, open now
	Failed   int64 // of those, ended because the target could not be dialed
	Cuts     int64 // connections ended by CutAfter and CutOnReply
	ToServer int64 // bytes delivered to the target
	ToClient int64 // bytes delivered to clients
}

// Proxy forwards connections from its own address to a target. All methods are safe for concurrent use, and what they
// set holds for open and new connections at once, unless they say otherwise.
type Proxy struct {
	addr string

	accepted, active, failed, cuts atomic.Int64
	bytes                          [2]atomic.Int64
	wg                             sync.WaitGroup

	mu       sync.Mutex
	changed  chan struct{} // closed and made anew with each change below: wakes who waits for a setting or a cut
	closed   bool
	listener net.Listener // nil while connections are refused
	target   string
	delay    [2]time.Duration
	hold     [2]bool
	swallow  bool
	cutAfter [2]int64 // < 0: off
	arming   int      // counts the calls of CutAfter: each begins to count anew
	onReply  int      // requests whose replies are still to be lost
	match    func(request []byte) bool
	rewrite  func(Dir, []byte) []byte
	links    map[*link]struct{}
}

// New listens on a free loopback port and forwards to target: "host:port" or "unix:/path". The target need not be there.
func New(target string) (*Proxy, error) {
	p := &Proxy{
		addr: ports.Addr(), target: target, changed: make(chan struct{}), links: map[*link]struct{}{}, cutAfter: [2]int64{-1, -1},
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return nil, err
	}
	p.listener = l
	p.wg.Add(1)
	go p.accept(l)
	return p, nil
}

// T is the part of testing.TB that Start needs.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// Start is New for a test, which closes the proxy at its end.
func Start(t T, target string) *Proxy {
	t.Helper()
	p, err := New(target)
	if err != nil {
		t.Fatalf("no proxy: %v", err)
	}
	t.Cleanup(p.Close)
	return p
}

// Addr returns the address that clients dial. It stays the same.
func (p *Proxy) Addr() string { return p.addr }

// set changes a setting under the lock and wakes everybody who waits for one.
func (p *Proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.wake()
}

func (p *Proxy) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// SetTarget makes new connections go elsewhere; open ones stay.
func (p *Proxy) SetTarget(target string) { p.set(func() { p.target = target }) }

// Delay makes every byte take so long in each direction, without less of them passing. It holds for what comes in from now on.
func (p *Proxy) Delay(toServer, toClient time.Duration) {
	p.set(func() { p.delay = [2]time.Duration{toServer, toClient} })
}

// Hold keeps bytes of a direction back and delivers them when it is lifted: a network that loses nothing for ever.
// While bytes to the server are held, a new connection is accepted and waits before it reaches the target.
func (p *Proxy) Hold(toServer, toClient bool) { p.set(func() { p.hold = [2]bool{toServer, toClient} }) }

// Swallow makes the proxy accept, read and answer nothing: the far end of a half-open connection. When it is lifted, the
// connections that lost bytes are closed, as a peer that has come back would do.
func (p *Proxy) Swallow(on bool) { p.set(func() { p.swallow = on }) }

// Refuse closes the listening socket, so that the kernel refuses connections, or opens it again. Open connections stay.
func (p *Proxy) Refuse(on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed || on == (p.listener == nil):
		return nil
	case on:
		err := p.listener.Close()
		p.listener = nil
		return err
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.listener = l
	p.wg.Add(1)
	go p.accept(l)
	return nil
}

// CutAfter ends each connection once n more bytes of a direction were delivered: 0 with the next byte that comes, 5 inside
// a longer reply. Connections made later count from their own beginning. n < 0 switches it off.
func (p *Proxy) CutAfter(d Dir, n int64) {
	p.set(func() { p.cutAfter[d], p.arming = n, p.arming+1 })
}

// CutOnReply loses the replies to the next times requests that match: the request reaches the server, the first bytes of
// the reply prove that it was carried out, and then both ends are closed without a byte of it for the client.
//
// A request is all that the client sent since the last reply, so it is for clients that wait for each reply. match nil
// takes any; it may be called more than once for one request as more of it arrives, must not keep the bytes and must not
// call the proxy. times 0 switches it off.
func (p *Proxy) CutOnReply(times int, match func(request []byte) bool) {
	p.set(func() { p.onReply, p.match = times, match })
}

// Cuts returns how many connections CutAfter and CutOnReply have ended.
func (p *Proxy) Cuts() int64 { return p.cuts.Load() }

// WaitCuts waits until Cuts is at least n, and tells whether that came true in time.
func (p *Proxy) WaitCuts(n int64, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if p.cuts.Load() >= n {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return p.cuts.Load() >= n
		}
	}
}

// Rewrite passes every chunk that was read through f, which may return it changed, longer, shorter or empty. f is
// called from several goroutines; nil switches it off. Chunks end where reads ended: a message may be split.
func (p *Proxy) Rewrite(f func(d Dir, chunk []byte) []byte) { p.set(func() { p.rewrite = f }) }

// CloseAll ends every open connection with a reset. New ones are still taken.
func (p *Proxy) CloseAll() {
	p.mu.Lock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		l.end(true)
	}
}

// Stats returns the counters.
func (p *Proxy) Stats() Stats {
	return Stats{Accepted: p.accepted.Load(), Active: p.active.Load(), Failed: p.failed.Load(), Cuts: p.cuts.Load(),
		ToServer: p.bytes[ToServer].Load(), ToClient: p.bytes[ToClient].Load()}
}

// Close ends the proxy with all its connections, and waits for its goroutines.
func (p *Proxy) Close() {
	p.set(func() {
		p.closed = true
		if p.listener != nil {
			p.listener.Close()
			p.listener = nil
		}
	})
	p.CloseAll()
	p.wg.Wait()
}

func (p *Proxy) accept(l net.Listener) {
	defer p.wg.Done()
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(time.Millisecond) // out of descriptors: they come back
			continue
		}
		k := &link{p: p, client: c, done: make(chan struct{})}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			c.Close()
			continue
		}
		p.links[k] = struct{}{}
		p.wg.Add(1)
		p.mu.Unlock()
		p.accepted.Add(1)
		p.active.Add(1)
		go k.run()
	}
}

// link is one client's connection and its way to the target.
type link struct {
	p      *Proxy
	client net.Conn
	done   chan struct{}
	once   sync.Once

	mu     sync.Mutex
	server net.Conn
	ended  bool

	// Under the proxy's lock.
	lost    bool   // bytes were swallowed
	request []byte // sent by the client since the last reply, bounded
	armed   bool   // its reply is to be lost
}

// maxRequest bounds what CutOnReply looks at.
const maxRequest = 64 << 10

func (k *link) run() {
	p := k.p
	defer p.wg.Done()
	defer func() {
		k.end(false)
		p.mu.Lock()
		delete(p.links, k)
		p.mu.Unlock()
		p.active.Add(-1)
	}()
	// The connection waits here while nothing may reach the server.
	target, ok := "", false
	k.await(func() bool {
		target, ok = p.target, true
		return !p.hold[ToServer] && !p.swallow
	})
	if k.over() || !ok {
		return
	}
	network := "tcp"
	if path, unix := strings.CutPrefix(target, "unix:"); unix {
		network, target = "unix", path
	}
	server, err := net.DialTimeout(network, target, 10*time.Second)
	if err != nil {
		p.failed.Add(1)
		k.end(true)
		return
	}
	k.mu.Lock()
	if k.ended {
		k.mu.Unlock()
		server.Close()
		return
	}
	k.server = server
	k.mu.Unlock()

	var wg sync.WaitGroup
	wg.Go(func() { k.copy(ToServer, k.client, server) })
	wg.Go(func() { k.copy(ToClient, server, k.client) })
	var watch sync.WaitGroup
	watch.Go(func() { k.watchSwallow() })
	wg.Wait()
	k.end(false)
	watch.Wait()
}

// await waits until ok, which is called under the proxy's lock, returns true or the link has ended.
func (k *link) await(ok func() bool) {
	for {
		k.p.mu.Lock()
		yes, changed := ok(), k.p.changed
		k.p.mu.Unlock()
		if yes {
			return
		}
		select {
		case <-changed:
		case <-k.done:
			return
		}
	}
}

// watchSwallow closes a link that lost bytes as soon as bytes flow again.
func (k *link) watchSwallow() {
	k.await(func() bool { return k.lost && !k.p.swallow })
	k.end(true)
}

func (k *link) over() bool {
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

// end closes both ends; with reset, what is under way is thrown away and the peers see ECONNRESET.
func (k *link) end(reset bool) {
	k.once.Do(func() {
		close(k.done)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.ended = true
		for _, c := range []net.Conn{k.client, k.server} {
			if c == nil {
				continue
			}
			if tcp, ok := c.(*net.TCPConn); ok && reset {
				_ = tcp.SetLinger(0)
			}
			c.Close()
		}
	})
}

// cut ends the link on purpose. The server's end is closed the normal way: what it was sent has to reach it.
func (k *link) cut() {
	k.end(false)
	k.p.cuts.Add(1)
	k.p.set(func() {})
}

type chunk struct {
	b  []byte
	at time.Time // when it may be delivered
}

// copy moves one direction: a reader that stamps chunks, a queue, a writer that waits for each one's time. So a delay
// costs time and not throughput, and a hold stops the reader only when the queue is full.
func (k *link) copy(d Dir, from, to net.Conn) {
	queue := make(chan chunk, 256)
	var wg sync.WaitGroup
	wg.Go(func() { k.deliver(d, queue, to) })
	defer wg.Wait()
	defer close(queue)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !k.take(d, buf[:n], queue) {
			return
		}
		if err != nil {
			if err != io.EOF {
				k.end(true) // a reset, or this link's own end
			}
			return
		}
	}
}

// take decides what becomes of bytes that were read; false ends the direction.
func (k *link) take(d Dir, b []byte, queue chan<- chunk) bool {
	p := k.p
	p.mu.Lock()
	delay, rewrite := p.delay[d], p.rewrite
	if p.swallow {
		k.lost = true
		p.mu.Unlock()
		return true
	}
	lose := false
	if d == ToClient {
		lose = k.armed
		k.request = k.request[:0]
	} else {
		if room := maxRequest - len(k.request); room > 0 {
			k.request = append(k.request, b[:min(room, len(b))]...)
		}
		if !k.armed && p.onReply > 0 && (p.match == nil || p.match(k.request)) {
			p.onReply--
			k.armed = true
		}
	}
	p.mu.Unlock()
	if lose {
		k.cut()
		return false
	}

	out := append([]byte(nil), b...)
	if rewrite != nil {
		out = rewrite(d, out)
	}
	if len(out) == 0 {
		return true
	}
	c := chunk{b: out}
	if delay > 0 {
		c.at = time.Now().Add(delay)
	}
	select {
	case queue <- c:
		return true
	case <-k.done:
		return false
	}
}

// deliver writes the queue to one end, and passes the end of the stream on: a half-close stays one.
func (k *link) deliver(d Dir, queue <-chan chunk, to net.Conn) {
	p := k.p
	armed, sent := -1, int64(0)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for c := range queue {
		if wait := time.Until(c.at); !c.at.IsZero() && wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-k.done:
			}
		}
		limit, arming := int64(-1), 0
		k.await(func() bool {
			limit, arming = p.cutAfter[d], p.arming
			return !p.hold[d]
		})
		if k.over() {
			continue // drain
		}
		if armed != arming {
			if armed >= 0 {
				sent = 0 // CutAfter was called while the link was open: it counts from there
			}
			armed = arming
		}
		cut := limit >= 0 && sent+int64(len(c.b)) >= limit
		if cut {
			c.b = c.b[:max(limit-sent, 0)]
		}
		// Counted first: whoever has seen the bytes finds them counted.
		p.bytes[d].Add(int64(len(c.b)))
		n, err := to.Write(c.b)
		sent += int64(n)
		p.bytes[d].Add(int64(n - len(c.b)))
		switch {
		case cut:
			k.cut()
		case err != nil:
			k.end(false)
		}
	}
	k.await(func() bool { return !p.hold[d] && !p.swallow })
	if tcp, ok := to.(interface{ CloseWrite() error }); ok {
		_ = tcp.CloseWrite()
	}
}
