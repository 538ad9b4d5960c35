// Package deploy has no code: its tests use every file here as its user would, as far as one machine can.
package deploy

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"redleaf/scripts/process"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// documents parses a file of YAML documents.
func documents(t *testing.T, path string) (docs []map[string]any) {
	t.Helper()
	for dec := yaml.NewDecoder(strings.NewReader(read(t, path))); ; {
		var d map[string]any
		if err := dec.Decode(&d); err != nil {
			if err.Error() == "EOF" {
				return docs
			}
			t.Fatalf("%s: %v", path, err)
		}
		docs = append(docs, d)
	}
}

// at walks into nested maps and lists: at(d, "spec", "containers", 0, "name").
func at(v any, path ...any) any {
	for _, p := range path {
		switch k := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[k]
		case int:
			l, _ := v.([]any)
			if k >= len(l) {
				return nil
			}
			v = l[k]
		}
	}
	return v
}

func text(v any) string { s, _ := v.(string); return s }

// secrets writes the files that settings name under a folder of secrets, and returns the settings with their paths changed to it.
func secrets(t *testing.T, toml string) string {
	t.Helper()
	dir := t.TempDir()
	return regexp.MustCompile(`"(/etc/redleaf/secrets|/secrets)/([a-z-]+)"`).ReplaceAllStringFunc(toml, func(m string) string {
		file := filepath.Join(dir, filepath.Base(strings.Trim(m, `"`)))
		if err := os.WriteFile(file, []byte("s3cret-"+filepath.Base(file)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return `"` + file + `"`
	})
}

// check runs redleaf -check with settings as they stand, beyond the addresses and the folder that package process gives every
// instance, and returns what is in force.
func check(t *testing.T, toml string, args, env []string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "redleaf.toml")
	if err := os.WriteFile(file, []byte(secrets(t, toml)), 0o600); err != nil {
		t.Fatal(err)
	}
	return run(t, append([]string{"-c", file, "-check"}, args...), env)
}

// run runs redleaf with these arguments alone and returns its output; it must exit with 0.
func run(t *testing.T, args, env []string) string {
	t.Helper()
	d := &process.Daemon{Name: "redleaf " + strings.Join(args, " "), Path: process.Build(t), Args: args, Env: append([]string{"PATH=/"}, env...),
		Dir: t.TempDir(), Log: filepath.Join(t.TempDir(), "log"), T: t}
	d.EndWith(t)
	if err := d.Launch(); err != nil {
		t.Fatal(err)
	}
	code, ended := d.Wait(process.StartLimit)
	out := read(t, d.Log)
	if !ended || code != 0 {
		t.Fatalf("%s: exit code %d, ended %v\n%s", d.Name, code, ended, out)
	}
	if strings.Contains(out, "s3cret-") {
		t.Errorf("%s shows a secret (I13):\n%s", d.Name, out)
	}
	return out
}

// has asks for lines of -check's output.
func has(t *testing.T, name, effective string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains("\n"+effective, "\n"+l+"  #") {
			t.Errorf("%s: %q is not in force:\n%s", name, l, effective)
		}
	}
}

// TestTopologies: each example is whole, and says what README's table of topologies says.
func TestTopologies(t *testing.T) {
	for file, lines := range map[string][]string{
		"single.toml":          {`segment.store = "local"`, `segment.auto_create = ["*"]`, `snowflake.registry = "local"`, `listen = ["127.0.0.1:6380"]`, `data_dir = "/var/lib/redleaf"`},
		"mysql.toml":           {`segment.store = "mysql"`, `segment.auto_create = []`, `snowflake.registry = "off"`, `listen = [":6380"]`, `admin.listen = ":6381"`},
		"mysql-zookeeper.toml": {`segment.store = "mysql"`, `snowflake.registry = "zookeeper"`, `snowflake.zookeeper.root = "/snowflake"`, `snowflake.zookeeper.name = "redleaf"`},
	} {
		t.Run(file, func(t *testing.T) {
			effective := check(t, read(t, "toml/"+file), nil, nil)
			has(t, file, effective, lines...)
			if strings.Contains(effective, `listen = [":`) && !strings.Contains(effective, "auth.password_file = \"/") {
				t.Errorf("it listens beyond loopback without a password:\n%s", effective)
			}
		})
	}
	files, _ := filepath.Glob("toml/*")
	if len(files) != 3 {
		t.Errorf("toml/ holds %q: each file needs a row here", files)
	}
}

// ready asks an admin address for /readyz.
func ready(admin string) func(context.Context) error {
	return func(ctx context.Context) error {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/readyz", nil)
		if err != nil {
			return err
		}
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			return err
		}
		defer a.Body.Close()
		if a.StatusCode != http.StatusOK {
			return errors.New(a.Status)
		}
		return nil
	}
}

// dial returns a function that sends commands over one connection.
func dial(t *testing.T, addr string) func(args ...string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r := bufio.NewReader(c)
	return func(args ...string) string {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(process.StartLimit))
		if _, err := c.Write(process.Command(args...)); err != nil {
			t.Fatal(err)
		}
		reply, err := process.ReadReply(r)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
}
