package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"redleaf/scripts/proxy"
	"redleaf/scripts/services"
)

// snowflake reads SNOWFLAKE.NEXT COUNT 1000 over one connection for ten seconds and takes the best of them.
func (b *bench) snowflake() error {
	leaf, err := startRedleaf(b.bin)
	if err != nil {
		return err
	}
	defer leaf.stop()
	c, err := net.Dial("tcp", leaf.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	const window = 16 // commands in flight: enough that neither side ever waits for the other's turn
	command := encode(nil, "SNOWFLAKE.NEXT", "COUNT", "1000")
	if _, err := c.Write(bytes.Repeat(command, window)); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, 256<<10)
	best, ids, seconds := 0, 0, 0
	for began := time.Now(); seconds < 10; {
		n, err := skipArray(r)
		if err != nil {
			return err
		}
		ids += n
		if _, err := c.Write(command); err != nil {
			return err
		}
		if s := int(time.Since(began).Seconds()); s > seconds {
			progress("snowflake, second %d: %d IDs", s, ids)
			best, ids, seconds = max(best, ids), 0, s
		}
	}
	b.add("SNOWFLAKE.NEXT COUNT 1000, one connection: best second ÷ 4,096,000", 0.95, false, true, []float64{float64(best) / 4_096_000}, "")
	return nil
}

