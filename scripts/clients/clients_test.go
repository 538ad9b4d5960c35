// Package clients runs the client matrix: client libraries of many languages, with their default options, against a real
// redleaf: without a password, with one, over TLS, and with the other forms in which a snowflake can be answered.
//
// Each library has a small program, or for Go a function, that prints one line of JSON for each check: what the
// library was asked and what it returned. Nothing is judged there: judge_test.go does it, the same for all languages. All
// clients of one mode work on the same keys at the same time, and live through one kill -9 of the server together. A library
// that is missing is a failure, never a skip.
package clients

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"redleaf/scripts/process"
	"redleaf/scripts/services"
)

// clientLimit bounds one client's run in one mode, a restart of the server included.
const clientLimit = 150 * time.Second

// The checks, in the order in which they are asked for. After "restart" every client goes on with the library's own new
// connection.
var (
	basic    = []string{"connect", "incr", "incrby", "pipeline", "multi", "snowflake", "restart", "snowflakes", "segment", "segments", "range", "get", "refusal", "options"}
	password = []string{"nopassword", "wrongpassword"}
)

// client is one library.
type client struct {
	name     string
	extra    []string // checks that only this one can be asked for
	attempts int      // calls until the first answer after a restart; 0 = 1
	noTLS    bool
	js       bool                                  // reads integers as doubles by default
	plain    bool                                  // has a program of its own kind and is left out where only replies' types differ
	command  func(t *testing.T) (*exec.Cmd, error) // makes the program's command
	run      func(s *session) error                // or it is a function
}

var matrix = []client{
	// An open session says that the connection was closed, and opens another for the next command; so it does with Redis.
	{name: "redis-cli", attempts: 2, extra: []string{"pipe", "hints", "scan"}, run: redisCLI},
	{name: "redis-benchmark", plain: true, run: redisBenchmark},
	{name: "go-redis", extra: []string{"other protocol", "watch"}, run: goRedis},
	{name: "rueidis", extra: []string{"other protocol", "cache"}, run: rueidisClient},
	// A pooled connection that died is found out by using it: the pool's TestOnBorrow is unset by default.
	{name: "redigo", attempts: 2, run: redigoClient},
	{name: "node-redis 5", extra: []string{"tick", "cache"}, js: true, command: node("redis5")},
	{name: "node-redis 6", extra: []string{"tick", "cache"}, js: true, command: node("redis6")},
	{name: "ioredis 5", extra: []string{"tick"}, js: true, command: node("ioredis5")},
	{name: "ioredis 6", extra: []string{"tick"}, js: true, command: node("ioredis6")},
	// Debian's libraries belong to Debian's interpreters, whatever else is in the path.
	{name: "redis-py", extra: []string{"watch"}, command: program("/usr/bin/python3", "python/client.py")},
	{name: "phpredis", command: program("/usr/bin/php", "php/phpredis.php")},
	{name: "predis", attempts: 2, command: program("/usr/bin/php", "php/predis.php")},
	{name: "redis-rb", command: program("/usr/bin/ruby", "ruby/client.rb")},
	// Debian's hiredis 0.14 has no TLS, and leaves connecting again to its caller.
	{name: "hiredis", attempts: 2, noTLS: true, command: hiredis},
}

// mode is one way to start redleaf.
type mode struct {
	name     string
	set      []string
	password bool
	tls      bool
	checks   func(c client) []string // nil: all
}

var modes = []mode{
	{name: "no password"},
	{name: "password", password: true},
	{name: "TLS", password: true, tls: true},
	// Every ID of this layout fits a double, so SNOWFLAKE.NEXT answers integers, and so does INCR on keys that are snowflakes.
	{name: "53 bits", set: []string{"snowflake.bits=41-3-9", `snowflake.keys=["snowflake:*"]`}, checks: func(c client) []string {
		return []string{"connect", "snowflake", "snowflakes", "alias"}
	}},
	// Integers of 63 bits: exact everywhere but in JavaScript, which has to ask its library for strings.
	{name: "forced integers", set: []string{"snowflake.reply=integer"}, checks: func(c client) []string {
		if c.js {
			return []string{"connect", "recipe snowflake", "recipe snowflakes", "recipe incr"}
		}
		return []string{"connect", "snowflake", "snowflakes"}
	}},
}

const (
	secret     = "matrix-secret"
	userName   = "app"
	userSecret = "app-secret"
)

// asked lists the checks of one client in one mode.
func asked(c client, m mode) []string {
	if m.tls && c.noTLS {
		return nil
	}
	if m.checks != nil {
		if c.plain {
			return nil
		}
		return m.checks(c)
	}
	if c.plain {
		checks := []string{"connect", "incr", "incrby", "restart", "pipeline"}
		if m.password {
			checks = append(checks, password...)
		}
		return checks
	}
	checks := slices.Clone(basic)
	if m.password {
		checks = append(checks, password...)
	}
	return append(append(checks, c.extra...), "quit")
}

