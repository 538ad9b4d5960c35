package admin

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// TestMetricsByConvention lets Prometheus' own linter judge names, units, types and help.
func TestMetricsByConvention(t *testing.T) {
	r := start(t, rigOptions{})
	r.row("order", 1, 10)
	r.take("order", 1)
	r.get("/api/segment/get/order")
	r.log.Warn().Msg("something happened")
	text := r.get("/metrics").Body.String()
	lint := exec.Command("promtool", "check", "metrics")
	lint.Stdin = strings.NewReader(text)
	if out, err := lint.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	for _, want := range []string{
		`redleaf_build_info{version="v1.2.3"} 1`,
		`redleaf_ready{engine="segment"} 1`,
		`redleaf_ready{engine="snowflake"} 1`,
		`redleaf_segment_ids_issued_total 2`,
		`redleaf_segment_tag_ids_issued_total{tag="order"} 2`,
		`redleaf_segment_store_up 1`,
		`redleaf_segment_refills_total{result="failed"} 0`,
		`redleaf_segment_refill_seconds_bucket{le="+Inf"} `,
		`redleaf_snowflake_state{state="serving"} 1`,
		`redleaf_snowflake_state{state="clockback"} 0`,
		`redleaf_snowflake_rollbacks_total{outcome="refused"} 0`,
		`redleaf_snowflake_clock_drift_seconds `,
		`redleaf_snowflake_window_seconds `,
		`redleaf_leaf_requests_total{api="segment",outcome="issued"} 1`,
		`redleaf_log_lines_total{level="warn"} `,
		`redleaf_connections_limit 100`,
		`redleaf_read_seconds_count 0`,
		`go_goroutines `,
		`process_open_fds `,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
}

// TestMetricsBounded: whatever clients do, a scrape stays small, and a tag's odd name breaks nothing.
func TestMetricsBounded(t *testing.T) {
	r := start(t, rigOptions{noSnow: true, autoCreate: []string{"*"}})
	for i := range 3000 {
		r.take(fmt.Sprintf(`tag %d "quoted" \ {x="y"} 订单`, i), 1)
	}
	text := r.get("/metrics").Body.String()
	if n := strings.Count(text, "\nredleaf_segment_tag_ids_issued_total{"); n != metricTags {
		t.Errorf("%d tags in a scrape, want %d", n, metricTags)
	}
	if n := strings.Count(text, "\nredleaf_"); n > 2500 {
		t.Errorf("%d lines in a scrape", n)
	}
	if !strings.Contains(text, "\nredleaf_segment_ids_issued_total 3000\n") || !strings.Contains(text, "\nredleaf_segment_tags 3000\n") {
		t.Error("the sums do not count every tag")
	}
	lint := exec.Command("promtool", "check", "metrics")
	lint.Stdin = strings.NewReader(text)
	if out, err := lint.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// TestMetricsHideSecrets (I13).
func TestMetricsHideSecrets(t *testing.T) {
	r := start(t, rigOptions{password: "sesame-of-mine"})
	r.get("/api/segment/get/order", basic("", "sesame-of-mine")...)
	for _, path := range []string{"/metrics", "/", "/live", "/readyz", "/cache", "/db"} {
		if strings.Contains(r.get(path).Body.String(), "sesame-of-mine") {
			t.Errorf("%s shows the password", path)
		}
	}
}
