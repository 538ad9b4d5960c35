//go:build invariants || race

package zookeeper

import "fmt"

// invariants: the numbered promises of DESIGN.md are checked where they could be broken.
const invariants = true

func assert(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Sprintf(format, args...))
	}
}
