package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"redleaf/engine"
	"redleaf/scripts/services"
)

// TestAuthDifferential compares what a client without, with a wrong and with the right password gets, with redis-server's
// answers (leaf P11).
func TestAuthDifferential(t *testing.T) {
	redis := services.StartRedis(t, "--requirepass", "secret")
	root := connect(t, redis.Addr())
	root.do("AUTH", "secret")
	root.wantLine("+OK\r\n", "ACL SETUSER limited on >lim ~order:* &* -@all +incr +ping +hello +auth +acl|whoami +client|id +echo +multi")
	for _, session := range []string{
		"PING|ECHO a|INCR order|GET order|SELECT 0|INFO|COMMAND|CLIENT ID|CONFIG GET save|MULTI|EXEC|SUBSCRIBE a",
		"INCR|BOGUS x|CLIENT BOGUS|CLIENT|AUTH|AUTH a b c|HELLO abc|HELLO 9|HELLO 3 BOGUS",
		"HELLO|HELLO 2|HELLO 3|AUTH wrong|AUTH default wrong|AUTH nosuch secret|INCR order",
		"HELLO 3 AUTH default wrong|HELLO 3 AUTH nosuch secret|HELLO 2 AUTH default secret|INCR order|ACL WHOAMI",
		"HELLO 3 AUTH default secret SETNAME me|CLIENT GETNAME|INCR order",
		"AUTH secret|INCR order|AUTH wrong|INCR order|RESET|INCR order|AUTH default secret|INCR order|QUIT",
		"AUTH secret|MULTI|INCR order|RESET|EXEC|AUTH secret|EXEC",
		"AUTH secret|MULTI|AUTH wrong|INCR order|EXEC",
		"AUTH limited wrong|AUTH limited lim|INCR order:1|GET order:1|INCR other|GET other|INCR order:1|ECHO x|ACL WHOAMI|CONFIG GET save|PING|BOGUS|MULTI|AUTH secret|ACL WHOAMI",
		"AUTH secret|HELLO 3|RESET|PING|QUIT",
	} {
		r := startRig(t, rigOptions{Options: Options{Password: "secret", Users: []User{
			{Name: "limited", PasswordSHA256: []string{sha("lim")}, Tags: []string{"order:*"}, Groups: []string{"issue"}},
		}}})
		theirs, ours := connect(t, redis.Addr()), r.dial()
		root.do("FLUSHALL")
		for _, line := range strings.Split(session, "|") {
			want, got := normal(theirs.line(line)), normal(ours.line(line))
			if want == got {
				continue
			}
			t.Errorf("%s, %s:\n redis   %q\n redleaf %q", session, line, want, got)
		}
	}
}

