package admin

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"redleaf/engine"
	"redleaf/segment"
	"redleaf/segment/storetest"
	"redleaf/server"
	"redleaf/snowflake"
	"redleaf/snowflake/workertest"
)

// rigOptions describes what stands behind the pages. The zero value is both engines and a server that everybody may use.
type rigOptions struct {
	db         *storetest.DB
	noSegment  bool
	noSnow     bool
	users      []server.User
	password   string
	autoCreate []string
	leafOff    bool
	require    []string
	starting   bool // do not wait until the engines serve
	clock      *workertest.Clock
}

// rig is the pages over real engines, whose store and registry are in memory.
type rig struct {
	t        *testing.T
	db       *storetest.DB
	registry *workertest.Mem
	engine   *engine.Engine
	admin    *Admin
	events   *Events
	log      zerolog.Logger
}

func start(t *testing.T, o rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, db: o.db, registry: workertest.NewMem(8), events: new(Events)}
	if r.db == nil {
		r.db = storetest.NewDB()
	}
	r.log = zerolog.New(io.Discard).Hook(r.events)
	eo := engine.Options{
		Wait: 2 * time.Second, StartTimeout: 0, MaxCount: 1000, MaxArray: 100,
		Layout: snowflake.Layout{Epoch: 1288834974657, TimeBits: 41, WorkerBits: 10, SequenceBits: 12},
	}
	if !o.noSegment {
		eo.Segment = segment.New(r.db.Open(), nil, segment.Options{
			AutoCreate: o.autoCreate, Step: 100, Check: 20 * time.Millisecond, MaxCount: 1000, MaxArray: 100, Log: r.log,
		})
		eo.Segment.Start()
	}
	if !o.noSnow {
		var clock snowflake.Clock = snowflake.SystemClock{}
		if o.clock != nil {
			clock = o.clock
		}
		var err error
		eo.Snowflake, err = snowflake.New(r.registry.Open("a"), clock, snowflake.Options{Layout: eo.Layout, ClockWait: 5 * time.Millisecond, Log: r.log})
		if err != nil {
			t.Fatal(err)
		}
		eo.Snowflake.Start()
	}
	r.engine = engine.New(eo)
	s, err := server.New(r.engine, server.Options{Password: o.password, Users: o.users, MaxClients: 100, MaxOutput: 1 << 20, Log: r.log})
	if err != nil {
		t.Fatal(err)
	}
	if o.require == nil {
		o.require = []string{"segment", "snowflake"}
	}
	r.admin = New(Options{Engine: r.engine, Server: s, Require: o.require, LeafAPI: !o.leafOff, Version: "v1.2.3", Listen: "127.0.0.1:6380", Events: r.events})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Shutdown(ctx)
		_ = r.engine.Close(ctx)
	})
	if !o.starting {
		r.wait("both engines serve", func() bool {
			h := r.engine.Health()
			return (o.noSegment || h.Segment.Ready) && (o.noSnow || h.Snowflake.Ready)
		})
	}
	return r
}

func (r *rig) wait(what string, is func() bool) {
	r.t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("waited in vain: %s", what)
		}
	}
}

// row writes a row as Leaf has it.
func (r *rig) row(tag string, max, step int64) {
	r.db.SetRow(segment.Row{Tag: tag, Max: max, Step: step})
}

// take draws n IDs as a client of the Redis side would.
func (r *rig) take(tag string, n int64) int64 {
	r.t.Helper()
	var wait engine.Wait
	defer wait.Reset()
	last, err := r.engine.Incr(&wait, []byte(tag), n)
	if err != nil {
		r.t.Fatalf("INCRBY %s %d: %v", tag, n, err)
	}
	return last
}

// get asks from this machine.
func (r *rig) get(path string, header ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	return r.ask("GET", path, "127.0.0.1:50000", header...)
}

func (r *rig) ask(method, path, peer string, header ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	q := httptest.NewRequest(method, path, nil)
	q.RemoteAddr, q.Host = peer, "127.0.0.1:6381"
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			q.Host = header[i+1]
		} else {
			q.Header.Set(header[i], header[i+1])
		}
	}
	w := httptest.NewRecorder()
	r.admin.ServeHTTP(w, q)
	return w
}

// raw sends bytes over a real connection, past every tidying that an HTTP client does, and returns the answer.
func (r *rig) raw(request string) (*http.Response, string) {
	r.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	srv := HTTPServer(r.admin)
	go srv.Serve(ln)
	defer srv.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, strings.ReplaceAll(request, "HOST", ln.Addr().String())); err != nil {
		r.t.Fatal(err)
	}
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return a, string(body)
}
