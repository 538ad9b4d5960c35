// Package zookeeper hands out worker numbers by way of ZooKeeper.
//
// Uniqueness rests on one thing: for every number the znode slots/NNNN holds `until`, and only a write that is conditional on
// the znode's version raises it. Who did it may issue timestamps in (until before, until after]. Such windows never overlap,
// whoever holds them and whatever sessions, leases and clocks say (I7, I9).
//
//	zookeeper.go  Open, the registry and the worker as the Generator sees them
//	choose.go     which number to claim: resume, own, new, recycled
//	claim.go      the claim, the start without ZooKeeper
//	serve.go      renewal, doubt, fencing, release
//	bootstrap.go  the first making of the tree, and its putting back
//	znodes.go     what stands in the znodes       state.go  what stands in data_dir
//	tree.go       the operations needed           conn.go, guard.go  the client around go-zookeeper
package zookeeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"redleaf/conf/datadir"
	"redleaf/snowflake"
)

const (
	tick        = time.Second      // how often a holder looks at its lock file and session
	reserve     = 3 * time.Second  // how far the local bound is kept ahead of what is issued: a restart waits that long at most
	hwAhead     = 5 * time.Second  // how far Leaf's timestamp is kept ahead
	startWait   = 10 * time.Second // a bound that is this close is waited for; otherwise another number is taken
	leafAhead   = 10 * time.Second // Leaf issues up to 3 s past its last report; this is well above
	minAutonomy = time.Minute      // what every claim gets
	emptyWindow = time.Hour        // the most for an instance that began with an empty data_dir
	countEvery  = time.Minute      // how often free numbers are counted
	sampleMax   = 1024             // slots read for that; a part is taken when there are more
)

// Options of Open and Bootstrap. Names are those of the settings.
type Options struct {
	Servers              []string // snowflake.zookeeper.servers: connect strings; a chroot may follow the last
	Root, Name           string   // "/snowflake", "redleaf"
	Auth                 string   // digest, "user:password"; "" none
	TLSCA                string   // PEM files; any of them turns TLS on
	TLSCert, TLSKey      string
	Identity             string // snowflake.node: "<ip>:<port>"
	Addr                 string // where clients reach this instance, for people; "" = Identity
	Layout               snowflake.Layout
	WorkersLo, WorkersHi int64 // snowflake.workers, both included; WorkersHi -1: all
	Bootstrap            bool
	AcceptNewCluster     bool
	Autonomy             time.Duration // at least 1m
	MaxSkew              time.Duration // 0: 5s
	AcceptClock          bool          // unused here: ZooKeeper's clock is the judge
	StartTimeout         time.Duration // 0: 30s; half of it passes before a start without ZooKeeper
	Clock                snowflake.Clock
	Log                  zerolog.Logger

	pace pace // zero: as designed; tests hurry
}

// pace is how fast an instance works.
type pace struct {
	session time.Duration // of ZooKeeper
	call    time.Duration // longest an operation may take
	renew   time.Duration // between renewals
	window  time.Duration // what every claim gets
	still   time.Duration // a node that Leaf might still write is watched this long (Leaf writes every 3 s)
}

var usualPace = pace{session: 10 * time.Second, call: 4 * time.Second, renew: 3 * time.Second, window: minAutonomy, still: 10 * time.Second}

