package zookeeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"redleaf/snowflake"
)

// The znodes below <root>/<name>. forever is Leaf's, bit for bit, so that a Leaf deployment moves in place and back.
//
//	meta            meta: which cluster, which layout
//	forever/<id>-N  leafNode, persistent sequential; N is the worker number that Leaf would use. Nothing else is ever made
//	                here: any child uses up a number, and Leaf splits every name at its "-"
//	slots/NNNN      slot: the fence. Timestamps of number N up to until are granted to somebody (I7)
//	live/NNNN       live, ephemeral: its process had a session lately. Never evidence for uniqueness
type paths struct{ base string }

func (p paths) meta() string                { return p.base + "/meta" }
func (p paths) forever() string             { return p.base + "/forever" }
func (p paths) node(name string) string     { return p.base + "/forever/" + name }
func (p paths) slots() string               { return p.base + "/slots" }
func (p paths) slot(n int64) string         { return fmt.Sprintf("%s/slots/%04d", p.base, n) }
func (p paths) lives() string               { return p.base + "/live" }
func (p paths) live(n int64) string         { return fmt.Sprintf("%s/live/%04d", p.base, n) }
func (p paths) sequential(id string) string { return p.base + "/forever/" + id + "-" }

const (
	maxWorkerBits = 16      // slots are made in Multis of 1,000, and all are read at a claim
	maxNode       = 1 << 16 // bytes of a znode that is looked at
)

// meta is written once at bootstrap; only Autonomy and State change later.
type meta struct {
	V        int    `json:"v"`
	Cluster  string `json:"cluster"`
	Epoch    int64  `json:"epoch"`
	Bits     string `json:"bits"`
	Created  int64  `json:"created"`  // by ZooKeeper's clock
	Autonomy int64  `json:"autonomy"` // ms, the largest of any instance that ever claimed: what a lost window can reach ahead
	State    string `json:"state"`    // nobody claims before it is made
	Lost     bool   `json:"lost,omitempty"`
}

// State of meta.
const (
	metaMaking    = "making"    // a bootstrap has begun: nothing was ever issued, missing slots are made free
	metaRestoring = "restoring" // the tree is being put back: missing slots are made quarantined; Lost: forever's counter too
	metaMade      = "made"
)

// State of a slot.
const (
	slotFree        = "free"        // made at bootstrap, never claimed
	slotHeld        = "held"        // claimed
	slotReleased    = "released"    // given back at a clean stop; still its owner's until somebody claims it
	slotQuarantined = "quarantined" // put back without knowing who held it
)

// slot is the fence of one worker number. Only its owner raises Until, by a versioned write; whoever claims the number later
// begins above it.
type slot struct {
	V           int    `json:"v"`
	ID          string `json:"id"`     // identity of the owner
	Node        string `json:"node"`   // the child of forever that carries this number for the owner; "" for a recycled number
	NodeVersion int32  `json:"node_v"` // Node's version as the owner wrote it last: another one means that Leaf took it back
	Gen         int64  `json:"gen"`    // counts owners' lives
	Nonce       string `json:"nonce"`  // of this very write
	Until       int64  `json:"until"`
	HW          int64  `json:"hw"`    // about 5 s ahead of what is issued; also the timestamp in Node
	Since       int64  `json:"since"` // when this owner's unbroken history began: how much autonomy it has earned
	State       string `json:"state"`
	Host        string `json:"host,omitempty"`
	Boot        string `json:"boot,omitempty"`
	Pid         int    `json:"pid,omitempty"`
	Sid         string `json:"sid,omitempty"`
}

type live struct {
	ID    string `json:"id"`
	Gen   int64  `json:"gen"`
	Nonce string `json:"nonce"` // of the claim: tells an earlier life's node from a namesake's
	Addr  string `json:"addr"`
}

// leafNode has exactly these three fields: Leaf refuses a node with an unknown one.
type leafNode struct {
	IP        string `json:"ip"`
	Port      string `json:"port"`
	Timestamp int64  `json:"timestamp"`
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // plain structs of strings and integers
		panic(err)
	}
	return b
}

func decode(data []byte, v any) error {
	switch {
	case len(data) == 0:
		return errors.New("it is empty")
	case len(data) > maxNode:
		return fmt.Errorf("it has %d bytes", len(data))
	}
	if err := json.Unmarshal(data, v); err != nil {
		return errors.New("it is not the JSON that belongs there")
	}
	return nil
}

