package checker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// Command is what a Client sends.
type Command string

// The commands that give IDs.
const (
	Incr          Command = "INCR"
	IncrBy        Command = "INCRBY"
	SegmentNext   Command = "SEGMENT.NEXT"
	SegmentRange  Command = "SEGMENT.RANGE"
	SnowflakeNext Command = "SNOWFLAKE.NEXT"
)

// Client is a load of one connection that records every reply. When the connection breaks, or a reply does not come in
// time, it goes on with the next address.
type Client struct {
	History *History
	Name    string
	Addrs   []string // "host:port" or "unix:/path", tried in turn
	// Instance names the life of the process behind an address: for process tests, Process.Instance. Default is the
	// address itself, which is right while nobody is restarted behind it. "" is for an address that anybody may answer:
	// no order by time is asked for then.
	Instance func(addr string) string
	Command  Command
	Keys     []string      // used in turn; default "order"; not for SnowflakeNext
	Count    int           // of INCRBY, SEGMENT.RANGE, and COUNT of the others; default 1
	Pipeline int           // requests on the way at once; default 1
	Multi    bool          // each pipeline inside MULTI and EXEC
	Password string        // sent with AUTH
	User     string        // with Password
	Limit    int64         // ends after so many IDs; 0 = when the context does
	Timeout  time.Duration // for a reply, and to connect; default 5 s
	Rate     int           // requests per second; 0 = as many as there are answers
	Backoff  time.Duration // pause after an error reply or a failed connection; default 5 ms
}

// Result is what a Client saw.
type Result struct {
	IDs, Replies int64 // acknowledged
	Lost         int64 // requests whose reply never came
	Errors       map[string]int64
	LastError    string        // the whole text
	Connects     int64         // connections made
	Slowest      time.Duration // of the requests that were answered by IDs
}

// Add adds another client's result.
func (r *Result) Add(o Result) {
	r.IDs, r.Replies, r.Lost, r.Connects = r.IDs+o.IDs, r.Replies+o.Replies, r.Lost+o.Lost, r.Connects+o.Connects
	r.Slowest = max(r.Slowest, o.Slowest)
	if o.LastError != "" {
		r.LastError = o.LastError
	}
	if r.Errors == nil {
		r.Errors = map[string]int64{}
	}
	for w, n := range o.Errors {
		r.Errors[w] += n
	}
}

// Run sends requests until the limit or the end of the context, and waits then for the replies under way, at most Timeout.
func (c Client) Run(ctx context.Context) Result {
	if len(c.Keys) == 0 {
		c.Keys = []string{"order"}
	}
	if c.Command == SnowflakeNext {
		c.Keys = []string{SnowflakeKey}
	}
	c.Count, c.Pipeline = max(c.Count, 1), max(c.Pipeline, 1)
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Backoff == 0 {
		c.Backoff = 5 * time.Millisecond
	}
	l := &load{Client: c, rec: c.History.Recorder(c.Name), res: Result{Errors: map[string]int64{}}}
	for i := 0; ctx.Err() == nil && !l.full(); i++ {
		l.connection(ctx, c.Addrs[i%len(c.Addrs)])
		if ctx.Err() == nil && !l.full() {
			pause(ctx, c.Backoff)
		}
	}
	return l.res
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// load is a running Client.
type load struct {
	Client
	rec     *Recorder
	res     Result
	due     time.Time // of the next pipeline, with Rate
	nextKey int

	conn stamped
	r    *bufio.Reader
	w    []byte
	keys []string // of the requests on the way
	ids  []int64
}

// stamped is a connection that remembers when bytes came last: what is in the reader's buffer was there by then.
type stamped struct {
	net.Conn
	h  *History
	at time.Duration
}

func (s *stamped) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.at = s.h.Now()
	return n, err
}

// malformed is a reply that no server should give. It is recorded as an error of the word Malformed.
type malformed string

func (m malformed) Error() string { return string(m) }

// Malformed is the word under which a Client records a reply that is none.
const Malformed = "(malformed)"

func (l *load) full() bool { return l.Limit > 0 && l.res.IDs >= l.Limit }

func (l *load) instance(addr string) string {
	if l.Instance == nil {
		return addr
	}
	return l.Instance(addr)
}