// Registry implements snowflake.WorkerIDs.
type Registry struct {
	o           Options
	p           paths
	tree        tree
	state       *state
	fingerprint string
	boot        string
	empty       bool // data_dir had no state: what is claimed by this process earns an hour at most
	clock       snowflake.Clock
	log         zerolog.Logger
	spawn       func(func())  // go; the simulation runs it in its own order
	nonce       func() string // a fresh random one
	dirCheck    func() error  // the lock file is still the one held
	closeTree   func(context.Context)
	where       string // servers, for people
	began       time.Duration
	stop        context.CancelFunc
	alive       context.Context

	// What Acquire alone uses.
	acquiring sync.Mutex
	local     record // what may be continued from
	known     bool   // local was read (its cluster counts) …
	continues bool   // … and this very machine, boot and data_dir wrote it
	former    []stamp
	offline   bool                // a start without ZooKeeper is still possible: nothing was claimed or lost in this process
	watched   map[string]watching // own nodes of forever, until they stood still
	restoring time.Duration       // boot clock: since when meta is being put back by somebody else
	taken     map[int64]int32     // slots whose node Leaf took back: the slot's version when that was seen

	mu     sync.Mutex // guards what follows; held for no I/O
	warned map[string]bool
	held   *worker
	st     status
	zk     zkClock
	fleet  time.Duration // largest autonomy of any instance, from meta
	leaf   []string      // nodes of forever that are Leaf's, as last listed …
	seen   bool          // … if it was listed in this process
}

type status struct {
	state, reason string
	since         time.Time
	free, total   int64
	closed        bool
}

// zkClock is ZooKeeper's clock as told by the last write: the time of its leader, and our boot clock then.
type zkClock struct {
	at   int64
	boot time.Duration
	skew time.Duration
	ok   bool
}

var _ snowflake.WorkerIDs = (*Registry)(nil)

// Open prepares the registry and begins to connect. It does not wait for the network. The error names the setting that is wrong,
// or the file in dir.
func Open(dir *datadir.Dir, o Options) (*Registry, error) {
	r, err := newRegistry(o)
	if err != nil {
		return nil, err
	}
	var missing bool
	r.state, missing, err = openState(dir)
	if err != nil {
		return nil, err
	}
	if missing {
		r.log.Warn().Str("file", dir.Path(StateFile)).Msg("the local state is gone: this start continues nothing, and ZooKeeper alone says which number is free")
	}
	r.fingerprint, r.boot, r.dirCheck = dir.Fingerprint(), dir.BootID(), dir.Check
	if err := r.loadState(); err != nil {
		r.state.disk.Close()
		return nil, err
	}
	c, err := dial(r.o, r.log)
	if err != nil {
		r.state.disk.Close()
		return nil, err
	}
	r.tree, r.closeTree, r.where = c, c.close, c.where
	r.p.base = c.chroot + r.p.base
	return r, nil
}

// newRegistry checks o and makes a registry without transport and state.
func newRegistry(o Options) (*Registry, error) {
	if err := o.normalize(); err != nil {
		return nil, err
	}
	r := &Registry{
		o:       o,
		p:       paths{base: o.base()},
		clock:   o.Clock,
		log:     o.Log,
		spawn:   func(f func()) { go f() },
		nonce:   randomNonce,
		offline: true,
		watched: map[string]watching{},
		taken:   map[int64]int32{},
		warned:  map[string]bool{},
		began:   o.Clock.Mono(),
		fleet:   o.Autonomy,
		st:      status{state: "waiting", reason: "starting", free: -1, total: o.WorkersHi - o.WorkersLo + 1},
	}
	r.st.since = r.now()
	r.alive, r.stop = context.WithCancel(context.Background())
	return r, nil
}

