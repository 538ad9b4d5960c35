package process

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"redleaf/scripts/ports"
)

var (
	buildMu sync.Mutex
	built   = map[string]string{} // by build flags
)

// Build compiles redleaf, once for this test binary and set of build flags ("-race", "-tags=x"), and returns the
// path of the program. Programs are kept by their content in a folder for temporary files, the old ones removed.
func Build(t T, flags ...string) string {
	t.Helper()
	buildMu.Lock()
	defer buildMu.Unlock()
	key := strings.Join(flags, " ")
	if path := built[key]; path != "" {
		return path
	}
	cache := filepath.Join(os.TempDir(), fmt.Sprintf("redleaf-built-%d", os.Getuid()))
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	tmp, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer os.RemoveAll(tmp)
	fresh := filepath.Join(tmp, "redleaf")
	args := append([]string{"build", "-o", fresh}, flags...)
	if out, err := exec.Command("go", append(args, "redleaf")...).CombinedOutput(); err != nil {
		t.Fatalf("go build %s redleaf: %v\n%s", key, err, out)
	}
	b, err := os.ReadFile(fresh)
	if err != nil {
		t.Fatalf("%v", err)
	}
	sum := sha256.Sum256(b)
	path := filepath.Join(cache, fmt.Sprintf("redleaf-%x", sum[:8]))
	// Other test binaries build and run the same program at this moment: rename, never write into place.
	if err := os.Rename(fresh, path); err != nil {
		t.Fatalf("%v", err)
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now)
	old, _ := filepath.Glob(filepath.Join(cache, "*"))
	for _, p := range old {
		if info, err := os.Stat(p); err == nil && now.Sub(info.ModTime()) > 12*time.Hour {
			_ = os.RemoveAll(p)
		}
	}
	built[key] = path
	return path
}

// Options describes one redleaf. The zero value is the embedded default on free ports, in a data folder of its own.
type Options struct {
	Name    string   // for messages and for Instance; default "redleaf"
	Bin     string   // default Build(t)
	DataDir string   // default a folder that ends with the test
	Listen  string   // default a free loopback port
	Admin   string   // default a free loopback port; "off" = none
	Config  string   // TOML, written to a file that is passed with -c
	Set     []string // "name=value", each passed with -set
	Args    []string // more arguments
	Env     []string // more environment; REDLEAF_* of the test's own environment is not passed on
	NoWait  bool     // return as soon as the process is started
	Anyhow  bool     // wait for PONG only, not for /readyz
	User    *syscall.Credential
}

// Process is one redleaf. A restart keeps addresses and data folder.
type Process struct {
	Addr    string // RESP address, "127.0.0.1:port" or "unix:/path"
	Admin   string // HTTP address, "" when off
	DataDir string
	Bin     string

	t      T
	o      Options
	daemon *Daemon
	http   *http.Client
}

// Start starts a redleaf and waits until it answers PING with PONG and /readyz with 200, as far as the options ask for it.
// It is killed when the test ends; the end of its log is printed when the test has failed.
func Start(t T, o Options) *Process {
	t.Helper()
	p := prepare(t, o)
	p.Start()
	return p
}

// RunToExit runs a redleaf that is meant to end by itself, such as -check or a start that must be refused, and returns
// its exit code and what it printed. The test fails when it still runs after StartLimit.
func RunToExit(t T, o Options) (code int, output string) {
	t.Helper()
	p := prepare(t, o)
	if err := p.daemon.Launch(); err != nil {
		t.Fatalf("%v", err)
	}
	code, exited := p.daemon.Wait(StartLimit)
	if !exited {
		t.Errorf("%s still runs after %v", p.daemon.Name, StartLimit)
		p.daemon.Kill()
	}
	return code, p.Log()
}

