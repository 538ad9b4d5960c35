package snowflake_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"redleaf/snowflake"
)

func TestLayoutArithmetic(t *testing.T) {
	// Literal values, worked out by hand from Leaf's layout.
	if got := leaf.Last(); got != 3487858230208 {
		t.Errorf("Last %d, want 3487858230208", got)
	}
	if got := time.UnixMilli(leaf.Last()).UTC().Format(time.RFC3339Nano); got != "2080-07-10T17:30:30.208Z" {
		t.Errorf("Last %s", got)
	}
	if leaf.Workers() != 1024 || leaf.Sequences() != 4096 || leaf.Fits53() || leaf.String() != "41-10-12" {
		t.Errorf("%d workers, %d sequences, fits %v, %s", leaf.Workers(), leaf.Sequences(), leaf.Fits53(), leaf)
	}
	if got := leaf.Pack(1288834974657+1, 3, 5); got != 1<<22|3<<12|5 {
		t.Errorf("Pack %d", got)
	}
	p, err := leaf.Unpack(1<<22 | 3<<12 | 5)
	if want := (snowflake.Parts{Ms: 1288834974658, Worker: 3, Sequence: 5}); err != nil || p != want {
		t.Errorf("Unpack %v, %v", p, err)
	}
	js := snowflake.Layout{Epoch: snowflake.DefaultEpoch, TimeBits: 41, WorkerBits: 3, SequenceBits: 9}
	if top := js.Pack(js.Last(), 7, 511); !js.Fits53() || top != 1<<53-1 {
		t.Errorf("41-3-9: fits %v, largest %d", js.Fits53(), top)
	}
	if got := leaf.Left(leaf.Last() - 1500); got != 1500*time.Millisecond {
		t.Errorf("Left %s", got)
	}
	if got := (snowflake.Layout{TimeBits: 61, WorkerBits: 1, SequenceBits: 1}).Left(0); got != 1<<63-1 {
		t.Errorf("Left %s", got)
	}
	if got := leaf.Left(leaf.Last() + 1); got != -time.Millisecond {
		t.Errorf("Left %s", got)
	}
}

func TestLayoutRefused(t *testing.T) {
	for _, c := range []struct {
		l    snowflake.Layout
		want string
	}{
		{snowflake.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 13}, "snowflake.bits 41-10-13 add up to 64: 63 at most, so that no ID is negative"},
		{snowflake.Layout{TimeBits: 0, WorkerBits: 10, SequenceBits: 12}, "snowflake.bits 0-10-12: each of time, worker and sequence needs at least one bit"},
		{snowflake.Layout{TimeBits: 200, WorkerBits: 100, SequenceBits: 100}, "snowflake.bits 200-100-100 add up to 400: 63 at most, so that no ID is negative"},
		{snowflake.Layout{Epoch: -1, TimeBits: 41, WorkerBits: 10, SequenceBits: 12}, "snowflake.epoch -1 is before 1970: it is in Unix milliseconds"},
	} {
		if err := c.l.Validate(); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	for _, id := range []int64{-1, -1 << 63, 1 << 53} {
		js := snowflake.Layout{TimeBits: 41, WorkerBits: 3, SequenceBits: 9}
		if p, err := js.Unpack(id); err == nil {
			t.Errorf("%d unpacks to %v", id, p)
		}
	}
}

// Every layout: what is packed is unpacked, IDs are positive and in the order of their parts.
func TestLayoutRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := snowflake.Layout{Epoch: rapid.Int64Range(0, 1<<42).Draw(t, "epoch")}
		l.TimeBits = uint8(rapid.IntRange(1, 61).Draw(t, "time"))
		l.WorkerBits = uint8(rapid.IntRange(1, 62-int(l.TimeBits)).Draw(t, "worker"))
		l.SequenceBits = uint8(rapid.IntRange(1, 63-int(l.TimeBits)-int(l.WorkerBits)).Draw(t, "sequence"))
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		draw := func() (snowflake.Parts, int64) {
			p := snowflake.Parts{
				Ms:       rapid.Int64Range(l.Epoch, l.Last()).Draw(t, "ms"),
				Worker:   rapid.Int64Range(0, l.Workers()-1).Draw(t, "n"),
				Sequence: rapid.Int64Range(0, l.Sequences()-1).Draw(t, "seq"),
			}
			id := l.Pack(p.Ms, p.Worker, p.Sequence)
			if got, err := l.Unpack(id); err != nil || got != p || id < 0 {
				t.Fatalf("%v became %d became %v, %v", p, id, got, err)
			}
			return p, id
		}
		p, a := draw()
		q, b := draw()
		if (p.Ms < q.Ms && a >= b) || (p == q) != (a == b) {
			t.Fatalf("%v is %d, %v is %d", p, a, q, b)
		}
	})
}
