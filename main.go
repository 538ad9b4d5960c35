// Command redleaf hands out unique 64-bit IDs over the Redis protocol.
//
// This file is the only place that knows every part: it parses, wires, runs and chooses exit codes, and holds no logic of its
// own. Reading path of a request: server/server.go.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"redleaf/conf"
	"redleaf/conf/datadir"
	"redleaf/engine"
	"redleaf/segment"
	segmentlocal "redleaf/segment/local"
	"redleaf/segment/mysql"
	"redleaf/server"
	"redleaf/server/admin"
	"redleaf/snowflake"
	snowflakelocal "redleaf/snowflake/local"
	"redleaf/snowflake/zookeeper"
)

// version is set by the linker.
var version = "dev"

func main() {
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is the whole program. Its result is the exit code: 0 after a clean stop, 1 where it can't start or the stop was not clean.
func run(args, environ []string, stdout, stderr io.Writer) int {
	c, notes, err := conf.Load(args, environ)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, conf.Usage())
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "redleaf: %s\n", strings.ReplaceAll(err.Error(), "\n", "\nredleaf: "))
		return 1
	case c.Version:
		fmt.Fprintf(stdout, "redleaf %s\n", version)
		return 0
	case c.Check:
		fmt.Fprint(stdout, c.Effective())
		return 0
	}
	events := new(admin.Events)
	p := &program{conf: c, args: args, environ: environ, events: events, log: newLog(stderr, c.Log.Format).Hook(events)}
	setLevel(c.Log.Level)
	for _, n := range notes {
		p.log.Info().Msg(n)
	}
	defer p.close()
	if err := p.start(); err != nil {
		p.log.Error().Msg(err.Error())
		return 1
	}
	if c.Bootstrap {
		return 0
	}
	return p.serve()
}

// program is one life of the server. Its fields are written by start and serve alone, but for conf, which SIGHUP and CONFIG SET
// replace under mu.
type program struct {
	args    []string
	environ []string
	log     zerolog.Logger
	events  *admin.Events

	mu   sync.Mutex
	conf conf.Config

	listeners []server.Listener
	adminLn   net.Listener
	certs     *server.Certificates
	dir       *datadir.Dir
	engine    *engine.Engine
	server    *server.Server
	admin     *http.Server

	stop    chan os.Signal
	closers []func() // what was opened, in that order
}

// start opens everything, in an order in which each step may lean on those before it. Nothing in it waits for the network: a
// backend that is down is told by the engines' error words, not by a start that hangs.
func (p *program) start() error {
	c := p.conf
	// 1. Addresses: an occupied port must fail before anything is locked or claimed.
	if err := p.listen(); err != nil {
		return err
	}
	// 2. The data directory: its lock keeps a second process away from everything below.
	dir, err := datadir.Open(c.DataDir, datadir.Options{
		AcceptMoved:   c.AcceptMovedData,
		TolerateMoved: c.Segment.Store != "local" && c.Snowflake.Registry != "local",
	})
	if err != nil {
		return err
	}
	p.dir = dir
	p.onClose(func() { dir.Close() })
	if dir.Created() {
		p.log.Warn().Str("data_dir", dir.Path("")).Msg("new data directory: this instance begins a history of its own here. It must survive restarts, and no copy of it may ever be used")
	}
	// 3. The backends.
	registry, err := p.openRegistry()
	if err != nil {
		return err
	}
	if c.Bootstrap {
		return p.bootstrap()
	}
	store, floors, err := p.openStore()
	if err != nil {
		return err
	}
	// 4. The engines: they start in the background and say LOADING until they can serve.
	o := engine.Options{
		SnowflakeKeys: c.Snowflake.Keys, Layout: layout(c), Wait: c.Segment.Wait, StartTimeout: c.StartTimeout,
		MaxCount: c.Segment.MaxCount, MaxArray: int64(c.Segment.MaxArray),
	}
	if store != nil {
		o.Segment = segment.New(store, floors, segment.Options{
			AutoCreate: c.Segment.AutoCreate, Step: c.Segment.Step, MaxStep: c.Segment.MaxStep, Target: c.Segment.Target,
			Check: c.Segment.Check, MaxCount: c.Segment.MaxCount, MaxArray: int64(c.Segment.MaxArray), MaxTags: int64(c.Segment.MaxTags),
			MaxRefills: refills(c.Segment.Store), Log: p.part("segment"),
		})
		o.Segment.Start()
	}
	if registry != nil {
		o.Snowflake, err = snowflake.New(registry, snowflake.SystemClock{}, snowflake.Options{
			Layout: layout(c), ClockWait: c.Snowflake.ClockWait, Policy: c.Snowflake.ClockPolicy, MaxSkew: c.Snowflake.MaxSkew,
			AcceptClock: c.Snowflake.AcceptClock, Log: p.part("snowflake"),
		})
		if err != nil {
			return err
		}
		o.Snowflake.Start()
	}
	p.engine = engine.New(o)
	// 5. The two ways in.
	p.stop = make(chan os.Signal, 1)
	p.server, err = server.New(p.engine, p.serverOptions())
	if err != nil {
		return err
	}
	if p.adminLn != nil {
		p.admin = admin.HTTPServer(admin.New(admin.Options{
			Engine: p.engine, Server: p.server, Require: c.Admin.Require, LeafAPI: c.Admin.LeafAPI, Version: version, Listen: c.Listen[0], Events: p.events,
		}))
		// What a stranger's bytes make net/http say is worth a line only to who looks for it.
		p.admin.ErrorLog = stdlog.New(debugLines{p.part("admin")}, "", 0)
	}
	return nil
}

