package server

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"redleaf/engine"
	"redleaf/segment"
	"redleaf/segment/storetest"
)

// FuzzServer sends bytes to a whole server, cut in two: nothing panics, and the connection comes to its end when the client is
// gone (I14).
func FuzzServer(f *testing.F) {
	for i, row := range everyRow {
		f.Add([]byte(laneStream([]string{row.line, "INCR k"}, "k")), uint16(i))
	}
	for _, st := range laneStates {
		f.Add([]byte(laneStream(append(append(strings.Split(st.before, "|"), "INCR k"), strings.Split(st.after, "|")...), "k")), uint16(7))
	}
	alloc := segment.New(storetest.NewMem(), nil, segment.Options{AutoCreate: []string{"*"}})
	alloc.Start()
	f.Cleanup(func() { alloc.Close(context.Background()) })
	e := engine.New(engine.Options{Segment: alloc, Wait: 50 * time.Millisecond, MaxCount: 1e6, MaxArray: 1e4, Layout: layout63})
	f.Fuzz(func(t *testing.T, in []byte, at uint16) {
		s, err := New(e, Options{})
		if err != nil {
			t.Fatal(err)
		}
		l := newLaneListener()
		done := make(chan error, 1)
		go func() { done <- s.Serve(Listener{Listener: l}) }()
		ours, theirs := net.Pipe()
		l.conns <- theirs
		read := make(chan struct{})
		go func() {
			io.Copy(io.Discard, ours)
			close(read)
		}()
		cut := min(int(at), len(in))
		ours.SetWriteDeadline(time.Now().Add(5 * time.Second))
		ours.Write(in[:cut])
		ours.Write(in[cut:])
		ours.Close()
		<-read
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("a connection did not end: %v", err)
		}
		<-done
		if n := s.Stats().Panics; n != 0 {
			t.Errorf("%d panics", n)
		}
	})
}
