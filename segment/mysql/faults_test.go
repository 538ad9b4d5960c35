package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"redleaf/scripts/proxy"
	"redleaf/scripts/services"
	"redleaf/segment"
)

// drawing reserves from several goroutines until it is stopped; every grant is checked against all others, and every error must
// be one that waiting cures.
type drawing struct {
	all    owned
	stop   context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	grants int
	err    error // the last one
}

func draw(t *testing.T, stores ...*Store) *drawing {
	ctx, cancel := context.WithCancel(t.Context())
	d := &drawing{stop: cancel}
	for i := range 2 * len(stores) {
		d.wg.Go(func() {
			floor := int64(0)
			for ctx.Err() == nil {
				call, done := context.WithTimeout(ctx, 5*time.Second)
				g, err := stores[i%len(stores)].Reserve(call, "hot", 7, floor)
				done()
				var un *segment.UnavailableError
				switch {
				case err == nil:
					d.all.add(t, "hot", g.Span)
					floor = g.Hi
					d.mu.Lock()
					d.grants++
					d.mu.Unlock()
				case ctx.Err() != nil:
				case !errors.As(err, &un):
					t.Errorf("Reserve: %T %v", err, err)
					return
				default:
					d.mu.Lock()
					d.err = err
					d.mu.Unlock()
					time.Sleep(10 * time.Millisecond) // back off, as the engine does
				}
			}
		})
	}
	return d
}

func (d *drawing) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.grants
}

