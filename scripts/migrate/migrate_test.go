// Package migrate has no code: its tests move counters of real servers with the scripts here, under load.
package migrate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"redleaf/scripts/process"
	"redleaf/scripts/services"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// script runs from-redis.sh and returns what it printed on both outputs.
func script(t *testing.T, from, to, stdin string, env []string, args ...string) (out, told string, err error) {
	t.Helper()
	cli := func(addr string) string {
		host, port, _ := strings.Cut(addr, ":")
		return "redis-cli -h " + host + " -p " + port
	}
	cmd := exec.Command("sh", append([]string{"./from-redis.sh"}, args...)...)
	cmd.Env = append(os.Environ(), append([]string{"FROM=" + cli(from), "TO=" + cli(to)}, env...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

func must(t *testing.T, from, to, stdin string, args ...string) (out, told string) {
	t.Helper()
	out, told, err := script(t, from, to, stdin, nil, args...)
	if err != nil {
		t.Fatalf("from-redis.sh %s: %v\n%s%s", strings.Join(args, " "), err, out, told)
	}
	return out, told
}

// seen collects numbers by key, each once.
type seen struct {
	mu   sync.Mutex
	ids  map[string]map[int64]string
	errs []string
}

func (s *seen) add(key string, id int64, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[key] == nil {
		s.ids[key] = map[int64]string{}
	}
	if was, twice := s.ids[key][id]; twice {
		s.errs = append(s.errs, fmt.Sprintf("%s %d: first from %s, then from %s", key, id, was, who))
	}
	s.ids[key][id] = who
}

func (s *seen) highest(key string) (top int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.ids[key] {
		top = max(top, id)
	}
	return top
}

// TestFromRedisUnderLoad: clients go on counting while the counters are taken, and change over when Redis refuses them.
func TestFromRedisUnderLoad(t *testing.T) {
	redis := services.StartRedis(t)
	p := process.Start(t, process.Options{Set: []string{"segment.auto_create=[]"}})
	keys := []string{"order:eu", "order:us", `order:"quoted" \ 订单`}
	for i, k := range keys {
		redis.Do("SET", k, strconv.Itoa(1000*(i+1)))
	}
	s := &seen{ids: map[string]map[int64]string{}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for c := range 6 {
		key := keys[c%len(keys)]
		wg.Go(func() {
			from, after := "redis", 0
			for ctx.Err() == nil && after < 200 {
				addr := map[string]string{"redis": redis.Addr(), "redleaf": p.Addr}[from]
				reply, err := process.Do(addr, 20*time.Second, "INCR", key)
				if err != nil {
					t.Errorf("%s: %v", from, err)
					return
				}
				id, err := strconv.ParseInt(reply, 10, 64)
				switch {
				case err == nil:
					s.add(key, id, from)
					if from == "redleaf" {
						after++
					}
				case from == "redis" && strings.HasPrefix(reply, "ERR value is not an integer"):
					from = "redleaf" // taken: this client moves, and waits there until the counter is loaded
				case from == "redleaf" && strings.HasPrefix(reply, "NOTAG"):
					time.Sleep(5 * time.Millisecond)
				default:
					t.Errorf("%s answered %s", from, reply)
					return
				}
			}
		})
	}
	counters, told := must(t, redis.Addr(), p.Addr, "", "list", "order:*")
	if n := strings.Count(counters, "\n"); n != len(keys) || told != "3 counters, 0 keys that expire and were left out, 0 that are no counters\n" {
		t.Errorf("list: %q %q", counters, told)
	}
	taken, told := must(t, redis.Addr(), p.Addr, counters, "take")
	if told != "3 taken\n" {
		t.Errorf("take: %q", told)
	}
	_, told = must(t, redis.Addr(), p.Addr, taken, "load")
	if told != "3 loaded, 0 were there before, 0 failed\n" {
		t.Errorf("load: %q", told)
	}
	wg.Wait()
	if len(s.errs) > 0 {
		t.Errorf("%d numbers were given twice: %q", len(s.errs), s.errs[:min(len(s.errs), 5)])
	}
	for i, k := range keys {
		// Nothing is missing either: with the last number of Redis known to the digit, Redleaf goes on with the next.
		if top := s.highest(k); top != int64(1000*(i+1)+len(s.ids[k])) {
			t.Errorf("%s: %d numbers up to %d", k, len(s.ids[k]), top)
		}
		if reply := redis.Do("INCR", k); !strings.HasPrefix(reply, "ERR value is not an integer") {
			t.Errorf("Redis still counts %s: %s", k, reply)
		}
	}
	// Every step may be run again and changes nothing.
	again, _ := must(t, redis.Addr(), p.Addr, taken, "take")
	if again != taken {
		t.Errorf("take again: %q, first %q", again, taken)
	}
	if _, told = must(t, redis.Addr(), p.Addr, taken, "load"); told != "0 loaded, 3 were there before, 0 failed\n" {
		t.Errorf("load again: %q", told)
	}
}

// TestFromRedisWhatItFinds: other types, expiring keys, large numbers, odd names, a margin, and the way back.
func TestFromRedisWhatItFinds(t *testing.T) {
	t.Parallel()
	redis := services.StartRedis(t)
	p := process.Start(t, process.Options{})
	for _, c := range [][]string{
		{"SET", "zero", "0"}, {"SET", "large", "9007199254740993"}, {"SET", "larger", "9223372036854770000"}, {"SET", "daily:1", "5"}, {"EXPIRE", "daily:1", "1000"},
		{"SET", "text", "hello"}, {"SET", "negative", "-5"}, {"SET", "padded", "007"}, {"SET", "empty", ""}, {"LPUSH", "list", "1"}, {"SET", "line\nend", "7"}, {"SET", "plain", "41"},
	} {
		redis.Do(c...)
	}
	counters, told := must(t, redis.Addr(), p.Addr, "", "list")
	want := "9007199254740993 \"large\"\n9223372036854770000 \"larger\"\n7 \"line\\nend\"\n41 \"plain\"\n0 \"zero\"\n"
	if counters != want || told != "5 counters, 1 keys that expire and were left out, 5 that are no counters\n" {
		t.Errorf("list: %q\nwant  %q\n%q", counters, want, told)
	}
	if out, _, err := script(t, redis.Addr(), p.Addr, "", []string{"EXPIRING=1"}, "list", "daily:*"); err != nil || out != "5 \"daily:1\"\n" {
		t.Errorf("EXPIRING=1: %v %q", err, out)
	}
	taken, _ := must(t, redis.Addr(), p.Addr, counters, "take")
	_, told, err := script(t, redis.Addr(), p.Addr, taken, []string{"MARGIN=1000"}, "load")
	if err == nil || !strings.Contains(told, `not loaded: "line\nend": ERR the key "line\nend" holds a control character`) || !strings.Contains(told, "4 loaded, 0 were there before, 1 failed") {
		t.Errorf("load: %v %q", err, told)
	}
	for key, next := range map[string]string{"zero": "1001", "large": "9007199254741994", "larger": "9223372036854771001", "plain": "1042"} {
		if got := p.Do("INCR", key); got != next {
			t.Errorf("INCR %s answered %s, want %s", key, got, next)
		}
	}
	if _, told := must(t, redis.Addr(), p.Addr, taken, "undo"); told != "5 put back\n" {
		t.Errorf("undo: %q", told)
	}
	if got := redis.Do("INCR", "plain"); got != "42" {
		t.Errorf("after undo INCR answered %s, want 42", got)
	}
	// Nobody there, a wrong margin, no step: a word each, and nothing done.
	for name, c := range map[string]struct {
		from, to string
		env      []string
		args     []string
		want     string
	}{
		"no Redis":     {"127.0.0.1:1", p.Addr, nil, []string{"list"}, "did not work"},
		"no Redleaf":   {redis.Addr(), "127.0.0.1:1", nil, []string{"load"}, "answered only 0 of 1 commands"},
		"a bad margin": {redis.Addr(), p.Addr, []string{"MARGIN=-5"}, []string{"load"}, "MARGIN is '-5'"},
	} {
		if _, told, err := script(t, c.from, c.to, "41 \"plain\"\n", c.env, c.args...); err == nil || !strings.Contains(told, c.want) {
			t.Errorf("%s: %v %q", name, err, told)
		}
	}
	if out, _, err := script(t, redis.Addr(), p.Addr, "", nil, "help"); err == nil || !strings.Contains(out, "./from-redis.sh take < counters > taken") {
		t.Errorf("usage: %v %q", err, out)
	}
}

// TestFromRedisMany: a thousand counters are a matter of seconds.
func TestFromRedisMany(t *testing.T) {
	t.Parallel()
	redis := services.StartRedis(t)
	p := process.Start(t, process.Options{})
	cli := exec.Command("redis-cli", "-p", redis.Addr()[strings.LastIndex(redis.Addr(), ":")+1:])
	var in strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&in, "SET k:%05d %d\n", i, i+1)
	}
	cli.Stdin = strings.NewReader(in.String())
	if out, err := cli.CombinedOutput(); err != nil {
		t.Fatalf("%v %.200s", err, out)
	}
	began := time.Now()
	counters, _ := must(t, redis.Addr(), p.Addr, "", "list")
	taken, _ := must(t, redis.Addr(), p.Addr, counters, "take")
	_, told := must(t, redis.Addr(), p.Addr, taken, "load")
	if told != "1000 loaded, 0 were there before, 0 failed\n" {
		t.Errorf("%q", told)
	}
	t.Logf("1000 counters in %v", time.Since(began).Round(time.Millisecond))
	for _, i := range []int{0, 123, 999} {
		if got := p.Do("INCR", fmt.Sprintf("k:%05d", i)); got != strconv.Itoa(i+2) {
			t.Errorf("k:%05d goes on with %s, want %d", i, got, i+2)
		}
	}
}

// idgoTable is a key of idgo as it makes one.
func idgoTable(db *services.MariaDB, key string, id uint64) {
	name := "`" + strings.ReplaceAll(key, "`", "``") + "`"
	db.Exec("CREATE TABLE " + name + " (id bigint(20) unsigned NOT NULL auto_increment, PRIMARY KEY (id)) ENGINE=Innodb DEFAULT CHARSET=utf8")
	db.Exec(fmt.Sprintf("INSERT INTO %s(id) VALUES(%d)", name, id))
	db.Exec("INSERT INTO `__idgo__`(k) VALUES(?)", key)
}

// TestFromIdgo moves the tables of a live idgo, whose next range then fails.
func TestFromIdgo(t *testing.T) {
	t.Parallel()
	db := services.StartMariaDB(t, services.MariaDBOptions{})
	db.Load(read(t, "../schema.sql"))
	db.Exec("CREATE TABLE `__idgo__` (k VARCHAR(255) NOT NULL, PRIMARY KEY (k)) ENGINE=Innodb DEFAULT CHARSET=utf8")
	idgoTable(db, "order", 4000)
	idgoTable(db, "with-dash and `tick", 0)
	idgoTable(db, "users", 123456789012)
	db.Exec("INSERT INTO `__idgo__`(k) VALUES('gone')")
	db.Exec("CREATE TABLE `empty` (id bigint(20) unsigned NOT NULL auto_increment, PRIMARY KEY (id))")
	db.Exec("INSERT INTO `__idgo__`(k) VALUES('empty')")
	db.Load(read(t, "from-idgo.sql"))
	for range 2 { // the second time changes nothing
		db.Load("CALL redleaf_from_idgo('leaf_alloc', 100000, 500)")
		for tag, want := range map[string]int64{"order": 104001, "with-dash and `tick": 100002 /* AUTO_INCREMENT made 1 of idgo's 0 */, "users": 123456889013} {
			if got := db.QueryInt("SELECT max_id FROM leaf_alloc WHERE biz_tag = ?", tag); got != want {
				t.Errorf("%s begins at %d, want %d", tag, got, want)
			}
		}
		if n := db.QueryInt("SELECT COUNT(*) FROM leaf_alloc WHERE step = 500"); n != 3 {
			t.Errorf("%d rows", n)
		}
	}
	// idgo's way to its next range: the number does not fit what it reads it into.
	var id int64
	if err := db.Root().QueryRow("SELECT id FROM `order` FOR UPDATE").Scan(&id); err == nil {
		t.Errorf("idgo would go on from %d", id)
	}
	p := process.Start(t, process.Options{Set: []string{"segment.store=mysql", "segment.check=100ms", "segment.mysql.dsn=" + db.DSN("", ""), "snowflake.registry=off"}})
	if got := p.Do("INCR", "order"); got != "104001" {
		t.Errorf("INCR order answered %s, want 104001", got)
	}
	if got := p.Do("INCR", "empty"); !strings.HasPrefix(got, "NOTAG") {
		t.Errorf("INCR of a key without a row answered %s", got)
	}
}

// leafSchema is the table that Leaf's own script makes.
const leafSchema = `CREATE TABLE leaf_alloc (
  biz_tag varchar(128) NOT NULL DEFAULT '', max_id bigint(20) NOT NULL DEFAULT '1', step int(11) NOT NULL, description varchar(256) DEFAULT NULL,
  update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, PRIMARY KEY (biz_tag)) ENGINE=InnoDB;`

// TestFromLeaf: a Leaf server and Redleaf share Leaf's table while clients change over, by address and over HTTP alone.
func TestFromLeaf(t *testing.T) {
	db := services.StartMariaDB(t, services.MariaDBOptions{Create: true})
	db.Load(leafSchema + "insert into leaf_alloc(biz_tag, max_id, step, description) values('leaf-segment-test', 1, 2000, 'Test leaf Segment Mode Get Id'), ('com.order', 50001, 10, NULL), ('odd', 5, 0, '');")
	p := process.Start(t, process.Options{Set: []string{"segment.store=mysql", "segment.check=100ms", "segment.mysql.dsn=" + db.DSN("", ""), "snowflake.registry=off", "segment.target=50ms"}})
	s := &seen{ids: map[string]map[int64]string{}}
	var wg sync.WaitGroup
	// Leaf's way: one transaction adds the step and reads the row; the range ends there.
	wg.Go(func() {
		for range 60 {
			tx, err := db.Root().Begin()
			if err != nil {
				t.Error(err)
				return
			}
			var max, step int64
			_, err = tx.Exec("UPDATE leaf_alloc SET max_id = max_id + step WHERE biz_tag = 'com.order'")
			if err == nil {
				err = tx.QueryRow("SELECT max_id, step FROM leaf_alloc WHERE biz_tag = 'com.order'").Scan(&max, &step)
			}
			if err == nil {
				err = tx.Commit()
			}
			if err != nil {
				t.Error(err)
				return
			}
			for id := max - step; id < max; id++ {
				s.add("com.order", id, "Leaf")
			}
		}
	})
	for range 3 {
		wg.Go(func() {
			client := &http.Client{Timeout: 20 * time.Second}
			defer client.CloseIdleConnections()
			for range 400 {
				a, err := client.Get("http://" + p.Admin + "/api/segment/get/com.order")
				if err != nil {
					t.Error(err)
					return
				}
				b, err := io.ReadAll(a.Body)
				a.Body.Close()
				id, bad := strconv.ParseInt(string(b), 10, 64)
				if err != nil || bad != nil || a.StatusCode != 200 {
					t.Errorf("%d %s", a.StatusCode, b)
					return
				}
				s.add("com.order", id, "Redleaf")
			}
		})
	}
	wg.Wait()
	if len(s.errs) > 0 || len(s.ids["com.order"]) != 60*10+3*400 {
		t.Errorf("%d numbers, %d twice: %.300q", len(s.ids["com.order"]), len(s.errs), s.errs)
	}
	if status, body := p.Get("/api/segment/get/leaf-segment-test"); status != 200 || body != "1" {
		t.Errorf("leaf-segment-test: %d %s", status, body)
	}

	// The check names the row that Redleaf refuses, and how.
	out := sqlTable(t, db, read(t, "leaf-check.sql"))
	if want := "what\tis_so\tdo_this\nodd\tstep is 0\tset a step of 1 or more: the fewest IDs that one refill takes\n"; out != want {
		t.Errorf("leaf-check.sql:\n%swant\n%s", out, want)
	}
	if got := p.Do("INCR", "odd"); !strings.HasPrefix(got, "STORE tag 'odd' has step 0") {
		t.Errorf("INCR odd answered %s", got)
	}
	db.Exec("UPDATE leaf_alloc SET step = 10 WHERE biz_tag = 'odd'")
	if out := sqlTable(t, db, read(t, "leaf-check.sql")); out != "" {
		t.Errorf("leaf-check.sql after the correction:\n%s", out)
	}
	db.Exec("INSERT INTO leaf_alloc(biz_tag, max_id, step) VALUES(' x', 0, 2000000), ('a\tb', 1, 10), ('订单', 1, 10)")
	if out := sqlTable(t, db, read(t, "leaf-check.sql")); strings.Count(out, "\n") != 5 || strings.Contains(out, "订单") {
		t.Errorf("leaf-check.sql of odd rows:\n%s", out)
	}
}

// sqlTable runs SQL in the client and returns what it prints.
func sqlTable(t *testing.T, db *services.MariaDB, sql string) string {
	t.Helper()
	cmd := exec.Command("mariadb", "--no-defaults", "--default-character-set=utf8mb4", "-uroot", "-h127.0.0.1", "-P"+strconv.Itoa(db.Port()), db.Database())
	cmd.Stdin = strings.NewReader(sql)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	return string(out)
}