// serve answers until a signal or SHUTDOWN, then stops in the reverse order. It returns the exit code.
func (p *program) serve() int {
	signal.Notify(p.stop, syscall.SIGTERM, syscall.SIGINT)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	failed := make(chan error, 2)
	go func() { failed <- p.server.Serve(p.listeners...) }()
	if p.admin != nil {
		go func() {
			if err := p.admin.Serve(p.adminLn); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		}()
	}
	for _, ln := range p.listeners {
		p.log.Info().Str("listen", ln.Addr().String()).Str("version", version).Msg("serving the Redis protocol")
	}
	// Ready means that clients are answered, with LOADING at worst: a database that is down must not make systemd start us over.
	p.notify("READY=1")
	inode := time.NewTicker(time.Second)
	defer inode.Stop()
	code := 0
wait:
	for {
		select {
		case s := <-p.stop:
			p.log.Info().Str("signal", s.String()).Msg("stopping: what was read is finished, then spans and the worker number go back")
			break wait
		case err := <-failed:
			p.log.Error().Err(err).Msg("a listener failed: stopping")
			code = 1
			break wait
		case <-hup:
			p.notify("RELOADING=1")
			p.reload()
			p.notify("READY=1")
		case <-inode.C:
			// A data directory that was deleted or replaced is no longer locked by us: another process may have begun in it.
			if err := p.dir.Check(); err != nil {
				p.log.Error().Msg(err.Error())
				code = 1
				break wait
			}
		}
	}
	return max(code, p.shutdown())
}

// shutdown is start in reverse, within shutdown_timeout. A second signal ends the process at once.
func (p *program) shutdown() int {
	p.notify("STOPPING=1")
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-again
		p.log.Error().Msg("second signal: ended without giving anything back")
		os.Exit(1)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), p.conf.ShutdownTimeout)
	defer cancel()
	code := 0
	note := func(what string, err error) {
		if err != nil {
			p.log.Error().Err(err).Msg(what)
			code = 1
		}
	}
	p.engine.Drain()                                                                           // not ready first: balancers look elsewhere while requests still flow
	note("clients were cut off", p.server.Shutdown(ctx))                                       // then no command is in hand any more,
	note("the engines' state did not all go back: a gap, never a repeat", p.engine.Close(ctx)) // so that the spans' tails are final before they go back
	if p.admin != nil {                                                                        // metrics and probes tell about the stop until its end
		_ = p.admin.Close()
	}
	p.log.Info().Int("code", code).Msg("stopped")
	return code
}

func (p *program) onClose(f func()) { p.closers = append(p.closers, f) }

// close undoes what start opened, in reverse: stores before the directory's lock, so that a successor never finds them open.
func (p *program) close() {
	for i := len(p.closers) - 1; i >= 0; i-- {
		p.closers[i]()
	}
}

func (p *program) listen() error {
	c := p.conf
	if c.Bootstrap {
		return nil
	}
	var resp, http *tls.Config
	if c.TLS.Cert != "" {
		certs, err := server.LoadCertificates(c.TLS.Cert, c.TLS.Key, c.TLS.ClientCA)
		if err != nil {
			return err
		}
		p.certs, resp, http = certs, certs.Config(), certs.HTTPConfig()
	}
	open := func(setting, addr string, over *tls.Config) (net.Listener, error) {
		network := "tcp"
		if path, ok := strings.CutPrefix(addr, "unix:"); ok {
			network, addr = "unix", path
		}
		ln, err := net.Listen(network, addr)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", setting, addr, err)
		}
		p.onClose(func() { ln.Close() })
		if over != nil && network == "tcp" {
			ln = tls.NewListener(ln, over)
		}
		return ln, nil
	}
	for _, addr := range c.Listen {
		ln, err := open("listen", addr, resp)
		if err != nil {
			return err
		}
		p.listeners = append(p.listeners, server.Listener{Listener: ln, Kind: "resp"})
	}
	if c.Admin.Listen != "" {
		ln, err := open("admin.listen", c.Admin.Listen, http)
		if err != nil {
			return err
		}
		p.adminLn = ln
	}
	return nil
}

