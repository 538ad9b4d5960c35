package conf

import (
	"bytes"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestTable: names and variables are unique, no variable looks like a Kubernetes service link, and every field of
// Config has exactly one setting.
func TestTable(t *testing.T) {
	var c Config
	seen := map[string]string{}
	fields := map[any]string{}
	for _, r := range table(&c) {
		for _, key := range []string{r.name, r.env()} {
			if other, ok := seen[key]; ok {
				t.Errorf("%s: %s and %s", key, other, r.name)
			}
			seen[key] = r.name
		}
		if serviceLink.MatchString(r.env()) {
			t.Errorf("%s would be passed over", r.env())
		}
		if !regexp.MustCompile(`^[a-z_]+(\.[a-z_]+)*$`).MatchString(r.name) {
			t.Errorf("%s: only a-z, _ and . map to a variable and back", r.name)
		}
		if !strings.HasSuffix(r.doc, ".") {
			t.Errorf("%s: the doc is no sentence: %s", r.name, r.doc)
		}
		if other, ok := fields[r.dst]; ok {
			t.Errorf("%s and %s set the same field", other, r.name)
		}
		fields[r.dst] = r.name
	}
	if got := seen["REDLEAF_SEGMENT_MAX_COUNT"]; got != "segment.max_count" {
		t.Errorf("REDLEAF_SEGMENT_MAX_COUNT is %s", got)
	}
	filled := []string{"File", "Check", "Version", "Bootstrap", "origin", "Segment.MySQL.Password", "Snowflake.WorkerIDSet"}
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		for i := range v.NumField() {
			name := path + v.Type().Field(i).Name
			if slices.Contains(filled, name) {
				continue
			}
			if f := v.Field(i); fields[f.Addr().Interface()] == "" {
				if f.Kind() != reflect.Struct {
					t.Errorf("no setting fills %s", name)
				} else {
					walk(name+".", f)
				}
			}
		}
	}
	walk("", reflect.ValueOf(&c).Elem())
}

// TestFile keeps conf/redleaf.toml equal to the table.
func TestFile(t *testing.T) {
	if *update {
		if err := os.WriteFile("redleaf.toml", []byte(File()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("redleaf.toml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, []byte(File())) {
		t.Error("conf/redleaf.toml differs from the table in settings.go; go test ./conf -update writes it anew")
	}
}

// TestFileMeansDefaults: the file as it is, and with every setting taken out of its comment, changes nothing.
func TestFileMeansDefaults(t *testing.T) {
	want := mustLoad(t, nil, nil, nil)
	asIs := mustLoad(t, map[string]string{"f": File()}, []string{"-c", "f"}, nil)
	all := regexp.MustCompile(`(?m)^#(\S)`).ReplaceAllString(File(), "$1")
	opened := mustLoad(t, map[string]string{"f": all}, []string{"-c", "f"}, nil)
	if n := len(opened.origin); n != len(table(&Config{})) {
		t.Errorf("the file sets %d of %d settings", n, len(table(&Config{})))
	}
	if u := opened.Auth.Users; len(u) != 1 || u[0].Name != "orders" || u[0].Rate != 10000 {
		t.Errorf("the example of a user gives %+v", u)
	}
	opened.Auth.Users = want.Auth.Users
	opened.Snowflake.WorkerIDSet = false
	for _, c := range []*Config{&asIs, &opened} {
		c.File, c.origin = "", want.origin
		if !reflect.DeepEqual(*c, want) {
			t.Errorf("got  %+v\nwant %+v", *c, want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(Table()), "\n")
	if len(lines) != 2+len(table(&Config{})) {
		t.Errorf("%d lines", len(lines))
	}
	for _, want := range []string{
		"| `max_clients` | `10000` | Most connections at a time; more are refused as Redis refuses them. (1 to 1000000) *reload* |",
		"| `segment.mysql.dsn` | `[]` | Data source name, `user:password@tcp(host:3306)/database`; several only for a synchronous cluster (Galera, Group Replication). |",
		"| `segment.target` | `10s` with store local, `15m` with mysql | How long one refill should last. (1ms to 168h) |",
		"| `snowflake.autonomy` | `24h` | Longest time to go on without ZooKeeper. (1m to 8760h) |",
		"| `log.level` | `info` | Least level that is written. (debug, info, warn, error) *reload* |",
		"| `idle_timeout` | `0` | A connection silent for longer is closed. (0 = off; at least 1ms) *reload* |",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("missing: %s", want)
		}
	}
	for _, line := range lines {
		if strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") != 4 {
			t.Errorf("not three cells: %s", line)
		}
	}
}

// TestEffectiveLoads: what -check prints without secrets is a TOML file that means the same.
func TestEffectiveLoads(t *testing.T) {
	c := mustLoad(t, nil, []string{"-set", "segment.auto_create=[\"a b*\"]", "-set", "idle_timeout=90s", "-set", "snowflake.bits=41-3-9", "-listen", "unix:/run/r.sock"}, nil)
	again := mustLoad(t, map[string]string{"f": c.Effective()}, []string{"-c", "f"}, nil)
	again.File, again.origin, again.Snowflake.WorkerIDSet = "", c.origin, false
	if !reflect.DeepEqual(again, c) {
		t.Errorf("got  %+v\nwant %+v", again, c)
	}
	if got := c.IdleTimeout; got != 90*time.Second {
		t.Error(got)
	}
}
