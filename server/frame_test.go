package server

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/tidwall/redcon"
)

// feed drives a frame as guardConn does and writes down what it finds: each
// command as its quoted arguments, then the verdict that ended it.
func feed(t testing.TB, lim *frameLimits, trusted bool, input []byte, chunk func(left int) int) []string {
	t.Helper()
	var f frame
	f.init(lim)
	f.trusted = trusted
	grown := 0
	may := func(more int) bool { grown += more; return true }
	var found []string
	for {
		switch v := f.next(); v {
		case frameWhole:
			if got := f.next(); got != frameWhole {
				t.Fatalf("asked again before take: %v", got)
			}
			cmd, err := redcon.Parse(bytes.Clone(f.cmd.raw))
			if err != nil {
				t.Fatalf("redcon refuses %.200q: %v", f.cmd.raw, err)
			}
			if len(cmd.Args) != f.cmd.Len() {
				t.Fatalf("Len is %d, redcon finds %d arguments in %.200q", f.cmd.Len(), len(cmd.Args), f.cmd.raw)
			}
			for i := range min(len(cmd.Args), frameViews) {
				if !bytes.Equal(cmd.Args[i], f.cmd.Arg(i)) {
					t.Fatalf("Arg(%d) is %.100q, redcon finds %.100q", i, f.cmd.Arg(i), cmd.Args[i])
				}
			}
			found = append(found, fmt.Sprintf("%q", cmd.Args))
			f.take()
		case frameMore:
			if len(input) == 0 {
				if f.pending() {
					return append(found, "unfinished")
				}
				return found
			}
			n := chunk(len(input))
			if n%3 == 0 {
				grown -= f.rest()
			}
			b := f.room(may)
			n = copy(b, input[:min(n, len(b), len(input))])
			input = input[n:]
			f.w += n
			if size := len(f.buf); size > frameClasses[len(frameClasses)-1] {
				t.Fatalf("buffer of %d bytes", size)
			}
		case frameBad:
			return append(found, f.err)
		case frameHTTP:
			return append(found, "http")
		case frameTLS:
			return append(found, "tls")
		}
		if grown < 0 {
			t.Fatalf("gave back %d bytes more than it took", -grown)
		}
	}
}

