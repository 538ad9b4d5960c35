package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func shell(t *testing.T, script string) *Daemon {
	dir := Dir(t, "test")
	d := &Daemon{Name: "shell", Path: "/bin/sh", Args: []string{"-c", script}, Dir: dir, Log: filepath.Join(dir, "log"), T: t}
	d.EndWith(t)
	return d
}

func TestDaemonLives(t *testing.T) {
	d := shell(t, `trap 'echo bye; exit 7' TERM; echo up >> up; while :; do sleep 0.01; done`)
	d.Ready = func(context.Context) error {
		_, err := os.Stat(filepath.Join(d.Dir, "up"))
		return err
	}
	d.Start()
	if err := d.Launch(); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("a second process beside the first: %v", err)
	}
	d.Pause()
	if !d.Paused() || !d.Alive() {
		t.Errorf("paused %v, alive %v, want both", d.Paused(), d.Alive())
	}
	d.Resume()
	if code := d.Stop(); code != 7 {
		t.Errorf("exit code %d, want the trap's 7", code)
	}
	if !strings.Contains(d.Tail(100), "bye") {
		t.Errorf("the log does not hold the last word:\n%s", d.Tail(100))
	}
	d.Start()
	if d.Life() != 2 || d.Pid() == 0 {
		t.Errorf("life %d, want 2", d.Life())
	}
	d.Pause()
	d.Kill() // also while it is paused
	if d.Alive() {
		t.Error("alive after kill -9")
	}
	if code, exited := d.Wait(0); code != -1 || !exited {
		t.Errorf("exit %d, %v, want -1 of a signal", code, exited)
	}
}

func TestDaemonThatEndsEarlyIsNotWaitedFor(t *testing.T) {
	d := shell(t, "echo broken; exit 3")
	d.Ready = func(context.Context) error { return errors.New("no") }
	if err := d.Launch(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err := d.WaitReady()
	if err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v, want one with exit status 3", err)
	}
	if d := time.Since(began); d > StartLimit/2 {
		t.Errorf("it took %v", d)
	}
}

func TestKillTakesTheGroup(t *testing.T) {
	d := shell(t, "sleep 1000 & echo $! > child; wait")
	d.Ready = func(context.Context) error {
		b, err := os.ReadFile(filepath.Join(d.Dir, "child"))
		if err == nil && len(b) == 0 {
			err = errors.New("empty")
		}
		return err
	}
	d.Start()
	group := d.Pid()
	d.Kill()
	end := time.Now().Add(StartLimit)
	for syscall.Kill(-group, 0) == nil {
		// What is left is a child that waits to be reaped by init.
		left := false
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, s := range stats {
			b, _ := os.ReadFile(s)
			f := strings.Fields(string(b[max(strings.LastIndex(string(b), ")")+1, 0):]))
			left = left || len(f) > 2 && f[0] != "Z" && f[2] == fmt.Sprint(group)
		}
		if !left {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a child outlived its server")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestReplies(t *testing.T) {
	for in, want := range map[string]string{
		"+PONG\r\n":                       "PONG",
		"-ERR no\r\n":                     "ERR no",
		":42\r\n":                         "42",
		"$3\r\na\nb\r\n":                  "a\nb",
		"$-1\r\n":                         "",
		"*3\r\n:1\r\n$1\r\nx\r\n*0\r\n":   "1\nx\n",
		"*2\r\n*2\r\n:1\r\n:2\r\n:3\r\n:": "1\n2\n3",
	} {
		got, err := ReadReply(bufio.NewReader(strings.NewReader(in)))
		if err != nil || got != want {
			t.Errorf("%q is read as %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "\r\n", "?1\r\n", "$x\r\n", "$5\r\nab\r\n", "*1\r\n"} {
		if got, err := ReadReply(bufio.NewReader(strings.NewReader(in))); err == nil {
			t.Errorf("%q is read as %q, want an error", in, got)
		}
	}
	if got := string(Command("INCR", "order")); got != "*2\r\n$4\r\nINCR\r\n$5\r\norder\r\n" {
		t.Errorf("command %q", got)
	}
}

func TestRedleaf(t *testing.T) {
	p := Start(t, Options{})
	if s := p.Do("INCR", "order"); s != "1" {
		t.Errorf("the first INCR: %q, want 1", s)
	}
	if status, body := p.Get("/livez"); status != 200 {
		t.Errorf("/livez: %d %s", status, body)
	}
	if p.Instance() != "redleaf#1" {
		t.Errorf("instance %q, want redleaf#1", p.Instance())
	}
	p.Restart()
	if p.Instance() != "redleaf#2" {
		t.Errorf("instance %q, want redleaf#2", p.Instance())
	}
	if s := p.Do("INCR", "order"); s == "1" {
		t.Error("after kill -9 the first ID came again")
	}
	if code := p.Term(); code != 0 {
		t.Errorf("exit code %d at SIGTERM, want 0", code)
	}
	code, out := RunToExit(t, Options{Set: []string{"segment.stepp=5"}})
	if code != 1 || !strings.Contains(out, "segment.stepp") {
		t.Errorf("an unknown setting ends with %d, %q; want 1 and its name", code, out)
	}
}
