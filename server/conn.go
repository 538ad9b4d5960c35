package server

import (
	"crypto/sha256"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/redcon"

	"redleaf/engine"
)

// conn is one client. Its goroutine is redcon's: handlers and the fast lane run there, one at a time.
type conn struct {
	s     *Server
	g     *guardConn
	rc    redcon.Conn
	id    int64
	stats *shard
	born  int64 // monotonic
	addr  string
	local string
	proto int // 2 or 3; others read it under mu

	// The connection's goroutine only.
	account *Account          // nil: not authenticated
	table   *accounts         // the table account was found in
	hash    [sha256.Size]byte // the password that let it in
	wait    engine.Wait

	out      []byte // replies of this batch that are not written yet; nil while idle
	tx       *transaction
	watched  map[string]uint64
	running  bool     // EXEC runs
	ahead    []queued // what it has still to run
	replyOff bool
	skipNext bool // CLIENT REPLY SKIP was the last command
	muted    bool // the reply of the current command is thrown away
	closing  bool
	erred    bool // the current command answered an error

	tracking tracking
	subs     subscriptions

	row     *command // being run, for the slow log
	args    [][]byte
	waitAt  int64 // when the current wait began
	waits   int   // depth: a handler may wait within another's wait
	readSeq uint64
	readAt  int64 // monotonic, when the read that is being answered came; 0 between reads
	warmed  bool  // the cold keys of this read are loading

	lane lane
	ran  *command // the last row that ran outside the lane
	ranN int      // how often in a row, within this read

	// Read by CLIENT LIST too.
	mu        sync.Mutex // held by whoever changes or, from outside, reads name … proto
	name      string
	libName   string
	libVer    string
	user      string
	lastRow   atomic.Pointer[command]
	lastAt    atomic.Int64
	queuedNow atomic.Int32 // commands in the open transaction, -1 without one
	subsNow   atomic.Int32
	psubsNow  atomic.Int32
	trackNow  atomic.Bool
}

func newConn(s *Server, rc redcon.Conn, g *guardConn) *conn {
	c := &conn{
		s: s, g: g, rc: rc, proto: 2, born: monotonic(),
		id: s.lastID.Add(1),
	}
	c.stats = &s.shards[uint64(c.id)%uint64(len(s.shards))]
	c.addr, c.local = peerName(g.RemoteAddr(), g.LocalAddr()), peerName(g.LocalAddr(), nil)
	c.queuedNow.Store(-1)
	c.lastAt.Store(c.born)
	c.lane.c = c
	c.enter(nil, s.accounts.Load(), [sha256.Size]byte{})
	return c
}

// peerName is an address as CLIENT LIST shows it: of a unix socket, its path and port 0.
func peerName(a, other net.Addr) string {
	if a == nil {
		return ""
	}
	if a.Network() != "unix" {
		return a.String()
	}
	path := a.String()
	if (path == "" || path == "@") && other != nil {
		path = other.String()
	}
	return path + ":0"
}

// enter makes a the connection's user; nil is whoever needs no password, if anybody.
func (c *conn) enter(a *Account, t *accounts, hash [sha256.Size]byte) {
	if a == nil && t.def != nil && t.def.noPass {
		a = t.def
	}
	c.account, c.table, c.hash = a, t, hash
	c.mu.Lock()
	c.user = defaultUser
	if a != nil {
		c.user = a.name
	}
	c.mu.Unlock()
	c.g.Authenticated(a != nil)
}

// current takes a reload into account: a user who is gone, or whose password changed, must say again who it is.
func (c *conn) current() *Account {
	if t := c.s.accounts.Load(); t != c.table {
		a := (*Account)(nil)
		if c.account != nil {
			a = t.byName[c.account.name]
			if a != nil && !a.noPass && !a.has(c.hash) {
				a = nil
			}
		}
		c.enter(a, t, c.hash)
	}
	return c.account
}

// newRead notes whether bytes came in since the last call: commands that came in together share one patience with the
// engines, and one look at the clock.
func (c *conn) newRead() {
	if n := c.g.BytesIn(); n != c.readSeq {
		c.readSeq = n
		c.wait.Reset()
		c.warmed = false
		if c.readAt == 0 {
			c.readAt = monotonic()
			c.lastAt.Store(c.readAt)
		}
	}
}

// spend counts n IDs against the user's limit, if it has one. In the fast lane it looks at the time of the read.
func (c *conn) spend(n int64) bool {
	b := c.account.bucket
	if b == nil || n < 1 {
		return true
	}
	now := c.readAt
	if now == 0 {
		now = monotonic()
	}
	return b.take(n, now)
}

func (c *conn) limitText(n int64) string { return "LIMIT " + c.account.limitText(n) }

// declines says that a handler that would have to wait must not, because it runs in the fast lane. The n IDs that were
// spent are given back: redcon gets the command and spends them again.
func (c *conn) declines(n int64) bool {
	if !c.lane.serving {
		return false
	}
	if n > 0 && c.account.bucket != nil {
		c.account.bucket.give(n)
	}
	c.lane.declined = true
	return true
}

