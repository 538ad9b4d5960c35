package server

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"redleaf/scripts/services"
)

var updateDifferences = flag.Bool("differences", false, "print the differences that testdata/differences.txt does not list")

// sameBytes are the commands that Redis has too, one session: each line goes to redis-server and to Redleaf, in RESP2 and in
// RESP3. "\x" escapes as in Go; words are split at spaces. A line beginning with ">" is sent raw.
// What differs is listed with its reason in testdata/differences.txt, and only that may differ.
var sameBytes = strings.Split(strings.TrimSpace(`
PING
ping hello
PING a b
PiNg
ECHO hi
ECHO
ECHO a b
INCR order
incr order
INCR
INCR a b
INCRBY order 10
INCRBY order 1
INCRBY order +5
INCRBY order 05
INCRBY order \x205
INCRBY order -0
INCRBY order 1e3
INCRBY order 0x10
INCRBY order 1.5
INCRBY order abc
INCRBY order ""
INCRBY order 9223372036854775808
INCRBY order 99999999999999999999999
INCRBY order
INCRBY order 1 2
GET order
GET nosuch
GET
GET a b
MGET order nosuch order
MGET
EXISTS order
EXISTS order nosuch order
EXISTS
TYPE order
TYPE nosuch
TYPE
TTL order
TTL nosuch
PTTL order
PTTL nosuch
TTL
DBSIZE
DBSIZE x
RANDOMKEY
RANDOMKEY x
KEYS *
KEYS ord?r
KEYS [^a]rder
KEYS nosuch*
KEYS
SCAN 0
SCAN 0 MATCH o*
SCAN 0 MATCH x*
SCAN 0 COUNT 100
SCAN 0 COUNT 0
SCAN 0 COUNT abc
SCAN 0 TYPE string
SCAN 0 TYPE hash
SCAN 0 MATCH
SCAN 0 BOGUS 1
SCAN abc
SCAN -1
SCAN
SET fresh 100
SET fresh 100 NX
SET fresh 200 XX
SET nosuch 1 XX
SET fresh 300 NX XX
SET fresh 300 BOGUS
SET fresh
SET
SET gone 300 GET
SET gone 300 EX 10
SET gone 300 KEEPTTL
GET fresh
INCR fresh
SETNX fresh 1
SETNX other 1
INCR other
SETNX other
SELECT 0
SELECT 1
SELECT 0
SELECT 16
SELECT -1
SELECT abc
SELECT 99999999999
SELECT
AUTH x
AUTH default x
AUTH a b c
AUTH nosuch x
AUTH
HELLO
HELLO 1
HELLO 4
HELLO abc
HELLO 3 BOGUS
HELLO 3 AUTH
HELLO 3 AUTH a
HELLO 3 AUTH nosuch x
HELLO 3 SETNAME
HELLO 3 SETNAME "a b"
HELLO 2 SETNAME me
HELLO 3 SETNAME you
CLIENT GETNAME
CLIENT SETNAME conn1
CLIENT GETNAME
CLIENT SETNAME "a b"
CLIENT SETNAME "a\nb"
CLIENT SETNAME ""
CLIENT GETNAME
CLIENT SETNAME
CLIENT ID x
CLIENT SETINFO LIB-NAME x
CLIENT
CLIENT BOGUS
CLIENT NO-EVICT ON
CLIENT NO-EVICT OFF
CLIENT NO-EVICT bogus
CLIENT NO-TOUCH ON
CLIENT REPLY ON
CLIENT REPLY bogus
CLIENT KILL ID 0
CLIENT KILL ID abc
CLIENT KILL ID 99999
CLIENT KILL 1.2.3.4:5
CLIENT KILL ADDR 1.2.3.4:5
CLIENT KILL LADDR 1.2.3.4:5
CLIENT KILL USER nosuch
CLIENT KILL TYPE bogus
CLIENT KILL SKIPME maybe
CLIENT KILL BOGUS x
CLIENT KILL ID 1 ADDR
CLIENT KILL
CLIENT LIST TYPE bogus
CLIENT LIST TYPE master
CLIENT LIST ID 99999
CLIENT LIST ID abc
CLIENT LIST BOGUS
CLIENT PAUSE abc
CLIENT PAUSE -1
CLIENT PAUSE 0
CLIENT PAUSE 1 WRITE
CLIENT PAUSE 1 BOGUS
CLIENT UNPAUSE
CLIENT UNPAUSE x
CLIENT GETREDIR
CLIENT TRACKINGINFO
CLIENT CACHING YES
CLIENT TRACKING bogus
CLIENT TRACKING ON OPTIN OPTOUT
CLIENT TRACKING ON BOGUS
CLIENT TRACKING ON REDIRECT 99999
CLIENT TRACKING ON REDIRECT abc
CLIENT TRACKING ON PREFIX a
CLIENT TRACKING ON OPTIN
CLIENT TRACKINGINFO
CLIENT GETREDIR
CLIENT CACHING NO
CLIENT CACHING bogus
CLIENT CACHING YES
CLIENT TRACKINGINFO
CLIENT TRACKING OFF
CLIENT TRACKING ON OPTOUT
CLIENT CACHING YES
CLIENT CACHING NO
CLIENT TRACKING OFF
CLIENT TRACKING ON NOLOOP
CLIENT TRACKINGINFO
CLIENT TRACKING OFF
MULTI
INCR order
INCRBY order 5
GET order
EXEC
MULTI
MULTI
INCR order
EXEC
MULTI
WATCH order
INCR order
EXEC
MULTI
INCR
EXEC
MULTI
BOGUS
INCR order
EXEC
MULTI
INCRBY order abc
INCR order
EXEC
MULTI
EXEC
MULTI
INCR order
DISCARD
EXEC
DISCARD
MULTI x
EXEC x
WATCH
WATCH order
MULTI
INCR order
EXEC
WATCH order
INCR order
MULTI
INCR order
EXEC
WATCH order
INCR order
UNWATCH
MULTI
INCR order
EXEC
WATCH order
INCR order
MULTI
DISCARD
MULTI
INCR order
EXEC
MULTI
PING
ECHO x
SELECT 0
SELECT 5
TYPE order
EXISTS order
TTL order
CLIENT GETNAME
CLIENT BOGUS
EXEC
MULTI
UNWATCH
EXEC
GET order
TIME x
ROLE
ROLE x
WAIT 0 0
WAIT 1 1
WAIT abc 1
WAIT 1 abc
WAIT 1 -1
WAIT
SLOWLOG LEN
SLOWLOG GET
SLOWLOG GET 5
SLOWLOG GET -1
SLOWLOG GET -2
SLOWLOG GET abc
SLOWLOG RESET
SLOWLOG BOGUS
SLOWLOG
LATENCY LATEST
LATENCY RESET
LATENCY RESET a b
LATENCY BOGUS
LATENCY
MEMORY USAGE nosuch
MEMORY USAGE order SAMPLES
MEMORY USAGE order BOGUS 1
MEMORY USAGE order SAMPLES -1
MEMORY BOGUS
MEMORY
ACL WHOAMI
ACL WHOAMI x
ACL BOGUS
ACL
MODULE LIST
MODULE BOGUS
CONFIG GET save
CONFIG GET appendonly
CONFIG GET nosuch
CONFIG GET slowlog-max-len
CONFIG GET maxmemory
CONFIG GET replica-read-only
CONFIG GET timeout
CONFIG GET databases
CONFIG GET sav?
CONFIG GET SAVE
CONFIG GET
CONFIG SET nosuch 1
CONFIG SET save
CONFIG SET
CONFIG RESETSTAT
CONFIG RESETSTAT x
CONFIG REWRITE
CONFIG BOGUS
CONFIG
COMMAND COUNT x
COMMAND INFO incr
COMMAND INFO incrby
COMMAND INFO get
COMMAND INFO mget
COMMAND INFO exists
COMMAND INFO ttl
COMMAND INFO type
COMMAND INFO setnx
COMMAND INFO echo
COMMAND INFO ping
COMMAND INFO select
COMMAND INFO auth
COMMAND INFO hello
COMMAND INFO quit
COMMAND INFO reset
COMMAND INFO multi
COMMAND INFO exec
COMMAND INFO discard
COMMAND INFO watch
COMMAND INFO unwatch
COMMAND INFO time
COMMAND INFO role
COMMAND INFO wait
COMMAND INFO dbsize
COMMAND INFO randomkey
COMMAND INFO keys
COMMAND INFO subscribe
COMMAND INFO unsubscribe
COMMAND INFO info
COMMAND INFO command|count
COMMAND INFO client|id
COMMAND INFO config|get
COMMAND INFO acl|whoami
COMMAND INFO memory|usage
COMMAND INFO slowlog|get
COMMAND INFO latency|latest
COMMAND INFO nosuch incr|x
COMMAND GETKEYS INCR k
COMMAND GETKEYS MGET a b c
COMMAND GETKEYS MSET a 1 b 2
COMMAND GETKEYS SET a 1
COMMAND GETKEYS MEMORY USAGE k
COMMAND GETKEYS PING
COMMAND GETKEYS NOSUCH k
COMMAND GETKEYS INCR
COMMAND GETKEYS INCR a b
COMMAND GETKEYS
COMMAND DOCS nosuch
COMMAND LIST FILTERBY BOGUS x
COMMAND LIST FILTERBY MODULE x
COMMAND LIST FILTERBY PATTERN incr
COMMAND LIST FILTERBY
COMMAND LIST x
COMMAND BOGUS
CLUSTER INFO
CLUSTER NODES
CLUSTER SLOTS
CLUSTER
READONLY
READWRITE
READONLY x
ASKING
DEBUG SLEEP 0
DEBUG
MONITOR x
SUBSCRIBE
UNSUBSCRIBE
SUBSCRIBE a b
SUBSCRIBE a
GET order
PING
PING x
INCR order
PSUBSCRIBE p*
UNSUBSCRIBE a
UNSUBSCRIBE nosuch
SSUBSCRIBE s
SUNSUBSCRIBE s
PUNSUBSCRIBE
UNSUBSCRIBE
GET order
PUNSUBSCRIBE
RESET
GET order
RESET x
BOGUS
BOGUS a
BOGUS a b c d e f g h i j
BOGUS "a\r\nb" c
"BO\r\nGUS" x
"" x
bogus aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbb
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa x
"a\x00b" "c\x00d" e
DEL order
DECR order
DECRBY order 1
INCRBYFLOAT order 1.5
APPEND order x
GETSET order 1
SETEX order 10 1
EXPIRE order 10
PERSIST order
RENAME order x
EVAL "return 1" 0
EVALSHA abc 0
SCRIPT LOAD x
FLUSHALL
DEL
DECR
EXPIRE order
EVAL x
MSET a
LOLWUT
SHUTDOWN BOGUS
SHUTDOWN ABORT
INCRBY neg 0
INCRBY neg -1
HELLO 3
GET nosuch
MGET nosuch nosuch
EXEC
WATCH last
INCR last
MULTI
EXEC
HELLO 2
QUIT x
`), "\n")