// naive is a second opinion on the same bytes: it has them all at once, reads
// them from left to right and keeps no state.
func naive(lim *frameLimits, trusted bool, in []byte) (found []string) {
	const bad = "ERR Protocol error: "
	if len(in) > 0 && in[0] == 0x16 {
		if len(in) == 1 {
			return []string{"unfinished"}
		}
		if in[1] == 3 {
			return []string{"tls"}
		}
	}
	// line cuts a header line off rest.
	line := func(rest []byte, tooBig string) (head, after []byte, end string) {
		for i := 0; i < len(rest) && i < lim.Header; i++ {
			if rest[i] == '\n' {
				return rest[:i], rest[i+1:], ""
			}
		}
		if len(rest) > lim.Header {
			return nil, nil, bad + tooBig
		}
		return nil, nil, "unfinished"
	}
	number := func(s string) (int64, bool) {
		n, err := strconv.ParseInt(s, 10, 64)
		return n, err == nil && strconv.FormatInt(n, 10) == s
	}
	for len(in) > 0 {
		if in[0] != '*' {
			nl, nul := bytes.IndexByte(in, '\n'), bytes.IndexByte(in, 0)
			if nl < 0 {
				nl = len(in)
			}
			if nul >= 0 && nul < nl {
				if len(in) > lim.Inline {
					return append(found, bad+"too big inline request")
				}
				return append(found, "unfinished")
			}
			if nl > lim.Inline {
				return append(found, bad+"too big inline request")
			}
			if nl == len(in) {
				return append(found, "unfinished")
			}
			text := strings.TrimSuffix(string(in[:nl]), "\r")
			in = in[nl+1:]
			args, ok := split(text)
			switch {
			case !ok:
				return append(found, bad+"unbalanced quotes in request")
			case len(args) == 0:
			case len(args) > lim.Args:
				found = append(found, fmt.Sprintf("%q", []string{frameTooLarge, args[0][:min(64, len(args[0]))], "arguments", strconv.Itoa(len(args))}))
			case strings.EqualFold(args[0], "post") || strings.EqualFold(args[0], "host:"):
				return append(found, "http")
			default:
				found = append(found, fmt.Sprintf("%q", args))
			}
			continue
		}
		all := in
		head, rest, end := line(in[1:], "too big mbulk count string")
		if end != "" {
			return append(found, end)
		}
		if !bytes.HasSuffix(head, []byte("\r")) {
			return append(found, bad+"invalid multibulk length")
		}
		count, ok := number(strings.TrimSuffix(string(head), "\r"))
		switch {
		case !ok || count > 1<<31-1:
			return append(found, bad+"invalid multibulk length")
		case !trusted && count > int64(lim.PreAuthArgs):
			return append(found, bad+"unauthenticated multibulk length")
		case count > int64(lim.DiscardArgs):
			return append(found, bad+"invalid multibulk length")
		}
		var args []string
		var large []string
		if count > int64(lim.Args) {
			large = []string{"arguments", fmt.Sprint(count)}
		}
		for range count {
			gone := 0
			if large != nil {
				gone = len(all) - len(rest)
			}
			head, after, end := line(rest, "too big bulk count string")
			if end != "" {
				return append(found, end)
			}
			if rest[0] != '$' {
				show := string(rest[0])
				if rest[0] == '\r' || rest[0] == '\n' {
					show = " "
				} else if rest[0] < 32 || rest[0] > 126 {
					show = fmt.Sprintf(`\x%02x`, rest[0])
				}
				return append(found, bad+"expected '$', got '"+show+"'")
			}
			if !bytes.HasSuffix(head, []byte("\r")) {
				return append(found, bad+"invalid bulk length")
			}
			size, ok := number(strings.TrimSuffix(string(head[1:]), "\r"))
			switch {
			case !ok || size < 0 || size > 512<<20:
				return append(found, bad+"invalid bulk length")
			case !trusted && size > int64(lim.PreAuthBulk):
				return append(found, bad+"unauthenticated bulk length")
			case size > int64(lim.DiscardBytes-gone):
				return append(found, bad+"invalid bulk length")
			}
			n := int(size)
			if large == nil && n > lim.Bulk {
				large = []string{"argument", fmt.Sprint(n)}
			} else if whole := len(all) - len(after) + n + 2; large == nil && whole > lim.Command {
				large = []string{"command", fmt.Sprint(whole)}
			}
			if len(after) < n+2 {
				return append(found, "unfinished")
			}
			if after[n] != '\r' || after[n+1] != '\n' {
				return append(found, bad+"invalid bulk length")
			}
			args = append(args, string(after[:n]))
			rest = after[n+2:]
		}
		in = rest
		switch {
		case len(args) == 0:
		case large != nil:
			found = append(found, fmt.Sprintf("%q", append([]string{frameTooLarge, args[0][:min(64, len(args[0]))]}, large...)))
		case strings.EqualFold(args[0], "post") || strings.EqualFold(args[0], "host:"):
			return append(found, "http")
		default:
			found = append(found, fmt.Sprintf("%q", args))
		}
	}
	return found
}

// split is naive's reader of words.
func split(s string) (args []string, ok bool) {
	const space = " \t\n\v\f\r"
	for {
		s = strings.TrimLeft(s, space)
		if s == "" {
			return args, true
		}
		var word []byte
		for s != "" && !strings.ContainsRune(" \t\n\r", rune(s[0])) {
			quote := s[0]
			if quote != '"' && quote != '\'' {
				word = append(word, s[0])
				s = s[1:]
				continue
			}
			s = s[1:]
			for {
				if s == "" {
					return nil, false
				}
				if s[0] == quote {
					break
				}
				if s[0] != '\\' || len(s) == 1 {
					word = append(word, s[0])
					s = s[1:]
					continue
				}
				if quote == '\'' {
					if s[1] == '\'' {
						s = s[1:]
					}
					word = append(word, s[0])
					s = s[1:]
					continue
				}
				if s[1] == 'x' && len(s) >= 4 {
					if n, err := strconv.ParseUint(s[2:4], 16, 8); err == nil {
						word = append(word, byte(n))
						s = s[4:]
						continue
					}
				}
				if i := strings.IndexByte("nrtba", s[1]); i >= 0 {
					word = append(word, "\n\r\t\b\a"[i])
				} else {
					word = append(word, s[1])
				}
				s = s[2:]
			}
			s = s[1:]
			if s != "" && !strings.ContainsRune(space, rune(s[0])) {
				return nil, false
			}
			break
		}
		args = append(args, string(word))
	}
}

// small limits are within reach of what a fuzzer makes.
var small = frameLimits{
	Args: 12, Bulk: 120, Command: 1000, Inline: 300, Header: 64,
	DiscardArgs: 40, DiscardBytes: 4000, PreAuthArgs: 10, PreAuthBulk: 110,
}

