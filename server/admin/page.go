package admin

import (
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"redleaf/engine"
)

//go:embed page
var pageFiles embed.FS

var page = template.Must(template.ParseFS(pageFiles, "page/page.html"))

const (
	shownTags   = 30
	shownEvents = 20
	samples     = 60 // of the sparkline: two minutes at one every two seconds
	sampleEvery = 2 * time.Second
	longRunway  = 10 * time.Minute // a full bar: time enough for people to act
)

// Events keeps the last log lines for the page. It is a zerolog.Hook; the message alone is kept, which never holds a secret (I13).
type Events struct {
	mu   sync.Mutex
	ring []event
}

type event struct {
	at    time.Time
	level string
	text  string
}

// Run implements zerolog.Hook.
func (e *Events) Run(_ *zerolog.Event, level zerolog.Level, msg string) {
	if level < zerolog.InfoLevel || level > zerolog.PanicLevel || msg == "" {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ring = append(e.ring, event{time.Now(), level.String(), msg})
	if len(e.ring) > shownEvents {
		e.ring = append(e.ring[:0], e.ring[1:]...)
	}
}

// last returns the events, newest first.
func (e *Events) last() []event {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]event, 0, len(e.ring))
	for i := len(e.ring) - 1; i >= 0; i-- {
		out = append(out, e.ring[i])
	}
	return out
}

// sampler remembers the rates of the tags shown, for their sparklines. It samples when somebody looks and at most every two
// seconds, so that a server nobody watches does nothing.
type sampler struct {
	mu    sync.Mutex
	at    time.Time
	rates map[string][]float64
}

func (s *sampler) sample(tags []engine.TagInfo, now time.Time) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.at) >= sampleEvery-100*time.Millisecond {
		s.at = now
		next := make(map[string][]float64, len(tags)) // a tag that is no longer shown is forgotten: the map stays small
		for _, t := range tags {
			r := append(s.rates[t.Tag], t.Rate)
			next[t.Tag] = r[max(0, len(r)-samples):]
		}
		s.rates = next
	}
	out := make(map[string]string, len(tags))
	for _, t := range tags {
		out[t.Tag] = polyline(s.rates[t.Tag])
	}
	return out
}

// polyline draws rates into a box of 60 × 16, the newest at the right.
func polyline(rates []float64) string {
	top := 1.0
	for _, r := range rates {
		top = max(top, r)
	}
	var b strings.Builder
	for i, r := range rates {
		fmt.Fprintf(&b, "%d,%.1f ", samples-len(rates)+i, 15-14*r/top)
	}
	return b.String()
}

type pageData struct {
	Version, Uptime     string
	Ready, Draining     bool
	Reasons             []string
	Runway, RunwayNote  string
	RunwayClass         string
	Rate, Issued        string
	Waits, Burnt        string
	Clients, MaxClients int
	Rejected            uint64
	SegmentOn           bool
	Tags                []pageTag
	More                int
	SnowflakeOn         bool
	Snowflake           []pageFact
	Events              []pageEvent
}

type pageTag struct {
	Tag, State, Why, Class              string
	Rate, Spark, Runway                 string
	Bar                                 float64
	Last, Remaining, Span, Waits, Burnt string
}

type pageFact struct{ Name, Value, Class string }

type pageEvent struct{ When, Level, Text string }

func (a *Admin) pageData(now time.Time) pageData {
	h := a.o.Engine.Health()
	s := a.o.Engine.Stats()
	d := pageData{
		Version: a.o.Version, Uptime: age(s.Uptime), Draining: h.Draining, Ready: !h.Draining,
		SegmentOn: h.Segment.On, SnowflakeOn: h.Snowflake.On,
		Issued: count(s.Segment.Issued + s.Snowflake.Issued), Waits: count(s.Segment.Waits), Burnt: count(s.Segment.Burnt),
	}
	for name, e := range map[string]engine.EngineHealth{"segment": h.Segment, "snowflake": h.Snowflake} {
		if e.On && !e.Ready {
			d.Ready = false
			if e.Reason != "" {
				d.Reasons = append(d.Reasons, name+": "+e.Reason)
			}
		}
	}
	if a.o.Server != nil {
		srv := a.o.Server.Stats()
		d.Clients, d.MaxClients, d.Rejected = srv.Clients, srv.MaxClients, srv.Rejected+srv.Refused
	}
	if d.SegmentOn {
		a.pageTags(&d, s.Segment.Tags, now)
	}
	if d.SnowflakeOn {
		d.Snowflake = snowflakeFacts(s.Snowflake, now)
	}
	for _, e := range a.o.Events.last() {
		d.Events = append(d.Events, pageEvent{e.at.UTC().Format("2006-01-02 15:04:05"), e.level, e.text})
	}
	return d
}

