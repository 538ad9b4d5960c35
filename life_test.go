package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"redleaf/scripts/process"
	"redleaf/scripts/services"
)

// poll waits until is says nil.
func poll(t *testing.T, what string, is func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(process.StartLimit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = is(); err == nil {
			return
		}
	}
	t.Fatalf("waited in vain: %s: %v", what, err)
}

func hash(password string) string {
	sum := sha256.Sum256([]byte(password))
	return hex.EncodeToString(sum[:])
}

// TestReload: SIGHUP takes over users, limits and the log level, on connections that are open too; a mistake leaves all as it was.
func TestReload(t *testing.T) {
	t.Parallel()
	user := func(name, password, groups string) string {
		return fmt.Sprintf("[[auth.user]]\nname = %q\npassword_sha256 = [%q]\ngroups = [%s]\n", name, hash(password), groups)
	}
	boss := user("boss", "b", `"issue", "read", "admin"`)
	p := process.Start(t, process.Options{Config: "max_clients = 50\n" + boss + user("ann", "a", `"issue"`)})
	file := filepath.Join(p.Daemon().Dir, "redleaf.toml")
	ctx := t.Context()
	dial := func(name, password string) *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: p.Addr, Username: name, Password: password, PoolSize: 1, MaxRetries: -1})
		t.Cleanup(func() { c.Close() })
		return c
	}
	ann, admin := dial("ann", "a"), dial("boss", "b")
	if err := ann.Incr(ctx, "order").Err(); err != nil {
		t.Fatal(err)
	}
	reload := func(config, line string) {
		t.Helper()
		before := strings.Count(p.Log(), line)
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		p.Signal(syscall.SIGHUP)
		poll(t, line, func() error {
			if strings.Count(p.Log(), line) == before {
				return errors.New("not in the log")
			}
			return nil
		})
	}
	setting := func(name, want string) {
		t.Helper()
		if got, err := admin.ConfigGet(ctx, name).Result(); err != nil || got[name] != want {
			t.Errorf("CONFIG GET %s: %v %v, want %s", name, got, err, want)
		}
	}
	const done = "are taken over"
	reload("max_clients = 60\nidle_timeout = \"10m\"\n"+boss+user("ann", "a", `"read"`)+user("bob", "c", `"issue"`)+"[log]\nlevel = \"debug\"\n", done)
	setting("max_clients", "60")
	setting("log.level", "debug")
	if err := ann.Incr(ctx, "order").Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
		t.Errorf("a right that was taken away: %v", err)
	}
	if err := dial("bob", "c").Incr(ctx, "order").Err(); err != nil {
		t.Errorf("a new user: %v", err)
	}
	// Everything wrong with the file is told at once, and nothing of it is taken over.
	reload("max_clients = 70\nmax_output = \"much\"\n"+boss, "nothing was taken over")
	setting("max_clients", "60")
	if line := p.WaitLog("nothing was taken over"); !strings.Contains(line, "max_output") {
		t.Errorf("the log does not name the setting: %s", line)
	}
	if err := dial("bob", "c").Incr(ctx, "order").Err(); err != nil {
		t.Errorf("a user after a mistake: %v", err)
	}
	// What needs a restart says so.
	reload("max_clients = 70\n"+boss+"[segment]\nstep = 5\n", done)
	setting("max_clients", "70")
	setting("segment.step", "1000")
	if line := p.WaitLog("it needs a restart"); !strings.Contains(line, "segment.step") {
		t.Errorf("the log does not name the setting: %s", line)
	}
	if err := dial("bob", "c").Ping(ctx).Err(); err == nil {
		t.Error("a user that was removed may still come in")
	}
}

