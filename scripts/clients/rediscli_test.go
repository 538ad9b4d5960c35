package clients

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// tool runs one of Redis' own programs to its end.
func (s *session) tool(name, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.ctx, name, s.toolArgs(args...)...)
	cmd.Env = append(os.Environ(), "REDISCLI_HISTFILE=/dev/null", "REDISCLI_RCFILE=/dev/null")
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err == nil && strings.Contains(errs.String(), "ERR") {
		err = fmt.Errorf("%s", errs.String())
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, out.String(), errs.String())
	}
	return strings.TrimSpace(out.String()), nil
}

func (s *session) toolArgs(args ...string) []string {
	all := []string{"-h", s.host(), "-p", s.port()}
	if s.pass != "" {
		all = append(all, "-a", s.pass)
	}
	if s.ca != "" {
		all = append(all, "--tls", "--cacert", s.ca)
	}
	return append(all, args...)
}

func (s *session) with(pass string) *session {
	d := *s
	d.pass = pass
	return &d
}

func toolVersion(name string) string {
	out, err := exec.Command(name, "--version").Output()
	if err != nil {
		return ""
	}
	return regexp.MustCompile(`\d+\.\d+\.\d+`).FindString(string(out))
}

// redisCLI does most checks with one redis-cli per command, as scripts do, and the rest as people do, on a terminal.
func redisCLI(s *session) error {
	quiet := []string{"--no-auth-warning"}
	one := func(args ...string) (string, error) { return s.tool("redis-cli", "", append(quiet, args...)...) }
	ids := func(args ...string) func() (string, []string, error) {
		return func() (string, []string, error) {
			out, err := one(args...)
			return "", strings.Fields(out), err
		}
	}
	many := func(n int, args ...string) func() (string, []string, error) {
		return func() (string, []string, error) {
			var all []string
			for range n {
				out, err := one(args...)
				if err != nil {
					return "", nil, err
				}
				all = append(all, out)
			}
			return "", all, nil
		}
	}
	refused := func(pass string) (string, []string, error) {
		cmd := exec.CommandContext(s.ctx, "redis-cli", s.with(pass).toolArgs("--no-auth-warning", "INCR", "order")...)
		out, _ := cmd.CombinedOutput()
		return string(out), nil, nil
	}
	var term *terminal
	defer func() {
		if term != nil {
			term.close()
		}
	}()
	// Keys that are typed before the prompt is there are lost: it throws away what waits when it begins to read.
	prompt := `(?:not connected|` + regexp.QuoteMeta(s.addr) + `)> `
	open := func() error {
		if term != nil {
			return nil
		}
		cmd := exec.CommandContext(s.ctx, "redis-cli", s.toolArgs(quiet...)...)
		cmd.Env = append(os.Environ(), "TERM=xterm", "REDISCLI_HISTFILE=/dev/null", "REDISCLI_RCFILE=/dev/null", "NO_COLOR=")
		var err error
		if term, err = openTerminal(cmd); err != nil {
			return err
		}
		_, err = term.wait(0, prompt)
		return err
	}
	s.each(toolVersion("redis-cli"), checks{
		"connect":       func() (string, []string, error) { out, err := one("PING"); return out, nil, err },
		"nopassword":    func() (string, []string, error) { return refused("") },
		"wrongpassword": func() (string, []string, error) { return refused("wrong") },
		"incr":          many(10, "INCR", "order"),
		"incrby":        ids("INCRBY", "order", "100"),
		"pipeline": func() (string, []string, error) { // commands as lines
			out, err := s.tool("redis-cli", strings.Repeat("INCR order\n", 1000), quiet...)
			return "", strings.Fields(out), err
		},
		"pipe": func() (string, []string, error) { // commands as the protocol
			out, err := s.tool("redis-cli", strings.Repeat("*2\r\n$4\r\nINCR\r\n$5\r\norder\r\n", 1000), append(quiet, "--pipe")...)
			if err == nil && !strings.HasSuffix(out, "errors: 0, replies: 1000") {
				err = fmt.Errorf("--pipe says %q", out)
			}
			return "", nil, err
		},
		"multi": func() (string, []string, error) {
			out, err := s.tool("redis-cli", "MULTI\nINCR order\nINCR order\nINCRBY order 5\nEXEC\n", quiet...)
			return "", strings.Fields(strings.TrimPrefix(out, "OK\nQUEUED\nQUEUED\nQUEUED\n")), err
		},
		"snowflake":  many(20, "SNOWFLAKE.NEXT"),
		"snowflakes": ids("SNOWFLAKE.NEXT", "COUNT", "100"),
		"alias":      many(10, "INCR", "snowflake:a"),
		"segment":    ids("SEGMENT.NEXT", "order"),
		"segments":   ids("SEGMENT.NEXT", "order", "COUNT", "10"),
		"range":      ids("SEGMENT.RANGE", "order", "50"),
		"get":        func() (string, []string, error) { out, err := one("GET", "order"); return out, nil, err },
		"refusal": func() (string, []string, error) {
			out, err := one("DECR", "order")
			return out, nil, err
		},
		"options": func() (string, []string, error) {
			args := []string{"-3", "-n", "0", "INCR", "order"}
			d := s
			if s.user != "" {
				d = s.with(s.userKey)
				args = append([]string{"--user", s.user}, args...)
			}
			out, err := d.tool("redis-cli", "", append(quiet, args...)...)
			return "", strings.Fields(out), err
		},
		// An open session finds its connection closed at the next command, and connects again.
		"restart": func() (string, []string, error) {
			if err := open(); err != nil {
				return "", nil, err
			}
			if _, err := term.typeKeys("PING\r", `PONG\r\n(?s:.*)`+prompt); err != nil {
				return "", nil, err
			}
			return again(s, func() (int64, error) {
				m, err := term.typeKeys("INCR order\r", `(?:\(integer\) (\d+)\r|(Error|Could not connect).*\r)\n(?s:.*)`+prompt)
				if err != nil {
					return 0, err
				}
				if m[1] == "" {
					return 0, fmt.Errorf("%s", m[0])
				}
				return strconv.ParseInt(m[1], 10, 64)
			})
		},
		"hints": func() (string, []string, error) {
			if err := open(); err != nil {
				return "", nil, err
			}
			for _, step := range []struct{ keys, want string }{
				{"snowflake.next ", `\[COUNT `},      // the hint, in grey behind the cursor
				{"\x15segment.range ", `mkey count`}, // ^U clears the line
				{"\x15snow\t", `SNOWFLAKE\.`},
				{"\x15HELP SNOWFLAKE.NEXT\r", `summary:(?s:.*)` + prompt},
				{"HELP SEGMENT.RANGE\r", `key count(?s:.*)summary:(?s:.*)` + prompt},
				{"SNOWFLAKE.NEXT\r", `"\d{18,19}"\r\n(?s:.*)` + prompt},
			} {
				if _, err := term.typeKeys(step.keys, step.want); err != nil {
					return "", nil, fmt.Errorf("after %q: %w", step.keys, err)
				}
			}
			return "", nil, nil
		},
		"scan": func() (string, []string, error) {
			out, err := one("--scan", "--pattern", "ord*")
			if err == nil && out != "order" {
				err = fmt.Errorf("--scan finds %q", out)
			}
			return "", nil, err
		},
		"quit": func() (string, []string, error) {
			if err := open(); err != nil {
				return "", nil, err
			}
			if _, err := term.typeKeys("\x15QUIT\r", "\n"); err != nil {
				return "", nil, err
			}
			return "", nil, term.cmd.Wait()
		},
	})
	return nil
}