// pageTags fills in the tags and the one number an operator asks for first: how long the IDs in memory last.
func (a *Admin) pageTags(d *pageData, all int, now time.Time) {
	tags := a.o.Engine.Tags(shownTags)
	sparks := a.samples.sample(tags, now)
	least, which, rate := time.Duration(-1), "", 0.0
	for _, t := range tags {
		rate += t.Rate
		if t.Runway >= 0 && (least < 0 || t.Runway < least) {
			least, which = t.Runway, t.Tag
		}
		p := pageTag{
			Tag: t.Tag, State: t.State, Rate: rateText(t.Rate), Spark: sparks[t.Tag], Runway: runway(t.Runway), Bar: 1,
			Last: n64(t.Last), Remaining: n64(t.Remaining), Span: n64(t.Span), Waits: count(t.Waits), Burnt: count(t.Burnt),
		}
		if t.Runway >= 0 {
			p.Bar = min(1, t.Runway.Seconds()/longRunway.Seconds())
		}
		if t.Err != nil {
			p.Why, p.Class = t.Err.Error(), "bad"
		}
		d.Tags = append(d.Tags, p)
	}
	if all > len(tags) {
		d.More = all
	}
	d.Rate = rateText(rate)
	switch {
	case least < 0:
		d.Runway, d.RunwayNote = "–", "no tag is in demand"
	default:
		d.Runway, d.RunwayNote = runway(least), "until '"+which+"' runs dry if the store died now"
		d.RunwayClass = "good"
		if least < time.Minute {
			d.RunwayClass = "warn"
		}
		if least < 5*time.Second {
			d.RunwayClass = "bad"
		}
	}
}

func snowflakeFacts(s engine.IDStatus, now time.Time) []pageFact {
	worker, window := "none", "–"
	if s.Worker >= 0 {
		worker = n64(s.Worker)
		window = age(time.UnixMilli(s.Window.Until).Sub(now))
	}
	class := func(bad bool) string {
		if bad {
			return "bad"
		}
		return ""
	}
	f := []pageFact{
		{"state", s.State, class(s.State != "serving" && s.State != "logical")},
		{"worker number", worker, class(s.Worker < 0)},
		{"registry", s.Registry, ""},
		{"window left without it", window, ""},
		{"clock against monotonic time", s.DriftMono.Round(time.Millisecond).String(), ""},
		{"rollbacks waited / refused", count(s.RollbacksWaited) + " / " + count(s.RollbacksRefused), class(s.RollbacksRefused > 0)},
		{"layout", s.Layout.String(), ""},
		{"years left", strconv.FormatFloat(s.YearsLeft, 'f', 1, 64), class(s.YearsLeft < 1)},
		{"issued", count(s.Issued), ""},
	}
	if s.SkewOK {
		f = append(f, pageFact{"clock against the registry's", s.Skew.Round(time.Millisecond).String(), ""})
	}
	if s.Reason != "" {
		f = append(f, pageFact{"why", s.Reason, "bad"})
	}
	return f
}

func (a *Admin) statusPage(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = page.ExecuteTemplate(w, name, a.pageData(time.Now())) // the reader is gone if this fails
	}
}

// asset serves a file of the page.
func asset(name, kind string) http.HandlerFunc {
	data, err := pageFiles.ReadFile("page/" + name)
	if err != nil {
		panic(err) // embedded: the binary could not have been built
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Write(data)
	}
}

func runway(d time.Duration) string {
	if d < 0 {
		return "no demand"
	}
	return age(d)
}

// age rounds to what a person reads at a glance.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + age(-d)
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	case d < 1000*24*time.Hour:
		return fmt.Sprintf("%.0f days", d.Hours()/24)
	}
	return fmt.Sprintf("%.0f years", d.Hours()/24/365)
}

// count groups digits by threes.
func count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

func rateText(r float64) string {
	if r < 10 {
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return count(uint64(r))
}
