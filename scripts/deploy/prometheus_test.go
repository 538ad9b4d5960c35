package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"redleaf/scripts/ports"
	"redleaf/scripts/process"
)

func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("promtool", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestAlertRules lets each alert fire, and stay quiet.
func TestAlertRules(t *testing.T) {
	promtool(t, "prometheus", "check", "rules", "--lint-fatal", "alerts.yaml")
	promtool(t, "prometheus", "test", "rules", "alerts_test.yaml")
	tests := read(t, "prometheus/alerts_test.yaml")
	readme := read(t, "../../README.md")
	for _, r := range rules(t) {
		name := text(at(r, "alert"))
		if !strings.Contains(tests, "  - name: "+name+"\n") || (name != "RedleafDown" && !strings.Contains(tests, "  - name: "+name+" stays quiet\n")) {
			t.Errorf("%s has no test", name)
		}
		if s := text(at(r, "labels", "severity")); s != "page" && s != "ticket" {
			t.Errorf("%s has severity %q", name, s)
		}
		if heading, ok := strings.CutPrefix(text(at(r, "annotations", "runbook")), "README: "); ok && !regexp.MustCompile(`(?m)^#+ `+regexp.QuoteMeta(heading)+`$`).MatchString(readme) {
			t.Errorf("%s names the runbook %q, which README does not have", name, heading)
		} else if !ok && text(at(r, "labels", "severity")) == "page" && text(at(r, "annotations", "description")) == "" {
			t.Errorf("%s wakes somebody and does not say what to do", name)
		}
	}
}

func rules(t *testing.T) []any {
	t.Helper()
	list, _ := at(documents(t, "prometheus/alerts.yaml")[0], "groups", 0, "rules").([]any)
	if len(list) < 20 {
		t.Fatalf("%d rules", len(list))
	}
	return list
}

// panels are the expressions of the dashboard by the title of their panel.
func panels(t *testing.T) map[string][]string {
	t.Helper()
	var d struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "prometheus/grafana.json")), &d); err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: id %d twice, or wider than the page", p.Title, p.ID)
		}
		ids[p.ID] = true
		for _, q := range p.Targets {
			out[p.Title] = append(out[p.Title], q.Expr)
		}
	}
	return out
}

var metricName = regexp.MustCompile(`\b(redleaf|process)_[a-z_]+`)

// TestPrometheus has a real one scrape a real redleaf with the rules loaded, and asks it what the dashboard asks.
func TestPrometheus(t *testing.T) {
	p := process.Start(t, process.Options{Name: "scraped"})
	for range 20 {
		p.Do("INCR", "order")
		p.Do("SNOWFLAKE.NEXT")
	}
	p.Do("SET", "order", "1") // an error word
	dir := process.Dir(t, "prometheus")
	addr := ports.Addr()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`
global: {scrape_interval: 200ms, evaluation_interval: 200ms}
rule_files: [%q]
scrape_configs:
  - job_name: redleaf
    static_configs: [{targets: [%q]}]
`, filepath.Join(wd, "prometheus/alerts.yaml"), p.Admin)
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "check", "config", file)
	get := func(path string, v any) error {
		a, err := http.Get("http://" + addr + path)
		if err != nil {
			return err
		}
		defer a.Body.Close()
		b, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != 200 {
			return fmt.Errorf("%s: %d %s %v", path, a.StatusCode, b, err)
		}
		if v == nil {
			return nil
		}
		return json.Unmarshal(b, v)
	}
	d := &process.Daemon{Name: "prometheus", Path: "prometheus", Args: []string{"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "tsdb"),
		"--web.listen-address=" + addr}, Dir: dir, Log: filepath.Join(dir, "log"), T: t, Ready: func(context.Context) error { return get("/-/ready", nil) }}
	if d.Path, err = exec.LookPath("prometheus"); err != nil {
		t.Fatal("prometheus is not installed: sh scripts/deps.sh monitoring")
	}
	d.EndWith(t)
	d.Start()

	type answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	query := func(expr string) (a answer, err error) {
		err = get("/api/v1/query?query="+url.QueryEscape(expr), &a)
		return a, err
	}
	for end := time.Now().Add(process.StartLimit); ; time.Sleep(50 * time.Millisecond) {
		a, err := query(`redleaf_segment_tag_ids_issued_total{tag="order"} and on (instance) count_over_time(up[1m]) > 3`)
		if err == nil && len(a.Data.Result) == 1 {
			if a.Data.Result[0].Value[1] != "20" {
				t.Errorf("the scrape says %v IDs, 20 were issued", a.Data.Result[0].Value[1])
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no scrape: %v %v", a, err)
		}
	}

	// The rules are loaded and can be evaluated, and nothing is alarmed about an instance that is well.
	var loaded struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, State, LastError string }
			}
		}
	}
	for end := time.Now().Add(process.StartLimit); ; time.Sleep(50 * time.Millisecond) {
		if err := get("/api/v1/rules", &loaded); err != nil {
			t.Fatal(err)
		}
		if len(loaded.Data.Groups) == 1 && !slices.ContainsFunc(loaded.Data.Groups[0].Rules, func(r struct{ Name, Health, State, LastError string }) bool { return r.Health == "unknown" }) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the rules were not evaluated: %+v", loaded)
		}
	}
	for _, r := range loaded.Data.Groups[0].Rules {
		if r.Health != "ok" || r.State != "inactive" {
			t.Errorf("rule %s is %s and %s: %s", r.Name, r.Health, r.State, r.LastError)
		}
	}

	// Every metric that a rule or a panel names is in the scrape, or is one that only appears with its cause.
	names := map[string]bool{}
	var series struct{ Data []string }
	if err := get("/api/v1/label/__name__/values", &series); err != nil {
		t.Fatal(err)
	}
	for _, n := range series.Data {
		names[n] = true
	}
	for _, n := range []string{"redleaf_snowflake_clock_skew_seconds"} { // with ZooKeeper alone
		names[n] = true
	}
	for _, r := range rules(t) {
		for _, n := range metricName.FindAllString(text(at(r, "expr")), -1) {
			if !names[n] {
				t.Errorf("alert %s asks for %s, which there is not", at(r, "alert"), n)
			}
		}
	}
	fill := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")
	for title, list := range panels(t) {
		for _, expr := range list {
			if _, err := query(fill.Replace(expr)); err != nil {
				t.Errorf("panel %q: %v", title, err)
			}
			for _, n := range metricName.FindAllString(expr, -1) {
				if !names[n] {
					t.Errorf("panel %q asks for %s, which there is not", title, n)
				}
			}
		}
	}
}
