package server

import (
	"slices"
	"strings"
	"time"
)

func clientCommands() []command {
	f := noscript | loading | stale
	return []command{{
		name: "client", arity: -2, flags: unpaused, group: "connection", since: "2.4.0", summary: "Looks at connections and steers them.",
		sub: []*command{
			{name: "id", arity: 2, flags: f | unpaused, since: "5.0.0", summary: "Tells the connection's number.", run: func(c *conn, _ [][]byte, out []byte) []byte { return appendInt(out, c.id) }},
			{name: "getname", arity: 2, flags: f | unpaused, since: "2.6.9", summary: "Tells the connection's name.", reply: "its name, or null", run: (*conn).clientGetName},
			{name: "setname", arity: 3, flags: f | unpaused, since: "2.6.9", args: []arg{str("name")}, summary: "Names the connection.", reply: "OK", run: (*conn).clientSetName},
			{name: "setinfo", arity: 4, flags: f | unpaused, since: "7.2.0", args: []arg{oneOf("attr", after("LIB-NAME", str("libname")), after("LIB-VER", str("libver")))}, summary: "Names the client library.", reply: "OK", run: (*conn).clientSetInfo},
			{name: "info", arity: 2, flags: f | unpaused, since: "6.2.0", summary: "Describes the connection.", reply: "one line of CLIENT LIST", run: (*conn).clientInfo},
			{name: "list", arity: -2, flags: adminFlag | f | unpaused, need: admin, since: "2.4.0", order: "O(N)", args: []arg{
				opt(after("TYPE", oneOf("client-type", word("normal"), word("master"), word("replica"), word("pubsub")))), opt(after("ID", many(integer("client-id"))))},
				summary: "Lists the connections.", reply: "a line for each", run: (*conn).clientList},
			{name: "kill", arity: -3, flags: adminFlag | f | unpaused, need: admin, since: "2.4.0", order: "O(N)", args: []arg{
				oneOf("filter", str("ip:port"), many(oneOf("new-format", after("ID", integer("client-id")), after("TYPE", str("client-type")),
					after("USER", str("username")), after("ADDR", str("ip:port")), after("LADDR", str("ip:port")), after("SKIPME", str("yes/no")), after("MAXAGE", integer("seconds")))))},
				summary: "Closes connections.", reply: "OK, or how many", run: (*conn).clientKill},
			{name: "no-evict", arity: 3, flags: adminFlag | f | unpaused, since: "7.0.0", args: []arg{onOff()}, summary: "Accepted: nothing is evicted here.", reply: "OK", run: (*conn).clientOnOff},
			{name: "no-touch", arity: 3, flags: f | unpaused, since: "7.2.0", args: []arg{onOff()}, summary: "Accepted: nothing is touched here.", reply: "OK", run: (*conn).clientOnOff},
			{name: "reply", arity: 3, flags: f | unpaused | noMulti, since: "3.2.0", args: []arg{oneOf("mode", word("ON"), word("OFF"), word("SKIP"))}, summary: "Switches replies off and on.", reply: "OK to ON, nothing to the others", run: (*conn).clientReply},
			{name: "pause", arity: -3, flags: adminFlag | f | unpaused, need: admin, since: "3.0.0", args: []arg{integer("timeout"), opt(oneOf("mode", word("WRITE"), word("ALL")))}, summary: "Makes the commands of all clients wait.", reply: "OK", run: (*conn).clientPause},
			{name: "unpause", arity: 2, flags: adminFlag | f | unpaused, need: admin, since: "6.2.0", summary: "Ends CLIENT PAUSE.", reply: "OK", run: func(c *conn, _ [][]byte, out []byte) []byte {
				c.s.pause.off()
				return appendOK(out)
			}},
			{name: "tracking", arity: -3, flags: f | unpaused, since: "6.0.0", args: []arg{onOff(), opt(after("REDIRECT", integer("client-id"))), opt(word("OPTIN")), opt(word("OPTOUT")), opt(word("NOLOOP"))},
				summary: "Promises to say when a key that was read has moved.", reply: "OK; the key is said to have moved right after each read, so nothing stale is ever cached", run: (*conn).clientTracking},
			{name: "caching", arity: 3, flags: f | unpaused, since: "6.0.0", args: []arg{oneOf("mode", word("YES"), word("NO"))}, summary: "Says whether the next read is to be tracked.", reply: "OK", run: (*conn).clientCaching},
			{name: "trackinginfo", arity: 2, flags: f | unpaused, since: "6.2.0", summary: "Tells how reads are tracked.", reply: "map: flags, redirect, prefixes", run: (*conn).clientTrackingInfo},
			{name: "getredir", arity: 2, flags: f | unpaused, since: "6.0.0", summary: "Tells where invalidations go.", reply: "-1 without tracking, 0 with", run: (*conn).clientGetRedir},
		},
	}}
}

