package server

import (
	"sort"
	"strconv"
	"strings"
	"time"
)

func serverCommands() []command {
	f := loading | stale
	return []command{
		{
			name: "command", arity: -1, flags: f, group: "server", cats: "connection", tips: "nondeterministic_output_order", since: "2.8.13", order: "O(N)",
			summary: "Describes all commands.", reply: "array, ten elements each",
			run: func(c *conn, _ [][]byte, out []byte) []byte { return c.commandInfo(c.s.table.top, out) },
			sub: []*command{
				{name: "count", arity: 2, flags: f, summary: "Counts the commands.", run: func(c *conn, _ [][]byte, out []byte) []byte { return appendInt(out, int64(len(c.s.table.top))) }},
				{name: "info", arity: -2, flags: f, args: []arg{opt(many(str("command-name")))}, summary: "Describes commands.", reply: "array, ten elements each, null for what does not exist", run: (*conn).commandInfoOf},
				{name: "docs", arity: -2, flags: f, since: "7.0.0", args: []arg{opt(many(str("command-name")))}, summary: "Documents commands.", reply: "map of maps, for redis-cli's hints and HELP", run: (*conn).commandDocs},
				{name: "list", arity: -2, flags: f, since: "7.0.0", args: []arg{opt(after("FILTERBY", oneOf("filterby", after("MODULE", str("module-name")), after("ACLCAT", str("category")), after("PATTERN", pattern("pattern")))))}, summary: "Names the commands.", run: (*conn).commandList},
				{name: "getkeys", arity: -4, flags: f, args: []arg{str("command"), opt(many(str("arg")))}, summary: "Tells which arguments of a command are keys.", run: (*conn).commandGetKeys},
			},
		},
		{
			name: "info", arity: -1, flags: f, need: read, group: "server", cats: "dangerous", tips: "nondeterministic_output request_policy:all_shards response_policy:special", since: "1.0.0",
			args: []arg{opt(many(str("section")))}, summary: "Describes the server.", reply: "sections of `name:value` lines, `redis_version` first",
			run: (*conn).info,
		},
		{
			name: "config", arity: -2, flags: 0, group: "server", since: "2.0.0", summary: "Shows and changes settings.",
			sub: []*command{
				{name: "get", arity: -3, flags: adminFlag | noscript | f, need: read, args: []arg{many(str("parameter"))}, summary: "Shows settings by pattern.", reply: "map; secrets are masked", run: (*conn).configGet},
				{name: "set", arity: -4, flags: adminFlag | noscript | f, need: admin, args: []arg{many(together("data", str("parameter"), str("value")))}, summary: "Changes settings.", reply: "OK; `log.level` and `slowlog.threshold` can be changed", run: (*conn).configSet},
				{name: "resetstat", arity: 2, flags: adminFlag | noscript | f, need: admin, summary: "Makes INFO's counters begin at 0.", reply: "OK; /metrics goes on", run: (*conn).configResetStat},
				{name: "rewrite", arity: 2, flags: adminFlag | noscript | f | refused, need: admin, since: "2.8.0", summary: "Refused: the settings file is yours.", run: func(c *conn, _ [][]byte, out []byte) []byte { return c.fail(out, errNoConfigFile) }},
			},
		},
		{
			name: "time", arity: 1, flags: f | fast, need: read, group: "server", tips: "nondeterministic_output", since: "2.6.0", summary: "Tells the server's time.", reply: "[seconds, microseconds]",
			run: func(_ *conn, _ [][]byte, out []byte) []byte {
				now := time.Now()
				out = appendBulkInt(appendArray(out, 2), now.Unix())
				return appendBulkInt(out, int64(now.Nanosecond()/1000))
			},
		},
		{
			name: "role", arity: 1, flags: noscript | f | fast, need: read, group: "server", cats: "admin dangerous", since: "2.8.12", summary: "Tells the role in replication.", reply: "[master, 0, []]: every instance issues",
			run: func(_ *conn, _ [][]byte, out []byte) []byte {
				out = appendBulk(appendArray(out, 3), "master")
				return appendArray(appendInt(out, 0), 0)
			},
		},
		{
			name: "wait", arity: 3, flags: noscript, group: "generic", cats: "connection", tips: "request_policy:all_shards response_policy:agg_min", since: "3.0.0", args: []arg{integer("numreplicas"), integer("timeout")},
			summary: "Waits for replicas, of which there are none.", reply: "0",
			run: (*conn).waitReplicas,
		},
		{
			name: "slowlog", arity: -2, flags: 0, group: "server", since: "2.2.12", summary: "Shows the commands that waited longest.",
			sub: []*command{
				{name: "get", arity: -2, flags: adminFlag | f, need: read, tips: "request_policy:all_nodes nondeterministic_output", args: []arg{opt(integer("count"))}, summary: "Shows the newest entries.", reply: "array of [number, time, µs, arguments, client, its name]", run: (*conn).slowlogGet},
				{name: "len", arity: 2, flags: adminFlag | f, need: read, summary: "Counts the entries.", run: func(c *conn, _ [][]byte, out []byte) []byte { return appendInt(out, int64(c.s.slowlog.len())) }},
				{name: "reset", arity: 2, flags: adminFlag | f, need: admin, summary: "Forgets the entries.", reply: "OK", run: func(c *conn, _ [][]byte, out []byte) []byte { c.s.slowlog.reset(); return appendOK(out) }},
			},
		},
		{
			name: "latency", arity: -2, flags: 0, group: "server", since: "2.8.13", summary: "Shows the worst waits by kind.",
			sub: []*command{
				{name: "latest", arity: 2, flags: adminFlag | noscript | f, need: read, tips: "nondeterministic_output request_policy:all_nodes response_policy:special", summary: "Shows the last and the worst of each kind.", reply: "array of [event, time, ms, worst ms]; `refill` = a command that took IDs, `store` = another", run: (*conn).latencyLatest},
				{name: "reset", arity: -2, flags: adminFlag | noscript | f, need: admin, args: []arg{opt(many(str("event")))}, summary: "Forgets events.", reply: "how many", run: (*conn).latencyReset},
			},
		},
		{
			name: "memory", arity: -2, flags: 0, group: "server", since: "4.0.0", summary: "Tells about memory.",
			sub: []*command{
				{name: "usage", arity: -3, flags: readonly, keys: [3]int{2, 2, 1}, access: "RO", need: read, args: []arg{keyArg(), opt(after("SAMPLES", integer("count")))}, summary: "Tells what a tag takes in memory.", reply: "bytes, roughly; null when there is no such tag", run: (*conn).memoryUsage},
			},
		},
		{
			name: "acl", arity: -2, flags: 0, group: "server", since: "6.0.0", summary: "Tells about users.",
			sub: []*command{
				{name: "whoami", arity: 2, flags: noscript | f, summary: "Tells the user's name.", run: func(c *conn, _ [][]byte, out []byte) []byte { return appendBulk(out, c.account.name) }},
			},
		},
		{
			name: "module", arity: -2, flags: 0, group: "server", since: "4.0.0", summary: "Tells about modules, of which there are none.",
			sub: []*command{
				{name: "list", arity: 2, flags: adminFlag | noscript, need: read, summary: "Lists modules.", reply: "an empty array", run: func(_ *conn, _ [][]byte, out []byte) []byte { return appendArray(out, 0) }},
			},
		},
		{
			name: "shutdown", arity: -1, flags: adminFlag | noscript | f | noMulti, need: admin, group: "server", since: "1.0.0",
			args:    []arg{opt(oneOf("save-selector", word("NOSAVE"), word("SAVE"))), opt(word("NOW")), opt(word("FORCE"))},
			summary: "Stops the server as SIGTERM does.", reply: "none: the connection is closed",
			run: (*conn).shutdown,
		},
		{
			name: "lolwut", arity: -1, flags: readonly | fast, group: "server", since: "5.0.0", summary: "Shows the version.",
			run: func(c *conn, _ [][]byte, out []byte) []byte {
				return c.appendText(out, "Each leaf once. Redleaf ver. "+c.s.o.Version+"\n")
			},
		},
		never("cluster", -2, "cluster", "this instance is no part of a Redis cluster", errCluster, f),
		never("readonly", 1, "cluster", "this instance is no part of a Redis cluster", errCluster, f|fast),
		never("readwrite", 1, "cluster", "this instance is no part of a Redis cluster", errCluster, f|fast),
		never("asking", 1, "cluster", "this instance is no part of a Redis cluster", errCluster, fast),
		never("debug", -2, "server", "it is for Redis' own developers", errDebug, adminFlag|noscript|f),
		never("monitor", 1, "server", "it would show every client's keys and slow them all down", "ERR MONITOR is refused: it would show every client's keys and slow them all down. SLOWLOG, INFO commandstats and /metrics tell what goes on", adminFlag|noscript|f),
	}
}

