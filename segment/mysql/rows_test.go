package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"redleaf/segment"
)

// leaf R6: a table as shops ship it.
const shopTable = "CREATE TABLE leaf_alloc (id int unsigned NOT NULL AUTO_INCREMENT, description varchar(256) DEFAULT NULL," +
	" update_time datetime DEFAULT NULL, random_step int NOT NULL DEFAULT 3, max_id bigint unsigned NOT NULL DEFAULT 1, step int unsigned NULL," +
	" biz_tag varchar(64) CHARACTER SET utf8 COLLATE utf8_general_ci NOT NULL, PRIMARY KEY (id), UNIQUE KEY tag (biz_tag)) ENGINE=InnoDB"

func TestShopTable(t *testing.T) { // leaf R6
	t.Parallel()
	name := database(t, shopTable)
	sqlOn(t, shared.db, "SET SESSION sql_mode=''; INSERT INTO "+name+".leaf_alloc (biz_tag, max_id, step, update_time) VALUES ('Order', 1568693084, 100, '0000-00-00 00:00:00'); SET SESSION sql_mode=DEFAULT")
	s := opened(t, name)
	g := reserve(t, s, "Order", 100, 0)
	if g.Lo != 1568693084 || g.Hi != 1568693184 {
		t.Fatalf("granted [%d, %d)", g.Lo, g.Hi)
	}
	if done, err := s.GiveBack(t.Context(), "Order", segment.Span{Lo: 1568693100, Hi: g.Hi}, g.Server); !done || err != nil {
		t.Errorf("GiveBack: %v, %v", done, err)
	}
	if g := reserve(t, s, "Order", 1, 1568693100); g.Lo != 1568693100 {
		t.Errorf("after the tail went back: %d", g.Lo)
	}
	rows, err := s.Rows(t.Context(), []string{"Order"})
	if r := rows["Order"]; err != nil || r.Step != 100 || r.Desc != "" || r.Err != nil || !r.Updated.IsZero() {
		t.Errorf("row %+v, %v", r, err)
	}
	if at, moved, err := s.Advance(t.Context(), "Order", 1<<62); err != nil || !moved || at != 1568693101 {
		t.Errorf("Advance: %d, %v, %v", at, moved, err)
	}
	create(t, s, "user", 7)
	if at, err := s.Fence(t.Context(), "user", 9, nil); at != 7 || err != nil {
		t.Errorf("Fence: %d, %v", at, err)
	}
}

