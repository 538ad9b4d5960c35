package server

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"redleaf/segment"
	"redleaf/segment/storetest"
)

// TestScan: cursors stay below 2^53 (cases R16), every tag comes once and in order, and a cursor that is not remembered is an
// error instead of a wrong page.
func TestScan(t *testing.T) {
	store := storetest.NewMem()
	const n = 2500
	for i := range n {
		store.DB().SetRow(segment.Row{Tag: fmt.Sprintf("tag:%05d", i), Max: 1, Step: 1000})
	}
	r := startRig(t, rigOptions{store: store})
	c := r.dial()
	re := regexp.MustCompile(`(?s)^\*2\r\n\$\d+\r\n(\d+)\r\n\*\d+\r\n(.*)$`)
	name := regexp.MustCompile(`tag:\d{5}`)
	scan := func(options string) (tags []string, pages int) {
		for cursor := "0"; ; {
			m := re.FindStringSubmatch(c.line("SCAN " + cursor + options))
			if m == nil {
				t.Fatalf("SCAN %s%s", cursor, options)
			}
			pages++
			tags = append(tags, name.FindAllString(m[2], -1)...)
			cursor = m[1]
			if id, ok := parseInt([]byte(cursor)); !ok || id < 0 || id >= 1<<53 {
				t.Fatalf("cursor %s", cursor)
			}
			if cursor == "0" {
				return tags, pages
			}
		}
	}
	for options, want := range map[string]int{"": n, " COUNT 1000": n, " MATCH *7 COUNT 500": n / 10, " MATCH tag:0000?": 10, " TYPE string COUNT 5000": n, " TYPE hash": 0} {
		tags, pages := scan(options)
		if len(tags) != want {
			t.Errorf("SCAN 0%s: %d tags in %d pages, want %d", options, len(tags), pages, want)
		}
		for i := 1; i < len(tags); i++ {
			if tags[i-1] >= tags[i] {
				t.Fatalf("SCAN 0%s: %s before %s", options, tags[i-1], tags[i])
			}
		}
	}
	// The same cursor twice gives the same page: a client that lost a reply asks again.
	first := re.FindStringSubmatch(c.line("SCAN 0"))
	if a, b := c.line("SCAN "+first[1]), c.line("SCAN "+first[1]); name.FindAllString(a, -1)[0] != "tag:00010" || name.FindAllString(a, -1)[0] != name.FindAllString(b, -1)[0] {
		t.Error("a cursor used twice gives different pages")
	}
	c.wantLine("-ERR cursor 12345 is not remembered any more (or is another instance's): begin again with SCAN 0\r\n", "SCAN 12345")
	for range 5000 {
		r.server.cursors.put("x")
	}
	c.wantLine("-ERR cursor "+first[1]+" is not remembered any more (or is another instance's): begin again with SCAN 0\r\n", "SCAN "+first[1])

	cur := newCursors()
	cur.next = 1<<53 - 1
	if a, b := cur.put("a"), cur.put("b"); a != 1<<53-1 || b != 1 {
		t.Errorf("cursors %d, %d at the end of their range", a, b)
	}
}

func TestKeysLimit(t *testing.T) {
	store := storetest.NewMem()
	for i := range maxKeys + 1 {
		store.DB().SetRow(segment.Row{Tag: fmt.Sprint("t", i), Max: 1, Step: 1})
	}
	c := startRig(t, rigOptions{store: store}).dial()
	c.wantLine("-ERR there are 10001 tags: KEYS goes through 10000 at most, use SCAN\r\n", "KEYS *")
	c.wantLine(":10001\r\n", "DBSIZE")
}

