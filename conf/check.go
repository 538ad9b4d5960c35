package conf

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// set reports whether somebody set the setting.
func (l *loader) set(name string) bool {
	_, ok := l.c.origin[name]
	return ok
}

// wrong reports a mistake that only several settings together show: names[0] is the one to look at, problem a predicate
// for it. Nothing is said when one of them is wrong in itself, or when the file that may set them was not understood.
func (l *loader) wrong(names []string, problem string, args ...any) {
	where := ""
	for _, name := range slices.Backward(names) {
		if l.bad[name] {
			return
		}
		if o, ok := l.c.origin[name]; ok {
			where = o.where
		}
	}
	if !l.blind {
		l.mistake(where, names[0], problem, args...)
	}
}

// resolve fills the settings whose defaults depend on others.
func (l *loader) resolve() {
	s, f := &l.c.Segment, &l.c.Snowflake
	if !l.set("snowflake.registry") && s.Store == "mysql" {
		f.Registry = "off"
	}
	if s.Store == "mysql" {
		if !l.set("segment.auto_create") {
			s.AutoCreate = []string{}
		}
		if !l.set("segment.target") {
			s.Target = 15 * time.Minute
		}
	}
	if s.FailoverSkip == auto {
		s.FailoverSkip = 10 * s.MaxStep
	}
	if f.Workers.High == auto {
		f.Workers.High = 1<<min(f.Bits.Worker, 62) - 1
	}
	f.WorkerIDSet = l.set("snowflake.worker_id")
	f.Node = strings.ReplaceAll(f.Node, "-", "_")
	if !l.set("admin.require") {
		l.c.Admin.Require = l.engines()
	}
}

// engines returns the engines that are on.
func (l *loader) engines() []string {
	on := []string{}
	if l.c.Segment.Store != "off" {
		on = append(on, "segment")
	}
	if l.c.Snowflake.Registry != "off" {
		on = append(on, "snowflake")
	}
	return on
}

// check holds the settings against each other.
func (l *loader) check() {
	l.checkServer()
	l.checkSegment()
	l.checkSnowflake()
	for _, name := range l.names() {
		if file, ok := l.rows[name].dst.(*string); ok && l.rows[name].path && *file != "" && !l.bad[name] && !strings.HasSuffix(name, "password_file") {
			if _, err := l.readFile(*file); err != nil {
				l.wrong([]string{name}, "%v", err)
			}
		}
	}
}

func (l *loader) checkServer() {
	c := l.c
	if len(c.Listen) == 0 {
		l.wrong([]string{"listen"}, "needs at least one address")
	}
	for i, a := range c.Listen {
		if slices.Contains(c.Listen[:i], a) && !strings.HasSuffix(a, ":0") {
			l.wrong([]string{"listen"}, "has %q twice", a)
		}
	}
	if slices.Contains(c.Listen, c.Admin.Listen) && !strings.HasSuffix(c.Admin.Listen, ":0") {
		l.wrong([]string{"admin.listen", "listen"}, "%q is an address of listen too; give HTTP its own", c.Admin.Listen)
	}
	on := l.engines()
	if len(on) == 0 {
		l.wrong([]string{"segment.store", "snowflake.registry"}, "is off and snowflake.registry is off too; nothing is left to serve")
	}
	for _, e := range c.Admin.Require {
		switch {
		case e == "segment" && !slices.Contains(on, e):
			l.wrong([]string{"admin.require", "segment.store"}, `names "segment", but segment.store is off`)
		case e == "snowflake" && !slices.Contains(on, e):
			l.wrong([]string{"admin.require", "snowflake.registry"}, `names "snowflake", but snowflake.registry is off`)
		case !slices.Contains([]string{"segment", "snowflake"}, e):
			l.wrong([]string{"admin.require"}, `%s is not an engine; there are "segment" and "snowflake"`, clip(e))
		}
	}
	l.pair("tls.cert", "tls.key")
	if c.TLS.ClientCA != "" && c.TLS.Cert == "" {
		l.wrong([]string{"tls.client_ca", "tls.cert"}, "asks clients for certificates, but there is no TLS; set tls.cert and tls.key")
	}
}

// pair reports a certificate without its key, or the reverse.
func (l *loader) pair(cert, key string) {
	c, k := *l.rows[cert].dst.(*string), *l.rows[key].dst.(*string)
	if c != "" && k == "" {
		l.wrong([]string{cert, key}, "needs %s with it", key)
	}
	if k != "" && c == "" {
		l.wrong([]string{key, cert}, "needs %s with it", cert)
	}
}

func (l *loader) checkSegment() {
	s := &l.c.Segment
	if s.Store == "mysql" && len(s.MySQL.DSN) == 0 {
		l.wrong([]string{"segment.mysql.dsn", "segment.store"}, `is missing; segment.store = "mysql" needs it`)
	}
	// Whoever gives a DSN believes that MySQL keeps the IDs apart. A fleet of local stores would repeat them (I1).
	if len(s.MySQL.DSN) > 0 && !l.set("segment.store") {
		l.wrong([]string{"segment.mysql.dsn", "segment.store"}, `is set, but segment.store is not; set segment.store = "mysql" to use it, or "local" to say that data_dir is meant`)
	} else if len(s.MySQL.DSN) > 0 && s.Store != "mysql" {
		l.notes = append(l.notes, fmt.Sprintf("segment.mysql.dsn is not used: segment.store is %q", s.Store))
	}
	l.pair("segment.mysql.tls_cert", "segment.mysql.tls_key")
	if s.Step > s.MaxStep {
		l.wrong([]string{"segment.step", "segment.max_step"}, "%d is more than segment.max_step, %d", s.Step, s.MaxStep)
	}
}