var frameSeeds = []string{
	"",
	"PING\r\n",
	"PING\n",
	"*1\r\n$4\r\nPING\r\n",
	"*2\r\n$4\r\nINCR\r\n$5\r\norder\r\n*2\r\n$4\r\nINCR\r\n$5\r\norder\r\n",
	"*3\r\n$6\r\nINCRBY\r\n$5\r\norder\r\n$3\r\n100\r\n*1\r\n$4\r\nPING\r\nPING\r\n",
	"*0\r\n*-1\r\n*-10\r\n\r\n\n*1\r\n$0\r\n\r\n",
	"*9\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n$1\r\ne\r\n$1\r\nf\r\n$1\r\ng\r\n$1\r\nh\r\n$1\r\ni\r\n",
	"*11\r\n" + strings.Repeat("$1\r\na\r\n", 11) + "PING\r\n",
	"*13\r\n" + strings.Repeat("$1\r\na\r\n", 13) + "PING\r\n",
	"*41\r\n" + strings.Repeat("$1\r\na\r\n", 41),
	"*2\r\n$4\r\nINCR\r\n$121\r\n" + strings.Repeat("k", 121) + "\r\nPING\r\n",
	"*2\r\n$121\r\n" + strings.Repeat("n", 121) + "\r\n$1\r\nk\r\nPING\r\n",
	"*2\r\n$4\r\nINCR\r\n$4000\r\n" + strings.Repeat("k", 4000) + "\r\nPING\r\n",
	"*2\r\n$4\r\nINCR\r\n$4001\r\n",
	"*11\r\n" + strings.Repeat("$100\r\n"+strings.Repeat("x", 100)+"\r\n", 11) + "PING\r\n",
	"*12\r\n" + strings.Repeat("$110\r\n"+strings.Repeat("x", 110)+"\r\n", 12) + "PING\r\n",
	"*1\r\n$9223372036854775807\r\n", "*9223372036854775807\r\n", "*2147483648\r\n", "$4\r\nPING\r\n",
	"*+1\r\n", "*01\r\n", "* 1\r\n", "*1\n", "*\r\n", "*1x\r\n", "*-0\r\n", "*-01\r\n", "*18446744073709551617\r\n", "*-9223372036854775808\r\n",
	"*1\r\n$04\r\nPING\r\n", "*1\r\n$+4\r\n", "*1\r\n$-1\r\n", "*1\r\n$\r\n", "*1\r\n$4\nPING\r\n", "*1\r\n:4\r\n", "*1\r\n\r\n", "*1\r\n\x00\r\n",
	"*1\r\n$4\r\nPINGxx", "*1\r\n$3\r\nPING\r\n", "*1\r\n$5\r\nPING\r\n*1\r\n",
	"*" + strings.Repeat("1", 70), "*1\r\n$" + strings.Repeat("1", 70),
	"ECHO \"a\\x41\\n\\q\\\"\" 'b\\'\\n' c\"d\"\r\n", "ECHO \"a\"b\r\n", "ECHO \"a\r\n", "ECHO 'a\\\r\n", "ECHO \"\\x4\"\r\n", "  \t\v\f ECHO\ta\rb\v \r\n",
	"\"\"\r\n", "ECHO a\x00b\r\nPING\r\n", "\x00\r\n",
	strings.Repeat("a ", 20) + "\r\nPING\r\n", strings.Repeat("a", 301), strings.Repeat("a", 301) + "\n", strings.Repeat("a", 300) + "\n",
	"POST / HTTP/1.1\r\n", "*2\r\n$5\r\nhOsT:\r\n$1\r\nx\r\n", "PoSt\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\nINCR a\r\n", "PUSH a\r\nhosts a\r\n",
	"\x16\x03\x01\x00\xc5", "\x16", "\x16a\r\n", "PING\r\n\x16\x03\x01\r\n",
}

func FuzzFrame(f *testing.F) {
	for i, s := range frameSeeds {
		f.Add([]byte(s), uint64(i), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, in []byte, seed uint64, trusted bool) {
		want := naive(&small, trusted, in)
		whole := feed(t, &small, trusted, in, func(left int) int { return left })
		if g, w := fmt.Sprint(whole), fmt.Sprint(want); g != w {
			t.Fatalf("%q, in one piece\ngot  %.2000s\nwant %.2000s", in, g, w)
		}
		rnd := rand.New(rand.NewPCG(seed, 1))
		most := 1 + rnd.IntN(1+len(in))
		parts := feed(t, &small, trusted, in, func(int) int { return 1 + rnd.IntN(most) })
		if g, w := fmt.Sprint(parts), fmt.Sprint(want); g != w {
			t.Fatalf("%q, seed %d\ngot  %.2000s\nwant %.2000s", in, seed, g, w)
		}
	})
}

