// Package mysql keeps the marks of every tag in a MySQL or MariaDB table of Leaf's form.
//
// A refill is one statement and one round trip:
//
//	UPDATE leaf_alloc SET max_id = LAST_INSERT_ID(max_id + n)
//	 WHERE biz_tag = ? AND max_id BETWEEN floor AND 2^63-1-n
//	   AND EXISTS (SELECT 1 FROM redleaf_server WHERE name = ? AND epoch = ? AND beat >= ?)
//
// It moves exactly one row and says where to, or it moves none; any error is a hole (I3). The floor keeps this instance above
// what it was granted; the guard keeps everybody off a database that went back, until each row was moved up and every instance
// has compared its tags (server.go). What makes a database forget or repeat a grant is looked for on every connection (conn.go),
// and what the DSN must say is added to it (dsn.go).
package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"redleaf/segment"
)

// Pool of connections. A refill takes one for one round trip, so a few serve thousands of tags; their life is shorter than a
// load balancer's patience, and lets them move to the first node again.
const (
	maxConns = 8
	connLife = 3 * time.Minute
)

// Options of Open.
type Options struct {
	// DSNs are data source names in the driver's form. More than one only for nodes of one synchronous cluster; the first that
	// answers is used.
	DSNs     []string
	Password string // put into every DSN that has none
	// TLSCA, TLSCert and TLSKey are PEM files: the authority of the server's certificate, and this client's.
	TLSCA, TLSCert, TLSKey string
	// Table is Leaf's table, "table" or "database.table"; "" is leaf_alloc.
	Table string
	// Check is segment.check: how often Pulse is called. A pause lasts twice as long. 0 is 5s.
	Check time.Duration
	// FailoverSkip is the hole left in every row when the database went back; 0 is none.
	FailoverSkip int64
	// AutoCreate says that tags may be made by INCR.
	AutoCreate bool
	// Memory keeps what was seen of the database across restarts; nil keeps nothing.
	Memory Memory
	Log    zerolog.Logger
}

// Store is the segment.Store on a database. Safe for concurrent use.
type Store struct {
	table      table
	endpoints  []endpoint
	check      time.Duration
	skipBy     int64
	autoCreate bool
	memory     Memory
	log        zerolog.Logger
	db         *sql.DB

	life    context.Context // ends with Close
	end     context.CancelFunc
	work    sync.WaitGroup // the skip in the background
	syncing chan struct{}  // holds one token while a sync runs
	past    mark           // what an earlier life of this instance saw

	mu          sync.Mutex
	closed      bool
	ready       bool  // a sync succeeded once
	verdict     error // *RefusedError of the last sync: nothing is granted while it stands
	seen        mark
	guarded     bool      // seen is the server row's, and statements carry the guard
	without     time.Time // when the server row was found to be out of reach
	granted     bool      // this instance was granted something
	pausedUntil time.Time
	freshUntil  time.Time // the server has been up for long enough from then on
	connsSince  time.Time // older connections are opened anew
	connErr     error     // of the last attempt to connect
	connErrAt   time.Time
	node        int    // index of the endpoint that was connected to last
	cluster     string // identity of the cluster that all addresses must belong to
	cols        columns
	probed      map[string]time.Time
	schemaAt    map[string]time.Time
	skipping    chan struct{} // closed when the skip in progress has ended
	skipErr     error
	told        string
	warned      map[string]time.Time
	window      window
}

var _ segment.Store = (*Store)(nil)

var errClosed = errors.New("the store is closed")

// errMoved says that what this instance knows of the server row is out of date, or the row went back.
var errMoved = errors.New("the database changed under this instance")

