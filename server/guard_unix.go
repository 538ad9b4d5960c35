//go:build unix

package server

import (
	"net"
	"syscall"
	"time"
)

// guardRaw gives access to the file descriptor of a TCP or unix connection.
func guardRaw(nc net.Conn) syscall.RawConn {
	switch nc := nc.(type) {
	case *net.TCPConn:
		raw, err := nc.SyscallConn()
		if err == nil {
			return raw
		}
	case *net.UnixConn:
		raw, err := nc.SyscallConn()
		if err == nil {
			return raw
		}
	}
	return nil
}

// tryRead reads and lets the lane answer, for net's poller: false makes it wait and call again. It stays in here as long as
// the lane has an answer to everything, for one reason: a read that brought less than there was room for has emptied the
// socket, so the next wait needs no read that finds nothing. That holds only between two calls of the poller: a new Read begins
// by forgetting what arrived before it. What such a wait can miss is an end of the stream that came along with the bytes; the
// guard's sweep asks after it (see guard.sweep).
func (c *guardConn) tryRead(fd uintptr) bool {
	for c.take(fd) {
		n := c.io.n
		if n == 0 || c.io.err != nil {
			return true
		}
		full := n == c.io.room
		c.in.Add(uint64(n))
		c.served = c.served || c.g.draining.Load()
		switch done, err := c.hot(); {
		case err != nil:
			c.io.n, c.io.err = 0, err
			return true
		case !done:
			c.io.n, c.io.err = n, nil
			return true
		case !full:
			return !c.park(true)
		}
	}
	return !c.park(false)
}

// take reads into the frame's buffer; false means that nothing is there.
func (c *guardConn) take(fd uintptr) bool {
	b := c.f.room(c.mayGrow)
	if b == nil {
		c.io.n, c.io.err = 0, errGuardInput
		return true
	}
	c.io.room = len(b)
	for {
		n, err := syscall.Read(int(fd), b)
		switch err {
		case nil:
			c.f.w += n
			c.io.n, c.io.err = n, nil
			return true
		case syscall.EINTR:
		case syscall.EAGAIN:
			c.io.n, c.io.err = 0, nil
			return false
		default:
			c.io.n, c.io.err = 0, err
			return true
		}
	}
}

// trySend writes until all of io.send is written or the socket is full.
func (c *guardConn) trySend(fd uintptr) bool {
	for c.io.n < len(c.io.send) {
		n, err := syscall.Write(int(fd), c.io.send[c.io.n:])
		switch err {
		case nil:
			c.io.n += n
			c.io.waiting = false
		case syscall.EINTR:
		case syscall.EAGAIN:
			if !c.io.waiting { // there was progress: the time begins anew
				c.io.waiting = true
				c.warmed = true
				c.nc.SetWriteDeadline(time.Now().Add(c.g.cfg.WriteTimeout))
			}
			return false
		default:
			c.io.err = err
			return true
		}
	}
	return true
}