// beforeWait is called before an engine may wait: the replies so far are written, so that nobody waits for an answer that is
// known, and all cold keys that came along begin to load together.
func (c *conn) beforeWait(out []byte) []byte {
	c.waits++
	if c.waits > 1 {
		return out
	}
	if !c.muted {
		out = c.write(out)
	}
	if !c.warmed && c.row != nil && c.row.need == issue {
		c.warmed = true
		c.warmAhead()
	}
	c.waitAt = monotonic()
	return out
}

// afterWait notes how long it took.
func (c *conn) afterWait() {
	c.waits--
	if c.waits > 0 {
		return
	}
	d := monotonic() - c.waitAt
	c.stats.waits.observe(d)
	if limit := c.s.slowlogAt.Load(); limit > 0 && d >= limit && c.row != nil {
		c.s.slowlog.add(c, time.Duration(d))
		event := "store"
		if c.row.need == issue {
			event = "refill"
		}
		c.s.latency.add(event, time.Duration(d))
	}
}

// warmAhead starts the loads of the cold keys among the commands that come next. It goes no further than those that take IDs:
// a load may create a tag, which a GET or EXISTS before that would see, and an INCR behind MULTI is only queued, and must leave
// nothing behind when EXEC aborts (cases R5).
func (c *conn) warmAhead() {
	const most = 1024
	if c.running {
		for i, q := range c.ahead {
			if i == most || !c.warm(q.row, q.args) {
				return
			}
		}
		return
	}
	left := most
	for _, cmd := range c.rc.PeekPipeline() {
		if left--; left < 0 || !c.warm(c.s.table.find(cmd.Args[0]), cmd.Args) {
			return
		}
	}
	c.lane.warmAhead(left)
}

// warm starts the load of the key of a command that takes IDs, if it is sure to take them. It says whether to go on.
func (c *conn) warm(row *command, args [][]byte) bool {
	if row == nil || row.need != issue || c.refuse(row, args) != "" {
		return row != nil && row.name == "ping"
	}
	if row.keys[0] != 1 {
		return true
	}
	if len(args) == 3 {
		n, ok := parseInt(args[2])
		if most, _ := c.s.engine.Limits(); !ok || n < 1 || n > most {
			return true
		}
	}
	if len(args) <= 3 {
		c.s.engine.Warm(args[1])
	}
	return true
}

// forbidden is the error of a command that the user may not run, or "".
func (c *conn) forbidden(row *command, args [][]byte) string {
	a := c.account
	if row.need != 0 && a.groups&row.need == 0 {
		return "NOPERM this user has no permissions to run the '" + row.full + "' command"
	}
	if !a.allTags && !row.positions(len(args), func(i int) bool { return a.tag(args[i]) }) {
		return errNoPermKey
	}
	return ""
}

// write sends out to the client and returns it empty. A client that takes nothing loses its connection.
func (c *conn) write(out []byte) []byte {
	if len(out) == 0 {
		return out
	}
	if _, err := c.g.Write(out); err != nil {
		c.drop()
		c.g.Kill()
	}
	c.out = out[:0] // should the handler panic now, nothing is sent twice
	return c.out
}

// spill writes out when it has grown: what one command may answer is bounded, what a batch of them may is not.
func (c *conn) spill(out []byte) []byte {
	switch {
	case c.muted: // EXEC with replies off: nobody will read it
		return out[:0]
	case len(out) < guardFlush:
		return out
	}
	return c.write(out)
}

// drop forgets the commands that came in behind the current one.
func (c *conn) drop() {
	c.closing = true
	c.rc.ReadPipeline()
}

// close ends the connection once the current reply is written.
func (c *conn) close() {
	c.drop()
	c.g.CloseAfterFlush()
}

// failErr answers an engine's error. What no client should see is logged.
func (c *conn) failErr(out []byte, err error) []byte {
	w, text := engine.Explain(err)
	if w == engine.PlainError && "ERR "+text == errInternal {
		c.s.internal(c, err)
	}
	return c.fail(out, string(w)+" "+text)
}

// show prints input so that it can stand in a reply.
func show(b []byte) string { return strconv.QuoteToASCII(string(b)) }

// describe is the line of CLIENT LIST.
func (c *conn) describe(now int64) string {
	c.mu.Lock()
	name, lib, ver, user, proto := c.name, c.libName, c.libVer, c.user, c.proto
	c.mu.Unlock()
	cmd := "NULL"
	if r := c.lastRow.Load(); r != nil {
		cmd = r.full
	}
	fl := ""
	sub, psub := c.subsNow.Load(), c.psubsNow.Load()
	if sub+psub > 0 {
		fl += "P"
	}
	if c.queuedNow.Load() >= 0 {
		fl += "x"
	}
	if c.trackNow.Load() {
		fl += "t"
	}
	if _, ok := c.g.LocalAddr().(*net.UnixAddr); ok {
		fl += "U"
	}
	redir := -1
	if c.trackNow.Load() {
		redir = 0
	}
	if fl == "" {
		fl = "N"
	}
	return fmt.Sprintf("id=%d addr=%s laddr=%s fd=-1 name=%s age=%d idle=%d flags=%s db=0 sub=%d psub=%d ssub=0 multi=%d qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd=%s user=%s redir=%d resp=%d lib-name=%s lib-ver=%s",
		c.id, c.addr, c.local, name, (now-c.born)/int64(time.Second), (now-c.lastAt.Load())/int64(time.Second),
		fl, sub, psub, c.queuedNow.Load(), cmd, user, redir, proto, lib, ver)
}
