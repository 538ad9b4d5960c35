//go:build !unix

package server

import "time"

// cpuTimes is not known elsewhere.
func cpuTimes() (user, sys time.Duration) { return 0, 0 }
