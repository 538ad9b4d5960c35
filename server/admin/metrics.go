package admin

import (
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"redleaf/engine"
	"redleaf/server"
)

// metricTags is how many tags a scrape or a page lists: the busiest. Label sets stay bounded whatever clients do.
const (
	metricTags    = 100
	metricStopped = 20 // of those that are stopped, which may be idle
)

// collector reads the engines' and the server's own counters when it is scraped, so that a metric costs the hot path nothing.
// Labels are bounded: some tags, the rows of the command table, the words of errors.
type collector struct{ a *Admin }

func (a *Admin) metrics() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{a})
	// Two scrapes at once are enough: each visits every tag.
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 2})
}

// Describe sends nothing: the collector is unchecked, since which labels there are depends on what runs.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	m, o := sink{ch}, c.a.o
	m.gauge("build_info", "Always 1; the version is a label.", 1, "version", o.Version)
	h := o.Engine.Health()
	m.gauge("draining", "1 while the instance is stopping.", flag(h.Draining))
	stats := o.Engine.Stats()
	if h.Segment.On {
		m.gauge("ready", "1 while a request to the engine would be served.", flag(h.Segment.Ready), "engine", "segment")
		c.segment(m, stats)
		c.tags(m)
	}
	if h.Snowflake.On {
		m.gauge("ready", "1 while a request to the engine would be served.", flag(h.Snowflake.Ready), "engine", "snowflake")
		snowflakeMetrics(m, stats.Snowflake)
	}
	if o.Server != nil {
		serverMetrics(m, o.Server.Stats())
	}
	for i, api := range engines {
		for outcome, n := range map[string]uint64{"issued": c.a.served.issued[i].Load(), "failed": c.a.served.failed[i].Load(), "refused": c.a.served.refused[i].Load()} {
			m.counter("leaf_requests_total", "Requests to Leaf's HTTP API by outcome.", n, "api", api, "outcome", outcome)
		}
	}
	if o.Events != nil {
		for _, level := range []zerolog.Level{zerolog.InfoLevel, zerolog.WarnLevel, zerolog.ErrorLevel} {
			m.counter("log_lines_total", "Lines logged by level.", o.Events.written(level), "level", level.String())
		}
	}
}

func (c collector) segment(m sink, stats engine.Stats) {
	s := stats.Segment
	m.gauge("segment_tags", "Tags in memory.", float64(s.Tags))
	m.gauge("segment_tags_stopped", "Tags stopped (REGRESSED) because their rows stand below what was granted.", float64(s.Stopped))
	m.counter("segment_regressions_total", "Times a tag was stopped because its row stood below what was granted.", s.Regressed)
	m.counter("segment_ids_issued_total", "IDs handed out.", s.Issued)
	m.counter("segment_ids_burnt_total", "IDs reserved that will not be handed out: gaps.", s.Burnt)
	m.counter("segment_refills_total", "Requests to the store for a new range, by result.", s.Refills, "result", "granted")
	m.counter("segment_refills_total", "Requests to the store for a new range, by result.", s.RefillFailures, "result", "failed")
	m.counter("segment_waits_total", "Requests that waited for the store.", s.Waits)
	m.counter("segment_warm_waits_total", "Requests that waited for the store although their tag was in use before.", s.WarmWaits)
	m.gauge("segment_store_up", "1 while the store answers.", flag(s.StoreErr == nil))
	if s.History != "" { // before the first answer nothing is known: a step from 0 would look like a store that went back
		m.gauge("segment_store_epoch", "How often the store was seen to go back.", float64(s.Epoch))
	}
	m.gauge("segment_grants_paused_seconds", "Time left until the store grants again after it went back.", s.Paused.Seconds())
	m.gauge("segment_floors_up", "1 while floors can be kept in data_dir.", flag(s.FloorsErr == nil))
	m.histogram("segment_refill_seconds", "Time of a request to the store for a new range.", server.Histogram{
		Bounds: engine.RefillBounds(), Counts: s.RefillBuckets[:], Sum: s.RefillTime.Seconds(), Count: sum(s.RefillBuckets[:]),
	})
}

func sum(counts []uint64) (n uint64) {
	for _, c := range counts {
		n += c
	}
	return n
}

