package deploy

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"redleaf/scripts/process"
)

// TestUnit reads the unit: what it must say, and what systemd says of it where systemd is installed.
func TestUnit(t *testing.T) {
	unit := read(t, "systemd/redleaf.service")
	values := map[string][]string{}
	for line := range strings.Lines(unit) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			values[name] = append(values[name], value)
		}
	}
	for name, want := range map[string]string{
		"Type": "notify", "ExecReload": "/bin/kill -HUP $MAINPID", "Restart": "on-failure", "DynamicUser": "yes", "StateDirectory": "redleaf",
		"ProtectSystem": "strict", "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "Environment": "GOTRACEBACK=all", "PrivateDevices": "yes",
		"RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX", "MemoryDenyWriteExecute": "yes", "TimeoutStopSec": "30",
	} {
		if len(values[name]) != 1 || values[name][0] != want {
			t.Errorf("%s=%q, want %q", name, values[name], want)
		}
	}
	// The command line is one that redleaf takes, with the file that the head of the unit says to install.
	args := strings.Fields(values["ExecStart"][0])[1:]
	if args[0] != "-c" || args[1] != "/etc/redleaf/redleaf.toml" {
		t.Fatalf("ExecStart %q", args)
	}
	effective := check(t, read(t, "toml/single.toml"), args[2:], []string{"NOTIFY_SOCKET=/run/systemd/notify", "INVOCATION_ID=x"})
	has(t, "unit", effective, `data_dir = "/var/lib/redleaf"`)

	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		return // not on every machine; what it adds is its opinion
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "redleaf.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(unit, "/usr/local/bin/redleaf", process.Build(t))), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", file).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "redleaf.service") {
			t.Errorf("systemd-analyze verify: %v: %s", err, line)
		}
	}
}

// TestNotify: systemd is told when clients are answered, about reloads, and about the stop.
func TestNotify(t *testing.T) {
	socket := filepath.Join(process.Dir(t, "notify"), "s")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	next := func() string {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(process.StartLimit))
		b := make([]byte, 200)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	p := process.Start(t, process.Options{Env: []string{"NOTIFY_SOCKET=" + socket}})
	if got := next(); got != "READY=1" {
		t.Errorf("told %q, want READY=1", got)
	}
	p.Signal(syscall.SIGHUP)
	for _, want := range []string{"RELOADING=1", "READY=1"} {
		if got := next(); got != want {
			t.Errorf("told %q, want %s", got, want)
		}
	}
	if code := p.Term(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := next(); got != "STOPPING=1" {
		t.Errorf("told %q, want STOPPING=1", got)
	}
}