func randomNonce() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// normalize fills in defaults and refuses what can't work.
func (o *Options) normalize() error {
	if o.Clock == nil {
		o.Clock = snowflake.SystemClock{}
	}
	if o.MaxSkew == 0 {
		o.MaxSkew = 5 * time.Second
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = 30 * time.Second
	}
	if o.pace == (pace{}) {
		o.pace = usualPace
	}
	if o.Root == "" {
		o.Root = "/snowflake"
	}
	if err := o.Layout.Validate(); err != nil {
		return err
	}
	if o.Layout.WorkerBits > maxWorkerBits {
		return fmt.Errorf("snowflake.bits %s: with ZooKeeper at most %d worker bits, as every number has a znode", o.Layout, maxWorkerBits)
	}
	if o.WorkersHi == -1 {
		o.WorkersHi = o.Layout.Workers() - 1
	}
	if o.WorkersLo < 0 || o.WorkersHi < o.WorkersLo || o.WorkersHi >= o.Layout.Workers() {
		return fmt.Errorf("snowflake.workers %d-%d: snowflake.bits %s has the numbers 0-%d", o.WorkersLo, o.WorkersHi, o.Layout, o.Layout.Workers()-1)
	}
	if o.Autonomy < minAutonomy {
		return fmt.Errorf("snowflake.autonomy %s: at least %s", o.Autonomy, minAutonomy)
	}
	if o.Root != "/" && (!strings.HasPrefix(o.Root, "/") || strings.HasSuffix(o.Root, "/") || strings.Contains(o.Root, "//")) {
		return fmt.Errorf("snowflake.zookeeper.root %q: a path such as /snowflake", o.Root)
	}
	for _, p := range strings.Split(strings.Trim(o.Root, "/"), "/") {
		if p == "." || p == ".." || hasControl(p) {
			return fmt.Errorf("snowflake.zookeeper.root %q: a path such as /snowflake", o.Root)
		}
	}
	if o.Name == "" || strings.Contains(o.Name, "/") || o.Name == "." || o.Name == ".." || hasControl(o.Name) {
		return fmt.Errorf("snowflake.zookeeper.name %q: one part of a path, not empty. Unrelated services must not share one", o.Name)
	}
	if o.Auth != "" {
		if user, _, ok := strings.Cut(o.Auth, ":"); !ok || user == "" {
			return errors.New("snowflake.zookeeper.auth: write user:password")
		}
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		return errors.New("snowflake.zookeeper.tls_cert and tls_key belong together")
	}
	id, err := checkIdentity(o.Identity)
	if err != nil {
		return err
	}
	o.Identity = id
	if o.Addr == "" {
		o.Addr = id
	}
	return nil
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(c rune) bool {
		return c < 0x20 || c >= 0x7f && c < 0xa0 || c >= 0xd800 && c < 0xf900 || c >= 0xfff0 && c <= 0xffff
	})
}

// checkIdentity returns the identity as it stands in znodes. Two instances of one identity could not tell their nodes apart
// from earlier lives' of their own, so what many machines have is refused.
func checkIdentity(id string) (string, error) {
	const cure = "set snowflake.node to the address that only this instance has, such as 10.0.0.5:6380"
	id = strings.ReplaceAll(strings.TrimSpace(id), "-", "_") // Leaf splits node names at the first "-"
	if id == "" {
		return "", fmt.Errorf("snowflake.node is empty: %s", cure)
	}
	if len(id) > 200 || strings.ContainsAny(id, "/ ") || hasControl(id) {
		return "", fmt.Errorf("snowflake.node %q: %s", id, cure)
	}
	host := id
	if i := strings.LastIndexByte(id, ':'); i >= 0 && (strings.Count(id, ":") == 1 || strings.HasPrefix(id, "[")) {
		host = id[:i]
	}
	host = strings.Trim(host, "[]")
	if host == "" {
		return "", fmt.Errorf("snowflake.node %q has no host: %s", id, cure)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil && strings.Count(host, ":") > 1 { // bare IPv6 and port
		ip, err = netip.ParseAddr(host[:strings.LastIndexByte(host, ':')])
	}
	if strings.EqualFold(host, "localhost") || err == nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		return "", fmt.Errorf("snowflake.node %q is a loopback address, which every machine has: %s", id, cure)
	}
	return id, nil
}

func (o Options) base() string {
	if o.Root == "/" {
		return "/" + o.Name
	}
	return o.Root + "/" + o.Name
}

