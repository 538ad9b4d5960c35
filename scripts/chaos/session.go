package main

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// session stands in for a test: what is started in it ends with it.
type session struct {
	mu       sync.Mutex
	cleanups []func()
	failed   bool
	began    time.Time
}

func (s *session) Helper()      {}
func (s *session) Name() string { return "chaos" }
func (s *session) Failed() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.failed }
func (s *session) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *session) Logf(f string, a ...any) {
	fmt.Printf("%7.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(f, a...))
}

func (s *session) Errorf(f string, a ...any) {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	s.Logf(f, a...)
}

func (s *session) Fatalf(f string, a ...any) {
	s.Errorf(f, a...)
	s.end()
	os.Exit(1)
}

// end undoes what was started, the last first.
func (s *session) end() {
	for {
		s.mu.Lock()
		n := len(s.cleanups)
		if n == 0 {
			s.mu.Unlock()
			return
		}
		f := s.cleanups[n-1]
		s.cleanups = s.cleanups[:n-1]
		s.mu.Unlock()
		f()
	}
}
