package snowflake

import "time"

// What tests look at from outside.

// SetSeed makes the starts of quiet milliseconds repeatable. Before Start.
func (g *Generator) SetSeed(seed uint64) { g.seed = func() uint64 { return seed } }

// Stale is TryNext for a caller who looked up the number now and goes on later.
func (g *Generator) Stale() func() (int64, bool) {
	i := g.cur.Load()
	return func() (int64, bool) {
		a := g.take(i, 1, 1, 0)
		return a.first, a.verdict == issued
	}
}

const (
	Lead       = lead
	Warm       = warm
	StartWait  = startWait
	WatchEvery = watchEvery
	WindowWait = windowWait
	Standstill = standstill
	AlarmEvery = alarmEvery
	CatchUp    = catchUp * time.Millisecond
	Invariants = invariants
)