// words splits a line of sameBytes: at spaces, with Go's quoted strings.
func splitWords(t testing.TB, line string) []string {
	var out []string
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		if line[0] == '"' {
			end := 1
			for line[end] != '"' {
				if line[end] == '\\' {
					end++
				}
				end++
			}
			out = append(out, unquote(t, line[:end+1]))
			line = line[end+1:]
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		out = append(out, unquote(t, `"`+word+`"`))
		line = rest
	}
	return out
}

func unquote(t testing.TB, s string) string {
	var out string
	if _, err := fmt.Sscanf(s, "%q", &out); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return out
}

// changing is what can't be the same in two servers, and says nothing about either.
var changing = []struct {
	re  *regexp.Regexp
	was string
}{
	{regexp.MustCompile(`\$2\r\nid\r\n:\d+`), "$2\r\nid\r\n:N"},
	{regexp.MustCompile(`\$7\r\nversion\r\n\$\d+\r\n[0-9.]+`), "version"},
}

func normal(s string) string {
	for _, c := range changing {
		s = c.re.ReplaceAllString(s, c.was)
	}
	return s
}

// TestDifferential compares Redleaf with redis-server, command by command.
func TestDifferential(t *testing.T) {
	redis := services.StartRedis(t)
	known := readDifferences(t)
	used := map[string]bool{}
	for _, proto := range []string{"2", "3"} {
		redis.Do("FLUSHALL")
		redis.Do("CONFIG", "SET", "slowlog-log-slower-than", "-1")
		redis.Do("SLOWLOG", "RESET")
		r := startRig(t, rigOptions{})
		theirs, ours := connect(t, redis.Addr()), r.dial()
		for _, c := range []*client{theirs, ours} {
			c.do("HELLO", proto)
		}
		current := proto
		for _, line := range sameBytes {
			args := splitWords(t, line)
			raw := wire(args...)
			n := replies(args)
			var got [2]string
			for i, c := range []*client{theirs, ours} {
				c.send(raw)
				got[i] = normal(c.replies(n))
			}
			if line == "RESET" && current == "3" { // it made both speak RESP2
				theirs.do("HELLO", "3")
				ours.do("HELLO", "3")
			}
			key := "RESP" + proto + " " + line
			reason, listed := known[key]
			if !listed {
				key = line
				reason, listed = known[key]
			}
			switch {
			case got[0] == got[1]:
			case listed && reason != "":
				used[key] = true
			case *updateDifferences:
				fmt.Printf("%s\n\tredis   %q\n\tredleaf %q\n", line, got[0], got[1])
			default:
				t.Errorf("RESP%s %s\n\tredis   %q\n\tredleaf %q", proto, line, got[0], got[1])
			}
		}
		theirs.closed()
		ours.closed()
	}
	for key := range known {
		if !used[key] && !*updateDifferences {
			t.Errorf("testdata/differences.txt lists %q, but there is no difference", key)
		}
	}
}

// replies is how many replies a command gets: subscriptions answer once per channel.
func replies(args []string) int {
	switch strings.ToLower(args[0]) {
	case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
		return max(1, len(args)-1)
	}
	return 1
}

func (c *client) replies(n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(c.reply())
	}
	return b.String()
}

// readDifferences reads testdata/differences.txt: blocks of command lines, each under a "# reason".
func readDifferences(t *testing.T) map[string]string {
	f, err := os.Open("testdata/differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	known, reason := map[string]string{}, ""
	for sc := bufio.NewScanner(f); sc.Scan(); {
		switch line := strings.TrimRight(sc.Text(), " "); {
		case line == "":
		case strings.HasPrefix(line, "# "):
			reason = line[2:]
		default:
			if reason == "" {
				t.Fatalf("differences.txt: %q has no reason", line)
			}
			known[line] = reason
		}
	}
	return known
}
