//go:build !race

package checker

// The race detector makes the large test ten times as long; it says the same about a fifth of it.
const underRace = false
