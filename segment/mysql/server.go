package mysql

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"redleaf/segment"
)

// serverTable holds one row for each table of tags. It goes along with replicas and backups, and that is its use: what it says
// about the server it is on, and how far its beat has come, tell when the data went back.
const serverTable = "redleaf_server"

const createServerTable = `CREATE TABLE IF NOT EXISTS %s (
  name     VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
  history  VARCHAR(64)  CHARACTER SET ascii NOT NULL,
  epoch    BIGINT       NOT NULL,
  beat     BIGINT       NOT NULL,
  base     BIGINT       NOT NULL,
  identity VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  since    DATETIME(6)  NULL
) ENGINE=InnoDB`

// beatJump is added to the beat when the data went back, so that no later beat of the lost line of data is reached again soon.
const beatJump = 1_000_000

// probeEvery is how long a server is trusted to return LAST_INSERT_ID(expr) after it showed so.
const probeEvery = 3 * time.Minute

// mark is what this instance knows of the server row. It only grows within one history.
type mark struct {
	History  string `json:"history"`
	Epoch    int64  `json:"epoch"`
	Beat     int64  `json:"beat"`
	Base     int64  `json:"base"`
	identity string
}

// serverRow is the row as it was read.
type serverRow struct {
	mark
	since sql.NullString
	age   int64 // microseconds by the database's clock since then
}

// Memory keeps a text by name across restarts. segment/local.Floors is one. A lost or older text is harmless: then a database
// that went back while this instance was down is noticed by others, or by floors alone.
type Memory interface {
	Read(name string) (string, error)
	Note(name, text string) error
}

// wentBack says whether the row, read on the server named, shows that the data are not those that m was read from, or that they
// are behind it.
func (m mark) wentBack(r serverRow, server string) string {
	switch {
	case r.identity != server:
		return fmt.Sprintf("another server answers: %s, the data were last on %s", server, orNone(r.identity))
	case m.History == "":
		return ""
	case r.History != m.History:
		return fmt.Sprintf("the data are of another history (%s, not %s)", r.History, m.History)
	case r.Epoch < m.Epoch:
		return fmt.Sprintf("the epoch went back from %d to %d", m.Epoch, r.Epoch)
	case r.Epoch == m.Epoch && r.Beat < m.Beat:
		return fmt.Sprintf("the beat went back from %d to %d", m.Beat, r.Beat)
	}
	return ""
}

func orNone(s string) string {
	if s == "" {
		return "none that is known"
	}
	return s
}

// rower is *sql.Conn or *sql.Tx.
type rower interface {
	QueryRowContext(ctx context.Context, q string, args ...any) *sql.Row
	ExecContext(ctx context.Context, q string, args ...any) (sql.Result, error)
}

func (s *Store) readServer(ctx context.Context, c rower, lock string) (r serverRow, err error) {
	var age sql.NullInt64
	err = c.QueryRowContext(ctx, "SELECT history, epoch, beat, base, identity, since, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)) FROM "+
		s.table.server()+" WHERE name = ?"+lock, s.table.name).Scan(&r.History, &r.Epoch, &r.Beat, &r.Base, &r.identity, &r.since, &age)
	r.age = age.Int64
	return r, err
}

// sync brings what this instance knows up to date: it makes the server row if there is none, has the skip done where the data
// went back, raises the beat, and probes the server. One at a time.
func (s *Store) sync(ctx context.Context) error {
	select {
	case s.syncing <- struct{}{}:
		defer func() { <-s.syncing }()
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.connErr != nil {
			return s.connErr // why it takes so long
		}
		return ctx.Err()
	}
	return s.syncLocked(ctx)
}

