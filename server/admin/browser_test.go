package admin

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// browser is a headless Chromium that is spoken to over a pair of pipes, in the DevTools protocol.
type browser struct {
	t       *testing.T
	in      *os.File
	out     *bufio.Reader
	id      int
	session string
	events  []message // that came while an answer was waited for
}

type message struct {
	ID     int             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
	Session string `json:"sessionId,omitempty"`
}

// startBrowser starts Chromium with an empty profile. It ends, with all its children, when the test does.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is not installed: sh scripts/deps.sh browser")
	}
	fromTest, toBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromBrowser, toTest, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	profile, err := os.MkdirTemp("", "redleaf-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--remote-debugging-pipe", "--user-data-dir="+profile)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.ExtraFiles = []*os.File{fromTest, toTest} // 3 and 4 to Chromium
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fromTest.Close()
	toTest.Close()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		toBrowser.Close()
		fromBrowser.Close()
		for range 50 { // children of other groups may still be writing
			if os.RemoveAll(profile) == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if t.Failed() {
			t.Logf("chromium: %.2000s", log.String())
		}
	})
	_ = fromBrowser.SetReadDeadline(time.Now().Add(2 * time.Minute))
	return &browser{t: t, in: toBrowser, out: bufio.NewReader(fromBrowser)}
}

// call sends a command and decodes its result.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	b.id++
	p, err := json.Marshal(params)
	if err != nil {
		b.t.Fatal(err)
	}
	m, _ := json.Marshal(message{ID: b.id, Method: method, Params: p, Session: b.session})
	if _, err := b.in.Write(append(m, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for {
		m := b.read()
		if m.ID != b.id {
			b.events = append(b.events, m)
			continue
		}
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
		return
	}
}

func (b *browser) read() (m message) {
	b.t.Helper()
	raw, err := b.out.ReadBytes(0)
	if err != nil {
		b.t.Fatalf("chromium does not answer: %v", err)
	}
	if err := json.Unmarshal(raw[:len(raw)-1], &m); err != nil {
		b.t.Fatal(err)
	}
	return m
}

// look is how a page is looked at.
type look struct {
	width, height int
	phone, dark   bool
	script        bool
}

// open opens a page in a new tab and waits until it is loaded.
func (b *browser) open(url string, l look) {
	b.t.Helper()
	b.session = ""
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	b.events = nil
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", map[string]any{}, nil)
	}
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": l.width, "height": l.height, "deviceScaleFactor": 1, "mobile": l.phone}, nil)
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": !l.script}, nil)
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	for !b.seen("Page.loadEventFired") {
		b.events = append(b.events, b.read())
	}
}

func (b *browser) seen(method string) bool {
	for _, e := range b.events {
		if e.Method == method && e.Session == b.session {
			return true
		}
	}
	return false
}

// eval runs an expression in the page. It works also where the page's own scripts may not run.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Text string }
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails.Text)
	}
	return r.Result.Value
}

func (b *browser) text(selector string) string {
	b.t.Helper()
	s, _ := b.eval(fmt.Sprintf("document.querySelector(%q)?.innerText ?? '(absent)'", selector)).(string)
	return s
}

func (b *browser) until(what string, is func() bool) {
	b.t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("waited in vain: %s", what)
		}
	}
}

// shoot keeps a picture of the whole page where PAGE_SHOTS says, for people to look at.
func (b *browser) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv("PAGE_SHOTS")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name+".png"), data, 0o644))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// complaints are what Chromium had to say about the page: errors of scripts, blocked loads, files that are not there.
func (b *browser) complaints() (list []string) {
	for _, e := range b.events {
		var p struct {
			Entry            struct{ Level, Text, URL string }
			Type             string
			ExceptionDetails struct{ Text string }
		}
		_ = json.Unmarshal(e.Params, &p)
		switch {
		case e.Method == "Log.entryAdded" && (p.Entry.Level == "error" || p.Entry.Level == "warning"):
			list = append(list, p.Entry.Text+" "+p.Entry.URL)
		case e.Method == "Runtime.exceptionThrown":
			list = append(list, p.ExceptionDetails.Text)
		case e.Method == "Runtime.consoleAPICalled" && p.Type != "debug":
			list = append(list, string(e.Params))
		}
	}
	return list
}

