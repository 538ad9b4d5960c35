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

	"redleaf/engine"
)

//go:embed page
var pageFiles embed.FS

var page = template.Must(template.ParseFS(pageFiles, "page/page.html"))

const (
	shownTags    = 30
	sampleEvery  = 2 * time.Second
	sparkSpan    = 5 * time.Minute
	longRunway   = 10 * time.Minute // a full bar: time enough for people to act
	shortRunway  = time.Minute
	barelyRunway = 5 * time.Second
)

// sampler remembers the rates of the tags shown, for their sparklines. It samples when somebody looks or scrapes, so that a server
// nobody watches does nothing.
type sampler struct {
	mu   sync.Mutex
	at   time.Time
	tags map[string][]sample
}

type sample struct {
	at   time.Time
	rate float64
}

// add takes a sample, unless the last one is fresh. A tag that is no longer shown is forgotten: the map stays small.
func (s *sampler) add(tags []engine.TagInfo, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.at) < sampleEvery*9/10 {
		return
	}
	s.at = now
	next := make(map[string][]sample, len(tags))
	for _, t := range tags {
		kept := s.tags[t.Tag]
		for len(kept) > 0 && now.Sub(kept[0].at) > sparkSpan {
			kept = kept[1:]
		}
		next[t.Tag] = append(kept[:len(kept):len(kept)], sample{now, t.Rate})
	}
	s.tags = next
}

// line draws a tag's rates into a box of 100 × 20, now at the right: all samples, but not less than half a minute.
func (s *sampler) line(tag string, now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.tags[tag]
	top, span := 1.0, 30*time.Second
	if len(list) > 0 {
		span = max(span, now.Sub(list[0].at))
	}
	for _, p := range list {
		top = max(top, p.rate)
	}
	var b strings.Builder
	for _, p := range list {
		x := 100 * (1 - now.Sub(p.at).Seconds()/span.Seconds())
		fmt.Fprintf(&b, "%.1f,%.1f ", min(max(x, 0), 100), 19-18*p.rate/top)
	}
	return strings.TrimSpace(b.String())
}

type pageData struct {
	Version, Uptime     string
	State, StateClass   string
	Reasons             []string
	Runway, RunwayNote  string
	RunwayClass         string
	Rate                string
	Issued, Waits       string
	Burnt               string
	Clients, MaxClients string
	Rejected            string
	SegmentOn           bool
	Store               []pageFact
	Tags                []pageTag
	More                int
	Try                 string // a first command to type
	SnowflakeOn         bool
	Snowflake           []pageFact
	Events              []pageEvent
	At                  string
}

type pageTag struct {
	Tag, State, Why, Class              string
	Rate, Spark, Runway                 string
	Bar                                 float64
	Last, Remaining, Span, Waits, Burnt string
}

type pageFact struct{ Name, Value, Class string }

type pageEvent struct{ Stamp, When, Level, Text string }

func (a *Admin) pageData(now time.Time) pageData {
	h, of := a.health()
	s := a.o.Engine.Stats()
	d := pageData{
		Version: a.o.Version, Uptime: age(s.Uptime), State: "ready", StateClass: "good", SegmentOn: h.Segment.On, SnowflakeOn: h.Snowflake.On,
		Issued: count(s.Segment.Issued + s.Snowflake.Issued), Waits: count(s.Segment.Waits), Burnt: count(s.Segment.Burnt),
		At: now.UTC().Format("15:04:05"), Try: tryCommand(a.o.Listen),
	}
	for _, name := range engines {
		if e := of[name]; e.On && !e.Ready {
			d.Reasons = append(d.Reasons, name+": "+e.Reason)
		}
	}
	switch {
	case h.Draining:
		d.State, d.StateClass = "stopping", "warn"
	case red(h, of, a.o.Require):
		d.State, d.StateClass = "not ready", "bad"
	case d.Reasons != nil: // of an engine that nobody requires
		d.State, d.StateClass = "ready in part", "warn"
	}
	if a.o.Server != nil {
		srv := a.o.Server.Stats()
		d.Clients, d.MaxClients, d.Rejected = count(uint64(srv.Clients)), count(uint64(srv.MaxClients)), count(srv.Rejected+srv.Refused)
	}
	if d.SegmentOn {
		a.pageTags(&d, s, now)
	}
	if d.SnowflakeOn {
		d.Snowflake = snowflakeFacts(s.Snowflake, now)
	}
	for _, e := range a.o.Events.last() {
		t := e.at.UTC()
		d.Events = append(d.Events, pageEvent{t.Format(time.RFC3339), t.Format("2006-01-02 15:04:05"), e.level, e.text})
	}
	return d
}

