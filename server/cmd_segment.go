package server

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"redleaf/engine"
)

// maxExact is the largest integer that every client's numbers hold exactly.
const maxExact = 1 << 53

func segmentCommands() []command {
	return []command{
		{
			name: "incr", arity: 2, flags: write | denyOOM | fast, keys: [3]int{1, 1, 1}, need: issue, group: "string", since: "1.0.0",
			args: []arg{keyArg()}, summary: "Takes the next ID of the key.", reply: "the next ID",
			run: (*conn).incr,
		},
		{
			name: "incrby", arity: 3, flags: write | denyOOM | fast, keys: [3]int{1, 1, 1}, need: issue, group: "string", since: "1.0.0",
			args: []arg{keyArg(), integer("increment")}, summary: "Takes that many contiguous IDs of the key.",
			reply: "the **last** of n contiguous IDs: (reply-n, reply] belong to the caller",
			run:   (*conn).incrBy,
		},
		{
			name: "segment.next", arity: -2, flags: write | fast, keys: [3]int{1, 1, 1}, need: issue, group: "segment", since: "1.0.0",
			args: []arg{keyArg(), opt(after("COUNT", integer("count")))}, summary: "Takes one ID of the key, or several.",
			reply: "an ID; with COUNT an array of that many, increasing",
			run:   (*conn).segmentNext,
		},
		{
			name: "segment.range", arity: 3, flags: write | fast, keys: [3]int{1, 1, 1}, need: issue, group: "segment", since: "1.0.0",
			args: []arg{keyArg(), integer("count")}, summary: "Takes a contiguous block of IDs of the key.",
			reply: "`[first, last]`, both included",
			run:   (*conn).segmentRange,
		},
		{
			name: "segment.create", arity: -2, flags: write, keys: [3]int{1, 1, 1}, need: admin, group: "segment", since: "1.0.0",
			args:    []arg{keyArg(), opt(after("START", integer("first"))), opt(after("STEP", integer("step"))), opt(after("DESC", str("text")))},
			summary: "Creates a tag.", reply: "OK; an error when there is such a tag. START is its first ID (1), STEP the least one refill takes",
			run: (*conn).segmentCreate,
		},
		{
			name: "segment.info", arity: 2, flags: readonly, keys: [3]int{1, 1, 1}, need: read, group: "segment", since: "1.0.0",
			args: []arg{keyArg()}, summary: "Describes a tag as it stands on this instance.",
			reply: "map: state, last, remaining, runway (s), span, step, rate (IDs/s), row, floor, refills, burnt, …",
			run:   (*conn).segmentInfo,
		},
		{
			name: "segment.list", arity: -1, flags: readonly, need: read, group: "segment", since: "1.0.0", order: "O(N)",
			args:    []arg{opt(after("MATCH", pattern("pattern"))), opt(after("AFTER", str("tag"))), opt(after("COUNT", integer("count")))},
			summary: "Lists the store's tags in order.", reply: "array of names, 100 or COUNT; go on with AFTER the last one",
			run: (*conn).segmentList,
		},
		{
			name: "get", arity: 2, flags: readonly | fast, keys: [3]int{1, 1, 1}, need: read, group: "string", since: "1.0.0",
			args: []arg{keyArg()}, summary: "Shows the last ID handed out here. Takes none.",
			reply: "the last ID handed out here; of a tag not used here yet the row's bound − 1; null when there is no such tag",
			run:   (*conn).get,
		},
		{
			name: "mget", arity: -2, flags: readonly | fast, keys: [3]int{1, -1, 1}, tips: "request_policy:multi_shard", need: read, group: "string", since: "1.0.0", order: "O(N)",
			args: []arg{many(keyArg())}, summary: "GET of several keys.", reply: "array of what GET answers",
			run: (*conn).mget,
		},
		{
			name: "set", arity: -3, flags: write | denyOOM, keys: [3]int{1, 1, 1}, access: "RW access update variable_flags", need: admin, group: "string", since: "1.0.0",
			args:    []arg{keyArg(), integer("value"), opt(oneOf("condition", word("NX"), word("XX"))), opt(word("FORCE"))},
			summary: "Creates a tag, or moves its counter forward.",
			reply:   "OK: the number now belongs to the caller alone and every later ID of this instance is larger. Past 2^53 needs FORCE. Null when NX or XX is not met",
			check:   checkSet, run: (*conn).set,
		},
		{
			name: "setnx", arity: 3, flags: write | denyOOM | fast, keys: [3]int{1, 1, 1}, access: "OW insert", need: admin, group: "string", since: "1.0.0",
			args: []arg{keyArg(), integer("value")}, summary: "Creates a tag if there is none.",
			reply: "1 when this call created it: the number belongs to the caller; else 0",
			run:   (*conn).setnx,
		},
	}
}