func onOff() arg { return oneOf("enabled", word("ON"), word("OFF")) }

func (c *conn) clientGetName(_ [][]byte, out []byte) []byte {
	if c.name == "" {
		return c.appendNull(out)
	}
	return appendBulk(out, c.name)
}

func (c *conn) clientSetName(args [][]byte, out []byte) []byte {
	if !plainName(args[2]) {
		return c.fail(out, errClientName)
	}
	c.mu.Lock()
	c.name = string(args[2])
	c.mu.Unlock()
	return appendOK(out)
}

func (c *conn) clientSetInfo(args [][]byte, out []byte) []byte {
	attr := strings.ToLower(string(args[2]))
	if attr != "lib-name" && attr != "lib-ver" {
		return c.fail(out, "ERR Unrecognized option '"+string(cString(args[2], 128))+"'")
	}
	if !plainName(args[3]) {
		return c.fail(out, "ERR "+attr+" cannot contain spaces, newlines or special characters.")
	}
	c.mu.Lock()
	if attr == "lib-name" {
		c.libName = string(args[3])
	} else {
		c.libVer = string(args[3])
	}
	c.mu.Unlock()
	return appendOK(out)
}

func (c *conn) clientInfo(_ [][]byte, out []byte) []byte {
	return c.appendText(out, c.describe(monotonic())+"\n")
}

// clients are the connections there are, the oldest first.
func (s *Server) clients() []*conn {
	s.mu.Lock()
	list := make([]*conn, 0, len(s.conns))
	for _, c := range s.conns {
		list = append(list, c)
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b *conn) int { return int(a.id - b.id) })
	return list
}

func (c *conn) kind() string {
	if c.subsNow.Load()+c.psubsNow.Load() > 0 {
		return "pubsub"
	}
	return "normal"
}

// clientKinds are those Redis knows; the server has no masters and replicas among its clients.
var clientKinds = []string{"normal", "master", "replica", "slave", "pubsub"}

func (c *conn) clientList(args [][]byte, out []byte) []byte {
	list := c.s.clients()
	switch {
	case len(args) == 2:
	case len(args) == 4 && strings.EqualFold(string(args[2]), "TYPE"):
		kind := strings.ToLower(string(args[3]))
		if !slices.Contains(clientKinds, kind) {
			return c.fail(out, "ERR Unknown client type '"+string(cString(args[3], 128))+"'")
		}
		list = slices.DeleteFunc(list, func(c *conn) bool { return c.kind() != kind })
	case len(args) > 3 && strings.EqualFold(string(args[2]), "ID"):
		ids := make(map[int64]bool)
		for _, a := range args[3:] {
			id, ok := parseInt(a)
			if !ok {
				return c.fail(out, errInvalidClientID)
			}
			ids[id] = true
		}
		list = slices.DeleteFunc(list, func(c *conn) bool { return !ids[c.id] })
	default:
		return c.fail(out, errSyntax)
	}
	now := monotonic()
	var b strings.Builder
	for _, o := range list {
		b.WriteString(o.describe(now))
		b.WriteByte('\n')
	}
	return c.appendText(out, b.String())
}

