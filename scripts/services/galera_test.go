//go:build galera

package services

import "testing"

// A cluster takes half a minute to start, be killed and start again, so it has a tag of its own: make test-galera.
func TestGalera(t *testing.T) {
	g := StartGalera(t, 3, MariaDBOptions{})
	first := g.Nodes[0]
	first.Exec(leafTable)
	first.Exec("INSERT INTO leaf_alloc (biz_tag) VALUES ('order')")
	for i, m := range g.Nodes {
		db := open(t, m.DSN("", ""))
		if _, err := db.Exec("SET wsrep_sync_wait = 15"); err != nil {
			t.Fatal(err)
		}
		until(t, "the row on every node", func() bool {
			return m.QueryInt("SELECT COALESCE(MAX(max_id), 0) FROM leaf_alloc") == int64(1+1000*i)
		})
		if hi := reserve(t, db, "order", 1000); hi != int64(1001+1000*i) {
			t.Errorf("node %d grants up to %d, want %d", i+1, hi, 1001+1000*i)
		}
	}
	g.Nodes[1].Kill()
	if hi := reserve(t, open(t, first.DSN("", "")), "order", 1000); hi != 4001 {
		t.Errorf("two of three grant up to %d, want 4001", hi)
	}
	g.Nodes[1].Start()
	g.KillAll()
	g.StartAll()
	if hi := reserve(t, open(t, g.Nodes[2].DSN("", "")), "order", 1000); hi != 5001 {
		t.Errorf("after a cold start the range ends at %d, want 5001", hi)
	}
}