// incr is INCR, in the fast lane and out of it.
func (c *conn) incr(args [][]byte, out []byte) []byte {
	return c.take(args[1], 1, out)
}

// incrBy is INCRBY, which is what redis-py's incr sends.
func (c *conn) incrBy(args [][]byte, out []byte) []byte {
	n, ok := parseInt(args[2])
	if !ok {
		return c.fail(out, errNotInteger)
	}
	return c.take(args[1], n, out)
}

// take answers the last of n contiguous IDs of key. On a warm key that is all there is to it; otherwise the lane leaves the
// command to redcon's goroutine loop, where it may wait.
func (c *conn) take(key []byte, n int64, out []byte) []byte {
	if !c.spend(n) {
		return c.fail(out, c.limitText(n))
	}
	last, ok := c.s.engine.TryIncr(key, n)
	if !ok {
		if c.declines(n) {
			return out
		}
		var err error
		out = c.beforeWait(out)
		last, err = c.s.engine.Incr(&c.wait, key, n)
		c.afterWait()
		if err != nil {
			return c.failErr(out, err)
		}
	}
	return appendInt(out, last)
}

func (c *conn) segmentNext(args [][]byte, out []byte) []byte {
	if len(args) == 2 {
		return c.take(args[1], 1, out)
	}
	n, text := countOption(args[2:])
	if text != "" {
		return c.fail(out, text)
	}
	if !c.spend(n) {
		return c.fail(out, c.limitText(n))
	}
	out = c.beforeWait(out)
	ids, err := c.s.engine.NextIDs(&c.wait, nil, args[1], n)
	c.afterWait()
	if err != nil {
		return c.failErr(out, err)
	}
	out = appendArray(out, len(ids))
	for _, id := range ids {
		out = appendInt(out, id)
	}
	return out
}

// countOption reads COUNT n, the only option there is.
func countOption(args [][]byte) (n int64, text string) {
	if len(args) != 2 || !strings.EqualFold(string(args[0]), "COUNT") {
		return 0, errSyntax
	}
	n, ok := parseInt(args[1])
	if !ok {
		return 0, errNotInteger
	}
	return n, ""
}

func (c *conn) segmentRange(args [][]byte, out []byte) []byte {
	n, ok := parseInt(args[2])
	if !ok {
		return c.fail(out, errNotInteger)
	}
	if c.s.engine.IsSnowflakeKey(args[1]) {
		return c.fail(out, "ERR "+show(args[1])+" gives snowflakes (snowflake.keys): they don't come in contiguous ranges; use SNOWFLAKE.NEXT COUNT")
	}
	if !c.spend(n) {
		return c.fail(out, c.limitText(n))
	}
	last, ok := c.s.engine.TryIncr(args[1], n)
	if !ok {
		var err error
		out = c.beforeWait(out)
		last, err = c.s.engine.Incr(&c.wait, args[1], n)
		c.afterWait()
		if err != nil {
			return c.failErr(out, err)
		}
	}
	out = appendArray(out, 2)
	out = appendInt(out, last-n+1)
	return appendInt(out, last)
}

