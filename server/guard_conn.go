package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"
)

// guardConn is one client's connection as redcon sees it. Redcon calls Read
// and Write in the connection's goroutine, in which handlers run too.
//
// A handler may call Authenticated, CloseAfterFlush and SetLane. Any goroutine
// may call Kill, BytesIn, BytesOut, RemoteAddr, LocalAddr and Listener. For
// everything else use redcon's Conn, and nothing of redcon's Conn from another
// goroutine: it flushes a buffer that is not locked.
type guardConn struct {
	g  *guard
	l  *guardListener
	nc net.Conn

	// The connection's goroutine only.
	f      frame
	lane   guardLane
	ender  guardEnder // lane, if it is one
	give   []byte     // rest of a command that did not fit redcon's buffer
	out    []byte     // replies of the lane, not written yet
	due    time.Time  // when the command with number dueSeq must be whole
	dueSeq uint64
	armed  time.Time // the read deadline that is set
	waited bool      // this fill came to a wait
	warmed bool      // a write deadline is set
	shaken bool      // TLS handshake done, or none needed
	ending bool      // read no more: QUIT, drain
	sips   int       // draining: reads of what had arrived by then
	served bool      // draining: there was something
	failed error
	turn   int   // commands the lane answered since others had the processor
	kept   int64 // what redcon's buffer is taken to have grown to
	wrote  int   // size of the lane's last write

	large atomic.Int64 // this connection's part of guard.input

	// With a raw connection one read(2) or write(2) is tried before anything
	// is prepared for waiting, and no buffer is held while waiting.
	raw    syscall.RawConn
	onRead func(fd uintptr) bool
	onSend func(fd uintptr) bool
	io     guardIO

	in, sent atomic.Uint64
	closed   atomic.Bool
	killed   atomic.Bool

	// For the sweep: parks moves by 2 with each wait, and is odd in one that began without a read that found nothing.
	parks atomic.Uint64
	swept uint64 // parks when the sweep last came by; guarded by guard.mu
}

// guardIO is what passes between a system call and its caller.
type guardIO struct {
	n       int
	room    int // for a read
	err     error
	send    []byte
	waiting bool // a write found the socket full
}

func newGuardConn(g *guard, l *guardListener, nc net.Conn) *guardConn {
	c := &guardConn{g: g, l: l, nc: nc, shaken: true}
	c.f.init(g.cfg.Limits)
	if _, ok := nc.(*tls.Conn); ok {
		c.shaken = false
	} else {
		c.raw = guardRaw(nc)
	}
	if c.raw != nil {
		c.onRead, c.onSend = c.tryRead, c.trySend
	}
	if b, ok := guardSocket(nc).(interface{ SetWriteBuffer(int) error }); ok {
		b.SetWriteBuffer(g.cfg.MaxOutput)
	}
	return c
}

// guardSocket is the connection under TLS.
func guardSocket(nc net.Conn) net.Conn {
	if t, ok := nc.(*tls.Conn); ok {
		return t.NetConn()
	}
	return nc
}

// SetLane sets who answers hot commands; nil means nobody. Not while Read runs:
// in the accept callback or a handler.
func (c *guardConn) SetLane(l guardLane) {
	c.lane = l
	c.ender, _ = l.(guardEnder)
}

// Authenticated lifts the limits that hold for strangers, or sets them again
// after RESET. Until it is called with true each command is handed over alone,
// so that it takes effect before the next one is judged.
func (c *guardConn) Authenticated(is bool) { c.f.trusted = is }

// CloseAfterFlush closes the connection once the replies of the commands that
// redcon holds are written. A handler that calls it first takes the rest of
// redcon's pipeline (conn.ReadPipeline), which would still be executed.
func (c *guardConn) CloseAfterFlush() { c.ending = true }

// Kill closes the connection from any goroutine, without a word to the client.
// A handler that runs is not interrupted.
func (c *guardConn) Kill() {
	c.killed.Store(true)
	// Under TLS the socket itself, since TLS would take time to say goodbye.
	guardSocket(c.nc).Close()
}