// Open checks the settings and returns at once: it never waits for the network. What is wrong with the database is told by the
// calls, and ends when the cause ends.
func Open(o Options) (*Store, error) {
	if len(o.DSNs) == 0 {
		return nil, errors.New("segment.mysql.dsn is empty: set it to user:password@tcp(host:3306)/database")
	}
	if o.Table == "" {
		o.Table = "leaf_alloc"
	}
	if o.Check <= 0 {
		o.Check = 5 * time.Second
	}
	if o.FailoverSkip < 0 || o.FailoverSkip > math.MaxInt64/2 {
		return nil, fmt.Errorf("segment.failover_skip is %d: it must be from 0 to %d", o.FailoverSkip, int64(math.MaxInt64/2))
	}
	s := &Store{
		check: o.Check, skipBy: o.FailoverSkip, autoCreate: o.AutoCreate, memory: o.Memory, log: o.Log,
		syncing: make(chan struct{}, 1), probed: map[string]time.Time{}, schemaAt: map[string]time.Time{}, warned: map[string]time.Time{},
	}
	for _, dsn := range o.DSNs {
		e, err := parseDSN(dsn, &o)
		if err != nil {
			return nil, err
		}
		s.endpoints = append(s.endpoints, e)
	}
	db := s.endpoints[0].config.DBName
	for _, e := range s.endpoints[1:] {
		if e.config.DBName != db {
			return nil, errors.New("segment.mysql.dsn names different databases: several addresses are for the nodes of one cluster")
		}
	}
	var err error
	if s.table, err = parseTable(o.Table, db); err != nil {
		return nil, err
	}
	s.recall()
	s.life, s.end = context.WithCancel(context.Background())
	s.db = sql.OpenDB(&connector{s: s})
	s.db.SetMaxOpenConns(maxConns)
	s.db.SetMaxIdleConns(maxConns)
	s.db.SetConnMaxLifetime(connLife)
	return s, nil
}

// Close ends a skip in progress, which the server takes back, and closes every connection.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.work.Wait()
	return s.db.Close()
}

// session is a connection taken from the pool for one call.
type session struct {
	*sql.Conn
	conn *conn
}

func take(ctx context.Context, db *sql.DB) (*sql.Conn, *conn, error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	var dc *conn
	if err := c.Raw(func(x any) error { dc = x.(*conn); return nil }); err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, dc, nil
}

// do runs fn on a checked connection. It runs it again where the connection turns out to be gone before anything was sent, and
// after a deadlock or a conflict between nodes of a cluster, both of which leave nothing behind. fn must not keep anything from
// a run that failed: a value of LAST_INSERT_ID, for one, may be that of a statement that was taken back.
func (s *Store) do(ctx context.Context, fn func(ctx context.Context, c *session) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return errClosed
	}
	bad := 0
	for try := 0; ; try++ {
		c, dc, err := take(ctx, s.db)
		if err == nil {
			err = fn(ctx, &session{c, dc})
			c.Close()
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, driver.ErrBadConn) && bad < 3:
			bad++
		case number(err) == errDeadlock && try < 30:
			wait := time.NewTimer(time.Duration(rand.Int64N(int64(2+try)*int64(time.Millisecond)) + 1))
			select {
			case <-wait.C:
			case <-ctx.Done():
				wait.Stop()
				return ctx.Err()
			}
		default:
			return err
		}
	}
}

// enter says whether grants may be asked for now.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	ready, verdict := s.ready, s.verdict
	s.mu.Unlock()
	if verdict != nil {
		return verdict
	}
	if !ready {
		if err := s.sync(ctx); err != nil {
			return err
		}
	}
	if p := s.paused(); p > 0 {
		return waitf("no grants for another %v: the database went back or has just started, and every instance compares its tags first", p.Round(time.Millisecond))
	}
	return nil
}