func TestUsers(t *testing.T) {
	r := startRig(t, rigOptions{Options: Options{Users: []User{
		{Name: "app", PasswordSHA256: []string{sha("old"), sha("new")}, Tags: []string{"order:*", "user:[0-9]"}, Groups: []string{"issue"}},
		{Name: "look", PasswordSHA256: []string{sha("look")}, Tags: []string{"*"}, Groups: []string{"read"}},
		{Name: "root", PasswordSHA256: []string{sha("root")}, Tags: []string{"*"}, Groups: []string{"issue", "read", "admin"}},
	}}})
	const noPerm = "-NOPERM this user has no permissions to run the '%s' command\r\n"
	deny := func(name string) string { return fmt.Sprintf(noPerm, name) }
	c := r.dial()
	// Users without auth.password: there is no default user to be.
	c.wantLine("-"+errNoAuth+"\r\n", "PING")
	c.wantLine("-"+errWrongPass+"\r\n", "AUTH old")
	c.wantLine("-"+errWrongPass+"\r\n", "AUTH default x")
	c.wantLine("+OK\r\n", "AUTH app old")
	c.wantLine("+OK\r\n", "AUTH app new")
	c.wantLine("$3\r\napp\r\n", "ACL WHOAMI")
	c.wantLine(":1\r\n", "INCR order:1")
	c.wantLine(":1\r\n", "INCRBY user:7 1")
	c.wantLine("-"+errNoPermKey+"\r\n", "INCR user:77")
	c.wantLine("-"+errNoPermKey+"\r\n", "SEGMENT.NEXT other")
	c.wantLine(deny("get"), "GET order:1")
	c.wantLine(deny("set"), "SET order:1 5")
	c.wantLine(deny("info"), "INFO")
	c.wantLine(deny("config|get"), "CONFIG GET *")
	c.wantLine(deny("client|list"), "CLIENT LIST")
	c.wantLine(deny("client|kill"), "CLIENT KILL ID 1")
	c.wantLine(deny("shutdown"), "SHUTDOWN")
	c.wantLine("+PONG\r\n", "PING")
	if got := c.line("SNOWFLAKE.NEXT"); !strings.HasPrefix(got, "$19\r\n") {
		t.Errorf("SNOWFLAKE.NEXT: %q", got)
	}
	// A refusal inside MULTI aborts: nothing is taken.
	c.wantLine("+OK\r\n", "MULTI")
	c.wantLine("+QUEUED\r\n", "INCR order:1")
	c.wantLine("-"+errNoPermKey+"\r\n", "INCR other")
	c.wantLine("-"+errExecAbort+"\r\n", "EXEC")
	c.wantLine(":2\r\n", "INCR order:1")

	look := r.dial()
	look.wantLine("+OK\r\n", "AUTH look look")
	look.wantLine("$1\r\n2\r\n", "GET order:1")
	look.wantLine(deny("incr"), "INCR order:1")
	look.wantLine(deny("snowflake.next"), "SNOWFLAKE.NEXT")
	look.wantLine(deny("config|set"), "CONFIG SET log.level debug")
	look.wantLine("*2\r\n$7\r\norder:1\r\n$6\r\nuser:7\r\n", "KEYS *")

	root := r.dial()
	root.wantLine("+OK\r\n", "AUTH root root")
	root.wantLine("+OK\r\n", "SET order:1 100")
	root.wantLine(":1\r\n", "CLIENT KILL USER app")
	c.closed()
	if n := r.server.Stats().AuthFailures; n != 2 {
		t.Errorf("%d failures counted, want 2", n)
	}
}

func TestReload(t *testing.T) {
	users := []User{{Name: "app", PasswordSHA256: []string{sha("a")}, Tags: []string{"*"}, Groups: []string{"issue", "read"}}}
	r := startRig(t, rigOptions{Options: Options{Password: "one", Users: users}})
	app, def := r.dial(), r.dial()
	app.wantLine("+OK\r\n", "AUTH app a")
	def.wantLine("+OK\r\n", "AUTH one")
	app.wantLine(":1\r\n", "INCR order")
	def.wantLine(":2\r\n", "INCR order")

	reload := func(password string, users ...User) {
		t.Helper()
		if err := r.server.Reload(Reloadable{Password: password, Users: users, MaxClients: 5}); err != nil {
			t.Fatal(err)
		}
	}
	// Fewer tags, in the fast lane too, and in a transaction that is already queued.
	tx := r.dial()
	tx.wantLine("+OK\r\n", "AUTH app a")
	tx.wantLine("+OK\r\n", "MULTI")
	tx.wantLine("+QUEUED\r\n", "INCR order")
	less := users[0]
	less.Tags = []string{"user:*"}
	reload("one", less)
	app.wantLine("-"+errNoPermKey+"\r\n", "INCR order")
	app.wantLine(":1\r\n", "INCR user:1")
	def.wantLine(":3\r\n", "INCR order")
	tx.wantLine("*1\r\n-"+errNoPermKey+"\r\n", "EXEC")
	// Fewer groups.
	less.Groups = []string{"read"}
	reload("one", less)
	app.wantLine("-NOPERM this user has no permissions to run the 'incr' command\r\n", "INCR user:1")
	// Another password: who knew the old one is out.
	less.PasswordSHA256 = []string{sha("b")}
	reload("two", less)
	app.wantLine("-"+errNoAuth+"\r\n", "PING")
	def.wantLine("-"+errNoAuth+"\r\n", "INCR order")
	def.wantLine("+OK\r\n", "AUTH two")
	def.wantLine(":4\r\n", "INCR order")
	// The user is gone.
	app.wantLine("+OK\r\n", "AUTH app b")
	reload("two")
	app.wantLine("-"+errNoAuth+"\r\n", "GET order")
	// No password any more: everybody is in.
	reload("")
	app.wantLine(":5\r\n", "INCR order")
	// A mistake changes nothing.
	if err := r.server.Reload(Reloadable{Password: "x", Users: []User{{Name: "u", PasswordSHA256: []string{"zz"}}}}); err == nil || strings.Contains(err.Error(), "zz") {
		t.Errorf("a bad hash: %v; want an error that does not show it", err)
	}
	app.wantLine(":6\r\n", "INCR order")
	// Limits.
	reload("")
	var kept []*client
	for range 2 {
		k := r.dial()
		k.wantLine("+PONG\r\n", "PING")
		kept = append(kept, k)
	}
	if got := r.dial().reply(); got != "-ERR max number of clients reached\r\n" {
		t.Errorf("the sixth client got %q", got)
	}
	for _, k := range kept {
		k.wantLine("+PONG\r\n", "PING")
	}
}