// Every seed, cut at every place, and byte by byte, with both sets of limits.
func TestFrameEverySplit(t *testing.T) {
	for _, lim := range []*frameLimits{&small, &frameDefaults} {
		for _, trusted := range []bool{true, false} {
			for _, s := range frameSeeds {
				in := []byte(s)
				want := fmt.Sprint(naive(lim, trusted, in))
				for cut := range len(in) {
					first := true
					got := feed(t, lim, trusted, in, func(left int) int {
						if first && cut > 0 {
							first = false
							return cut
						}
						if cut == 0 {
							return 1
						}
						return left
					})
					if g := fmt.Sprint(got); g != want {
						t.Fatalf("%.300q cut at %d\ngot  %.300s\nwant %.300s", s, cut, g, want)
					}
				}
			}
		}
	}
}

// Random pipelines, many of them whole, under the real limits.
func TestFrameRandomPipelines(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	word := func() string {
		b := make([]byte, rnd.IntN(1+rnd.IntN(200)))
		for i := range b {
			b[i] = byte(rnd.IntN(256))
		}
		return string(b)
	}
	for range 300 {
		var in []byte
		for range rnd.IntN(40) {
			switch rnd.IntN(8) {
			case 0:
				in = append(in, "INCR  order\r\n"...)
			case 1:
				in = append(in, "*0\r\n\r\n"...)
			case 2:
				in = fmt.Appendf(in, "ECHO %q\n", strings.Map(func(r rune) rune {
					if r < ' ' || r > '~' {
						return -1
					}
					return r
				}, word()))
			default:
				n := 1 + rnd.IntN(12)
				in = fmt.Appendf(in, "*%d\r\n", n)
				for range n {
					w := word()
					in = fmt.Appendf(in, "$%d\r\n%s\r\n", len(w), w)
				}
			}
		}
		if rnd.IntN(3) == 0 && len(in) > 0 {
			in[rnd.IntN(len(in))] ^= byte(1 << rnd.IntN(8))
		}
		want := fmt.Sprint(naive(&frameDefaults, true, in))
		most := 1 + rnd.IntN(2000)
		got := fmt.Sprint(feed(t, &frameDefaults, true, in, func(int) int { return 1 + rnd.IntN(most) }))
		if got != want {
			t.Fatalf("%q\ngot  %.1000s\nwant %.1000s", in, got, want)
		}
	}
}

// The cost is in proportion to the bytes, however they come: a parser that
// begins an unfinished command anew would look at 10^10 bytes here.
func TestFrameByteByByte(t *testing.T) {
	for _, c := range []struct {
		name string
		in   string
		want string
	}{
		{"many arguments", "*65000\r\n" + strings.Repeat("$1\r\na\r\n", 65000), `["\x00toolarge" "a" "arguments" "65000"]`},
		{"1024 arguments", "*1024\r\n" + strings.Repeat("$1\r\na\r\n", 1024), `["a"` + strings.Repeat(` "a"`, 1023) + "]"},
		{"long argument", "*1\r\n$60000\r\n" + strings.Repeat("a", 60000) + "\r\n", `["` + strings.Repeat("a", 60000) + `"]`},
		{"1 MB key", "*2\r\n$4\r\nINCR\r\n$1048576\r\n" + strings.Repeat("k", 1<<20) + "\r\n", `["\x00toolarge" "INCR" "argument" "1048576"]`},
		{"long line", strings.Repeat("a", 60000) + "\r\n", `["` + strings.Repeat("a", 60000) + `"]`},
		{"line without an end", strings.Repeat("a", 70000), "ERR Protocol error: too big inline request"},
		{"line with a NUL", "a\x00" + strings.Repeat("\n", 70000), "ERR Protocol error: too big inline request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := feed(t, &frameDefaults, true, []byte(c.in), func(int) int { return 1 })
			if len(got) != 1 || got[0] != c.want {
				t.Fatalf("got %.200q", got)
			}
		})
	}
}

func TestFrameInt(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "1": 1, "-1": -1, "10": 10, "9223372036854775807": 9223372036854775807, "-9223372036854775808": -9223372036854775808,
	} {
		if n, ok := frameInt([]byte(s)); !ok || n != want {
			t.Errorf("%s: %d, %v", s, n, ok)
		}
	}
	for _, s := range []string{"", "-", "-0", "00", "01", "-01", "+1", " 1", "1 ", "1a", "9223372036854775808", "-9223372036854775809", "18446744073709551616", "20000000000000000000", "0x1", "1e3"} {
		if n, ok := frameInt([]byte(s)); ok {
			t.Errorf("%q was taken as %d", s, n)
		}
	}
}

func BenchmarkFrame(b *testing.B) {
	in := bytes.Repeat([]byte("*2\r\n$4\r\nINCR\r\n$8\r\norder:id\r\n"), 128)
	var f frame
	f.init(&frameDefaults)
	f.trusted = true
	b.ReportAllocs()
	for n := 0; n < b.N; n += 128 {
		f.w += copy(f.room(nil), in)
		for f.next() == frameWhole {
			f.take()
		}
	}
}
