package mysql

import (
	"strings"
	"testing"
)

// FuzzDSN: whatever stands around a password, no error shows it (I13), and a DSN that is taken names a database and an address.
func FuzzDSN(f *testing.F) {
	for _, s := range []string{"tcp(127.0.0.1:3306)/leaf", "unix(/run/mysqld.sock)/leaf?timeout=1s", "/", "tcp(a:1/leaf", "@tcp(a:1)/leaf?%zz", ""} {
		f.Add("redleaf", s)
	}
	f.Fuzz(func(t *testing.T, user, rest string) {
		const password = "Zq9-hidden-Zq9"
		e, err := parseDSN(user+":"+password+"@"+rest, &Options{})
		if err != nil {
			if strings.Contains(err.Error(), password) {
				t.Fatalf("the error shows the password: %v", err)
			}
			return
		}
		if e.addr == "" || e.config.DBName == "" {
			t.Fatalf("taken without address or database: %+v", e.addr)
		}
	})
}

// FuzzTable: what is taken as a table's name is quoted so that it can't end its quotes.
func FuzzTable(f *testing.F) {
	for _, s := range []string{"leaf_alloc", "db.leaf_alloc", "a`b", "`a`", "", ".", "a.b.c"} {
		f.Add(s, "leaf")
	}
	f.Fuzz(func(t *testing.T, s, db string) {
		tab, err := parseTable(s, db)
		if err != nil {
			return
		}
		if tab.name == "" || strings.Count(strings.ReplaceAll(tab.String(), "``", ""), "`") != 4 {
			t.Fatalf("%q in %q becomes %s", s, db, tab)
		}
	})
}