// Listener is where the connection came in.
func (c *guardConn) Listener() *guardListener { return c.l }

// BytesIn and BytesOut count what was read from and written to the client,
// under TLS before encryption.
func (c *guardConn) BytesIn() uint64  { return c.in.Load() }
func (c *guardConn) BytesOut() uint64 { return c.sent.Load() }

func (c *guardConn) LocalAddr() net.Addr  { return c.nc.LocalAddr() }
func (c *guardConn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Deadlines belong to the guard: these do nothing.
func (c *guardConn) SetDeadline(time.Time) error      { return nil }
func (c *guardConn) SetReadDeadline(time.Time) error  { return nil }
func (c *guardConn) SetWriteDeadline(time.Time) error { return nil }

// Close closes the connection and gives its place to another one.
func (c *guardConn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	var err error
	if c.killed.Load() {
		err = guardSocket(c.nc).Close()
	} else {
		err = c.nc.Close()
	}
	c.charge(-c.large.Load())
	c.g.remove(c)
	return err
}

// Read hands redcon whole commands that the lane did not answer. It returns
// only when everything before them is answered and written. A command larger
// than p comes in parts, and nothing else is looked at until it is delivered.
func (c *guardConn) Read(p []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			n, err = 0, c.panicked(v)
		}
		if err != nil {
			c.release()
		}
	}()
	if c.failed != nil {
		return 0, c.failed
	}
	n, err = c.read(p)
	if err != nil {
		c.failed = err
	}
	return n, err
}

func (c *guardConn) read(p []byte) (int, error) {
	if len(c.give) > 0 {
		return c.deliver(p), nil
	}
	if !c.shaken {
		if err := c.handshake(); err != nil {
			return 0, err
		}
	}
	open := c.begin()
	for {
		if c.ending {
			if !c.sip() {
				p = nil
			}
			return 0, c.end(p, nil, io.EOF)
		}
		switch c.f.next() {
		case frameWhole:
			if open && c.f.cmd.n <= frameViews {
				ok, err := c.answer()
				if err != nil {
					return 0, err
				}
				if ok {
					continue
				}
			}
			if err := c.flush(); err != nil {
				return 0, err
			}
			c.collect(len(p), open)
			return c.deliver(p), nil

		case frameMore:
			if err := c.flush(); err != nil {
				return 0, err
			}
			c.yield()
			if err := c.fill(p); err != nil {
				return 0, err
			}
			open = c.begin()

		case frameBad:
			c.g.badProtocol.Add(1)
			return 0, c.end(p, []byte("-"+c.f.err+"\r\n"), errGuardProtocol)

		case frameHTTP:
			c.g.event(guardEvent{Kind: guardHTTP, Remote: c.RemoteAddr()})
			return 0, c.end(nil, nil, errGuardHTTP)

		case frameTLS:
			c.g.event(guardEvent{Kind: guardTLS, Remote: c.RemoteAddr()})
			return 0, c.end(nil, nil, errGuardTLS)
		}
	}
}

// begin asks the lane whether it is open, if there is anything to ask for.
func (c *guardConn) begin() bool {
	return c.lane != nil && c.f.w > c.f.r && c.lane.Begin(c)
}

// space is where the lane appends.
func (c *guardConn) space() []byte {
	if c.out == nil {
		c.out = frameLend(min(4*c.wrote, frameClasses[len(frameClasses)-1]))[:0]
	}
	return c.out
}

