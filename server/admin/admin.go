// Package admin is Redleaf over HTTP, for operators and for people who come from Leaf: health, metrics, a status page,
// profiles, and Leaf's own paths. It draws IDs through package engine, with the same rights as the Redis protocol.
//
// Who may see what: the pages, metrics and probes are open to whoever reaches admin.listen, as those of other exporters are; they
// show tags and counts, and nothing secret (I13). What issues an ID or stops the world for a profile asks who is there.
package admin

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"redleaf/engine"
	"redleaf/server"
)

// Options says what is shown. Server may be nil in tests that need no RESP side.
type Options struct {
	Engine  *engine.Engine
	Server  *server.Server
	Require []string // "segment", "snowflake": engines without which /readyz is red
	LeafAPI bool
	Version string
	Listen  string  // an address for Redis clients, for the page to show; may be ""
	Events  *Events // the last log lines, for the page and the metrics; nil: none
}

// Admin is an http.Handler, safe for concurrent use.
type Admin struct {
	o      Options
	mux    *http.ServeMux
	rates  sampler
	rows   rowCache
	served leafCounts
}

// New wires the paths.
func New(o Options) *Admin {
	a := &Admin{o: o, mux: http.NewServeMux()}
	a.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) })
	a.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { a.ready(w, o.Require) })
	for _, name := range engines {
		a.mux.HandleFunc("GET /readyz/"+name, func(w http.ResponseWriter, _ *http.Request) { a.ready(w, []string{name}) })
	}
	a.mux.Handle("GET /metrics", a.metrics())
	a.mux.HandleFunc("GET /{$}", a.statusPage("page"))
	a.mux.HandleFunc("GET /live", a.statusPage("live"))
	a.mux.HandleFunc("GET /page.css", asset("page.css", "text/css; charset=utf-8"))
	a.mux.HandleFunc("GET /page.js", asset("page.js", "text/javascript; charset=utf-8"))
	a.mux.HandleFunc("GET /icon.svg", asset("icon.svg", "image/svg+xml"))
	a.mux.HandleFunc("GET "+leafDecode, a.decode)
	a.mux.HandleFunc("GET "+leafCache, a.cachePage)
	a.mux.HandleFunc("GET "+leafDB, a.dbPage)
	// Without /debug/pprof/cmdline: flags may hold a password (I13), and no tool needs it.
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		a.mux.HandleFunc(path, fromHere(h))
	}
	return a
}

func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.leafAPI(w, r) {
		return
	}
	a.mux.ServeHTTP(w, r)
}

// HTTPServer is the server around a handler: every phase has a limit, since anyone who reaches the port can hold a connection.
func HTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      2 * time.Minute, // /debug/pprof/profile takes its seconds
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
}

func fromHere(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if why := notFromHere(r); why != "" {
			http.Error(w, "profiles are for clients on this machine: "+why, http.StatusForbidden)
			return
		}
		h(w, r)
	}
}

// notFromHere says why a request is not one of a program on this machine, "" if it is. A loopback peer alone proves little: it may
// be a proxy that passes on what others sent, or a browser whose page had its name pointed at 127.0.0.1 after it was loaded.
func notFromHere(r *http.Request) string {
	switch host, _, err := net.SplitHostPort(r.RemoteAddr); {
	case err != nil || !loopback(host):
		return "the connection comes from " + r.RemoteAddr
	case r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Forwarded") != "":
		return "a proxy passed this request on"
	case !localHost(r.Host):
		return "the Host header names another machine"
	}
	return ""
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// localHost says whether a Host header means this machine.
func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	return strings.EqualFold(host, "localhost") || loopback(host)
}

var engines = []string{"segment", "snowflake"}

// health is the engines' health with a reason for everything that is not ready.
func (a *Admin) health() (h engine.Health, of map[string]*engine.EngineHealth) {
	h = a.o.Engine.Health()
	of = map[string]*engine.EngineHealth{"segment": &h.Segment, "snowflake": &h.Snowflake}
	for name, e := range of {
		switch {
		case e.Reason != "" || e.Ready:
		case !e.On && name == "segment":
			e.Reason = "the segment engine is off (segment.store)"
		case !e.On:
			e.Reason = "the snowflake engine is off (snowflake.registry)"
		case h.Draining:
			e.Reason = "this instance is stopping"
		}
	}
	return h, of
}

// red says whether an engine that is required is not ready.
func red(h engine.Health, of map[string]*engine.EngineHealth, require []string) bool {
	return h.Draining || slices.ContainsFunc(require, func(name string) bool { return of[name] == nil || !of[name].Ready })
}

// ready answers a probe: 200 when every engine required is ready, 503 with the reasons otherwise.
func (a *Admin) ready(w http.ResponseWriter, require []string) {
	h, of := a.health()
	code := http.StatusOK
	if red(h, of, require) {
		code = http.StatusServiceUnavailable
	}
	body := struct {
		Ready     bool                 `json:"ready"`
		Required  []string             `json:"required"`
		Draining  bool                 `json:"draining"`
		Segment   *engine.EngineHealth `json:"segment"`
		Snowflake *engine.EngineHealth `json:"snowflake"`
	}{code == http.StatusOK, append([]string{}, require...), h.Draining, of["segment"], of["snowflake"]}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the prober is gone if this fails
}
