//go:build !linux

package datadir

import (
	"os"
	"strconv"
	"syscall"
)

func thisMachine() *Machine {
	host, _ := os.Hostname()
	return &Machine{Host: host}
}

func placeOf(name string) (string, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	return strconv.FormatUint(uint64(fi.Sys().(*syscall.Stat_t).Ino), 10), nil
}

func networkFS(string) string { return "" }