// never is a row whose command is always answered by one text.
func never(name string, arity int, group, reason, text string, f flags) command {
	return command{
		name: name, arity: arity, flags: refused | f, group: group, since: "1.0.0", summary: "Refused: " + reason + ".",
		check: func([][]byte) string { return text },
		run:   func(c *conn, _ [][]byte, out []byte) []byte { return c.fail(out, text) },
	}
}

// commandInfo is COMMAND's reply: ten elements each. redis-cli asserts which of them are status replies.
func (c *conn) commandInfo(rows []*command, out []byte) []byte {
	out = appendArray(out, len(rows))
	for _, r := range rows {
		if r == nil {
			out = c.appendNullArray(out)
			continue
		}
		out = c.commandEntry(r, out)
	}
	return out
}

func (c *conn) commandEntry(r *command, out []byte) []byte {
	out = appendArray(out, 10)
	out = appendBulk(out, r.full)
	out = appendInt(out, int64(r.arity))
	var names []string
	for _, f := range flagNames {
		if r.has(f.f) {
			names = append(names, f.name)
		}
	}
	out = c.appendStatuses(out, names)
	for _, k := range r.keys {
		out = appendInt(out, int64(k))
	}
	out = c.appendStatuses(out, r.categories())
	tips := strings.Fields(r.tips)
	out = c.appendSet(out, len(tips))
	for _, tip := range tips {
		out = appendBulk(out, tip)
	}
	if r.keys[0] == 0 {
		out = c.appendSet(out, 0)
	} else {
		last := r.keys[1]
		if last > 0 {
			last -= r.keys[0]
		}
		out = c.appendMap(c.appendSet(out, 1), 3)
		out = c.appendStatuses(appendBulk(out, "flags"), r.keyAccess())
		out = c.appendMap(appendBulk(out, "begin_search"), 2)
		out = appendBulk(appendBulk(out, "type"), "index")
		out = c.appendMap(appendBulk(out, "spec"), 1)
		out = appendInt(appendBulk(out, "index"), int64(r.keys[0]))
		out = c.appendMap(appendBulk(out, "find_keys"), 2)
		out = appendBulk(appendBulk(out, "type"), "range")
		out = c.appendMap(appendBulk(out, "spec"), 3)
		out = appendInt(appendBulk(out, "lastkey"), int64(last))
		out = appendInt(appendBulk(out, "keystep"), int64(r.keys[2]))
		out = appendInt(appendBulk(out, "limit"), 0)
	}
	out = c.appendSet(out, len(r.sub))
	for _, s := range r.sub {
		out = c.commandEntry(s, out)
	}
	return out
}

