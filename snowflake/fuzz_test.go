package snowflake_test

import (
	"testing"

	"redleaf/snowflake"
)

// FuzzUnpack: what SNOWFLAKE.PARSE takes apart goes together again to the same ID, and nothing else is taken.
func FuzzUnpack(f *testing.F) {
	f.Add(int64(0), uint8(41), uint8(10), uint8(12))
	f.Add(int64(-1), uint8(41), uint8(10), uint8(12))
	f.Add(int64(1<<53), uint8(41), uint8(3), uint8(9))
	f.Add(int64(1<<63-1), uint8(61), uint8(1), uint8(1))
	f.Fuzz(func(t *testing.T, id int64, time, worker, sequence uint8) {
		l := snowflake.Layout{Epoch: 1288834974657, TimeBits: time, WorkerBits: worker, SequenceBits: sequence}
		if time == 0 || worker == 0 || sequence == 0 || int(time)+int(worker)+int(sequence) > 63 {
			return
		}
		p, err := l.Unpack(id)
		fits := id >= 0 && (int(time)+int(worker)+int(sequence) == 63 || id < 1<<(time+worker+sequence))
		if fits != (err == nil) {
			t.Fatalf("%s: %d is unpacked with %v", l, id, err)
		}
		if err == nil && (l.Pack(p.Ms, p.Worker, p.Sequence) != id || p.Worker >= l.Workers() || p.Sequence >= l.Sequences()) {
			t.Fatalf("%s: %d is taken apart as %+v", l, id, p)
		}
	})
}