// redisBenchmark draws from the counter of the others as well; it tells how fast, not which.
func redisBenchmark(s *session) error {
	run := func(s *session, args ...string) (string, error) {
		out, err := s.tool("redis-benchmark", "", append([]string{"-q", "-c", "10"}, args...)...)
		if err == nil && !strings.Contains(out, "requests per second") {
			err = fmt.Errorf("it printed %q", out)
		}
		if err == nil && strings.Contains(out, "WARNING") {
			err = fmt.Errorf("it warns: %q", out)
		}
		return out, err
	}
	passes := func(args ...string) func() (string, []string, error) {
		return func() (string, []string, error) { _, err := run(s, args...); return "", nil, err }
	}
	refused := func(pass string) func() (string, []string, error) {
		return func() (string, []string, error) {
			_, err := run(s.with(pass), "-n", "10", "INCR", "order")
			return said(err)
		}
	}
	s.each(toolVersion("redis-benchmark"), checks{
		"connect": func() (string, []string, error) {
			_, err := run(s, "-n", "100", "-t", "ping_inline,ping_mbulk")
			return "PONG", nil, err
		},
		"nopassword":    refused(""),
		"wrongpassword": refused("wrong"),
		"incr":          passes("-n", "5000", "-t", "incr", "-3"),
		"restart": func() (string, []string, error) { // it does not outlive its server, and need not
			s.restart()
			_, err := run(s, "-n", "100", "INCR", "order")
			return "1 attempts", nil, err
		},
		"incrby":   passes("-n", "2000", "-r", "20", "INCRBY", "bench:__rand_int__", "10"),
		"pipeline": passes("-n", "50000", "-P", "100", "INCR", "order"),
	})
	return nil
}
