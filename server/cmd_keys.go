package server

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
)

const (
	maxPage = 10000 // tags in one page of SCAN and SEGMENT.LIST
	maxKeys = 10000 // tags that KEYS goes through
)

func keyCommands() []command {
	return []command{
		{
			name: "exists", arity: -2, flags: readonly | fast, keys: [3]int{1, -1, 1}, access: "RO", tips: "request_policy:multi_shard response_policy:agg_sum", need: read, group: "generic", since: "1.0.0", order: "O(N)",
			args: []arg{many(keyArg())}, summary: "Counts the keys that name a tag of the store.", reply: "how many of them are there",
			run: (*conn).exists,
		},
		{
			name: "type", arity: 2, flags: readonly | fast, keys: [3]int{1, 1, 1}, access: "RO", need: read, group: "generic", since: "1.0.0",
			args: []arg{keyArg()}, summary: "Tells the type of a key.", reply: "`string` or `none`",
			run: (*conn).typeOf,
		},
		{
			name: "ttl", arity: 2, flags: readonly | fast, keys: [3]int{1, 1, 1}, tips: "nondeterministic_output", need: read, group: "generic", since: "1.0.0",
			args: []arg{keyArg()}, summary: "Tells a key's time to live.", reply: "-1 (counters don't expire), -2 when there is no such tag",
			run: (*conn).ttl,
		},
		{
			name: "pttl", arity: 2, flags: readonly | fast, keys: [3]int{1, 1, 1}, tips: "nondeterministic_output", need: read, group: "generic", since: "2.6.0",
			args: []arg{keyArg()}, summary: "Tells a key's time to live.", reply: "as TTL",
			run: (*conn).ttl,
		},
		{
			name: "dbsize", arity: 1, flags: readonly | fast, need: read, group: "server", cats: "keyspace", tips: "request_policy:all_shards response_policy:agg_sum", since: "1.0.0",
			summary: "Counts the tags.", reply: "number of tags in the store, at most 5 s old",
			run: (*conn).dbsize,
		},
		{
			name: "keys", arity: 2, flags: readonly, need: read, group: "generic", cats: "+dangerous", tips: "request_policy:all_shards nondeterministic_output_order", since: "1.0.0", order: "O(N)",
			args: []arg{pattern("pattern")}, summary: "Lists the tags that match.", reply: "array of names; refused above 10,000 tags: use SCAN",
			run: (*conn).keys,
		},
		{
			name: "scan", arity: -2, flags: readonly, need: read, group: "generic", tips: "nondeterministic_output request_policy:special", since: "2.8.0", order: "O(1) a call",
			args:    []arg{integer("cursor"), opt(after("MATCH", pattern("pattern"))), opt(after("COUNT", integer("count"))), opt(after("TYPE", str("type")))},
			summary: "Pages through the tags in order.", reply: "`[cursor, names]`; a cursor is remembered for a while and stays below 2^53",
			run: (*conn).scan,
		},
		{
			name: "randomkey", arity: 1, flags: readonly, need: read, group: "generic", tips: "request_policy:all_shards nondeterministic_output", since: "1.0.0",
			summary: "Names a tag at random.", reply: "a name, or null when there is no tag",
			run: (*conn).randomKey,
		},
	}
}

func (c *conn) exists(args [][]byte, out []byte) []byte {
	out = c.beforeWait(out)
	there, err := c.s.engine.Exists(&c.wait, args[1:])
	c.afterWait()
	if err != nil {
		return c.failErr(out, err)
	}
	n := int64(0)
	for _, is := range there {
		if is {
			n++
		}
	}
	return appendInt(out, n)
}

// isThere asks the store about one key. ok false: the error is in out.
func (c *conn) isThere(key [][]byte, out []byte) (is bool, _ []byte, ok bool) {
	out = c.beforeWait(out)
	there, err := c.s.engine.Exists(&c.wait, key)
	c.afterWait()
	if err != nil {
		return false, c.failErr(out, err), false
	}
	return there[0], out, true
}

func (c *conn) typeOf(args [][]byte, out []byte) []byte {
	is, out, ok := c.isThere(args[1:2], out)
	switch {
	case !ok:
		return out
	case is:
		return appendStatus(out, "string")
	}
	return appendStatus(out, "none")
}

func (c *conn) ttl(args [][]byte, out []byte) []byte {
	is, out, ok := c.isThere(args[1:2], out)
	switch {
	case !ok:
		return out
	case is && c.tracking.reads():
		// A client that is about to cache asks for how long it may. The push behind the reply says that the key has moved, but
		// another goroutine of the client can look before the push is read; what expires at once is never looked at.
		return appendInt(out, 0)
	case is:
		return appendInt(out, -1)
	}
	return appendInt(out, -2)
}