// TestReloadCertificates: new connections see the new certificate, open ones go on.
func TestReloadCertificates(t *testing.T) {
	t.Parallel()
	live := services.MakeTLS(t, t.TempDir())
	p := process.Start(t, process.Options{NoWait: true, Set: []string{"tls.cert=" + live.Cert, "tls.key=" + live.Key}})
	dial := func() (*tls.Conn, error) {
		return tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", p.Addr, &tls.Config{InsecureSkipVerify: true}) // which one it is, is the question
	}
	ping := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := c.Write(process.Command("PING")); err != nil {
			return err
		}
		b := make([]byte, 7)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "+PONG\r\n" {
			return fmt.Errorf("%q %v", b, err)
		}
		return nil
	}
	var old *tls.Conn
	poll(t, "TLS", func() (err error) { old, err = dial(); return err })
	defer old.Close()
	if err := ping(old); err != nil {
		t.Fatal(err)
	}
	next := services.MakeTLS(t, t.TempDir())
	for from, to := range map[string]string{next.Cert: live.Cert, next.Key: live.Key} {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p.Signal(syscall.SIGHUP)
	p.WaitLog("are taken over")
	fresh, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	if err := errors.Join(ping(fresh), ping(old)); err != nil {
		t.Error(err)
	}
	shown := func(c *tls.Conn) string { return string(c.ConnectionState().PeerCertificates[0].Raw) }
	if shown(fresh) == shown(old) {
		t.Error("the new certificate is not in use")
	}
	// Half a pair: the old one stays.
	if err := os.WriteFile(live.Key, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Signal(syscall.SIGHUP)
	p.WaitLog("nothing was taken over")
	again, err := dial()
	if err != nil {
		t.Fatalf("after a broken key: %v", err)
	}
	defer again.Close()
	if shown(again) != shown(fresh) {
		t.Error("after a broken key another certificate is in use")
	}
}

// balancer passes TCP connections on to whichever instances are ready, as a Kubernetes service or a load balancer does.
type balancer struct {
	addr  string
	ready sync.Map // address -> bool
	next  atomic.Int64
}

func newBalancer(t *testing.T, ps []*process.Process) *balancer {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{addr: ln.Addr().String()}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); ln.Close(); wg.Wait() })
	probe := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, p := range ps {
		wg.Go(func() {
			for ctx.Err() == nil {
				a, err := probe.Get("http://" + p.Admin + "/readyz")
				if err == nil {
					a.Body.Close()
				}
				b.ready.Store(p.Addr, err == nil && a.StatusCode == 200)
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { b.pass(ctx, c, ps) })
		}
	})
	return b
}

