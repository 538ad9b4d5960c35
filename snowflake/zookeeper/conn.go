package zookeeper

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/rs/zerolog"
)

const (
	dialTimeout = 3 * time.Second
	getsAtOnce  = 64
)

// conn implements tree with go-zookeeper. One goroutine owns the library's Conn: it decides whether there is a session, runs each
// call in a goroutine of its own, gives it up after a while, and replaces the Conn when nothing succeeded for two session timeouts.
// A Conn that has seen a later zxid than a wiped ensemble has is refused by it for ever; the new one is not, and may find another
// cluster, which is why meta is checked in every new session.
type conn struct {
	servers []string // host:port, resolved at each dial
	chroot  string   // stands before every path; the registry puts it there
	where   string
	auth    string
	acl     []zk.ACL
	tls     *tls.Config
	log     zerolog.Logger
	pace    pace

	requests chan request
	quit     chan struct{}
	once     sync.Once
	done     chan struct{}
	current  atomic.Pointer[zkConn]
	severed  atomic.Bool // tests: as if the process had died
	wire     atomic.Pointer[guardConn]
}

// zkConn is one Conn of the library.
type zkConn struct {
	*zk.Conn
	ready atomic.Bool // credentials are in force
}

func (z *zkConn) session() (int64, bool) {
	return z.SessionID(), z.ready.Load() && z.State() == zk.StateHasSession
}

type request struct {
	ctx  context.Context
	run  func(*zk.Conn) // sends its result somewhere by itself
	done chan struct{}  // closed by run's end
	ans  chan error     // nil: run ended; else why not
}

// dial begins to connect; it does not wait for the network.
func dial(o Options, log zerolog.Logger) (*conn, error) {
	servers, chroot, err := parseServers(o.Servers)
	if err != nil {
		return nil, err
	}
	conf, err := tlsConfig(o)
	if err != nil {
		return nil, err
	}
	c := &conn{
		servers: servers, chroot: chroot, where: strings.Join(servers, ",") + chroot, auth: o.Auth, tls: conf, log: log, pace: o.pace,
		acl: zk.WorldACL(zk.PermAll), requests: make(chan request), quit: make(chan struct{}), done: make(chan struct{}),
	}
	if c.auth != "" {
		c.acl = zk.AuthACL(zk.PermAll)
	}
	rand.Shuffle(len(c.servers), func(i, j int) { c.servers[i], c.servers[j] = c.servers[j], c.servers[i] })
	first, err := c.connect()
	if err != nil {
		return nil, err
	}
	c.current.Store(first)
	go c.loop()
	return c, nil
}

// parseServers reads connect strings: "host:2181,[::1]:2181/chroot", with commas or as several elements. The chroot may follow
// the last server.
func parseServers(list []string) (servers []string, chroot string, err error) {
	all := strings.Split(strings.Join(list, ","), ",")
	for i, s := range all {
		s = strings.TrimSpace(s)
		if cut := strings.IndexByte(s, '/'); cut >= 0 {
			if i != len(all)-1 {
				return nil, "", fmt.Errorf("snowflake.zookeeper.servers: in %q the path must follow the last server", s)
			}
			s, chroot = s[:cut], strings.TrimRight(s[cut:], "/")
			if strings.Contains(chroot, "//") {
				return nil, "", fmt.Errorf("snowflake.zookeeper.servers: %q is no path", chroot)
			}
		}
		if s == "" {
			if len(all) == 1 {
				return nil, "", errors.New("snowflake.zookeeper.servers is empty: name ZooKeeper's servers, such as zk1:2181,zk2:2181")
			}
			return nil, "", errors.New("snowflake.zookeeper.servers has an empty element")
		}
		addr, err := hostPort(s)
		if err != nil {
			return nil, "", err
		}
		servers = append(servers, addr)
	}
	return servers, chroot, nil
}

func hostPort(s string) (string, error) {
	const port = "2181"
	bare := strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if ip, err := netip.ParseAddr(bare); err == nil {
		return net.JoinHostPort(ip.String(), port), nil
	}
	if !strings.Contains(s, ":") {
		return net.JoinHostPort(s, port), nil
	}
	host, p, err := net.SplitHostPort(s)
	if err != nil || host == "" || p == "" {
		return "", fmt.Errorf("snowflake.zookeeper.servers: %q is not host:port (IPv6 as [::1]:2181)", s)
	}
	return net.JoinHostPort(host, p), nil
}

