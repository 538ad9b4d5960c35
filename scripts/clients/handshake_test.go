package clients

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"redleaf/scripts/process"
)

// handshake is what a library that the matrix can't run sends when it connects, as its source says, and the kinds of
// replies it goes on with. A kind is the reply's first byte, or the whole reply of one line; "-" means that it gets by
// without. All commands of one connection go out in one write, as most of these libraries do it.
type handshake struct {
	library string
	steps   []step
}

type step struct{ command, want string }

// What follows every handshake: the calls that the library is there for.
var calls = []step{{"INCR order", ":"}, {"INCRBY order 10", ":"}, {"MULTI", "+OK"}, {"INCR order", "+QUEUED"}, {"EXEC", "*"}, {"SNOWFLAKE.NEXT", "$"}, {"PING", "+PONG"}}

var handshakes = []handshake{
	{"Jedis 7", []step{
		{"AUTH matrix-secret", "+OK"}, {"CLIENT SETNAME jedis", "+OK"}, {"CLIENT SETINFO LIB-NAME jedis", "+OK"},
		{"CLIENT SETINFO LIB-VER 7.5.3", "+OK"}, {"SELECT 0", "+OK"},
	}},
	{"Jedis 7, RESP3", []step{
		{"HELLO 3 AUTH default matrix-secret", "%"}, {"CLIENT SETNAME jedis", "+OK"}, {"CLIENT SETINFO LIB-NAME jedis", "+OK"},
		{"CLIENT SETINFO LIB-VER 7.5.3", "+OK"},
	}},
	{"Lettuce 7", []step{
		{"HELLO 3 AUTH default matrix-secret SETNAME lettuce", "%"}, {"CLIENT SETINFO lib-name Lettuce", "+OK"},
		{"CLIENT SETINFO lib-ver 7.0.0", "+OK"}, {"CLIENT MAINT_NOTIFICATIONS on moving-endpoint-type internal-ip", "-"},
	}},
	{"Lettuce 6, RESP2", []step{
		{"HELLO 2 AUTH default matrix-secret", "*"}, {"CLIENT SETNAME lettuce", "+OK"}, {"SELECT 0", "+OK"}, {"PING", "+PONG"},
	}},
	{"Redisson 4", []step{
		{"AUTH matrix-secret", "+OK"}, {"SELECT 0", "+OK"}, {"CLIENT SETNAME redisson", "+OK"}, {"PING", "+PONG"},
		{"GETSET order 5", "-"}, {"DECR order", "-"}, // RAtomicLong.getAndSet and decrementAndGet
	}},
	{"StackExchange.Redis 3", []step{
		{"AUTH matrix-secret", "+OK"}, {"HELLO 3", "%"}, {"CLIENT SETNAME host", "+OK"}, {"CLIENT SETINFO lib-name SE.Redis", "+OK"},
		{"CLIENT SETINFO lib-ver 3.1.0", "+OK"}, {"CLIENT ID", ":"}, {"CONFIG GET timeout", "%"}, {"CONFIG GET replica-read-only", "%"},
		{"CONFIG GET databases", "%"}, {"SENTINEL MASTERS", "-"}, {"INFO replication", "="}, {"INFO server", "="}, {"CLUSTER NODES", "-"},
		{"GET __Booksleeve_TieBreak", "_"}, {"ECHO \x00\x01\r\n\xfe\xff0123456789", "$"},
		{"SUBSCRIBE __Booksleeve_MasterChanged", ">"},
	}},
	{"StackExchange.Redis 2, RESP2", []step{
		{"AUTH matrix-secret", "+OK"}, {"CLIENT SETNAME host", "+OK"}, {"CLIENT SETINFO lib-name SE.Redis", "+OK"},
		{"CLIENT SETINFO lib-ver 2.8.0", "+OK"}, {"CLIENT ID", ":"}, {"CONFIG GET timeout", "*"}, {"CONFIG GET slave-read-only", "*"},
		{"CONFIG GET databases", "*"}, {"SENTINEL MASTERS", "-"}, {"INFO replication", "$"}, {"INFO server", "$"}, {"CLUSTER NODES", "-"},
		{"GET __Booksleeve_TieBreak", "$-1"}, {"ECHO \x00\x01\r\n\xfe\xff0123456789", "$"},
	}},
	{"redis-rs 1", []step{
		{"AUTH matrix-secret", "+OK"}, {"SELECT 0", "+OK"}, {"CLIENT SETINFO LIB-NAME redis-rs", "+OK"}, {"CLIENT SETINFO LIB-VER 1.6.0", "+OK"},
	}},
	{"redis-rs 1, RESP3", []step{
		{"HELLO 3 AUTH default matrix-secret", "%"}, {"CLIENT SETINFO LIB-NAME redis-rs", "+OK"}, {"CLIENT SETINFO LIB-VER 1.6.0", "+OK"},
	}},
	{"redis-py 8", []step{
		{"HELLO 3 AUTH default matrix-secret", "%"}, {"CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip", "-"},
		{"CLIENT SETINFO LIB-NAME redis-py", "+OK"}, {"CLIENT SETINFO LIB-VER 8.0.0", "+OK"},
	}},
	{"predis 3", []step{
		{"HELLO 3 AUTH default matrix-secret SETNAME predis", "%"}, {"CLIENT SETINFO LIB-NAME predis", "+OK"}, {"CLIENT SETINFO LIB-VER 3.6.1", "+OK"},
	}},
	{"redis-rb 6", []step{
		{"HELLO 3 AUTH default matrix-secret", "%"}, {"SELECT 0", "+OK"}, {"CLIENT SETINFO LIB-NAME redis-client", "+OK"},
		{"CLIENT SETINFO LIB-VER 0.30.0", "+OK"}, {"CLIENT SETINFO LIB-NAME redis-rb", "+OK"}, {"CLIENT SETINFO LIB-VER 6.0.0", "+OK"},
	}},
	{"go-redis 9.5.0", []step{
		{"hello 3 auth default matrix-secret", "%"}, {"client setinfo LIB-NAME go-redis(,go1.22)", "+OK"}, {"client setinfo LIB-VER 9.5.0", "+OK"},
	}},
	{"any library's pool that ends", []step{{"AUTH default matrix-secret", "+OK"}}},
}

