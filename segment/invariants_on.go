//go:build invariants || race

package segment

import "fmt"

// invariants tells that this build checks the invariants of DESIGN.md where it can: tests do.
const invariants = true

func check(ok bool, format string, args ...any) {
	if !ok {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}
