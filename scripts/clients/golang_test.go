package clients

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

type checks map[string]func() (detail string, ids []string, err error)

// tlsConfig is nil where the mode has no TLS.
func (s *session) tlsConfig() (*tls.Config, error) {
	if s.ca == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(s.ca)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", s.ca)
	}
	return &tls.Config{RootCAs: pool, ServerName: s.host()}, nil
}

// moduleVersion asks go.mod's reader: what is compiled in is what it says.
func moduleVersion(path string) string {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", path).Output()
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "v")
}

// flat lists the IDs of any reply as text.
func flat(v any) []string {
	switch v := v.(type) {
	case []any:
		var all []string
		for _, x := range v {
			all = append(all, flat(x)...)
		}
		return all
	case []byte:
		return []string{string(v)}
	}
	return []string{fmt.Sprint(v)}
}

// typed fills in the checks that go through a library's generic call.
func typed(do func(args ...any) (any, error), table checks) checks {
	ids := func(args ...any) func() (string, []string, error) {
		return func() (string, []string, error) {
			v, err := do(args...)
			if err != nil {
				return "", nil, err
			}
			return "", flat(v), nil
		}
	}
	repeat := func(n int, args ...any) func() (string, []string, error) {
		return func() (string, []string, error) {
			var all []string
			for range n {
				v, err := do(args...)
				if err != nil {
					return "", nil, err
				}
				all = append(all, flat(v)...)
			}
			return "", all, nil
		}
	}
	table["snowflake"] = repeat(20, "SNOWFLAKE.NEXT")
	table["snowflakes"] = ids("SNOWFLAKE.NEXT", "COUNT", "100")
	table["alias"] = repeat(10, "INCR", "snowflake:a")
	table["segment"] = ids("SEGMENT.NEXT", "order")
	table["segments"] = ids("SEGMENT.NEXT", "order", "COUNT", "10")
	table["range"] = ids("SEGMENT.RANGE", "order", "50")
	table["refusal"] = func() (string, []string, error) {
		v, err := do("DECR", "order")
		if err == nil {
			return fmt.Sprintf("no error but %v", v), nil, nil
		}
		said := err.Error()
		_, err = do("PING")
		return said, nil, err
	}
	return table
}

// again calls until an answer comes, and tells how often.
func again(s *session, incr func() (int64, error)) (string, []string, error) {
	s.restart()
	var last error
	for attempt := 1; attempt < 20; attempt++ {
		id, err := incr()
		if err == nil {
			return fmt.Sprintf("%d attempts, before: %v", attempt, last), []string{fmt.Sprint(id)}, nil
		}
		last = err
	}
	return "", nil, last
}

// said is the text of an error, which is what the check asks for.
func said(err error) (string, []string, error) {
	if err == nil {
		return "no error", nil, nil
	}
	return err.Error(), nil, nil
}

func texts(ids []int64) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = fmt.Sprint(id)
	}
	return all
}

// collect makes n calls.
func collect(n int, call func() (int64, error)) (string, []string, error) {
	var ids []int64
	for range n {
		id, err := call()
		if err != nil {
			return "", nil, err
		}
		ids = append(ids, id)
	}
	return "", texts(ids), nil
}

