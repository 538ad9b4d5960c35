package admin

import (
	"strings"
	"testing"
	"time"

	"redleaf/segment/storetest"
	"redleaf/snowflake/workertest"
)

func TestReadyWhenBothServe(t *testing.T) {
	r := start(t, rigOptions{})
	for path, want := range map[string]string{
		"/livez":            "ok\n",
		"/readyz":           `{"ready":true,"required":["segment","snowflake"],"draining":false,"segment":{"on":true,"ready":true},"snowflake":{"on":true,"ready":true}}` + "\n",
		"/readyz/segment":   `{"ready":true,"required":["segment"],"draining":false,"segment":{"on":true,"ready":true},"snowflake":{"on":true,"ready":true}}` + "\n",
		"/readyz/snowflake": `{"ready":true,"required":["snowflake"],"draining":false,"segment":{"on":true,"ready":true},"snowflake":{"on":true,"ready":true}}` + "\n",
	} {
		if a := r.get(path); a.Code != 200 || a.Body.String() != want {
			t.Errorf("%s: %d %s\nwant 200 %s", path, a.Code, a.Body, want)
		}
	}
	if got := r.get("/readyz").Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("/readyz may be cached: %q", got)
	}
}

// TestReadyOff: an engine that is off is no reason to be red, unless somebody asks for it by name.
func TestReadyOff(t *testing.T) {
	r := start(t, rigOptions{noSnow: true, require: []string{"segment"}})
	if a := r.get("/readyz"); a.Code != 200 {
		t.Errorf("/readyz: %d %s", a.Code, a.Body)
	}
	if a := r.get("/readyz/snowflake"); a.Code != 503 || !strings.Contains(a.Body.String(), "the snowflake engine is off (snowflake.registry)") {
		t.Errorf("/readyz/snowflake: %d %s", a.Code, a.Body)
	}
}

// TestReadyWhileStarting: alive at once, ready when the store has answered, and the reason in between.
func TestReadyWhileStarting(t *testing.T) {
	db := storetest.NewDB()
	db.SetDown(storetest.ErrLost)
	r := start(t, rigOptions{db: db, noSnow: true, require: []string{"segment"}, starting: true})
	r.wait("the reason is the store's", func() bool { return strings.Contains(r.get("/readyz").Body.String(), "the connection was lost") })
	if a := r.get("/readyz"); a.Code != 503 {
		t.Errorf("/readyz: %d while the store was never reached", a.Code)
	}
	if a := r.get("/livez"); a.Code != 200 {
		t.Errorf("/livez: %d", a.Code)
	}
	db.SetDown(nil)
	r.wait("green", func() bool { return r.get("/readyz").Code == 200 })
}

// TestReadyWithoutStore: readiness falls when a request would fail, not when the store hiccups.
func TestReadyWithoutStore(t *testing.T) {
	r := start(t, rigOptions{noSnow: true, require: []string{"segment"}})
	r.row("order", 1, 1000)
	r.take("order", 1)
	r.db.SetDown(storetest.ErrLost)
	r.wait("the store is known to be down", func() bool { return r.engine.Stats().Segment.StoreErr != nil })
	if a := r.get("/readyz"); a.Code != 200 {
		t.Fatalf("/readyz: %d %s while IDs are in memory", a.Code, a.Body)
	}
	for {
		last, ok := r.engine.TryIncr([]byte("order"), 1)
		if !ok {
			break
		}
		_ = last
	}
	r.wait("red once they are used up", func() bool { return r.get("/readyz/segment").Code == 503 })
	if got := r.get("/readyz").Body.String(); !strings.Contains(got, "the connection was lost") {
		t.Errorf("the reason is not told: %s", got)
	}
	r.db.SetDown(nil)
	r.wait("green again", func() bool { return r.get("/readyz").Code == 200 })
}