func TestRate(t *testing.T) {
	r := startRig(t, rigOptions{Options: Options{Users: []User{
		{Name: "app", PasswordSHA256: []string{sha("a")}, Tags: []string{"*"}, Groups: []string{"issue", "read"}, Rate: 1000},
	}}})
	c := r.dial()
	c.wantLine("+OK\r\n", "AUTH app a")
	c.wantLine(":1\r\n", "INCR order")
	const over = "-LIMIT user 'app' may take 1000 IDs per second and asked for 1001 at once: nothing was taken\r\n"
	c.wantLine(over, "INCRBY order 1001")
	c.wantLine(over, "SEGMENT.RANGE order 1001")
	c.wantLine(over, "SNOWFLAKE.NEXT COUNT 1001")
	c.wantLine(":901\r\n", "INCRBY order 900")
	// The rest of this second's, on another connection of the same user: the limit is the user's.
	other := r.dial()
	other.wantLine("+OK\r\n", "AUTH app a")
	used := "-LIMIT user 'app' may take 1000 IDs per second and has taken them: nothing was taken, try again in a second\r\n"
	other.wantLine(used, "INCRBY order 1000")
	other.wantLine(used, "SEGMENT.NEXT order COUNT 1000")
	c.wantLine("$3\r\n901\r\n", "GET order")
}

func TestBucket(t *testing.T) {
	b := &bucket{rate: 10}
	const s = int64(time.Second)
	for i, step := range []struct {
		n, at int64
		ok    bool
	}{
		{10, 5 * s, true}, {1, 5 * s, false}, {1, 5*s + s/10, true}, {1, 5*s + s/10, false}, {11, 100 * s, false}, {10, 100 * s, true}, {5, 100*s + s/2, true}, {1, 100*s + s/2, false},
	} {
		if ok := b.take(step.n, step.at); ok != step.ok {
			t.Errorf("step %d: take %d at %d: %v", i, step.n, step.at, ok)
		}
	}
	b.give(5)
	if !b.take(5, 100*s+s/2) {
		t.Error("what was given back is gone")
	}
}