func (c *conn) dbsize(_ [][]byte, out []byte) []byte {
	out = c.beforeWait(out)
	n, err := c.s.engine.Count(&c.wait)
	c.afterWait()
	if err != nil {
		return c.failErr(out, err)
	}
	return appendInt(out, n)
}

// pages calls fn with each tag that match (a glob, "" = all) and the user's patterns allow, in order, from the one after
// from on, until fn says false.
func (c *conn) pages(match, from string, fn func(tag string) bool) error {
	for {
		rows, next, err := c.s.engine.List(&c.wait, match, from, 1000)
		if err != nil {
			return err
		}
		for i := range rows {
			if c.account.tag([]byte(rows[i].Tag)) && !fn(rows[i].Tag) {
				return nil
			}
		}
		if next == "" {
			return nil
		}
		from = next
	}
}

func (c *conn) keys(args [][]byte, out []byte) []byte {
	match := string(args[1])
	if match == "*" {
		match = ""
	}
	out = c.beforeWait(out)
	defer c.afterWait()
	n, err := c.s.engine.Count(&c.wait)
	if err != nil {
		return c.failErr(out, err)
	}
	if n > maxKeys {
		return c.fail(out, "ERR there are "+strconv.FormatInt(n, 10)+" tags: KEYS goes through 10000 at most, use SCAN")
	}
	var tags []string
	if err := c.pages(match, "", func(tag string) bool {
		tags = append(tags, tag)
		return len(tags) < 2*maxKeys // the count may be 5 s old
	}); err != nil {
		return c.failErr(out, err)
	}
	return appendStrings(out, tags)
}

func appendStrings(out []byte, list []string) []byte {
	out = appendArray(out, len(list))
	for _, s := range list {
		out = appendBulk(out, s)
	}
	return out
}

func (c *conn) scan(args [][]byte, out []byte) []byte {
	cursor, ok := parseCursor(args[1])
	if !ok {
		return c.fail(out, errInvalidCursor)
	}
	match, kind, count := "", "string", int64(10)
	for i := 2; i < len(args); i += 2 {
		if i+1 == len(args) {
			return c.fail(out, errSyntax)
		}
		switch strings.ToUpper(string(args[i])) {
		case "MATCH":
			match = string(args[i+1])
		case "TYPE":
			kind = strings.ToLower(string(args[i+1]))
		case "COUNT":
			if count, ok = parseInt(args[i+1]); !ok {
				return c.fail(out, errNotInteger)
			}
			if count < 1 {
				return c.fail(out, errSyntax)
			}
		default:
			return c.fail(out, errSyntax)
		}
	}
	if match == "*" {
		match = ""
	}
	from := ""
	if cursor != 0 {
		if from, ok = c.s.cursors.get(cursor); !ok {
			return c.fail(out, "ERR cursor "+string(args[1])+" is not remembered any more (or is another instance's): begin again with SCAN 0")
		}
	}
	if kind != "string" { // there are no others, so nothing is left to scan
		out = appendBulk(appendArray(out, 2), "0")
		return appendArray(out, 0)
	}
	out = c.beforeWait(out)
	rows, next, err := c.s.engine.List(&c.wait, match, from, int(min(count, maxPage)))
	c.afterWait()
	if err != nil {
		return c.failErr(out, err)
	}
	cursor = 0
	if next != "" {
		cursor = c.s.cursors.put(next)
	}
	out = appendBulk(appendArray(out, 2), strconv.FormatUint(cursor, 10))
	tags := make([]string, 0, len(rows))
	for i := range rows {
		if c.account.tag([]byte(rows[i].Tag)) {
			tags = append(tags, rows[i].Tag)
		}
	}
	return appendStrings(out, tags)
}

// parseCursor takes what Redis' strtoul would: digits.
func parseCursor(b []byte) (n uint64, ok bool) {
	n, err := strconv.ParseUint(string(b), 10, 64)
	return n, err == nil
}

func (c *conn) randomKey(_ [][]byte, out []byte) []byte {
	out = c.beforeWait(out)
	defer c.afterWait()
	n, err := c.s.engine.Count(&c.wait)
	if err != nil {
		return c.failErr(out, err)
	}
	// One of the first maxKeys, so that the walk has an end.
	pick, seen, tag := rand.Int64N(max(1, min(n, maxKeys))), int64(0), ""
	if err := c.pages("", "", func(t string) bool {
		tag = t
		seen++
		return seen <= pick
	}); err != nil {
		return c.failErr(out, err)
	}
	if tag == "" {
		return c.appendNull(out)
	}
	return appendBulk(out, tag)
}

