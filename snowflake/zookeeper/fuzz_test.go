package zookeeper

import (
	"bytes"
	"testing"
)

// FuzzZnodes: what stands in ZooKeeper may have been written by anybody. It is read whole or refused, and what was read and is
// written again reads the same (I11, I14).
func FuzzZnodes(f *testing.F) {
	f.Add([]byte(""), "10.0.0.1:6380-0000000003")
	f.Add([]byte("{}"), "-0000000000")
	f.Add([]byte(`{"ip":"10.0.0.1","port":"6380","timestamp":1700000000000}`), "a-99999999999")
	f.Add(encode(slot{ID: "10.0.0.1:6380", Gen: 1, Until: 1700000000000}), "10.0.0.1:6380-0000000003x")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		if m, err := decodeMeta(data); err == nil {
			if again, err := decodeMeta(encode(m)); err != nil || !bytes.Equal(encode(again), encode(m)) {
				t.Fatalf("meta %+v reads as %+v, %v after it was written", m, again, err)
			}
		}
		if s, err := decodeSlot(data); err == nil {
			if again, err := decodeSlot(encode(s)); err != nil || !bytes.Equal(encode(again), encode(s)) {
				t.Fatalf("slot %+v reads as %+v, %v after it was written", s, again, err)
			}
			if s.Until < 0 {
				t.Fatalf("a slot with the bound %d was taken", s.Until)
			}
		}
		_, _ = decodeLeaf(data)
		if c, ok := parseChild(name); ok && (c.name != name || c.number < 0 || len(c.id) != len(name)-11) {
			t.Fatalf("child %q is read as %+v", name, c)
		}
		if n, ok := parseSlotName(name); ok && n < 0 {
			t.Fatalf("slot %q is read as %d", name, n)
		}
	})
}

// FuzzRecord: a record of the state file is taken as it was written, or not at all.
func FuzzRecord(f *testing.F) {
	whole, err := encodeRecord(record{}, 7)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(0), byte(0))
	f.Add(uint16(4), byte(1))
	f.Add(uint16(16), byte(255))
	f.Fuzz(func(t *testing.T, at uint16, flip byte) {
		b := bytes.Clone(whole)
		i := int(at) % len(b)
		b[i] ^= flip
		_, seq, err := decodeRecord(b)
		if changed := flip != 0; changed && err == nil {
			t.Fatalf("a record with byte %d changed by %#x was taken", i, flip)
		} else if !changed && (err != nil || seq != 7) {
			t.Fatalf("the record reads as number %d, %v", seq, err)
		}
	})
}
