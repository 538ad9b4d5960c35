package server

import (
	"bytes"
	"math"
	"strconv"
	"sync"
	"unsafe"
)

// This file finds whole commands in the bytes of one connection. It is the
// only code that looks at what a client sent before it was checked, so it
// keeps I14: whatever the bytes are, it does not panic, does work in
// proportion to their number (a byte is looked at no more than twice, however
// it was delivered), and holds no more than frameLimits allow.
//
// The texts of protocol errors are those of Redis 7.

// frameLimits are the bounds of what one connection may send. Sizes are in
// bytes.
type frameLimits struct {
	Args    int // arguments of one command, its name included
	Bulk    int // one argument
	Command int // one command as it stands on the wire
	Inline  int // a line of an inline command
	Header  int // a "*n" or "$n" line; a length never needs more

	// What goes beyond Args, Bulk or Command, but not beyond these, is read
	// and thrown away, and the command is answered by an error in its turn.
	// Anything larger is a protocol error, as are the lengths Redis refuses.
	DiscardArgs  int
	DiscardBytes int // of one command

	// Until the connection is trusted, as in Redis.
	PreAuthArgs int
	PreAuthBulk int
}

var frameDefaults = frameLimits{
	Args:         1024,
	Bulk:         64 << 10,
	Command:      256 << 10,
	Inline:       64 << 10,
	Header:       64,
	DiscardArgs:  64 << 10,
	DiscardBytes: 16 << 20,
	PreAuthArgs:  10,
	PreAuthBulk:  16 << 10,
}

// frameTooLarge is the name of the command that the handler gets in place of
// one that was read and thrown away because it was larger than frameLimits
// allow. Its arguments are the name the client sent (cut after 64 bytes), what
// was too large ("argument", "arguments" or "command") and how large (bytes,
// or a count for "arguments"). A handler that does not know the name answers
// "unknown command", which is an error too: nothing is consumed, inside MULTI
// the transaction is aborted. The NUL keeps it apart from every real name.
const frameTooLarge = "\x00toolarge"

// frameViews is the number of arguments that frameCmd can show. A command
// with more is never offered to the fast lane.
const frameViews = 8

// frameCmd shows one whole command where it lies in the connection's input.
// The bytes are valid until the method it was passed to returns.
type frameCmd struct {
	raw []byte // the whole command as RESP
	n   int
	at  [frameViews]frameArg
}

// frameArg is the place of one argument in frameCmd.raw.
type frameArg struct{ off, end int32 }

// Len is the number of arguments, the command's name included; at least 1.
func (c *frameCmd) Len() int { return c.n }

// Arg is argument i; 0 is the command's name as the client wrote it. i must be
// below Len and below frameViews.
func (c *frameCmd) Arg(i int) []byte {
	a := c.at[i]
	return c.raw[a.off:a.end:a.end]
}

// frameVerdict is what frame.next found.
type frameVerdict uint8

const (
	frameMore  frameVerdict = iota // no whole command left, read on
	frameWhole                     // frame.cmd is a command
	frameBad                       // protocol error: frame.err is what to answer before closing
	frameHTTP                      // a browser was made to talk to us: close, answer nothing
	frameTLS                       // a TLS hello on a plain connection: close, answer nothing
)

type framePhase uint8

const (
	phaseStart  framePhase = iota // at the first byte of a command
	phaseCount                    // in "*n\r\n"
	phaseLen                      // in "$n\r\n"
	phaseData                     // in an argument's bytes, or the CRLF behind them
	phaseInline                   // in a line
	phaseStuck                    // in a line that can't end, see frame.line
)

// frame is the state of one connection's input. Its buffer is lent: it is nil
// while the connection has nothing pending.
type frame struct {
	lim     *frameLimits
	trusted bool // limits before authentication are off

	buf  []byte // buf[r:w] is what was read and not taken
	r, w int    // r is the first byte of the current command

	// The current command. Positions count from r, so that moving the
	// buffer's content changes nothing here, and nothing is looked at again.
	phase framePhase
	pos   int // next byte to look at
	left  int // arguments still to come
	need  int // bytes of the argument at pos
	seen  int // arguments found
	bytes int // bytes of a thrown-away command so far
	size  int // bytes the whole command takes in buf
	have  bool
	fresh bool // nothing was ever read on this connection
	big   *frameBig
	seq   uint64 // commands, skipped ones included; tells a new command from an old one

	cmd  frameCmd
	made []byte // RESP that was built here, from an inline line or for frameTooLarge
	err  string
	bad  frameVerdict // once frameBad, frameHTTP or frameTLS, for ever
}

