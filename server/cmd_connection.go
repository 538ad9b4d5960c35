package server

import (
	"crypto/sha256"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// redisVersion is what clients are told: 7.2 makes CLIENT SETINFO and NO-TOUCH legitimate, and from 8 on rueidis would prefer
// CLUSTER SHARDS.
const redisVersion = "7.2.4"

func connectionCommands() []command {
	return []command{
		{
			name: "ping", arity: -1, flags: fast | inSubscribe, tips: "request_policy:all_shards response_policy:all_succeeded", group: "connection", since: "1.0.0",
			args: []arg{opt(str("message"))}, summary: "Answers PONG, or the message.", reply: "PONG as long as commands are read, whatever the engines do",
			run: (*conn).ping,
		},
		{
			name: "echo", arity: 2, flags: fast | loading | stale, group: "connection", since: "1.0.0",
			args: []arg{str("message")}, summary: "Answers the message.",
			run: func(_ *conn, args [][]byte, out []byte) []byte { return appendBulk(out, args[1]) },
		},
		{
			name: "auth", arity: -2, flags: noscript | loading | stale | fast | noAuth | allowBusy | unpaused, group: "connection", since: "1.0.0",
			args: []arg{opt(str("username")), str("password")}, summary: "Says who the client is.", reply: "OK",
			run: (*conn).auth,
		},
		{
			name: "hello", arity: -1, flags: noscript | loading | stale | fast | noAuth | allowBusy | unpaused, group: "connection", since: "6.0.0",
			args: []arg{opt(together("arguments", integer("protover"),
				opt(after("AUTH", together("auth", str("username"), str("password")))), opt(after("SETNAME", str("clientname")))))},
			summary: "Agrees on RESP2 or RESP3.", reply: "map: server, version, proto, id, mode, role, modules",
			run: (*conn).hello,
		},
		{
			name: "select", arity: 2, flags: loading | stale | fast, group: "connection", since: "1.0.0",
			args: []arg{integer("index")}, summary: "Selects the database.", reply: "OK for 0, which is the only one",
			run: (*conn).selectDB,
		},
		{
			name: "quit", arity: -1, flags: noscript | loading | stale | fast | noAuth | allowBusy | immediate | inSubscribe | unpaused, group: "connection", since: "1.0.0",
			summary: "Closes the connection.", reply: "OK; what was sent behind it is not run",
			run: (*conn).quit,
		},
		{
			name: "reset", arity: 1, flags: noscript | loading | stale | fast | noAuth | allowBusy | immediate | inSubscribe | unpaused, group: "connection", since: "6.2.0",
			summary: "Makes the connection as new.", reply: "RESET",
			run: (*conn).reset,
		},
	}
}

func (c *conn) ping(args [][]byte, out []byte) []byte {
	if len(args) > 2 {
		return c.fail(out, c.s.table.byName["ping"].arityText())
	}
	if c.proto == 2 && c.subs.count() > 0 {
		out = appendBulk(appendArray(out, 2), "pong")
		if len(args) == 2 {
			return appendBulk(out, args[1])
		}
		return appendBulk(out, "")
	}
	if len(args) == 2 {
		return appendBulk(out, args[1])
	}
	return append(out, "+PONG\r\n"...)
}

func (c *conn) auth(args [][]byte, out []byte) []byte {
	name, password := []byte(defaultUser), args[len(args)-1]
	switch len(args) {
	case 2:
		if a := c.s.accounts.Load().def; a != nil && a.noPass {
			return c.fail(out, errNoPassword)
		}
	case 3:
		name = args[1]
	default:
		return c.fail(out, errSyntax)
	}
	if !c.login(name, password) {
		return c.fail(out, errWrongPass)
	}
	return appendOK(out)
}

// login makes the client the user of that name, if the password is right; otherwise it stays who it was.
func (c *conn) login(name, password []byte) bool {
	t := c.s.accounts.Load()
	a, hash, ok := t.login(name, password)
	if !ok {
		c.s.authFailed(show(name[:min(len(name), 64)]), c.addr)
		return false
	}
	c.enter(a, t, hash)
	return true
}

func (c *conn) hello(args [][]byte, out []byte) []byte {
	proto := c.proto
	if len(args) > 1 {
		n, ok := parseInt(args[1])
		switch {
		case !ok:
			return c.fail(out, errProtoNumber)
		case n < 2 || n > 3:
			return c.fail(out, errNoProto)
		}
		proto = int(n)
	}
	var user, password, name []byte
	setName := false
	for i := 2; i < len(args); i++ {
		more := len(args) - 1 - i
		switch o := strings.ToUpper(string(args[i])); {
		case o == "AUTH" && more >= 2:
			user, password = args[i+1], args[i+2]
			i += 2
		case o == "SETNAME" && more >= 1:
			name, setName = args[i+1], true
			if !plainName(name) {
				return c.fail(out, errClientName)
			}
			i++
		default:
			return c.fail(out, "ERR Syntax error in HELLO option '"+string(cString(args[i], 128))+"'")
		}
	}
	if user != nil && !c.login(user, password) {
		return c.fail(out, errWrongPass)
	}
	if c.current() == nil {
		return c.fail(out, errHelloNoAuth)
	}
	c.mu.Lock()
	c.proto = proto
	if setName {
		c.name = string(name)
	}
	c.mu.Unlock()

	out = c.appendMap(out, 7)
	out = appendBulk(appendBulk(out, "server"), "redis")
	out = appendBulk(appendBulk(out, "version"), redisVersion)
	out = appendInt(appendBulk(out, "proto"), int64(c.proto))
	out = appendInt(appendBulk(out, "id"), c.id)
	out = appendBulk(appendBulk(out, "mode"), "standalone")
	out = appendBulk(appendBulk(out, "role"), "master")
	return appendArray(appendBulk(out, "modules"), 0)
}

// plainName says whether a name may stand in CLIENT LIST: printable, without spaces.
func plainName(b []byte) bool {
	for _, x := range b {
		if x < '!' || x > '~' {
			return false
		}
	}
	return true
}

func (c *conn) selectDB(args [][]byte, out []byte) []byte {
	n, ok := parseInt(args[1])
	switch {
	case !ok:
		return c.fail(out, errNotInteger)
	case n != int64(int32(n)):
		return c.fail(out, errInt32)
	case n != 0:
		return c.fail(out, errDBIndex)
	}
	return appendOK(out)
}

func (c *conn) quit(_ [][]byte, out []byte) []byte {
	c.close()
	return appendOK(out)
}

func (c *conn) reset(_ [][]byte, out []byte) []byte {
	c.endTransaction()
	c.subs.clear(c)
	c.tracking.set(c, tracking{})
	c.replyOff, c.muted = false, false
	c.mu.Lock()
	c.proto, c.name = 2, ""
	c.mu.Unlock()
	c.enter(nil, c.s.accounts.Load(), [sha256.Size]byte{})
	return append(out, "+RESET\r\n"...)
}

// pause is CLIENT PAUSE: commands of all clients wait until it ends.
type pause struct {
	until atomic.Int64 // monotonic; 0 = none
	mu    sync.Mutex
	all   bool
	over  chan struct{} // closed when it is called off
	ended bool          // the server stops: nothing waits any more
}

func (p *pause) init() { p.over = make(chan struct{}) }

func (p *pause) on() bool {
	until := p.until.Load()
	return until != 0 && monotonic() < until
}

// set begins a pause, or prolongs the one there is: as in Redis it is never made shorter or milder by another one.
func (p *pause) set(d time.Duration, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	if p.on() {
		all = all || p.all
	}
	p.all = all
	p.until.Store(max(p.until.Load(), monotonic()+int64(d)))
}

// off ends the pause.
func (p *pause) off() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until.Store(0)
	close(p.over)
	p.over = make(chan struct{})
}