// write runs a statement that moves or makes rows: only while grants are given, and with the guard g in it.
func (s *Store) write(ctx context.Context, fn func(ctx context.Context, c *session, g guard) error) error {
	err := s.enter(ctx)
	if err == nil {
		err = s.do(ctx, func(ctx context.Context, c *session) error {
			s.mu.Lock()
			g := guard{mark: s.seen, on: s.guarded, name: s.table.name}
			s.mu.Unlock()
			if c.conn.server != g.identity {
				return errMoved
			}
			if g.on {
				g.sql = " AND EXISTS (SELECT 1 FROM " + s.table.server() + " WHERE name = ? AND epoch = ? AND beat >= ? LOCK IN SHARE MODE)"
				if err := s.probe(ctx, c); err != nil {
					return err
				}
			}
			return fn(ctx, c, g)
		})
	}
	if errors.Is(err, errMoved) {
		if err = s.sync(ctx); err == nil {
			err = waitf("the database changed; what this instance holds is compared first")
		}
	}
	return s.classify(err)
}

// guard is what every write carries, so that a database that went back under an open connection moves nothing.
type guard struct {
	mark
	on   bool
	name string
	sql  string // " AND EXISTS (…)", or "" where there is no server row
}

func (g guard) args(args ...any) []any {
	if !g.on {
		return args
	}
	return append(args, g.name, g.Epoch, g.Beat)
}

// server names the grantor of a span: a tail goes back only to the same server in the same epoch.
func (g guard) server() string { return g.identity + "#" + strconv.FormatInt(g.Epoch, 10) }

// exact compares names byte by byte, after the index has found what the table's collation takes for equal.
const exact = " AND CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) = CAST(? AS BINARY)"

// Reserve: see segment.Store.
func (s *Store) Reserve(ctx context.Context, tag string, n, floor int64) (segment.Grant, error) {
	if n < 1 {
		return segment.Grant{}, refusef("reserve of %d IDs: it must be at least 1", n)
	}
	low := max(floor, 1)
	var grant segment.Grant
	err := s.write(ctx, func(ctx context.Context, c *session, g guard) error {
		for range 4 {
			res, err := c.ExecContext(ctx, "UPDATE "+s.table.String()+" SET max_id = LAST_INSERT_ID(max_id + ?) WHERE biz_tag = ?"+exact+" AND max_id BETWEEN ? AND ?"+g.sql,
				g.args(n, tag, tag, low, segment.MaxID-n)...)
			if err != nil {
				return tagError(tag, err)
			}
			rows, err := res.RowsAffected()
			if err != nil {
				return err
			}
			if rows == 0 {
				r, err := s.why(ctx, c, g, tag)
				switch {
				case err != nil:
					return err
				case floor > 0 && r.bound < floor:
					return &segment.RegressedError{Tag: tag, Row: max(r.bound, 0), Floor: floor}
				case r.Err != nil:
					return r.Err
				case r.Max > segment.MaxID-n:
					return segment.ErrExhausted
				}
				continue // it stands where it could be moved: it was not there a moment ago
			}
			if rows > 1 {
				return refusef("tag '%s' has %d rows in %s: give biz_tag a primary key and leave one of them", tag, rows, s.table)
			}
			hi, err := res.LastInsertId()
			if err != nil || hi <= 0 || hi-n < low {
				s.distrust()
				return refusef("the database at %s answers LAST_INSERT_ID %d for a refill of %d IDs of tag '%s' at or above %d: connect to the database directly, not through a proxy that changes it", c.conn.key, hi, n, tag, low)
			}
			grant = segment.Grant{Span: segment.Span{Lo: hi - n, Hi: hi}, Server: g.server()}
			return nil
		}
		return waitf("the row of tag '%s' changes faster than it can be read", tag)
	})
	if err != nil {
		return segment.Grant{}, err
	}
	s.mu.Lock()
	s.granted = true
	s.mu.Unlock()
	return grant, nil
}

// tagError finds errors that are about the tag and not about the database.
func tagError(tag string, err error) error {
	if isMix(err) {
		// The column's character set has no such characters, so there is no such row.
		return segment.ErrNoTag
	}
	return err
}

// found is one row as it was read. bound is max_id where it is a number that fits, whatever else is wrong with the row; Err is
// set where the row can't be used.
type found struct {
	segment.Row
	bound int64
}