func decodeMeta(data []byte) (meta, error) {
	var m meta
	if err := decode(data, &m); err != nil {
		return m, err
	}
	switch {
	case m.V > 1:
		return m, fmt.Errorf("it has version %d: a newer Redleaf wrote it", m.V)
	case m.V < 1 || m.Cluster == "" || m.Bits == "":
		return m, errors.New("fields are missing")
	case hasControl(m.Cluster) || hasControl(m.Bits):
		return m, errors.New("it has control characters") // they would stand in replies and logs
	case m.State != metaMaking && m.State != metaRestoring && m.State != metaMade:
		return m, errors.New("its state is none of making, restoring, made")
	case m.Epoch < 0 || m.Created < 0 || m.Autonomy < 0:
		return m, errors.New("a number in it is negative")
	}
	return m, nil
}

func decodeSlot(data []byte) (slot, error) {
	var s slot
	if err := decode(data, &s); err != nil {
		return s, err
	}
	switch {
	case s.V > 1:
		return s, fmt.Errorf("it has version %d: a newer Redleaf wrote it", s.V)
	case s.V < 1:
		return s, errors.New("fields are missing")
	case s.Until < 0 || s.Gen < 0 || s.HW < 0:
		return s, errors.New("a number in it is negative")
	case s.Until == 0 && s.State != slotFree:
		return s, errors.New("until is missing")
	case s.State == slotFree && (s.Until != 0 || s.ID != ""):
		return s, errors.New("a free slot with an owner")
	case (s.State == slotHeld || s.State == slotReleased) && s.ID == "":
		return s, errors.New("its owner is missing")
	case s.State != slotFree && s.State != slotHeld && s.State != slotReleased && s.State != slotQuarantined:
		return s, errors.New("its state is none of free, held, released, quarantined")
	case strings.Contains(s.Node, "/"):
		return s, errors.New("node is no name")
	case hasControl(s.ID) || hasControl(s.Node):
		return s, errors.New("it has control characters")
	}
	return s, nil
}

func decodeLeaf(data []byte) (leafNode, error) {
	var n leafNode
	if err := decode(data, &n); err != nil {
		return n, err
	}
	if n.Timestamp < 0 {
		return n, fmt.Errorf("its timestamp is %d", n.Timestamp)
	}
	return n, nil
}

func (m meta) layoutErr(path string, l snowflake.Layout) error {
	if m.Bits == l.String() && m.Epoch == l.Epoch {
		return nil
	}
	return fmt.Errorf("%s was made for snowflake.bits %q and snowflake.epoch %d, this instance has %q and %d: both would make the same IDs. Set what %s says, or another snowflake.zookeeper.name for a new history",
		path, m.Bits, m.Epoch, l.String(), l.Epoch, path)
}

// leafOf splits an identity as Leaf's three fields want it, at the last colon.
func leafOf(identity string, timestamp int64) leafNode {
	n := leafNode{IP: identity, Timestamp: timestamp}
	if i := strings.LastIndexByte(identity, ':'); i >= 0 {
		n.IP, n.Port = strings.Trim(identity[:i], "[]"), identity[i+1:]
	}
	return n
}

// child is a child of forever: the identity before the last "-", and ten digits.
type child struct {
	name, id string
	number   int64
}

// parseChild reads a name of forever. leaf F10: only the last ten digits count; identities may have dashes, dots and colons.
func parseChild(name string) (child, bool) {
	if len(name) < 12 {
		return child{}, false
	}
	cut := len(name) - 11
	if name[cut] != '-' {
		return child{}, false
	}
	for _, c := range name[cut+1:] {
		if c < '0' || c > '9' {
			return child{}, false
		}
	}
	n, err := strconv.ParseInt(name[cut+1:], 10, 64)
	if err != nil {
		return child{}, false
	}
	return child{name: name, id: name[:cut], number: n}, true
}

func childName(id string, number int64) string { return fmt.Sprintf("%s-%010d", id, number) }

// parseSlotName reads a name of slots or live.
func parseSlotName(name string) (int64, bool) {
	if len(name) < 4 || len(name) > 5 {
		return 0, false
	}
	n, err := strconv.ParseUint(name, 10, 32)
	if err != nil || fmt.Sprintf("%04d", n) != name {
		return 0, false
	}
	return int64(n), true
}
