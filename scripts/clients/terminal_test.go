package clients

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a program on a pseudo-terminal: redis-cli shows hints only to people.
type terminal struct {
	cmd  *exec.Cmd
	pty  *os.File
	mu   sync.Mutex
	seen bytes.Buffer
	more chan struct{} // one token when something was printed
	end  chan struct{}
}

func openTerminal(cmd *exec.Cmd) (*terminal, error) {
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	fd := int(pty.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 160})
	}
	if err != nil {
		return nil, fmt.Errorf("no pseudo-terminal: %w", err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer tty.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := &terminal{cmd: cmd, pty: pty, more: make(chan struct{}, 1), end: make(chan struct{})}
	go func() {
		defer close(t.end)
		b := make([]byte, 4096)
		for {
			n, err := pty.Read(b)
			t.mu.Lock()
			t.seen.Write(b[:n])
			t.mu.Unlock()
			select {
			case t.more <- struct{}{}:
			default:
			}
			if err != nil {
				return // EIO: the program has closed its side
			}
		}
	}()
	return t, nil
}

// typeKeys types, and waits until what is printed after it matches. It returns the match's parts.
func (t *terminal) typeKeys(keys, want string) ([]string, error) {
	from := t.mark()
	if _, err := t.pty.WriteString(keys); err != nil {
		return nil, err
	}
	return t.wait(from, want)
}

// mark is a place in what was printed.
func (t *terminal) mark() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen.Len()
}

func (t *terminal) wait(from int, want string) ([]string, error) {
	pattern := regexp.MustCompile(want)
	limit := time.After(30 * time.Second)
	for {
		t.mu.Lock()
		got := t.seen.String()[from:]
		t.mu.Unlock()
		if m := pattern.FindStringSubmatch(got); m != nil {
			return m, nil
		}
		select {
		case <-t.more:
		case <-t.end:
			return nil, fmt.Errorf("the program ended before it printed %q: %q", want, got)
		case <-limit:
			return nil, fmt.Errorf("%q was not printed: %q", want, got)
		}
	}
}

func (t *terminal) close() {
	_ = t.cmd.Process.Kill()
	_ = t.cmd.Wait()
	t.pty.Close()
	<-t.end
}

func TestTerminal(t *testing.T) {
	term, err := openTerminal(exec.Command("sh", "-c", "tty; read x; echo got $x"))
	if err != nil {
		t.Fatal(err)
	}
	defer term.close()
	if got, err := term.wait(0, "/dev/pts/"); err != nil {
		t.Fatal(got, err)
	}
	if got, err := term.typeKeys("hello\r", "got hello"); err != nil {
		t.Fatal(got, err)
	}
}