func (c *conn) clientKill(args [][]byte, out []byte) []byte {
	match := func(*conn) bool { return true }
	and := func(f func(*conn) bool) {
		was := match
		match = func(o *conn) bool { return was(o) && f(o) }
	}
	skipMe := true
	old := len(args) == 3
	if old {
		skipMe = false
		and(func(o *conn) bool { return o.addr == string(args[2]) })
	} else {
		for i := 2; i < len(args); i += 2 {
			if i+1 == len(args) {
				return c.fail(out, errSyntax)
			}
			value := string(args[i+1])
			switch strings.ToUpper(string(args[i])) {
			case "ID":
				id, ok := parseInt(args[i+1])
				if !ok || id < 1 {
					return c.fail(out, errClientID)
				}
				and(func(o *conn) bool { return o.id == id })
			case "TYPE":
				kind := strings.ToLower(value)
				if !slices.Contains(clientKinds, kind) {
					return c.fail(out, "ERR Unknown client type '"+string(cString(args[i+1], 128))+"'")
				}
				and(func(o *conn) bool { return o.kind() == kind })
			case "ADDR":
				and(func(o *conn) bool { return o.addr == value })
			case "LADDR":
				and(func(o *conn) bool { return o.local == value })
			case "USER":
				if c.s.accounts.Load().byName[value] == nil {
					return c.fail(out, "ERR No such user '"+string(cString(args[i+1], 128))+"'")
				}
				and(func(o *conn) bool {
					o.mu.Lock()
					defer o.mu.Unlock()
					return o.user == value
				})
			case "MAXAGE":
				age, ok := parseInt(args[i+1])
				if !ok || age < 1 {
					return c.fail(out, "ERR maxage is not an integer or out of range")
				}
				and(func(o *conn) bool { return (monotonic()-o.born)/int64(time.Second) >= age })
			case "SKIPME":
				switch strings.ToLower(value) {
				case "yes":
					skipMe = true
				case "no":
					skipMe = false
				default:
					return c.fail(out, errSyntax)
				}
			default:
				return c.fail(out, errSyntax)
			}
		}
	}
	n := int64(0)
	for _, o := range c.s.clients() {
		if o == c && skipMe || !match(o) {
			continue
		}
		n++
		if o == c {
			c.close() // after its reply
		} else {
			o.g.Kill()
		}
	}
	if !old {
		return appendInt(out, n)
	}
	if n == 0 {
		return c.fail(out, errNoSuchClient)
	}
	return appendOK(out)
}

func (c *conn) clientOnOff(args [][]byte, out []byte) []byte {
	switch strings.ToUpper(string(args[2])) {
	case "ON", "OFF":
		return appendOK(out)
	}
	return c.fail(out, errSyntax)
}

func (c *conn) clientReply(args [][]byte, out []byte) []byte {
	switch strings.ToUpper(string(args[2])) {
	case "ON":
		c.replyOff, c.muted = false, false
		return appendOK(out)
	case "OFF":
		c.replyOff, c.muted = true, true
	case "SKIP":
		if !c.replyOff {
			c.skipNext, c.muted = true, true
		}
	default:
		return c.fail(out, errSyntax)
	}
	return out
}

func (c *conn) clientPause(args [][]byte, out []byte) []byte {
	all := true
	if len(args) > 3 {
		switch mode := strings.ToUpper(string(args[3])); {
		case len(args) > 4:
			return c.fail(out, errSyntax)
		case mode == "WRITE":
			all = false
		case mode != "ALL":
			return c.fail(out, "ERR CLIENT PAUSE mode must be WRITE or ALL")
		}
	}
	ms, ok := parseInt(args[2])
	switch {
	case !ok || ms > maxExact:
		return c.fail(out, errTimeoutNumber)
	case ms < 0:
		return c.fail(out, errTimeoutNegative)
	}
	c.s.pause.set(time.Duration(min(ms, int64(24*time.Hour/time.Millisecond)))*time.Millisecond, all)
	return appendOK(out)
}

// tracking is CLIENT TRACKING. A counter moves with every INCR, on any instance, so nothing that was read stays true: the
// server says at once that the key has moved, and a client that caches (rueidis' DoCache) asks again.
type tracking struct {
	on, optIn, optOut, noLoop bool
	caching                   bool     // CLIENT CACHING YES or NO came before
	keys                      [][]byte // read by the EXEC that runs
}

// reads says whether a read would have to be followed by a push now.
func (t *tracking) reads() bool {
	switch {
	case !t.on:
		return false
	case t.optIn:
		return t.caching
	case t.optOut:
		return !t.caching
	}
	return true
}