// collect puts into give the command that next found, and those behind it
// that redcon may get along with it: as many as fit size, up to one that the
// lane would take. A stranger's commands go one by one: the next may be
// allowed to be larger once this one was executed.
func (c *guardConn) collect(size int, open bool) {
	f := &c.f
	if f.made != nil {
		c.give = f.made
		f.take()
		return
	}
	n, from := f.size, f.r
	c.give = f.buf[from : from+n]
	f.take()
	if n > size {
		c.keep(int64(n))
		return
	}
	for f.trusted && n < size && f.next() == frameWhole && f.made == nil &&
		f.r == from+n && n+f.size <= size && !(open && c.lane.Hot(&f.cmd)) {
		n += f.size
		f.take()
	}
	c.give = f.buf[from : from+n]
}

func (c *guardConn) deliver(p []byte) int {
	n := copy(p, c.give)
	c.give = c.give[n:]
	return n
}

// keep notes that redcon's buffer grew for a command of n bytes, which it
// never undoes. When too much is bound in this way, this connection is closed
// after its reply: clients reconnect.
func (c *guardConn) keep(n int64) {
	if more := 2*n - c.kept; more > 0 {
		c.kept += more
		if c.charge(more) > c.g.cfg.MaxInput {
			c.g.event(guardEvent{Kind: guardInputFull, Remote: c.RemoteAddr()})
			c.ending = true
		}
	}
}

// charge counts bytes of large commands, for this connection and for all, and
// returns the sum of all.
func (c *guardConn) charge(n int64) int64 {
	c.large.Add(n)
	return c.g.input.Add(n)
}

// mayGrow is asked before more than usual is held of a command that is not
// whole.
func (c *guardConn) mayGrow(more int) bool {
	if c.charge(int64(more)) <= c.g.cfg.MaxInput {
		return true
	}
	c.charge(-int64(more))
	return false
}

// rest gives back buffers before a wait.
func (c *guardConn) rest() {
	if less := c.f.rest(); less > 0 {
		c.charge(-int64(less))
	}
}

// release gives buffers back at the end; Close does the accounts.
func (c *guardConn) release() {
	if c.f.buf != nil {
		frameFree(c.f.buf)
	}
	if c.out != nil {
		frameFree(c.out)
	}
	c.f.buf, c.out, c.give = nil, nil, nil
	c.f.r, c.f.w = 0, 0
}

// handshake does TLS' with its own deadline.
func (c *guardConn) handshake() error {
	t := c.nc.(*tls.Conn)
	t.SetDeadline(time.Now().Add(c.g.cfg.HandshakeTimeout))
	if c.g.draining.Load() {
		return io.EOF
	}
	if err := t.Handshake(); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	c.shaken = true
	return t.SetDeadline(time.Time{})
}

// fill waits for bytes of the client and puts them behind those that are
// there. p is redcon's buffer, which lends its place.
func (c *guardConn) fill(p []byte) error {
	if c.ender != nil {
		c.ender.End(c)
	}
	for {
		var err error
		c.waited = false
		switch {
		case c.raw != nil:
			c.io.n, c.io.err = 0, nil
			err = c.raw.Read(c.onRead)
			if err == nil {
				err = c.io.err
			}
		default:
			c.io.n, err = c.wait(p)
		}
		if n := c.io.n; n > 0 {
			if c.raw == nil {
				c.in.Add(uint64(n))
				c.served = c.served || c.g.draining.Load()
			}
			return nil
		}
		switch {
		case c.killed.Load():
			return io.EOF
		case err == errGuardInput:
			c.g.event(guardEvent{Kind: guardInputFull, Remote: c.RemoteAddr()})
			return c.end(p, []byte("-ERR too many large commands at once, try again later\r\n"), err)
		case c.g.draining.Load():
			// What had arrived when the drain began is still answered:
			// closing over unread bytes resets the connection, and replies
			// on their way would be lost.
			if c.sips < guardSips && c.sip() {
				c.sips++
				c.served = true
				return nil
			}
			if !c.served && c.raw != nil {
				p = nil // nothing is on its way
			}
			return c.end(p, nil, io.EOF)
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !c.waited || c.armed.IsZero() || time.Now().Before(c.armed) {
				// Nobody's time is up: the sweep wants a read, or the deadline
				// of an earlier wait passed while the connection was busy, and
				// a socket then refuses to look for bytes.
				c.nc.SetReadDeadline(time.Time{})
				c.armed = time.Time{}
				continue
			}
			if c.f.pending() {
				c.g.event(guardEvent{Kind: guardSlowCommand, Remote: c.RemoteAddr()})
				text := fmt.Sprintf("-ERR Protocol error: command not complete after %v\r\n", c.g.cfg.CommandTimeout)
				return c.end(p, []byte(text), errGuardSlow)
			}
			return errGuardIdle
		case err == nil || errors.Is(err, io.EOF):
			return io.EOF
		}
		return err
	}
}

