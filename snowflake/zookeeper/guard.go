package zookeeper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// guardConn stands between go-zookeeper v1.0.4 and the network, because that library, in goroutines of its own,
//
//   - trusts the length of a frame before it has read it, even before authentication (1 GiB for a peer that speaks HTTP);
//   - panics on frames shorter than a header, on a Multi's reply that ends early, on a count larger than memory, and on a session
//     timeout of 0 (a ticker without interval);
//   - reads the second half of the connect reply without a deadline;
//   - wedges for ever when a write fails while credentials are sent again (a channel of one, sent to twice).
//
// So every frame is read whole, within bounds of size and time, and checked as far as the library's decoder is not; and a write
// that fails closes the connection and reports success: the library learns of it by its next read.
type guardConn struct {
	net.Conn
	patience time.Duration // for the body of a frame, and for the whole connect reply
	frames   int
	frame    bytes.Reader
	dead     atomic.Bool

	mu  sync.Mutex
	ops map[int32]int32 // requests in flight: xid to opcode
	out int             // writes so far; the first one is the connect request
}

const maxFrame = 16 << 20 // 50,000 children of forever are about 2 MiB

var errFrame = errors.New("the peer does not speak ZooKeeper's protocol")

func newGuardConn(c net.Conn, patience time.Duration) *guardConn {
	return &guardConn{Conn: c, patience: patience, ops: map[int32]int32{}}
}

func (g *guardConn) Read(b []byte) (int, error) {
	if g.frame.Len() == 0 {
		if err := g.next(); err != nil {
			g.Conn.Close()
			return 0, err
		}
	}
	return g.frame.Read(b)
}

// next reads one frame and checks it. Memory grows only as bytes arrive.
func (g *guardConn) next() error {
	var head [4]byte
	if _, err := io.ReadFull(g.Conn, head[:]); err != nil {
		return err
	}
	size, least := binary.BigEndian.Uint32(head[:]), uint32(16)
	if g.frames == 0 {
		least = 20
	}
	if size < least || size > maxFrame {
		return fmt.Errorf("%w: a frame of %d bytes", errFrame, size)
	}
	g.Conn.SetReadDeadline(time.Now().Add(g.patience))
	var buf bytes.Buffer
	buf.Write(head[:])
	if _, err := io.CopyN(&buf, g.Conn, int64(size)); err != nil {
		return err
	}
	body := buf.Bytes()[4:]
	var ok bool
	if g.frames == 0 {
		ok = goodConnect(body)
	} else {
		ok = g.goodReply(body)
	}
	if !ok {
		return fmt.Errorf("%w: a malformed frame of %d bytes", errFrame, size)
	}
	g.frames++
	g.frame.Reset(buf.Bytes())
	return nil
}

// goodConnect: version 4, timeout 4, session 8, password.
func goodConnect(b []byte) bool {
	timeout := int32(binary.BigEndian.Uint32(b[4:]))
	session := binary.BigEndian.Uint64(b[8:])
	password := int32(binary.BigEndian.Uint32(b[16:]))
	if password > 0 && int(password) > len(b)-20 {
		return false
	}
	return session == 0 || timeout >= 100 && timeout <= 3_600_000
}

const (
	zkGetData      = 4
	zkGetChildren  = 8
	zkGetChildren2 = 12
	zkMulti        = 14
)

// goodReply checks what the library's decoder would panic on or believe: xid 4, zxid 8, error 4, and a body as the request's.
func (g *guardConn) goodReply(b []byte) bool {
	xid, code := int32(binary.BigEndian.Uint32(b)), int32(binary.BigEndian.Uint32(b[12:]))
	if xid < 0 {
		return true // a ping, or an event: strings alone, whose lengths the decoder does check
	}
	g.mu.Lock()
	op := g.ops[xid]
	delete(g.ops, xid)
	g.mu.Unlock()
	if code != 0 {
		return true
	}
	b = b[16:]
	switch op {
	case zkGetData:
		return len(b) >= 4 && int64(int32(binary.BigEndian.Uint32(b))) <= int64(len(b)-4)
	case zkGetChildren, zkGetChildren2:
		return len(b) >= 4 && int64(binary.BigEndian.Uint32(b)) <= int64(len(b)-4)/4
	case zkMulti:
		return goodMulti(b)
	}
	return true
}

// goodMulti walks the results of a Multi: for each type 4, done 1, error 4, and what the type has.
func goodMulti(b []byte) bool {
	for {
		if len(b) < 9 {
			return false
		}
		kind, done := int32(binary.BigEndian.Uint32(b)), b[4] != 0
		if b = b[9:]; done {
			return true
		}
		need := 0
		switch kind {
		case -1: // error
			need = 4
		case 1: // create: a path
			if len(b) < 4 {
				return false
			}
			n := binary.BigEndian.Uint32(b)
			if n > maxFrame {
				return false
			}
			need = 4 + int(n)
		case 5: // set: a stat
			need = 68
		case 2, 13: // delete, check
		default:
			return false
		}
		if len(b) < need {
			return false
		}
		b = b[need:]
	}
}

// Write gets one packet each time. It never reports an error.
func (g *guardConn) Write(b []byte) (int, error) {
	if g.dead.Load() {
		return len(b), nil
	}
	g.mu.Lock()
	if g.out++; g.out > 1 && len(b) >= 12 {
		g.ops[int32(binary.BigEndian.Uint32(b[4:]))] = int32(binary.BigEndian.Uint32(b[8:]))
	}
	g.mu.Unlock()
	if _, err := g.Conn.Write(b); err != nil {
		g.dead.Store(true)
		g.Conn.Close()
	}
	return len(b), nil
}

// SetReadDeadline allows no read without an end, and no long wait for the connect reply.
func (g *guardConn) SetReadDeadline(t time.Time) error {
	most := time.Now().Add(g.patience)
	if t.IsZero() || g.frames == 0 && t.After(most) {
		t = most
	}
	return g.Conn.SetReadDeadline(t)
}
