package process

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// Network splits an address of the settings into Go's network and address: "unix:/path" or "host:port".
func Network(addr string) (network, address string) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return "unix", path
	}
	return "tcp", addr
}

// Do sends one command to a server that speaks Redis' protocol, over a connection of its own, and returns the reply as
// redis-cli shows it without a terminal: integers and strings bare, arrays one element a line, nil as "", errors as their text.
func Do(addr string, limit time.Duration, args ...string) (string, error) {
	network, address := Network(addr)
	c, err := net.DialTimeout(network, address, limit)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	if _, err := c.Write(Command(args...)); err != nil {
		return "", err
	}
	return ReadReply(bufio.NewReader(c))
}

// Command returns the bytes of one command in Redis' protocol.
func Command(args ...string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

// ReadReply reads one reply of RESP2 and returns it as Do does.
func ReadReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return "", fmt.Errorf("empty reply line")
	}
	switch line[0] {
	case '+', '-', ':':
		return line[1:], nil
	case '$':
		n, err := strconv.Atoi(line[1:])
		if err != nil || n > 512<<20 {
			return "", fmt.Errorf("reply line %q", line)
		}
		if n < 0 {
			return "", nil
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		return string(b[:n]), nil
	case '*':
		n, err := strconv.Atoi(line[1:])
		if err != nil {
			return "", fmt.Errorf("reply line %q", line)
		}
		parts := make([]string, 0, max(min(n, 1024), 0))
		for range n {
			s, err := ReadReply(r)
			if err != nil {
				return "", err
			}
			parts = append(parts, s)
		}
		return strings.Join(parts, "\n"), nil
	}
	return "", fmt.Errorf("reply line %q is not RESP2", line)
}