// why finds out why a conditional write changed nothing: the guard (errMoved), no row, another row's name, or the row itself.
func (s *Store) why(ctx context.Context, c *session, g guard, tag string) (found, error) {
	if g.on {
		r, err := s.readServer(ctx, c, "")
		if err != nil && !errors.Is(err, sql.ErrNoRows) && number(err) != errNoSuchTable {
			return found{}, err
		}
		if err != nil || r.Epoch != g.Epoch || r.Beat < g.Beat {
			return found{}, errMoved
		}
	}
	return s.rowOf(ctx, c, tag, "")
}

// rowOf reads one row by its exact name.
func (s *Store) rowOf(ctx context.Context, c rowser, tag, lock string) (found, error) {
	rows, err := s.read(ctx, c, " WHERE biz_tag = ?"+lock, tag)
	if err != nil {
		return found{}, tagError(tag, err)
	}
	for _, r := range rows {
		if r.Tag == tag {
			return r, nil
		}
	}
	if len(rows) > 0 {
		return found{}, &segment.ClashError{Tag: tag, Row: rows[0].Tag}
	}
	return found{}, segment.ErrNoTag
}

// rowser is *sql.Conn or *sql.Tx.
type rowser interface {
	QueryContext(ctx context.Context, q string, args ...any) (*sql.Rows, error)
}

// read reads rows; where is the rest of the statement.
func (s *Store) read(ctx context.Context, c rowser, where string, args ...any) ([]found, error) {
	s.mu.Lock()
	cols := s.cols
	s.mu.Unlock()
	desc, updated := "NULL", "NULL"
	if cols.description {
		desc = "description"
	}
	if cols.updated {
		updated = "UNIX_TIMESTAMP(update_time)"
	}
	rows, err := c.QueryContext(ctx, "SELECT biz_tag, max_id, step, "+desc+", "+updated+" FROM "+s.table.String()+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []found
	for rows.Next() {
		var tag string
		var bound, step, desc, updated sql.NullString
		if err := rows.Scan(&tag, &bound, &step, &desc, &updated); err != nil {
			return nil, err
		}
		out = append(out, parseRow(tag, bound, step, desc, updated))
	}
	return out, rows.Err()
}

func parseRow(tag string, bound, step, desc, updated sql.NullString) found {
	f := found{Row: segment.Row{Tag: tag, Desc: desc.String}}
	if sec, err := strconv.ParseFloat(updated.String, 64); err == nil && sec > 0 {
		f.Updated = time.UnixMicro(int64(sec * 1e6))
	}
	text := func(s sql.NullString) string {
		if !s.Valid {
			return "NULL"
		}
		return s.String
	}
	var err error
	if f.Step, err = strconv.ParseInt(step.String, 10, 64); err != nil || f.Step < 1 {
		f.Err = &segment.StepError{Tag: tag, Column: "step", Value: text(step), Want: "at least 1"}
	}
	switch f.bound, err = strconv.ParseInt(bound.String, 10, 64); {
	case err == nil && f.bound >= 1:
		f.Max = f.bound
	case errors.Is(err, strconv.ErrRange) && bound.String[0] != '-':
		f.bound, f.Max = math.MaxInt64, math.MaxInt64 // above every floor, and nothing left in it
		f.Err = &segment.StepError{Tag: tag, Column: "max_id", Value: text(bound), Want: "at most 9223372036854775807, the largest integer of the protocol"}
	default:
		if err != nil {
			f.bound = math.MinInt64
		}
		if !bound.Valid {
			f.bound = math.MaxInt64 // NULL is no position: no floor is broken by it
		}
		f.Err = &segment.StepError{Tag: tag, Column: "max_id", Value: text(bound), Want: "at least 1"}
	}
	return f
}

// Rows: see segment.Store.
func (s *Store) Rows(ctx context.Context, tags []string) (map[string]segment.Row, error) {
	out := make(map[string]segment.Row, len(tags))
	for len(tags) > 0 {
		chunk := tags[:min(len(tags), 500)]
		tags = tags[len(chunk):]
		err := s.do(ctx, func(ctx context.Context, c *session) error { return s.rows(ctx, c, chunk, out) })
		if err != nil {
			return nil, s.classify(err)
		}
	}
	return out, nil
}

func (s *Store) rows(ctx context.Context, c *session, tags []string, out map[string]segment.Row) error {
	rows, err := s.read(ctx, c, " WHERE biz_tag IN ("+marks(len(tags))+")", anys(tags)...)
	if isMix(err) {
		// One of the names is not in the column's character set: find it by halves, the others count.
		if len(tags) == 1 {
			return nil
		}
		if err := s.rows(ctx, c, tags[:len(tags)/2], out); err != nil {
			return err
		}
		return s.rows(ctx, c, tags[len(tags)/2:], out)
	}
	if err != nil {
		return err
	}
	asked := make(map[string]bool, len(tags))
	for _, t := range tags {
		asked[t] = true
	}
	for _, r := range rows {
		if asked[r.Tag] {
			out[r.Tag] = r.Row
			delete(asked, r.Tag)
		}
	}
	if len(rows) == 0 || s.columns().binary {
		return nil
	}
	// A name without a row of its own may be one that the table's collation takes for another row's: say so.
	for len(asked) > 0 {
		rest := slices.Sorted(maps.Keys(asked))
		clashes, err := c.QueryContext(ctx, "SELECT biz_tag, FIELD(biz_tag, "+marks(len(rest))+") FROM "+s.table.String()+" WHERE biz_tag IN ("+marks(len(rest))+")",
			append(anys(rest), anys(rest)...)...)
		if err != nil {
			return err
		}
		defer clashes.Close()
		for clashes.Next() {
			var name string
			var at int
			if err := clashes.Scan(&name, &at); err != nil {
				return err
			}
			if at >= 1 && at <= len(rest) && rest[at-1] != name {
				out[rest[at-1]] = segment.Row{Tag: rest[at-1], Err: &segment.ClashError{Tag: rest[at-1], Row: name}}
				delete(asked, rest[at-1])
			}
		}
		if err := clashes.Err(); err != nil {
			return err
		}
		if len(asked) == len(rest) {
			break
		}
	}
	return nil
}

func marks(n int) string {
	b := make([]byte, 0, 2*n)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '?')
	}
	return string(b)
}