// skipArray reads over one array of bulk strings or integers and returns how many there were.
func skipArray(r *bufio.Reader) (int, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != '*' {
		return 0, fmt.Errorf("the server answered %q", line)
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	if err != nil {
		return 0, err
	}
	for range n {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if line[0] == '$' {
			size, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
			if err != nil {
				return 0, err
			}
			if _, err := r.Discard(size + 2); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

const million = 1_000_000

// tags warms a million tags, then compares INCR over random ones with INCR of one, and times a start with a million rows.
func (b *bench) tags() error {
	admin, err := freeAddr()
	if err != nil {
		return err
	}
	leaf, err := startRedleaf(b.bin, "-admin", admin)
	if err != nil {
		return err
	}
	defer func() { leaf.stop() }()
	empty, err := heap(admin)
	if err != nil {
		return err
	}
	if err := fill(leaf.addr, million); err != nil {
		return err
	}
	full, err := heap(admin)
	if err != nil {
		return err
	}
	b.add("1,000,000 warm tags: live heap per tag, bytes", 400, true, true, []float64{float64(full-empty) / million}, "")

	random, one := []string{"-r", strconv.Itoa(million), "INCR", "t:__rand_int__"}, []string{"INCR", "t:000000000000"}
	var ratio []float64
	n, err := leaf.calibrate(16, b.seconds, random)
	if err != nil {
		return err
	}
	for i := range b.pairs {
		lr, err := leaf.load(16, n, random)
		if err != nil {
			return err
		}
		lo, err := leaf.load(16, n, one)
		if err != nil {
			return err
		}
		progress("tags, pair %d/%d: random %.2f µs, one %.2f µs", i+1, b.pairs, lr.cpu, lo.cpu)
		ratio = append(ratio, lr.cpu/lo.cpu)
	}
	b.add("1,000,000 tags, pipeline 16: CPU of INCR over random tags ÷ one tag", 2, true, true, ratio, "")

	began := time.Now()
	if err := leaf.restart(); err != nil {
		return err
	}
	b.add("start with 1,000,000 rows after a clean stop, seconds", 3, true, true, []float64{leaf.startup.Seconds()}, fmt.Sprintf("stop and start together %.1f s", time.Since(began).Seconds()))
	return nil
}

// fill draws one ID of each of n tags, pipelined.
func fill(addr string, n int) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	r := bufio.NewReaderSize(c, 64<<10)
	const batch = 1000
	for at := 0; at < n; at += batch {
		var buf []byte
		for i := at; i < at+batch; i++ {
			buf = encode(buf, "INCR", fmt.Sprintf("t:%012d", i))
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
		for range batch {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return err
			}
			if line[0] != ':' {
				return fmt.Errorf("INCR of a new tag: %s", bytes.TrimSpace(line))
			}
		}
		if (at+batch)%100_000 == 0 {
			progress("tags: %d of %d", at+batch, n)
		}
	}
	return nil
}

// heap is the live heap after a collection, in bytes.
func heap(admin string) (int64, error) {
	resp, err := http.Get("http://" + admin + "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`# HeapAlloc = (\d+)`).FindSubmatch(data)
	if m == nil {
		return 0, fmt.Errorf("/debug/pprof/heap: status %d and no HeapAlloc", resp.StatusCode)
	}
	return strconv.ParseInt(string(m[1]), 10, 64)
}

// idle opens 10,000 connections, sends one command on each and reads what they cost the server.
func (b *bench) idle() error {
	leaf, err := startRedleaf(b.bin, "-set", "max_clients=12000")
	if err != nil {
		return err
	}
	defer leaf.stop()
	before, err := leaf.rss()
	if err != nil {
		return err
	}
	const n = 10_000
	conns := make([]net.Conn, 0, n)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	command := encode(nil, "INCR", "order")
	reply := make([]byte, 64)
	for len(conns) < n {
		c, err := net.Dial("tcp", leaf.addr)
		if err != nil {
			return err
		}
		conns = append(conns, c)
		if _, err := c.Write(command); err != nil {
			return err
		}
		if _, err := c.Read(reply); err != nil {
			return err
		}
	}
	after, err := leaf.rss()
	if err != nil {
		return err
	}
	b.add("10,000 idle connections after one command: KB each", 28, true, true, []float64{float64(after-before) / n / 1024}, "resident memory of the whole process")
	return nil
}

// database runs at the machine's full rate on a MariaDB that answers 50 ms late, and counts requests that waited after the warm-up.
func (b *bench) database() error {
	t := &bencher{}
	defer t.cleanup()
	db := services.StartMariaDB(t, services.MariaDBOptions{Create: true})
	db.Exec("CREATE TABLE IF NOT EXISTS leaf_alloc (biz_tag varchar(128) NOT NULL DEFAULT '', max_id bigint NOT NULL DEFAULT 1, step int NOT NULL, description varchar(256), update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, PRIMARY KEY (biz_tag)) ENGINE=InnoDB")
	db.Exec("INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('order', 1, 1000), ('warm', 1, 1000)")
	p := proxy.Start(t, db.Addr())
	p.Delay(25*time.Millisecond, 25*time.Millisecond)
	dsn := fmt.Sprintf("%s:%s@tcp(%s)/leaf", services.User, services.Password, p.Addr())
	leaf, err := startRedleaf(b.bin, "-set", "segment.store=mysql", "-set", "segment.mysql.dsn="+dsn)
	if err != nil {
		return err
	}
	defer leaf.stop()
	command := []string{"INCR", "order"}
	if _, err := leaf.calibrate(128, b.seconds, command); err != nil {
		return err
	}
	n, err := leaf.calibrate(128, 5, command)
	if err != nil {
		return err
	}
	if _, err := leaf.load(128, n, command); err != nil { // the warm-up, at the full rate
		return err
	}
	before, err := leaf.waits()
	if err != nil {
		return err
	}
	l, err := leaf.load(128, 2*n, command)
	if err != nil {
		return err
	}
	after, err := leaf.waits()
	if err != nil {
		return err
	}
	b.add("50 ms database latency, full rate, after warm-up: requests that waited", 0, true, true, []float64{float64(after - before)}, fmt.Sprintf("%.0f INCR/s", l.rate))
	return nil
}

// waits reads the counter of requests that waited for the store.
func (s *server) waits() (int64, error) {
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write(encode(nil, "INFO", "segment")); err != nil {
		return 0, err
	}
	buf := make([]byte, 64<<10)
	n, err := c.Read(buf)
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`segment_waits:(\d+)`).FindSubmatch(buf[:n])
	if m == nil {
		return 0, fmt.Errorf("INFO segment has no segment_waits: %q", buf[:n])
	}
	return strconv.ParseInt(string(m[1]), 10, 64)
}

// bencher is what services ask of a test.
type bencher struct{ undo []func() }

func (t *bencher) Helper()                      {}
func (t *bencher) Name() string                 { return "bench" }
func (t *bencher) Failed() bool                 { return false }
func (t *bencher) Logf(f string, args ...any)   { progress(f, args...) }
func (t *bencher) Errorf(f string, args ...any) { progress(f, args...) }
func (t *bencher) Cleanup(f func())             { t.undo = append(t.undo, f) }
func (t *bencher) Fatalf(f string, args ...any) { panic(fmt.Errorf(f, args...)) }
func (t *bencher) cleanup() {
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.undo[i]()
	}
}
