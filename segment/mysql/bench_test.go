package mysql

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"redleaf/scripts/services"
)

func benchStore(b *testing.B, rows string) (*Store, *services.MariaDB) {
	db := services.StartMariaDB(b, services.MariaDBOptions{Create: true, Args: []string{"--innodb-buffer-pool-size=512M", "--innodb-log-file-size=256M"}})
	db.Exec(leafTable)
	db.Exec("INSERT INTO leaf_alloc (biz_tag, max_id, step) SELECT CONCAT('tag', seq), 1, 1000 FROM " + rows)
	s, err := Open(Options{DSNs: []string{db.DSN("", "")}, Check: check, FailoverSkip: 10_000_000, Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	for p, err := s.Pulse(b.Context()); err != nil || p.Paused > 0; p, err = s.Pulse(b.Context()) {
		time.Sleep(time.Millisecond)
	}
	return s, db
}

// BenchmarkSkipMillion is what a failover costs a table of a million tags: nothing is granted meanwhile.
func BenchmarkSkipMillion(b *testing.B) {
	s, db := benchStore(b, "seq_1_to_1000000")
	for b.Loop() {
		db.Exec("UPDATE redleaf_server SET identity = 'mariadb:another/1'")
		for {
			if _, err := s.Pulse(b.Context()); err == nil {
				break
			}
		}
	}
}

// BenchmarkPulseMillion is a heartbeat beside a table of a million tags.
func BenchmarkPulseMillion(b *testing.B) {
	s, _ := benchStore(b, "seq_1_to_1000000")
	for b.Loop() {
		if _, err := s.Pulse(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReserve(b *testing.B) {
	s, _ := benchStore(b, "seq_1_to_1000")
	for b.Loop() {
		if _, err := s.Reserve(b.Context(), "tag7", 1, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkListMillion is a page of a million tags on a table whose collation is not the order of bytes.
func BenchmarkListMillion(b *testing.B) {
	s, db := benchStore(b, "seq_1_to_1000000")
	db.Exec("ANALYZE TABLE leaf_alloc")
	if _, err := s.Pulse(b.Context()); err != nil {
		b.Fatal(err)
	}
	after := ""
	for b.Loop() {
		rows, err := s.List(b.Context(), after, 100)
		if err != nil {
			b.Fatal(err)
		}
		if after = ""; len(rows) > 0 {
			after = rows[len(rows)-1].Tag
		}
	}
}