// loadState reads what an earlier life left.
func (r *Registry) loadState() error {
	rec, found, err := r.state.load()
	if err != nil && !errors.Is(err, errStateDamaged) {
		return err
	}
	r.local, r.known, r.empty = rec, found, !found && err == nil
	if r.known && time.Duration(rec.Fleet)*time.Millisecond > r.fleet {
		r.fleet = time.Duration(rec.Fleet) * time.Millisecond
	}
	switch {
	case errors.Is(err, errStateDamaged):
		r.log.Warn().Str("file", StateFile).Msg("the local state is damaged: this start continues nothing, and ZooKeeper alone says which number is free")
	case !found:
	case rec.Fingerprint != r.fingerprint:
		r.log.Warn().Msg("data_dir is a copy or was moved: this start continues nothing and takes another worker number")
	case rec.Boot != r.boot || rec.Boot == "":
		r.log.Info().Msg("the machine was rebooted since the last start: the worker number held then stays reserved until its window is past")
	case rec.Identity != r.o.Identity:
		r.log.Warn().Str("was", rec.Identity).Str("is", r.o.Identity).Msg("snowflake.node changed: this start continues nothing")
	default:
		r.continues = rec.Slot >= 0
	}
	return nil
}

func (r *Registry) now() time.Time { return time.UnixMilli(r.clock.Now()) }

// Acquire implements snowflake.WorkerIDs.
func (r *Registry) Acquire(ctx context.Context, avoid int64) (snowflake.Worker, error) {
	if !r.acquiring.TryLock() {
		return nil, &snowflake.NoWorkerError{Cause: errors.New("a worker number is being acquired already")}
	}
	defer r.acquiring.Unlock()
	if r.isClosed() {
		return nil, snowflake.ErrClosed
	}
	if r.holder() != nil {
		return nil, &snowflake.NoWorkerError{Cause: errors.New("a worker number is held already: release it first")}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.alive, cancel)()
	for {
		if r.isClosed() {
			return nil, snowflake.ErrClosed
		}
		if ctx.Err() != nil {
			return nil, &snowflake.NoWorkerError{Cause: fmt.Errorf("no worker number yet: %s", r.reason())}
		}
		w, wait := r.attempt(ctx, avoid)
		if w != nil {
			return w, nil
		}
		if wait.permanent {
			r.setStatus("waiting", wait.reason.Error())
			return nil, &snowflake.NoWorkerError{Cause: wait.reason, Permanent: true}
		}
		if ctx.Err() == nil { // otherwise the attempt was cut short, and what it waited for before says more
			r.setStatus("waiting", wait.reason.Error())
			r.clock.Sleep(ctx, wait.delay)
		}
	}
}

// wait is why an attempt gave no number, and what to do about it.
type wait struct {
	reason    error
	delay     time.Duration
	permanent bool
}

func waitFor(delay time.Duration, format string, args ...any) wait {
	return wait{reason: fmt.Errorf(format, args...), delay: delay}
}

func never(err error) wait { return wait{reason: err, permanent: true} }

// Time implements snowflake.WorkerIDs: the leader's clock, told by a write that changes nothing.
func (r *Registry) Time(ctx context.Context) (int64, error) {
	if _, up := r.tree.Session(); !up || r.isClosed() {
		return 0, snowflake.ErrNoClock
	}
	at, err := r.measure(ctx)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", snowflake.ErrNoClock, err)
	}
	return at, nil
}

// measure writes nothing into the parent of the ephemeral nodes and reads the leader's clock off the reply.
func (r *Registry) measure(ctx context.Context) (int64, error) {
	sent := r.clock.Now()
	st, err := r.tree.Set(ctx, r.p.lives(), nil, -1)
	if err != nil {
		return 0, err
	}
	r.observe(st.Mtime, sent)
	return st.Mtime, nil
}

