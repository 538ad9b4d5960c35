package server

import (
	"net"
	"strings"
	"testing"
	"time"
)

// TestLaneAllocations: from the socket to the reply nothing is allocated for a warm key, measured over a real connection whose
// client allocates nothing either.
func TestLaneAllocations(t *testing.T) {
	if raceDetector {
		t.Log("the race detector allocates: only run, not measured")
	}
	r := startRig(t, rigOptions{})
	for _, args := range [][]string{
		{"INCR", "order"}, {"INCRBY", "order", "1"}, {"INCRBY", "order", "3"}, {"SNOWFLAKE.NEXT"}, {"GET", "order"}, {"PING"},
	} {
		for _, deep := range []int{1, 64} {
			nc, err := net.Dial("tcp", r.addr)
			if err != nil {
				t.Fatal(err)
			}
			nc.SetDeadline(time.Now().Add(time.Minute))
			request := []byte(strings.Repeat(wire(args...), deep))
			buf := make([]byte, 64<<10)
			once := func() {
				if _, err := nc.Write(request); err != nil {
					t.Fatal(err)
				}
				lines := deep
				if args[0] == "SNOWFLAKE.NEXT" || args[0] == "GET" {
					lines *= 2
				}
				for lines > 0 {
					n, err := nc.Read(buf)
					if err != nil {
						t.Fatal(err)
					}
					for _, b := range buf[:n] {
						if b == '\n' {
							lines--
						}
					}
				}
			}
			for range 50 {
				once() // buffers, the tag's first spans
			}
			got := testing.AllocsPerRun(200, once)
			t.Logf("%v: %.2f allocations per %d commands", args, got, deep)
			// A refill or a pool emptied by the collector may fall into the run: less than one in ten commands' reads.
			if got > 2 && !raceDetector {
				t.Errorf("%v: %.2f allocations in %d commands, want none", args, got, deep)
			}
			nc.Close()
		}
	}
}