// wait reads from a connection that is no socket, TLS above all. While nothing
// is pending it waits with redcon's buffer instead of one of its own.
func (c *guardConn) wait(p []byte) (int, error) {
	if !c.f.pending() {
		c.rest()
		if !c.arm() {
			return 0, io.EOF
		}
		n, err := c.nc.Read(p[:min(len(p), frameClasses[frameReadClass])])
		if n > 0 {
			c.f.w += copy(c.f.room(c.mayGrow), p[:n])
			err = nil
		}
		return n, err
	}
	b := c.f.room(c.mayGrow)
	if b == nil {
		return 0, errGuardInput
	}
	if !c.arm() {
		return 0, io.EOF
	}
	n, err := c.nc.Read(b)
	c.f.w += n
	return n, err
}

// sip reads what is there without waiting, and reports whether that was
// something. Only sockets can tell.
func (c *guardConn) sip() bool {
	if c.raw == nil {
		return false
	}
	c.io.n = 0
	c.raw.Control(func(fd uintptr) { c.take(fd) })
	c.in.Add(uint64(c.io.n))
	return c.io.n > 0
}

// hot lets the lane answer what was read. done: there is nothing left for anybody else, and the replies are written.
func (c *guardConn) hot() (done bool, err error) {
	if !c.begin() {
		return false, nil
	}
	for {
		switch c.f.next() {
		case frameWhole:
			if c.f.cmd.n > frameViews {
				return false, nil
			}
			ok, err := c.answer()
			if !ok || err != nil {
				return false, err
			}
		case frameMore:
			if err := c.flush(); err != nil {
				return false, err
			}
			if c.ender != nil {
				c.ender.End(c)
			}
			c.yield()
			return true, nil
		default:
			return false, nil
		}
	}
}

// answer lets the lane answer the command at hand.
func (c *guardConn) answer() (ok bool, err error) {
	out, ok := c.lane.Serve(c, &c.f.cmd, c.space())
	if !ok {
		return false, nil
	}
	c.out = out
	c.f.take()
	c.turn++
	if len(out) >= guardFlush {
		err = c.flush()
	}
	return true, err
}

// yield gives the processor to others after a bounded amount of work.
func (c *guardConn) yield() {
	if c.turn >= guardTurn {
		c.turn = 0
		runtime.Gosched()
	}
}

// park prepares a wait for bytes. unsure: the socket is known to be empty, but an end of the stream may have been overlooked.
// false: a drain has begun, there is no waiting.
func (c *guardConn) park(unsure bool) bool {
	c.rest()
	if !c.arm() {
		c.io.n, c.io.err = 0, io.EOF
		return false
	}
	next := c.parks.Load()&^1 + 2
	if unsure {
		next++
	}
	c.parks.Store(next)
	return true
}

// arm sets the read deadline for the wait that follows. It returns false when
// a drain has begun. The order matters: a drain raises its flag before it sets
// a deadline in the past, so either the flag is seen here or that deadline
// comes after this one.
func (c *guardConn) arm() bool {
	var at time.Time
	if c.f.pending() {
		if c.due.IsZero() || c.dueSeq != c.f.seq {
			c.due, c.dueSeq = time.Now().Add(c.g.cfg.CommandTimeout), c.f.seq
		}
		at = c.due
	} else if d := time.Duration(c.g.idleTimeout.Load()); d > 0 {
		at = time.Now().Add(d)
	}
	if at != c.armed {
		c.nc.SetReadDeadline(at)
		c.armed = at
	}
	c.waited = true
	return !c.g.draining.Load()
}

