//go:build !unix

package server

import (
	"net"
	"syscall"
)

// Elsewhere connections are used through net.Conn, as TLS is.
func guardRaw(net.Conn) syscall.RawConn { return nil }

func (c *guardConn) tryRead(uintptr) bool { return true }
func (c *guardConn) trySend(uintptr) bool { return true }
func (c *guardConn) take(uintptr) bool    { return false }