func anys(s []string) []any {
	a := make([]any, len(s))
	for i, v := range s {
		a[i] = v
	}
	return a
}

// Create: see segment.Store. The base is the server row's: below it, IDs may have been handed out under rows that were lost.
func (s *Store) Create(ctx context.Context, row segment.Row, inherit bool) (now segment.Row, created bool, err error) {
	if row.Max < 1 {
		return now, false, &segment.StepError{Tag: row.Tag, Column: "max_id", Value: strconv.FormatInt(row.Max, 10), Want: "at least 1"}
	}
	if row.Step < 1 {
		return now, false, &segment.StepError{Tag: row.Tag, Column: "step", Value: strconv.FormatInt(row.Step, 10), Want: "at least 1"}
	}
	err = s.write(ctx, func(ctx context.Context, c *session, g guard) error {
		for range 4 {
			cols, vals, args := s.insertion(row)
			q := "INSERT INTO " + s.table.String() + " (" + cols + ") VALUES (" + vals + ")"
			if g.on {
				// The base is read in the statement, under the guard's lock.
				vals = "?, GREATEST(?, IF(?, base, 1))" + vals[len("?, ?"):]
				args = append([]any{args[0], args[1], inherit}, args[2:]...)
				q = "INSERT INTO " + s.table.String() + " (" + cols + ") SELECT " + vals + " FROM " + s.table.server() + " WHERE name = ? AND epoch = ? AND beat >= ? LOCK IN SHARE MODE"
			}
			res, err := c.ExecContext(ctx, q, g.args(args...)...)
			created = false
			switch number(err) {
			case errDuplicate:
			case 0:
				if err != nil {
					return err
				}
				n, err := res.RowsAffected()
				if err != nil {
					return err
				}
				if created = n == 1; !created {
					return errMoved
				}
			default:
				return s.insertError(row, err)
			}
			r, err := s.rowOf(ctx, c, row.Tag, "")
			if errors.Is(err, segment.ErrNoTag) {
				continue // deleted in between
			}
			now = r.Row
			if created {
				return err
			}
			if err == nil {
				err = r.Err
			}
			return err
		}
		return waitf("the row of tag '%s' comes and goes", row.Tag)
	})
	if err != nil {
		return segment.Row{}, false, err
	}
	if created {
		s.mu.Lock()
		s.window = window{} // a list asked for next shows it
		s.mu.Unlock()
	}
	return now, created, nil
}