// flows waits until grants come again.
func (d *drawing) flows(t *testing.T) time.Duration {
	t.Helper()
	start, n := time.Now(), d.count()
	for d.count() < n+5 {
		if time.Since(start) > 30*time.Second {
			d.mu.Lock()
			defer d.mu.Unlock()
			t.Fatalf("no grants 30 s after the cure: %v", d.err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(start)
}

func (d *drawing) end() {
	d.stop()
	d.wg.Wait()
}

// Whatever happens to the server or on the way to it, no range is granted twice, and grants come again by themselves.
func TestServerFaults(t *testing.T) {
	t.Parallel()
	db := services.StartMariaDB(t, services.MariaDBOptions{Create: true})
	db.Exec(leafTable)
	p := proxy.Start(t, db.Addr())
	a, b := open(t, options(db.DSN("", ""))), open(t, options(db.DSNAt(p.Addr(), "", "")))
	awaitGrants(t, a)
	awaitGrants(t, b)
	create(t, a, "hot", 1)
	d := draw(t, a, b)
	defer d.end()
	d.flows(t)
	for _, f := range []struct {
		name        string
		break_, fix func()
	}{
		{"kill -9 of the server", db.Kill, db.Start},
		{"restart", db.Stop, db.Start},
		{"SIGSTOP past every timeout", func() { db.Pause(); time.Sleep(4500 * time.Millisecond) }, db.Resume},
		{"connections killed", db.KillConnections, func() {}},
		{"read-only", func() { db.ReadOnly(true); time.Sleep(200 * time.Millisecond) }, func() { db.ReadOnly(false) }},
		{"connections refused", func() { p.Refuse(true); p.CloseAll() }, func() { p.Refuse(false) }},
		{"connections cut", p.CloseAll, func() {}},
		{"half-open", func() { p.Swallow(true); time.Sleep(4 * time.Second) }, func() { p.Swallow(false) }},
		{"replies lost", func() {
			p.CutOnReply(5, func(b []byte) bool { return bytes.Contains(b, []byte("LAST_INSERT_ID(max_id")) })
			p.WaitCuts(1, 10*time.Second)
		}, func() { p.CutOnReply(0, nil) }},
	} {
		f.break_()
		f.fix()
		t.Logf("%s: grants again after %v", f.name, d.flows(t))
	}
	d.end()
	bound := db.QueryInt("SELECT max_id FROM leaf_alloc WHERE biz_tag = 'hot'")
	for _, s := range d.all.spans["hot"] {
		if s.Hi > bound {
			t.Errorf("[%d, %d) was granted and the row stands at %d", s.Lo, s.Hi, bound)
		}
	}
}

// The reply is lost after the server committed: the range is a hole, and the next one lies above it. (I3)
func TestReplyLost(t *testing.T) {
	t.Parallel()
	name := database(t, leafTable)
	p := proxy.Start(t, shared.db.Addr())
	s := open(t, options(shared.db.DSNAt(p.Addr(), "", name)))
	awaitGrants(t, s)
	create(t, s, "x", 1)
	bound := func() int64 {
		return shared.db.QueryInt("SELECT max_id FROM " + name + ".leaf_alloc WHERE biz_tag = 'x'")
	}
	lose := func() {
		p.CutOnReply(1, func(b []byte) bool {
			return bytes.Contains(b, []byte("UPDATE `")) && bytes.Contains(b, []byte("biz_tag = ")) || bytes.Contains(b, []byte("INSERT INTO"))
		})
	}
	lose()
	g, err := s.Reserve(t.Context(), "x", 1000, 0)
	unavailable(t, err)
	if g != (segment.Grant{}) || bound() != 1001 {
		t.Errorf("%+v, the row stands at %d: want no grant and 1001", g, bound())
	}
	g = reserve(t, s, "x", 1000, 0)
	if g.Lo != 1001 {
		t.Errorf("[%d, %d)", g.Lo, g.Hi)
	}
	lose()
	if _, _, err := s.Advance(t.Context(), "x", 5000); err == nil || bound() != 5001 {
		t.Errorf("Advance: %v, the row stands at %d", err, bound())
	}
	g = reserve(t, s, "x", 10, 0)
	lose()
	if done, err := s.GiveBack(t.Context(), "x", segment.Span{Lo: g.Lo + 5, Hi: g.Hi}, g.Server); done || err == nil || bound() != g.Lo+5 {
		t.Errorf("GiveBack: %v, %v, the row stands at %d", done, err, bound())
	}
	lose()
	if _, created, err := s.Create(t.Context(), segment.Row{Tag: "y", Max: 7, Step: 1}, false); created || err == nil {
		t.Errorf("Create: %v, %v", created, err)
	}
	if now, created, err := s.Create(t.Context(), segment.Row{Tag: "y", Max: 9, Step: 1}, false); created || err != nil || now.Max != 7 {
		t.Errorf("Create again: %+v, %v, %v", now, created, err)
	}
}

// Rows of the error table: what the server answers, and what becomes of it.
func TestServerErrors(t *testing.T) {
	t.Parallel()
	db := services.StartMariaDB(t, services.MariaDBOptions{Create: true, Args: []string{"--max-connections=12"}})
	db.Exec(leafTable)
	db.Root().SetMaxIdleConns(2)
	s := open(t, options(db.DSN("", "")))
	awaitGrants(t, s)
	create(t, s, "x", 1)

	t.Run("lock held", func(t *testing.T) {
		tx, err := db.Root().Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		tx.Exec("UPDATE leaf_alloc SET step = step + 1 WHERE biz_tag = 'x'")
		_, err = s.Reserve(t.Context(), "x", 1, 0)
		unavailable(t, err, "1205")
	})
	t.Run("table locked", func(t *testing.T) {
		c, err := db.Root().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.ExecContext(t.Context(), "FLUSH TABLES WITH READ LOCK")
		_, err = s.Reserve(t.Context(), "x", 1, 0)
		c.ExecContext(t.Context(), "UNLOCK TABLES")
		unavailable(t, err, "1205")
	})
	t.Run("query killed", func(t *testing.T) {
		tx, err := db.Root().Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		tx.Exec("UPDATE leaf_alloc SET step = step + 1 WHERE biz_tag = 'x'")
		answered := make(chan error, 1)
		go func() {
			_, err := s.Reserve(t.Context(), "x", 1, 0)
			answered <- err
		}()
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			id := db.QueryInt("SELECT COALESCE(MAX(ID), 0) FROM information_schema.PROCESSLIST WHERE USER = 'redleaf' AND INFO LIKE 'UPDATE%max_id + 1%'")
			if id != 0 {
				db.Root().Exec(fmt.Sprintf("KILL QUERY %d", id))
				break
			}
		}
		unavailable(t, <-answered) // 1317, or 1205 on a machine that was slow
	})
	t.Run("max_connections", func(t *testing.T) {
		cfg, err := mysql.ParseDSN(db.DSN("", ""))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Logger = &mysql.NopLogger{}
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		hog := sql.OpenDB(connector)
		defer hog.Close()
		fresh := open(t, options(db.DSN("", "")))
		for range 20 {
			if c, err := hog.Conn(t.Context()); err != nil {
				break
			} else {
				defer c.Close()
			}
		}
		_, err = pulse(t, fresh)
		unavailable(t, err, "1040")
		hog.Close()
	})
	t.Run("account locked", func(t *testing.T) {
		db.Exec("ALTER USER 'redleaf'@'%' ACCOUNT LOCK")
		_, err := pulse(t, open(t, options(db.DSN("", ""))))
		db.Exec("ALTER USER 'redleaf'@'%' ACCOUNT UNLOCK")
		refused(t, err, "4151", "unlock the account")
	})
	t.Run("row deleted and made again", func(t *testing.T) { // leaf S15, S16
		g := reserve(t, s, "x", 100, 0)
		db.Exec("DELETE FROM leaf_alloc WHERE biz_tag = 'x'")
		if _, err := s.Reserve(t.Context(), "x", 1, g.Hi); !errors.Is(err, segment.ErrNoTag) {
			t.Errorf("row deleted: %v", err)
		}
		db.Exec("INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('x', 1, 10)")
		var re *segment.RegressedError
		if _, err := s.Reserve(t.Context(), "x", 1, g.Hi); !errors.As(err, &re) || re.Row != 1 || re.Floor != g.Hi {
			t.Errorf("row made again at 1: %v", err)
		}
		if at, err := s.Fence(t.Context(), "x", g.Hi, nil); at != 1 || err != nil {
			t.Errorf("Fence: %d, %v", at, err)
		}
		if next := reserve(t, s, "x", 1, g.Hi); next.Lo != g.Hi {
			t.Errorf("after the fence: %d, want %d", next.Lo, g.Hi)
		}
	})
	t.Run("unreachable is told once", func(t *testing.T) {
		log := &logBuffer{}
		o := options(db.DSN("", ""))
		o.Log = logTo(log)
		s := open(t, o)
		awaitGrants(t, s)
		db.Stop()
		for range 5 {
			_, err := pulse(t, s)
			unavailable(t, err, db.Addr())
		}
		db.Start()
		awaitGrants(t, s)
		if n := bytes.Count([]byte(log.String()), []byte("can't be reached")); n > 2 || n < 1 {
			t.Errorf("%d lines: %s", n, log)
		}
		if n := bytes.Count([]byte(log.String()), []byte("answers again")); n != 1 {
			t.Errorf("%d lines: %s", n, log)
		}
	})
}

// leaf S17: two instances, each statement at the worst moment of the other: there is no moment between them.
func TestTwoInstancesNeverShare(t *testing.T) {
	t.Parallel()
	name := database(t, leafTable)
	p := proxy.Start(t, shared.db.Addr())
	p.Delay(3*time.Millisecond, 3*time.Millisecond)
	a, b := open(t, options(shared.db.DSNAt(p.Addr(), "", name))), open(t, options(shared.db.DSN("", name)))
	awaitGrants(t, a)
	awaitGrants(t, b)
	create(t, a, "hot", 1)
	d := draw(t, a, b)
	for d.count() < 500 {
		time.Sleep(time.Millisecond)
	}
	d.end()
	var sum int64
	for _, s := range d.all.spans["hot"] {
		sum += s.Len()
	}
	// At the end a few calls were given up by their callers, after the row had moved: holes, and nothing else.
	if bound := shared.db.QueryInt("SELECT max_id FROM " + name + ".leaf_alloc"); bound < sum+1 || bound > sum+1+4*7 {
		t.Errorf("granted %d IDs, the row stands at %d", sum, bound)
	}
}

// A refill is one round trip.
func TestOneRoundTrip(t *testing.T) {
	t.Parallel()
	db := services.StartMariaDB(t, services.MariaDBOptions{Create: true})
	db.Exec(leafTable)
	s := open(t, options(db.DSN("", "")))
	awaitGrants(t, s)
	create(t, s, "x", 1)
	reserve(t, s, "x", 1, 0)
	questions := func() int64 {
		return db.QueryInt("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'QUESTIONS'")
	}
	before := questions()
	for range 50 {
		reserve(t, s, "x", 10, 0)
	}
	if n := questions() - before; n > 52 {
		t.Errorf("50 refills took %d questions", n)
	}
}

// endingContext ends when it is asked for the left-th time whether it has ended: between two statements, that is.
type endingContext struct {
	context.Context
	end  context.CancelFunc
	left atomic.Int64
}

func (c *endingContext) Err() error {
	if c.left.Add(-1) < 0 {
		c.end()
	}
	return c.Context.Err()
}

// A caller that goes away between the statements of a probe or a fence leaves no transaction behind: the next statement on that connection
// would be part of it, and a grant that is never committed is granted again.
func TestCallerGoesAwayInTransaction(t *testing.T) {
	t.Parallel()
	name := database(t, leafTable)
	s := open(t, options(shared.db.DSN("", name)))
	awaitGrants(t, s)
	create(t, s, "x", 1)
	s.db.SetMaxOpenConns(1)
	var all owned
	probe := func(ctx context.Context) error {
		c, dc, err := take(t.Context(), s.db)
		if err != nil {
			return err
		}
		defer c.Close()
		return dc.probe(ctx)
	}
	floor := int64(0)
	fence := func(ctx context.Context) error {
		floor += 1000
		_, err := s.Fence(ctx, "x", floor, nil)
		return err
	}
	for i := range 60 {
		left, call := i/2, probe
		if i%2 == 1 {
			call = fence
		}
		ctx, end := context.WithCancel(t.Context())
		ending := &endingContext{Context: ctx, end: end}
		ending.left.Store(int64(left))
		err := call(ending)
		end()
		if left == 0 && err == nil {
			t.Error("the context that had ended was not looked at")
		}
		// What is granted next is committed when it is answered.
		g := reserve(t, s, "x", 10, 0)
		all.add(t, "x", g.Span)
		if bound := shared.db.QueryInt("SELECT max_id FROM " + name + ".leaf_alloc"); bound < g.Hi {
			t.Fatalf("call %d: [%d, %d) was granted and the row stands at %d (%v)", i, g.Lo, g.Hi, bound, err)
		}
	}
}