func (p *program) openStore() (segment.Store, segment.Floors, error) {
	c := p.conf.Segment
	switch c.Store {
	case "local":
		s, err := segmentlocal.Open(p.dir, segmentlocal.Options{Log: p.part("segment")})
		if err != nil {
			return nil, nil, err
		}
		p.onClose(func() { s.Close() })
		return s, nil, nil
	case "mysql":
		f, err := segmentlocal.OpenFloors(p.dir, segmentlocal.Options{Log: p.part("segment")})
		if err != nil {
			return nil, nil, err
		}
		p.onClose(func() { f.Close() })
		dsns := make([]string, len(c.MySQL.DSN))
		for i, d := range c.MySQL.DSN {
			dsns[i] = d.Reveal()
		}
		s, err := mysql.Open(mysql.Options{
			DSNs: dsns, Password: c.MySQL.Password.Reveal(), TLSCA: c.MySQL.TLSCA, TLSCert: c.MySQL.TLSCert, TLSKey: c.MySQL.TLSKey,
			Table: c.MySQL.Table, Check: c.Check, FailoverSkip: c.FailoverSkip, AutoCreate: len(c.AutoCreate) > 0, Memory: f, Log: p.part("segment"),
		})
		if err != nil {
			return nil, nil, err
		}
		p.onClose(func() { s.Close() })
		return s, f, nil
	}
	return nil, nil, nil
}

func (p *program) openRegistry() (snowflake.WorkerIDs, error) {
	c := p.conf.Snowflake
	switch c.Registry {
	case "local":
		r, err := snowflakelocal.Open(p.dir, snowflakelocal.Options{
			Worker: int64(c.WorkerID), Layout: layout(p.conf), Clock: snowflake.SystemClock{}, AcceptClock: c.AcceptClock, Log: p.part("snowflake"),
		})
		if err != nil {
			return nil, err
		}
		p.onClose(func() { _ = r.Close(context.Background()) })
		return r, nil
	case "zookeeper":
		if p.conf.Bootstrap {
			return nil, nil
		}
		o, err := p.zookeeperOptions()
		if err != nil {
			return nil, err
		}
		r, err := zookeeper.Open(p.dir, o)
		if err != nil {
			return nil, err
		}
		p.onClose(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			_ = r.Close(ctx)
		})
		return r, nil
	}
	return nil, nil
}

func (p *program) zookeeperOptions() (zookeeper.Options, error) {
	c := p.conf.Snowflake
	z := c.ZooKeeper
	node := c.Node
	if node == "" && !p.conf.Bootstrap {
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return zookeeper.Options{}, fmt.Errorf("snowflake.node: %w", err)
		}
		if node, err = conf.DeriveNode(p.listeners[0].Addr(), addrs); err != nil {
			return zookeeper.Options{}, err
		}
	}
	return zookeeper.Options{
		Servers: z.Servers, Root: z.Root, Name: z.Name, Auth: z.Auth.Reveal(), TLSCA: z.TLSCA, TLSCert: z.TLSCert, TLSKey: z.TLSKey,
		Identity: node, Layout: layout(p.conf), WorkersLo: int64(c.Workers.Low), WorkersHi: int64(c.Workers.High), Bootstrap: z.Bootstrap,
		AcceptNewCluster: z.AcceptNewCluster, Autonomy: c.Autonomy, MaxSkew: c.MaxSkew, AcceptClock: c.AcceptClock,
		StartTimeout: p.conf.StartTimeout, Clock: snowflake.SystemClock{}, Log: p.part("snowflake"),
	}, nil
}

// bootstrap makes meta and the slots in ZooKeeper, an operator's act that begins a history, and is all that -bootstrap does.
func (p *program) bootstrap() error {
	if p.conf.Snowflake.Registry != "zookeeper" {
		return errors.New(`-bootstrap makes the slots of worker numbers in ZooKeeper: set snowflake.registry = "zookeeper"`)
	}
	o, err := p.zookeeperOptions()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.conf.StartTimeout)
	defer cancel()
	return zookeeper.Bootstrap(ctx, p.dir, o)
}

func (p *program) serverOptions() server.Options {
	c := p.conf
	port := 0
	if a, ok := p.listeners[0].Addr().(*net.TCPAddr); ok {
		port = a.Port
	}
	r := reloadable(c)
	return server.Options{
		Password: r.Password, Users: r.Users, MaxClients: r.MaxClients, IdleTimeout: r.IdleTimeout, MaxOutput: int(c.MaxOutput),
		ProtectedMode: r.ProtectedMode, SnowflakeReply: c.Snowflake.Reply, SlowlogThreshold: r.SlowlogThreshold,
		Settings: p.settings, ConfigSet: p.configSet,
		Shutdown: func() {
			select {
			case p.stop <- syscall.SIGTERM:
			default: // already stopping
			}
		},
		Version: version, DataDir: p.dir.Path(""), ConfigFile: c.File, Port: port, Log: p.part("server"),
	}
}