// Rows that can't be used name the column; they hide no other row and are never moved.
func TestBadRows(t *testing.T) { // leaf S9, peers S22
	t.Parallel()
	name := database(t, strings.Replace(shopTable, "step int unsigned NULL", "step bigint NULL", 1))
	for _, r := range []struct{ tag, max, step string }{
		{"good", "5", "10"}, {"null step", "5", "NULL"}, {"zero step", "5", "0"}, {"negative step", "5", "-5"}, {"zero", "0", "10"},
		{"huge", "9223372036854775808", "10"}, {"most", "18446744073709551615", "10"}, {"wide step", "5", "4611686018427387904"},
	} {
		sqlOn(t, shared.db, fmt.Sprintf("INSERT INTO %s.leaf_alloc (biz_tag, max_id, step) VALUES ('%s', %s, %s)", name, r.tag, r.max, r.step))
	}
	s := opened(t, name)
	for _, c := range []struct{ tag, column, value string }{
		{"null step", "step", "NULL"}, {"zero step", "step", "0"}, {"negative step", "step", "-5"}, {"zero", "max_id", "0"},
		{"huge", "max_id", "9223372036854775808"}, {"most", "max_id", "18446744073709551615"},
	} {
		rows, err := s.Rows(t.Context(), []string{c.tag, "good"})
		if err != nil || rows["good"].Max != 5 {
			t.Errorf("Rows beside '%s': %+v, %v", c.tag, rows, err)
		}
		var st *segment.StepError
		if !errors.As(rows[c.tag].Err, &st) || st.Tag != c.tag || st.Column != c.column || st.Value != c.value {
			t.Errorf("'%s' has %v", c.tag, rows[c.tag].Err)
		}
		if c.column != "max_id" {
			continue
		}
		before := shared.db.QueryString("SELECT max_id FROM "+name+".leaf_alloc WHERE biz_tag = ?", c.tag)
		if _, err := s.Reserve(t.Context(), c.tag, 10, 0); !errors.As(err, &st) {
			t.Errorf("Reserve('%s'): %v", c.tag, err)
		}
		if c.tag == "zero" {
			var re *segment.RegressedError
			if _, err := s.Reserve(t.Context(), c.tag, 10, 50); !errors.As(err, &re) || re.Row != 0 {
				t.Errorf("Reserve('zero') with a floor: %v", err)
			}
		}
		if after := shared.db.QueryString("SELECT max_id FROM "+name+".leaf_alloc WHERE biz_tag = ?", c.tag); after != before {
			t.Errorf("'%s' moved from %s to %s", c.tag, before, after)
		}
	}
	list, err := s.List(t.Context(), "", 100)
	if err != nil || len(list) != 8 {
		t.Errorf("List: %d rows, %v", len(list), err)
	}
	// NULL in max_id, where the column allows it.
	sqlOn(t, shared.db, "DELETE FROM "+name+".leaf_alloc WHERE max_id > 100; ALTER TABLE "+name+".leaf_alloc MODIFY max_id BIGINT NULL; UPDATE "+name+".leaf_alloc SET max_id = NULL WHERE biz_tag = 'zero'")
	var st *segment.StepError
	if _, err := s.Reserve(t.Context(), "zero", 10, 0); !errors.As(err, &st) || st.Value != "NULL" {
		t.Errorf("Reserve of NULL: %v", err)
	}
	if _, _, err := s.Advance(t.Context(), "zero", 10); !errors.As(err, &st) || st.Value != "NULL" {
		t.Errorf("Advance of NULL: %v", err)
	}
	if _, err := s.Fence(t.Context(), "zero", 10, nil); !errors.As(err, &st) || st.Value != "NULL" {
		t.Errorf("Fence of NULL: %v", err)
	}
	sqlOn(t, shared.db, "UPDATE "+name+".leaf_alloc SET max_id = -100 WHERE biz_tag = 'zero'")
	if _, err := s.Reserve(t.Context(), "zero", 1000, 0); !errors.As(err, &st) || st.Value != "-100" {
		t.Errorf("Reserve of -100: %v", err)
	}
	if at, err := s.Fence(t.Context(), "zero", 77, nil); at != 0 || err != nil {
		t.Errorf("Fence of -100: %d, %v", at, err)
	}
	if g := reserve(t, s, "zero", 1, 77); g.Lo != 77 {
		t.Errorf("after the fence: %d", g.Lo)
	}
}