// shownTagsOf lists the tags that people and scrapes see: those that are stopped, then the busiest.
func shownTagsOf(e *engine.Engine, stopped, most int) []engine.TagInfo {
	tags := e.Stopped(stopped)
	n := len(tags)
	for _, t := range e.Tags(most) {
		if !slices.ContainsFunc(tags[:n], func(s engine.TagInfo) bool { return s.Tag == t.Tag }) {
			tags = append(tags, t)
		}
	}
	return tags
}

func (c collector) tags(m sink) {
	tags := shownTagsOf(c.a.o.Engine, metricStopped, metricTags)
	c.a.rates.add(tags, time.Now()) // so that whoever opens the page sees what was before
	for _, t := range tags {
		m.counter("segment_tag_ids_issued_total", "IDs handed out, of the busiest tags.", t.Issued, "tag", t.Tag)
		m.counter("segment_tag_ids_burnt_total", "IDs reserved that will not be handed out, of the busiest tags.", t.Burnt, "tag", t.Tag)
		m.gauge("segment_tag_ids_per_second", "IDs handed out per second, over about ten seconds.", t.Rate, "tag", t.Tag)
		m.gauge("segment_tag_ids_remaining", "IDs in memory.", float64(t.Remaining), "tag", t.Tag)
		if t.Runway >= 0 {
			m.gauge("segment_tag_runway_seconds", "Time until the tag runs dry if the store is down, at its present rate; absent without demand.", t.Runway.Seconds(), "tag", t.Tag)
		}
		m.gauge("segment_tag_span_size", "IDs of the last refill.", float64(t.Span), "tag", t.Tag)
		m.gauge("segment_tag_floor", "Highest bound granted to this instance.", float64(t.Floor), "tag", t.Tag)
		m.gauge("segment_tag_stopped", "1 while the tag is stopped (REGRESSED).", flag(t.State == "regressed" || t.State == "missing"), "tag", t.Tag)
		m.counter("segment_tag_refills_total", "Requests to the store for a new range, by result.", t.Refills, "tag", t.Tag, "result", "granted")
		m.counter("segment_tag_refills_total", "Requests to the store for a new range, by result.", t.RefillFailures, "tag", t.Tag, "result", "failed")
		m.seconds("segment_tag_refill_seconds_total", "Time of all requests to the store.", t.RefillTime, "tag", t.Tag)
		m.counter("segment_tag_waits_total", "Requests that waited for the store.", t.Waits, "tag", t.Tag)
		m.seconds("segment_tag_wait_seconds_total", "Time that requests waited for the store.", t.WaitTime, "tag", t.Tag)
	}
}

func snowflakeMetrics(m sink, s engine.IDStatus) {
	m.gauge("snowflake_worker", "Worker number held, -1 none.", float64(s.Worker))
	for _, state := range []string{"waiting", "serving", "clockback", "logical", "exhausted", "stopped"} {
		m.gauge("snowflake_state", "1 for the state the generator is in.", flag(s.State == state), "state", state)
	}
	for _, state := range []string{"waiting", "serving", "autonomous", "fenced", "stopped"} {
		m.gauge("snowflake_registry_state", "1 for the state the registry of worker numbers is in.", flag(s.RegistryStatus.State == state), "state", state)
	}
	m.gauge("snowflake_registry_up", "1 while the registry can be asked.", flag(s.Session))
	m.counter("snowflake_ids_issued_total", "Snowflakes handed out.", s.Issued)
	m.counter("snowflake_rollbacks_total", "Requests that met a clock which had stepped back, by outcome.", s.RollbacksWaited, "outcome", "waited")
	m.counter("snowflake_rollbacks_total", "Requests that met a clock which had stepped back, by outcome.", s.RollbacksRefused, "outcome", "refused")
	m.counter("snowflake_forward_jumps_total", "Steps of the clock ahead that were not followed at once.", s.ForwardJumps)
	m.gauge("snowflake_clock_doubted", "1 while a step of the clock ahead is not followed.", flag(s.Doubted))
	m.counter("snowflake_overflows_total", "Waits for the next millisecond because one was used up.", s.Overflows)
	m.counter("snowflake_extensions_total", "Windows made longer, by result.", s.Extensions, "result", "granted")
	m.counter("snowflake_extensions_total", "Windows made longer, by result.", s.ExtensionErrors, "result", "failed")
	m.counter("snowflake_workers_lost_total", "Worker numbers lost to another owner or an operator.", s.WorkersLost)
	m.gauge("snowflake_years_left", "Years until the time bits are used up.", s.YearsLeft)
	m.gauge("snowflake_clock_drift_seconds", "Wall clock minus monotonic clock since the start.", s.DriftMono.Seconds())
	m.gauge("snowflake_clock_ahead_seconds", "How far the last ID's time is ahead of the clock.", s.Ahead.Seconds())
	if s.SkewOK {
		m.gauge("snowflake_clock_skew_seconds", "This machine's clock minus the registry's.", s.Skew.Seconds())
	}
	if s.Worker >= 0 {
		m.gauge("snowflake_window_seconds", "Time left in which IDs flow without the registry.", time.Until(time.UnixMilli(s.Window.Until)).Seconds())
	}
	if s.Free >= 0 {
		m.gauge("snowflake_workers_free", "Worker numbers free to claim.", float64(s.Free))
	}
	m.gauge("snowflake_workers", "Worker numbers there are.", float64(s.Total))
}