func (s *Store) syncLocked(ctx context.Context) error {
	for try := 0; ; try++ {
		back := ""
		err := s.do(ctx, func(ctx context.Context, c *session) error {
			if err := c.conn.check(ctx, true); err != nil {
				return err
			}
			var err error
			back, err = s.look(ctx, c)
			return err
		})
		if err == nil && back != "" {
			if try >= 3 {
				return waitf("the database went back again and again (%s): is the name in segment.mysql.dsn spread over several servers? Two that take writes can't be made safe", back)
			}
			if err = s.skip(ctx, back); err == nil {
				continue
			}
		}
		err = s.classify(err)
		s.mu.Lock()
		s.verdict, s.ready = err, s.ready || err == nil
		var ref *segment.RefusedError
		if !errors.As(err, &ref) {
			s.verdict = nil // what waiting cures is found out by each call itself
		} else if time.Since(s.connsSince) > time.Second {
			s.connsSince = time.Now() // have every connection looked at again
		}
		s.mu.Unlock()
		return err
	}
}

// look compares the server row with what is known, on one connection, and adopts it. back says why it can't be adopted.
func (s *Store) look(ctx context.Context, c *session) (back string, err error) {
	if s.floorsOnly(nil) {
		return "", s.lookWithout(c)
	}
	for range 4 {
		was := s.known() // as it stood before the SELECT was sent: what comes back may be no newer
		r, err := s.readServer(ctx, c, "")
		switch {
		case err == nil:
		case errors.Is(err, sql.ErrNoRows), number(err) == errNoSuchTable:
			if err = s.makeServer(ctx, c, number(err) == errNoSuchTable); err == nil {
				continue
			}
			if s.floorsOnly(err) {
				return "", s.lookWithout(c)
			}
			return "", err
		case s.floorsOnly(err):
			return "", s.lookWithout(c)
		default:
			return "", err
		}
		if back = was.wentBack(r, c.conn.server); back != "" {
			return back, nil
		}
		if err := s.probe(ctx, c); err != nil {
			return "", err
		}
		// The beat says that this instance lives, and lets any other see when it is missing.
		res, err := c.ExecContext(ctx, "UPDATE "+s.table.server()+" SET beat = LAST_INSERT_ID(beat + 1) WHERE name = ? AND epoch = ? AND beat >= ? AND identity = ?",
			s.table.name, r.Epoch, r.Beat, c.conn.server)
		if err != nil {
			if s.floorsOnly(err) {
				return "", s.lookWithout(c)
			}
			return "", err
		}
		n, err1 := res.RowsAffected()
		beat, err2 := res.LastInsertId()
		switch {
		case err1 != nil || err2 != nil || n > 1:
			return "", refusef("the database at %s answers a beat with %d rows changed: redleaf_server needs its primary key", c.conn.key, n)
		case n == 0:
			continue // another instance found something out in between
		case beat <= r.Beat:
			s.distrust()
			return "", refusef("the database at %s answers LAST_INSERT_ID %d where it is above %d: connect to the database directly, not through a proxy that changes it", c.conn.key, beat, r.Beat)
		}
		r.Beat = beat
		// The pause counts from the first moment somebody saw the skip committed.
		if r.Epoch > 0 && !r.since.Valid {
			if _, err := c.ExecContext(ctx, "UPDATE "+s.table.server()+" SET since = UTC_TIMESTAMP(6) WHERE name = ? AND epoch = ? AND since IS NULL", s.table.name, r.Epoch); err != nil {
				return "", err
			}
			r.age = 0
		}
		s.adopt(r)
		return "", nil
	}
	return "", waitf("the server row changes faster than it can be read")
}

// adopt takes over what the server row says.
func (s *Store) adopt(r serverRow) {
	s.mu.Lock()
	first, epoch := s.seen.identity == "", s.seen.Epoch
	if first || epoch != r.Epoch || s.seen.History != r.History {
		pause := time.Duration(0)
		if r.Epoch > 0 {
			pause = min(max(2*s.check-time.Duration(r.age)*time.Microsecond, 0), 2*s.check)
		}
		s.pausedUntil = time.Now().Add(pause)
	}
	if !first && s.seen.identity != r.identity {
		s.connsSince = time.Now() // connections to the old server are of no use
	}
	s.seen = r.mark
	s.guarded = true
	changed := !first && epoch != r.Epoch
	s.mu.Unlock()
	if changed {
		s.log.Warn().Int64("epoch", r.Epoch).Str("server", r.identity).Msg("the database went back; every tag is compared with what was granted")
	}
	s.remember(r.mark)
}