// frameBig is a command that is being thrown away.
type frameBig struct {
	name []byte
	what string
	size int
}

func (f *frame) init(lim *frameLimits) {
	f.lim = lim
	f.fresh = true
}

// pending reports whether bytes of an unfinished or untaken command are held.
func (f *frame) pending() bool {
	return f.w > f.r || f.phase != phaseStart || f.have
}

// next finds the next whole command and leaves it in f.cmd until take is
// called; until then it answers the same again.
func (f *frame) next() frameVerdict {
	if f.have {
		return frameWhole
	}
	if f.bad != frameMore {
		return f.bad
	}
	if f.made != nil {
		frameFree(f.made)
		f.made = nil
	}
	for {
		switch f.phase {
		case phaseStart:
			if f.r == f.w {
				return frameMore
			}
			if f.buf[f.r] == '*' {
				f.fresh = false
				if f.short() {
					return f.whole()
				}
				f.phase, f.pos = phaseCount, 1
				continue
			}
			if f.fresh && f.buf[f.r] == 0x16 { // a TLS record of type handshake
				if f.w-f.r < 2 {
					return frameMore
				}
				if f.buf[f.r+1] == 3 {
					f.bad = frameTLS
					return f.bad
				}
			}
			f.fresh = false
			f.phase, f.pos = phaseInline, 0

		case phaseCount:
			line, ok := f.header("too big mbulk count string", "invalid multibulk length")
			if !ok {
				return f.bad
			}
			n, ok := frameInt(line)
			switch {
			case !ok || n > math.MaxInt32:
				return f.fail("invalid multibulk length")
			case n > int64(f.lim.PreAuthArgs) && !f.trusted:
				return f.fail("unauthenticated multibulk length")
			case n <= 0:
				f.skip()
				continue
			case n > int64(f.lim.DiscardArgs):
				return f.fail("invalid multibulk length")
			}
			f.left, f.seen = int(n), 0
			f.phase = phaseLen
			if n > int64(f.lim.Args) {
				f.discard("arguments", int(n))
			}

		case phaseLen:
			line, ok := f.header("too big bulk count string", "invalid bulk length")
			if !ok {
				return f.bad
			}
			n, ok := frameInt(line[1:])
			switch {
			case !ok || n < 0 || n > 512<<20: // Redis' own largest
				return f.fail("invalid bulk length")
			case n > int64(f.lim.PreAuthBulk) && !f.trusted:
				return f.fail("unauthenticated bulk length")
			case n > int64(f.lim.DiscardBytes-f.bytes):
				return f.fail("invalid bulk length")
			}
			f.need = int(n)
			f.phase = phaseData
			switch {
			case f.big != nil:
				f.drop(f.pos)
			case f.need > f.lim.Bulk:
				f.discard("argument", f.need)
			case f.pos+f.need+2 > f.lim.Command:
				f.discard("command", f.pos+f.need+2)
			}

		case phaseData:
			if f.big != nil {
				if !f.swallow() {
					return frameMore
				}
			}
			have := f.w - f.r - f.pos
			if have < f.need+2 {
				return frameMore
			}
			end := f.pos + f.need
			if f.buf[f.r+end] != '\r' || f.buf[f.r+end+1] != '\n' {
				// Redis does not look; redcon does, and so a client that
				// counts wrongly hears of it instead of losing step.
				return f.fail("invalid bulk length")
			}
			if f.seen < frameViews {
				f.cmd.at[f.seen] = frameArg{int32(f.pos), int32(end)}
			}
			f.seen++
			f.left--
			f.pos = end + 2
			f.phase = phaseLen
			if f.big != nil {
				f.drop(f.pos)
			}
			if f.left > 0 {
				continue
			}
			if f.big != nil {
				f.make(frameTooLarge, f.big.name, f.big.what, strconv.Itoa(f.big.size))
				f.big = nil
				f.size = 0
				return f.whole()
			}
			f.cmd.n = f.seen
			f.cmd.raw = f.buf[f.r : f.r+f.pos]
			f.size = f.pos
			return f.whole()

		case phaseInline:
			if v := f.line(); v != frameMore || f.phase == phaseInline {
				return v
			}

		case phaseStuck:
			f.bytes += f.w - f.r
			f.r = f.w
			if f.bytes > f.lim.Inline {
				return f.fail("too big inline request")
			}
			return frameMore
		}
	}
}

// take removes the command that next left in f.cmd. f.cmd and f.made stay
// readable until next is called.
func (f *frame) take() {
	f.r += f.size
	f.have = false
	f.phase, f.pos, f.size, f.bytes = phaseStart, 0, 0, 0
	f.seq++
}