// connection works over one connection until it breaks.
func (l *load) connection(ctx context.Context, addr string) {
	// The name is asked for before and after: a process that starts in between would get another one's replies.
	name := l.instance(addr)
	network, address := "tcp", addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, address = "unix", path
	}
	dialer := net.Dialer{Timeout: l.Timeout}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return
	}
	defer conn.Close()
	if l.instance(addr) != name {
		return
	}
	l.conn = stamped{Conn: conn, h: l.History}
	l.r = bufio.NewReaderSize(&l.conn, 64<<10)
	l.res.Connects++
	l.rec.Conn(name)
	if l.Password != "" {
		args := []string{"AUTH", l.Password}
		if l.User != "" {
			args = []string{"AUTH", l.User, l.Password}
		}
		l.w = appendCommand(l.w[:0], args...)
		if err := l.conn.SetDeadline(time.Now().Add(l.Timeout)); err != nil {
			return
		}
		if _, err := l.conn.Write(l.w); err != nil {
			return
		}
		if line, err := l.line(); err != nil {
			return
		} else if line[0] == '-' {
			l.res.Errors[errorWord(line)]++
			l.res.LastError = string(line[1:])
			return
		}
	}
	for ctx.Err() == nil && !l.full() {
		if l.Rate > 0 {
			// What an outage has kept from being sent is not made up for.
			if late := time.Now().Add(-100 * time.Millisecond); l.due.Before(late) {
				l.due = late
			}
			if wait := time.Until(l.due); wait > 0 {
				pause(ctx, wait)
				if ctx.Err() != nil {
					return
				}
			}
			l.due = l.due.Add(time.Duration(float64(l.Pipeline) / float64(l.Rate) * float64(time.Second)))
		}
		refused, err := l.batch()
		if err != nil {
			return
		}
		if refused {
			pause(ctx, l.Backoff)
		}
	}
}

// batch sends one pipeline and reads its replies.
func (l *load) batch() (refused bool, err error) {
	l.w, l.keys = l.w[:0], l.keys[:0]
	if l.Multi {
		l.w = appendCommand(l.w, "MULTI")
	}
	n := strconv.Itoa(l.Count)
	for range l.Pipeline {
		key := l.Keys[l.nextKey%len(l.Keys)]
		l.nextKey++
		l.keys = append(l.keys, key)
		switch {
		case l.Command == Incr:
			l.w = appendCommand(l.w, "INCR", key)
		case l.Command == IncrBy || l.Command == SegmentRange:
			l.w = appendCommand(l.w, string(l.Command), key, n)
		case l.Command == SegmentNext && l.Count > 1:
			l.w = appendCommand(l.w, string(l.Command), key, "COUNT", n)
		case l.Command == SegmentNext:
			l.w = appendCommand(l.w, string(l.Command), key)
		case l.Count > 1:
			l.w = appendCommand(l.w, string(l.Command), "COUNT", n)
		default:
			l.w = appendCommand(l.w, string(l.Command))
		}
	}
	if l.Multi {
		l.w = appendCommand(l.w, "EXEC")
	}
	invoke := l.History.Now()
	done := 0
	defer func() {
		if err == nil {
			return
		}
		now := l.History.Now()
		var m malformed
		if errors.As(err, &m) && done < len(l.keys) {
			l.res.Errors[Malformed]++
			l.res.LastError = err.Error()
			l.rec.Error(string(l.Command), l.keys[done], invoke, now, Malformed)
			done++
		}
		for _, key := range l.keys[done:] {
			l.rec.Lost(string(l.Command), key, invoke, now)
			l.res.Lost++
		}
	}()
	if err := l.conn.SetDeadline(time.Now().Add(l.Timeout)); err != nil {
		return false, err
	}
	if _, err := l.conn.Write(l.w); err != nil {
		return false, err
	}
	if l.Multi {
		again, err := l.queued(invoke)
		if again || err != nil {
			done = len(l.keys) // refused as a whole
			if err != nil {
				done = 0
			}
			return true, err
		}
	}
	for ; done < len(l.keys); done++ {
		bad, err := l.reply(l.keys[done], invoke)
		if err != nil {
			return false, err
		}
		refused = refused || bad
	}
	return refused, nil
}

