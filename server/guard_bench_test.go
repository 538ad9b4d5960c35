package server

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// benchLane answers everything with a constant.
type benchLane struct{}

func (benchLane) Begin(*guardConn) bool { return true }
func (benchLane) Hot(*frameCmd) bool    { return true }
func (benchLane) Serve(_ *guardConn, cmd *frameCmd, out []byte) ([]byte, bool) {
	if len(cmd.Arg(0)) == 4 && cmd.Len() == 2 && len(cmd.Arg(1)) > 0 {
		return append(out, ":1234567890123\r\n"...), true
	}
	return out, false
}

// BenchmarkGuard is the cost of one command from socket to reply, both ends of
// the connection and the trivial answer included, by the length of the
// pipeline.
func BenchmarkGuard(b *testing.B) {
	for _, kind := range []string{"socket", "pipe"} {
		for _, pipeline := range []int{1, 16, 128} {
			for _, lane := range []bool{true, false} {
				name := fmt.Sprintf("%s/%d/redcon", kind, pipeline)
				if lane {
					name = fmt.Sprintf("%s/%d/lane", kind, pipeline)
				}
				b.Run(name, func(b *testing.B) { benchmarkGuard(b, kind, pipeline, lane) })
			}
		}
	}
}

func benchmarkGuard(b *testing.B, kind string, pipeline int, lane bool) {
	s := startToy(b, guardConfig{}, func(s *toy) { s.bench = lane })
	var c net.Conn
	if kind == "pipe" {
		l := newPipeListener()
		s.serve(s.g.Listener("pipe", l))
		c = l.dial()
	} else {
		c = dial(b, s.addr)
	}
	in := []byte(incrs(pipeline, "order:id"))
	size := len(":1234567890123\r\n") * pipeline
	if !lane {
		in = []byte(strings.Repeat("*2\r\n$4\r\nECHO\r\n$10\r\norder:idxx\r\n", pipeline))
		size = len("$10\r\norder:idxx\r\n") * pipeline
	}
	out := make([]byte, size)
	ask := func() {
		if _, err := c.Write(in); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, out); err != nil {
			b.Fatal(err)
		}
	}
	ask()
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += pipeline {
		ask()
	}
	b.StopTimer()
	c.Close()
}

// From socket to reply a command of the lane allocates nothing.
func TestLaneAllocatesNothing(t *testing.T) {
	s := startToy(t, guardConfig{}, func(s *toy) { s.bench = true })
	c := dial(t, s.addr)
	for _, pipeline := range []int{1, 128, 1000} {
		in := []byte(incrs(pipeline, "order:id"))
		out := make([]byte, len(":1234567890123\r\n")*pipeline)
		allocs := testing.AllocsPerRun(200, func() {
			if _, err := c.Write(in); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, out); err != nil {
				t.Fatal(err)
			}
		})
		// The pools may lose a buffer to the garbage collector, or to another
		// processor.
		if allocs > 2 || pipeline == 1 && allocs > 0 {
			t.Errorf("%v allocations for %d commands", allocs, pipeline)
		}
	}
}