// skip passes over what is no command: "*0", "*-1", an empty line.
func (f *frame) skip() {
	f.size = f.pos
	f.take()
}

// whole announces f.cmd, unless its name is one that only a browser sends: a
// page can make it post commands to a port of the local network.
func (f *frame) whole() frameVerdict {
	if name := f.cmd.Arg(0); len(name) == 4 || len(name) == 5 {
		if bytes.EqualFold(name, frameWordPost) || bytes.EqualFold(name, frameWordHost) {
			f.bad = frameHTTP
			return f.bad
		}
	}
	f.have = true
	return frameWhole
}

var (
	frameWordPost = []byte("post")
	frameWordHost = []byte("host:")
)

func (f *frame) fail(text string) frameVerdict {
	f.err = "ERR Protocol error: " + text
	f.bad = frameBad
	return f.bad
}

// short recognises a whole command of up to eight arguments of up to 99 bytes
// each, which is what clients send nearly always. Where it says false nothing
// has changed, and the state machine judges the bytes.
func (f *frame) short() bool {
	b := f.buf[f.r:f.w]
	if len(b) < 4 || b[1]-'1' >= frameViews || b[2] != '\r' || b[3] != '\n' {
		return false
	}
	n := int(b[1] - '0')
	i := 4
	for k := 0; k < n; k++ {
		if len(b)-i < 6 || b[i] != '$' {
			return false
		}
		size := int(b[i+1] - '0')
		if size > 9 {
			return false
		}
		i += 2
		if b[i] != '\r' {
			d := int(b[i] - '0')
			if d > 9 || size == 0 {
				return false
			}
			size = size*10 + d
			i++
			if b[i] != '\r' {
				return false
			}
		}
		if b[i+1] != '\n' {
			return false
		}
		i += 2
		end := i + size
		if end+2 > len(b) || b[end] != '\r' || b[end+1] != '\n' {
			return false
		}
		f.cmd.at[k] = frameArg{int32(i), int32(end)}
		i = end + 2
	}
	f.cmd.n = n
	f.cmd.raw = b[:i:i]
	f.size = i
	return true
}

// header returns the line at pos without its CRLF and moves pos behind it. A
// line that is not there yet leaves frameMore in f.bad. The first byte of a
// "$n" line is part of it and checked here, as Redis does before the number.
func (f *frame) header(tooBig, malformed string) (line []byte, ok bool) {
	b := f.buf[f.r+f.pos : f.w]
	win := b
	if len(win) > f.lim.Header {
		win = win[:f.lim.Header]
	}
	i := bytes.IndexByte(win, '\n')
	if i < 0 {
		if len(b) > f.lim.Header {
			f.fail(tooBig)
		}
		return nil, false
	}
	if f.phase == phaseLen && b[0] != '$' {
		f.fail("expected '$', got '" + frameShow(b[0]) + "'")
		return nil, false
	}
	if i == 0 || b[i-1] != '\r' {
		f.fail(malformed)
		return nil, false
	}
	f.pos += i + 1
	return b[:i-1], true
}

// frameShow makes a byte fit to be shown in an error: line ends become a
// space, as Redis has it, and what is not printable is escaped.
func frameShow(c byte) string {
	switch {
	case c == '\r' || c == '\n':
		return " "
	case c < ' ' || c > '~':
		const hex = "0123456789abcdef"
		return `\x` + string(hex[c>>4]) + string(hex[c&15])
	}
	return string(rune(c))
}

// frameInt reads an integer as Redis does: no plus sign, no leading zero, no
// space, nothing that does not fit 64 bits.
func frameInt(b []byte) (n int64, ok bool) {
	neg := false
	if len(b) > 1 && b[0] == '-' {
		neg = true
		b = b[1:]
		if b[0] == '0' {
			return 0, false
		}
	}
	if len(b) == 0 || len(b) > 1 && b[0] == '0' {
		return 0, false
	}
	var u uint64
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || u > (math.MaxUint64-d)/10 {
			return 0, false
		}
		u = u*10 + d
	}
	switch {
	case neg && u <= 1<<63:
		return -int64(u), true
	case !neg && u < 1<<63:
		return int64(u), true
	}
	return 0, false
}

// discard begins to throw the current command away, what is there of it
// included. pos is behind a header line.
func (f *frame) discard(what string, size int) {
	big := &frameBig{what: what, size: size}
	if f.seen > 0 {
		a := f.cmd.at[0]
		name := f.buf[f.r+int(a.off) : f.r+int(a.end)]
		big.name = append(big.name, name[:min(len(name), 64)]...)
	}
	f.big = big
	f.drop(f.pos)
}

