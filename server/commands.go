package server

import (
	"fmt"
	"sort"
	"strings"
)

// command is one row of the command table. It is the only place that knows a command: dispatch, arity, rights, COMMAND,
// the counters' labels and README's table all read it.
type command struct {
	name  string // lower case; of a subcommand, its own part
	arity int    // as Redis counts: with the name; negative = at least
	flags flags
	keys  [3]int // first, last, step; last -1 = the last argument
	need  rights // groups of which the user must have one; 0 = everybody who is in
	group string // of COMMAND DOCS and HELP @group
	since string

	args    []arg
	summary string
	reply   string // README's column
	order   string // complexity; "" = O(1)
	cats    string // ACL categories besides those of the flags, instead of the group's or, behind a +, beside it
	access  string // of the keys, in COMMAND INFO; "" = what the flags imply
	tips    string // of COMMAND INFO

	// check looks at the arguments before the command is queued or run. What it returns is the refusal; inside MULTI the
	// transaction is aborted by it, so nothing is burnt (cases R5).
	check func(args [][]byte) string

	// run appends exactly one reply to out.
	run func(c *conn, args [][]byte, out []byte) []byte

	sub []*command

	// Filled by newTable.
	full  string // "client|list" of a subcommand, else the name
	index int    // of its counters
	hot   int    // of its counters in the fast lane, -1 for most
	names map[string]*command
}

type flags uint32

const (
	write       flags = 1 << iota // takes IDs or moves a counter; no client sends these to a replica
	readonly                      // looks at keys
	adminFlag                     // Redis' flag, beside our group
	pubsub                        //
	noscript                      //
	loading                       // runs while an engine is not ready
	stale                         //
	fast                          //
	noAuth                        // runs before AUTH
	noMulti                       // is refused inside MULTI
	immediate                     // inside MULTI it runs instead of being queued
	refused                       // known, and refused by check
	inSubscribe                   // allowed to a RESP2 client that has subscribed
	unpaused                      // CLIENT PAUSE does not hold it

	// Told to clients alone, as Redis tells them.
	denyOOM
	skipSlowlog
	allowBusy
)

// flagNames are what COMMAND INFO shows, in Redis' order.
var flagNames = []struct {
	f    flags
	name string
}{
	{write, "write"}, {readonly, "readonly"}, {denyOOM, "denyoom"}, {adminFlag, "admin"}, {pubsub, "pubsub"}, {noscript, "noscript"},
	{loading, "loading"}, {stale, "stale"}, {skipSlowlog, "skip_slowlog"}, {fast, "fast"}, {noAuth, "no_auth"}, {noMulti, "no_multi"},
	{allowBusy, "allow_busy"},
}

// arg describes one argument for COMMAND DOCS and README.
type arg struct {
	name, kind string // kind: key, string, integer, pattern, pure-token, oneof, block
	token      string
	optional   bool
	multiple   bool
	args       []arg // of oneof and block
}

func keyArg() arg             { return arg{name: "key", kind: "key"} }
func str(name string) arg     { return arg{name: name, kind: "string"} }
func integer(name string) arg { return arg{name: name, kind: "integer"} }
func pattern(name string) arg { return arg{name: name, kind: "pattern"} }
func word(token string) arg {
	return arg{name: strings.ToLower(token), kind: "pure-token", token: token}
}
func after(token string, a arg) arg       { a.token = token; return a }
func opt(a arg) arg                       { a.optional = true; return a }
func many(a arg) arg                      { a.multiple = true; return a }
func oneOf(name string, of ...arg) arg    { return arg{name: name, kind: "oneof", args: of} }
func together(name string, of ...arg) arg { return arg{name: name, kind: "block", args: of} }