// follows says whether the next command matters to it, so that the fast lane leaves it alone.
func (t *tracking) follows() bool { return t.on && (t.caching || !t.optIn) }

func (t *tracking) set(c *conn, to tracking) {
	*t = to
	c.trackNow.Store(to.on)
}

// ran is called after every command while tracking is on. Inside EXEC the pushes come after the whole reply.
func (t *tracking) ran(c *conn, row *command, args [][]byte, out []byte) []byte {
	if row.full == "client|caching" {
		return out
	}
	if t.reads() && row.has(readonly) && row.keys[0] != 0 && c.proto == 3 {
		row.positions(len(args), func(i int) bool {
			t.keys = append(t.keys, args[i])
			return true
		})
	}
	if c.running || c.tx != nil && row.name != "exec" {
		return out
	}
	if row.name != "multi" {
		t.caching = false
	}
	for _, key := range t.keys {
		out = appendBulk(c.appendPush(out, 2), "invalidate")
		out = appendBulk(appendArray(out, 1), key)
	}
	t.keys = nil
	return out
}

func (c *conn) clientTracking(args [][]byte, out []byte) []byte {
	var t tracking
	switch strings.ToUpper(string(args[2])) {
	case "ON":
		t.on = true
	case "OFF":
	default:
		return c.fail(out, errSyntax)
	}
	bcast, prefix := false, false
	for i := 3; i < len(args); i++ {
		more := i+1 < len(args)
		switch o := strings.ToUpper(string(args[i])); {
		case o == "REDIRECT" && more:
			id, ok := parseInt(args[i+1])
			switch {
			case !ok:
				return c.fail(out, errNotInteger)
			case id != 0:
				return c.fail(out, errTrackingRedirect)
			}
			i++
		case o == "BCAST":
			bcast = true
		case o == "OPTIN":
			t.optIn = true
		case o == "OPTOUT":
			t.optOut = true
		case o == "NOLOOP":
			t.noLoop = true
		case o == "PREFIX" && more:
			prefix = true
			i++
		default:
			return c.fail(out, errSyntax)
		}
	}
	switch {
	case !t.on:
		t = tracking{}
	case prefix && !bcast:
		return c.fail(out, errTrackingPrefix)
	case t.optIn && t.optOut:
		return c.fail(out, errTrackingMode)
	case bcast:
		return c.fail(out, "ERR CLIENT TRACKING BCAST is refused: counters move with every INCR, and each client would hear of all of them. Use OPTIN")
	}
	c.tracking.set(c, t)
	return appendOK(out)
}

func (c *conn) clientCaching(args [][]byte, out []byte) []byte {
	if !c.tracking.on || !c.tracking.optIn && !c.tracking.optOut {
		return c.fail(out, errCaching)
	}
	switch strings.ToUpper(string(args[2])) {
	case "YES":
		if !c.tracking.optIn {
			return c.fail(out, errCachingYes)
		}
	case "NO":
		if !c.tracking.optOut {
			return c.fail(out, errCachingNo)
		}
	default:
		return c.fail(out, errSyntax)
	}
	c.tracking.caching = true
	return appendOK(out)
}

func (c *conn) clientTrackingInfo(_ [][]byte, out []byte) []byte {
	t := &c.tracking
	var f []string
	if !t.on {
		f = append(f, "off")
	} else {
		f = append(f, "on")
		for _, x := range []struct {
			is   bool
			name string
		}{{t.optIn, "optin"}, {t.optOut, "optout"}, {t.caching && t.optIn, "caching-yes"}, {t.caching && t.optOut, "caching-no"}, {t.noLoop, "noloop"}} {
			if x.is {
				f = append(f, x.name)
			}
		}
	}
	out = appendBulk(c.appendMap(out, 3), "flags")
	out = c.appendSet(out, len(f))
	for _, name := range f {
		out = appendBulk(out, name)
	}
	redirect := int64(-1)
	if t.on {
		redirect = 0
	}
	out = appendInt(appendBulk(out, "redirect"), redirect)
	return appendArray(appendBulk(out, "prefixes"), 0)
}

func (c *conn) clientGetRedir(_ [][]byte, out []byte) []byte {
	if c.tracking.on {
		return appendInt(out, 0)
	}
	return appendInt(out, -1)
}