func reloadable(c conf.Config) server.Reloadable {
	r := server.Reloadable{
		Password: c.Auth.Password.Reveal(), MaxClients: c.MaxClients, IdleTimeout: c.IdleTimeout,
		SlowlogThreshold: c.Slowlog.Threshold, ProtectedMode: c.ProtectedMode,
	}
	for _, u := range c.Auth.Users {
		user := server.User{Name: u.Name, Tags: slices.Clone(u.Tags), Groups: slices.Clone(u.Groups), Rate: u.Rate}
		for _, h := range u.PasswordSHA256 {
			user.PasswordSHA256 = append(user.PasswordSHA256, h.Reveal())
		}
		r.Users = append(r.Users, user)
	}
	return r
}

// settings are CONFIG GET's pairs, secrets masked.
func (p *program) settings() [][2]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var pairs [][2]string
	for _, s := range p.conf.Settings() {
		pairs = append(pairs, [2]string{s.Name, s.Value})
	}
	return pairs
}

// configSet is CONFIG SET of one of our names.
func (p *program) configSet(name, value string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	next, err := p.conf.Set(name, value)
	if err != nil {
		return err
	}
	return p.apply(next)
}

// reload is SIGHUP: all or nothing, and a mistake leaves everything as it was.
func (p *program) reload() {
	p.mu.Lock()
	defer p.mu.Unlock()
	next, fixed, notes, err := conf.Reload(p.conf, p.args, p.environ)
	if err == nil && p.certs != nil {
		err = p.certs.Reload()
	}
	if err == nil {
		err = p.apply(next)
	}
	if err != nil {
		p.log.Error().Err(err).Msg("SIGHUP: nothing was taken over")
		return
	}
	for _, n := range notes {
		p.log.Info().Msg(n)
	}
	for _, name := range fixed {
		p.log.Warn().Str("setting", name).Msg("changed, but it needs a restart")
	}
	p.log.Info().Msg("SIGHUP: users, limits, certificates and the log level are taken over")
}

func (p *program) apply(next conf.Config) error {
	if err := p.server.Reload(reloadable(next)); err != nil {
		return err
	}
	setLevel(next.Log.Level)
	p.conf = next
	return nil
}

// refills is how many refills run at one time. The embedded store commits all that come together with one fsync, so more of them
// cost it nothing; a database has a pool of connections.
func refills(store string) int {
	if store == "local" {
		return 256
	}
	return 16
}

func layout(c conf.Config) snowflake.Layout {
	b := c.Snowflake.Bits
	return snowflake.Layout{Epoch: c.Snowflake.Epoch, TimeBits: uint8(b.Time), WorkerBits: uint8(b.Worker), SequenceBits: uint8(b.Sequence)}
}

// notify tells systemd (Type=notify) where this life is; where nobody asked for it, it does nothing.
func (p *program) notify(state string) {
	for _, e := range p.environ {
		if path, ok := strings.CutPrefix(e, "NOTIFY_SOCKET="); ok && path != "" {
			c, err := net.Dial("unixgram", path)
			if err == nil {
				_, err = c.Write([]byte(state))
				c.Close()
			}
			if err != nil {
				p.log.Warn().Err(err).Msg("systemd was not told: " + state)
			}
		}
	}
}

// newLog writes lines for people on a terminal, JSON elsewhere, unless log.format says which.
func newLog(w io.Writer, format string) zerolog.Logger {
	terminal := false
	if f, ok := w.(*os.File); ok && format == "auto" {
		if fi, err := f.Stat(); err == nil {
			terminal = fi.Mode()&os.ModeCharDevice != 0
		}
	}
	if format == "console" || terminal {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.DateTime, NoColor: !terminal}
	}
	return zerolog.New(w).With().Timestamp().Logger()
}

// setLevel holds for every logger of the process: levels are checked by the conf table.
func setLevel(level string) {
	if l, err := zerolog.ParseLevel(level); err == nil {
		zerolog.SetGlobalLevel(l)
	}
}

// debugLines turns a library's lines into ours, at debug.
type debugLines struct{ log zerolog.Logger }

func (d debugLines) Write(line []byte) (int, error) {
	d.log.Debug().Msg(strings.TrimSpace(string(line)))
	return len(line), nil
}

func (p *program) part(name string) zerolog.Logger { return p.log.With().Str("part", name).Logger() }