func TestAccount(t *testing.T) {
	r := startRig(t, rigOptions{Options: Options{Password: "p", Users: []User{
		{Name: "app", PasswordSHA256: []string{sha("a")}, Tags: []string{"order:*"}, Groups: []string{"issue"}, Rate: 5},
		{Name: "look", PasswordSHA256: []string{sha("l")}, Tags: []string{"*"}, Groups: []string{"read"}},
	}}})
	s := r.server
	if !s.AuthRequired() {
		t.Error("a password is set, but none required")
	}
	if a, ok := s.Login("", "p"); !ok || a.Name() != "default" || a.Issue("x", 1) != nil {
		t.Error("the default user can't issue")
	}
	if _, ok := s.Login("app", "x"); ok {
		t.Error("a wrong password lets in")
	}
	a, _ := s.Login("app", "a")
	word := func(err error) engine.Word {
		var e *engine.Error
		if errors.As(err, &e) {
			return e.Word
		}
		return ""
	}
	for _, c := range []struct {
		key  string
		n    int64
		want engine.Word
	}{{"order:1", 5, ""}, {"order:1", 1, engine.Limit}, {"user:1", 1, wordNoPerm}, {"order:1", 6, engine.Limit}} {
		if got := word(a.Issue(c.key, c.n)); got != c.want {
			t.Errorf("%s, %d: %q, want %q", c.key, c.n, got, c.want)
		}
	}
	look, _ := s.Login("look", "l")
	if word(look.Issue("", 1)) != wordNoPerm {
		t.Error("a reader may take snowflakes")
	}
}

func TestNewAccountsMistakes(t *testing.T) {
	ok := User{Name: "a", PasswordSHA256: []string{sha("a")}, Groups: []string{"issue"}}
	for want, users := range map[string][]User{
		"has no name":     {{}},
		"two of this":     {ok, ok},
		"64 hex digits":   {{Name: "b", PasswordSHA256: []string{"abc"}}},
		"no group 'all'":  {{Name: "b", Groups: []string{"all"}}},
		"rate -1":         {{Name: "b", Rate: -1}},
		"'default': ther": {{Name: "default"}},
	} {
		if _, err := New(engine.New(engine.Options{}), Options{Password: "p", Users: users}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", users, err, want)
		}
	}
}

// remoteListener makes every client look like one from another machine.
type remoteListener struct{ net.Listener }

type remoteConn struct{ net.Conn }

func (remoteConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 4000}
}

func (l remoteListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return remoteConn{c}, nil
}

func TestProtectedMode(t *testing.T) {
	r := startRig(t, rigOptions{})
	serve := func(o Options) (addr string, s *Server) {
		s, err := New(r.engine, o)
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Serve(Listener{Listener: remoteListener{ln}}) }()
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			s.Shutdown(ctx)
			<-done
		})
		return ln.Addr().String(), s
	}
	addr, s := serve(Options{ProtectedMode: true})
	c := connect(t, addr)
	if got := c.reply(); !strings.HasPrefix(got, "-DENIED Redleaf is running in protected mode") || !strings.Contains(got, "auth.password") || !strings.Contains(got, "protected_mode = false") {
		t.Errorf("got %q", got)
	}
	c.closed()
	if st := s.Stats(); st.Refused != 1 {
		t.Errorf("%d refused, want 1", st.Refused)
	}
	for _, o := range []Options{{}, {ProtectedMode: true, Password: "p"}, {ProtectedMode: true, Users: []User{{Name: "u", PasswordSHA256: []string{sha("x")}}}}} {
		addr, _ := serve(o)
		c := connect(t, addr)
		if got := c.line("PING"); got != "+PONG\r\n" && got != "-"+errNoAuth+"\r\n" {
			t.Errorf("%+v: got %q", o, got)
		}
	}
	local := startRig(t, rigOptions{Options: Options{ProtectedMode: true}})
	local.dial().wantLine("+PONG\r\n", "PING")
	unix := startRig(t, rigOptions{Options: Options{ProtectedMode: true}, network: "unix"})
	u := unix.dial()
	u.wantLine("+PONG\r\n", "PING")
	if got := u.line("CLIENT INFO"); !strings.Contains(got, " addr="+unix.addr+":0 ") || !strings.Contains(got, " flags=U ") {
		t.Errorf("a unix client is shown as %q", got)
	}
}