// maxDesc is the longest description of a tag: Leaf's column is varchar(256).
const maxDesc = 256

func (c *conn) segmentCreate(args [][]byte, out []byte) []byte {
	row := engine.Row{Max: 1}
	seen := map[string]bool{}
	for i := 2; i < len(args); i += 2 {
		name := strings.ToUpper(string(args[i]))
		if i+1 == len(args) || seen[name] {
			return c.fail(out, errSyntax)
		}
		seen[name] = true
		value := args[i+1]
		switch name {
		case "START", "STEP":
			n, ok := parseInt(value)
			if !ok {
				return c.fail(out, errNotInteger)
			}
			if n < 1 {
				return c.fail(out, "ERR "+name+" is "+strconv.FormatInt(n, 10)+": it must be at least 1")
			}
			if name == "START" {
				row.Max = n
			} else {
				row.Step = n
			}
		case "DESC":
			if !utf8.Valid(value) || len(value) > maxDesc {
				return c.fail(out, "ERR DESC must be valid UTF-8 of at most 256 bytes")
			}
			row.Desc = string(value)
		default:
			return c.fail(out, errSyntax)
		}
	}
	out = c.beforeWait(out)
	created, err := c.s.engine.Create(&c.wait, args[1], row)
	c.afterWait()
	if err != nil {
		return c.failErr(out, err)
	}
	if !created {
		return c.fail(out, "ERR tag "+show(args[1])+" is there already, and was left as it is: SEGMENT.INFO shows it, SET moves it forward")
	}
	return appendOK(out)
}

func (c *conn) segmentInfo(args [][]byte, out []byte) []byte {
	out = c.beforeWait(out)
	t, err := c.s.engine.Info(&c.wait, args[1])
	c.afterWait()
	if err != nil {
		return c.failErr(out, err)
	}
	reason := ""
	if t.Err != nil {
		w, text := engine.Explain(t.Err)
		reason = string(w) + " " + text
	}
	runway := int64(-1)
	if t.Runway >= 0 {
		runway = int64(t.Runway / time.Second)
	}
	out = c.appendMap(out, 18)
	bulk := func(name, value string) { out = appendBulk(appendBulk(out, name), value) }
	num := func(name string, n int64) { out = appendInt(appendBulk(out, name), n) }
	bulk("tag", t.Tag)
	bulk("state", t.State)
	bulk("reason", reason)
	num("last", t.Last)
	num("remaining", t.Remaining)
	num("runway", runway)
	num("span", t.Span)
	num("step", t.Step)
	out = c.appendDouble(appendBulk(out, "rate"), t.Rate)
	num("row", t.Row)
	num("floor", t.Floor)
	num("issued", int64(t.Issued))
	num("refills", int64(t.Refills))
	num("refill_failures", int64(t.RefillFailures))
	num("waits", int64(t.Waits))
	num("wait_ms", t.WaitTime.Milliseconds())
	num("refill_ms", t.RefillTime.Milliseconds())
	num("burnt", int64(t.Burnt))
	return out
}

func (c *conn) segmentList(args [][]byte, out []byte) []byte {
	match, from, count := "", "", int64(100)
	for i := 1; i < len(args); i += 2 {
		if i+1 == len(args) {
			return c.fail(out, errSyntax)
		}
		switch strings.ToUpper(string(args[i])) {
		case "MATCH":
			match = string(args[i+1])
		case "AFTER":
			from = string(args[i+1])
		case "COUNT":
			var ok bool
			if count, ok = parseInt(args[i+1]); !ok {
				return c.fail(out, errNotInteger)
			}
			if count < 1 || count > maxPage {
				return c.fail(out, "ERR COUNT is "+strconv.FormatInt(count, 10)+": 1 to 10000 at a time; go on with AFTER")
			}
		default:
			return c.fail(out, errSyntax)
		}
	}
	var tags []string
	out = c.beforeWait(out)
	err := c.pages(match, from, func(tag string) bool {
		tags = append(tags, tag)
		return len(tags) < int(count)
	})
	c.afterWait()
	if err != nil {
		return c.failErr(out, err)
	}
	return appendStrings(out, tags)
}