// end ends it for good.
func (p *pause) end() {
	p.off()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

// hold waits until no pause concerns the command.
func (c *conn) hold(row *command) {
	p := &c.s.pause
	for p.on() {
		p.mu.Lock()
		all, over := p.all, p.over
		p.mu.Unlock()
		if !all && !c.writes(row) || c.g.killed.Load() {
			return
		}
		if !c.muted {
			c.out = c.write(c.out)
		}
		// Woken now and then to see whether the connection was killed.
		t := time.NewTimer(min(time.Duration(p.until.Load()-monotonic()), 100*time.Millisecond))
		select {
		case <-over:
		case <-t.C:
		}
		t.Stop()
	}
}

// writes says whether a pause of writes holds the command: inside MULTI it is EXEC that waits.
func (c *conn) writes(row *command) bool {
	if c.tx == nil {
		return row.has(write)
	}
	if row.name != "exec" {
		return false
	}
	for _, q := range c.tx.queue {
		if q.row.has(write) {
			return true
		}
	}
	return false
}

// subscriptions are the channels of a client that listens to them. Nothing is ever published: StackExchange.Redis and others
// subscribe at connect to hear of a failover, and are satisfied by being told that they do.
type subscriptions struct {
	channels, patterns, shards map[string]struct{}
	bytes                      int
}

// maxSubscribed bounds the names that one connection may subscribe to, in bytes (I14).
const maxSubscribed = 64 << 10

func (s *subscriptions) count() int { return len(s.channels) + len(s.patterns) + len(s.shards) }

// restrict says whether the client may only send what subscribers may.
func (s *subscriptions) restrict(c *conn) bool { return c.proto == 2 && s.count() > 0 }

func (s *subscriptions) clear(c *conn) {
	*s = subscriptions{}
	c.subsNow.Store(0)
	c.psubsNow.Store(0)
}

func pubsubCommands() []command {
	f := pubsub | noscript | loading | stale | inSubscribe | noMulti
	var rows []command
	for _, k := range []struct {
		name, since string
		of          func(*subscriptions) *map[string]struct{}
	}{
		{"subscribe", "2.0.0", func(s *subscriptions) *map[string]struct{} { return &s.channels }},
		{"psubscribe", "2.0.0", func(s *subscriptions) *map[string]struct{} { return &s.patterns }},
		{"ssubscribe", "7.0.0", func(s *subscriptions) *map[string]struct{} { return &s.shards }},
	} {
		undo := strings.Replace(k.name, "subscribe", "unsubscribe", 1)
		rows = append(rows, command{
			name: k.name, arity: -2, flags: f, group: "pubsub", since: k.since, order: "O(N)",
			args: []arg{many(str("channel"))}, summary: "Listens to channels. Nothing is ever published.", reply: "the channel and how many there are",
			run: func(c *conn, args [][]byte, out []byte) []byte {
				return c.subscribe(k.name, k.of(&c.subs), args[1:], out)
			},
		}, command{
			name: undo, arity: -1, flags: f, group: "pubsub", since: k.since, order: "O(N)",
			args: []arg{opt(many(str("channel")))}, summary: "Stops listening to channels, or to all.", reply: "the channel and how many are left",
			run: func(c *conn, args [][]byte, out []byte) []byte {
				return c.unsubscribe(undo, k.of(&c.subs), args[1:], out)
			},
		})
	}
	return rows
}

func (c *conn) subscribe(kind string, set *map[string]struct{}, names [][]byte, out []byte) []byte {
	more := 0
	for _, n := range names {
		more += len(n) + 64
	}
	if c.subs.bytes+more > maxSubscribed {
		return c.fail(out, "ERR too many channels on one connection: their names may take "+strconv.Itoa(maxSubscribed)+" bytes")
	}
	if *set == nil {
		*set = make(map[string]struct{})
	}
	for _, n := range names {
		if _, ok := (*set)[string(n)]; !ok {
			(*set)[string(n)] = struct{}{}
			c.subs.bytes += len(n) + 64
		}
		out = c.subscribed(kind, n, out)
	}
	return out
}

func (c *conn) unsubscribe(kind string, set *map[string]struct{}, names [][]byte, out []byte) []byte {
	if len(names) == 0 {
		for n := range *set {
			names = append(names, []byte(n))
		}
	}
	for _, n := range names {
		if _, ok := (*set)[string(n)]; ok {
			delete(*set, string(n))
			c.subs.bytes -= len(n) + 64
		}
		out = c.subscribed(kind, n, out)
	}
	if len(names) == 0 {
		out = appendBulk(c.appendPush(out, 3), kind)
		out = c.appendNull(out)
		out = appendInt(out, int64(c.subs.left(kind)))
	}
	return out
}

// left is the number that a reply to subscribe or unsubscribe carries: shard channels are counted apart, as in Redis.
func (s *subscriptions) left(kind string) int {
	if kind == "ssubscribe" || kind == "sunsubscribe" {
		return len(s.shards)
	}
	return len(s.channels) + len(s.patterns)
}

func (c *conn) subscribed(kind string, name, out []byte) []byte {
	c.subsNow.Store(int32(len(c.subs.channels)))
	c.psubsNow.Store(int32(len(c.subs.patterns)))
	out = appendBulk(c.appendPush(out, 3), kind)
	out = appendBulk(out, name)
	return appendInt(out, int64(c.subs.left(kind)))
}