func prepare(t T, o Options) *Process {
	t.Helper()
	if o.Name == "" {
		o.Name = "redleaf"
	}
	if o.Bin == "" {
		o.Bin = Build(t)
	}
	if o.Listen == "" {
		o.Listen = ports.Addr()
	}
	switch o.Admin {
	case "":
		o.Admin = ports.Addr()
	case "off":
		o.Admin = ""
	}
	dir := Dir(t, "instance")
	if o.DataDir == "" {
		o.DataDir = filepath.Join(dir, "data")
	}
	args := []string{"-listen", o.Listen, "-admin", o.Admin, "-data-dir", o.DataDir}
	if o.Config != "" {
		file := filepath.Join(dir, "redleaf.toml")
		if err := os.WriteFile(file, []byte(o.Config), 0o600); err != nil {
			t.Fatalf("%v", err)
		}
		args = append(args, "-c", file)
	}
	for _, s := range o.Set {
		args = append(args, "-set", s)
	}
	args = append(args, o.Args...)
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "REDLEAF_") {
			env = append(env, e)
		}
	}
	if err := chown(dir, o.User); err != nil {
		t.Fatalf("%v", err)
	}
	p := &Process{Addr: o.Listen, Admin: o.Admin, DataDir: o.DataDir, Bin: o.Bin, t: t, o: o,
		// Connections are not kept: each request is to find the process of that moment, and goroutines are to end.
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}}
	p.daemon = &Daemon{
		Name: fmt.Sprintf("%s at %s", o.Name, o.Listen), Path: o.Bin, Args: args, Env: append(env, o.Env...),
		Dir: dir, Log: filepath.Join(dir, "log"), User: o.User, T: t, Ready: p.ready,
	}
	p.daemon.EndWith(t)
	return p
}

func chown(dir string, u *syscall.Credential) error {
	if u == nil {
		return nil
	}
	return errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, int(u.Uid), int(u.Gid)))
}

func (p *Process) ready(ctx context.Context) error {
	if err := p.ping(ctx); err != nil {
		return err
	}
	if p.Admin == "" || p.o.Anyhow {
		return nil
	}
	return p.readyz(ctx)
}

// ping is answered by PONG, or by the refusal of a server that wants a password first.
func (p *Process) ping(ctx context.Context) error {
	network, address := Network(p.Addr)
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now().Add(5 * time.Second)
	}
	if err := c.SetDeadline(end); err != nil {
		return err
	}
	if _, err := c.Write(Command("PING")); err != nil {
		return err
	}
	reply, err := ReadReply(bufio.NewReader(c))
	if err == nil && reply != "PONG" && !strings.HasPrefix(reply, "NOAUTH") {
		err = fmt.Errorf("PING was answered by %q", reply)
	}
	return err
}

func (p *Process) readyz(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Admin+"/readyz", nil)
	if err != nil {
		return err
	}
	a, err := p.http.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("/readyz: %d %s", a.StatusCode, strings.TrimSpace(string(body)))
	}
	return err
}

// Daemon gives access to the process itself.
func (p *Process) Daemon() *Daemon { return p.daemon }

// Pid returns the id of the process of this life.
func (p *Process) Pid() int { return p.daemon.Pid() }

// Instance names this life of the process, "name#2" after one restart: what one life promises, the next does not.
func (p *Process) Instance() string { return fmt.Sprintf("%s#%d", p.o.Name, p.daemon.Life()) }

// Start starts the process again, with the same addresses and data, and waits as the options say.
func (p *Process) Start() {
	p.t.Helper()
	if !p.o.NoWait {
		p.daemon.Start()
	} else if err := p.daemon.Launch(); err != nil {
		p.t.Fatalf("%v", err)
	}
}

// Launch starts the process again and does not wait for it.
func (p *Process) Launch() {
	p.t.Helper()
	if err := p.daemon.Launch(); err != nil {
		p.t.Fatalf("%v", err)
	}
}

// Kill is kill -9.
func (p *Process) Kill() { p.t.Helper(); p.daemon.Kill() }