// insertion lists the columns of a new row that the table has, their places and values. The first two are biz_tag and max_id.
func (s *Store) insertion(row segment.Row) (cols, vals string, args []any) {
	s.mu.Lock()
	desc := s.cols.description
	s.mu.Unlock()
	cols, vals, args = "biz_tag, max_id, step", "?, ?, ?", []any{row.Tag, row.Max, row.Step}
	if desc {
		cols, vals, args = cols+", description", vals+", ?", append(args, row.Desc)
	}
	return cols, vals, args
}

func (s *Store) insertError(row segment.Row, err error) error {
	switch number(err) {
	case 1264:
		return &segment.StepError{Tag: row.Tag, Column: "step", Value: strconv.FormatInt(row.Step, 10), Want: "a number that the column step can hold"}
	case 1406:
		return refusef("tag '%s' can't be made: %w. Shorten the name or the description, or widen the column of %s", row.Tag, err, s.table)
	case 1366, errMixOfCollations: // no such characters in the column
		return refusef("tag '%s' can't be made: %w. Give biz_tag and description of %s the character set utf8mb4", row.Tag, err, s.table)
	}
	return err
}

// Advance: see segment.Store.
func (s *Store) Advance(ctx context.Context, tag string, n int64) (at int64, moved bool, err error) {
	if n < 0 || n == math.MaxInt64 {
		return 0, false, refusef("advance to %d: it must be from 0 to %d", n, int64(math.MaxInt64-1))
	}
	err = s.write(ctx, func(ctx context.Context, c *session, g guard) error {
		for range 4 {
			// LAST_INSERT_ID keeps the old bound; the row gets the new one.
			res, err := c.ExecContext(ctx, "UPDATE "+s.table.String()+" SET max_id = LAST_INSERT_ID(max_id) * 0 + ? WHERE biz_tag = ?"+exact+" AND max_id BETWEEN 1 AND ?"+g.sql,
				g.args(n+1, tag, tag, n)...)
			if err != nil {
				return tagError(tag, err)
			}
			rows, err := res.RowsAffected()
			if err != nil {
				return err
			}
			if rows > 1 {
				return refusef("tag '%s' has %d rows in %s: give biz_tag a primary key and leave one of them", tag, rows, s.table)
			}
			if rows == 1 {
				at, err = res.LastInsertId()
				if err != nil || at < 1 || at > n {
					s.distrust()
					return refusef("the database at %s answers LAST_INSERT_ID %d where it is from 1 to %d: connect to the database directly, not through a proxy that changes it", c.conn.key, at, n)
				}
				moved = true
				return nil
			}
			r, err := s.why(ctx, c, g, tag)
			if err != nil {
				return err
			}
			if r.Max > n {
				at, moved = r.Max, false
				return nil
			}
			if r.bound < 1 || r.Max == 0 {
				return r.Err
			}
		}
		return waitf("the row of tag '%s' changes faster than it can be read", tag)
	})
	if err != nil {
		return 0, false, err
	}
	return at, moved, nil
}

