// Package server speaks RESP: it maps commands to the engine and reports on itself.
//
// redcon reads and serves; below it stands the guard (guard.go), which hands it only whole, checked commands and answers the
// hot ones itself (lane.go). Reading path of INCR: dispatch here → the row "incr" in cmd_segment.go and its handler below it →
// engine. The fast lane calls the same row's handler.
package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/redcon"

	"redleaf/engine"
)

// Options configure a Server. The zero value serves everybody on loopback without limits.
type Options struct {
	Password      string // requirepass: of the default user; "" = none. Never logged
	Users         []User
	MaxClients    int           // 0 = no bound
	IdleTimeout   time.Duration // 0 = never
	MaxOutput     int           // bytes of replies that may wait for one slow reader; 0 = 1 MiB
	ProtectedMode bool          // no password and no users: clients that are not on loopback are turned away

	// SnowflakeReply is how SNOWFLAKE.NEXT answers: "auto" (or "") = an integer when every ID of the layout fits 53 bits,
	// else a bulk string; "integer"; "bulk".
	SnowflakeReply string

	SlowlogThreshold time.Duration // waits from here on are kept by SLOWLOG; 0 = none

	Settings  func() [][2]string             // name and value, secrets masked, for CONFIG GET; may be nil
	ConfigSet func(name, value string) error // CONFIG SET of one of Settings; its error is shown to the client; may be nil
	Shutdown  func()                         // SHUTDOWN: begins the stop and returns; may be nil

	Version    string // of Redleaf
	DataDir    string // for INFO
	ConfigFile string // for INFO
	Port       int    // for INFO

	Log zerolog.Logger
}

// Reloadable is what may change while the server runs, all of it at once.
type Reloadable struct {
	Password         string
	Users            []User
	MaxClients       int
	IdleTimeout      time.Duration
	SlowlogThreshold time.Duration
	ProtectedMode    bool
}

// Listener is an address to serve. Kind says whom it serves; "resp" is the only kind so far. TLS goes into Listener.
type Listener struct {
	net.Listener
	Kind string
}

// Server is safe for concurrent use.
type Server struct {
	engine       *engine.Engine
	o            Options
	log          zerolog.Logger
	guard        *guard
	table        *table
	rows         []*command
	hot          [hotRows]*command
	shards       []shard
	snowflakeInt bool
	runID        string
	noLane       bool // for tests: everything goes through redcon

	accounts  atomic.Pointer[accounts]
	protected atomic.Bool
	slowlogAt atomic.Int64 // ns; 0 = off

	slowlog slowlog
	latency latency
	cursors *cursors
	pause   pause

	lastID       atomic.Int64
	queued       atomic.Int64 // bytes in open transactions
	panics       atomic.Uint64
	authFailures atomic.Uint64
	zero         atomic.Pointer[Stats] // as of CONFIG RESETSTAT
	quiet        quiet
	rate         opsRate

	mu    sync.Mutex
	conns map[int64]*conn
}

// New makes a server that does not serve yet. The error names the setting that is wrong.
func New(e *engine.Engine, o Options) (*Server, error) {
	s := &Server{
		engine: e, o: o, log: o.Log, table: newTable(), cursors: newCursors(), conns: make(map[int64]*conn),
	}
	switch o.SnowflakeReply {
	case "", "auto":
		s.snowflakeInt = e.Layout().Fits53()
	case "integer", "int":
		s.snowflakeInt = true
	case "bulk", "string":
	default:
		return nil, fmt.Errorf("snowflake.reply '%s': auto, integer or bulk", o.SnowflakeReply)
	}
	t, err := newAccounts(o.Password, o.Users, nil)
	if err != nil {
		return nil, err
	}
	s.accounts.Store(t)
	s.protected.Store(o.ProtectedMode)
	s.slowlogAt.Store(int64(o.SlowlogThreshold))
	s.zero.Store(&Stats{})
	s.pause.init()

	var id [20]byte
	rand.Read(id[:])
	s.runID = hex.EncodeToString(id[:])

	s.rows = s.table.rows
	for i, name := range hotNames {
		s.hot[i] = s.table.byName[name]
		s.hot[i].hot = i
	}
	s.shards = make([]shard, 4*runtime.GOMAXPROCS(0))
	for i := range s.shards {
		s.shards[i].rows = make([]rowCounts, len(s.rows))
		s.shards[i].errors = make([]atomic.Uint64, len(words))
	}
	s.guard = newGuard(guardConfig{
		MaxClients: o.MaxClients, IdleTimeout: o.IdleTimeout, MaxOutput: o.MaxOutput,
		Refuse: s.refuse, Log: s.guardEvent,
	})
	return s, nil
}