// appendStatuses is a set of status replies.
func (c *conn) appendStatuses(out []byte, list []string) []byte {
	out = c.appendSet(out, len(list))
	for _, s := range list {
		out = appendStatus(out, s)
	}
	return out
}

// named is the row of a name as COMMAND's subcommands take it: "client" or "client|id".
func (t *table) named(name []byte) *command {
	container, sub, ok := strings.Cut(string(name), "|")
	r := t.find([]byte(container))
	if r == nil || !ok {
		return r
	}
	return r.subcommand([]byte(sub))
}

func (c *conn) commandInfoOf(args [][]byte, out []byte) []byte {
	if len(args) == 2 {
		return c.commandInfo(c.s.table.top, out)
	}
	rows := make([]*command, 0, len(args)-2)
	for _, name := range args[2:] {
		rows = append(rows, c.s.table.named(name))
	}
	return c.commandInfo(rows, out)
}

func (c *conn) commandDocs(args [][]byte, out []byte) []byte {
	rows := c.s.table.top
	if len(args) > 2 {
		rows = nil
		for _, name := range args[2:] {
			if r := c.s.table.named(name); r != nil {
				rows = append(rows, r)
			}
		}
	}
	out = c.appendMap(out, len(rows))
	for _, r := range rows {
		out = c.commandDoc(r, out)
	}
	return out
}