// line is what a client prints.
type line struct {
	Event   string   `json:"event"` // "restart": kill the server, start it, answer by a line; no check
	Lib     string   `json:"lib"`
	Version string   `json:"version"`
	Check   string   `json:"check"`
	OK      bool     `json:"ok"`
	Detail  string   `json:"detail"`
	IDs     []string `json:"ids"`
}

// session is what a client needs to do its checks.
type session struct {
	t       *testing.T
	ctx     context.Context
	lib     string
	addr    string
	pass    string
	user    string
	userKey string
	ca      string
	checks  []string
	out     func(line)
	restart func() // returns when the server was killed and started
}

func (s *session) host() string { h, _, _ := net.SplitHostPort(s.addr); return h }
func (s *session) port() string { _, p, _ := net.SplitHostPort(s.addr); return p }

// each runs the checks that were asked for and prints a line for each. A check that is not in the table is a failure.
func (s *session) each(version string, checks map[string]func() (detail string, ids []string, err error)) {
	for _, name := range s.checks {
		l := line{Lib: s.lib, Version: version, Check: name}
		check := checks[name]
		if check == nil {
			l.Detail = "this client has no such check"
			s.out(l)
			continue
		}
		var err error
		if l.Detail, l.IDs, err = check(); err != nil {
			l.Detail = err.Error()
		}
		l.OK = err == nil
		s.out(l)
	}
}

// total is the figure of the last line.
var total struct{ libraries, checks, failed int }

func TestMain(m *testing.M) {
	code := m.Run()
	if total.checks > 0 {
		fmt.Printf("clients: %d libraries, %d checks, %d failed\n", total.libraries, total.checks, total.failed)
	}
	os.Exit(code)
}

func TestMatrix(t *testing.T) {
	process.Build(t) // before the clients' clocks run
	results := newScore()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { runMode(t, m, results) })
	}
	total.libraries, total.checks, total.failed = results.count()
	if total.failed > 0 || total.checks == 0 {
		t.Errorf("%d of %d checks failed", total.failed, total.checks)
	}
	if total.libraries != len(matrix) {
		t.Errorf("%d of %d libraries were run", total.libraries, len(matrix))
	}
}

// runMode starts redleaf and all clients that can be asked in this mode, and judges what they print.
func runMode(t *testing.T, m mode, results *score) {
	dir := t.TempDir()
	var config strings.Builder
	if m.password {
		fmt.Fprintf(&config, "[auth]\npassword = %q\n[[auth.user]]\nname = %q\npassword_sha256 = [%q]\ntags = [\"order*\"]\n", secret, userName, hash(userSecret))
	}
	var ca string
	if m.tls {
		files := services.MakeTLS(t, dir)
		fmt.Fprintf(&config, "[tls]\ncert = %q\nkey = %q\n", files.Cert, files.Key)
		ca = files.CA
	}
	server := process.Start(t, process.Options{Config: config.String(), Set: m.set, NoWait: true})
	await(t, server, m, ca)
	if m.name == "forced integers" {
		// A counter far beyond what a double can count.
		if reply := server.Do("SET", "large", fmt.Sprint(large), "FORCE"); reply != "OK" {
			t.Fatalf("SET large %d FORCE: %s", int64(large), reply)
		}
	}
	judge := newJudge(time.Now())
	var wg sync.WaitGroup
	var mu sync.Mutex
	stop := newRendezvous()
	for _, c := range matrix {
		checks := asked(c, m)
		if len(checks) == 0 {
			continue
		}
		var arrived sync.Once
		waits := slices.Contains(checks, "restart")
		if waits {
			stop.expect()
		}
		ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
		defer cancel()
		s := &session{t: t, ctx: ctx, lib: c.name, addr: server.Addr, ca: ca, checks: checks}
		if m.password {
			s.pass, s.user, s.userKey = secret, userName, userSecret
		}
		var lines []line
		s.out = func(l line) { lines = append(lines, l) }
		s.restart = func() {
			arrived.Do(func() { stop.wait(ctx) })
		}
		wg.Go(func() {
			var err error
			if c.run != nil {
				err = guarded(func() error { return c.run(s) })
			} else {
				err = runProgram(t, c, s)
			}
			if waits {
				arrived.Do(stop.leave) // it never came: the others need not wait for it
			}
			mu.Lock()
			defer mu.Unlock()
			results.add(m, c, judge.client(m, c, checks, lines, err))
		})
	}
	if stop.full(t.Context()) {
		server.Restart()
		await(t, server, m, ca)
		stop.release()
	}
	wg.Wait()
	results.add(m, client{name: "all clients together"}, judge.together())
	results.print(t, m)
}

