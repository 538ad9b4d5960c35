//go:build invariants || race

package snowflake

import "fmt"

// invariants turns on assertions that a release can't afford with every ID.
const invariants = true

// assertIssued checks a step of the state from old to new, which took the timestamp ts (Unix ms), against the registry's own
// word: I7 (ts inside the window granted) and I8 (timestamp and sequence strictly increase).
func (i *issuer) assertIssued(old, new, ts int64) {
	if w := i.worker.Window(); ts <= w.Base || ts > w.Until {
		panic(fmt.Sprintf("I7: worker %d issued at %d outside its window %v", i.worker.ID(), ts, w))
	}
	if new <= old {
		panic(fmt.Sprintf("I8: worker %d went from state %d to %d", i.worker.ID(), old, new))
	}
}