func goRedis(s *session) error {
	conf, err := s.tlsConfig()
	if err != nil {
		return err
	}
	ctx := s.ctx
	options := func() *goredis.Options { return &goredis.Options{Addr: s.addr, Password: s.pass, TLSConfig: conf} }
	c := goredis.NewClient(options())
	defer c.Close()
	cmds := func(cmds []goredis.Cmder, err error) (string, []string, error) {
		var ids []int64
		for _, x := range cmds {
			ids = append(ids, x.(*goredis.IntCmd).Val())
		}
		return "", texts(ids), err
	}
	refused := func(password string) (string, []string, error) {
		o := options()
		o.Password = password
		d := goredis.NewClient(o)
		defer d.Close()
		return said(d.Incr(ctx, "order").Err())
	}
	incr := func() (int64, error) { return c.Incr(ctx, "order").Result() }
	s.each(moduleVersion("github.com/redis/go-redis/v9"), typed(func(args ...any) (any, error) { return c.Do(ctx, args...).Result() }, checks{
		"connect":       func() (string, []string, error) { v, err := c.Ping(ctx).Result(); return v, nil, err },
		"nopassword":    func() (string, []string, error) { return refused("") },
		"wrongpassword": func() (string, []string, error) { return refused("wrong") },
		"incr":          func() (string, []string, error) { return collect(10, incr) },
		"incrby": func() (string, []string, error) {
			return collect(1, func() (int64, error) { return c.IncrBy(ctx, "order", 100).Result() })
		},
		"pipeline": func() (string, []string, error) {
			return cmds(c.Pipelined(ctx, func(p goredis.Pipeliner) error {
				for range 1000 {
					p.Incr(ctx, "order")
				}
				return nil
			}))
		},
		"multi": func() (string, []string, error) {
			return cmds(c.TxPipelined(ctx, func(p goredis.Pipeliner) error {
				p.Incr(ctx, "order")
				p.Incr(ctx, "order")
				p.IncrBy(ctx, "order", 5)
				return nil
			}))
		},
		"watch": func() (string, []string, error) {
			own := "own:go-redis"
			var ids []int64
			tx := func(disturb bool) error {
				return c.Watch(ctx, func(tx *goredis.Tx) error {
					if err := tx.Get(ctx, own).Err(); err != nil && !errors.Is(err, goredis.Nil) {
						return err
					}
					if disturb {
						id, err := c.Incr(ctx, own).Result()
						if err != nil {
							return err
						}
						ids = append(ids, id)
					}
					done, err := tx.TxPipelined(ctx, func(p goredis.Pipeliner) error { p.Incr(ctx, own); return nil })
					if err == nil {
						ids = append(ids, done[0].(*goredis.IntCmd).Val())
					}
					return err
				}, own)
			}
			if err := tx(false); err != nil {
				return "", nil, err
			}
			if err := tx(true); !errors.Is(err, goredis.TxFailedErr) {
				return fmt.Sprintf("executed although the key had changed: %v", err), nil, nil
			}
			return "WatchError", texts(ids), nil
		},
		"get": func() (string, []string, error) { v, err := c.Get(ctx, "order").Result(); return v, nil, err },
		"restart": func() (string, []string, error) {
			return again(s, incr)
		},
		"options": func() (string, []string, error) {
			o := options()
			o.ClientName, o.DB = "matrix", 0
			if s.user != "" {
				o.Username, o.Password = s.user, s.userKey
			}
			d := goredis.NewClient(o)
			defer d.Close()
			return collect(1, func() (int64, error) { return d.Incr(ctx, "order").Result() })
		},
		"other protocol": func() (string, []string, error) {
			o := options()
			o.Protocol = 2
			d := goredis.NewClient(o)
			defer d.Close()
			return collect(1, func() (int64, error) { return d.Incr(ctx, "order").Result() })
		},
		"quit": func() (string, []string, error) { return "", nil, c.Close() },
	}))
	return nil
}

