package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"redleaf/scripts/checker"
)

// raws is the load by raw sockets: every command, with and without pipelines and MULTI. Rates bound it, so that the faults have
// a share of the machine and the load the rest.
var raws = []checker.Client{
	{Command: checker.Incr, Pipeline: 32, Rate: 6000},
	{Command: checker.Incr, Pipeline: 1, Rate: 1000},
	{Command: checker.Incr, Pipeline: 16, Multi: true, Rate: 2000},
	{Command: checker.IncrBy, Pipeline: 4, Count: 20, Rate: 1000},
	{Command: checker.SegmentNext, Pipeline: 4, Rate: 1000},
	{Command: checker.SegmentNext, Pipeline: 2, Count: 50, Rate: 200},
	{Command: checker.SegmentRange, Pipeline: 2, Count: 100, Rate: 200},
	{Command: checker.SnowflakeNext, Pipeline: 32, Rate: 6000},
	{Command: checker.SnowflakeNext, Pipeline: 1, Rate: 500},
	{Command: checker.SnowflakeNext, Pipeline: 2, Count: 100, Rate: 200},
	{Command: checker.SnowflakeNext, Pipeline: 8, Multi: true, Rate: 1000},
}

// A load counts by itself only through the library clients; those by sockets report when they end.
type load struct {
	c      *cluster
	rate   float64 // factor on the rates
	wg     sync.WaitGroup
	mu     sync.Mutex
	result checker.Result
	live   atomic.Int64 // IDs of the library clients so far
}

func (l *load) start(ctx context.Context) {
	for i, client := range raws {
		client.History, client.Name = l.c.h, fmt.Sprintf("raw%d-%s", i, client.Command)
		client.Addrs, client.Instance = l.c.addrs(i, i%2 == 1), l.c.instance
		client.Rate = max(1, int(float64(client.Rate)*l.rate))
		client.Timeout = 3 * time.Second
		if client.Command != checker.SnowflakeNext {
			client.Keys = append([]string{l.c.private[i]}, sharedTags...)
		}
		l.wg.Go(func() {
			r := client.Run(ctx)
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.result.Errors == nil {
				l.result.Errors = map[string]int64{}
			}
			l.result.Add(r)
		})
	}
	for i := range l.c.nodes {
		l.wg.Go(func() { l.goRedis(ctx, i) })
		l.wg.Go(func() { l.rueidis(ctx, i) })
	}
}

// ask records one request of a library client.
func (l *load) ask(rec *checker.Recorder, cmd, key string, do func() (string, error), refused func(error) bool) {
	invoke := l.c.h.Now()
	text, err := do()
	ret := l.c.h.Now()
	switch {
	case err == nil:
		id, bad := strconv.ParseInt(text, 10, 64)
		if bad != nil {
			rec.Error(cmd, key, invoke, ret, checker.Malformed)
			return
		}
		rec.ID(cmd, key, invoke, ret, id)
		l.live.Add(1)
	case refused(err):
		word, _, _ := strings.Cut(err.Error(), " ")
		rec.Error(cmd, key, invoke, ret, word)
	default:
		rec.Lost(cmd, key, invoke, ret)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (l *load) goRedis(ctx context.Context, i int) {
	rec := l.c.h.Recorder(fmt.Sprintf("go-redis%d", i))
	rec.Pool("") // behind a proxy: which life answers can't be told
	client := goredis.NewClient(&goredis.Options{Addr: l.c.nodes[i].front.Addr(), MaxRetries: -1, PoolSize: 2,
		DialTimeout: 2 * time.Second, ReadTimeout: 3 * time.Second, WriteTimeout: 3 * time.Second})
	defer client.Close()
	refused := func(err error) bool { var e goredis.Error; return errors.As(err, &e) }
	keys := append([]string{fmt.Sprintf("private%d", len(raws)+i)}, sharedTags...)
	for n := 0; ctx.Err() == nil; n++ {
		key := keys[n%len(keys)]
		switch n % 4 {
		case 0:
			l.ask(rec, "SNOWFLAKE.NEXT", checker.SnowflakeKey, func() (string, error) { return client.Do(context.Background(), "SNOWFLAKE.NEXT").Text() }, refused)
		case 1: // a transaction, whose replies come at once
			invoke := l.c.h.Now()
			cmds, err := client.TxPipelined(context.Background(), func(p goredis.Pipeliner) error {
				for range 3 {
					p.Incr(context.Background(), key)
				}
				return nil
			})
			ret := l.c.h.Now()
			for _, cmd := range cmds {
				l.record(rec, key, invoke, ret, cmd.(*goredis.IntCmd), err, refused)
			}
		default:
			l.ask(rec, "INCR", key, func() (string, error) {
				v, err := client.Incr(context.Background(), key).Result()
				return strconv.FormatInt(v, 10), err
			}, refused)
		}
		pause(ctx, time.Duration(10/l.rate)*time.Millisecond)
	}
}

// record notes one command of a transaction.
func (l *load) record(rec *checker.Recorder, key string, invoke, ret time.Duration, cmd *goredis.IntCmd, err error, refused func(error) bool) {
	switch e := cmd.Err(); {
	case e == nil && cmd.Val() != 0:
		rec.ID("INCR", key, invoke, ret, cmd.Val())
		l.live.Add(1)
	case e != nil && refused(e):
		word, _, _ := strings.Cut(e.Error(), " ")
		rec.Error("INCR", key, invoke, ret, word)
	default:
		_ = err // a broken connection leaves the commands without a value
		rec.Lost("INCR", key, invoke, ret)
	}
}

func (l *load) rueidis(ctx context.Context, i int) {
	rec := l.c.h.Recorder(fmt.Sprintf("rueidis%d", i))
	rec.Pool("")
	refused := func(err error) bool { _, is := rueidis.IsRedisErr(err); return is }
	keys := append([]string{fmt.Sprintf("private%d", len(raws)+instances+i)}, sharedTags...)
	var client rueidis.Client
	for n := 0; ctx.Err() == nil; n++ {
		if client == nil { // it wants a server when it is made
			var err error
			client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{l.c.nodes[i].front.Addr()}, DisableCache: true,
				DisableRetry: true, ForceSingleClient: true, ConnWriteTimeout: 3 * time.Second})
			if err != nil {
				client = nil
				pause(ctx, 50*time.Millisecond)
				continue
			}
			defer client.Close()
		}
		do := func(cmd rueidis.Completed) func() (string, error) {
			return func() (string, error) {
				limited, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				v, err := client.Do(limited, cmd).ToAny()
				return fmt.Sprint(v), err
			}
		}
		switch key := keys[n%len(keys)]; n % 3 {
		case 0:
			l.ask(rec, "SNOWFLAKE.NEXT", checker.SnowflakeKey, do(client.B().Arbitrary("SNOWFLAKE.NEXT").Build()), refused)
		case 1:
			l.ask(rec, "SEGMENT.NEXT", key, do(client.B().Arbitrary("SEGMENT.NEXT").Keys(key).Build()), refused)
		default:
			l.ask(rec, "INCR", key, do(client.B().Incr().Key(key).Build()), refused)
		}
		pause(ctx, time.Duration(10/l.rate)*time.Millisecond)
	}
}