// syntax is the argument as README shows it.
func (a arg) syntax() string {
	var s string
	switch a.kind {
	case "pure-token":
		s = a.token
	case "oneof", "block":
		parts := make([]string, len(a.args))
		for i := range a.args {
			parts[i] = a.args[i].syntax()
		}
		s = strings.Join(parts, map[string]string{"oneof": " | ", "block": " "}[a.kind])
		if a.kind == "oneof" && !a.optional {
			s = "<" + s + ">"
		}
	default:
		s = a.name
		if a.token != "" {
			s = a.token + " " + s
		}
	}
	if a.multiple {
		s += " [" + s + " …]"
	}
	if a.optional {
		s = "[" + s + "]"
	}
	return s
}

// Syntax is the command as one would type it.
func (c *command) syntax() string {
	parts := []string{strings.ToUpper(strings.ReplaceAll(c.full, "|", " "))}
	for _, a := range c.args {
		parts = append(parts, a.syntax())
	}
	return strings.Join(parts, " ")
}

func (c *command) has(f flags) bool { return c.flags&f != 0 }

// arityOK says whether n arguments, the name included, are right.
func (c *command) arityOK(n int) bool {
	return n == c.arity || c.arity < 0 && n >= -c.arity
}

func (c *command) arityText() string {
	return "ERR wrong number of arguments for '" + c.full + "' command"
}

// positions calls fn with the index of each key among args.
func (c *command) positions(n int, fn func(i int) bool) bool {
	if c.keys[0] == 0 {
		return true
	}
	last := c.keys[1]
	if last < 0 {
		last += n
	}
	for i := c.keys[0]; i <= last && i < n; i += c.keys[2] {
		if !fn(i) {
			return false
		}
	}
	return true
}

// categoryOrder is Redis' order of ACL categories, and our own groups behind them.
var categoryOrder = []string{"keyspace", "read", "write", "string", "pubsub", "admin", "fast", "slow", "dangerous", "connection", "transaction", "scripting", "segment", "snowflake"}

// groupCategory is the category that comes with a group of COMMAND DOCS.
var groupCategory = map[string]string{
	"generic": "keyspace", "string": "string", "connection": "connection", "transactions": "transaction",
	"scripting": "scripting", "segment": "segment", "snowflake": "snowflake",
}

// categories are the ACL categories of the row.
func (c *command) categories() []string {
	has := map[string]bool{
		"read": c.has(readonly), "write": c.has(write), "pubsub": c.has(pubsub), "fast": c.has(fast), "slow": !c.has(fast),
		"admin": c.has(adminFlag), "dangerous": c.has(adminFlag),
	}
	if c.cats == "" || c.cats[0] == '+' {
		has[groupCategory[c.group]] = true
	}
	for _, name := range strings.Fields(strings.TrimPrefix(c.cats, "+")) {
		has[name] = true
	}
	var out []string
	for _, name := range categoryOrder {
		if has[name] {
			out = append(out, "@"+name)
		}
	}
	return out
}

// keyAccess are the flags of the row's keys.
func (c *command) keyAccess() []string {
	switch {
	case c.access != "":
		return strings.Fields(c.access)
	case c.has(readonly):
		return []string{"RO", "access"}
	}
	return []string{"RW", "access", "update"}
}

// longest is the longest name that is looked up; a longer one is unknown.
const longest = 32

// table is every row, looked up by name.
type table struct {
	byName map[string]*command
	rows   []*command // every row and subcommand, by index
	top    []*command // by name, without subcommands
}