func (b *balancer) pass(ctx context.Context, c net.Conn, ps []*process.Process) {
	defer c.Close()
	first := int(b.next.Add(1))
	for i := range ps {
		p := ps[(first+i)%len(ps)]
		if ready, _ := b.ready.Load(p.Addr); ready != true {
			continue
		}
		up, err := net.DialTimeout("tcp", p.Addr, time.Second)
		if err != nil {
			continue
		}
		defer up.Close()
		stop := context.AfterFunc(ctx, func() { up.Close(); c.Close() })
		defer stop()
		go func() {
			_, _ = io.Copy(up, c)
			_ = up.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(c, up)
		return
	}
}

// TestRollingRestart restarts three instances one after the other under a load of go-redis, which sees no error.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	db := services.StartMariaDB(t, services.MariaDBOptions{})
	schema, err := os.ReadFile("scripts/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	db.Load(string(schema) + "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('order', 1, 1000);")
	var ps []*process.Process
	for i := range 3 {
		ps = append(ps, process.Start(t, process.Options{Name: fmt.Sprint("i", i), Set: []string{
			"segment.store=mysql", "segment.mysql.dsn=" + db.DSN("", ""), "segment.check=200ms", "snowflake.registry=off"}}))
	}
	b := newBalancer(t, ps)
	client := redis.NewClient(&redis.Options{Addr: b.addr, PoolSize: 20}) // its defaults otherwise: three retries
	defer client.Close()
	poll(t, "the balancer sees all three", func() error {
		for _, p := range ps {
			if ready, _ := b.ready.Load(p.Addr); ready != true {
				return errors.New(p.Addr)
			}
		}
		return client.Incr(t.Context(), "order").Err()
	})
	type result struct {
		ids   []int64
		took  []time.Duration
		wrong []error
	}
	results := make([]result, 8)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range results {
		wg.Go(func() {
			r := &results[i]
			for {
				select {
				case <-stop:
					return
				default:
				}
				began := time.Now()
				id, err := client.Incr(context.Background(), "order").Result()
				if err != nil {
					r.wrong = append(r.wrong, err)
					continue
				}
				r.ids, r.took = append(r.ids, id), append(r.took, time.Since(began))
			}
		})
	}
	began := time.Now()
	for _, p := range ps {
		if code := p.Term(); code != 0 {
			t.Errorf("%s: exit code %d", p.Instance(), code)
		}
		p.Start()
		poll(t, "the balancer sees it again", func() error {
			if ready, _ := b.ready.Load(p.Addr); ready != true {
				return errors.New(p.Addr)
			}
			return nil
		})
	}
	rolled := time.Since(began)
	close(stop)
	wg.Wait()
	given := map[int64]bool{}
	var took []time.Duration
	for _, r := range results {
		for _, err := range r.wrong {
			t.Errorf("go-redis saw an error: %v", err)
		}
		for _, id := range r.ids {
			if given[id] {
				t.Errorf("%d was given twice", id)
			}
			given[id] = true
		}
		took = append(took, r.took...)
	}
	if len(took) < 100 {
		t.Fatalf("%d requests: the load proves nothing", len(took))
	}
	slices.Sort(took)
	t.Logf("three restarts in %v: %d requests, no error; p50 %v, p99 %v, longest %v", rolled.Round(time.Millisecond), len(took),
		took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
}

// TestCrashReport: what ends the process by force leaves every goroutine on stderr, and a start afterwards that works.
func TestCrashReport(t *testing.T) {
	t.Parallel()
	p := process.Start(t, process.Options{Env: []string{"GOTRACEBACK=all"}})
	last := number(t, p.Do("INCR", "order"))
	p.Signal(syscall.SIGQUIT)
	if code, ended := p.Wait(process.StartLimit); !ended || code != 2 {
		t.Fatalf("exit code %d, ended %v; want 2", code, ended)
	}
	log := p.Log()
	for _, want := range []string{"SIGQUIT: quit", "goroutine 1 ", "main.(*program).serve", "redleaf/server"} {
		if !strings.Contains(log, want) {
			t.Errorf("the report does not hold %q", want)
		}
	}
	p.Start()
	if next := number(t, p.Do("INCR", "order")); next <= last {
		t.Errorf("after the crash INCR answered %d, before it %d", next, last)
	}
}

// smallDisk is a file system of some megabytes for data directories, which fill and drain fill up and empty.
func smallDisk(t *testing.T) (dir string, fill, drain func()) {
	t.Helper()
	dir = process.Dir(t, "disk")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m,mode=0755"); err != nil {
		t.Fatalf("this test mounts a small tmpfs, as root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	fill = func() {
		t.Helper()
		f, err := os.Create(ballast)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for size := 1 << 16; size > 0; {
			if _, err := f.Write(make([]byte, size)); err != nil {
				size /= 2
			}
		}
	}
	drain = func() { remove(t, ballast) }
	return dir, fill, drain
}

// TestDiskFullLocal: the embedded store refuses with STORE while the disk is full, and goes on by itself when there is room.
func TestDiskFullLocal(t *testing.T) {
	t.Parallel()
	dir, fill, drain := smallDisk(t)
	p := process.Start(t, process.Options{DataDir: filepath.Join(dir, "data"), Set: []string{"segment.max_step=10", "segment.step=10", "segment.wait=300ms", `admin.require=["segment"]`}})
	last := number(t, p.Do("INCR", "order"))
	fill()
	// What is there already is written in place; new tags need room.
	var refusal string
	tags := 0
	poll(t, "a refusal", func() error {
		for range 50 {
			tags++
			if reply := p.Do("SEGMENT.CREATE", fmt.Sprintf("tag%d", tags), "DESC", strings.Repeat("d", 200)); strings.HasPrefix(reply, "STORE ") {
				break
			}
		}
		reply := p.Do("INCR", "order")
		if strings.HasPrefix(reply, "STORE ") {
			refusal = reply
			return nil
		}
		if !strings.HasPrefix(reply, "TRYAGAIN") {
			id := number(t, reply)
			if id <= last {
				t.Fatalf("INCR answered %d after %d", id, last)
			}
			last = id
		}
		return errors.New(reply)
	})
	if !strings.Contains(refusal, "space") {
		t.Errorf("the refusal does not name the cause: %s", refusal)
	}
	if got := p.Do("PING"); got != "PONG" {
		t.Errorf("PING answered %s", got)
	}
	if reason := p.WaitNotReady(); !strings.Contains(reason, "space") {
		t.Errorf("/readyz does not name the cause: %s", reason)
	}
	drain()
	p.WaitReady()
	poll(t, "IDs again", func() error {
		reply := p.Do("INCR", "order")
		if strings.HasPrefix(reply, "STORE ") || strings.HasPrefix(reply, "TRYAGAIN ") {
			return errors.New(reply)
		}
		if id := number(t, reply); id <= last {
			t.Fatalf("INCR answered %d after %d", id, last)
		} else {
			last = id
		}
		return nil
	})
	p.Restart()
	if id := number(t, p.Do("INCR", "order")); id <= last {
		t.Errorf("after kill -9 INCR answered %d, before it %d", id, last)
	}
}

// TestDiskFullMySQL: with MySQL only the floors are in data_dir. They stay in memory, alarmed, and IDs flow.
func TestDiskFullMySQL(t *testing.T) {
	t.Parallel()
	db := services.StartMariaDB(t, services.MariaDBOptions{Create: true})
	schema, err := os.ReadFile("scripts/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	db.Load(string(schema))
	dir, fill, drain := smallDisk(t)
	p := process.Start(t, process.Options{DataDir: filepath.Join(dir, "data"), Set: []string{
		"segment.store=mysql", "segment.mysql.dsn=" + db.DSN("", ""), "segment.check=100ms", "snowflake.registry=off", `segment.auto_create=["*"]`, "segment.max_step=10", "segment.step=10"}})
	last := number(t, p.Do("INCR", "order"))
	fill()
	tags := 0
	metric := func(want string) func() error {
		return func() error {
			for range 50 { // floors that need room
				tags++
				number(t, p.Do("INCR", fmt.Sprintf("%0100d", tags)))
			}
			id := number(t, p.Do("INCRBY", "order", "25"))
			if id <= last {
				t.Fatalf("INCRBY answered %d after %d", id, last)
			}
			last = id
			if _, body := p.Get("/metrics"); !strings.Contains(body, "\n"+want+"\n") {
				return errors.New("/metrics lacks " + want)
			}
			return nil
		}
	}
	poll(t, "the alarm", metric("redleaf_segment_floors_up 0"))
	if status, body := p.Get("/readyz"); status != 200 {
		t.Errorf("/readyz: %d %s: IDs flow", status, body)
	}
	if _, body := p.Get("/"); !strings.Contains(body, "space") {
		t.Error("the status page does not say why floors are not kept")
	}
	drain()
	poll(t, "all well", metric("redleaf_segment_floors_up 1"))
}

// TestNewerFormats: a file that a newer Redleaf wrote is refused by name, and nothing in it is changed.
func TestNewerFormats(t *testing.T) {
	t.Parallel()
	p := process.Start(t, process.Options{})
	p.Do("INCR", "order")
	if code := p.Term(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	replace := func(t *testing.T, path, old, new string) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), old) {
			t.Fatalf("%s does not hold %s", path, old)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(b), old, new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inBolt := func(t *testing.T, path, bucket, key, old, new string) {
		t.Helper()
		db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			v := string(b.Get([]byte(key)))
			if !strings.Contains(v, old) {
				return fmt.Errorf("%s holds %q", key, v)
			}
			return b.Put([]byte(key), []byte(strings.Replace(v, old, new, 1)))
		}); err != nil {
			t.Fatal(err)
		}
	}
	for file, change := range map[string]func(t *testing.T, path string, there bool){
		"identity.json": func(t *testing.T, path string, there bool) {
			old, new := `"format": 1`, `"format": 2`
			if there {
				old, new = new, old
			}
			replace(t, path, old, new)
		},
		"segment.db": func(t *testing.T, path string, there bool) {
			old, new := "1", "2"
			if there {
				old, new = new, old
			}
			inBolt(t, path, "meta", "format", old, new)
		},
		"snowflake.db": func(t *testing.T, path string, there bool) {
			old, new := `"format":1`, `"format":2`
			if there {
				old, new = new, old
			}
			inBolt(t, path, "meta", "meta", old, new)
		},
	} {
		t.Run(file, func(t *testing.T) {
			path := filepath.Join(p.DataDir, file)
			change(t, path, false)
			code, log := process.RunToExit(t, process.Options{DataDir: p.DataDir, NoWait: true})
			if code != 1 || !strings.Contains(log, file) || !strings.Contains(log, "format") || !strings.Contains(log, "Start that version") {
				t.Errorf("exit code %d\n%s", code, log)
			}
			change(t, path, true)
		})
	}
	p.Start()
	if got := p.Do("INCR", "order"); got != "2" {
		t.Errorf("after all that INCR answered %s, want 2", got)
	}
}

// TestLogLimits: what goes wrong a thousand times a second is a few lines, not a thousand.
func TestLogLimits(t *testing.T) {
	t.Parallel()
	p := process.Start(t, process.Options{NoWait: true, Set: []string{
		"segment.store=mysql", "segment.mysql.dsn=redleaf:x@tcp(127.0.0.1:1)/leaf", "segment.check=50ms", "segment.wait=20ms", "start_timeout=100ms", "snowflake.registry=off", "auth.password=right"}})
	p.WaitPing()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var refused, strangers atomic.Int64
	for i := range 4 {
		wg.Go(func() {
			c := redis.NewClient(&redis.Options{Addr: p.Addr, Password: "right", MaxRetries: -1})
			defer c.Close()
			for ctx.Err() == nil {
				if c.Incr(context.Background(), fmt.Sprint("tag", i)).Err() != nil {
					refused.Add(1)
				}
			}
		})
	}
	wg.Go(func() { // wrong passwords, and bytes that are no protocol
		for ctx.Err() == nil {
			for _, bytes := range []string{string(process.Command("AUTH", "wrong")), "*99999999\r\n", "\x16\x03\x01\x02\x00", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"} {
				if c, err := net.Dial("tcp", p.Addr); err == nil {
					_ = c.SetDeadline(time.Now().Add(5 * time.Second))
					_, _ = io.WriteString(c, bytes)
					_, _ = c.Read(make([]byte, 200))
					c.Close()
					strangers.Add(1)
				}
			}
		}
	})
	wg.Wait()
	lines := strings.Count(p.Log(), "\n")
	t.Logf("%d refusals and %d strangers: %d lines", refused.Load(), strangers.Load(), lines)
	if refused.Load() < 200 || strangers.Load() < 100 {
		t.Error("the load proves nothing")
	}
	if lines > 100 {
		t.Errorf("%d lines in three seconds:\n%.3000s", lines, p.Log())
	}
	if strings.Contains(p.Log(), "redleaf:x@") {
		t.Error("the log shows the DSN's password (I13)")
	}
}
