package server

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func TestHistogram(t *testing.T) {
	var h histogram
	for _, ns := range []int64{0, 1024, 1025, 2048, 2049, int64(time.Millisecond), int64(time.Second), int64(time.Hour)} {
		h.observe(ns)
	}
	got := newHistogram()
	h.addTo(&got)
	want := map[int]uint64{0: 2, 1: 2, 2: 1, 10: 1, 20: 1, 25: 1}
	for i, n := range got.Counts {
		if n != want[i] {
			t.Errorf("bucket %d holds %d, want %d", i, n, want[i])
		}
	}
	if got.Count != 8 || math.Abs(got.Sum-3601.001) > 0.001 || len(got.Bounds) != 25 || got.Bounds[0] != 1.024e-6 {
		t.Errorf("%+v", got)
	}
	if q := got.Quantile(0.5); q != 4.096e-6 {
		t.Errorf("the median is %v", q)
	}
	if q := (Histogram{}).Quantile(0.99); q != 0 {
		t.Errorf("of nothing: %v", q)
	}
}

// TestInfo: what clients and exporters read from INFO is there.
func TestInfo(t *testing.T) {
	r := startRig(t, rigOptions{Options: Options{Port: 6380, MaxClients: 100, Version: "9.9"}})
	c := r.dial()
	c.wantLine(":1\r\n", "INCR order")
	got := c.line("INFO")
	for _, line := range []string{
		"redis_version:7.2.4", "redis_mode:standalone", "run_id:" + r.server.runID, "tcp_port:6380", "redleaf_version:9.9",
		"connected_clients:1", "blocked_clients:0", "maxclients:100", "loading:0", "rejected_connections:0", "role:master", "connected_slaves:0",
		"cluster_enabled:0", "db0:keys=1,expires=0,avg_ttl=0", "total_connections_received:1", "total_commands_processed:2",
		"segment_state:ready", "segment_waits:1", "segment_issued:1", "snowflake_state:ready", "maxmemory_policy:noeviction",
	} {
		if !strings.Contains(got, "\r\n"+line+"\r\n") {
			t.Errorf("INFO lacks %q:\n%s", line, got)
		}
	}
	for _, name := range []string{"uptime_in_seconds", "process_id", "used_memory", "used_memory_human", "used_memory_rss", "instantaneous_ops_per_sec", "used_cpu_sys", "used_cpu_user", "total_net_input_bytes"} {
		if !strings.Contains(got, "\r\n"+name+":") {
			t.Errorf("INFO lacks %s", name)
		}
	}
	if !strings.Contains(c.line("INFO clients cpu"), "# CPU\r\n") || strings.Contains(c.line("INFO cpu"), "# Clients") {
		t.Error("sections by name")
	}
	c.wantLine("+OK\r\n", "CONFIG RESETSTAT")
	if got := c.line("INFO stats"); !strings.Contains(got, "total_connections_received:0\r\n") {
		t.Errorf("after RESETSTAT: %s", got)
	}
	if st := r.server.Stats(); st.Accepted != 1 {
		t.Errorf("RESETSTAT made the metrics fall: %+v", st)
	}
}

// TestWrongPasswordsAtSpeed: the log says it once a minute, and who knows the password notices nothing.
func TestWrongPasswordsAtSpeed(t *testing.T) {
	var log syncBuffer
	r := startRig(t, rigOptions{Options: Options{Password: "secret", Log: zerolog.New(&log)}})
	good := r.dial()
	good.wantLine("+OK\r\n", "AUTH secret")
	bad := r.dial()
	const n = 2000
	go bad.nc.Write([]byte(strings.Repeat(wire("AUTH", "hunter2\r\n+OK"), n)))
	for i := range n {
		wantReply(t, "AUTH", bad.reply(), "-"+errWrongPass+"\r\n")
		if i%100 == 0 {
			wantReply(t, "a bystander", good.line("INCR order"), fmt.Sprintf(":%d\r\n", i/100+1))
		}
	}
	if st := r.server.Stats(); st.AuthFailures != n {
		t.Errorf("%d failures counted", st.AuthFailures)
	}
	if got := log.String(); strings.Count(got, "wrong user or password") != 1 || strings.Contains(got, "hunter2") || strings.Contains(got, "secret") {
		t.Errorf("the log: %s", got)
	}
}
