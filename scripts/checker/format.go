package checker

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// The history file.
//
//	file   = "redleaf ids\n" version(1 byte) start(8 bytes, little endian: Unix nanoseconds of time 0) block...
//	block  = kind(1 byte) length(uvarint) payload crc32c(4 bytes, little endian, over kind and payload)
//
// Numbers in payloads are varints: "u" unsigned, "z" zigzag. Times are nanoseconds since time 0, of a clock that does not
// step. Names are numbers of strings; string 0 is the empty one.
//
//	's'  number u, bytes              a string; it comes before any block that uses its number
//	'r'  number u, name u             a recorder
//	'e'  recorder u, count u, events  what one recorder saw, in the order of its replies
//	'l'  key u, epoch z, time u, worker u, sequence u      the IDs of this key are snowflakes of this layout
//	'x'  time u, count u, words u...  from now on only these error words are expected
//	'f'  number u, time u, name u, 0|1                     a fault begins, is cured
//	'g'  0|1, key u, instance u, first z, last z           the store granted a range to, took it back from
//	'h'  key u, bound z               every ID of the key is below it
//	'.'  events u                     the end; without it the history is cut short
//
// An event is a flag byte and the fields that the flags call for. Deltas start from 0 in each block.
//
//	bits 0-1  kindID: id z delta · kindRange: first z delta, last-first u · kindList: count u, ids z delta each · kindNone
//	flagConn  connection u (0: unknown), instance u     follow, else as in the event before
//	flagKey   key u                                     "
//	flagCmd   command u                                 "
//	flagWord  the error word u follows; kindNone without it is a request whose reply never came
//
//	flags, invoke z delta, return z delta, [connection, instance], [key], [command], [word], [IDs]
const (
	magic   = "redleaf ids\n"
	version = 1

	kindID    = 0
	kindRange = 1
	kindList  = 2
	kindNone  = 3
	kindMask  = 3

	flagConn = 1 << 2
	flagKey  = 1 << 3
	flagCmd  = 1 << 4
	flagWord = 1 << 5

	headerSize = len(magic) + 1 + 8

	// blockSize is when a recorder writes its block. A list may make a block longer; maxBlock is what a reader accepts.
	blockSize = 32 << 10
	maxBlock  = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendBlock(dst []byte, kind byte, payload []byte) []byte {
	dst = append(dst, kind)
	dst = binary.AppendUvarint(dst, uint64(len(payload)))
	dst = append(dst, payload...)
	return binary.LittleEndian.AppendUint32(dst, checksum(kind, payload))
}

func checksum(kind byte, payload []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, []byte{kind}), castagnoli, payload)
}

// block is one block of a file.
type block struct {
	kind    byte
	payload []byte
	at      int64 // of the payload in the file
}

// errCut is the end of a file that its writer did not finish.
var errCut = errors.New("the history is cut short")

// blocks reads a file from start to end. The payload is good until the next call.
type blocks struct {
	r   *bufio.Reader
	at  int64
	buf []byte
}

func (b *blocks) next() (block, error) {
	kind, err := b.r.ReadByte()
	if err != nil {
		return block{}, err // io.EOF: between two blocks
	}
	n, err := binary.ReadUvarint(b.r)
	if err != nil {
		return block{}, errCut
	}
	if n > maxBlock {
		return block{}, fmt.Errorf("block of %d bytes at offset %d", n, b.at)
	}
	head := int64(1 + len(binary.AppendUvarint(nil, n)))
	if uint64(cap(b.buf)) < n {
		b.buf = make([]byte, n)
	}
	b.buf = b.buf[:n]
	var sum [4]byte
	if _, err := io.ReadFull(b.r, b.buf); err != nil {
		return block{}, errCut
	}
	if _, err := io.ReadFull(b.r, sum[:]); err != nil {
		return block{}, errCut
	}
	if got := binary.LittleEndian.Uint32(sum[:]); got != checksum(kind, b.buf) {
		return block{}, fmt.Errorf("the block at offset %d is damaged: its checksum does not fit", b.at)
	}
	at := b.at + head
	b.at = at + int64(n) + 4
	return block{kind, b.buf, at}, nil
}