// TestReadyWithAStoppedTag: one REGRESSED tag never turns an instance red; people see it.
func TestReadyWithAStoppedTag(t *testing.T) {
	r := start(t, rigOptions{noSnow: true, require: []string{"segment"}})
	r.row("order", 1000, 1000)
	r.row("other", 1, 1000)
	r.take("order", 1)
	r.take("other", 1)
	r.row("order", 5, 1000)
	r.wait("the tag is stopped", func() bool { return r.engine.Stats().Segment.Stopped == 1 })
	if a := r.get("/readyz"); a.Code != 200 {
		t.Errorf("/readyz: %d %s", a.Code, a.Body)
	}
	if got := r.get("/").Body.String(); !strings.Contains(got, "tag &#39;order&#39; went back") {
		t.Errorf("the page does not say why the tag is stopped")
	}
	metrics := r.get("/metrics").Body.String()
	for _, want := range []string{"redleaf_segment_tags_stopped 1\n", `redleaf_segment_tag_stopped{tag="order"} 1` + "\n", `redleaf_segment_tag_stopped{tag="other"} 0` + "\n"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

func TestReadyWithAClockBack(t *testing.T) {
	clock := workertest.NewRunningClock(time.Now().UnixMilli())
	r := start(t, rigOptions{noSegment: true, require: []string{"snowflake"}, clock: clock})
	if a := r.get("/api/snowflake/get/x"); a.Code != 200 {
		t.Fatalf("%d %s", a.Code, a.Body)
	}
	clock.Step(-time.Hour)
	if a := r.get("/readyz"); a.Code != 503 || !strings.Contains(a.Body.String(), "behind the last ID") {
		t.Errorf("/readyz: %d %s", a.Code, a.Body)
	}
	if a := r.get("/api/snowflake/get/x"); a.Code != 500 || !strings.Contains(a.Body.String(), "Result{id=-3, status=EXCEPTION}") {
		t.Errorf("Leaf's API: %d %s", a.Code, a.Body)
	}
	clock.Step(time.Hour)
	r.wait("green", func() bool { return r.get("/readyz").Code == 200 })
}

func TestReadyWhileStopping(t *testing.T) {
	r := start(t, rigOptions{})
	r.engine.Drain()
	a := r.get("/readyz")
	want := `{"ready":false,"required":["segment","snowflake"],"draining":true,"segment":{"on":true,"ready":false,"reason":"this instance is stopping"},"snowflake":{"on":true,"ready":false,"reason":"this instance is stopping"}}` + "\n"
	if a.Code != 503 || a.Body.String() != want {
		t.Errorf("%d %s\nwant 503 %s", a.Code, a.Body, want)
	}
	if a := r.get("/livez"); a.Code != 200 {
		t.Errorf("/livez: %d: a stop must not look like a hang", a.Code)
	}
}

func TestProfiles(t *testing.T) {
	r := start(t, rigOptions{})
	if a := r.get("/debug/pprof/goroutine?debug=1"); a.Code != 200 || !strings.Contains(a.Body.String(), "goroutine profile: total") {
		t.Errorf("from this machine: %d %.80s", a.Code, a.Body)
	}
	if a := r.get("/debug/pprof/cmdline"); a.Code != 404 {
		t.Errorf("the command line, which may hold a password, is served: %d", a.Code)
	}
	for name, a := range map[string]int{
		"another machine":      r.ask("GET", "/debug/pprof/", "192.0.2.7:4444").Code,
		"behind a proxy":       r.get("/debug/pprof/", "X-Forwarded-For", "192.0.2.7").Code,
		"behind a newer proxy": r.get("/debug/pprof/", "Forwarded", "for=192.0.2.7").Code,
		"a rebound name":       r.get("/debug/pprof/", "Host", "evil.example:6381").Code,
	} {
		if a != 403 {
			t.Errorf("%s: %d, want 403", name, a)
		}
	}
	for _, host := range []string{"localhost:6381", "LOCALHOST", "127.0.0.1", "[::1]:6381", "127.8.8.8:1"} {
		if a := r.get("/debug/pprof/", "Host", host); a.Code != 200 {
			t.Errorf("Host %s: %d", host, a.Code)
		}
	}
	if a := r.ask("GET", "/debug/pprof/", "[::1]:4444"); a.Code != 200 {
		t.Errorf("over IPv6: %d", a.Code)
	}
}

// TestReadyDuringThePause: after a failover no grants are given for a while. Who has IDs in memory stays green, who has none is red.
func TestReadyDuringThePause(t *testing.T) {
	db := storetest.NewDB()
	db.Check, db.Skip = time.Minute, 1000
	r := start(t, rigOptions{db: db, noSnow: true, require: []string{"segment"}})
	r.row("order", 1, 1000)
	idle := start(t, rigOptions{db: db, noSnow: true, require: []string{"segment"}})
	r.take("order", 1)
	db.Failover(db.Backup())
	r.wait("the pause is known", func() bool { return r.engine.Stats().Segment.Paused > 0 && idle.engine.Stats().Segment.Paused > 0 })
	if a := r.get("/readyz"); a.Code != 200 {
		t.Errorf("with IDs in memory: %d %s", a.Code, a.Body)
	}
	if a := idle.get("/readyz"); a.Code != 503 || !strings.Contains(a.Body.String(), "no grants for another") {
		t.Errorf("without: %d %s", a.Code, a.Body)
	}
	if got := r.get("/").Body.String(); !strings.Contains(got, "grants paused for") {
		t.Error("the page does not tell of the pause")
	}
}