// drop forgets n bytes at the beginning of the current command.
func (f *frame) drop(n int) {
	f.r += n
	f.pos -= n
	f.bytes += n
}

// swallow throws away what is there of the argument at pos, and reports
// whether that was all of it. A name is kept: the error will quote it.
func (f *frame) swallow() bool {
	n := min(f.need, f.w-f.r)
	if f.seen == 0 && len(f.big.name) < 64 {
		f.big.name = append(f.big.name, f.buf[f.r:f.r+min(n, 64-len(f.big.name))]...)
	}
	f.drop(n)
	f.pos = 0
	f.need -= n
	return f.need == 0
}

// make puts a command of these arguments into f.made and f.cmd.
func (f *frame) make(name string, args ...any) {
	b := frameLend(frameClasses[0])[:0]
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(len(args)+1), 10)
	b = append(b, "\r\n"...)
	b = frameAppendArg(b, name)
	for _, a := range args {
		switch a := a.(type) {
		case []byte:
			b = frameAppendArg(b, a)
		case string:
			b = frameAppendArg(b, a)
		}
	}
	f.show(b)
}

func frameAppendArg[T string | []byte](b []byte, arg T) []byte {
	b = append(b, '$')
	b = strconv.AppendInt(b, int64(len(arg)), 10)
	b = append(b, "\r\n"...)
	b = append(b, arg...)
	return append(b, "\r\n"...)
}

// show makes f.cmd the view of b, a well-formed command that was built here.
func (f *frame) show(b []byte) {
	f.made = b
	f.cmd.raw = b
	i := bytes.IndexByte(b, '\n')
	n, _ := frameInt(b[1 : i-1])
	f.cmd.n = int(n)
	i++
	for k := 0; k < min(f.cmd.n, frameViews); k++ {
		j := i + bytes.IndexByte(b[i:], '\n')
		size, _ := frameInt(b[i+1 : j-1])
		f.cmd.at[k] = frameArg{int32(j + 1), int32(j + 1 + int(size))}
		i = j + 1 + int(size) + 2
	}
}

// line finds the end of an inline command and writes it anew as RESP, so that
// redcon's own reader of lines, which takes memory with the square of their
// length, never sees one. It returns frameMore with the phase telling why:
// phaseStart after an empty line, phaseInline when the end is not there yet,
// phaseStuck when it never will be.
func (f *frame) line() frameVerdict {
	b := f.buf[f.r:f.w]
	rest := b[f.pos:]
	i := bytes.IndexByte(rest, '\n')
	if i >= 0 {
		rest = rest[:i]
	}
	if bytes.IndexByte(rest, 0) >= 0 {
		// Redis looks for the line's end with C's string functions, which stop
		// at a NUL: such a line never ends. A key cut short must not consume
		// an ID, so that is kept; limit and deadline end the connection.
		f.phase = phaseStuck
		return frameMore
	}
	end := f.pos + len(rest)
	if end > f.lim.Inline {
		return f.fail("too big inline request")
	}
	if i < 0 {
		f.pos = end
		return frameMore
	}
	f.pos = end + 1
	line := b[:end]
	if end > 0 && line[end-1] == '\r' {
		line = line[:end-1]
	}

	if len(line) == 0 {
		f.skip()
		return frameMore
	}

	word := frameLend(len(line))
	defer frameFree(word)
	n, size := 0, 0
	for rest := line; ; n++ {
		w, r, ok := frameWord(word[:0], rest)
		if !ok {
			return f.fail("unbalanced quotes in request")
		}
		if w == nil {
			break
		}
		size += len(w) + len("$65536\r\n\r\n")
		rest = r
	}
	switch {
	case n == 0:
		f.skip()
		return frameMore
	case n > f.lim.Args:
		name, _, _ := frameWord(word[:0], line)
		f.make(frameTooLarge, name[:min(len(name), 64)], "arguments", strconv.Itoa(n))
	default:
		out := frameLend(size + len("*65536\r\n"))[:0]
		out = append(out, '*')
		out = strconv.AppendInt(out, int64(n), 10)
		out = append(out, "\r\n"...)
		for rest := line; ; {
			w, r, _ := frameWord(word[:0], rest)
			if w == nil {
				break
			}
			out = frameAppendArg(out, w)
			rest = r
		}
		f.show(out)
	}
	f.size = f.pos
	return f.whole()
}