// await waits until both engines answer. It asks as a client does, TLS and password included.
func await(t *testing.T, server *process.Process, m mode, ca string) {
	t.Helper()
	s := &session{addr: server.Addr, ca: ca}
	conf, err := s.tlsConfig()
	if err != nil {
		t.Fatal(err)
	}
	ask := func() error {
		var c net.Conn
		var err error
		dialer := &net.Dialer{Timeout: 5 * time.Second}
		if conf != nil {
			c, err = tls.DialWithDialer(dialer, "tcp", s.addr, conf)
		} else {
			c, err = dialer.Dial("tcp", s.addr)
		}
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		commands := [][]string{{"SNOWFLAKE.NEXT"}, {"EXISTS", "order"}}
		if m.password {
			commands = append([][]string{{"AUTH", secret}}, commands...)
		}
		in := bufio.NewReader(c)
		for _, command := range commands {
			if _, err := c.Write(process.Command(command...)); err != nil {
				return err
			}
			reply, err := process.ReadReply(in)
			if err != nil {
				return err
			}
			if first := reply[:min(len(reply), 1)]; command[0] != "AUTH" && (first < "0" || first > "9") {
				return fmt.Errorf("%s: %s", command[0], reply)
			}
		}
		return nil
	}
	for end := time.Now().Add(process.StartLimit); ; time.Sleep(10 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if !server.Alive() || time.Now().After(end) {
			t.Fatalf("redleaf does not answer: %v\n%s", err, server.Log())
		}
	}
}

// guarded turns a panic of a library into a failure of its own checks.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

// runProgram starts a client's program and takes its lines.
func runProgram(t *testing.T, c client, s *session) error {
	cmd, err := c.command(t)
	if err != nil {
		return err
	}
	env := cmd.Env
	if env == nil {
		env = os.Environ()
	}
	cmd.Env = append(env, "MATRIX_HOST="+s.host(), "MATRIX_PORT="+s.port(), "MATRIX_PASSWORD="+s.pass, "MATRIX_CA="+s.ca,
		"MATRIX_USER="+s.user, "MATRIX_USER_PASSWORD="+s.userKey, "MATRIX_CHECKS="+strings.Join(s.checks, ","))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	unwatch := context.AfterFunc(s.ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer unwatch()
	in := bufio.NewReader(stdout)
	var bad error
	for {
		text, err := in.ReadBytes('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) {
				bad = err
			}
			break
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			bad = fmt.Errorf("printed %q: %w", text, err)
			continue
		}
		if l.Event == "restart" {
			s.restart()
			if _, err := io.WriteString(stdin, "go on\n"); err != nil {
				bad = err
			}
			continue
		}
		s.out(l)
	}
	err = cmd.Wait()
	switch {
	case s.ctx.Err() != nil:
		err = fmt.Errorf("not done after %v", clientLimit)
	case err == nil:
		err = bad
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, stderr.Bytes())
	}
	return nil
}

// rendezvous is where all clients of a mode wait for the restart.
type rendezvous struct {
	mu       sync.Mutex
	missing  int
	waiting  int
	complete chan struct{} // closed when nobody is missing any more
	released chan struct{}
}

func newRendezvous() *rendezvous {
	return &rendezvous{complete: make(chan struct{}), released: make(chan struct{})}
}

func (r *rendezvous) expect() { r.missing++ }

func (r *rendezvous) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing--
	if r.missing == 0 {
		close(r.complete)
	}
}

func (r *rendezvous) wait(ctx context.Context) {
	r.mu.Lock()
	r.waiting++
	r.mu.Unlock()
	r.leave()
	select {
	case <-r.released:
	case <-ctx.Done():
	}
}

// full waits for the last one and tells whether anybody waits at all.
func (r *rendezvous) full(ctx context.Context) bool {
	r.mu.Lock()
	none := r.missing == 0
	r.mu.Unlock()
	if none {
		return false
	}
	select {
	case <-r.complete:
	case <-ctx.Done():
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting > 0
}

func (r *rendezvous) release() { close(r.released) }

// program makes the command of a client that is a script of this folder.
func program(interpreter, script string) func(*testing.T) (*exec.Cmd, error) {
	return func(*testing.T) (*exec.Cmd, error) {
		path, err := filepath.Abs(script)
		if err != nil {
			return nil, err
		}
		if _, err := exec.LookPath(interpreter); err != nil {
			return nil, fmt.Errorf("%w: scripts/deps.sh clients installs it", err)
		}
		return exec.Command(interpreter, path), nil
	}
}

// hiredis compiles the C client.
func hiredis(t *testing.T) (*exec.Cmd, error) {
	out := filepath.Join(t.TempDir(), "client")
	if text, err := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-o", out, "c/client.c", "-lhiredis").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w (scripts/deps.sh clients installs it and libhiredis-dev)\n%s", err, text)
	}
	return exec.Command(out), nil
}
