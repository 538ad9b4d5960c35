package snowflake

import "time"

// What tests look at from outside.

// SetSeed makes the starts of quiet milliseconds repeatable. Before Start.
func (g *Generator) SetSeed(seed uint64) { g.seed = func() uint64 { return seed } }

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
