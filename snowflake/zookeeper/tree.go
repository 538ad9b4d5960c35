package zookeeper

import (
	"context"
	"errors"
	"fmt"
)

// tree is what the protocol needs of ZooKeeper. conn.go implements it over the wire; the simulation implements it in memory,
// with partitions, lost replies and wipes. Every call returns within a bounded time, whatever the servers do.
type tree interface {
	// Session is the session's id, and whether there is one as far as this client knows. It may be out of date: after a pause
	// the session can be gone already. Nothing about uniqueness is concluded from it.
	Session() (id int64, up bool)

	// Sync makes the reads that follow see every write that was acknowledged before it, to anybody.
	Sync(ctx context.Context, path string) error
	Get(ctx context.Context, path string) (znode, error)
	// GetMany reads many nodes; one that does not exist has Missing set.
	GetMany(ctx context.Context, paths []string) ([]znode, error)
	Children(ctx context.Context, path string) ([]string, stat, error)

	// Create makes a persistent node. A sequential one gets its parent's create counter appended, as %010d.
	Create(ctx context.Context, path string, data []byte, sequential bool) (string, error)
	Set(ctx context.Context, path string, data []byte, version int32) (stat, error)
	// Multi executes all of ops or none. The stats of the sets are returned, each at its operation's place. When an operation
	// was refused the error is an *opError.
	Multi(ctx context.Context, ops ...op) ([]stat, error)
}

type stat struct {
	Czxid, Mtime          int64
	Version               int32
	Cversion, NumChildren int32
	Owner                 int64 // session of an ephemeral node
}

// created is the create counter of a node: the number its next sequential child gets. ZooKeeper keeps the count of creates
// alone and reports creates and deletes together.
func (s stat) created() int64 { return (int64(s.Cversion) + int64(s.NumChildren)) / 2 }

type znode struct {
	stat
	Data    []byte
	Missing bool
}

type opKind uint8

const (
	opCheck opKind = iota
	opSet
	opCreate
	opCreateEphemeral
	opDelete
)

type op struct {
	kind    opKind
	path    string
	data    []byte
	version int32 // check, set and delete
}

func checkOp(path string, version int32) op { return op{kind: opCheck, path: path, version: version} }
func setOp(path string, data []byte, version int32) op {
	return op{kind: opSet, path: path, data: data, version: version}
}
func createOp(path string, data []byte) op { return op{kind: opCreate, path: path, data: data} }
func ephemeralOp(path string, data []byte) op {
	return op{kind: opCreateEphemeral, path: path, data: data}
}
func deleteOp(path string, version int32) op { return op{kind: opDelete, path: path, version: version} }

var (
	// errNoSession: not sent, so not executed.
	errNoSession = errors.New("no session with ZooKeeper")
	// errUnknown: sent, and nobody knows whether it was or yet will be executed.
	errUnknown = errors.New("ZooKeeper did not answer")

	errNoNode     = errors.New("node does not exist")
	errExists     = errors.New("node exists")
	errBadVersion = errors.New("node was written by somebody else")
	errNotEmpty   = errors.New("node has children")
	errNoAuth     = errors.New("not permitted")
)

// opError is the operation of a Multi that was refused, and why.
type opError struct {
	Index int
	Path  string
	Err   error
}

func (e *opError) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }
func (e *opError) Unwrap() error { return e.Err }

// refused says that the servers answered and executed nothing.
func refused(err error) bool {
	return errors.Is(err, errNoNode) || errors.Is(err, errExists) || errors.Is(err, errBadVersion) ||
		errors.Is(err, errNotEmpty) || errors.Is(err, errNoAuth)
}
