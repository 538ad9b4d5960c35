package snowflake

import (
	"fmt"
	"time"
)

// DefaultEpoch is Twitter's and Leaf's: 2010-11-04 01:42:54.657 UTC, in Unix milliseconds.
const DefaultEpoch = 1288834974657

// Layout says how an ID is put together: time since Epoch, worker number and sequence, from high bits to low. The sign bit
// stays 0, so that the bits add up to 63 at most and every ID is positive.
type Layout struct {
	Epoch        int64 // Unix milliseconds
	TimeBits     uint8
	WorkerBits   uint8
	SequenceBits uint8
}

// Parts is an ID taken apart.
type Parts struct {
	Ms       int64 // Unix milliseconds
	Worker   int64
	Sequence int64
}

// Validate reports a split that can't work. It does not look at the clock; see Left.
func (l Layout) Validate() error {
	sum := int(l.TimeBits) + int(l.WorkerBits) + int(l.SequenceBits)
	switch {
	case l.TimeBits == 0 || l.WorkerBits == 0 || l.SequenceBits == 0:
		return fmt.Errorf("snowflake.bits %s: each of time, worker and sequence needs at least one bit", l)
	case sum > 63:
		return fmt.Errorf("snowflake.bits %s add up to %d: 63 at most, so that no ID is negative", l, sum)
	case l.Epoch < 0:
		return fmt.Errorf("snowflake.epoch %d is before 1970: it is in Unix milliseconds", l.Epoch)
	}
	return nil
}

// String is the form of the setting snowflake.bits: "41-10-12".
func (l Layout) String() string {
	return fmt.Sprintf("%d-%d-%d", l.TimeBits, l.WorkerBits, l.SequenceBits)
}

// Workers and Sequences are how many numbers the bits hold.
func (l Layout) Workers() int64   { return 1 << l.WorkerBits }
func (l Layout) Sequences() int64 { return 1 << l.SequenceBits }

// Last is the last millisecond (Unix) that the time bits can tell.
func (l Layout) Last() int64 {
	span := int64(1)<<l.TimeBits - 1
	if last := l.Epoch + span; last >= l.Epoch {
		return last
	}
	return 1<<63 - 1
}

// Left is the time from now (Unix milliseconds) until the time bits are used up; negative when they are. It is capped at
// the largest Duration, 292 years.
func (l Layout) Left(now int64) time.Duration {
	ms := l.Last() - now
	if ms > int64(1<<63-1)/int64(time.Millisecond) {
		return 1<<63 - 1
	}
	return time.Duration(ms) * time.Millisecond
}

// Fits53 says whether every ID of the layout is exact in a JavaScript number.
func (l Layout) Fits53() bool { return int(l.TimeBits)+int(l.WorkerBits)+int(l.SequenceBits) <= 53 }

// Pack builds the ID. The caller vouches that each part is in range: ms in [Epoch, Last], worker and sequence within their bits.
func (l Layout) Pack(ms, worker, sequence int64) int64 {
	return (ms-l.Epoch)<<(l.WorkerBits+l.SequenceBits) | worker<<l.SequenceBits | sequence
}

// Unpack takes an ID apart. An ID that this layout can't have made is an error.
func (l Layout) Unpack(id int64) (Parts, error) {
	if bits := int(l.TimeBits) + int(l.WorkerBits) + int(l.SequenceBits); id < 0 || (bits < 63 && id>>bits != 0) {
		return Parts{}, fmt.Errorf("%d is no ID of the layout %s", id, l)
	}
	return Parts{
		Ms:       l.Epoch + id>>(l.WorkerBits+l.SequenceBits),
		Worker:   id >> l.SequenceBits & (l.Workers() - 1),
		Sequence: id & (l.Sequences() - 1),
	}, nil
}