// Some libraries tell retryable errors from others by how the text begins, without a space behind the word.
var reactions = []string{"MOVED", "ASK", "OOM", "WAIT", "REDIRECT", "LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "NOSCRIPT", "NOREPLICAS", "READONLY"}

// TestHandshakes plays the handshakes of libraries that can't be run here: Jedis, Lettuce, Redisson, StackExchange.Redis,
// redis-rs, and other versions of some that can. A library whose command stays without an answer is out of step for ever,
// so each must have exactly one, and of a kind that the library understands.
func TestHandshakes(t *testing.T) {
	server := process.Start(t, process.Options{Config: fmt.Sprintf("[auth]\npassword = %q\n", secret)})
	for _, h := range handshakes {
		t.Run(h.library, func(t *testing.T) {
			c, err := net.Dial("tcp", server.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			steps := slices.Concat(h.steps, calls, []step{{"QUIT", "+OK"}})
			var request []byte
			for _, s := range steps {
				request = append(request, process.Command(words(s.command)...)...)
			}
			if _, err := c.Write(request); err != nil {
				t.Fatal(err)
			}
			in := bufio.NewReader(c)
			for _, s := range steps {
				r, err := readReply(in)
				if err != nil {
					t.Fatalf("%s: %v", s.command, err)
				}
				if !strings.HasPrefix(r.text, s.want) || len(s.want) > 1 && r.text != s.want {
					t.Errorf("%s: %.200q, want %q", s.command, r.text, s.want)
				}
				if r.text[0] == '-' {
					for _, word := range reactions {
						if strings.HasPrefix(r.text[1:], word) {
							t.Errorf("%s: %q begins with a word that libraries react to", s.command, r.text)
						}
					}
				}
				switch w := words(s.command); strings.ToUpper(w[0]) {
				case "HELLO":
					// Types matter: Lettuce casts id to a number, and mode, version and role to strings.
					want := map[string]string{"server": "$", "version": "$", "proto": ":" + w[1], "id": ":", "mode": "$standalone", "role": "$master", "modules": "*0"}
					for i := 0; i+1 < len(r.items); i += 2 {
						name := strings.TrimPrefix(r.items[i].text, "$")
						if v, ok := want[name]; !ok || !strings.HasPrefix(r.items[i+1].text, v) {
							t.Errorf("%s: %s is %q", s.command, name, r.items[i+1].text)
						}
						delete(want, name)
					}
					if len(want) > 0 {
						t.Errorf("%s: %v missing", s.command, want)
					}
				case "ECHO":
					if r.text != "$"+w[1] {
						t.Errorf("ECHO of %q is %q", w[1], r.text)
					}
				case "CONFIG":
					if len(r.items) != 0 && (len(r.items) != 2 || r.items[0].text != "$"+w[2]) {
						t.Errorf("%s: %v", s.command, r.items)
					}
				}
			}
			if b, err := in.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("after QUIT: %q, %v, want the end of the connection", b, err)
			}
		})
	}
}

// TestSubscriberOfStackExchange is its second connection in RESP2: a channel on which nothing is ever published, with
// heartbeats.
func TestSubscriberOfStackExchange(t *testing.T) {
	server := process.Start(t, process.Options{})
	c, err := net.Dial("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for _, s := range []struct{ command, want string }{
		{"CLIENT SETNAME host", "+OK"},
		{"SUBSCRIBE __Booksleeve_MasterChanged", "*3[$subscribe $__Booksleeve_MasterChanged :1]"},
		{"PING", "*2[$pong $]"},
		{"UNSUBSCRIBE __Booksleeve_MasterChanged", "*3[$unsubscribe $__Booksleeve_MasterChanged :0]"},
		{"INCR order", ":1"},
	} {
		if _, err := c.Write(process.Command(words(s.command)...)); err != nil {
			t.Fatal(err)
		}
		r, err := readReply(in)
		if err != nil {
			t.Fatalf("%s: %v", s.command, err)
		}
		if got := r.String(); got != s.want {
			t.Errorf("%s: %s, want %s", s.command, got, s.want)
		}
	}
}

// words splits at the first spaces only where the last argument is not text.
func words(command string) []string {
	if name, raw, _ := strings.Cut(command, " "); name == "ECHO" {
		return []string{name, raw}
	}
	return strings.Fields(command)
}

// reply keeps the type of what was answered: text is the type's byte and the value, or the number of items.
type reply struct {
	text  string
	items []reply
}

func (r reply) String() string {
	if r.items == nil {
		return r.text
	}
	return r.text + fmt.Sprint(r.items)
}

func readReply(in *bufio.Reader) (reply, error) {
	head, err := in.ReadString('\n')
	if err != nil {
		return reply{}, err
	}
	head = strings.TrimSuffix(head, "\r\n")
	if head == "" {
		return reply{}, errors.New("an empty line instead of a reply")
	}
	n, _ := strconv.Atoi(head[1:])
	switch head[0] {
	case '+', '-', ':', '_', '#', ',', '(':
		return reply{text: head}, nil
	case '$', '=':
		if n < 0 {
			return reply{text: head}, nil
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return reply{}, err
		}
		return reply{text: head[:1] + string(b[:n])}, nil
	case '%':
		n *= 2
		fallthrough
	case '*', '~', '>':
		r := reply{text: head}
		for range n {
			item, err := readReply(in)
			if err != nil {
				return r, err
			}
			r.items = append(r.items, item)
		}
		return r, nil
	}
	return reply{}, fmt.Errorf("no reply begins with %q", head)
}