func serverMetrics(m sink, s server.Stats) {
	m.gauge("connections", "Clients connected.", float64(s.Clients))
	m.gauge("connections_limit", "Most clients at a time (max_clients).", float64(s.MaxClients))
	m.counter("connections_accepted_total", "Clients let in.", s.Accepted)
	m.counter("connections_refused_total", "Clients turned away, by reason.", s.Rejected, "reason", "max_clients")
	m.counter("connections_refused_total", "Clients turned away, by reason.", s.Refused, "reason", "protected_mode")
	m.counter("protocol_errors_total", "Connections closed because of what they sent.", s.ProtocolErrors)
	m.counter("panics_total", "Faults of ours that cost one connection each.", s.Panics)
	m.counter("auth_failures_total", "Wrong names or passwords.", s.AuthFailures)
	m.counter("limit_refusals_total", "Requests beyond a user's IDs per second.", s.LimitRefusals)
	m.counter("received_bytes_total", "Bytes from clients.", s.BytesIn)
	m.counter("sent_bytes_total", "Bytes to clients.", s.BytesOut)
	m.gauge("paused", "1 while CLIENT PAUSE holds commands back.", flag(s.Paused))
	for _, row := range s.Commands {
		m.counter("commands_total", "Commands executed.", row.Calls, "command", row.Name)
		m.counter("commands_failed_total", "Commands that answered an error.", row.Failed, "command", row.Name)
		m.counter("commands_rejected_total", "Commands refused before they ran.", row.Rejected, "command", row.Name)
		m.seconds("command_seconds_total", "Time of the reads that a command was part of, in proportion.", row.Time, "command", row.Name)
	}
	for _, e := range s.Errors {
		m.counter("errors_total", "Error replies by their first word.", e.Count, "word", e.Word)
	}
	m.histogram("read_seconds", "From the bytes' arrival to the last reply, per read: all commands that came in together.", s.Reads)
	m.histogram("wait_seconds", "Time of the commands that waited for an engine.", s.Waits)
}

// sink sends metrics under Redleaf's prefix. Labels come in pairs.
type sink struct{ ch chan<- prometheus.Metric }

func (m sink) send(kind prometheus.ValueType, name, help string, v float64, labels []string) {
	var names, values []string
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	m.ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("redleaf_"+name, help, names, nil), kind, v, values...)
}

func (m sink) gauge(name, help string, v float64, labels ...string) {
	m.send(prometheus.GaugeValue, name, help, v, labels)
}

func (m sink) counter(name, help string, v uint64, labels ...string) {
	m.send(prometheus.CounterValue, name, help, float64(v), labels)
}

func (m sink) seconds(name, help string, d time.Duration, labels ...string) {
	m.send(prometheus.CounterValue, name, help, d.Seconds(), labels)
}

func (m sink) histogram(name, help string, h server.Histogram) {
	cumulative, n := make(map[float64]uint64, len(h.Bounds)), uint64(0)
	for i, b := range h.Bounds {
		n += h.Counts[i]
		cumulative[b] = n
	}
	m.ch <- prometheus.MustNewConstHistogram(prometheus.NewDesc("redleaf_"+name, help, nil, nil), h.Count, h.Sum, cumulative)
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