// leaf S27, S28: a name is its bytes, whatever the collation thinks, and a clash is named.
func TestNamesThatClash(t *testing.T) {
	t.Parallel()
	for collation, clashes := range map[string]bool{"utf8mb4_general_ci": true, "utf8mb4_unicode_ci": true, "utf8mb4_bin": false, "latin1": true, "binary": false} {
		t.Run(collation, func(t *testing.T) {
			ddl := strings.Replace(leafTable, "biz_tag varchar(128)", "biz_tag varchar(128) CHARACTER SET utf8mb4 COLLATE "+collation, 1)
			switch collation {
			case "latin1":
				ddl = strings.Replace(leafTable, "biz_tag varchar(128)", "biz_tag varchar(128) CHARACTER SET latin1", 1)
			case "binary":
				ddl = strings.Replace(leafTable, "biz_tag varchar(128)", "biz_tag varbinary(512)", 1)
			}
			s := opened(t, database(t, ddl))
			create(t, s, "order", 100)
			create(t, s, "com.order/a b", 5)
			var clash *segment.ClashError
			_, err := s.Reserve(t.Context(), "Order", 5, 0)
			if clashes && (!errors.As(err, &clash) || clash.Tag != "Order" || clash.Row != "order") || !clashes && !errors.Is(err, segment.ErrNoTag) {
				t.Errorf("Reserve(Order): %v", err)
			}
			rows, err := s.Rows(t.Context(), []string{"Order", "ORDER", "none", "order"})
			if err != nil || rows["order"].Max != 100 {
				t.Errorf("Rows: %+v, %v", rows, err)
			}
			for _, tag := range []string{"Order", "ORDER"} {
				if got := errors.As(rows[tag].Err, &clash) && clash.Tag == tag && clash.Row == "order"; got != clashes {
					t.Errorf("Rows(%s): %+v", tag, rows[tag])
				}
			}
			if _, ok := rows["none"]; ok {
				t.Errorf("Rows(none): %+v", rows["none"])
			}
			_, made, err := s.Create(t.Context(), segment.Row{Tag: "Order", Max: 1, Step: 1}, true)
			if clashes && (made || !errors.As(err, &clash)) || !clashes && (!made || err != nil) {
				t.Errorf("Create(Order): %v, %v", made, err)
			}
			if g := reserve(t, s, "com.order/a b", 1, 0); g.Lo != 5 {
				t.Errorf("com.order: %d", g.Lo)
			}
			if _, err := s.Reserve(t.Context(), "com", 1, 0); !errors.Is(err, segment.ErrNoTag) {
				t.Errorf("com: %v", err)
			}
			// Names the column's character set does not have.
			_, err = s.Reserve(t.Context(), "订单", 1, 0)
			if !errors.Is(err, segment.ErrNoTag) {
				t.Errorf("订单: %v", err)
			}
			_, made, err = s.Create(t.Context(), segment.Row{Tag: "订单", Max: 1, Step: 1}, false)
			if collation == "latin1" {
				refused(t, err, "订单", "utf8mb4")
				if rows, err := s.Rows(t.Context(), []string{"a", "订单", "order", "b"}); err != nil || rows["order"].Max != 100 || len(rows) != 1 {
					t.Errorf("Rows beside a name that can't be: %+v, %v", rows, err)
				}
			} else if !made || err != nil {
				t.Errorf("Create(订单): %v, %v", made, err)
			}
		})
	}
}

func TestCreateRefused(t *testing.T) {
	t.Parallel()
	name := database(t, strings.Replace(leafTable, "description varchar(256)", "owner varchar(20) NOT NULL, description varchar(20)", 1))
	s := opened(t, name)
	row := segment.Row{Tag: "a", Max: 1, Step: 10}
	_, _, err := s.Create(t.Context(), row, false)
	refused(t, err, "1364", "owner", "default")
	sqlOn(t, shared.db, "ALTER TABLE "+name+".leaf_alloc DROP owner")
	row.Desc = strings.Repeat("x", 21)
	_, _, err = s.Create(t.Context(), row, false)
	refused(t, err, "1406", "description")
	row.Desc, row.Tag = "", strings.Repeat("x", 129)
	_, _, err = s.Create(t.Context(), row, false)
	refused(t, err, "1406", "tag 'xxx")
	row.Tag, row.Step = "a", 1<<40
	_, _, err = s.Create(t.Context(), row, false)
	var st *segment.StepError
	if !errors.As(err, &st) || st.Column != "step" {
		t.Errorf("a step that the column can't hold: %v", err)
	}
	sqlOn(t, shared.db, "REVOKE INSERT ON "+name+".* FROM redleaf")
	s2 := opened(t, name)
	_, _, err = s2.Create(t.Context(), segment.Row{Tag: "b", Max: 1, Step: 1}, false)
	refused(t, err, "1142", "INSERT")
	sqlOn(t, shared.db, "GRANT INSERT ON "+name+".* TO redleaf")
}