func (c *conn) commandDoc(r *command, out []byte) []byte {
	out = appendBulk(out, r.full)
	n := 4
	if len(r.args) > 0 {
		n++
	}
	if len(r.sub) > 0 {
		n++
	}
	order := r.order
	if order == "" {
		order = "O(1)"
	}
	out = c.appendMap(out, n)
	out = appendBulk(appendBulk(out, "summary"), strings.TrimSuffix(r.summary, "."))
	out = appendBulk(appendBulk(out, "since"), r.since)
	out = appendBulk(appendBulk(out, "group"), r.group)
	out = appendBulk(appendBulk(out, "complexity"), order)
	if len(r.args) > 0 {
		out = c.argDocs(r.args, appendBulk(out, "arguments"))
	}
	if len(r.sub) > 0 {
		out = c.appendMap(appendBulk(out, "subcommands"), len(r.sub))
		for _, s := range r.sub {
			out = c.commandDoc(s, out)
		}
	}
	return out
}

func (c *conn) argDocs(args []arg, out []byte) []byte {
	out = appendArray(out, len(args))
	for _, a := range args {
		n := 2
		for _, has := range []bool{a.kind == "key", a.token != "", a.optional || a.multiple, len(a.args) > 0} {
			if has {
				n++
			}
		}
		out = c.appendMap(out, n)
		out = appendBulk(appendBulk(out, "name"), a.name)
		out = appendBulk(appendBulk(out, "type"), a.kind)
		if a.kind == "key" {
			out = appendInt(appendBulk(out, "key_spec_index"), 0)
		}
		if a.token != "" {
			out = appendBulk(appendBulk(out, "token"), a.token)
		}
		if a.optional || a.multiple {
			var f []string
			if a.optional {
				f = append(f, "optional")
			}
			if a.multiple {
				f = append(f, "multiple")
			}
			out = c.appendStatuses(appendBulk(out, "flags"), f)
		}
		if len(a.args) > 0 {
			out = c.argDocs(a.args, appendBulk(out, "arguments"))
		}
	}
	return out
}

func (c *conn) commandList(args [][]byte, out []byte) []byte {
	keep := func(*command) bool { return true }
	switch {
	case len(args) == 2:
	case len(args) == 5 && strings.EqualFold(string(args[2]), "FILTERBY"):
		value := string(args[4])
		switch strings.ToUpper(string(args[3])) {
		case "MODULE":
			keep = func(*command) bool { return false }
		case "ACLCAT":
			keep = func(r *command) bool {
				for _, cat := range r.categories() {
					if strings.EqualFold(cat, "@"+value) {
						return true
					}
				}
				return false
			}
		case "PATTERN":
			keep = func(r *command) bool { return glob(strings.ToLower(value), r.full) }
		default:
			return c.fail(out, errSyntax)
		}
	default:
		return c.fail(out, errSyntax)
	}
	var names []string
	for _, r := range c.s.table.top {
		if keep(r) {
			names = append(names, r.full)
		}
	}
	return appendStrings(out, names)
}

