package server

import (
	"bytes"
	"encoding/binary"
)

// lane is the fast lane of one connection: it answers the hot commands inside the guard's Read, without redcon's copies, by
// the same rows and handlers that dispatch would call. What it must not do, and why it does not:
//
//   - wait: a handler that would have to asks conn.declines first, and redcon's loop gets the command;
//   - serve where a command does not simply run (MULTI, CLIENT REPLY, PAUSE, a subscribed client, tracking, no user): Begin
//     says no, and what makes it say so changes only in commands that redcon runs, or in another goroutine;
//   - decide about rights: it knows only "surely allowed"; everything else is redcon's, and so is every wrong arity.
type lane struct {
	c        *conn
	serving  bool
	declined bool
	args     [3][]byte
	counts   [hotRows]uint32 // calls since the last publish
	account  *Account        // whose groups allowed is about
	allowed  [hotRows]bool
}

// The rows that the fast lane knows, by their place in its counters.
const (
	hotIncr = iota
	hotIncrBy
	hotGet
	hotPing
	hotSnowflake
	hotRows
)

var hotNames = [hotRows]string{"incr", "incrby", "get", "ping", "snowflake.next"}

// Begin opens the lane for what was read, or not.
func (l *lane) Begin(*guardConn) bool {
	c := l.c
	c.newRead()
	a := c.current()
	if a == nil || c.tx != nil || c.replyOff || c.skipNext || c.closing || c.subs.restrict(c) || c.tracking.follows() || c.s.pause.on() {
		return false
	}
	if l.account != a {
		l.account = a
		for i, row := range c.s.hot {
			l.allowed[i] = row.need == 0 || a.groups&row.need != 0
		}
	}
	return true
}

// Hot says whether Serve would look at the command.
func (l *lane) Hot(cmd *frameCmd) bool { return hotRow(cmd.Arg(0)) >= 0 }

// Serve answers cmd if that needs no wait.
func (l *lane) Serve(_ *guardConn, cmd *frameCmd, out []byte) ([]byte, bool) {
	i := hotRow(cmd.Arg(0))
	if i < 0 || !l.allowed[i] {
		return out, false
	}
	c, n := l.c, cmd.Len()
	row := c.s.hot[i]
	if n > len(l.args) || !row.arityOK(n) || i == hotSnowflake && n > 1 {
		return out, false
	}
	for k := range n {
		l.args[k] = cmd.Arg(k)
	}
	if !c.account.allTags && row.keys[0] == 1 && !c.account.tag(l.args[1]) {
		return out, false
	}
	l.serving, l.declined = true, false
	out = row.run(c, l.args[:n], out)
	l.serving = false
	if l.declined {
		return out, false
	}
	l.counts[i]++
	if c.erred {
		c.erred = false
		c.stats.rows[row.index].failed.Add(1)
	}
	return out, true
}

// End is called when everything that was read is answered and written.
func (l *lane) End(*guardConn) {
	c := l.c
	if c.readAt != 0 {
		took := monotonic() - c.readAt
		c.readAt = 0
		if l.publish(took) {
			c.stats.reads.observe(took)
		}
	}
	c.wait.Reset()
	l.args = [3][]byte{}
}

// publish adds the connection's counts to those of all, so that a pipeline costs a few atomic adds and not one per command.
// took is shared out among the commands. It says whether there were any.
func (l *lane) publish(took int64) bool {
	c := l.c
	total := int64(c.ranN)
	for _, n := range l.counts {
		total += int64(n)
	}
	if total == 0 {
		return false
	}
	for i, n := range l.counts {
		if n == 0 {
			continue
		}
		row := c.s.hot[i]
		counts := &c.stats.rows[row.index]
		counts.calls.Add(uint64(n))
		if took > 0 {
			counts.ns.Add(uint64(took * int64(n) / total))
		}
		c.lastRow.Store(row)
		l.counts[i] = 0
	}
	if c.ranN > 0 {
		if took > 0 {
			c.stats.rows[c.ran.index].ns.Add(uint64(took * int64(c.ranN) / total))
		}
		c.ranN = 0
	}
	return true
}

// warmAhead starts the loads of cold keys among the commands that the guard holds behind the current ones.
func (l *lane) warmAhead(most int) {
	f := l.c.g.f // a copy: looking ahead moves nothing
	if !f.trusted || f.bad != frameMore || !f.have && f.phase != phaseStart {
		return
	}
	var args [3][]byte
	for ; most > 0 && f.r < f.w && f.buf[f.r] == '*' && f.short(); most-- {
		row, n := l.c.s.table.find(f.cmd.Arg(0)), f.cmd.Len()
		if n > len(args) {
			return
		}
		for k := range n {
			args[k] = f.cmd.Arg(k)
		}
		if !l.c.warm(row, args[:n]) {
			return
		}
		f.r += f.size
	}
}

// hotRow is the lane's number of a name, -1 for what is not hot. Letters are folded by setting the bit in which the cases
// differ; no other byte becomes a letter by that.
func hotRow(name []byte) int {
	switch len(name) {
	case 3:
		if name[0]|0x20 == 'g' && name[1]|0x20 == 'e' && name[2]|0x20 == 't' {
			return hotGet
		}
	case 4:
		switch binary.LittleEndian.Uint32(name) | 0x20202020 {
		case 'i' | 'n'<<8 | 'c'<<16 | 'r'<<24:
			return hotIncr
		case 'p' | 'i'<<8 | 'n'<<16 | 'g'<<24:
			return hotPing
		}
	case 6:
		if binary.LittleEndian.Uint32(name)|0x20202020 == 'i'|'n'<<8|'c'<<16|'r'<<24 && name[4]|0x20 == 'b' && name[5]|0x20 == 'y' {
			return hotIncrBy
		}
	case len("snowflake.next"):
		if name[9] == '.' && bytes.EqualFold(name, snowflakeNext) {
			return hotSnowflake
		}
	}
	return -1
}

var snowflakeNext = []byte("snowflake.next")