// A big table is listed page by page in byte order under any collation, without sorting it for each page.
func TestListBig(t *testing.T) {
	t.Parallel()
	for _, binary := range []bool{true, false} {
		t.Run(fmt.Sprint("binary=", binary), func(t *testing.T) {
			ddl := leafTable
			if binary {
				ddl = schema(t)
			}
			name := database(t, ddl)
			sqlOn(t, shared.db, "INSERT INTO "+name+".leaf_alloc (biz_tag, step) SELECT CONCAT(IF(seq % 2, 'a', 'B'), seq), 10 FROM seq_1_to_30000")
			sqlOn(t, shared.db, "ANALYZE TABLE "+name+".leaf_alloc")
			s := opened(t, name)
			var got []string
			start := time.Now()
			for after := ""; ; {
				rows, err := s.List(t.Context(), after, 1000)
				if err != nil {
					t.Fatal(err)
				}
				if len(rows) == 0 {
					break
				}
				for _, r := range rows {
					if r.Max != 1 || r.Step != 10 {
						t.Fatalf("%+v", r)
					}
					got = append(got, r.Tag)
				}
				after = got[len(got)-1]
			}
			t.Logf("%d names in %v", len(got), time.Since(start))
			if len(got) != 30000 || !slices.IsSorted(got) {
				t.Errorf("%d names, sorted %v", len(got), slices.IsSorted(got))
			}
			if n, err := s.Count(t.Context()); n != 30000 || err != nil {
				t.Errorf("Count: %d, %v", n, err)
			}
			// Deep in the table, one page is one short range of the index.
			if binary {
				plan := shared.db.QueryString("EXPLAIN FORMAT=JSON SELECT biz_tag, max_id, step FROM " + name + ".leaf_alloc WHERE biz_tag > 'a2' ORDER BY biz_tag LIMIT 10")
				if strings.Contains(plan, "filesort") {
					t.Errorf("the page is sorted: %s", plan)
				}
				return
			}
			// A tag made here is listed at once, one deleted is no hole in the pages.
			create(t, s, "A-first", 1)
			if rows, err := s.List(t.Context(), "", 1); err != nil || len(rows) != 1 || rows[0].Tag != "A-first" {
				t.Errorf("after Create: %+v, %v", rows, err)
			}
			sqlOn(t, shared.db, "DELETE FROM "+name+".leaf_alloc WHERE biz_tag IN ('A-first', 'B10')")
			if rows, err := s.List(t.Context(), "", 1); err != nil || len(rows) != 1 || rows[0].Tag == "A-first" {
				t.Errorf("after DELETE: %+v, %v", rows, err)
			}
			// A window smaller than the table.
			names, more, err := s.namesAfter(t.Context(), "B2", 100)
			if err != nil || !more || len(names) != 100 || names[0] != "B20" || !slices.IsSorted(names) {
				t.Errorf("namesAfter: %d, %v, %v", len(names), more, err)
			}
			w := window{after: "B2", names: names, more: more, at: time.Now()}
			if _, ok := w.find("B1", 10); ok {
				t.Error("a window was used below its begin")
			}
			if _, ok := w.find(names[95], 10); ok {
				t.Error("a window was used past its end")
			}
			if i, ok := w.find(names[89], 10); !ok || i != 90 {
				t.Errorf("find: %d, %v", i, ok)
			}
		})
	}
}

func TestCallerGoesAway(t *testing.T) {
	t.Parallel()
	name := database(t, leafTable)
	s := opened(t, name)
	create(t, s, "a", 1)
	// The row is locked by somebody else.
	tx, err := shared.db.Root().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("UPDATE " + name + ".leaf_alloc SET step = 11"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = s.Reserve(ctx, "a", 10, 0)
	unavailable(t, err, "did not answer in time")
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("returned after %v", d)
	}
	_, err = s.Reserve(t.Context(), "a", 10, 0) // and without a deadline the server's own limit ends it
	unavailable(t, err, "1205")
	tx.Rollback()
	// The abandoned statement may be carried out or not: what comes next is disjoint from both. (I3)
	if g := reserve(t, s, "a", 10, 0); g.Lo != 1 && g.Lo != 11 {
		t.Errorf("[%d, %d)", g.Lo, g.Hi)
	}
}

func TestClosed(t *testing.T) {
	t.Parallel()
	s := opened(t, database(t, leafTable))
	s.Close()
	if _, err := s.Reserve(t.Context(), "a", 1, 0); !errors.Is(err, segment.ErrClosed) {
		t.Errorf("Reserve: %v", err)
	}
	if _, err := s.Pulse(t.Context()); !errors.Is(err, segment.ErrClosed) {
		t.Errorf("Pulse: %v", err)
	}
}