// probe has the connection's server probed if that was not done lately.
func (s *Store) probe(ctx context.Context, c *session) error {
	key := c.conn.key + " " + c.conn.server
	s.mu.Lock()
	at, ok := s.probed[key]
	s.mu.Unlock()
	if ok && time.Since(at) < probeEvery {
		return nil
	}
	if err := c.conn.probe(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.probed[key] = time.Now()
	s.mu.Unlock()
	return nil
}

// distrust forgets every probe: something answered a wrong value.
func (s *Store) distrust() {
	s.mu.Lock()
	clear(s.probed)
	s.mu.Unlock()
}

// known is what this instance has seen, in this life or, before the first look, in an earlier one.
func (s *Store) known() mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.guarded {
		return s.seen
	}
	return s.past
}

func (s *Store) noteName() string {
	return "mysql " + s.endpoints[0].addr + " " + s.table.db + "." + s.table.name
}

// recall reads what an earlier life of this instance saw.
func (s *Store) recall() {
	if s.memory == nil {
		return
	}
	text, err := s.memory.Read(s.noteName())
	if err != nil || text == "" {
		return
	}
	var m mark
	if json.Unmarshal([]byte(text), &m) == nil {
		s.past = m
	}
}

func (s *Store) remember(m mark) {
	if s.memory == nil {
		return
	}
	b, err := json.Marshal(m)
	if err == nil {
		err = s.memory.Note(s.noteName(), string(b))
	}
	if err != nil {
		s.warnAs("note", "the beat can't be kept in data_dir: a database that goes back while this instance is down is noticed later. "+err.Error())
	}
}

// makeServer makes the table and its row. Where nothing is known about this database it is a first start, and the row says that
// all is well. Where something is known, the row was lost with a database that went back, and the row says so. (I11)
func (s *Store) makeServer(ctx context.Context, c *session, table bool) error {
	if table {
		if _, err := c.ExecContext(ctx, fmt.Sprintf(createServerTable, s.table.server())); err != nil {
			return err
		}
	}
	m := s.known()
	if m.History == "" {
		m = mark{History: uuid(), Beat: 1, identity: c.conn.server}
	} else {
		m.identity = "" // no server: whoever looks next does the skip
		m.Beat = 0
	}
	_, err := c.ExecContext(ctx, "INSERT INTO "+s.table.server()+" (name, history, epoch, beat, base, identity) VALUES (?, ?, ?, ?, ?, ?)",
		s.table.name, m.History, m.Epoch, m.Beat, m.Base, m.identity)
	if number(err) == errDuplicate {
		return nil
	}
	if err == nil {
		s.log.Warn().Str("history", m.History).Str("table", s.table.String()).Msg("made the row of " + serverTable + ": it was not there")
	}
	return err
}

func uuid() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// floorsOnly says whether the store works without the server row: where the account may not make, read or write it. Floors are
// all there is then. nil asks whether that was found already; the rights are tried again every few minutes.
func (s *Store) floorsOnly(err error) bool {
	s.mu.Lock()
	guarded := s.guarded
	if err == nil {
		defer s.mu.Unlock()
		return !s.without.IsZero() && time.Since(s.without) < probeEvery
	}
	s.mu.Unlock()
	switch number(err) {
	case errTableDenied, errColumnDenied, 1044, 1227:
	default:
		return false
	}
	if guarded {
		return false // it was there: an account that loses its rights is a refusal, not a way out of the guard
	}
	s.mu.Lock()
	s.without = time.Now()
	s.mu.Unlock()
	s.warnAs("floors", fmt.Sprintf("the account may not make or write %s (%v): a database that goes back is seen by the floors of this instance alone, and ranges of instances that are gone can repeat. GRANT it CREATE, or make the table with scripts/schema.sql and GRANT SELECT, INSERT, UPDATE on it", serverTable, err))
	return true
}

