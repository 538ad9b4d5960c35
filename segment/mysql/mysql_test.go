package mysql

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"redleaf/scripts/services"
	"redleaf/segment"
	"redleaf/segment/storetest"
)

// leafTable is the table as Leaf's README makes it; the server's default collation ignores case.
const leafTable = "CREATE TABLE leaf_alloc (biz_tag varchar(128) NOT NULL DEFAULT '', max_id bigint(20) NOT NULL DEFAULT '1'," +
	" step int(11) NOT NULL, description varchar(256) DEFAULT NULL," +
	" update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, PRIMARY KEY (biz_tag)) ENGINE=InnoDB"

const check = 40 * time.Millisecond

// shared is the server of the tests that leave it as it is. Each of them has a database of its own.
var shared struct {
	sync.Mutex
	db *services.MariaDB
	n  int
}

type mainT struct{ cleanups []func() }

func (m *mainT) Helper()                   {}
func (m *mainT) Logf(f string, a ...any)   { fmt.Printf(f+"\n", a...) }
func (m *mainT) Errorf(f string, a ...any) { m.Logf(f, a...) }
func (m *mainT) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (m *mainT) Cleanup(f func())          { m.cleanups = append(m.cleanups, f) }
func (m *mainT) Failed() bool              { return false }
func (m *mainT) Name() string              { return "TestMain" }

func TestMain(m *testing.M) {
	t := &mainT{}
	code := func() int {
		defer func() {
			for i := len(t.cleanups) - 1; i >= 0; i-- {
				t.cleanups[i]()
			}
		}()
		shared.db = services.StartMariaDB(t, services.MariaDBOptions{Create: true})
		return m.Run()
	}()
	os.Exit(code)
}

// database makes a database of its own on the shared server, with a table made by ddl, and answers its name.
func database(t *testing.T, ddl string) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	shared.n++
	name := fmt.Sprintf("t%d", shared.n)
	exec := func(q string) {
		t.Helper()
		if _, err := shared.db.Root().Exec(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	exec("CREATE DATABASE " + name)
	exec("GRANT SELECT, INSERT, UPDATE, CREATE ON " + name + ".* TO '" + services.User + "'@'%'")
	exec(strings.Replace(ddl, "leaf_alloc", name+".leaf_alloc", 1))
	return name
}

func sqlOn(t *testing.T, db *services.MariaDB, q string, args ...any) {
	t.Helper()
	if _, err := db.Root().Exec(q, args...); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}

func options(dsn string) Options {
	return Options{DSNs: []string{dsn}, Check: check, FailoverSkip: 10_000_000, AutoCreate: true, Log: zerolog.Nop()}
}

func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// opened is a store on the shared server that gives grants.
func opened(t *testing.T, name string) *Store {
	t.Helper()
	s := open(t, options(shared.db.DSN("", name)))
	awaitGrants(t, s)
	return s
}

// awaitGrants pulses until grants are given.
func awaitGrants(t *testing.T, s segment.Store) segment.Pulse {
	t.Helper()
	var last error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		p, err := pulse(t, s)
		if err == nil && p.Paused == 0 {
			return p
		}
		last = err
	}
	t.Fatalf("no grants after 30 s: %v", last)
	return segment.Pulse{}
}

func pulse(t *testing.T, s segment.Store) (segment.Pulse, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return s.Pulse(ctx)
}

func create(t *testing.T, s segment.Store, tag string, bound int64) {
	t.Helper()
	if _, created, err := s.Create(t.Context(), segment.Row{Tag: tag, Max: bound, Step: 10}, false); err != nil || !created {
		t.Fatalf("Create(%q): %v, %v", tag, created, err)
	}
}

func reserve(t *testing.T, s segment.Store, tag string, n, floor int64) segment.Grant {
	t.Helper()
	g, err := s.Reserve(t.Context(), tag, n, floor)
	if err != nil {
		t.Fatalf("Reserve(%q, %d, %d): %v", tag, n, floor, err)
	}
	return g
}

func mentions(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", want)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), services.Password) {
		t.Errorf("error %q shows the password", err) // I13
	}
}

func unavailable(t *testing.T, err error, want ...string) {
	t.Helper()
	var un *segment.UnavailableError
	if !errors.As(err, &un) {
		t.Errorf("error is %T (%v), want *UnavailableError", err, err)
	}
	mentions(t, err, want...)
}

func refused(t *testing.T, err error, want ...string) {
	t.Helper()
	var ref *segment.RefusedError
	if !errors.As(err, &ref) {
		t.Errorf("error is %T (%v), want *RefusedError", err, err)
	}
	mentions(t, err, want...)
}

func schema(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../scripts/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	s := string(b)
	s = s[strings.Index(s, "CREATE TABLE IF NOT EXISTS leaf_alloc"):]
	return strings.Replace(s[:strings.Index(s, ";")], "IF NOT EXISTS ", "", 1)
}

func TestConformance(t *testing.T) {
	for name, ddl := range map[string]string{"Schema": schema(t), "Leaf": leafTable} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) (segment.Store, func() segment.Store) {
				db := database(t, ddl)
				again := func() segment.Store {
					s, err := Open(options(shared.db.DSN("", db)))
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
				return again(), again
			})
			storetest.RunShared(t, func(t *testing.T) (a, b segment.Store) {
				db := database(t, ddl)
				a, err := Open(options(shared.db.DSN("", db)))
				if err != nil {
					t.Fatal(err)
				}
				b, err = Open(options(shared.db.DSN("", db)))
				if err != nil {
					t.Fatal(err)
				}
				return a, b
			})
		})
	}
}