func rueidisClient(s *session) error {
	conf, err := s.tlsConfig()
	if err != nil {
		return err
	}
	ctx := s.ctx
	options := func() rueidis.ClientOption {
		return rueidis.ClientOption{InitAddress: []string{s.addr}, Password: s.pass, TLSConfig: conf}
	}
	c, err := rueidis.NewClient(options())
	if err != nil {
		return err
	}
	defer c.Close()
	incrAt := func(c rueidis.Client, key string) (int64, error) {
		return c.Do(ctx, c.B().Incr().Key(key).Build()).AsInt64()
	}
	incr := func() (int64, error) { return incrAt(c, "order") }
	ints := func(replies []rueidis.RedisResult) (ids []int64, err error) {
		for _, r := range replies {
			id, err := r.AsInt64()
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
		return ids, nil
	}
	refused := func(password string) (string, []string, error) {
		o := options()
		o.Password = password
		d, err := rueidis.NewClient(o)
		if err == nil {
			d.Close()
		}
		return said(err)
	}
	other := func(change func(o *rueidis.ClientOption)) (string, []string, error) {
		o := options()
		change(&o)
		d, err := rueidis.NewClient(o)
		if err != nil {
			return "", nil, err
		}
		defer d.Close()
		return collect(1, func() (int64, error) { return incrAt(d, "order") })
	}
	do := func(args ...any) (any, error) {
		words := make([]string, len(args))
		for i, a := range args {
			words[i] = a.(string)
		}
		return c.Do(ctx, c.B().Arbitrary(words...).Build()).ToAny()
	}
	s.each(moduleVersion("github.com/redis/rueidis"), typed(do, checks{
		"connect": func() (string, []string, error) {
			v, err := c.Do(ctx, c.B().Ping().Build()).ToString()
			return v, nil, err
		},
		"nopassword":    func() (string, []string, error) { return refused("") },
		"wrongpassword": func() (string, []string, error) { return refused("wrong") },
		"incr":          func() (string, []string, error) { return collect(10, incr) },
		"incrby": func() (string, []string, error) {
			return collect(1, func() (int64, error) { return c.Do(ctx, c.B().Incrby().Key("order").Increment(100).Build()).AsInt64() })
		},
		"pipeline": func() (string, []string, error) {
			batch := make(rueidis.Commands, 1000)
			for i := range batch {
				batch[i] = c.B().Incr().Key("order").Build()
			}
			ids, err := ints(c.DoMulti(ctx, batch...))
			return "", texts(ids), err
		},
		"multi": func() (string, []string, error) {
			var ids []int64
			err := c.Dedicated(func(d rueidis.DedicatedClient) error {
				replies := d.DoMulti(ctx, d.B().Multi().Build(), d.B().Incr().Key("order").Build(), d.B().Incr().Key("order").Build(),
					d.B().Incrby().Key("order").Increment(5).Build(), d.B().Exec().Build())
				var err error
				ids, err = replies[len(replies)-1].AsIntSlice()
				return err
			})
			return "", texts(ids), err
		},
		"get": func() (string, []string, error) {
			v, err := c.Do(ctx, c.B().Get().Key("order").Build()).ToString()
			return v, nil, err
		},
		"restart": func() (string, []string, error) { return again(s, incr) },
		// The library's cache is on by default. What it reads must never be older than the last INCR, by whom ever.
		"cache": func() (string, []string, error) {
			writer, err := rueidis.NewClient(options())
			if err != nil {
				return "", nil, err
			}
			defer writer.Close()
			for range 10 {
				if _, err := incrAt(writer, "own:rueidis"); err != nil {
					return "", nil, err
				}
				if _, err := c.DoCache(ctx, c.B().Get().Key("own:rueidis").Cache(), time.Hour).AsInt64(); err != nil {
					return "", nil, err
				}
				id, err := incrAt(writer, "own:rueidis")
				if err != nil {
					return "", nil, err
				}
				read := c.DoCache(ctx, c.B().Get().Key("own:rueidis").Cache(), time.Hour)
				if n, err := read.AsInt64(); err != nil || n < id {
					return fmt.Sprintf("stale: %d (from the cache: %v, %v) after %d", n, read.IsCacheHit(), err, id), nil, nil
				}
			}
			return "fresh", nil, nil
		},
		"options": func() (string, []string, error) {
			return other(func(o *rueidis.ClientOption) {
				o.ClientName, o.SelectDB = "matrix", 0
				if s.user != "" {
					o.Username, o.Password = s.user, s.userKey
				}
			})
		},
		"other protocol": func() (string, []string, error) {
			return other(func(o *rueidis.ClientOption) { o.AlwaysRESP2, o.DisableCache = true, true })
		},
		"quit": func() (string, []string, error) { c.Close(); return "", nil, nil },
	}))
	return nil
}

func redigoClient(s *session) error {
	conf, err := s.tlsConfig()
	if err != nil {
		return err
	}
	dial := func(more ...redis.DialOption) (redis.Conn, error) {
		var o []redis.DialOption
		if conf != nil {
			o = append(o, redis.DialUseTLS(true), redis.DialTLSConfig(conf))
		}
		return redis.Dial("tcp", s.addr, append(o, more...)...)
	}
	pool := &redis.Pool{MaxIdle: 2, DialContext: func(context.Context) (redis.Conn, error) { return dial(redis.DialPassword(s.pass)) }}
	defer pool.Close()
	do := func(args ...any) (any, error) {
		c := pool.Get()
		defer c.Close()
		return c.Do(args[0].(string), args[1:]...)
	}
	incr := func() (int64, error) { return redis.Int64(do("INCR", "order")) }
	refused := func(password string) (string, []string, error) {
		c, err := dial(redis.DialPassword(password))
		if err != nil {
			return said(err)
		}
		defer c.Close()
		_, err = c.Do("INCR", "order")
		return said(err)
	}
	s.each(moduleVersion("github.com/gomodule/redigo"), typed(do, checks{
		"connect":       func() (string, []string, error) { v, err := redis.String(do("PING")); return v, nil, err },
		"nopassword":    func() (string, []string, error) { return refused("") },
		"wrongpassword": func() (string, []string, error) { return refused("wrong") },
		"incr":          func() (string, []string, error) { return collect(10, incr) },
		"incrby": func() (string, []string, error) {
			return collect(1, func() (int64, error) { return redis.Int64(do("INCRBY", "order", 100)) })
		},
		"pipeline": func() (string, []string, error) {
			c := pool.Get()
			defer c.Close()
			for range 1000 {
				if err := c.Send("INCR", "order"); err != nil {
					return "", nil, err
				}
			}
			if err := c.Flush(); err != nil {
				return "", nil, err
			}
			return collect(1000, func() (int64, error) { return redis.Int64(c.Receive()) })
		},
		"multi": func() (string, []string, error) {
			c := pool.Get()
			defer c.Close()
			for _, args := range [][]any{{"MULTI"}, {"INCR", "order"}, {"INCR", "order"}, {"INCRBY", "order", 5}} {
				if err := c.Send(args[0].(string), args[1:]...); err != nil {
					return "", nil, err
				}
			}
			ids, err := redis.Int64s(c.Do("EXEC"))
			return "", texts(ids), err
		},
		"get":     func() (string, []string, error) { v, err := redis.String(do("GET", "order")); return v, nil, err },
		"restart": func() (string, []string, error) { return again(s, incr) },
		"options": func() (string, []string, error) {
			o := []redis.DialOption{redis.DialPassword(s.pass), redis.DialDatabase(0), redis.DialClientName("matrix")}
			if s.user != "" {
				o = append(o, redis.DialUsername(s.user), redis.DialPassword(s.userKey))
			}
			c, err := dial(o...)
			if err != nil {
				return "", nil, err
			}
			defer c.Close()
			return collect(1, func() (int64, error) { return redis.Int64(c.Do("INCR", "order")) })
		},
		"quit": func() (string, []string, error) { return "", nil, pool.Close() },
	}))
	return nil
}