// frameWord appends the first word of line to dst, by the rules of redis-cli
// and Redis: words end at white space; inside "double quotes" \n \r \t \b \a
// and \xHH are escapes and any other escaped byte stands for itself; inside
// 'single quotes' only \' is one; a closing quote ends its word and must be
// followed by white space. It returns the word (nil when there is none) and
// what follows it; ok is false when quotes are not balanced. dst must not be
// nil.
func frameWord(dst, line []byte) (word, rest []byte, ok bool) {
	i := 0
	for i < len(line) && frameSpace(line[i]) {
		i++
	}
	if i == len(line) {
		return nil, nil, true
	}
	for i < len(line) {
		c := line[i]
		i++
		switch c {
		case ' ', '\n', '\r', '\t':
			return dst, line[i:], true
		case '"', '\'':
			dst, i, ok = frameQuoted(dst, line, i, c)
			return dst, line[i:], ok
		default:
			dst = append(dst, c)
		}
	}
	return dst, nil, true
}

// frameQuoted appends what stands in quotes from line[i] on, i being behind
// the opening one, and returns where the line goes on.
func frameQuoted(dst, line []byte, i int, quote byte) ([]byte, int, bool) {
	for i < len(line) {
		c := line[i]
		i++
		switch {
		case c == quote:
			return dst, i, i == len(line) || frameSpace(line[i])
		case c != '\\' || i == len(line):
		case quote == '\'':
			if line[i] == '\'' {
				c = '\''
				i++
			}
		case line[i] == 'x' && i+2 < len(line) && frameHex(line[i+1]) >= 0 && frameHex(line[i+2]) >= 0:
			c = byte(frameHex(line[i+1])<<4 | frameHex(line[i+2]))
			i += 3
		default:
			c = line[i]
			i++
			switch c {
			case 'n':
				c = '\n'
			case 'r':
				c = '\r'
			case 't':
				c = '\t'
			case 'b':
				c = '\b'
			case 'a':
				c = '\a'
			}
		}
		dst = append(dst, c)
	}
	return dst, i, false
}

func frameSpace(c byte) bool { return c == ' ' || c-'\t' <= '\r'-'\t' }

func frameHex(c byte) int {
	switch {
	case c-'0' <= 9:
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// frameClasses are the sizes of lent buffers. The third is what one read takes
// at most while nothing larger is pending; the last holds the largest command.
var frameClasses = [...]int{512, 4 << 10, 16 << 10, 80 << 10, 272 << 10}

const frameReadClass = 2

// The pools hold pointers to the first byte: those fit an interface without
// an allocation.
var framePools [len(frameClasses)]sync.Pool

// frameLend returns a buffer of at least n bytes, of a class size if there is
// one that large. Its content is arbitrary.
func frameLend(n int) []byte {
	for i, size := range frameClasses {
		if n <= size {
			if p, _ := framePools[i].Get().(*byte); p != nil {
				return unsafe.Slice(p, size)
			}
			return make([]byte, size)
		}
	}
	return make([]byte, n)
}

// frameFree takes back a buffer from frameLend.
func frameFree(b []byte) {
	for i, size := range frameClasses {
		if cap(b) == size {
			framePools[i].Put(unsafe.SliceData(b))
			return
		}
	}
}

// room makes place for a read and returns it. may is asked before the buffer
// grows beyond what a read usually takes, with the number of bytes; when it
// refuses, room returns nil.
func (f *frame) room(may func(more int) bool) []byte {
	if f.r > 0 {
		copy(f.buf, f.buf[f.r:f.w])
		f.w -= f.r
		f.r = 0
	}
	read := frameClasses[frameReadClass]
	if want := max(read, f.w+1); len(f.buf) < want {
		next := frameLend(want)
		if more := len(next) - max(read, len(f.buf)); more > 0 && !may(more) {
			frameFree(next)
			return nil
		}
		copy(next, f.buf[:f.w])
		if f.buf != nil {
			frameFree(f.buf)
		}
		f.buf = next
	}
	return f.buf[f.w:]
}

// rest gives the buffer back, or changes it for the smallest one that holds
// what is pending, before a wait of unknown length. It returns by how much
// the buffer fell towards what a read usually takes: what may was asked for.
func (f *frame) rest() (less int) {
	n := f.w - f.r
	class := 0
	for class < len(frameClasses) && frameClasses[class] < n {
		class++
	}
	if f.buf == nil || class < len(frameClasses) && n > 0 && len(f.buf) <= frameClasses[class] || f.have {
		return 0
	}
	old := f.buf
	if n == 0 {
		f.buf = nil
	} else {
		f.buf = frameLend(n)
		copy(f.buf, old[f.r:f.w])
	}
	f.r, f.w = 0, n
	frameFree(old)
	read := frameClasses[frameReadClass]
	return max(0, len(old)-max(read, len(f.buf)))
}
