package server

import (
	"context"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// TestGoRedis: default options, which mean RESP3, two pools and a retry of LOADING and TRYAGAIN.
func TestGoRedis(t *testing.T) {
	for _, o := range []*goredis.Options{{}, {Protocol: 2}, {Password: "secret", ClientName: "me"}, {Username: "app", Password: "a"}} {
		var so Options
		if o.Password != "" {
			so = Options{Password: "secret", Users: []User{{Name: "app", PasswordSHA256: []string{sha("a")}, Tags: []string{"*"}, Groups: []string{"issue", "read", "admin"}}}}
		}
		r := startRig(t, rigOptions{Options: so})
		o.Addr = r.addr
		c := goredis.NewClient(o)
		ctx := context.Background()
		is := func(what string, got any, err error, want any) {
			t.Helper()
			if err != nil || got != want {
				t.Errorf("%s: %v, %v; want %v", what, got, err, want)
			}
		}
		n, err := c.Incr(ctx, "order").Result()
		is("Incr", n, err, int64(1))
		n, err = c.IncrBy(ctx, "order", 10).Result()
		is("IncrBy", n, err, int64(11))
		s, err := c.Get(ctx, "order").Result()
		is("Get", s, err, "11")
		if err := c.Get(ctx, "nosuch").Err(); err != goredis.Nil {
			t.Errorf("Get of nothing: %v", err)
		}
		s, err = c.Do(ctx, "SNOWFLAKE.NEXT").Text()
		is("SNOWFLAKE.NEXT", len(s), err, 19)
		ids, err := c.Do(ctx, "SEGMENT.NEXT", "order", "COUNT", 3).Int64Slice()
		if err != nil || !slices.Equal(ids, []int64{12, 13, 14}) {
			t.Errorf("SEGMENT.NEXT: %v, %v", ids, err)
		}
		cmds, err := c.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for range 1000 {
				p.Incr(ctx, "order")
			}
			return nil
		})
		is("a pipeline", cmds[999].(*goredis.IntCmd).Val(), err, int64(1014))
		cmds, err = c.TxPipelined(ctx, func(p goredis.Pipeliner) error {
			p.Incr(ctx, "order")
			p.Get(ctx, "order")
			return nil
		})
		is("a transaction", cmds[1].(*goredis.StringCmd).Val(), err, "1015")
		err = c.Watch(ctx, func(tx *goredis.Tx) error {
			c.Incr(ctx, "order")
			_, err := tx.TxPipelined(ctx, func(p goredis.Pipeliner) error { return p.Incr(ctx, "order").Err() })
			return err
		}, "order")
		if err != goredis.TxFailedErr {
			t.Errorf("Watch: %v", err)
		}
		ok, err := c.SetNX(ctx, "nx", 5, 0).Result()
		is("SetNX", ok, err, true)
		keys, _, err := c.Scan(ctx, 0, "*", 100).Result()
		if err != nil || !slices.Equal(keys, []string{"nx", "order"}) {
			t.Errorf("Scan: %v, %v", keys, err)
		}
		info, err := c.Info(ctx).Result()
		is("Info", strings.HasPrefix(info, "# Server\r\nredis_version:"), err, true)
		commands, err := c.Command(ctx).Result()
		is("Command", commands["incr"].FirstKeyPos, err, int8(1))
		entries, err := c.SlowLogGet(ctx, 10).Result()
		is("SlowLogGet", len(entries), err, 0)
		list, err := c.ClientList(ctx).Result()
		is("ClientList", strings.Contains(list, "lib-name=go-redis"), err, true)
		sub := c.Subscribe(ctx, "x")
		if _, err := sub.Receive(ctx); err != nil {
			t.Errorf("Subscribe: %v", err)
		}
		sub.Close()
		if err := c.Del(ctx, "order").Err(); err == nil || !strings.HasPrefix(err.Error(), "ERR DEL is refused") {
			t.Errorf("Del: %v", err)
		}
		c.Close()
	}
}

