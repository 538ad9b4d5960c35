package server

import (
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"time"
)

// infoSections are the sections of INFO, in Redis' order. The first line that holds "_version" must be redis_version: Netdata
// takes it for Redis' own (cases R11).
var infoSections = []struct {
	name string
	text func(*Server, *infoWriter)
	more bool // only with "all" or by name
}{
	{name: "server", text: infoServer},
	{name: "clients", text: infoClients},
	{name: "memory", text: infoMemory},
	{name: "persistence", text: infoPersistence},
	{name: "stats", text: infoStats},
	{name: "replication", text: infoReplication},
	{name: "cpu", text: infoCPU},
	{name: "modules", text: func(*Server, *infoWriter) {}},
	{name: "commandstats", text: infoCommandStats, more: true},
	{name: "errorstats", text: infoErrorStats},
	{name: "latencystats", text: infoLatencyStats, more: true},
	{name: "cluster", text: func(_ *Server, w *infoWriter) { w.line("cluster_enabled", 0) }},
	{name: "segment", text: infoSegment},
	{name: "snowflake", text: infoSnowflake},
	{name: "keyspace", text: infoKeyspace},
}

type infoWriter struct {
	strings.Builder
	c    *conn
	now  Stats
	zero Stats
}

func (w *infoWriter) line(name string, value any) { fmt.Fprintf(w, "%s:%v\r\n", name, value) }

func (c *conn) info(args [][]byte, out []byte) []byte {
	c.lane.publish(0) // what this read did before
	want := map[string]bool{}
	all, usual := false, len(args) == 1
	for _, a := range args[1:] {
		switch s := strings.ToLower(string(a)); s {
		case "all", "everything":
			all = true
		case "default":
			usual = true
		default:
			want[s] = true
		}
	}
	w := &infoWriter{c: c, now: c.s.Stats(), zero: *c.s.zero.Load()}
	if want["keyspace"] || all || usual {
		out = c.beforeWait(out) // it asks the store
		defer c.afterWait()
	}
	for _, s := range infoSections {
		if !all && !want[s.name] && (!usual || s.more) {
			continue
		}
		if w.Len() > 0 {
			w.WriteString("\r\n")
		}
		fmt.Fprintf(w, "# %s\r\n", sectionTitle(s.name))
		s.text(c.s, w)
	}
	return c.appendText(out, w.String())
}

