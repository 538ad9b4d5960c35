//go:build !invariants && !race

package zookeeper

const invariants = false

func assert(bool, string, ...any) {}
