// Command chaos runs three redleafs on a MariaDB with a replica and three ZooKeeper servers, breaks all of them alone and together,
// and says afterwards whether an ID came twice or out of order:
//
//	go run ./scripts/chaos -time 2m [-seed N] [-redleaf bin/redleaf] [-dir DIR] [-soak]
//
// The last line is the verdict. The history stays in DIR; scripts/checker/verify computes the verdict from it again. A seed gives the
// same faults in the same order; what the machine makes of their timing differs. With -soak there are few faults, none that ends an
// instance, and memory, goroutines, descriptors and logs are looked at.
//
// It exits 0 when the history is clean and every client came back after every fault, 1 when not.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"redleaf/scripts/checker"
)

// recoveryLimit is the longest that any client may be without an ID after a cure.
const recoveryLimit = time.Minute

// words are the errors that faults may cause. Others, REGRESSED and FENCED above all, are findings: no fault here goes back by more
// than the skip, and no identity is used twice.
var words = []string{"LOADING", "TRYAGAIN", "STORE", "NOWORKER"}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func main() {
	var (
		long  = flag.Duration("time", 2*time.Minute, "how long faults are made")
		seed  = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the faults and their order")
		bin   = flag.String("redleaf", "", "the program; default: built from the source")
		dir   = flag.String("dir", "", "where history and logs stay; default: a new folder for temporary files")
		soak  = flag.Bool("soak", false, "look for what grows")
		rate  = flag.Float64("rate", 1, "factor on the load")
		most  = flag.Int("most", 3, "most faults at once")
		only  = flag.String("only", "", "only faults whose name has this text")
		sheet = flag.String("samples", "", "with -soak: file for the samples; default: soak.csv in -dir")
	)
	flag.Parse()
	s := &session{began: time.Now()}
	if *dir == "" {
		made, err := os.MkdirTemp("", "redleaf-chaos-")
		if err != nil {
			s.Fatalf("%v", err)
		}
		*dir = made
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		s.Fatalf("%v", err)
	}
	if *sheet == "" {
		*sheet = filepath.Join(*dir, "soak.csv")
	}
	fmt.Printf("chaos: seed %d, %v, history in %s\n", *seed, *long, filepath.Join(*dir, "history"))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	h, err := checker.Create(filepath.Join(*dir, "history"))
	if err != nil {
		s.Fatalf("%v", err)
	}
	h.Snowflake(checker.SnowflakeKey, checker.DefaultLayout)
	h.Expect(words...)
	c := newCluster(s, h, *bin, len(raws)+2*instances)
	s.Logf("%d instances, MariaDB with a replica, 3 ZooKeeper servers are up", instances)
	goredis.SetLogger(silent{}) // its connections break on purpose
	loaded, unload := context.WithCancel(context.Background())
	l := &load{c: c, rate: *rate}
	l.start(loaded)

	var w *watch
	if *soak {
		w = newWatch(c, *sheet, *long)
	}
	r := rand.New(rand.NewPCG(*seed, 1))
	slow := c.rounds(ctx, r, *long, *soak, *most, *only, w)
	if w != nil {
		w.sample()
	}
	unload()
	l.wg.Wait()
	c.finish()
	c.logs(*dir)
	if err := h.Close(); err != nil {
		s.Fatalf("%v", err)
	}
	s.end()
	report, err := checker.Verify(h.Path())
	if err != nil {
		s.Fatalf("%v", err)
	}
	fmt.Printf("slowest answer %v, errors seen by the raw clients: %v, last: %s\n", l.result.Slowest.Round(time.Millisecond), l.result.Errors, l.result.LastError)
	text := report.String()
	fmt.Print(strings.Replace(text, report.Line()+"\n", "", 1)) // it comes last
	fmt.Printf("recovery: median %.1fs, worst %.1fs\n", report.MedianRecovery().Seconds(), report.WorstRecovery().Seconds())
	clean := report.Clean() && !slow && ctx.Err() == nil
	for _, f := range report.Faults {
		if f.Stuck > 0 || f.Cured == 0 || f.Recovery > recoveryLimit {
			clean = false
			fmt.Printf("NOT RECOVERED: %s\n", f.Name)
		}
	}
	if w != nil && !w.flat() {
		clean = false
	}
	fmt.Println(report.Line())
	if !clean {
		os.Exit(1)
	}
}

// rounds breaks and mends until the time is over. It tells whether an instance failed to be ready again in time.
func (c *cluster) rounds(ctx context.Context, r *rand.Rand, long time.Duration, soak bool, most int, only string, w *watch) (slow bool) {
	end := time.Now().Add(long)
	var todo []*fault
	for round := 1; time.Now().Before(end) && ctx.Err() == nil; round++ {
		if len(todo) == 0 {
			for _, f := range c.faults(r, soak) {
				if strings.Contains(f.name, only) {
					todo = append(todo, f)
				}
			}
			if len(todo) == 0 {
				c.s.Fatalf("no fault has %q in its name", only)
			}
			r.Shuffle(len(todo), func(i, j int) { todo[i], todo[j] = todo[j], todo[i] })
		}
		set := draw(r, &todo, most)
		var names []string
		for _, f := range set {
			names = append(names, f.name)
		}
		name := strings.Join(names, " + ")
		c.s.Logf("round %d, %v left: %s", round, time.Until(end).Round(time.Second), name)
		noted := c.h.Fault(name)
		type due struct {
			at   time.Time
			cure func()
		}
		var cures []due
		for _, f := range set {
			lasts := f.from + time.Duration(r.Int64N(int64(f.to-f.from)+1))
			if cure := f.begin(); cure != nil {
				cures = append(cures, due{time.Now().Add(lasts), cure})
			}
			pause(ctx, time.Duration(r.IntN(500))*time.Millisecond) // not all at the same moment
		}
		for len(cures) > 0 { // the first that is due, also when the run is being ended
			next := 0
			for i, d := range cures {
				if d.at.Before(cures[next].at) {
					next = i
				}
			}
			pause(ctx, time.Until(cures[next].at))
			cures[next].cure()
			cures = append(cures[:next], cures[next+1:]...)
		}
		noted.Cured()
		began := time.Now()
		for _, f := range set {
			if f.last != nil {
				f.last()
			}
		}
		if why := c.recovered(ctx); why != "" {
			c.s.Errorf("not ready %v after the cure: %s", recoveryLimit, why)
			slow = true
		} else if took := time.Since(began); took > 5*time.Second {
			c.s.Logf("    ready %v after the cure", took.Round(100*time.Millisecond))
		}
		calm := time.Duration(500+r.IntN(1000)) * time.Millisecond
		if soak {
			calm = min(time.Minute, long/10)
		}
		for until := time.Now().Add(calm); time.Now().Before(until) && ctx.Err() == nil; {
			if w != nil {
				w.sample()
			}
			pause(ctx, min(time.Until(until), max(time.Second, long/200)))
		}
	}
	return slow
}

// recovered waits until every instance is ready, and returns the reason of the one that is not in time.
func (c *cluster) recovered(ctx context.Context) string {
	deadline := time.Now().Add(recoveryLimit)
	for _, n := range c.nodes {
		for {
			status, body := n.Get("/readyz")
			if status == 200 {
				break
			}
			if time.Now().After(deadline) || ctx.Err() != nil {
				return fmt.Sprintf("%s: %s", n.Instance(), strings.TrimSpace(body))
			}
			pause(ctx, 50*time.Millisecond)
		}
	}
	return ""
}