func (c *conn) commandGetKeys(args [][]byte, out []byte) []byte {
	args = args[2:]
	r := c.s.table.find(args[0])
	if r != nil && r.sub != nil && len(args) > 1 {
		r = r.subcommand(args[1])
	}
	switch {
	case r == nil:
		return c.fail(out, errInvalidCommand)
	case r.keys[0] == 0:
		return c.fail(out, errNoKeyArgs)
	case !r.arityOK(len(args)):
		return c.fail(out, errBadArgCount)
	}
	var keys []string
	r.positions(len(args), func(i int) bool {
		keys = append(keys, string(args[i]))
		return true
	})
	return appendStrings(out, keys)
}

// settings are what CONFIG GET knows: our own settings, and the names by which monitoring tools ask Redis (cases R12).
func (s *Server) settings() [][2]string {
	slow := s.slowlogAt.Load() / int64(time.Microsecond)
	if slow == 0 {
		slow = -1 // Redis' off
	}
	protected := "no"
	if s.protected.Load() {
		protected = "yes"
	}
	list := [][2]string{
		{"appendonly", "no"},
		{"databases", "1"},
		{"maxclients", strconv.FormatInt(s.guard.maxClients.Load(), 10)},
		{"maxmemory", "0"},
		{"maxmemory-policy", "noeviction"},
		{"port", strconv.Itoa(s.o.Port)},
		{"proto-max-bulk-len", strconv.Itoa(frameDefaults.Bulk)},
		{"protected-mode", protected},
		{"replica-read-only", "yes"},
		{"save", ""},
		{"slowlog-log-slower-than", strconv.FormatInt(slow, 10)},
		{"slowlog-max-len", strconv.Itoa(slowlogMax)},
		{"timeout", strconv.FormatInt(s.guard.idleTimeout.Load()/int64(time.Second), 10)},
	}
	if s.o.Settings != nil {
		list = append(list, s.o.Settings()...)
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i][0] < list[j][0] })
	return list
}

func (c *conn) configGet(args [][]byte, out []byte) []byte {
	var found [][2]string
	for _, p := range c.s.settings() {
		for _, a := range args[2:] {
			if strings.EqualFold(string(a), p[0]) { // spelled as the client did, as in Redis
				found = append(found, [2]string{string(a), p[1]})
				break
			}
			if glob(strings.ToLower(string(a)), p[0]) {
				found = append(found, p)
				break
			}
		}
	}
	out = c.appendMap(out, len(found))
	for _, p := range found {
		out = appendBulk(appendBulk(out, p[0]), p[1])
	}
	return out
}

func (c *conn) configSet(args [][]byte, out []byte) []byte {
	if len(args)%2 != 0 {
		return c.fail(out, "ERR wrong number of arguments for 'config|set' command")
	}
	known := make(map[string]bool)
	for _, p := range c.s.settings() {
		known[p[0]] = true
	}
	for i := 2; i < len(args); i += 2 {
		if name := strings.ToLower(string(args[i])); !known[name] {
			return c.fail(out, "ERR Unknown option or number of arguments for CONFIG SET - '"+string(cString(args[i], 128))+"'")
		}
	}
	for i := 2; i < len(args); i += 2 {
		name := strings.ToLower(string(args[i]))
		if c.s.o.ConfigSet == nil {
			return c.fail(out, "ERR CONFIG SET failed (possibly related to argument '"+name+"') - can't set immutable config")
		}
		if err := c.s.o.ConfigSet(name, string(args[i+1])); err != nil {
			return c.fail(out, "ERR CONFIG SET failed (possibly related to argument '"+name+"') - "+err.Error())
		}
	}
	return appendOK(out)
}

