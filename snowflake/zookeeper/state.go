package zookeeper

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"

	"redleaf/conf/datadir"
)

// StateFile is the name of the local state in the data directory.
const StateFile = "zookeeper.state"

// The file holds two records of fixed size, written in turn and in place: it never grows, so that a full disk does not stop it,
// and a crash in a write leaves the other record.
const (
	recordSize = 4096
	stateSize  = 2 * recordSize
	headSize   = 20 // magic 4, CRC-32C of the rest 4, sequence 8, length 4
)

var (
	stateMagic = [4]byte{'R', 'L', 'Z', '1'}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// stamp identifies one write of a slot.
type stamp struct {
	Version int32  `json:"version"`
	Gen     int64  `json:"gen"`
	Nonce   string `json:"nonce"` // "": no such write
	Until   int64  `json:"until"`
}

// record is what an instance knows of itself across a restart.
type record struct {
	Cluster     string `json:"cluster"`
	Identity    string `json:"identity"`
	Fingerprint string `json:"fingerprint"`
	Boot        string `json:"boot"`
	Slot        int64  `json:"slot"`
	Held        stamp  `json:"held"`   // the last write of the slot that is known to have been executed
	Intent      stamp  `json:"intent"` // the write sent after it, with a result that may be unknown
	LocalUntil  int64  `json:"local_until"`
	Closed      bool   `json:"closed"` // a clean stop began to give the number back: never again without ZooKeeper
	Fleet       int64  `json:"fleet"`  // ms, meta's largest autonomy as last seen
	Leafs       int    `json:"leafs"`  // how many nodes of forever were Leaf's, as last seen
}

// disk is the state file: *os.File, or the simulation's.
type disk interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Close() error
}

// state reads and writes the local state. Safe for concurrent use.
type state struct {
	mu   sync.Mutex
	disk disk
	seq  uint64
	next int64 // offset of the record to write
}

var errStateDamaged = errors.New("the local state is damaged")

// load reads the newest record. found is false for a file never written. errStateDamaged: a record is there and unreadable;
// the other one may be older than what was used, so nothing may be continued from it (rec still names the cluster, if known).
func (s *state) load() (rec record, found bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	buf := make([]byte, stateSize)
	n, err := s.disk.ReadAt(buf, 0)
	if err != nil && err != io.EOF {
		return rec, false, fmt.Errorf("%s can't be read: %w", StateFile, err)
	}
	// The file is made whole at once: a shorter one lost a record, and the other may be the older of the two.
	damaged := n > 0 && n < stateSize
	clear(buf[n:])
	for i := range int64(2) {
		b := buf[i*recordSize : (i+1)*recordSize]
		if bytes.Count(b, []byte{0}) == len(b) {
			continue
		}
		r, seq, rerr := decodeRecord(b)
		if rerr != nil {
			damaged = true
			continue
		}
		if !found || seq > s.seq {
			rec, found, s.seq, s.next = r, true, seq, (1-i)*recordSize
		}
	}
	if damaged {
		return rec, found, errStateDamaged
	}
	return rec, found, nil
}

// store makes rec durable. After an error the state on disk is the old one or the new one: whoever calls must not have used
// what the new one would allow.
func (s *state) store(rec record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := encodeRecord(rec, s.seq+1)
	if err != nil {
		return err
	}
	// A failed fsync may have dropped the pages; the next attempt writes the whole record again, with a higher sequence and in
	// the same place, so that the last good one stays.
	if _, err := s.disk.WriteAt(b, s.next); err != nil {
		return fmt.Errorf("%s in data_dir can't be written: %w. Make the disk writable", StateFile, err)
	}
	if err := s.disk.Sync(); err != nil {
		return fmt.Errorf("%s in data_dir can't be written: %w. Make the disk writable", StateFile, err)
	}
	s.seq++
	s.next = recordSize - s.next
	return nil
}

func (s *state) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disk.Close()
}

func encodeRecord(rec record, seq uint64) ([]byte, error) {
	body := encode(rec)
	if len(body) > recordSize-headSize {
		return nil, fmt.Errorf("the local state needs %d bytes, %d is the most: shorten snowflake.node", len(body), recordSize-headSize)
	}
	b := make([]byte, recordSize)
	copy(b, stateMagic[:])
	binary.BigEndian.PutUint64(b[8:], seq)
	binary.BigEndian.PutUint32(b[16:], uint32(len(body)))
	copy(b[headSize:], body)
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b, nil
}

func decodeRecord(b []byte) (record, uint64, error) {
	var rec record
	n := int(binary.BigEndian.Uint32(b[16:]))
	if [4]byte(b) != stateMagic || n > recordSize-headSize || binary.BigEndian.Uint32(b[4:]) != crc32.Checksum(b[8:recordSize], castagnoli) {
		return rec, 0, errStateDamaged
	}
	if err := json.Unmarshal(b[headSize:headSize+n], &rec); err != nil {
		return rec, 0, errStateDamaged
	}
	return rec, binary.BigEndian.Uint64(b[8:]), nil
}

// openState opens the state file in dir, made whole at the first start. missing says that a file which was here is gone: not
// fatal, as ZooKeeper has the fence, but there is nothing to continue from.
func openState(dir *datadir.Dir) (s *state, missing bool, err error) {
	existed, err := dir.Expect(StateFile)
	missing = existed && err != nil
	name := dir.Path(StateFile)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, missing, fmt.Errorf("%s can't be opened: %w", name, err)
	}
	made := func() error {
		fi, err := f.Stat()
		if err != nil {
			return err
		}
		if fi.Size() == 0 {
			// Blocks are taken now, by writing them, and never again.
			if _, err := f.WriteAt(make([]byte, stateSize), 0); err != nil {
				return err
			}
			if err := f.Sync(); err != nil {
				return err
			}
		}
		if !existed {
			return dir.Record(StateFile)
		}
		return nil
	}
	if err := made(); err != nil {
		f.Close()
		return nil, missing, fmt.Errorf("%s can't be written: %w", name, err)
	}
	return &state{disk: f}, missing, nil
}
