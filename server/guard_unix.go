//go:build unix

package server

import (
	"io"
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

// tryRead reads once, for net's poller: false makes it wait and call again.
// Buffers are given back and deadlines set only then.
func (c *guardConn) tryRead(fd uintptr) bool {
	if c.take(fd) {
		return true
	}
	c.rest()
	if !c.arm() {
		c.io.err = io.EOF
		return true
	}
	return false
}

// take reads into the frame's buffer; false means that nothing is there.
func (c *guardConn) take(fd uintptr) bool {
	b := c.f.room(c.mayGrow)
	if b == nil {
		c.io.n, c.io.err = 0, errGuardInput
		return true
	}
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