// Term sends SIGTERM, waits for the end and returns the exit code.
func (p *Process) Term() (code int) { p.t.Helper(); return p.daemon.Stop() }

// Signal sends any signal: SIGHUP to reload.
func (p *Process) Signal(s syscall.Signal) { p.t.Helper(); p.daemon.Signal(s) }

// Pause stops the process by SIGSTOP.
func (p *Process) Pause() { p.t.Helper(); p.daemon.Pause() }

// Resume lets it go on.
func (p *Process) Resume() { p.t.Helper(); p.daemon.Resume() }

// Restart is Kill and Start.
func (p *Process) Restart() { p.t.Helper(); p.Kill(); p.Start() }

// Alive tells whether the process runs.
func (p *Process) Alive() bool { return p.daemon.Alive() }

// Wait waits at most so long for the process to end by itself.
func (p *Process) Wait(limit time.Duration) (code int, exited bool) { return p.daemon.Wait(limit) }

// WaitPing waits until PING is answered.
func (p *Process) WaitPing() { p.t.Helper(); p.until("PONG", p.ping) }

// WaitReady waits until /readyz answers 200.
func (p *Process) WaitReady() { p.t.Helper(); p.until("/readyz green", p.readyz) }

// WaitNotReady waits until /readyz answers anything else, and returns what it says.
func (p *Process) WaitNotReady() (reason string) {
	p.t.Helper()
	p.until("/readyz red", func(ctx context.Context) error {
		err := p.readyz(ctx)
		if err == nil {
			return errors.New("/readyz: 200")
		}
		reason = err.Error()
		return nil
	})
	return reason
}

// WaitLog waits until a line of the log holds the text, and returns the last such line.
func (p *Process) WaitLog(text string) (line string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%q in the log", text), func(context.Context) error {
		for l := range strings.Lines(p.Log()) {
			if strings.Contains(l, text) {
				line = strings.TrimRight(l, "\n")
			}
		}
		if line == "" {
			return errors.New("no such line")
		}
		return nil
	})
	return line
}

// until polls; a process that has ended ends the test.
func (p *Process) until(what string, try func(ctx context.Context) error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), StartLimit)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(pause*3/2, 100*time.Millisecond) {
		once, stop := context.WithTimeout(ctx, 5*time.Second)
		err := try(once)
		stop()
		if err == nil {
			return
		}
		if _, exited := p.daemon.Exited(); exited {
			p.t.Fatalf("%s ended; waited for %s: %v\n%s", p.daemon.Name, what, err, p.daemon.Tail(4000))
		}
		select {
		case <-ctx.Done():
			p.t.Fatalf("%s: no %s within %v: %v\n%s", p.daemon.Name, what, StartLimit, err, p.daemon.Tail(4000))
		case <-time.After(pause):
		}
	}
}

// Log returns all that the process has printed, in all its lives.
func (p *Process) Log() string {
	b, err := os.ReadFile(p.daemon.Log)
	if err != nil {
		return ""
	}
	return string(b)
}

// Do sends one command over a connection of its own and returns the reply in the form of package process' Do.
// The test ends when there is none.
func (p *Process) Do(args ...string) string {
	p.t.Helper()
	reply, err := Do(p.Addr, 30*time.Second, args...)
	if err != nil {
		p.t.Fatalf("%s, %s: %v", p.daemon.Name, strings.Join(args, " "), err)
	}
	return reply
}

// Get asks the admin address for a path; the test ends when nobody answers.
func (p *Process) Get(path string) (status int, body string) {
	p.t.Helper()
	a, err := p.http.Get("http://" + p.Admin + path)
	if err != nil {
		p.t.Fatalf("%s: %v", p.daemon.Name, err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		p.t.Fatalf("%s: %s: %v", p.daemon.Name, path, err)
	}
	return a.StatusCode, string(b)
}
