package engine

import (
	"context"
	"errors"
	"fmt"

	"redleaf/segment"
	"redleaf/snowflake"
)

// Word is the first word of an error reply. Clients act on it: go-redis and others retry LOADING and TRYAGAIN by themselves,
// so these two mean "soon" and nothing else does.
type Word string

const (
	Loading    Word = "LOADING"   // the engine is not ready yet, within start_timeout
	TryAgain   Word = "TRYAGAIN"  // buffers used up and no refill within segment.wait
	NoTag      Word = "NOTAG"     // unknown tag that may not be created
	Store      Word = "STORE"     // the store refuses for a reason that waiting does not cure
	Exhausted  Word = "EXHAUSTED" // counter at its end, or time bits used up
	Regressed  Word = "REGRESSED" // the store went back behind what was granted
	ClockBack  Word = "CLOCKBACK" // the clock is behind by more than clock_wait, or before the epoch
	NoWorker   Word = "NOWORKER"  // no worker number, or its window is used up
	Limit      Word = "LIMIT"     // the user's IDs per second are used up
	Disabled   Word = "DISABLED"  // that engine is off
	PlainError Word = "ERR"       // everything else
)

// Words lists them all, for metrics whose labels must be bounded.
var Words = []Word{Loading, TryAgain, NoTag, Store, Exhausted, Regressed, ClockBack, NoWorker, Limit, Disabled, PlainError}

// Error is a refusal that is already in the user's words.
type Error struct {
	Word Word
	Text string
	// Cause is for the log; it is never sent.
	Cause error
}

func (e *Error) Error() string { return string(e.Word) + " " + e.Text }
func (e *Error) Unwrap() error { return e.Cause }

func errorf(w Word, format string, args ...any) *Error {
	return &Error{Word: w, Text: fmt.Sprintf(format, args...)}
}

// named says which tag there isn't, and how to make it.
func named(tag string, err error) error {
	if errors.Is(err, segment.ErrNoTag) {
		return &Error{Word: NoTag, Cause: err, Text: fmt.Sprintf("there is no tag '%s', and segment.auto_create does not let INCR make it: make it with SEGMENT.CREATE or SET", tag)}
	}
	return err
}

// Explain turns any error of the engines into the word and the sentence that a client gets. An error of no known kind is
// "ERR internal error": its text may hold what a client should not see, so it is for the log alone (I13).
func Explain(err error) (Word, string) {
	var (
		ours      *Error
		again     *segment.AgainError
		regressed *segment.RegressedError
		clash     *segment.ClashError
		step      *segment.StepError
		refused   *segment.RefusedError
		down      *segment.UnavailableError
		setNo     *segment.SetRefusedError
		count     *segment.CountError
		full      *segment.FullError
		back      *snowflake.ClockBackError
		noWorker  *snowflake.NoWorkerError
		timeUp    *snowflake.TimeUpError
	)
	switch {
	case errors.As(err, &ours):
		return ours.Word, ours.Text
	case errors.As(err, &regressed):
		return Regressed, regressed.Error()
	case errors.As(err, &again):
		return TryAgain, again.Error()
	case errors.As(err, &refused):
		return Store, refused.Error()
	case errors.As(err, &step):
		return Store, step.Error()
	case errors.As(err, &clash):
		return PlainError, clash.Error()
	case errors.As(err, &setNo):
		return PlainError, setNo.Error()
	case errors.As(err, &count):
		return PlainError, count.Error()
	case errors.As(err, &full):
		return Store, full.Error()
	case errors.As(err, &down):
		return TryAgain, "the store can't be asked now: " + down.Error()
	case errors.Is(err, segment.ErrNoTag):
		return NoTag, err.Error()
	case errors.Is(err, segment.ErrExhausted):
		return Exhausted, segment.ErrExhausted.Error()
	case errors.As(err, &back):
		return ClockBack, back.Error()
	case errors.As(err, &timeUp):
		return Exhausted, timeUp.Error()
	case errors.As(err, &noWorker):
		return NoWorker, noWorker.Error()
	case errors.Is(err, segment.ErrClosed), errors.Is(err, snowflake.ErrClosed):
		return Loading, "this instance is stopping: connect to another one"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return TryAgain, "no answer within segment.wait"
	}
	return PlainError, "internal error: see the server's log"
}