// wake ends a wait of Read, for the drain and the sweep.
func (c *guardConn) wake() { guardSocket(c.nc).SetReadDeadline(time.Unix(1, 0)) }

// Write writes replies of redcon. It returns when the kernel has taken them
// all; a client that takes nothing for WriteTimeout loses the connection.
func (c *guardConn) Write(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil // redcon flushes whether there is something or not
	}
	if !c.shaken {
		return 0, errGuardEarly // it would wait for a handshake, in the accept loop
	}
	defer func() {
		if v := recover(); v != nil {
			n, err = 0, c.panicked(v)
		}
	}()
	if err := c.flush(); err != nil {
		return 0, err
	}
	return c.send(b)
}

// flush writes the lane's replies.
func (c *guardConn) flush() error {
	if c.out == nil {
		return nil
	}
	b := c.out
	c.out = nil
	defer frameFree(b)
	if len(b) == 0 {
		return nil
	}
	c.wrote = len(b)
	_, err := c.send(b)
	return err
}

func (c *guardConn) send(b []byte) (int, error) {
	var n int
	var err error
	if c.raw != nil {
		c.io = guardIO{send: b}
		err = c.raw.Write(c.onSend)
		if err == nil {
			err = c.io.err
		}
		n = c.io.n
		c.io.send = nil
	} else {
		n, err = c.push(b)
	}
	if c.warmed {
		c.nc.SetWriteDeadline(time.Time{})
		c.warmed = false
	}
	c.sent.Add(uint64(n))
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		c.g.event(guardEvent{Kind: guardSlowReader, Remote: c.RemoteAddr()})
		err = errGuardReader
	}
	return n, err
}

// push writes to a connection that is no socket, a piece at a time so that
// slow progress is progress.
func (c *guardConn) push(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		c.nc.SetWriteDeadline(time.Now().Add(c.g.cfg.WriteTimeout))
		c.warmed = true
		var k int
		k, err = c.nc.Write(b[n:min(len(b), n+16<<10)])
		n += k
	}
	return n, err
}

// end answers text, says goodbye and returns why. With a buffer it reads for a
// moment what the client is still sending: closing over unread bytes would
// reset the connection, and the answer could be lost.
func (c *guardConn) end(p, text []byte, why error) error {
	if len(text) > 0 {
		c.out = append(c.space(), text...)
	}
	if err := c.flush(); err != nil {
		return why
	}
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || len(p) == 0 || half.CloseWrite() != nil {
		return why
	}
	c.nc.SetReadDeadline(time.Now().Add(guardLinger))
	for left := guardLingerBytes; left > 0; {
		n, err := c.nc.Read(p)
		if err != nil {
			break
		}
		left -= n
	}
	return why
}

const (
	guardSips        = 16 // reads of what has arrived when a drain begins: a client that never stops is not waited for
	guardLinger      = 250 * time.Millisecond
	guardLingerBytes = 16 << 20
)

// turnAway answers a client that is not let in, if that is possible without
// waiting for it.
func (c *guardConn) turnAway(text string) {
	if !c.shaken {
		return
	}
	c.nc.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	c.nc.Write([]byte("-" + text + "\r\n"))
}

// panicked ends the connection after a bug: one client is lost, not all.
func (c *guardConn) panicked(v any) (err error) {
	err = errGuardPanic
	defer func() { recover() }()
	c.g.event(guardEvent{Kind: guardPanic, Remote: c.RemoteAddr(), Err: fmt.Errorf("%v", v), Stack: debug.Stack()})
	c.failed = err
	return c.end(nil, []byte("-ERR internal error\r\n"), err)
}
