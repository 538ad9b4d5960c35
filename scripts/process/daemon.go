// Package process runs the programs that tests need: redleaf itself, and the servers of package services on top of Daemon.
//
// Nothing outlives the test: every child is in a process group of its own, is killed by the kernel when the test binary
// dies, and is killed with its group when the test ends. Its log is a file in its own folder, and the end of the log is
// printed when the test has failed.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// T is the part of testing.TB used here, so that a command can start the same servers without a test.
type T interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
	Failed() bool
	Name() string
}

// StartLimit bounds how long any child may take to answer its first request. It is generous: tests share machines.
const StartLimit = 90 * time.Second

// Daemon is a child process that can be started, hurt and started again. Its methods are safe for concurrent use,
// but one goroutine should do the starting and stopping.
type Daemon struct {
	Name  string // for messages
	Path  string
	Args  []string
	Env   []string // nil = this process' environment
	Dir   string   // working directory
	Log   string   // file that standard output and error are appended to
	User  *syscall.Credential
	Ready func(ctx context.Context) error // asks the server something real; nil = ready when started
	T     T

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the process of this life was reaped
	life int
}

// Start starts the process and waits until Ready succeeds. The test ends when it does not.
func (d *Daemon) Start() {
	d.T.Helper()
	if err := d.Launch(); err != nil {
		d.T.Fatalf("%v", err)
	}
	if err := d.WaitReady(); err != nil {
		d.T.Fatalf("%v\n%s", err, d.Tail(4000))
	}
}

// Launch starts the process and returns without waiting for it to be ready.
func (d *Daemon) Launch() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd != nil && !closed(d.done) {
		return fmt.Errorf("%s is already running as process %d", d.Name, d.cmd.Process.Pid)
	}
	log, err := os.OpenFile(d.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(d.Path, d.Args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = d.Dir, d.Env, log, log
	// Pdeathsig is set after the credential: the kernel forgets it when a process changes its user, which is why servers
	// are not left to change theirs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: d.User}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s does not start: %w", d.Name, err)
	}
	done := make(chan struct{})
	d.cmd, d.done = cmd, done
	d.life++
	go func() {
		_ = cmd.Wait() // the exit code is read from ProcessState
		close(done)
	}()
	return nil
}

// WaitReady waits until Ready succeeds, the process has ended, or StartLimit is over.
func (d *Daemon) WaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), StartLimit)
	defer cancel()
	if d.Ready == nil {
		return nil
	}
	for pause := 5 * time.Millisecond; ; pause = min(pause*3/2, 100*time.Millisecond) {
		if _, exited := d.Exited(); exited {
			return fmt.Errorf("%s ended with %s before it was ready", d.Name, d.status())
		}
		try, stop := context.WithTimeout(ctx, 5*time.Second)
		last := d.Ready(try)
		stop()
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %v: %w", d.Name, StartLimit, last)
		case <-time.After(pause):
		}
	}
}

// Pid returns the id of the process of this life, or 0 before the first start.
func (d *Daemon) Pid() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil {
		return 0
	}
	return d.cmd.Process.Pid
}

// Life counts the starts: 1 for the first process, 2 after a restart.
func (d *Daemon) Life() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.life
}

// Alive tells whether the process runs; a stopped (SIGSTOP) one does.
func (d *Daemon) Alive() bool {
	_, exited := d.Exited()
	return d.Pid() != 0 && !exited
}

// Exited returns the exit code once the process was reaped; a process that a signal ended has code -1.
func (d *Daemon) Exited() (code int, exited bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil || !closed(d.done) {
		return 0, false
	}
	return d.cmd.ProcessState.ExitCode(), true
}

// Done is closed when the process of this life was reaped. It is nil before the first start.
func (d *Daemon) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

// Wait waits for the process to end by itself, at most so long.
func (d *Daemon) Wait(limit time.Duration) (code int, exited bool) {
	if done := d.Done(); done != nil {
		select {
		case <-done:
		case <-time.After(limit):
		}
	}
	return d.Exited()
}

// Signal sends a signal to the process.
func (d *Daemon) Signal(s syscall.Signal) {
	d.T.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil || closed(d.done) {
		d.T.Errorf("%s does not run: signal %v was not sent", d.Name, s)
		return
	}
	// The process is not reaped under this lock unless done is closed, so the number is still its own.
	if err := d.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		d.T.Errorf("%s: signal %v: %v", d.Name, s, err)
	}
}

// Kill ends the process and its group by SIGKILL and waits until the kernel has taken it away.
// A process that is gone already is no error.
func (d *Daemon) Kill() {
	d.mu.Lock()
	cmd, done := d.cmd, d.done
	d.mu.Unlock()
	if cmd == nil {
		return
	}
	if !closed(done) {
		_ = cmd.Process.Kill()
	}
	<-done
	// Children of the server (Galera starts rsync) are in its group, whose number stays taken as long as one of them lives.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
}

// Stop sends SIGTERM and waits for the end. The test fails when it takes longer than StartLimit, and the process is killed.
func (d *Daemon) Stop() (code int) {
	d.T.Helper()
	if !d.Alive() {
		code, _ = d.Exited()
		return code
	}
	d.Signal(syscall.SIGTERM)
	code, exited := d.Wait(StartLimit)
	if !exited {
		d.T.Errorf("%s did not end within %v of SIGTERM", d.Name, StartLimit)
	}
	d.Kill()
	return code
}

// Pause stops the process as SIGSTOP does and waits until every thread of it stands still.
func (d *Daemon) Pause() {
	d.T.Helper()
	d.Signal(syscall.SIGSTOP)
	pid := d.Pid()
	for end := time.Now().Add(StartLimit); ; time.Sleep(time.Millisecond) {
		if d.frozen(pid) {
			return
		}
		if time.Now().After(end) || !d.Alive() {
			d.T.Errorf("%s did not stop at SIGSTOP", d.Name)
			return
		}
	}
}

// Paused tells whether the process stands still by Pause.
func (d *Daemon) Paused() bool { return d.Alive() && d.frozen(d.Pid()) }

func (d *Daemon) frozen(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(tasks) == 0 {
		return false
	}
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		// "pid (name) S ...": the name may hold anything, so the last parenthesis counts.
		i := bytes.LastIndexByte(b, ')')
		if i < 0 || i+2 >= len(b) || (b[i+2] != 'T' && b[i+2] != 't') {
			return false
		}
	}
	return true
}

// Resume lets a paused process go on.
func (d *Daemon) Resume() {
	d.T.Helper()
	d.Signal(syscall.SIGCONT)
}

// Tail returns the last n bytes of the log, with a title.
func (d *Daemon) Tail(n int64) string {
	f, err := os.Open(d.Log)
	if err != nil {
		return fmt.Sprintf("--- %s has no log: %v", d.Name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	at := max(info.Size()-n, 0)
	b := make([]byte, info.Size()-at)
	k, _ := f.ReadAt(b, at)
	return fmt.Sprintf("--- end of the log of %s (%s)\n%s---", d.Name, d.status(), strings.ToValidUTF8(string(b[:k]), "?"))
}

func (d *Daemon) status() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.cmd == nil:
		return "never started"
	case !closed(d.done):
		return fmt.Sprintf("running as process %d", d.cmd.Process.Pid)
	}
	return d.cmd.ProcessState.String()
}

// EndWith makes the test's end kill the process, and print the end of its log if the test has failed.
func (d *Daemon) EndWith(t T) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", d.Tail(4000))
		}
		d.Kill()
	})
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
