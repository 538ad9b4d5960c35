package server

import (
	"math"
	"strconv"

	"redleaf/engine"
)

// Replies are appended to a byte slice, so that the same handler writes into the fast lane's buffer and into redcon's. Each
// handler appends exactly one reply.

// Error texts that Redis 7 has too, byte for byte: clients match on them. The word in front is part of the text.
const (
	errSyntax           = "ERR syntax error"
	errNotInteger       = "ERR value is not an integer or out of range"
	errInt32            = "ERR value is out of range, value must between -2147483648 and 2147483647"
	errOverflow         = "ERR increment or decrement would overflow"
	errNoAuth           = "NOAUTH Authentication required."
	errHelloNoAuth      = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
	errWrongPass        = "WRONGPASS invalid username-password pair or user is disabled."
	errNoPassword       = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
	errNoPermKey        = "NOPERM this user has no permissions to access one of the keys used as arguments"
	errNoProto          = "NOPROTO unsupported protocol version"
	errProtoNumber      = "ERR Protocol version is not an integer or out of range"
	errClientName       = "ERR Client names cannot contain spaces, newlines or special characters."
	errDBIndex          = "ERR DB index is out of range"
	errExecNoMulti      = "ERR EXEC without MULTI"
	errDiscardNoMulti   = "ERR DISCARD without MULTI"
	errNestedMulti      = "ERR MULTI calls can not be nested"
	errWatchInMulti     = "ERR WATCH inside MULTI is not allowed"
	errNotInMulti       = "ERR Command not allowed inside a transaction"
	errExecAbortFor     = "EXECABORT Transaction discarded because of: "
	errExecAbort        = "EXECABORT Transaction discarded because of previous errors."
	errCluster          = "ERR This instance has cluster support disabled"
	errDebug            = `ERR DEBUG command not allowed. If the enable-debug-command option is set to "local", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.`
	errInvalidCursor    = "ERR invalid cursor"
	errNoSuchClient     = "ERR No such client"
	errClientID         = "ERR client-id should be greater than 0"
	errInvalidClientID  = "ERR Invalid client ID"
	errCaching          = "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled"
	errCachingYes       = "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode."
	errCachingNo        = "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode."
	errTrackingMode     = "ERR You can't specify both OPTIN mode and OPTOUT mode"
	errTrackingRedirect = "ERR The client ID you want redirect to does not exist"
	errTrackingPrefix   = "ERR PREFIX option requires BCAST mode to be enabled"
	errTimeoutNumber    = "ERR timeout is not an integer or out of range"
	errTimeoutNegative  = "ERR timeout is negative"
	errInvalidCommand   = "ERR Invalid command specified"
	errNoKeyArgs        = "ERR The command has no key arguments"
	errBadArgCount      = "ERR Invalid number of arguments specified for command"
	errNoConfigFile     = "ERR The server is running without a config file"
	errOutOfRangePos    = "ERR value is out of range, must be positive"
	errInternal         = "ERR internal error: see the server's log"
)

// Words that stand in front of errors that do not come from the engines.
const (
	wordNoAuth    engine.Word = "NOAUTH"
	wordWrongPass engine.Word = "WRONGPASS"
	wordNoPerm    engine.Word = "NOPERM"
	wordNoProto   engine.Word = "NOPROTO"
	wordExecAbort engine.Word = "EXECABORT"
	wordDenied    engine.Word = "DENIED"
)

// words are the labels under which errors are counted: a fixed number, whatever clients send.
var words = append([]engine.Word{wordNoAuth, wordWrongPass, wordNoPerm, wordNoProto, wordExecAbort, wordDenied}, engine.Words...)

func wordIndex(text string) int {
	n := 0
	for n < len(text) && text[n] != ' ' {
		n++
	}
	for i, w := range words {
		if string(w) == text[:n] {
			return i
		}
	}
	return len(words) - 1 // ERR
}

const crlf = "\r\n"

func appendOK(out []byte) []byte { return append(out, "+OK\r\n"...) }

func appendStatus(out []byte, s string) []byte {
	out = append(out, '+')
	out = append(out, s...)
	return append(out, crlf...)
}