func sectionTitle(name string) string {
	if name == "cpu" {
		return "CPU"
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

func infoServer(s *Server, w *infoWriter) {
	up := s.engine.Stats().Uptime
	w.line("redis_version", redisVersion)
	w.line("redis_git_sha1", "00000000")
	w.line("redis_git_dirty", 0)
	w.line("redis_build_id", 0)
	w.line("redis_mode", "standalone")
	w.line("redleaf_version", s.o.Version)
	w.line("os", runtime.GOOS+" "+runtime.GOARCH)
	w.line("arch_bits", 64)
	w.line("multiplexing_api", "go")
	w.line("go_version", runtime.Version())
	w.line("process_id", os.Getpid())
	w.line("process_supervised", "no")
	w.line("run_id", s.runID)
	w.line("tcp_port", s.o.Port)
	w.line("server_time_usec", time.Now().UnixMicro())
	w.line("uptime_in_seconds", int64(up.Seconds()))
	w.line("uptime_in_days", int64(up.Hours()/24))
	w.line("hz", 10)
	w.line("configured_hz", 10)
	w.line("executable", executable())
	w.line("config_file", s.o.ConfigFile)
	w.line("data_dir", s.o.DataDir)
}

func executable() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return path
}

func infoClients(s *Server, w *infoWriter) {
	pubsub, tracking := 0, 0
	for _, c := range s.clients() {
		if c.kind() == "pubsub" {
			pubsub++
		}
		if c.trackNow.Load() {
			tracking++
		}
	}
	w.line("connected_clients", w.now.Clients)
	w.line("cluster_connections", 0)
	w.line("maxclients", w.now.MaxClients)
	w.line("client_recent_max_input_buffer", 0)
	w.line("client_recent_max_output_buffer", 0)
	w.line("blocked_clients", 0)
	w.line("tracking_clients", tracking)
	w.line("pubsub_clients", pubsub)
	w.line("clients_in_timeout_table", 0)
}

func infoMemory(_ *Server, w *infoWriter) {
	sample := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(sample)
	used := sample[0].Value.Uint64()
	rss := sample[1].Value.Uint64() - sample[2].Value.Uint64()
	w.line("used_memory", used)
	w.line("used_memory_human", human(used))
	w.line("used_memory_rss", rss)
	w.line("used_memory_rss_human", human(rss))
	w.line("used_memory_peak", max(used, rss))
	w.line("used_memory_peak_human", human(max(used, rss)))
	w.line("used_memory_lua", 0)
	w.line("maxmemory", 0)
	w.line("maxmemory_human", "0B")
	w.line("maxmemory_policy", "noeviction")
	w.line("mem_fragmentation_ratio", fmt.Sprintf("%.2f", float64(rss)/float64(max(used, 1))))
	w.line("mem_allocator", "go")
}

func human(n uint64) string {
	switch f := float64(n); {
	case n < 1<<10:
		return fmt.Sprintf("%dB", n)
	case n < 1<<20:
		return fmt.Sprintf("%.2fK", f/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.2fM", f/(1<<20))
	default:
		return fmt.Sprintf("%.2fG", f/(1<<30))
	}
}

func infoPersistence(s *Server, w *infoWriter) {
	loading := 0
	if s.engine.Loading() {
		loading = 1
	}
	w.line("loading", loading)
	w.line("async_loading", 0)
	w.line("rdb_changes_since_last_save", 0)
	w.line("rdb_bgsave_in_progress", 0)
	w.line("rdb_last_save_time", 0)
	w.line("rdb_last_bgsave_status", "ok")
	w.line("aof_enabled", 0)
	w.line("aof_rewrite_in_progress", 0)
	w.line("aof_last_write_status", "ok")
}

func infoStats(s *Server, w *infoWriter) {
	var commands, before uint64
	for _, c := range w.now.Commands {
		commands += c.Calls
	}
	for _, c := range w.zero.Commands {
		before += c.Calls
	}
	var errors, errorsBefore uint64
	for _, e := range w.now.Errors {
		errors += e.Count
	}
	for _, e := range w.zero.Errors {
		errorsBefore += e.Count
	}
	w.line("total_connections_received", w.now.Accepted-w.zero.Accepted)
	w.line("total_commands_processed", commands-before)
	w.line("instantaneous_ops_per_sec", s.rate.at(commands))
	w.line("total_net_input_bytes", w.now.BytesIn-w.zero.BytesIn)
	w.line("total_net_output_bytes", w.now.BytesOut-w.zero.BytesOut)
	w.line("instantaneous_input_kbps", "0.00")
	w.line("instantaneous_output_kbps", "0.00")
	w.line("rejected_connections", w.now.Rejected-w.zero.Rejected)
	w.line("sync_full", 0)
	w.line("sync_partial_ok", 0)
	w.line("sync_partial_err", 0)
	w.line("expired_keys", 0)
	w.line("evicted_keys", 0)
	w.line("keyspace_hits", 0)
	w.line("keyspace_misses", 0)
	w.line("pubsub_channels", 0)
	w.line("pubsub_patterns", 0)
	w.line("latest_fork_usec", 0)
	w.line("total_error_replies", errors-errorsBefore)
	w.line("acl_access_denied_auth", w.now.AuthFailures-w.zero.AuthFailures)
	w.line("slow_waits", w.now.Waits.Count-w.zero.Waits.Count)
}

func infoReplication(s *Server, w *infoWriter) {
	w.line("role", "master")
	w.line("connected_slaves", 0)
	w.line("master_failover_state", "no-failover")
	w.line("master_replid", s.runID)
	w.line("master_replid2", strings.Repeat("0", 40))
	w.line("master_repl_offset", 0)
	w.line("second_repl_offset", -1)
	w.line("repl_backlog_active", 0)
	w.line("repl_backlog_size", 0)
	w.line("repl_backlog_first_byte_offset", 0)
	w.line("repl_backlog_histlen", 0)
}

func infoCPU(_ *Server, w *infoWriter) {
	user, sys := cpuTimes()
	w.line("used_cpu_sys", fmt.Sprintf("%.6f", sys.Seconds()))
	w.line("used_cpu_user", fmt.Sprintf("%.6f", user.Seconds()))
	w.line("used_cpu_sys_children", "0.000000")
	w.line("used_cpu_user_children", "0.000000")
}

func infoCommandStats(_ *Server, w *infoWriter) {
	before := make(map[string]CommandStats)
	for _, c := range w.zero.Commands {
		before[c.Name] = c
	}
	for _, c := range w.now.Commands {
		b := before[c.Name]
		calls, took := c.Calls-b.Calls, (c.Time - b.Time).Microseconds()
		if calls+c.Rejected-b.Rejected == 0 {
			continue
		}
		w.line("cmdstat_"+c.Name, fmt.Sprintf("calls=%d,usec=%d,usec_per_call=%.2f,rejected_calls=%d,failed_calls=%d",
			calls, took, float64(took)/float64(max(calls, 1)), c.Rejected-b.Rejected, c.Failed-b.Failed))
	}
}

func infoErrorStats(_ *Server, w *infoWriter) {
	before := make(map[string]uint64)
	for _, e := range w.zero.Errors {
		before[e.Word] = e.Count
	}
	for _, e := range w.now.Errors {
		if n := e.Count - before[e.Word]; n > 0 {
			w.line("errorstat_"+e.Word, fmt.Sprintf("count=%d", n))
		}
	}
}

// infoLatencyStats: time is taken per read and per wait, not per command, so these are the two there are.
func infoLatencyStats(_ *Server, w *infoWriter) {
	for _, h := range []struct {
		name string
		h    Histogram
	}{{"read", w.now.Reads}, {"wait", w.now.Waits}} {
		if h.h.Count > 0 {
			w.line("latency_percentiles_usec_"+h.name, fmt.Sprintf("p50=%.3f,p99=%.3f,p99.9=%.3f",
				h.h.Quantile(0.5)*1e6, h.h.Quantile(0.99)*1e6, h.h.Quantile(0.999)*1e6))
		}
	}
}

// Quantile is the upper bound, in seconds, of the bucket that holds the q-th part of what was counted; 0 when nothing was.
func (h Histogram) Quantile(q float64) float64 {
	want, seen := uint64(q*float64(h.Count)), uint64(0)
	for i, n := range h.Counts {
		seen += n
		if seen > want || seen == h.Count && n > 0 {
			return h.Bounds[min(i, len(h.Bounds)-1)]
		}
	}
	return 0
}

func infoSegment(s *Server, w *infoWriter) {
	h, st := s.engine.Health(), s.engine.Stats().Segment
	w.line("segment_state", engineState(h.Segment.On, h.Segment.Ready))
	w.line("segment_reason", oneLine(h.Segment.Reason))
	w.line("segment_tags", st.Tags)
	w.line("segment_issued", st.Issued)
	w.line("segment_refills", st.Refills)
	w.line("segment_refill_failures", st.RefillFailures)
	w.line("segment_waits", st.Waits)
	w.line("segment_burnt", st.Burnt)
	w.line("segment_regressed", st.Regressed)
}

func infoSnowflake(s *Server, w *infoWriter) {
	h, st := s.engine.Health(), s.engine.Stats().Snowflake
	w.line("snowflake_state", engineState(h.Snowflake.On, h.Snowflake.Ready))
	w.line("snowflake_reason", oneLine(h.Snowflake.Reason))
	w.line("snowflake_worker", st.Worker)
	w.line("snowflake_layout", s.engine.Layout())
	w.line("snowflake_issued", st.Issued)
	w.line("snowflake_rollbacks_waited", st.RollbacksWaited)
	w.line("snowflake_rollbacks_refused", st.RollbacksRefused)
}

func engineState(on, ready bool) string {
	switch {
	case !on:
		return "off"
	case ready:
		return "ready"
	}
	return "not-ready"
}

func oneLine(s string) string { return strings.NewReplacer("\r", " ", "\n", " ").Replace(s) }

// infoKeyspace leaves db0 out when there are no tags: Datadog divides by the number (cases R12). When the store can't be asked
// the section is empty too; INFO must work then.
func infoKeyspace(s *Server, w *infoWriter) {
	if n, err := s.engine.Count(&w.c.wait); err == nil && n > 0 {
		w.line("db0", fmt.Sprintf("keys=%d,expires=0,avg_ttl=0", n))
	}
}

// opsRate is commands per second between the last two times that INFO was asked, a second apart at least.
type opsRate struct {
	mu   sync.Mutex
	at1  int64
	n    uint64
	rate uint64
}

func (r *opsRate) at(n uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := monotonic(); now-r.at1 >= int64(time.Second) {
		r.rate = uint64(float64(n-r.n) / time.Duration(now-r.at1).Seconds())
		r.at1, r.n = now, n
	}
	return r.rate
}