// queued reads what comes before the replies inside EXEC; refused says that there will be none.
func (l *load) queued(invoke time.Duration) (refused bool, err error) {
	var word string
	for i := range len(l.keys) + 2 {
		line, err := l.line()
		if err != nil {
			return false, err
		}
		switch {
		case line[0] == '-':
			if word == "" {
				word = errorWord(line)
				l.res.LastError = string(line[1:])
			}
		case i == len(l.keys)+1:
			if n, err := number(line, '*'); err != nil || n != int64(len(l.keys)) {
				return false, malformed(fmt.Sprintf("EXEC was answered by %q", line))
			}
			return false, nil
		}
	}
	l.res.Errors[word] += int64(len(l.keys))
	for _, key := range l.keys {
		l.rec.Error(string(l.Command), key, invoke, max(invoke, l.conn.at), word)
	}
	return true, nil
}

// reply reads and records the reply to one request.
func (l *load) reply(key string, invoke time.Duration) (refused bool, err error) {
	line, err := l.line()
	if err != nil {
		return false, err
	}
	cmd, ret := string(l.Command), max(invoke, l.conn.at)
	if line[0] == '-' {
		word := errorWord(line)
		l.res.Errors[word]++
		l.res.LastError = string(line[1:])
		l.rec.Error(cmd, key, invoke, ret, word)
		return true, nil
	}
	l.ids = l.ids[:0]
	if line[0] == '*' {
		n, err := number(line, '*')
		if err != nil || n < 1 || n > 1<<20 {
			return false, malformed(fmt.Sprintf("%s was answered by %q", cmd, line))
		}
		for range n {
			line, err := l.line()
			if err != nil {
				return false, err
			}
			if err := l.id(line); err != nil {
				return false, err
			}
		}
	} else if err := l.id(line); err != nil {
		return false, err
	}
	ret = max(invoke, l.conn.at) // the last element may have come later
	got := int64(len(l.ids))
	switch {
	case l.Command == IncrBy && l.Count > 1:
		got = int64(l.Count)
		l.rec.Range(cmd, key, invoke, ret, l.ids[0]-got+1, l.ids[0])
	case l.Command == SegmentRange:
		if len(l.ids) != 2 || l.ids[1]-l.ids[0] != int64(l.Count)-1 {
			return false, malformed(fmt.Sprintf("%s of %d was answered by %v", cmd, l.Count, l.ids))
		}
		got = int64(l.Count)
		l.rec.Range(cmd, key, invoke, ret, l.ids[0], l.ids[1])
	case len(l.ids) == 1:
		l.rec.ID(cmd, key, invoke, ret, l.ids[0])
	default:
		l.rec.IDs(cmd, key, invoke, ret, l.ids)
	}
	l.res.IDs += got
	l.res.Replies++
	l.res.Slowest = max(l.res.Slowest, ret-invoke)
	return false, nil
}

// id takes one integer, or a bulk string that holds one.
func (l *load) id(line []byte) error {
	text := line[1:]
	switch line[0] {
	case ':':
	case '$':
		n, err := number(line, '$')
		if err != nil || n < 1 || n > 20 {
			return malformed(fmt.Sprintf("an ID was answered by %q", line))
		}
		if text, err = l.line(); err != nil {
			return err
		}
	default:
		return malformed(fmt.Sprintf("an ID was answered by %q", line))
	}
	id, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return malformed(fmt.Sprintf("an ID was answered by %q", text))
	}
	l.ids = append(l.ids, id)
	return nil
}

// line reads one line without its end; l.conn.at is then a time at which it was there.
func (l *load) line() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			err = malformed("a reply line without end")
		}
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, malformed(fmt.Sprintf("reply line %q", line))
	}
	return line[:len(line)-2], nil
}

func number(line []byte, kind byte) (int64, error) {
	if line[0] != kind {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(string(line[1:]), 10, 64)
}

func errorWord(line []byte) string {
	word, _, _ := strings.Cut(string(line[1:]), " ")
	return word
}

func appendCommand(b []byte, args ...string) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(len(args)), 10)
	b = append(b, "\r\n"...)
	for _, a := range args {
		b = append(b, '$')
		b = strconv.AppendInt(b, int64(len(a)), 10)
		b = append(b, "\r\n"...)
		b = append(b, a...)
		b = append(b, "\r\n"...)
	}
	return b
}