// TestRueidis: default options, which demand RESP3 and CLIENT TRACKING, and cache on the client's side.
func TestRueidis(t *testing.T) {
	r := startRig(t, rigOptions{})
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{r.addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[int64]bool{}
	for range 20 { // it pipelines what runs at the same time by itself
		wg.Go(func() {
			for range 50 {
				id, err := c.Do(ctx, c.B().Incr().Key("order").Build()).AsInt64()
				mu.Lock()
				if err != nil || seen[id] {
					t.Errorf("%d, %v", id, err)
				}
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	// DoCache never serves what is not true any more.
	for want := int64(1000); want < 1300; want++ {
		got, err := c.DoCache(ctx, c.B().Get().Key("order").Cache(), time.Minute).AsInt64()
		if err != nil || got != want {
			t.Fatalf("DoCache: %d, %v; want %d", got, err, want)
		}
		c.Do(ctx, c.B().Incr().Key("order").Build())
	}
	got, err := c.DoCache(ctx, c.B().Mget().Key("order", "nosuch").Cache(), time.Minute).ToArray()
	if err != nil || len(got) != 2 {
		t.Errorf("DoCache of MGET: %v, %v", got, err)
	}
	if id, err := c.Do(ctx, c.B().Arbitrary("SNOWFLAKE.NEXT").Build()).AsInt64(); err != nil || id < 1<<60 {
		t.Errorf("SNOWFLAKE.NEXT: %d, %v", id, err)
	}
	many := make(rueidis.Commands, 0, 1000)
	for range 1000 {
		many = append(many, c.B().Incrby().Key("order").Increment(1).Build())
	}
	for i, res := range c.DoMulti(ctx, many...) {
		if id, err := res.AsInt64(); err != nil || id != 1301+int64(i) {
			t.Fatalf("DoMulti %d: %d, %v", i, id, err)
		}
	}
	err = c.Dedicated(func(d rueidis.DedicatedClient) error {
		res := d.DoMulti(ctx, d.B().Multi().Build(), d.B().Incr().Key("order").Build(), d.B().Exec().Build())
		ids, err := res[2].AsIntSlice()
		if err != nil || !slices.Equal(ids, []int64{2301}) {
			t.Errorf("EXEC: %v, %v", ids, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRedigo: it sends what it is told and takes any error at connect as the end.
func TestRedigo(t *testing.T) {
	r := startRig(t, rigOptions{Options: Options{Password: "secret"}})
	c, err := redis.Dial("tcp", r.addr, redis.DialPassword("secret"), redis.DialClientName("me"), redis.DialDatabase(0))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := redis.Int64(c.Do("INCR", "order")); err != nil || n != 1 {
		t.Errorf("INCR: %d, %v", n, err)
	}
	if id, err := redis.Int64(c.Do("SNOWFLAKE.NEXT")); err != nil || id < 1<<60 {
		t.Errorf("SNOWFLAKE.NEXT: %d, %v", id, err)
	}
	for range 1000 {
		c.Send("INCRBY", "order", 1)
	}
	c.Flush()
	for i := range 1000 {
		if n, err := redis.Int64(c.Receive()); err != nil || n != int64(i+2) {
			t.Fatalf("%d: %d, %v", i, n, err)
		}
	}
	c.Send("MULTI")
	c.Send("INCR", "order")
	c.Send("INCR", "order")
	if ids, err := redis.Int64s(c.Do("EXEC")); err != nil || !slices.Equal(ids, []int64{1002, 1003}) {
		t.Errorf("EXEC: %v, %v", ids, err)
	}
	pool := &redis.Pool{Dial: func() (redis.Conn, error) {
		return redis.Dial("tcp", r.addr, redis.DialPassword("secret"))
	}}
	defer pool.Close()
	p := pool.Get()
	p.Send("MULTI") // left open: the pool sends DISCARD
	p.Send("INCR", "order")
	p.Close()
	p = pool.Get()
	defer p.Close()
	if n, err := redis.Int64(p.Do("INCR", "order")); err != nil || n != 1004 {
		t.Errorf("INCR after an open MULTI: %d, %v", n, err)
	}
}

// run runs a program of redis' tools with input and returns what it prints.
func (r *rig) run(input, name string, args ...string) string {
	r.t.Helper()
	host, port, _ := net.SplitHostPort(r.addr)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, append([]string{"-h", host, "-p", port}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Errorf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func TestRedisCLI(t *testing.T) {
	r := startRig(t, rigOptions{})
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	want(r.run("", "redis-cli", "INCR", "order"), "1\n")
	want(r.run("", "redis-cli", "-3", "INCRBY", "order", "10"), "11\n")
	want(r.run("INCR order\nGET order\nSNOWFLAKE.PARSE 2127567812003104714\n", "redis-cli"),
		"12\n12\ntimestamp\n1796086669337\ntime\n2026-12-01T00:57:49.337Z\nworker\n0\nsequence\n1994\n")
	// It asserts the types within COMMAND DOCS and dies of a wrong one.
	help := regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(r.run("HELP SNOWFLAKE.NEXT\nHELP @segment\nHELP SET\n", "redis-cli"), "")
	for _, text := range []string{"SNOWFLAKE.NEXT [COUNT count]", "summary: Takes one snowflake, or several", "SEGMENT.CREATE key [START first] [STEP step] [DESC text]", "SET key value [NX|XX] [FORCE]"} {
		if !strings.Contains(help, text) {
			t.Errorf("HELP lacks %q: %q", text, help)
		}
	}
	want(r.run("", "redis-cli", "-3", "--no-raw", "SNOWFLAKE.PARSE", "2127567812003104714"),
		"1# \"timestamp\" => (integer) 1796086669337\n2# \"time\" => \"2026-12-01T00:57:49.337Z\"\n3# \"worker\" => (integer) 0\n4# \"sequence\" => (integer) 1994\n")
	want(r.run("", "redis-cli", "--scan"), "order\n")
	if out := r.run(strings.Repeat(wire("INCR", "piped"), 1000), "redis-cli", "--pipe"); !strings.Contains(out, "errors: 0, replies: 1000") {
		t.Errorf("--pipe: %q", out)
	}
	want(r.run("", "redis-cli", "GET", "piped"), "1000\n")
	for _, args := range [][]string{{"--bigkeys"}, {"--memkeys"}} {
		if out := r.run("", "redis-cli", args...); !strings.Contains(out, "Sampled 2 keys") {
			t.Errorf("%v: %q", args, out)
		}
	}
}

func TestRedisBenchmark(t *testing.T) {
	for _, args := range [][]string{{"-P", "1"}, {"-P", "16"}, {"-P", "128"}, {"-3"}, {"-a", "secret"}} {
		var o Options
		if args[0] == "-a" {
			o.Password = "secret"
		}
		r := startRig(t, rigOptions{Options: o})
		out := r.run("", "redis-benchmark", append(args, "-n", "5000", "-c", "10", "-q", "-t", "ping,incr,get")...)
		if strings.Contains(out, "WARNING") || strings.Contains(out, "rror") || !strings.Contains(out, "INCR:") {
			t.Errorf("%v: %s", args, out)
		}
		c := r.dial()
		if o.Password != "" {
			c.line("AUTH secret")
		}
		got := regexp.MustCompile(`\d{4,}`).FindString(c.line("GET counter:__rand_int__"))
		if n, _ := strconv.Atoi(got); n < 5000 || n > 5000+10*128 {
			t.Errorf("%v: the counter stands at %s", args, got)
		}
	}
}