// cursors remembers where the scans of all clients stand: Redis' cursors carry their state, ours is a tag of up to 128
// bytes. The last 4096 are kept. Numbers stay below 2^53, above which five clients lose or reject them (cases R16), and begin
// at a random place, so that a cursor of an earlier life is not taken for one of this.
type cursors struct {
	mu   sync.Mutex
	next uint64
	ring [4096]struct {
		id   uint64
		from string
	}
}

func newCursors() *cursors { return &cursors{next: 1<<40 + rand.Uint64N(1<<52)} }

func (c *cursors) put(from string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next >= 1<<53 {
		c.next = 1
	}
	id := c.next
	c.next++
	slot := &c.ring[id%uint64(len(c.ring))]
	slot.id, slot.from = id, from
	return id
}

func (c *cursors) get(id uint64) (from string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slot := &c.ring[id%uint64(len(c.ring))]
	return slot.from, slot.id == id
}

// Why some commands are refused.
const (
	reasonBack    = "counters only move forward: an ID that was handed out would come back"
	reasonDelete  = "a counter that is deleted begins again at 1, and its IDs would come back. Leave it, or remove its row in the store when nobody uses it any more"
	reasonExpire  = "counters don't expire, for they would begin again at 1. Use one tag per period, as order:2026-08"
	reasonReplace = "it would replace a counter's value unseen, and IDs could come back. SET moves one forward"
	reasonText    = "a counter is a number, not text"
	reasonName    = "a counter under another name would hand out IDs that the first one hands out too"
	reasonScript  = "there are no scripts here. INCR, INCRBY and SEGMENT.NEXT are atomic by themselves"
	reasonDB      = "there is one database"
)

func refusedCommands() []command {
	var rows []command
	add := func(name string, arity int, keys [3]int, group, reason string, f flags) {
		text := "ERR " + strings.ToUpper(name) + " is refused: " + reason
		rows = append(rows, command{
			name: name, arity: arity, flags: refused | f, keys: keys, group: group, since: "1.0.0",
			args: []arg{}, summary: "Refused: " + reason + ".",
			check: func([][]byte) string { return text },
			// check comes first, always.
			run: func(c *conn, _ [][]byte, out []byte) []byte { return c.fail(out, text) },
		})
	}
	one, all, two, pairs, none := [3]int{1, 1, 1}, [3]int{1, -1, 1}, [3]int{1, 2, 1}, [3]int{1, -1, 2}, [3]int{}
	add("del", -2, all, "generic", reasonDelete, write)
	add("unlink", -2, all, "generic", reasonDelete, write|fast)
	add("decr", 2, one, "string", reasonBack, write|fast)
	add("decrby", 3, one, "string", reasonBack, write|fast)
	add("incrbyfloat", 3, one, "string", "IDs are integers. INCRBY takes several", write|fast)
	add("append", 3, one, "string", reasonText, write|fast)
	add("setrange", 4, one, "string", reasonText, write)
	add("getset", 3, one, "string", reasonReplace, write|fast)
	add("getdel", 2, one, "string", reasonDelete, write|fast)
	add("getex", -2, one, "string", reasonExpire, write|fast)
	add("setex", 4, one, "string", reasonExpire, write)
	add("psetex", 4, one, "string", reasonExpire, write)
	add("mset", -3, pairs, "string", reasonReplace, write)
	add("msetnx", -3, pairs, "string", reasonReplace, write)
	add("rename", 3, two, "generic", reasonName, write)
	add("renamenx", 3, two, "generic", reasonName, write|fast)
	add("copy", -3, two, "generic", reasonName, write)
	add("move", 3, one, "generic", reasonDB, write|fast)
	add("restore", -4, one, "generic", reasonReplace, write)
	add("expire", -3, one, "generic", reasonExpire, write|fast)
	add("pexpire", -3, one, "generic", reasonExpire, write|fast)
	add("expireat", -3, one, "generic", reasonExpire, write|fast)
	add("pexpireat", -3, one, "generic", reasonExpire, write|fast)
	add("persist", 2, one, "generic", "counters don't expire, so there is nothing to undo", write|fast)
	add("flushdb", -1, none, "server", reasonDelete, write)
	add("flushall", -1, none, "server", reasonDelete, write)
	add("swapdb", 3, none, "server", reasonDB, write|fast)
	add("eval", -3, none, "scripting", reasonScript, noscript|stale)
	add("evalsha", -3, none, "scripting", reasonScript, noscript|stale)
	add("eval_ro", -3, none, "scripting", reasonScript, noscript|stale)
	add("evalsha_ro", -3, none, "scripting", reasonScript, noscript|stale)
	add("fcall", -3, none, "scripting", reasonScript, noscript|stale)
	add("fcall_ro", -3, none, "scripting", reasonScript, noscript|stale)
	add("script", -2, none, "scripting", reasonScript, noscript)
	add("function", -2, none, "scripting", reasonScript, noscript)
	return rows
}
