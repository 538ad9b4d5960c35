package segment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// MaxID is the largest ID. Redis integers are signed 64-bit, so the counter ends there.
const MaxID = math.MaxInt64

// Span is the half-open range of IDs [Lo, Hi). The zero Span is empty.
type Span struct{ Lo, Hi int64 }

// Len is the number of IDs in s.
func (s Span) Len() int64 { return s.Hi - s.Lo }

// Grant is what one Reserve handed over: a span that now belongs to the caller alone.
type Grant struct {
	Span
	// Server names the server that granted the span, as opaque text. A tail goes back only to the server that granted it.
	Server string
}

// Row is one tag as the store keeps it. Max is exclusive, as in Leaf's table: the next ID nobody owns yet.
type Row struct {
	Tag     string
	Max     int64
	Step    int64
	Desc    string
	Updated time.Time
	// Err says why this row can't be used (*StepError, *ClashError) where its values can't be given here; nil mostly. So one
	// bad row never hides the others from Rows and List.
	Err error
}

// Pulse is what a heartbeat learned about the store as a whole.
type Pulse struct {
	// History names the line of data that floors belong to. It goes along with replicas and backups.
	History string
	// Epoch counts how often the store was seen to go back. A change means: compare every floor with its row.
	Epoch int64
	// Paused is the time left until grants are given again after the store went back; 0 when it is not paused.
	Paused time.Duration
	// Skip is the hole left in every row each time the store went back; 0 where there is none. A row that is put back is put
	// back above the floor by as much.
	Skip int64
}

// Store keeps the high-water mark of every tag. It is the only thing that makes IDs unique across instances, so it is a
// contract first:
//
//   - Every call honours ctx and returns soon after it ends. All calls are safe for concurrent use, by many processes.
//   - Reserve, Create, Advance, Fence and GiveBack are each one atomic conditional write, linearizable per tag and durable
//     when they return nil.
//   - On ANY error the caller owns nothing, and the store may or may not have moved (I3). A retry is safe: it gets a
//     disjoint range.
//   - Tags are compared byte by byte. A store whose own comparison is looser (case, trailing space) answers *ClashError
//     and never another tag's IDs.
//   - Errors are of the kinds below, wrapped or bare: ErrNoTag, *RegressedError, ErrExhausted, *ClashError, *StepError,
//     *UnavailableError (waiting may cure it) and *RefusedError (it does not).
type Store interface {
	// Reserve moves the tag's row from a to a+n, where a >= floor, and returns exactly [a, a+n). 1 <= n <= MaxID.
	// ErrNoTag: no row. *RegressedError: the row stands below floor (nothing moved). ErrExhausted: a+n would pass MaxID.
	Reserve(ctx context.Context, tag string, n, floor int64) (Grant, error)

	// Rows reads the rows of the tags named; tags without a row are absent from the result. It is an ordinary read: what it
	// says may be stale, so nothing is refused or raised because of it alone (see Fence). A row that can't be used is there
	// with its Err set.
	Rows(ctx context.Context, tags []string) (map[string]Row, error)

	// Create makes the row if there is none and reports whether it did. Where inherit is set, the row starts at the higher of
	// row.Max and the store's base, below which IDs may have been handed out under a row that was lost; the row as it stands
	// afterwards is returned in both cases. 1 <= row.Max, 1 <= row.Step.
	Create(ctx context.Context, row Row, inherit bool) (now Row, created bool, err error)

	// Advance moves the row to n+1 if it stands at or below n, and reports the bound as it was found. moved false and no
	// error: the row stands above n. ErrNoTag: no row. 0 <= n < MaxID.
	Advance(ctx context.Context, tag string, n int64) (found int64, moved bool, err error)

	// Fence confirms, under a lock, that the row stands at or above floor, and raises it to floor where it does not; found is
	// the bound before that. Where the row is missing it answers ErrNoTag, unless restore is a row to put back: it is put back
	// as given (restore.Max >= floor) and found is 0. Fence works during the pause: that is what the pause is for.
	Fence(ctx context.Context, tag string, floor int64, restore *Row) (found int64, err error)

	// GiveBack moves the row down from span.Hi to span.Lo if it stands exactly at span.Hi on the server that granted it, and
	// reports whether it did. It is for a clean stop alone.
	GiveBack(ctx context.Context, tag string, span Span, server string) (bool, error)

	// List returns up to limit rows with names > after, in byte order of their names.
	List(ctx context.Context, after string, limit int) ([]Row, error)

	// Count is the number of tags.
	Count(ctx context.Context) (int64, error)

	// Pulse tells the store that this instance lives, and learns whether the store went back. Called every segment.check and
	// after each error that hints at a change.
	Pulse(ctx context.Context) (Pulse, error)

	// Close frees what the store holds. No call follows it.
	Close() error
}

// BaseRaiser is a Store that keeps a base. RaiseBase lets tags made by INCR from now on, on any instance, start at floor or
// above. It is asked for where a row is gone, IDs below floor were given, and a pattern of auto_create would make the tag anew:
// only this instance knows the floor.
type BaseRaiser interface {
	RaiseBase(ctx context.Context, floor int64) error
}

// Floors keeps the highest bound granted to this instance, per history and tag, across restarts of this instance (I6).
// Save is durable when it returns nil. Safe for concurrent use.
type Floors interface {
	Floor(history, tag string) (int64, error) // 0: none known
	Save(history string, floors map[string]int64) error
	// Lower sets a floor that was given back at a clean stop; it must be durable before the row moves down.
	Lower(history, tag string, floor int64) error
	Each(history string, fn func(tag string, floor int64) error) error
	Close() error
}

// The kinds of refusal. engine turns each into its error word.
var (
	ErrNoTag     = errors.New("no such tag")
	ErrExhausted = errors.New("the counter is used up: 9223372036854775807 is the last ID there is")
	ErrClosed    = errors.New("this instance is stopping")
)

// RegressedError says that a row stands below what was granted: the store went back. Row is -1 where the row is missing.
type RegressedError struct {
	Tag        string
	Row, Floor int64
}

func (e *RegressedError) Error() string {
	row := fmt.Sprintf("its row stands at %d", e.Row)
	if e.Row < 0 {
		row = "its row is gone"
	}
	return fmt.Sprintf("tag '%s' went back: %s but IDs up to %d were granted to this instance. Take the highest floor of every instance that ever served it (SEGMENT.INFO), add a skip for each that is lost, then SET it there", e.Tag, row, e.Floor-1)
}

// ClashError says that the store takes Tag for the row named Row although the names differ.
type ClashError struct{ Tag, Row string }

func (e *ClashError) Error() string {
	return fmt.Sprintf("tag '%s' clashes with '%s': the table's collation takes them for one. Use the exact name, or give biz_tag a binary collation", e.Tag, e.Row)
}

// StepError says that a row's step or bound can't be used.
type StepError struct {
	Tag    string
	Column string // "step" or "max_id"
	Value  string
	Want   string
}

func (e *StepError) Error() string {
	return fmt.Sprintf("tag '%s' has %s %s: it must be %s. Correct the row", e.Tag, e.Column, e.Value, e.Want)
}

// UnavailableError says that the store can't be asked now and that waiting may cure it.
type UnavailableError struct{ Cause error }

func (e *UnavailableError) Error() string { return e.Cause.Error() }
func (e *UnavailableError) Unwrap() error { return e.Cause }

// RefusedError says that the store refuses for a reason that waiting does not cure.
type RefusedError struct{ Cause error }

func (e *RefusedError) Error() string { return e.Cause.Error() }
func (e *RefusedError) Unwrap() error { return e.Cause }