func (c *conn) get(args [][]byte, out []byte) []byte {
	last, ok := c.s.engine.TryLast(args[1])
	if !ok {
		if c.declines(0) {
			return out
		}
		out = c.beforeWait(out)
		last, exists, err := c.s.engine.Last(&c.wait, args[1])
		c.afterWait()
		if err != nil {
			return c.failErr(out, err)
		}
		if !exists {
			return c.appendNull(out)
		}
		return appendBulkInt(out, last)
	}
	return appendBulkInt(out, last)
}

func (c *conn) mget(args [][]byte, out []byte) []byte {
	out = c.beforeWait(out)
	defer c.afterWait()
	start := len(out)
	out = appendArray(out, len(args)-1)
	for _, key := range args[1:] {
		last, exists, err := c.s.engine.Last(&c.wait, key)
		switch {
		case err != nil:
			return c.failErr(out[:start], err)
		case exists:
			out = appendBulkInt(out, last)
		default:
			out = c.appendNull(out)
		}
	}
	return out
}

// setOptions reads what follows the number in SET.
func setOptions(args [][]byte) (mode engine.SetMode, force bool, text string) {
	mode = engine.SetAlways
	for _, a := range args {
		switch o := strings.ToUpper(string(a)); o {
		case "NX", "XX":
			if mode != engine.SetAlways {
				return mode, force, errSyntax
			}
			mode = engine.SetIfAbsent
			if o == "XX" {
				mode = engine.SetIfPresent
			}
		case "FORCE":
			force = true
		case "GET":
			return mode, force, "ERR SET with GET is refused: what it returns is an ID that somebody has already"
		case "EX", "PX", "EXAT", "PXAT", "KEEPTTL":
			return mode, force, "ERR SET with " + o + " is refused: counters don't expire, for they would begin again at 1. Use one tag per period"
		default:
			return mode, force, errSyntax
		}
	}
	return mode, force, ""
}

// checkSet refuses at queue time what SET never does here; what is merely wrong is found at EXEC, as in Redis.
func checkSet(args [][]byte) string {
	if _, _, text := setOptions(args[3:]); text != errSyntax {
		return text
	}
	return ""
}

func (c *conn) set(args [][]byte, out []byte) []byte {
	mode, force, text := setOptions(args[3:])
	if text != "" {
		return c.fail(out, text)
	}
	done, out, ok := c.setTag(args, mode, force, out)
	switch {
	case !ok:
		return out
	case !done:
		return c.appendNull(out)
	}
	return appendOK(out)
}

func (c *conn) setnx(args [][]byte, out []byte) []byte {
	done, out, ok := c.setTag(args, engine.SetIfAbsent, false, out)
	switch {
	case !ok:
		return out
	case !done:
		return appendInt(out, 0)
	}
	return appendInt(out, 1)
}

// setTag is what SET and SETNX share. ok false: the error is in out.
func (c *conn) setTag(args [][]byte, mode engine.SetMode, force bool, out []byte) (done bool, _ []byte, ok bool) {
	n, isInt := parseInt(args[2])
	switch {
	case !isInt:
		return false, c.fail(out, errNotInteger), false
	case n < 0:
		return false, c.fail(out, "ERR the value is negative: IDs are positive, and 0 is the start of a new tag"), false
	case n > maxExact && !force:
		return false, c.fail(out, "ERR the value is past 2^53, where JavaScript clients read different IDs as the same number: SET … FORCE if that is meant"), false
	}
	out = c.beforeWait(out)
	done, err := c.s.engine.Set(&c.wait, args[1], n, mode)
	c.afterWait()
	if err != nil {
		return false, c.failErr(out, err), false
	}
	return done, out, true
}
