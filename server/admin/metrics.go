package admin

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"redleaf/engine"
	"redleaf/server"
)

// collector reads the engines' and the server's own counters when it is scraped, so that a metric costs the hot path nothing.
// Labels are bounded: the busiest tags, the rows of the command table, the words of errors.
type collector struct{ o Options }

func (a *Admin) metrics() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{a.o})
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}

// Describe sends nothing: the collector is unchecked, since which labels there are depends on what runs.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	m := sink{ch}
	m.gauge("build_info", "Always 1; the version is a label.", 1, "version", c.o.Version)
	c.health(m)
	if c.o.Engine.SegmentOn() {
		c.segment(m)
	}
	if c.o.Engine.SnowflakeOn() {
		c.snowflake(m)
	}
	if c.o.Server != nil {
		c.server(m, c.o.Server.Stats())
	}
}

func (c collector) health(m sink) {
	h := c.o.Engine.Health()
	for name, e := range map[string]engine.EngineHealth{"segment": h.Segment, "snowflake": h.Snowflake} {
		if e.On {
			m.gauge("ready", "1 while a request to the engine would be served.", flag(e.Ready), "engine", name)
		}
	}
}

func (c collector) segment(m sink) {
	s := c.o.Engine.Stats().Segment
	m.gauge("segment_tags", "Tags in memory.", float64(s.Tags))
	m.gauge("segment_tags_regressed", "Tags stopped because the store went back behind what was granted.", float64(s.Regressed))
	m.counter("segment_issued_total", "IDs handed out.", s.Issued)
	m.counter("segment_refills_total", "Refills by result.", s.Refills, "result", "granted")
	m.counter("segment_refills_total", "Refills by result.", s.RefillFailures, "result", "failed")
	m.counter("segment_waits_total", "Requests that waited for the store.", s.Waits)
	m.counter("segment_burnt_total", "IDs reserved and never handed out.", s.Burnt)
	m.gauge("segment_store_up", "0 while the store can't be asked.", flag(s.StoreErr == nil))
	m.gauge("segment_store_epoch", "How often the store was seen to go back.", float64(s.Epoch))
	for _, t := range c.o.Engine.Tags(pageTags) {
		m.counter("segment_tag_issued_total", "IDs handed out, of the busiest tags.", t.Issued, "tag", t.Tag)
		m.gauge("segment_tag_rate", "IDs per second.", t.Rate, "tag", t.Tag)
		m.gauge("segment_tag_remaining", "IDs in memory.", float64(t.Remaining), "tag", t.Tag)
		if t.Runway >= 0 {
			m.gauge("segment_tag_runway_seconds", "Time until the tag runs dry if the store is down, at its present rate.", t.Runway.Seconds(), "tag", t.Tag)
		}
		m.gauge("segment_tag_span_size", "IDs per refill.", float64(t.Span), "tag", t.Tag)
		m.gauge("segment_tag_floor", "Highest bound granted to this instance.", float64(t.Floor), "tag", t.Tag)
		m.gauge("segment_tag_regressed", "1 while the tag is stopped.", flag(strings.HasPrefix(t.State, "regressed")), "tag", t.Tag)
		m.counter("segment_tag_waits_total", "Requests that waited for the store.", t.Waits, "tag", t.Tag)
		m.counter("segment_tag_burnt_total", "IDs reserved and never handed out.", t.Burnt, "tag", t.Tag)
	}
}

func (c collector) snowflake(m sink) {
	s := c.o.Engine.Stats().Snowflake
	m.gauge("snowflake_worker", "Worker number held, -1 none.", float64(s.Worker))
	for _, state := range []string{"waiting", "serving", "clockback", "logical", "exhausted", "stopped"} {
		m.gauge("snowflake_state", "1 for the state the generator is in.", flag(s.State == state), "state", state)
	}
	m.counter("snowflake_issued_total", "Snowflakes handed out.", s.Issued)
	m.counter("snowflake_rollbacks_total", "Requests that met a clock which had stepped back.", s.RollbacksWaited, "outcome", "waited")
	m.counter("snowflake_rollbacks_total", "Requests that met a clock which had stepped back.", s.RollbacksRefused, "outcome", "refused")
	m.counter("snowflake_forward_jumps_total", "Steps of the clock ahead that were not followed at once.", s.ForwardJumps)
	m.counter("snowflake_workers_lost_total", "Worker numbers that were lost to another owner or an operator.", s.WorkersLost)
	m.gauge("snowflake_years_left", "Years until the time bits are used up.", s.YearsLeft)
	m.gauge("snowflake_clock_drift_seconds", "Wall clock minus monotonic clock since the start.", s.DriftMono.Seconds())
	if s.SkewOK {
		m.gauge("snowflake_clock_skew_seconds", "This machine's clock minus the registry's.", s.Skew.Seconds())
	}
	m.gauge("snowflake_registry_up", "1 while the registry can be asked.", flag(s.Session))
	if s.Worker >= 0 {
		m.gauge("snowflake_window_seconds", "Time left in which IDs flow without the registry.", time.Until(time.UnixMilli(s.Window.Until)).Seconds())
	}
	if s.Free >= 0 {
		m.gauge("snowflake_workers_free", "Worker numbers free to claim.", float64(s.Free))
	}
}

func (c collector) server(m sink, s server.Stats) {
	m.gauge("connections", "Clients connected.", float64(s.Clients))
	m.gauge("connections_limit", "max_clients.", float64(s.MaxClients))
	m.counter("connections_accepted_total", "Clients let in.", s.Accepted)
	m.counter("connections_refused_total", "Clients turned away, by reason.", s.Rejected, "reason", "max_clients")
	m.counter("connections_refused_total", "Clients turned away, by reason.", s.Refused, "reason", "protected_mode")
	m.counter("protocol_errors_total", "Connections closed because of what they sent.", s.ProtocolErrors)
	m.counter("panics_total", "Faults of ours that cost one connection each.", s.Panics)
	m.counter("auth_failures_total", "Wrong names or passwords.", s.AuthFailures)
	m.counter("limit_refusals_total", "Requests beyond a user's IDs per second.", s.LimitRefusals)
	m.counter("received_bytes_total", "Bytes from clients.", s.BytesIn)
	m.counter("sent_bytes_total", "Bytes to clients.", s.BytesOut)
	for _, row := range s.Commands {
		m.counter("commands_total", "Commands executed.", row.Calls, "command", row.Name)
		m.counter("commands_failed_total", "Commands that answered an error.", row.Failed, "command", row.Name)
		m.counter("commands_rejected_total", "Commands refused before they ran.", row.Rejected, "command", row.Name)
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
	names, values := split(labels)
	m.ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("redleaf_"+name, help, names, nil), kind, v, values...)
}

func (m sink) gauge(name, help string, v float64, labels ...string) {
	m.send(prometheus.GaugeValue, name, help, v, labels)
}

func (m sink) counter(name, help string, v uint64, labels ...string) {
	m.send(prometheus.CounterValue, name, help, float64(v), labels)
}

func (m sink) histogram(name, help string, h server.Histogram) {
	cumulative, sum := make(map[float64]uint64, len(h.Bounds)), uint64(0)
	for i, b := range h.Bounds {
		sum += h.Counts[i]
		cumulative[b] = sum
	}
	m.ch <- prometheus.MustNewConstHistogram(prometheus.NewDesc("redleaf_"+name, help, nil, nil), h.Count, h.Sum, cumulative)
}

func split(labels []string) (names, values []string) {
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	return names, values
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