// Fence: see segment.Store. It only ever raises, so it needs no guard and works during the pause.
func (s *Store) Fence(ctx context.Context, tag string, floor int64, restore *segment.Row) (at int64, err error) {
	if restore != nil && (restore.Max < floor || restore.Max < 1 || restore.Step < 1) {
		return 0, refusef("tag '%s': a row put back at %d with step %d is none at or above %d", tag, restore.Max, restore.Step, floor)
	}
	err = s.do(ctx, func(ctx context.Context, c *session) error {
		for range 4 {
			at, err = s.raise(ctx, c, tag, floor)
			if !errors.Is(err, segment.ErrNoTag) || restore == nil {
				return err
			}
			row := *restore
			row.Tag = tag
			cols, vals, args := s.insertion(row)
			_, err := c.ExecContext(ctx, "INSERT INTO "+s.table.String()+" ("+cols+") VALUES ("+vals+")", args...)
			if number(err) == errDuplicate {
				continue // another instance put it back: then it is raised
			}
			at = 0
			return s.insertError(row, err)
		}
		return waitf("the row of tag '%s' comes and goes", tag)
	})
	if err != nil {
		return 0, s.classify(err)
	}
	return at, nil
}

func (s *Store) raise(ctx context.Context, c *session, tag string, floor int64) (at int64, err error) {
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	r, err := s.rowOf(ctx, tx, tag, " FOR UPDATE")
	if err != nil {
		return 0, err
	}
	if r.bound < floor {
		if _, err := tx.ExecContext(ctx, "UPDATE "+s.table.String()+" SET max_id = GREATEST(max_id, ?) WHERE biz_tag = ?"+exact, floor, tag, tag); err != nil {
			return 0, err
		}
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	var st *segment.StepError
	if errors.As(r.Err, &st) && st.Column == "max_id" && r.bound >= floor {
		return 0, r.Err
	}
	return max(r.bound, 0), nil
}

// GiveBack: see segment.Store.
func (s *Store) GiveBack(ctx context.Context, tag string, span segment.Span, server string) (done bool, err error) {
	if span.Lo < 1 || span.Hi <= span.Lo || s.paused() > 0 {
		return false, ctx.Err()
	}
	err = s.write(ctx, func(ctx context.Context, c *session, g guard) error {
		if done = false; g.server() != server {
			return nil
		}
		res, err := c.ExecContext(ctx, "UPDATE "+s.table.String()+" SET max_id = ? WHERE biz_tag = ?"+exact+" AND max_id = ?"+g.sql,
			g.args(span.Lo, tag, tag, span.Hi)...)
		if err != nil {
			return tagError(tag, err)
		}
		n, err := res.RowsAffected()
		done = err == nil && n == 1
		return err
	})
	if errors.Is(err, segment.ErrNoTag) {
		err = nil
	}
	return done && err == nil, err
}

// Count: see segment.Store.
func (s *Store) Count(ctx context.Context) (n int64, err error) {
	err = s.do(ctx, func(ctx context.Context, c *session) error {
		return c.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+s.table.String()).Scan(&n)
	})
	return n, s.classify(err)
}

// Pulse: see segment.Store.
func (s *Store) Pulse(ctx context.Context) (segment.Pulse, error) {
	err := ctx.Err()
	if err == nil {
		err = s.sync(ctx)
	}
	err = s.classify(err)
	if ctx.Err() == nil || err == nil {
		s.tell(err)
	}
	if err != nil {
		return segment.Pulse{}, err
	}
	s.mu.Lock()
	p := segment.Pulse{History: s.seen.History, Epoch: s.seen.Epoch, Skip: s.skipBy}
	if !s.guarded {
		p.Skip = 0 // nothing moved the rows
	}
	s.mu.Unlock()
	p.Paused = s.paused()
	return p, nil
}
