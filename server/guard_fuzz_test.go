package server

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// Whatever the bytes, and however they are cut, a connection with a lane
// answers like one without.
func FuzzGuard(f *testing.F) {
	for i, s := range frameSeeds {
		f.Add([]byte(s), uint64(i), i%2 == 0)
	}
	for i, p := range lanePipelines {
		if len(p.in) < 10000 {
			f.Add([]byte(p.in), uint64(i), false)
		}
	}
	f.Add([]byte("AUTH x\r\n*11\r\n$4\r\nECHO\r\n"+incrs(2, "k")), uint64(1), true)

	serve := func(set func(*toy)) (s *toy, path string) {
		path = filepath.Join(f.TempDir(), "sock")
		l, err := net.Listen("unix", path)
		if err != nil {
			f.Fatal(err)
		}
		s = startToy(f, guardConfig{}, set)
		close(s.block)
		s.serve(s.g.Listener("unix", l))
		return s, path
	}
	ask := func(t *testing.T, s *toy, path string, in []byte, cut func() int) []byte {
		s.mu.Lock()
		clear(s.counter)
		s.mu.Unlock()
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(guardLimit))
		go func() {
			for len(in) > 0 {
				n, err := c.Write(in[:min(len(in), cut())])
				if err != nil {
					return
				}
				in = in[n:]
			}
			c.(*net.UnixConn).CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err, ok := err.(net.Error); ok && err.Timeout() {
			t.Fatalf("no end; got %q", got)
		}
		return got
	}
	type pair struct {
		with, without         *toy
		pathWith, pathWithout string
	}
	var servers [2]pair
	for i := range servers {
		p := &servers[i]
		p.with, p.pathWith = serve(func(s *toy) { s.lane, s.auth = true, i == 1 })
		p.without, p.pathWithout = serve(func(s *toy) { s.auth = i == 1 })
	}
	f.Fuzz(func(t *testing.T, in []byte, seed uint64, auth bool) {
		if bytes.Contains(bytes.ToLower(in), []byte("panic")) || len(in) > 200<<10 {
			return
		}
		p := servers[0]
		if auth {
			p = servers[1]
		}
		want := ask(t, p.without, p.pathWithout, in, func() int { return len(in) })
		rnd := rand.New(rand.NewPCG(seed, 4))
		most := 1 + rnd.IntN(len(in)+1)
		got := ask(t, p.with, p.pathWith, in, func() int { return 1 + rnd.IntN(most) })
		if !bytes.Equal(got, want) {
			t.Fatalf("%q, seed %d\nlane    %.1000q\nwithout %.1000q", in, seed, got, want)
		}
	})
}
