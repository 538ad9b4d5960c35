//go:build !invariants && !race

package snowflake

const invariants = false

func (i *issuer) assertIssued(old, new, ts int64) {}
