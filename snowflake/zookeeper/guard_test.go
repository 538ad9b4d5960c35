package zookeeper

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/rs/zerolog"
)

// peer listens on loopback and lets serve speak to every connection.
func peer(t *testing.T, serve func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Go(func() { defer c.Close(); serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

func frame(body ...[]byte) []byte {
	b := bytes.Join(body, nil)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func be32(n ...uint32) []byte {
	var b []byte
	for _, v := range n {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

func readFrame(c net.Conn) ([]byte, error) {
	var h [4]byte
	if _, err := io.ReadFull(c, h[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(h[:]))
	_, err := io.ReadFull(c, b)
	return b, err
}

// greeting answers the connect request with a session of the given timeout.
func greeting(timeout uint32) []byte {
	return frame(be32(0, timeout, 0, 7), be32(16), make([]byte, 16), []byte{0})
}

// reply heads an answer without an error.
func reply(xid []byte) []byte { return append(bytes.Clone(xid), be32(0, 1, 0)...) }

// Whatever a peer sends, the process lives, takes no memory for it, and the caller has an error within its time (leaf F24). Each
// of these kills or wedges go-zookeeper v1.0.4 when it stands alone, or makes it reserve what the peer asks for.
func TestHostilePeers(t *testing.T) {
	answer := func(body func(xid []byte, op uint32) []byte) func(net.Conn) {
		return func(c net.Conn) {
			if _, err := readFrame(c); err != nil {
				return
			}
			c.Write(greeting(2000))
			for {
				b, err := readFrame(c)
				if err != nil || len(b) < 8 {
					return
				}
				op := binary.BigEndian.Uint32(b[4:])
				if op == 11 { // ping
					c.Write(frame(be32(0xfffffffe, 0, 1, 0)))
					continue
				}
				c.Write(body(b[:4], op))
			}
		}
	}
	connect := func(b []byte) func(net.Conn) {
		return func(c net.Conn) { readFrame(c); c.Write(b); io.Copy(io.Discard, c) }
	}
	huge := be32(0x7fffffff)
	for _, p := range []struct {
		name  string
		serve func(net.Conn)
	}{
		{"HTTP", func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"); io.Copy(io.Discard, c) }},
		{"silence", func(c net.Conn) { io.Copy(io.Discard, c) }},
		{"closes at once", func(net.Conn) {}},
		{"connect reply of 3 bytes", connect(frame([]byte("abc")))},
		{"half a connect reply", connect(greeting(2000)[:20])},
		{"connect reply of 2 GiB", connect(huge)},
		{"session timeout 0", connect(greeting(0))},
		{"session timeout negative", connect(greeting(0xfffffff0))},
		{"password of 1 GiB", connect(frame(be32(0, 2000, 0, 7, 1<<30), make([]byte, 17)))},
		{"frame of 3 bytes", answer(func([]byte, uint32) []byte { return frame([]byte("abc")) })},
		{"frame of 2 GiB", answer(func([]byte, uint32) []byte { return huge })},
		{"frame that never ends", answer(func(xid []byte, _ uint32) []byte { return append(be32(1000), xid...) })},
		{"empty bodies", answer(func(xid []byte, _ uint32) []byte { return frame(reply(xid)) })},
		{"counts of 2^31", answer(func(xid []byte, _ uint32) []byte { return frame(reply(xid), huge, huge, huge) })},
		{"counts of 2^32-1", answer(func(xid []byte, _ uint32) []byte { return frame(reply(xid), be32(0xffffffff, 0xffffffff)) })},
		{"Multi that ends early", answer(func(xid []byte, _ uint32) []byte { return frame(reply(xid), be32(5)) })},
		{"Multi with a path of 2 GiB", answer(func(xid []byte, _ uint32) []byte {
			return frame(reply(xid), be32(1), []byte{0}, be32(0), huge)
		})},
		{"events and pings nobody asked for", answer(func(xid []byte, _ uint32) []byte {
			return append(frame(be32(0xffffffff, 0, 1, 0)), frame(be32(0xfffffffe, 0, 1, 0, 3))...)
		})},
		{"noise", answer(func(xid []byte, _ uint32) []byte { return bytes.Repeat([]byte{0x5a, 0x01, 0x00}, 100) })},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			addr := peer(t, p.serve)
			fast := pace{session: time.Second, call: 500 * time.Millisecond}
			c, err := dial(Options{Servers: []string{addr}, pace: fast}, zerolog.Nop())
			if err != nil {
				t.Fatal(err)
			}
			defer c.close(context.Background())
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			end := time.Now().Add(1500 * time.Millisecond)
			for time.Now().Before(end) {
				began := time.Now()
				_, err := c.Get(t.Context(), "/x")
				_, _, err2 := c.Children(t.Context(), "/x")
				_, err3 := c.Multi(t.Context(), checkOp("/x", 1), createOp("/y", nil), setOp("/z", nil, 1))
				if err == nil || err2 == nil || err3 == nil {
					if !strings.HasPrefix(p.name, "empty") && !strings.HasPrefix(p.name, "counts") {
						t.Fatalf("got %v, %v, %v", err, err2, err3)
					}
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Fatalf("three operations took %s", took)
				}
				time.Sleep(20 * time.Millisecond)
			}
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 256<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
		})
	}
}

// What the guard lets through never makes the checks themselves fail, and whole frames come out as they went in.
func FuzzGuard(f *testing.F) {
	f.Add(frame(be32(0, 2000, 0, 7), be32(16), make([]byte, 17)), byte(14))
	f.Add(append(greeting(2000), frame(reply(be32(1)), be32(5), []byte{0}, be32(0))...), byte(14))
	f.Add(append(greeting(2000), frame(reply(be32(1)), be32(0x7fffffff))...), byte(12))
	f.Fuzz(func(t *testing.T, b []byte, op byte) {
		g := newGuardConn(pipeEnd{bytes.NewReader(b)}, time.Second)
		for xid := range int32(4) {
			g.ops[xid] = int32(op)
		}
		out, _ := io.ReadAll(g)
		if !bytes.HasPrefix(b, out) {
			t.Errorf("%d bytes in, %d others out", len(b), len(out))
		}
	})
}

// pipeEnd is a connection that only reads.
type pipeEnd struct{ io.Reader }

func (pipeEnd) Write(b []byte) (int, error)      { return len(b), nil }
func (pipeEnd) Close() error                     { return nil }
func (pipeEnd) LocalAddr() net.Addr              { return nil }
func (pipeEnd) RemoteAddr() net.Addr             { return nil }
func (pipeEnd) SetDeadline(time.Time) error      { return nil }
func (pipeEnd) SetReadDeadline(time.Time) error  { return nil }
func (pipeEnd) SetWriteDeadline(time.Time) error { return nil }

// Names are resolved at each dial, a server that can't be reached is passed over, and TLS learns the name.
func TestServersByName(t *testing.T) {
	var mu sync.Mutex
	dialed := map[string]int{}
	z, _, err := zk.Connect([]string{"x"}, time.Second, zk.WithLogInfo(false), zk.WithLogger(zkLog{zerolog.Nop()}),
		zk.WithHostProvider(&hosts{servers: []string{"no-such-host.invalid:1", "localhost:2"}, at: -1, last: -1}),
		zk.WithDialer(func(_, address string, _ time.Duration) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			dialed[address]++
			return nil, net.ErrClosed
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	eventually(t, "both were dialed", 10*time.Second, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return dialed["no-such-host.invalid:1"] > 0 && dialed["localhost:2"] > 0
	})
}
