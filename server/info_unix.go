//go:build unix

package server

import (
	"syscall"
	"time"
)

// cpuTimes is what this process used of the processors so far.
func cpuTimes() (user, sys time.Duration) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, 0
	}
	return time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())
}
