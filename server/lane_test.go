package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// laneListener is a listener whose connections are pipes: each Write arrives as a Read of its own, so that a test decides
// where the bytes are split.
type laneListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newLaneListener() *laneListener {
	return &laneListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *laneListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *laneListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *laneListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// exchange sends the pieces, each in a write of its own, and returns everything the server sent until it closed.
func (l *laneListener) exchange(t testing.TB, pieces ...string) string {
	t.Helper()
	ours, theirs := net.Pipe()
	l.conns <- theirs
	ours.SetDeadline(time.Now().Add(30 * time.Second))
	got := make(chan string, 1)
	go func() {
		b, err := io.ReadAll(ours)
		if err != nil {
			b = append(b, "!"+err.Error()...)
		}
		got <- string(b)
	}()
	for _, p := range pieces {
		if p == "" {
			continue
		}
		if _, err := io.WriteString(ours, p); err != nil {
			break // closed early, as some streams want
		}
	}
	s := <-got
	ours.Close()
	return s
}

// servePipes serves l by a server of its own over r's engine, with or without the fast lane.
func (r *rig) servePipes(t *testing.T, o Options, lane bool) *laneListener {
	t.Helper()
	s, err := New(r.engine, o)
	if err != nil {
		t.Fatal(err)
	}
	s.noLane = !lane
	l := newLaneListener()
	done := make(chan error, 1)
	go func() { done <- s.Serve(Listener{Listener: l}) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.Shutdown(ctx)
		<-done
	})
	return l
}

// laneStates are the commands that change what a hot command means, before and after hot ones.
var laneStates = []struct {
	name   string
	before string // lines, sent before the first hot command
	after  string // and after it
}{
	{"nothing", "", ""},
	{"multi exec", "MULTI", "EXEC"},
	{"multi discard", "MULTI", "DISCARD"},
	{"multi aborted", "MULTI|BOGUS", "EXEC"},
	{"multi refused", "MULTI|DEL x", "EXEC"},
	{"multi left open", "MULTI", ""},
	{"watch", "WATCH $k", "MULTI|PING|EXEC"},
	{"exec without multi", "EXEC", "EXEC"},
	{"select", "SELECT 0", "SELECT 9"},
	{"hello 3", "HELLO 3", "HELLO 2"},
	{"reset", "HELLO 3", "RESET"},
	{"reset in multi", "MULTI", "RESET"},
	{"reply off", "CLIENT REPLY OFF", "CLIENT REPLY ON"},
	{"reply skip", "CLIENT REPLY SKIP", ""},
	{"reply skip twice", "CLIENT REPLY SKIP", "CLIENT REPLY SKIP"},
	{"reply off left", "CLIENT REPLY OFF", ""},
	{"tracking", "HELLO 3|CLIENT TRACKING ON", "CLIENT TRACKING OFF"},
	{"tracking optin", "HELLO 3|CLIENT TRACKING ON OPTIN|CLIENT CACHING YES", ""},
	{"tracking optin in multi", "HELLO 3|CLIENT TRACKING ON OPTIN|CLIENT CACHING YES|MULTI|PTTL $k", "EXEC"},
	{"tracking optout", "HELLO 3|CLIENT TRACKING ON OPTOUT|CLIENT CACHING NO", ""},
	{"subscribe", "SUBSCRIBE a", "UNSUBSCRIBE a"},
	{"subscribe 3", "HELLO 3|SUBSCRIBE a", "UNSUBSCRIBE a"},
	{"unsubscribe all", "SUBSCRIBE a|UNSUBSCRIBE", ""},
	{"pause", "CLIENT PAUSE 1", "CLIENT PAUSE 1 WRITE"},
	{"set", "SET $k 500", "SET $k 900"},
	{"slow key", "EXISTS $k", "SEGMENT.NEXT $k"},
	{"kill self", "CLIENT KILL TYPE normal SKIPME no", ""},
	{"quit", "QUIT", ""},
	{"name", "CLIENT SETNAME x", "CLIENT GETNAME"},
	{"unknown", "BOGUS a", "INCR"},
	{"inline", "~PING hello", "~INCR $k"},
	{"wrong type", "INCRBY $k abc", "INCRBY $k 0"},
	{"protocol error", "~*1\r\n!", ""},
	{"http", "~POST / HTTP/1.1", ""},
	{"empty", "~*0\r\n", "~\r\n"},
}