// TestPageInBrowser looks at the status page as people do: on a phone and a desk, by day and night, with scripts and without.
func TestPageInBrowser(t *testing.T) {
	r := start(t, rigOptions{})
	r.log.Info().Msg("serving the Redis protocol")
	r.row("order", 1, 100_000)
	r.row("com.example.invoice.line-item.eu-central", 8_000_000_000, 1_000)
	r.row("<b>odd</b> & 订单", 1, 10)
	r.row("stopped", 5000, 100)
	r.take("order", 1000)
	r.take("com.example.invoice.line-item.eu-central", 40)
	r.take("<b>odd</b> & 订单", 3)
	r.take("stopped", 1)
	r.row("stopped", 10, 100)
	r.wait("the tag is stopped", func() bool { return r.engine.Stats().Segment.Stopped == 1 })
	r.get("/api/snowflake/get/x")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := HTTPServer(r.admin)
	go srv.Serve(ln)
	defer srv.Close()
	url := "http://" + ln.Addr().String() + "/"
	stop := make(chan struct{})
	defer func() { <-stop }()
	feeding, done := make(chan struct{}), stop
	go func() { // some demand, so that rates and sparklines move
		defer close(done)
		for {
			select {
			case <-feeding:
				return
			case <-time.After(10 * time.Millisecond):
				r.engine.TryIncr([]byte("order"), 7)
				r.engine.TryIncr([]byte("com.example.invoice.line-item.eu-central"), 1)
			}
		}
	}()
	defer close(feeding)

	b := startBrowser(t)
	looks := map[string]look{
		"desk":       {width: 1280, height: 900, script: true},
		"desk-dark":  {width: 1280, height: 900, script: true, dark: true},
		"tablet":     {width: 800, height: 1000, script: true},
		"phone":      {width: 390, height: 844, phone: true, script: true},
		"phone-dark": {width: 390, height: 844, phone: true, dark: true, script: true},
		"small":      {width: 320, height: 600, phone: true},
	}
	for name, l := range looks {
		t.Run(name, func(t *testing.T) {
			b.t = t
			b.open(url, l)
			if w := b.eval("document.documentElement.scrollWidth").(float64); int(w) > l.width {
				t.Errorf("the page is %v wide on a screen of %d: it scrolls sideways", w, l.width)
			}
			background := map[bool]string{false: "rgb(247, 245, 242)", true: "rgb(22, 20, 18)"}[l.dark]
			if got := b.eval("getComputedStyle(document.body).backgroundColor"); got != background {
				t.Errorf("background %v, want %s", got, background)
			}
			for selector, want := range map[string]string{
				"h1": "Redleaf", "#state": "ready", "tbody tr.bad .tag": "stopped", "tbody .whyrow": "tag 'stopped' went back", ".events": "serving the Redis protocol",
			} {
				if got := b.text(selector); !strings.Contains(got, want) {
					t.Errorf("%s is %q, want %q", selector, got, want)
				}
			}
			// Letters must stand out from what is behind them: 4.5 to 1 is what WCAG asks for.
			if low := b.eval(contrast); low != "" {
				t.Errorf("hard to read: %v", low)
			}
			if names := b.eval("[...document.querySelectorAll('.tag')].map(e => e.innerText).join('|')").(string); !strings.Contains(names, "<b>odd</b> & 订单") {
				t.Errorf("an odd name is not shown as it is: %s", names)
			}
			if list := b.complaints(); list != nil {
				t.Errorf("chromium complains: %q", list)
			}
			b.shoot(name)
		})
	}

	t.Run("live", func(t *testing.T) {
		b.t = t
		b.open(url, looks["desk"])
		before := b.text("#issued")
		b.eval("document.body.dataset.mark = 'same page'")
		b.until("the number of IDs goes on by itself", func() bool { return b.text("#issued") != before })
		b.until("the sparkline has two points", func() bool {
			return strings.Contains(b.eval("document.querySelectorAll('.spark polyline')[1].getAttribute('points')").(string), " ")
		})
		if got := b.eval("document.body.dataset.mark"); got != "same page" {
			t.Error("the page was loaded anew")
		}
		if got := b.eval("document.title"); got != "Redleaf: ready" {
			t.Errorf("title %q", got)
		}
		b.shoot("live")
		r.engine.Drain()
		b.until("the page says that it stops", func() bool { return b.text("#state") == "stopping" })
		b.until("and so does the title", func() bool { return b.eval("document.title") == "Redleaf: stopping" })
		srv.Close()
		b.until("it fades when nobody answers", func() bool { return b.eval("document.getElementById('live').className") == "stale" })
		b.shoot("stale")
	})
}

// contrast lists texts with less than 4.5 to 1 against their background.
const contrast = `(() => {
	const rgb = s => s.match(/[\d.]+/g).map(Number);
	const light = ([r, g, b]) => { const f = c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; return .2126 * f(r) + .7152 * f(g) + .0722 * f(b) };
	const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c } return [255, 255, 255] };
	const low = new Set();
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; n = walk.nextNode();) {
		if (!n.data.trim()) continue;
		const a = light(rgb(getComputedStyle(n.parentElement).color)), b = light(behind(n.parentElement));
		const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		if (ratio < 4.5) low.add(n.parentElement.tagName + '.' + n.parentElement.className + ' ' + ratio.toFixed(2));
	}
	return [...low].join(', ');
})()`