func (l *loader) checkSnowflake() {
	f, z := &l.c.Snowflake, &l.c.Snowflake.ZooKeeper
	zookeeper := f.Registry == "zookeeper"

	b := f.Bits
	layout := true
	switch {
	case b.Time < 1 || b.Worker < 1 || b.Sequence < 1:
		layout = false
		l.wrong([]string{"snowflake.bits"}, "%d-%d-%d: each part needs at least one bit", b.Time, b.Worker, b.Sequence)
	case b.Time+b.Worker+b.Sequence > 63:
		layout = false
		l.wrong([]string{"snowflake.bits"}, "%d-%d-%d adds up to %d; an ID has 63 bits", b.Time, b.Worker, b.Sequence, b.Time+b.Worker+b.Sequence)
	case b.Worker > 16 && zookeeper:
		l.wrong([]string{"snowflake.bits", "snowflake.registry"}, "%d bits for workers are too many for ZooKeeper, where each number is a node; at most 16", b.Worker)
	}
	w, id := f.Workers, f.WorkerID
	most := uint64(1)<<min(b.Worker, 62) - 1
	switch {
	case w.Low > w.High:
		l.wrong([]string{"snowflake.workers"}, "%d-%d ends before it begins", w.Low, w.High)
	case layout && uint64(w.High) > most:
		l.wrong([]string{"snowflake.workers", "snowflake.bits"}, "%d-%d does not fit %d bits; 0-%d does", w.Low, w.High, b.Worker, most)
	case layout && uint64(id) > most:
		l.wrong([]string{"snowflake.worker_id", "snowflake.bits"}, "%d does not fit %d bits; 0 to %d do", id, b.Worker, most)
	case f.Registry == "local" && (id < w.Low || id > w.High):
		l.wrong([]string{"snowflake.worker_id", "snowflake.workers", "snowflake.bits"}, "%d is outside snowflake.workers, %d-%d", id, w.Low, w.High)
	}
	if now := l.now().UnixMilli(); f.Epoch > now {
		l.wrong([]string{"snowflake.epoch"}, "%d is in the future, now is %d; it counts milliseconds since 1970", f.Epoch, now)
	}
	if f.Registry == "local" && l.c.Segment.Store == "mysql" && !f.WorkerIDSet {
		l.wrong([]string{"snowflake.worker_id", "snowflake.registry", "segment.store"},
			`must be set when snowflake.registry is "local" beside segment.store "mysql"; every instance needs another number`)
	}

	if zookeeper && len(z.Servers) == 0 {
		l.wrong([]string{"snowflake.zookeeper.servers", "snowflake.registry"}, `is missing; snowflake.registry = "zookeeper" needs it`)
	}
	if len(z.Servers) > 0 && !l.set("snowflake.registry") { // as with a DSN: never another source of numbers than was meant
		l.wrong([]string{"snowflake.zookeeper.servers", "snowflake.registry"}, `is set, but snowflake.registry is not; set snowflake.registry = "zookeeper" to use it, or say what else is meant`)
	} else if len(z.Servers) > 0 && !zookeeper {
		l.notes = append(l.notes, fmt.Sprintf("snowflake.zookeeper.servers is not used: snowflake.registry is %q", f.Registry))
	}
	for i, server := range z.Servers {
		if i < len(z.Servers)-1 && strings.Contains(server, "/") {
			l.wrong([]string{"snowflake.zookeeper.servers"}, "%s has a path; a chroot follows the last server only", clip(server))
		}
	}
	if z.Auth.IsSet() && !strings.Contains(z.Auth.Reveal(), ":") {
		l.wrong([]string{"snowflake.zookeeper.auth"}, "needs user:password")
	}
	l.pair("snowflake.zookeeper.tls_cert", "snowflake.zookeeper.tls_key")
	if zookeeper && loopback(f.Node) {
		l.wrong([]string{"snowflake.node", "snowflake.registry"}, "%s is a loopback address, which every machine has; ZooKeeper needs an identity of this instance alone", clip(f.Node))
	}
	if zookeeper && l.set("snowflake.node") && f.Node == "" {
		l.wrong([]string{"snowflake.node", "snowflake.registry"}, "is empty; leave it out to use <ip>:<port>, or give this instance its own")
	}
	if l.c.Bootstrap && !zookeeper {
		l.mistake("-bootstrap", "snowflake.registry", `is %q; there is something to bootstrap only with "zookeeper"`, f.Registry)
	}
	if zookeeper && f.WorkerIDSet {
		l.notes = append(l.notes, `snowflake.worker_id is not used: snowflake.registry is "zookeeper"`)
	}
}
