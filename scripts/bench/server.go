package main

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is a process under measurement.
type server struct {
	name string
	cmd  *exec.Cmd
	addr string
	dir  string

	again   func() *exec.Cmd // makes the same command anew
	startup time.Duration    // from exec to the first ID
}

// load is what one run of redis-benchmark told.
type load struct {
	cpu  float64 // server CPU, µs per command
	rate float64 // commands per second
	p50  float64 // ms
	busy float64 // server CPU ÷ time: of one core
}

func cores() int { return runtime.NumCPU() }

func redisVersion() string {
	out, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		return "no redis-server"
	}
	f := strings.Fields(string(out))
	return "redis-server " + strings.TrimPrefix(f[min(2, len(f)-1)], "v=")
}

func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

func startRedis(args ...string) (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	all := append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"}, args...)
	return start("redis", addr, func(dir string) *exec.Cmd {
		return exec.Command("redis-server", append(all, "--dir", dir)...)
	})
}

func startRedleaf(bin string, args ...string) (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	path, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	return start("redleaf", addr, func(dir string) *exec.Cmd {
		if !slices.Contains(args, "-admin") {
			args = append(args, "-admin", "")
		}
		return exec.Command(path, append([]string{"-listen", addr, "-data-dir", filepath.Join(dir, "data")}, args...)...)
	})
}

// start runs the process in a directory of its own and waits until it answers a command.
func start(name, addr string, command func(dir string) *exec.Cmd) (*server, error) {
	dir, err := os.MkdirTemp("", "redleaf-bench-")
	if err != nil {
		return nil, err
	}
	s := &server{name: name, addr: addr, dir: dir, again: func() *exec.Cmd { return command(dir) }}
	if err := s.exec(); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// exec starts the process and waits for its first ID.
func (s *server) exec() error {
	logFile, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer logFile.Close()
	began := time.Now()
	s.cmd = s.again()
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = s.dir, logFile, logFile
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		if reply, err := s.do("INCR", "warm"); err == nil && strings.HasPrefix(reply, ":") {
			s.startup = time.Since(began)
			return nil
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("%s gave no answer within 20 s:\n%s", s.name, text)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *server) stop() {
	s.term()
	os.RemoveAll(s.dir)
}

// restart stops the process cleanly and starts it on the same data.
func (s *server) restart() error {
	s.term()
	return s.exec()
}

func (s *server) term() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(15 * time.Second):
		_ = s.cmd.Process.Kill()
		<-done
	}
}

// do sends one command and reads the first line of its reply.
func (s *server) do(args ...string) (string, error) {
	c, err := net.DialTimeout("tcp", s.addr, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write(encode(nil, args...)); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// encode appends a command in RESP.
func encode(b []byte, args ...string) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(len(args)), 10)
	b = append(b, '\r', '\n')
	for _, a := range args {
		b = append(b, '$')
		b = strconv.AppendInt(b, int64(len(a)), 10)
		b = append(b, '\r', '\n')
		b = append(b, a...)
		b = append(b, '\r', '\n')
	}
	return b
}

// cpuTime is the CPU time of all threads, in nanoseconds precision where the kernel keeps it.
func (s *server) cpuTime() (time.Duration, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.cmd.Process.Pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("%s: no CPU figures", s.name)
	}
	var sum int64
	for _, t := range tasks {
		data, err := os.ReadFile(t)
		if err != nil {
			continue // a thread that ended; Go keeps its threads
		}
		f := strings.Fields(string(data))
		ns, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += ns
	}
	return time.Duration(sum), nil
}

// rss is the resident memory in bytes.
func (s *server) rss() (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

const clients = 50

// load runs redis-benchmark with 50 connections.
func (s *server) load(depth, n int, command []string) (load, error) {
	_, port, _ := net.SplitHostPort(s.addr)
	args := append([]string{"-p", port, "-c", strconv.Itoa(clients), "-P", strconv.Itoa(depth), "-n", strconv.Itoa(n), "--csv"}, command...)
	before, err := s.cpuTime()
	if err != nil {
		return load{}, err
	}
	began := time.Now()
	out, err := exec.Command("redis-benchmark", args...).Output()
	if err != nil {
		return load{}, fmt.Errorf("redis-benchmark against %s: %w", s.name, err)
	}
	took := time.Since(began)
	after, err := s.cpuTime()
	if err != nil {
		return load{}, err
	}
	recs, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	if err != nil || len(recs) < 2 || len(recs[1]) < 5 {
		return load{}, fmt.Errorf("redis-benchmark against %s said %q", s.name, out)
	}
	rate, err1 := strconv.ParseFloat(recs[1][1], 64)
	p50, err2 := strconv.ParseFloat(recs[1][4], 64)
	if err1 != nil || err2 != nil {
		return load{}, fmt.Errorf("redis-benchmark against %s said %q", s.name, out)
	}
	used := after - before
	return load{cpu: float64(used.Nanoseconds()) / 1000 / float64(n), rate: rate, p50: max(p50, 0.001), busy: used.Seconds() / took.Seconds()}, nil
}

// calibrate finds how many requests take about the time asked for.
func (s *server) calibrate(depth int, seconds float64, command []string) (int, error) {
	l, err := s.load(depth, 20_000*min(depth, 10), command)
	if err != nil {
		return 0, err
	}
	return max(int(l.rate*seconds), 10_000), nil
}