// configResetStat moves the zero of INFO's counters: /metrics must not see them fall.
func (c *conn) configResetStat(_ [][]byte, out []byte) []byte {
	st := c.s.Stats()
	c.s.zero.Store(&st)
	return appendOK(out)
}

func (c *conn) waitReplicas(args [][]byte, out []byte) []byte {
	if n, ok := parseInt(args[1]); !ok || n != int64(int32(n)) {
		return c.fail(out, errNotInteger)
	}
	ms, ok := parseInt(args[2])
	switch {
	case !ok:
		return c.fail(out, errTimeoutNumber)
	case ms < 0:
		return c.fail(out, errTimeoutNegative)
	}
	return appendInt(out, 0)
}

func (c *conn) slowlogGet(args [][]byte, out []byte) []byte {
	n := int64(10)
	if len(args) > 3 {
		return c.fail(out, "ERR wrong number of arguments for 'slowlog|get' command")
	}
	if len(args) == 3 {
		var ok bool
		if n, ok = parseInt(args[2]); !ok || n < -1 {
			return c.fail(out, "ERR count should be greater than or equal to -1")
		}
	}
	list := c.s.slowlog.newest(n)
	out = appendArray(out, len(list))
	for _, e := range list {
		out = appendArray(out, 6)
		out = appendInt(out, e.id)
		out = appendInt(out, e.at.Unix())
		out = appendInt(out, e.took.Microseconds())
		out = appendStrings(out, e.args)
		out = appendBulk(out, e.addr)
		out = appendBulk(out, e.name)
	}
	return out
}

func (c *conn) latencyLatest(_ [][]byte, out []byte) []byte {
	names, events := c.s.latency.list()
	out = appendArray(out, len(names))
	for i, e := range events {
		out = appendArray(out, 4)
		out = appendBulk(out, names[i])
		out = appendInt(out, e.at.Unix())
		out = appendInt(out, e.latest.Milliseconds())
		out = appendInt(out, e.most.Milliseconds())
	}
	return out
}

func (c *conn) latencyReset(args [][]byte, out []byte) []byte {
	var names []string
	for _, a := range args[2:] {
		names = append(names, string(a))
	}
	return appendInt(out, c.s.latency.reset(names...))
}

// tagBytes is what a tag in use takes in memory, as measured with 1,000,000 of them.
const tagBytes = 400

func (c *conn) memoryUsage(args [][]byte, out []byte) []byte {
	if len(args) > 3 {
		if len(args) != 5 || !strings.EqualFold(string(args[3]), "SAMPLES") {
			return c.fail(out, errSyntax)
		}
		switch n, ok := parseInt(args[4]); {
		case !ok:
			return c.fail(out, errNotInteger)
		case n < 0:
			return c.fail(out, errSyntax)
		}
	}
	is, out, ok := c.isThere(args[2:3], out)
	switch {
	case !ok:
		return out
	case !is:
		return c.appendNull(out)
	}
	return appendInt(out, tagBytes+int64(len(args[2])))
}

func (c *conn) shutdown(args [][]byte, out []byte) []byte {
	for _, a := range args[1:] {
		switch strings.ToUpper(string(a)) {
		case "NOSAVE", "SAVE", "NOW", "FORCE":
		case "ABORT":
			return c.fail(out, "ERR No shutdown in progress.")
		default:
			return c.fail(out, errSyntax)
		}
	}
	if c.s.o.Shutdown == nil {
		return c.fail(out, "ERR this server can't be stopped from here: send it SIGTERM")
	}
	c.s.log.Info().Str("client", c.addr).Str("user", c.account.name).Msg("SHUTDOWN was called")
	c.s.o.Shutdown()
	c.close()
	return out
}