// Serve serves the listeners until Shutdown and returns nil then. It closes them. Call it once.
func (s *Server) Serve(ls ...Listener) error {
	errs := make(chan error, len(ls))
	for _, l := range ls {
		ln := s.guard.Listener(l.Kind, l.Listener)
		r := redcon.NewServer(l.Addr().String(), s.handle, s.accept, s.closed)
		go func() { errs <- r.Serve(ln) }()
	}
	var all []error
	for range ls {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// Shutdown stops accepting, lets every connection answer the commands that had arrived, and closes it. When ctx ends first
// the rest are cut off and ctx's error is returned. Serve returns then too. Call it once.
func (s *Server) Shutdown(ctx context.Context) error {
	s.pause.end()
	return s.guard.Drain(ctx)
}

// Reload takes new limits and users into use. Connections of users that are gone or whose password changed must
// authenticate again. On an error nothing has changed.
func (s *Server) Reload(r Reloadable) error {
	t, err := newAccounts(r.Password, r.Users, s.accounts.Load())
	if err != nil {
		return err
	}
	s.accounts.Store(t)
	s.guard.SetMaxClients(r.MaxClients)
	s.guard.SetIdleTimeout(r.IdleTimeout)
	s.protected.Store(r.ProtectedMode)
	s.slowlogAt.Store(int64(r.SlowlogThreshold))
	return nil
}

// AuthRequired says whether clients must authenticate.
func (s *Server) AuthRequired() bool {
	t := s.accounts.Load()
	return t.def == nil || !t.def.noPass
}

// Login finds the account of a name ("" = default) and its password. Failures are counted and logged as AUTH's are.
func (s *Server) Login(name, password string) (*Account, bool) {
	if name == "" {
		name = defaultUser
	}
	a, _, ok := s.accounts.Load().login([]byte(name), []byte(password))
	if !ok {
		s.authFailed(name, "http")
		return nil, false
	}
	return a, true
}

// accept is redcon's callback for a new connection, in the accept loop.
func (s *Server) accept(rc redcon.Conn) bool {
	g := rc.NetConn().(*guardConn)
	c := newConn(s, rc, g)
	rc.SetContext(c)
	if !s.noLane {
		g.SetLane(&c.lane)
	}
	s.mu.Lock()
	s.conns[c.id] = c
	s.mu.Unlock()
	return true
}

// closed is redcon's callback for one that is gone. redcon holds a lock meanwhile.
func (s *Server) closed(rc redcon.Conn, err error) {
	c := rc.Context().(*conn)
	s.mu.Lock()
	delete(s.conns, c.id)
	s.mu.Unlock()
	if c.tx != nil {
		s.queued.Add(-c.tx.bytes)
	}
	c.lane.End(nil)
	if err != nil {
		s.log.Debug().Err(err).Str("client", c.addr).Msg("connection ended")
	}
}

// handle is redcon's callback for a command.
func (s *Server) handle(rc redcon.Conn, cmd redcon.Command) {
	c := rc.Context().(*conn)
	defer func() {
		if v := recover(); v != nil {
			c.panicked(v)
		}
	}()
	if c.out == nil {
		c.out = frameLend(frameClasses[0])[:0]
	}
	c.dispatch(cmd.Args)
	last := c.closing || rc.PeekPipeline() == nil
	if last || len(c.out) >= guardFlush {
		c.out = c.write(c.out)
	}
	if last {
		frameFree(c.out)
		c.out = nil
	}
}

// panicked ends a connection after a bug in a handler: one client is lost, not all.
func (c *conn) panicked(v any) {
	c.s.panics.Add(1)
	c.s.log.Error().Str("client", c.addr).Str("panic", fmt.Sprint(v)).Bytes("stack", debug.Stack()).Msg("a handler panicked: its connection is closed")
	// What the handler had begun is dropped; what came before it is answered.
	c.muted = false
	c.waits = 0
	c.out = c.write(append(c.out, "-"+errInternal+crlf...))
	c.out = nil
	c.close()
}

// dispatch runs one command, or says why not, and appends the reply to c.out.
func (c *conn) dispatch(args [][]byte) {
	c.newRead()
	skip := c.skipNext
	c.skipNext = false
	c.muted = c.replyOff || skip
	c.erred = false
	start := len(c.out)

	row := c.s.table.find(args[0])
	if row != nil && row.sub != nil && len(args) > 1 {
		if sub := row.subcommand(args[1]); sub != nil {
			row = sub
		} else {
			row = nil
		}
	}
	if text := c.refuse(row, args); text != "" {
		if c.tx != nil && (row == nil || !row.has(immediate)) {
			c.tx.dirty = true
		}
		if row != nil {
			c.stats.rows[row.index].rejected.Add(1)
			if row.name == "exec" {
				c.endTransaction()
				text = errExecAbortFor + strings.TrimPrefix(text, "ERR ")
			}
		}
		c.out = c.fail(c.out, text)
	} else {
		c.lastRow.Store(row)
		if !row.has(unpaused) {
			c.hold(row)
		}
		if c.tx != nil && !row.has(immediate) {
			c.out = c.enqueue(row, args, c.out)
		} else {
			c.out = c.call(row, args, c.out)
		}
	}
	if c.muted || c.replyOff {
		c.out = c.out[:min(start, len(c.out))]
	}
}

// refuse is why a command does not run, or "". The order is Redis': a name that does not exist is no secret.
func (c *conn) refuse(row *command, args [][]byte) string {
	switch {
	case row == nil:
		return c.unknown(args)
	case !row.arityOK(len(args)):
		return row.arityText()
	}
	if c.current() == nil {
		if row.has(noAuth) {
			return ""
		}
		return errNoAuth
	}
	if c.tx != nil && row.has(noMulti) {
		return errNotInMulti
	}
	if text := c.forbidden(row, args); text != "" {
		return text
	}
	if c.proto == 2 && c.subs.count() > 0 && !row.has(inSubscribe) {
		return fmt.Sprintf("ERR Can't execute '%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context", row.full)
	}
	if row.check != nil {
		return row.check(args)
	}
	return ""
}

// unknown is the error for a name that has no row: of a command, of a subcommand, or of what was too large to read.
func (c *conn) unknown(args [][]byte) string {
	if string(args[0]) == frameTooLarge && len(args) == 4 {
		name, what, size := show(args[1]), string(args[2]), string(args[3])
		most := strconv.Itoa(frameDefaults.Bulk) + " bytes"
		switch what {
		case "arguments":
			return "ERR " + size + " arguments for " + name + " are too many: at most " + strconv.Itoa(frameDefaults.Args)
		case "command":
			most = strconv.Itoa(frameDefaults.Command) + " bytes"
		}
		return "ERR " + what + " of " + size + " bytes for " + name + " is too large: at most " + most
	}
	if row := c.s.table.find(args[0]); row != nil {
		return fmt.Sprintf("ERR unknown subcommand '%s'. Try %s HELP.", cString(args[1], 128), strings.ToUpper(row.name))
	}
	return unknown(args)
}

// call runs a command that may run.
func (c *conn) call(row *command, args [][]byte, out []byte) []byte {
	c.row, c.args = row, args
	if row != c.ran {
		c.ran, c.ranN = row, 0
	}
	c.ranN++
	counts := &c.stats.rows[row.index]
	counts.calls.Add(1)
	c.erred = false
	out = row.run(c, args, out)
	if c.erred {
		counts.failed.Add(1)
	}
	if c.tracking.on {
		out = c.tracking.ran(c, row, args, out)
	}
	c.row, c.args = nil, nil
	return out
}

// refuse is protected mode, asked by the guard in the accept loop.
func (s *Server) refuse(_ *guardListener, remote net.Addr) string {
	if !s.protected.Load() || s.AuthRequired() {
		return ""
	}
	if t, ok := remote.(*net.TCPAddr); !ok || t.IP.IsLoopback() {
		return ""
	}
	return textProtected
}

const textProtected = "DENIED Redleaf is running in protected mode because protected mode is enabled and no password is set for the default user. In this mode connections are only accepted from the loopback interface. To connect from other computers: 1) set auth.password, or users with [[auth.user]], and reload (SIGHUP) or restart; or 2) set protected_mode = false, if the network lets only those in who may take IDs; or 3) set listen to a loopback address or a unix socket, if nobody else needs to connect."

// guardEvent logs what the guard noticed; the guard keeps each kind to once a minute.
func (s *Server) guardEvent(e guardEvent) {
	text := map[guardEventKind]string{
		guardHTTP:         "a client sent POST or Host: as a web page would make a browser do; its connection was closed",
		guardTLS:          "a client speaks TLS to a listener without it (tls.cert)",
		guardFull:         "a client was turned away: max_clients is reached",
		guardRefused:      "a client was turned away: protected mode, no password is set and it is not on loopback",
		guardAcceptFailed: "connections can't be accepted",
		guardSlowCommand:  "a client sent part of a command and no more; its connection was closed",
		guardSlowReader:   "a client does not read its replies; its connection was closed",
		guardInputFull:    "commands larger than 16 KiB hold all the memory they may; a connection was closed",
		guardPanic:        "the fast lane or the guard panicked: its connection is closed",
	}[e.Kind]
	ev := s.log.Warn()
	if e.Kind == guardPanic {
		s.panics.Add(1)
		ev = s.log.Error().Bytes("stack", e.Stack)
	}
	if e.Remote != nil {
		ev = ev.Str("client", peerName(e.Remote, nil))
	}
	if e.Err != nil {
		ev = ev.Err(e.Err)
	}
	if e.Omitted > 0 {
		ev = ev.Uint64("more", e.Omitted)
	}
	ev.Msg(text)
}

// internal logs an error whose text is not for clients.
func (s *Server) internal(c *conn, err error) {
	if more, ok := s.quiet.once("internal", time.Second); ok {
		s.log.Error().Err(err).Str("client", c.addr).Uint64("more", more).Msg("a command failed for a reason that has no word of its own")
	}
}

// authFailed counts and logs a wrong password, once a minute.
func (s *Server) authFailed(name, client string) {
	s.authFailures.Add(1)
	if more, ok := s.quiet.once("auth", time.Minute); ok {
		s.log.Warn().Str("user", name).Str("client", client).Uint64("more", more).Msg("wrong user or password")
	}
}

// quiet keeps a flood out of the log.
type quiet struct {
	mu   sync.Mutex
	last map[string]time.Time
	more map[string]uint64
}

// once says whether to log now: at most once in every. more is how often it said no since.
func (q *quiet) once(kind string, every time.Duration) (more uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.last == nil {
		q.last, q.more = make(map[string]time.Time), make(map[string]uint64)
	}
	if t, seen := q.last[kind]; seen && time.Since(t) < every {
		q.more[kind]++
		return 0, false
	}
	more, q.more[kind], q.last[kind] = q.more[kind], 0, time.Now()
	return more, true
}