// lookWithout is look where there is no server row: the history is the database's name, and another server is another epoch for
// this instance alone.
func (s *Store) lookWithout(c *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen.identity != "" && s.seen.identity != c.conn.server {
		s.seen.Epoch++
		s.connsSince = time.Now()
		s.pausedUntil = time.Now().Add(2 * s.check)
	}
	s.seen.identity = c.conn.server
	s.seen.History = "dsn " + s.endpoints[0].addr + "/" + s.table.db
	s.guarded = false
	return nil
}

// skip has every row moved up by failover_skip, because the data went back. It is done once, in the background and on a
// connection without the short limits; whoever asks meanwhile waits for it as long as its ctx allows.
func (s *Store) skip(ctx context.Context, why string) error {
	s.mu.Lock()
	if s.skipping == nil {
		s.skipping = make(chan struct{})
		s.log.Warn().Msg("the database went back (" + why + "): no grants until every row was moved and every instance has compared its tags")
		s.work.Add(1)
		go func() {
			defer s.work.Done()
			err := s.classify(s.skipNow(s.life))
			s.mu.Lock()
			s.skipErr = err
			close(s.skipping)
			s.skipping = nil
			s.mu.Unlock()
		}()
	}
	done := s.skipping
	s.mu.Unlock()
	select {
	case <-done:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.skipErr
	case <-ctx.Done():
		return waitf("the database went back (%s): every row is being moved", why)
	}
}

func (s *Store) skipNow(ctx context.Context) error {
	db := sql.OpenDB(&connector{s: s, long: true})
	defer db.Close()
	c, server, err := take(ctx, db)
	if err != nil {
		return err
	}
	defer c.Close()
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	was := s.known()
	r, err := s.readServer(ctx, tx, " FOR UPDATE") // the others wait here
	if err != nil {
		return err
	}
	why := was.wentBack(r, server.server)
	if why == "" {
		return nil // another instance was faster
	}
	start := time.Now()
	moved := int64(0)
	if s.skipBy > 0 {
		limit := segment.MaxID - s.skipBy
		res, err := tx.ExecContext(ctx, "UPDATE "+s.table.String()+" SET max_id = LEAST(max_id, ?) + ? WHERE max_id BETWEEN 1 AND ?", limit, s.skipBy, int64(segment.MaxID))
		if err != nil {
			return err
		}
		moved, _ = res.RowsAffected()
	}
	base := max(r.Base, was.Base)
	base = min(base, segment.MaxID-s.skipBy) + s.skipBy
	_, err = tx.ExecContext(ctx, "UPDATE "+s.table.server()+" SET identity = ?, epoch = ?, base = ?, beat = ?, since = NULL WHERE name = ?",
		server.server, max(r.Epoch, was.Epoch)+1, base, max(r.Beat, was.Beat)+beatJump, s.table.name)
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	s.log.Warn().Str("why", why).Int64("rows", moved).Int64("skip", s.skipBy).Dur("took", time.Since(start)).Msg("moved every row up")
	// A statement of its own: the transaction may have taken minutes, and the pause begins when others can see it.
	_, err = c.ExecContext(ctx, "UPDATE "+s.table.server()+" SET since = UTC_TIMESTAMP(6) WHERE name = ? AND since IS NULL", s.table.name)
	return err
}

// sawUptime notes how long the server has been up. An instance that has never been granted anything waits until those that
// were up before the server have had the time to compare their tags.
func (s *Store) sawUptime(up time.Duration) {
	if up >= 2*s.check {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := time.Now().Add(2*s.check - up); until.After(s.freshUntil) {
		s.freshUntil = until
	}
}

// paused is how long no grant is given.
func (s *Store) paused() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := time.Until(s.pausedUntil)
	if !s.granted {
		d = max(d, time.Until(s.freshUntil))
	}
	return max(d, 0)
}

func (s *Store) schemaDue(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.schemaAt[key]; ok && time.Since(at) < 2*time.Second {
		return false
	}
	s.schemaAt[key] = time.Now()
	return true
}

func (s *Store) schemaFailed(key string) {
	s.mu.Lock()
	delete(s.schemaAt, key)
	s.mu.Unlock()
}