func tlsConfig(o Options) (*tls.Config, error) {
	if o.TLSCA == "" && o.TLSCert == "" {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLSCA != "" {
		pem, err := os.ReadFile(o.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("snowflake.zookeeper.tls_ca: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("snowflake.zookeeper.tls_ca: %s has no certificate", o.TLSCA)
		}
	}
	if o.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("snowflake.zookeeper.tls_cert: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// hosts gives the library names, not addresses, so that each dial resolves anew and TLS knows whom it expects.
type hosts struct {
	mu      sync.Mutex
	servers []string
	at      int // last given, -1 at first
	last    int // where a round ends: last connected
}

func (h *hosts) Init([]string) error { return nil }
func (h *hosts) Len() int            { return len(h.servers) }

func (h *hosts) Next() (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = (h.at + 1) % len(h.servers)
	again := h.at == h.last
	if h.last < 0 {
		h.last = 0
	}
	return h.servers[h.at], again
}

func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = h.at
}

// zkLog keeps the library's chatter, one line per dial, out of the log.
type zkLog struct{ log zerolog.Logger }

func (l zkLog) Printf(format string, args ...any) {
	l.log.Debug().Msg("zookeeper client: " + fmt.Sprintf(format, args...))
}

func (c *conn) connect() (*zkConn, error) {
	z, _, err := zk.Connect(c.servers, c.pace.session,
		zk.WithHostProvider(&hosts{servers: c.servers, at: -1, last: -1}),
		zk.WithDialer(c.dial),
		zk.WithLogger(zkLog{c.log}),
		zk.WithLogInfo(false),
		zk.WithMaxBufferSize(maxFrame),
		zk.WithMaxConnBufferSize(maxMulti+64<<10),
	)
	if err != nil {
		return nil, fmt.Errorf("snowflake.zookeeper.servers: %w", err)
	}
	fresh := &zkConn{Conn: z}
	fresh.ready.Store(c.auth == "")
	return fresh, nil
}

func (c *conn) dial(network, address string, _ time.Duration) (net.Conn, error) {
	if c.severed.Load() {
		return nil, net.ErrClosed
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	wire := raw
	if c.tls != nil {
		conf := c.tls.Clone()
		conf.ServerName, _, _ = net.SplitHostPort(address)
		t := tls.Client(raw, conf)
		if err := t.HandshakeContext(ctx); err != nil {
			raw.Close()
			c.log.Warn().Str("server", address).Err(err).Msg("TLS with ZooKeeper does not work: look at snowflake.zookeeper.tls_ca, tls_cert and the server's name")
			return nil, err
		}
		wire = t
	}
	g := newGuardConn(wire, dialTimeout)
	c.wire.Store(g)
	return g, nil
}

// loop owns the Conn.
func (c *conn) loop() {
	defer close(c.done)
	good := time.Now()
	suspect := false
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var authing chan error
	for {
		cur := c.current.Load()
		select {
		case <-c.quit:
			return
		case err := <-authing:
			authing = nil
			if err == nil {
				cur.ready.Store(true)
				good = time.Now()
			} else {
				c.log.Warn().Err(err).Msg("ZooKeeper does not take snowflake.zookeeper.auth")
			}
		case req := <-c.requests:
			if _, up := cur.session(); !up {
				req.ans <- errNoSession
				break
			}
			if req.ctx.Err() != nil {
				req.ans <- fmt.Errorf("%w: %w", errNoSession, req.ctx.Err()) // not sent
				break
			}
			go func() {
				defer close(req.done)
				req.run(cur.Conn)
			}()
			limit := time.NewTimer(c.pace.call)
			select {
			case <-req.done:
				good, suspect = time.Now(), false
				req.ans <- nil
			case <-limit.C:
				suspect = true
				req.ans <- errUnknown
			case <-req.ctx.Done():
				req.ans <- fmt.Errorf("%w: %w", errUnknown, req.ctx.Err())
			case <-c.quit:
				req.ans <- fmt.Errorf("%w: closing", errUnknown)
			}
			limit.Stop()
		case <-tick.C:
			has := cur.State() == zk.StateHasSession
			if has && !cur.ready.Load() && authing == nil {
				answer := make(chan error, 1)
				authing = answer
				go func() { answer <- cur.AddAuth("digest", []byte(c.auth)) }() // blocks while disconnected
			}
			if _, up := cur.session(); up && !suspect {
				good = time.Now()
			}
			if time.Since(good) > 2*c.pace.session {
				if next, err := c.connect(); err == nil {
					c.log.Debug().Msg("zookeeper client: connecting anew")
					c.current.Store(next)
					go cur.Close()
					authing, suspect = nil, false
				}
				good = time.Now()
			}
		}
	}
}

// call runs one operation. T travels through a channel, so that an operation given up writes nowhere.
func call[T any](ctx context.Context, c *conn, op func(*zk.Conn) (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var zero T
	out := make(chan result, 1)
	req := request{ctx: ctx, done: make(chan struct{}), ans: make(chan error, 1), run: func(z *zk.Conn) {
		v, err := op(z)
		out <- result{v, err}
	}}
	select {
	case c.requests <- req:
	case <-ctx.Done():
		return zero, fmt.Errorf("%w: %w", errNoSession, ctx.Err())
	case <-c.quit:
		return zero, errNoSession
	}
	if err := <-req.ans; err != nil {
		return zero, err
	}
	r := <-out
	return r.v, r.err
}

var refusals = []struct{ theirs, ours error }{
	{zk.ErrNoNode, errNoNode},
	{zk.ErrNodeExists, errExists},
	{zk.ErrBadVersion, errBadVersion},
	{zk.ErrNotEmpty, errNotEmpty},
	{zk.ErrNoAuth, errNoAuth},
	{zk.ErrInvalidACL, errNoAuth}, // what the scheme "auth" is without credentials
	{zk.ErrAuthFailed, errNoAuth},
}

// ours translates an error of the library. What is not an answer of the server may have been executed.
func ours(path string, err error) error {
	if err == nil {
		return nil
	}
	for _, r := range refusals {
		if errors.Is(err, r.theirs) {
			return fmt.Errorf("%s: %w", path, r.ours)
		}
	}
	return fmt.Errorf("%w: %s: %w", errUnknown, path, err)
}

func statOf(s *zk.Stat) stat {
	if s == nil {
		return stat{}
	}
	return stat{
		Czxid: s.Czxid, Mtime: s.Mtime, Version: s.Version, Cversion: s.Cversion, NumChildren: s.NumChildren, Owner: s.EphemeralOwner,
	}
}

func (c *conn) Session() (int64, bool) { return c.current.Load().session() }

func (c *conn) Sync(ctx context.Context, path string) error {
	_, err := call(ctx, c, func(z *zk.Conn) (string, error) { return z.Sync(path) })
	return c.answer(path, err)
}

// answer translates an error once: those of call itself are ours already.
func (c *conn) answer(path string, err error) error {
	if err == nil || errors.Is(err, errNoSession) || errors.Is(err, errUnknown) {
		return err
	}
	return ours(path, err)
}

func (c *conn) Get(ctx context.Context, path string) (znode, error) {
	z, err := call(ctx, c, func(z *zk.Conn) (znode, error) { return get(z, path) })
	return z, c.answer(path, err)
}

func get(z *zk.Conn, path string) (znode, error) {
	data, st, err := z.Get(path)
	if err != nil {
		return znode{}, err
	}
	return znode{stat: statOf(st), Data: data}, nil
}

func (c *conn) GetMany(ctx context.Context, paths []string) ([]znode, error) {
	all := make([]znode, 0, len(paths))
	for part := range slices.Chunk(paths, 1024) {
		nodes, err := call(ctx, c, func(z *zk.Conn) ([]znode, error) { return getMany(ctx, z, part) })
		if err != nil {
			return nil, c.answer(part[0], err)
		}
		all = append(all, nodes...)
	}
	return all, nil
}

// getMany has many requests on the way at once: one round trip for each slot would make a claim take seconds.
func getMany(ctx context.Context, z *zk.Conn, paths []string) ([]znode, error) {
	nodes := make([]znode, len(paths))
	var next, failed atomic.Int64
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	for range min(getsAtOnce, len(paths)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(paths) || failed.Load() != 0 || ctx.Err() != nil {
					return
				}
				n, err := get(z, paths[i])
				if errors.Is(err, zk.ErrNoNode) {
					n, err = znode{Missing: true}, nil
				}
				if err != nil {
					failed.Store(1)
					once.Do(func() { first = err })
					return
				}
				nodes[i] = n
			}
		})
	}
	wg.Wait()
	if first == nil && ctx.Err() != nil {
		first = ctx.Err()
	}
	return nodes, first
}

func (c *conn) Children(ctx context.Context, path string) ([]string, stat, error) {
	type list struct {
		names []string
		st    stat
	}
	l, err := call(ctx, c, func(z *zk.Conn) (list, error) {
		names, st, err := z.Children(path)
		if err != nil {
			return list{}, err
		}
		return list{names, statOf(st)}, nil
	})
	slices.Sort(l.names)
	return l.names, l.st, c.answer(path, err)
}

func (c *conn) Create(ctx context.Context, path string, data []byte, sequential bool) (string, error) {
	flag := int32(zk.FlagPersistent)
	if sequential {
		flag = zk.FlagSequence
	}
	p, err := call(ctx, c, func(z *zk.Conn) (string, error) { return z.Create(path, data, flag, c.acl) })
	return p, c.answer(path, err)
}

func (c *conn) Set(ctx context.Context, path string, data []byte, version int32) (stat, error) {
	st, err := call(ctx, c, func(z *zk.Conn) (stat, error) {
		st, err := z.Set(path, data, version)
		if err != nil {
			return stat{}, err
		}
		return statOf(st), nil
	})
	return st, c.answer(path, err)
}

func (c *conn) Multi(ctx context.Context, ops ...op) ([]stat, error) {
	reqs := make([]any, len(ops))
	for i, o := range ops {
		path := o.path
		switch o.kind {
		case opCheck:
			reqs[i] = &zk.CheckVersionRequest{Path: path, Version: o.version}
		case opSet:
			reqs[i] = &zk.SetDataRequest{Path: path, Data: o.data, Version: o.version}
		case opCreate:
			reqs[i] = &zk.CreateRequest{Path: path, Data: o.data, Acl: c.acl, Flags: zk.FlagPersistent}
		case opCreateEphemeral:
			reqs[i] = &zk.CreateRequest{Path: path, Data: o.data, Acl: c.acl, Flags: zk.FlagEphemeral}
		case opDelete:
			reqs[i] = &zk.DeleteRequest{Path: path, Version: o.version}
		}
	}
	type outcome struct {
		stats []stat
		index int
	}
	r, err := call(ctx, c, func(z *zk.Conn) (outcome, error) {
		res, err := z.Multi(reqs...)
		out := outcome{stats: make([]stat, len(ops)), index: -1}
		for i, m := range res {
			if m.Error != nil && out.index < 0 {
				out.index = i
			}
			if i < len(out.stats) {
				out.stats[i] = statOf(m.Stat)
			}
		}
		if err == nil && len(res) != len(ops) {
			err = fmt.Errorf("%w: a Multi of %d operations with %d results", errUnknown, len(ops), len(res))
		}
		return out, err
	})
	if err == nil {
		return r.stats, nil
	}
	if err = c.answer(ops[0].path, err); refused(err) && r.index >= 0 && r.index < len(ops) {
		return nil, &opError{Index: r.index, Path: ops[r.index].path, Err: err}
	}
	return nil, err
}

// close ends the session.
func (c *conn) close(ctx context.Context) {
	c.once.Do(func() { close(c.quit) })
	<-c.done
	closed := make(chan struct{})
	go func() {
		c.current.Load().Close()
		close(closed)
	}()
	t := time.NewTimer(2 * time.Second)
	defer t.Stop()
	select {
	case <-closed:
	case <-ctx.Done():
	case <-t.C:
	}
}

// sever is the death of the process, for tests: nothing more is sent, the session is not closed.
func (c *conn) sever() {
	c.severed.Store(true)
	if g := c.wire.Load(); g != nil {
		g.dead.Store(true)
		g.Conn.Close()
	}
}