// newTable joins the rows of all files. It is a function so that the handler of COMMAND, which reads it, is no
// initialization loop.
func newTable() *table {
	t := &table{byName: make(map[string]*command)}
	add := func(r *command) {
		r.index = len(t.rows)
		r.hot = -1
		t.rows = append(t.rows, r)
	}
	for _, rows := range [][]command{
		segmentCommands(), snowflakeCommands(), keyCommands(), refusedCommands(),
		connectionCommands(), clientCommands(), pubsubCommands(), multiCommands(), serverCommands(),
	} {
		for i := range rows {
			r := &rows[i]
			r.full = r.name
			if len(r.name) > longest || t.byName[r.name] != nil {
				panic("server: command " + r.name + " is too long or there twice")
			}
			add(r)
			t.byName[r.name] = r
			t.top = append(t.top, r)
			if r.sub != nil {
				r.names = make(map[string]*command)
				r.sub = append(r.sub, &command{
					name: "help", arity: 2, flags: loading | stale, since: r.since, group: r.group,
					summary: "Shows what there is.", run: func(c *conn, _ [][]byte, out []byte) []byte { return c.help(r, out) },
				})
			}
			for _, s := range r.sub {
				s.full = r.name + "|" + s.name
				if s.group == "" {
					s.group = r.group
				}
				if s.cats == "" {
					s.cats = r.cats
				}
				if s.since == "" {
					s.since = r.since
				}
				add(s)
				r.names[s.name] = s
			}
		}
	}
	sort.Slice(t.top, func(i, j int) bool { return t.top[i].name < t.top[j].name })
	return t
}

// fold copies name into buf in lower case; a name that does not fit can't be in the table.
func fold(buf *[longest]byte, name []byte) []byte {
	if len(name) > longest {
		return nil
	}
	for i, b := range name {
		if 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		buf[i] = b
	}
	return buf[:len(name)]
}

// find is the row of a name, without allocation; nil where there is none.
func (t *table) find(name []byte) *command {
	var buf [longest]byte
	return t.byName[string(fold(&buf, name))]
}

// subcommand is the row of a container's subcommand.
func (c *command) subcommand(name []byte) *command {
	var buf [longest]byte
	return c.names[string(fold(&buf, name))]
}

// help is the reply to HELP of a container: one line each.
func (c *conn) help(of *command, out []byte) []byte {
	out = appendArray(out, 1+2*len(of.sub))
	out = appendStatus(out, strings.ToUpper(of.name)+" <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")
	for _, s := range of.sub {
		line := strings.TrimPrefix(s.syntax(), strings.ToUpper(of.name)+" ")
		out = appendStatus(out, line)
		out = appendStatus(out, "    "+s.summary)
	}
	return out
}

// unknown is Redis' text for a name that is not in the table.
func unknown(args [][]byte) string {
	var b strings.Builder
	for _, a := range args[1:] {
		if b.Len() >= 128 {
			break
		}
		fmt.Fprintf(&b, "'%s' ", cString(a, 128-b.Len()))
	}
	return fmt.Sprintf("ERR unknown command '%s', with args beginning with: %s", cString(args[0], 128), b.String())
}

// cString is what C's "%.*s" would print: at most n bytes, and nothing from a NUL on.
func cString(b []byte, n int) []byte {
	b = b[:min(len(b), n)]
	for i, x := range b {
		if x == 0 {
			return b[:i]
		}
	}
	return b
}

// CommandTable is README's table of commands, in Markdown.
func CommandTable() string {
	var b strings.Builder
	b.WriteString("| command | group | reply |\n|---|---|---|\n")
	group := func(r *command) string {
		var of []string
		for _, n := range []string{"issue", "read", "admin"} {
			if r.need&rightNames[n] != 0 {
				of = append(of, n)
			}
		}
		return strings.Join(of, ", ")
	}
	line := func(r *command) {
		reply := r.reply
		if reply == "" {
			reply = r.summary
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.ReplaceAll(r.syntax(), "|", "\\|"), group(r), strings.ReplaceAll(reply, "|", "\\|"))
	}
	var no []string
	for _, r := range newTable().rows {
		switch {
		case r.has(refused):
			if r.sub == nil {
				no = append(no, "`"+strings.ToUpper(strings.ReplaceAll(r.full, "|", " "))+"`")
			}
		case r.sub != nil || r.name == "help":
		default:
			line(r)
		}
	}
	fmt.Fprintf(&b, "\nKnown and refused, each with its reason: %s.\n", strings.Join(no, " "))
	return b.String()
}