// observe takes note of ZooKeeper's clock: it read mtime at some moment between sent and now.
func (r *Registry) observe(mtime, sent int64) {
	now, boot := r.clock.Now(), r.clock.Boot()
	skew := now - mtime
	switch { // the trip's length is no skew
	case mtime >= sent && mtime <= now:
		skew = 0
	case mtime < sent:
		skew = sent - mtime
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.zk = zkClock{at: mtime, boot: boot, skew: time.Duration(skew) * time.Millisecond, ok: true}
}

// zkNow is ZooKeeper's clock, extrapolated from the last write.
func (r *Registry) zkNow() int64 {
	boot := r.clock.Boot()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.zk.at + (boot - r.zk.boot).Milliseconds()
}

// timecheck says how far this machine's clock is off ZooKeeper's, measured now unless it looks right anyway.
func (r *Registry) timecheck(ctx context.Context, fresh bool) (off time.Duration, ok bool, err error) {
	r.mu.Lock()
	known := r.zk.ok
	r.mu.Unlock()
	limit := r.o.MaxSkew
	if !fresh && known {
		if off := time.Duration(r.clock.Now()-r.zkNow()) * time.Millisecond; off.Abs() <= limit {
			return off, true, nil
		}
	}
	if _, err := r.measure(ctx); err != nil {
		return 0, false, err
	}
	r.mu.Lock()
	off = r.zk.skew
	r.mu.Unlock()
	return off, off.Abs() <= limit, nil
}

// Status implements snowflake.WorkerIDs.
func (r *Registry) Status() snowflake.RegistryStatus {
	_, up := r.tree.Session()
	r.mu.Lock()
	defer r.mu.Unlock()
	st := snowflake.RegistryStatus{
		Registry: "zookeeper",
		State:    r.st.state,
		Reason:   r.st.reason,
		Worker:   -1,
		Identity: r.o.Identity,
		Skew:     r.zk.skew,
		SkewOK:   r.zk.ok,
		Session:  up && !r.st.closed,
		Since:    r.st.since,
		Free:     r.st.free,
		Total:    r.st.total,
	}
	if w := r.held; w != nil {
		st.Worker = w.id
		st.Window = snowflake.Window{Base: w.base, Until: w.until.Load()}
	}
	return st
}

func (r *Registry) setStatus(state, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.st.closed {
		return
	}
	if r.st.state != state {
		r.st.since = r.now()
	}
	r.st.state, r.st.reason = state, reason
}

func (r *Registry) reason() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.st.reason
}

func (r *Registry) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.st.closed
}

func (r *Registry) holder() *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// Close implements snowflake.WorkerIDs.
func (r *Registry) Close(ctx context.Context) error {
	r.mu.Lock()
	if r.st.closed {
		r.mu.Unlock()
		return nil
	}
	w := r.held
	r.held = nil
	r.st = status{state: "stopped", since: r.now(), free: r.st.free, total: r.st.total, closed: true}
	r.mu.Unlock()
	r.stop()
	if w != nil {
		w.end()
		w.lose()
	}
	if r.closeTree != nil {
		r.closeTree(ctx)
	}
	return r.state.close()
}

// warn logs once per key and process: garbage in a znode is met again at every look.
func (r *Registry) warn(key, format string, args ...any) {
	r.mu.Lock()
	again := r.warned[key] || len(r.warned) > 1000
	r.warned[key] = true
	r.mu.Unlock()
	if again {
		return
	}
	r.log.Warn().Msg(fmt.Sprintf(format, args...))
}

// short leaves out what nobody reads.
func short(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

func hostname() string {
	h, _ := os.Hostname()
	return h
}

// describe turns a transport error into words for people.
func (r *Registry) describe(err error) error {
	switch {
	case errors.Is(err, errNoSession):
		return fmt.Errorf("no session with ZooKeeper at %s", r.where)
	case errors.Is(err, errUnknown):
		return fmt.Errorf("ZooKeeper at %s did not answer in time", r.where)
	case errors.Is(err, errNoAuth):
		return fmt.Errorf("ZooKeeper permits %s nothing: set snowflake.zookeeper.auth to the user and password that %s was made with (%w)", r.o.Identity, r.p.base, err)
	}
	return err
}