// fields takes varints off a payload and remembers the first mistake.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) u() uint64 {
	v, n := binary.Uvarint(f.b)
	if n <= 0 {
		f.bad, f.b = true, nil
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *fields) z() int64 {
	v, n := binary.Varint(f.b)
	if n <= 0 {
		f.bad, f.b = true, nil
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *fields) byte() byte {
	if len(f.b) == 0 {
		f.bad = true
		return 0
	}
	v := f.b[0]
	f.b = f.b[1:]
	return v
}

// event is one request as a recorder saw it.
type event struct {
	invoke, ret int64
	conn        uint64
	instance    uint32
	key, cmd    uint32
	word        uint32 // 0 with kindNone: no reply
	kind        byte
	ids         []int64 // kindID: one; kindRange: first and last; kindList: all. Good until the next event.
}

// runs calls f with each run of consecutive IDs in the event, in its order.
func (e *event) runs(f func(first, last int64)) {
	switch e.kind {
	case kindID:
		f(e.ids[0], e.ids[0])
	case kindRange:
		f(e.ids[0], e.ids[1])
	case kindList:
		for i := 0; i < len(e.ids); {
			j := i + 1
			for j < len(e.ids) && e.ids[j] > e.ids[j-1] && e.ids[j] == e.ids[j-1]+1 {
				j++
			}
			f(e.ids[i], e.ids[j-1])
			i = j
		}
	}
}

// count is how many IDs the event acknowledges.
func (e *event) count() int64 {
	switch e.kind {
	case kindID:
		return 1
	case kindRange:
		return e.ids[1] - e.ids[0] + 1
	case kindList:
		return int64(len(e.ids))
	}
	return 0
}

// bounds returns the smallest and the largest ID.
func (e *event) bounds() (low, high int64) {
	switch e.kind {
	case kindNone:
		return 0, 0
	case kindList:
		low, high = e.ids[0], e.ids[0]
		for _, id := range e.ids[1:] {
			low, high = min(low, id), max(high, id)
		}
		return low, high
	}
	return e.ids[0], e.ids[len(e.ids)-1]
}

// events walks through the payload of an 'e' block.
type events struct {
	recorder uint64
	left     uint64
	f        fields
	e        event
	prev     int64
}

func openEvents(payload []byte) events {
	v := events{f: fields{b: payload}}
	v.recorder, v.left = v.f.u(), v.f.u()
	return v
}

// next decodes one event into v.e; false is the end, or a mistake if v.f.bad.
func (v *events) next() bool {
	if v.left == 0 || v.f.bad {
		return false
	}
	v.left--
	e := &v.e
	flags := v.f.byte()
	e.kind = flags & kindMask
	e.invoke += v.f.z()
	e.ret += v.f.z()
	if flags&flagConn != 0 {
		e.conn, e.instance = v.f.u(), uint32(v.f.u())
	}
	if flags&flagKey != 0 {
		e.key = uint32(v.f.u())
	}
	if flags&flagCmd != 0 {
		e.cmd = uint32(v.f.u())
	}
	e.word = 0
	if flags&flagWord != 0 {
		e.word = uint32(v.f.u())
	}
	e.ids = e.ids[:0]
	switch e.kind {
	case kindID:
		v.prev += v.f.z()
		e.ids = append(e.ids, v.prev)
	case kindRange:
		first := v.prev + v.f.z()
		v.prev = first + int64(v.f.u())
		if v.prev < first {
			v.f.bad = true
		}
		e.ids = append(e.ids, first, v.prev)
	case kindList:
		n := v.f.u()
		if n == 0 || n > uint64(len(v.f.b)) {
			v.f.bad = true
			return false
		}
		for range n {
			v.prev += v.f.z()
			e.ids = append(e.ids, v.prev)
		}
	}
	return !v.f.bad
}
