// Package admin is Redleaf over HTTP, for operators and for people who come from Leaf: health, metrics, a status page,
// profiles, and Leaf's own paths. It draws IDs through package engine, with the same rights as the Redis protocol.
package admin

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"redleaf/engine"
	"redleaf/server"
)

// pageTags is how many tags a page or a scrape lists: the busiest. Label sets stay bounded whatever clients do.
const pageTags = 100

// Options says what is shown. Server may be nil in tests that need no RESP side.
type Options struct {
	Engine  *engine.Engine
	Server  *server.Server
	Require []string // "segment", "snowflake": engines without which /readyz is red
	LeafAPI bool
	Version string
	Events  *Events // the last log lines, for the status page; nil: none
}

// Admin is an http.Handler, safe for concurrent use.
type Admin struct {
	o       Options
	mux     *http.ServeMux
	samples sampler
}

// New wires the paths.
func New(o Options) *Admin {
	a := &Admin{o: o, mux: http.NewServeMux()}
	a.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) })
	a.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { a.ready(w, o.Require) })
	for _, name := range []string{"segment", "snowflake"} {
		a.mux.HandleFunc("GET /readyz/"+name, func(w http.ResponseWriter, _ *http.Request) { a.ready(w, []string{name}) })
	}
	a.mux.Handle("GET /metrics", a.metrics())
	a.mux.HandleFunc("GET /{$}", a.statusPage("page"))
	a.mux.HandleFunc("GET /live", a.statusPage("live"))
	a.mux.HandleFunc("GET /page.css", asset("page.css", "text/css; charset=utf-8"))
	a.mux.HandleFunc("GET /page.js", asset("page.js", "text/javascript; charset=utf-8"))
	a.mux.HandleFunc("GET "+leafDecode, a.decode)
	a.mux.HandleFunc("GET "+leafCache, a.cachePage)
	a.mux.HandleFunc("GET "+leafDB, a.dbPage)
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		a.mux.HandleFunc(path, loopbackOnly(h))
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

func loopbackOnly(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !loopbackPeer(r) || !localHost(r.Host) {
			http.Error(w, "profiles are for clients on this machine", http.StatusForbidden)
			return
		}
		h(w, r)
	}
}

// ready answers a probe: 200 when every engine required is ready, 503 with the reasons otherwise.
func (a *Admin) ready(w http.ResponseWriter, require []string) {
	h := a.o.Engine.Health()
	code := http.StatusOK
	for name, e := range map[string]engine.EngineHealth{"segment": h.Segment, "snowflake": h.Snowflake} {
		if slices.Contains(require, name) && !e.Ready {
			code = http.StatusServiceUnavailable
		}
	}
	if h.Draining {
		code = http.StatusServiceUnavailable
	}
	body := struct {
		Ready     bool                `json:"ready"`
		Required  string              `json:"required"`
		Draining  bool                `json:"draining,omitempty"`
		Segment   engine.EngineHealth `json:"segment"`
		Snowflake engine.EngineHealth `json:"snowflake"`
	}{code == http.StatusOK, strings.Join(require, ","), h.Draining, h.Segment, h.Snowflake}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
