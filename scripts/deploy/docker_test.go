package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"redleaf/scripts/ports"
	"redleaf/scripts/process"
)

// instructions reads a Dockerfile: one line each, continued lines joined.
func instructions(t *testing.T, path string) (list [][2]string) {
	t.Helper()
	for line := range strings.Lines(strings.ReplaceAll(read(t, path), "\\\n", " ")) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		list = append(list, [2]string{name, strings.TrimSpace(rest)})
	}
	return list
}

// TestDockerfile: an empty image, no root, and what its build runs is what is tested.
func TestDockerfile(t *testing.T) {
	list := instructions(t, "docker/Dockerfile")
	known := []string{"FROM", "WORKDIR", "COPY", "RUN", "ARG", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"}
	final := map[string]string{}
	build := ""
	for _, i := range list {
		if !slices.Contains(known, i[0]) {
			t.Errorf("unknown instruction %s", i[0])
		}
		if i[0] == "FROM" {
			final = map[string]string{}
		}
		if i[0] == "RUN" && strings.Contains(i[1], "go build") {
			build = i[1]
		}
		final[i[0]] = i[1]
	}
	for name, want := range map[string]string{
		"FROM": "scratch", "USER": "65532:65532", "ENTRYPOINT": `["/redleaf"]`, "VOLUME": "/data", "EXPOSE": "6380 6381", "STOPSIGNAL": "SIGTERM",
		"ENV": "GOTRACEBACK=all REDLEAF_DATA_DIR=/data",
	} {
		if final[name] != want {
			t.Errorf("%s %q, want %q", name, final[name], want)
		}
	}
	if final["RUN"] != "" {
		t.Error("nothing can RUN in an empty image")
	}
	// The toolchain is the one that go.mod asks for.
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../../go.mod"))
	if !strings.HasPrefix(list[0][1], "golang:"+goVersion[1]+"-") {
		t.Errorf("it builds with %s, go.mod asks for %s", list[0][1], goVersion[1])
	}
	for _, want := range []string{"CGO_ENABLED=0", "-trimpath", "-X main.version=${VERSION}"} {
		if !strings.Contains(build, want) {
			t.Errorf("it builds without %s: %s", want, build)
		}
	}
	for _, line := range strings.Fields(read(t, "docker/Dockerfile.dockerignore")) {
		if line == "scripts" || line == "conf" {
			t.Errorf("the build needs %s", line)
		}
	}
}

// TestEmptyRoot runs the program as the image does: in a root with nothing in it but itself, as a user without a name.
func TestEmptyRoot(t *testing.T) {
	t.Setenv("CGO_ENABLED", "0")
	bin := process.Build(t, "-trimpath", "-ldflags", "-s -w -X main.version=v9.9.9")
	root := t.TempDir()
	for path, mode := range map[string]os.FileMode{root: 0o755, filepath.Join(root, "data"): 0o700} {
		if err := os.MkdirAll(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(bin)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "redleaf"), b, 0o755)
	}
	if err == nil {
		err = os.Chown(filepath.Join(root, "data"), 65532, 65532)
	}
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	addr, admin := ports.Addr(), ports.Addr()
	cmd := exec.Command("/redleaf", "-listen", addr, "-admin", admin)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", []string{"GOTRACEBACK=all", "REDLEAF_DATA_DIR=/data"}, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	ask := func(args ...string) string {
		t.Helper()
		for end := time.Now().Add(process.StartLimit); ; time.Sleep(10 * time.Millisecond) {
			reply, err := process.Do(addr, time.Second, args...)
			if err == nil && !strings.HasPrefix(reply, "LOADING") {
				return reply
			}
			select {
			case <-done:
				t.Fatalf("it ended: %s", read(t, log.Name()))
			default:
			}
			if time.Now().After(end) {
				t.Fatalf("no answer: %v\n%s", err, read(t, log.Name()))
			}
		}
	}
	if got := ask("INCR", "order"); got != "1" {
		t.Errorf("INCR answered %s", got)
	}
	if got := ask("SNOWFLAKE.NEXT"); len(strings.Trim(got, `"`)) < 15 {
		t.Errorf("SNOWFLAKE.NEXT answered %s", got)
	}
	if got := ask("INFO", "server"); !strings.Contains(got, "v9.9.9") {
		t.Errorf("INFO does not name the version: %s", got)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("SIGTERM: %v\n%s", err, read(t, log.Name()))
		}
	case <-time.After(process.StartLimit):
		t.Error("it does not stop")
	}
	for _, file := range []string{"identity.json", "segment.db", "snowflake.db"} {
		if info, err := os.Stat(filepath.Join(root, "data", file)); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, mode %v: only its user may read it", file, err, info.Mode())
		}
	}
}

// TestCompose: every variable is a setting, and together they are whole.
func TestCompose(t *testing.T) {
	c := documents(t, "docker/compose.yaml")[0]
	fill := regexp.MustCompile(`\$\{([A-Z_]+):\?[^}]*\}`)
	for _, name := range []string{"redleaf", "bootstrap"} {
		service := at(c, "services", name)
		var env []string
		for k, v := range at(service, "environment").(map[string]any) {
			env = append(env, k+"="+fill.ReplaceAllString(fmt.Sprint(v), "s3cret-$1"))
		}
		args := []string{"-check"}
		command, _ := at(service, "command").([]any)
		for _, a := range command {
			args = append(args, text(a))
		}
		effective := run(t, args, env)
		has(t, name, effective, `listen = [":6380"]`, `admin.listen = ":6381"`, `data_dir = "/data"`, `segment.store = "mysql"`, `snowflake.registry = "zookeeper"`,
			`snowflake.zookeeper.servers = ["zookeeper:2181"]`, `segment.auto_create = ["*"]`)
		if !strings.Contains(effective, `auth.password = "********"`) || strings.Contains(effective, "@tcp(mysql:3306)/leaf") == false {
			t.Errorf("%s: the password or the DSN is not set:\n%s", name, effective)
		}
		if at(service, "read_only") != true || at(service, "cap_drop", 0) != "ALL" {
			t.Errorf("%s may more than it needs", name)
		}
	}
	if at(c, "services", "bootstrap", "profiles", 0) != "bootstrap" {
		t.Error("`up` would run the bootstrap again")
	}
	for _, p := range at(c, "services", "redleaf", "ports").([]any) {
		if !strings.HasPrefix(text(p), "127.0.0.1:") {
			t.Errorf("port %v is open to the network", p)
		}
	}
	for _, path := range []string{"../../..", "../../schema.sql"} { // as the file names them, from its folder
		if _, err := os.Stat(filepath.Join("docker", path)); err != nil {
			t.Error(err)
		}
	}
}