// TestStoreThatCantBeAsked: "no" is an answer that only the store can give (I11).
func TestStoreThatCantBeAsked(t *testing.T) {
	r := startRig(t, rigOptions{wait: 1e8})
	c := r.dial()
	c.wantLine(":1\r\n", "INCR warm")
	r.store.DB().SetDown(&segment.UnavailableError{Cause: errors.New("it is down")})
	for _, line := range []string{"EXISTS cold", "TYPE cold", "TTL cold", "GET cold", "MGET warm cold", "KEYS *", "SCAN 0", "SEGMENT.LIST", "RANDOMKEY", "SETNX cold 1", "SET cold 1", "SEGMENT.CREATE cold", "INCR cold", "MEMORY USAGE cold"} {
		if got := c.line(line); !strings.HasPrefix(got, "-TRYAGAIN ") {
			t.Errorf("%s: %q", line, got)
		}
	}
	c.wantLine(":2\r\n", "INCR warm")
	c.wantLine("$1\r\n2\r\n", "GET warm")
	c.wantLine("+PONG\r\n", "PING")
	if got := c.line("INFO"); !strings.Contains(got, "redis_version:7.2.4\r\n") {
		t.Errorf("INFO needs the store: %q", got)
	}
}

// TestUserSeesOwnTags: names of tags that a user may not touch are not shown to it.
func TestUserSeesOwnTags(t *testing.T) {
	store := storetest.NewMem()
	for _, tag := range []string{"a:1", "b:1", "b:2", "c:1"} {
		store.DB().SetRow(segment.Row{Tag: tag, Max: 1, Step: 1})
	}
	c := startRig(t, rigOptions{store: store, Options: Options{Users: []User{{Name: "b", PasswordSHA256: []string{sha("b")}, Tags: []string{"b:*"}, Groups: []string{"read"}}}}}).dial()
	c.wantLine("+OK\r\n", "AUTH b b")
	const two = "*2\r\n$3\r\nb:1\r\n$3\r\nb:2\r\n"
	c.wantLine(two, "KEYS *")
	c.wantLine("*2\r\n$1\r\n0\r\n"+two, "SCAN 0")
	c.wantLine(two, "SEGMENT.LIST")
	if got := c.line("RANDOMKEY"); !strings.Contains(got, "b:") {
		t.Errorf("RANDOMKEY: %q", got)
	}
	c.wantLine("-"+errNoPermKey+"\r\n", "EXISTS b:1 a:1")
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "", true}, {"", "", true}, {"", "a", false}, {"a*c", "abbc", true}, {"a*c", "abbd", false}, {"*a*b*", "xxaxxbxx", true},
		{"?", "a", true}, {"?", "", false}, {"[abc]x", "bx", true}, {"[^abc]x", "bx", false}, {"[a-c]", "b", true}, {"[c-a]", "b", true},
		{"[a", "a", true}, {"[]", "a", false}, {`\*`, "*", true}, {`\*`, "a", false}, {`[\]]`, "]", true}, {`a\`, `a\`, true}, {"order:*", "order:1", true},
		{"order:*", "orders", false}, {"**", "abc", true}, {"a**b", "ab", true}, {"[^", "a", true},
	} {
		if got := glob(c.pattern, c.s); got != c.want {
			t.Errorf("glob(%q, %q) = %v", c.pattern, c.s, got)
		}
	}
	// Redis' own needs exponential time for this.
	if glob(strings.Repeat("*a", 1000)+"b", strings.Repeat("a", 128)) {
		t.Error("matched")
	}
}

func FuzzGlob(f *testing.F) {
	f.Add("a*[b-]\\", "abc")
	f.Fuzz(func(_ *testing.T, pattern, s string) { glob(pattern, s) })
}

func TestParseInt(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "1": 1, "-1": -1, "9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63} {
		if n, ok := parseInt([]byte(s)); !ok || n != want {
			t.Errorf("%s: %d, %v", s, n, ok)
		}
	}
	for _, s := range []string{"", "-", "+5", "05", " 5", "5 ", "-0", "-05", "00", "1e3", "0x10", "1.5", "9223372036854775808", "-9223372036854775809", "18446744073709551616", "99999999999999999999", "--1", "1-", "a"} {
		if n, ok := parseInt([]byte(s)); ok {
			t.Errorf("%q was read as %d", s, n)
		}
	}
}