var laneHot = []string{"INCR $k", "incrby $k 7", "GET $k", "PING", "SNOWFLAKE.NEXT", "ping x", "INCRBY $k -5"}

// laneHide is what differs from one connection to another.
var laneHide = regexp.MustCompile(`\$19\r\n\d{19}\r\n|\$2\r\nid\r\n:\d+\r\n`)

func laneStream(lines []string, key string) string {
	var b strings.Builder
	for _, l := range lines {
		l = strings.ReplaceAll(l, "$k", key)
		switch {
		case l == "":
		case l[0] == '~':
			b.WriteString(l[1:] + "\r\n")
		default:
			b.WriteString(wire(strings.Fields(l)...))
		}
	}
	return b.String()
}

// TestLaneCross: whatever stands around a hot command, and wherever the bytes are split, the replies are those of a server
// without the fast lane.
func TestLaneCross(t *testing.T) {
	r := startRig(t, rigOptions{})
	cross := func(t *testing.T, o Options, name string, streams func(hot string) []string) {
		with, without := r.servePipes(t, o, true), r.servePipes(t, o, false)
		for i, hot := range laneHot {
			lines := append(streams(hot), "CLIENT REPLY ON", "QUIT")
			n := 0
			stream := func() (string, string) {
				n++
				key := fmt.Sprintf("k:%s:%d:%06d", strings.ReplaceAll(name, " ", "-"), i, n)
				return laneStream(lines, key), key
			}
			whole, key := stream()
			want := laneHide.ReplaceAllString(strings.ReplaceAll(without.exchange(t, whole), key, "KEY"), "ID")
			if strings.Contains(want, "!") && !strings.Contains(want, "got '!'") {
				t.Fatalf("%s, %s: %q", name, hot, want)
			}
			step := 1
			if i >= hotRows { // variants of the five
				step = 11
			}
			if raceDetector { // ten times slower; every point is walked without it
				step *= 5
			}
			for at := 0; at <= len(whole); at += step {
				s, key := stream()
				got := laneHide.ReplaceAllString(strings.ReplaceAll(with.exchange(t, s[:at], s[at:]), key, "KEY"), "ID")
				if got != want {
					t.Fatalf("%s around %q, split at %d (%q | %q):\n got %q\nwant %q", name, hot, at, s[:at], s[at:], got, want)
				}
			}
		}
	}
	for _, st := range laneStates {
		t.Run(st.name, func(t *testing.T) {
			t.Parallel()
			cross(t, Options{}, st.name, func(hot string) []string {
				lines := []string{hot}
				lines = append(lines, strings.Split(st.before, "|")...)
				lines = append(lines, hot, hot)
				lines = append(lines, strings.Split(st.after, "|")...)
				return append(lines, hot, "GET $k")
			})
		})
	}
	o := Options{Password: "secret", Users: []User{
		{Name: "reader", PasswordSHA256: []string{sha("r")}, Tags: []string{"*"}, Groups: []string{"read"}},
		{Name: "other", PasswordSHA256: []string{sha("o")}, Tags: []string{"other:*"}, Groups: []string{"issue", "read"}},
		{Name: "slow", PasswordSHA256: []string{sha("s")}, Tags: []string{"*"}, Groups: []string{"issue", "read"}, Rate: 1 << 40},
	}}
	for _, auth := range []string{"AUTH wrong", "AUTH secret", "AUTH reader r", "AUTH other o", "AUTH slow s", "HELLO 3 AUTH default secret", "HELLO 3 AUTH other o|AUTH reader r", "AUTH secret|RESET"} {
		t.Run(auth, func(t *testing.T) {
			t.Parallel()
			cross(t, o, auth, func(hot string) []string {
				lines := append([]string{hot}, strings.Split(auth, "|")...)
				return append(lines, hot, hot, "AUTH wrong", hot, "AUTH secret", hot, "GET $k")
			})
		})
	}
}

func sha(password string) string {
	sum := sha256.Sum256([]byte(password))
	return hex.EncodeToString(sum[:])
}
