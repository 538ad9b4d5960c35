package services

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"redleaf/scripts/ports"
	"redleaf/scripts/process"
)

// Redis is one redis-server without persistence.
type Redis struct {
	t      T
	daemon *process.Daemon
	addr   string
}

// StartRedis starts redis-server with more arguments, in its own form: "--appendonly", "yes". It must answer PING
// without a password, or with NOAUTH.
func StartRedis(t T, args ...string) *Redis {
	t.Helper()
	dir := process.Dir(t, "redis")
	port := ports.Free()
	r := &Redis{t: t, addr: fmt.Sprintf("127.0.0.1:%d", port)}
	r.daemon = &process.Daemon{
		Name: fmt.Sprintf("redis-server on port %d", port), Path: need(t, "redis-server"), Dir: dir, Log: filepath.Join(dir, "log"), T: t,
		Args: append([]string{"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
			"--daemonize", "no"}, args...),
		Ready: func(context.Context) error {
			reply, err := process.Do(r.addr, 2*time.Second, "PING")
			if err != nil {
				return err
			}
			if reply != "PONG" && !strings.HasPrefix(reply, "NOAUTH") {
				return fmt.Errorf("PING was answered by %q", reply)
			}
			return nil
		},
	}
	r.daemon.EndWith(t)
	r.daemon.Start()
	return r
}

// Addr returns 127.0.0.1:port.
func (r *Redis) Addr() string { return r.addr }

// Pid returns the id of the server's process.
func (r *Redis) Pid() int { return r.daemon.Pid() }

// Daemon gives access to the process itself.
func (r *Redis) Daemon() *process.Daemon { return r.daemon }

// Do sends one command and returns the reply in process.Do's form; the test ends when there is none.
func (r *Redis) Do(args ...string) string {
	r.t.Helper()
	reply, err := process.Do(r.addr, 10*time.Second, args...)
	if err != nil {
		r.t.Fatalf("redis-server, %s: %v", strings.Join(args, " "), err)
	}
	return reply
}

// Kill ends the server with SIGKILL.
func (r *Redis) Kill() { r.t.Helper(); r.daemon.Kill() }

// Stop ends the server with SIGTERM.
func (r *Redis) Stop() { r.t.Helper(); r.daemon.Stop() }

// Start starts it again on the same port.
func (r *Redis) Start() { r.t.Helper(); r.daemon.Start() }

// Pause stops the process by SIGSTOP.
func (r *Redis) Pause() { r.t.Helper(); r.daemon.Pause() }

// Resume lets it go on.
func (r *Redis) Resume() { r.t.Helper(); r.daemon.Resume() }