func appendInt(out []byte, n int64) []byte {
	out = append(out, ':')
	out = strconv.AppendInt(out, n, 10)
	return append(out, crlf...)
}

func appendLen(out []byte, kind byte, n int) []byte {
	out = append(out, kind)
	out = strconv.AppendInt(out, int64(n), 10)
	return append(out, crlf...)
}

func appendBulk[T string | []byte](out []byte, s T) []byte {
	out = appendLen(out, '$', len(s))
	out = append(out, s...)
	return append(out, crlf...)
}

// appendBulkInt is n as a bulk string: exact in every client, whatever its integers are.
func appendBulkInt(out []byte, n int64) []byte {
	var digits [20]byte
	return appendBulk(out, strconv.AppendInt(digits[:0], n, 10))
}

func appendArray(out []byte, n int) []byte { return appendLen(out, '*', n) }

// appendLine appends text with every CR and LF made a space, so that no byte of input can begin a reply of its own
// (cases R14), whoever made the text.
func appendLine(out []byte, text string) []byte {
	for i := 0; i < len(text); i++ {
		b := text[i]
		if b == '\r' || b == '\n' {
			b = ' '
		}
		out = append(out, b)
	}
	return append(out, crlf...)
}

// The shapes that differ between RESP2 and RESP3. A map has n pairs.

func (c *conn) appendNull(out []byte) []byte {
	if c.proto == 3 {
		return append(out, "_\r\n"...)
	}
	return append(out, "$-1\r\n"...)
}

func (c *conn) appendNullArray(out []byte) []byte {
	if c.proto == 3 {
		return append(out, "_\r\n"...)
	}
	return append(out, "*-1\r\n"...)
}

func (c *conn) appendMap(out []byte, n int) []byte {
	if c.proto == 3 {
		return appendLen(out, '%', n)
	}
	return appendArray(out, 2*n)
}

func (c *conn) appendSet(out []byte, n int) []byte {
	if c.proto == 3 {
		return appendLen(out, '~', n)
	}
	return appendArray(out, n)
}

// appendPush begins a push message; RESP2 has none and gets an array, as in Redis' SUBSCRIBE.
func (c *conn) appendPush(out []byte, n int) []byte {
	if c.proto == 3 {
		return appendLen(out, '>', n)
	}
	return appendArray(out, n)
}

func (c *conn) appendText(out []byte, s string) []byte {
	if c.proto == 3 {
		out = appendLen(out, '=', len(s)+4)
		out = append(out, "txt:"...)
		out = append(out, s...)
		return append(out, crlf...)
	}
	return appendBulk(out, s)
}

func (c *conn) appendDouble(out []byte, f float64) []byte {
	var digits [32]byte
	s := strconv.AppendFloat(digits[:0], f, 'f', -1, 64)
	if c.proto == 3 {
		out = append(out, ',')
		out = append(out, s...)
		return append(out, crlf...)
	}
	return appendBulk(out, s)
}

// fail appends an error reply and counts it by its word.
func (c *conn) fail(out []byte, text string) []byte {
	c.stats.failed(wordIndex(text))
	c.erred = true
	out = append(out, '-')
	return appendLine(out, text)
}

// parseInt reads an integer as Redis does (string2ll): no plus sign, no leading zero, no space, no "-0", nothing beyond 64
// bits. strconv would take "+5" and "05", and a client that sends those has a mistake it should hear of.
func parseInt(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	if len(b) == 1 && b[0] == '0' {
		return 0, true
	}
	neg := b[0] == '-'
	if neg {
		b = b[1:]
	}
	if len(b) == 0 || b[0] < '1' || b[0] > '9' {
		return 0, false
	}
	var u uint64
	for _, ch := range b {
		d := uint64(ch - '0')
		if d > 9 || u > math.MaxUint64/10 {
			return 0, false
		}
		u = u*10 + d
		if u < d {
			return 0, false
		}
	}
	switch {
	case neg && u <= 1<<63:
		return -int64(u), true
	case !neg && u < 1<<63:
		return int64(u), true
	}
	return 0, false
}