// pageTags fills in the tags and the one number an operator asks for first: how long the IDs in memory last.
func (a *Admin) pageTags(d *pageData, s engine.Stats, now time.Time) {
	tags := shownTagsOf(a.o.Engine, metricStopped, shownTags)
	a.rates.add(tags, now)
	least, which, rate := time.Duration(-1), "", 0.0
	for _, t := range tags {
		rate += t.Rate
		stopped := t.State == "regressed" || t.State == "missing"
		if t.Runway >= 0 && !stopped && (least < 0 || t.Runway < least) {
			least, which = t.Runway, t.Tag
		}
		p := pageTag{
			Tag: t.Tag, State: t.State, Rate: rateText(t.Rate), Spark: a.rates.line(t.Tag, now), Runway: "no demand", Bar: 1,
			Last: digits(t.Last), Remaining: digits(t.Remaining), Span: digits(t.Span), Waits: count(t.Waits), Burnt: count(t.Burnt),
		}
		switch {
		case stopped:
			p.Runway, p.Bar = "stopped", 0
		case t.Runway >= 0:
			p.Runway, p.Bar = age(t.Runway), min(1, t.Runway.Seconds()/longRunway.Seconds())
		}
		if t.Err != nil {
			p.Why, p.Class = t.Err.Error(), "bad"
		}
		d.Tags = append(d.Tags, p)
	}
	if s.Segment.Tags > len(tags) {
		d.More = s.Segment.Tags
	}
	d.Rate = rateText(rate)
	d.Runway, d.RunwayNote = "–", "no tag is in demand"
	if least >= 0 {
		d.Runway, d.RunwayNote, d.RunwayClass = age(least), "until '"+which+"' runs dry if the store died now", "good"
		switch {
		case least < barelyRunway:
			d.RunwayClass = "bad"
		case least < shortRunway:
			d.RunwayClass = "warn"
		}
	}
	store := pageFact{"store", "answers", "good"}
	if s.Segment.StoreErr != nil {
		store = pageFact{"store", "down for " + age(now.Sub(s.Segment.StoreErrSince)) + ": " + s.Segment.StoreErr.Error(), "bad"}
	}
	floors := pageFact{"floors in data_dir", "kept", ""}
	if s.Segment.FloorsErr != nil {
		floors = pageFact{"floors in data_dir", s.Segment.FloorsErr.Error(), "bad"}
	}
	d.Store = []pageFact{store,
		{"went back", times(uint64(max(s.Segment.Epoch, 0))), ""},
		{"refills", count(s.Segment.Refills), ""},
		{"refills that failed", count(s.Segment.RefillFailures), bad(s.Segment.RefillFailures > 0, "warn")},
		{"tags stopped", count(uint64(s.Segment.Stopped)), bad(s.Segment.Stopped > 0, "bad")},
		floors,
	}
	if s.Segment.Paused > 0 {
		d.Store = append(d.Store, pageFact{"grants paused for", age(s.Segment.Paused), "warn"})
	}
}

func snowflakeFacts(s engine.IDStatus, now time.Time) []pageFact {
	worker, window := "none", "–"
	if s.Worker >= 0 {
		worker = n64(s.Worker)
		window = age(time.UnixMilli(s.Window.Until).Sub(now))
	}
	f := []pageFact{
		{"state", s.State, bad(s.State != "serving", "bad")},
		{"worker number", worker, bad(s.Worker < 0, "bad")},
		{"registry", s.Registry + ", " + s.RegistryStatus.State, bad(s.RegistryStatus.State != "serving", "warn")},
		{"goes on without it for", window, ""},
		{"clock against monotonic time", offset(s.DriftMono), bad(s.DriftMono.Abs() > time.Second, "warn")},
	}
	if s.SkewOK {
		f = append(f, pageFact{"clock against the registry's", offset(s.Skew), bad(s.Skew.Abs() > time.Second, "warn")})
	}
	f = append(f,
		pageFact{"rollbacks waited", count(s.RollbacksWaited), bad(s.RollbacksWaited > 0, "warn")},
		pageFact{"rollbacks refused", count(s.RollbacksRefused), bad(s.RollbacksRefused > 0, "bad")},
		pageFact{"layout", s.Layout.String(), ""},
		pageFact{"years left", strconv.FormatFloat(s.YearsLeft, 'f', 1, 64), bad(s.YearsLeft < 1, "bad")},
		pageFact{"issued", count(s.Issued), ""},
	)
	if s.Reason != "" {
		f = append(f, pageFact{"why", s.Reason, "bad"})
	}
	return f
}

func bad(is bool, class string) string {
	if is {
		return class
	}
	return ""
}

func (a *Admin) statusPage(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		w.Header().Set("Referrer-Policy", "no-referrer")
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
		_, _ = w.Write(data) // the reader is gone if this fails
	}
}

// tryCommand is a first command for an instance that has not been used.
func tryCommand(listen string) string {
	if path, ok := strings.CutPrefix(listen, "unix:"); ok {
		return "redis-cli -s " + path + " INCR order"
	}
	if i := strings.LastIndexByte(listen, ':'); i >= 0 {
		return "redis-cli -p " + listen[i+1:] + " INCR order"
	}
	return "INCR order"
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

// offset is a clock's distance from another one.
func offset(d time.Duration) string {
	if d.Abs() < 10*time.Second {
		return fmt.Sprintf("%+d ms", d.Milliseconds())
	}
	return d.Round(time.Second).String()
}

// count groups digits by threes.
func count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// digits is count for numbers that are not below 0.
func digits(n int64) string { return count(uint64(max(n, 0))) }

func times(n uint64) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	}
	return count(n) + " times"
}

func rateText(r float64) string {
	if r > 0 && r < 10 {
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return count(uint64(r + 0.5))
}
