package conf

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The rules for strings and elements of lists. Each error is a predicate for the setting's name.

func notEmpty(s string) error {
	if s == "" {
		return errors.New("must not be empty")
	}
	return nil
}

func validListen(s string) error {
	if file, ok := strings.CutPrefix(s, "unix:"); ok {
		switch {
		case !strings.HasPrefix(file, "/"):
			return fmt.Errorf("%s needs an absolute path, unix:/path", clip(s))
		case len(file) > 107 || strings.ContainsRune(file, 0):
			return fmt.Errorf("%s is no path for a socket: at most 107 bytes", clip(s))
		}
		return nil
	}
	if !hostPort(s, true) {
		return fmt.Errorf("%s is not an address; write host:port, :port, [ipv6]:port or unix:/path", clip(s))
	}
	return nil
}

func validAdmin(s string) error {
	if s != "" && !hostPort(s, true) {
		return fmt.Errorf("%s is not an address; write host:port, :port or [ipv6]:port, or leave it empty to switch HTTP off", clip(s))
	}
	return nil
}

func validServer(s string) error {
	host, chroot, _ := strings.Cut(s, "/")
	if !hostPort(host, false) || strings.HasSuffix(chroot, "/") {
		return fmt.Errorf("%s is not a server; write host:port or [ipv6]:port, with /path after the last for a chroot", clip(s))
	}
	return nil
}

// maxKey is the length of the longest key in bytes; a longer pattern could never match all it says.
const maxKey = 128

func validGlob(s string) error {
	if _, err := path.Match(s, ""); err != nil || len(s) > maxKey || !printable(s) {
		return fmt.Errorf(`%s is not a pattern; * stands for any text, ? for one character, [a-z] for one of several, \ makes the next one plain`, clip(s))
	}
	return nil
}

var tableForm = regexp.MustCompile(`^[A-Za-z0-9_$]{1,64}(\.[A-Za-z0-9_$]{1,64})?$`)

func validTable(s string) error {
	if !tableForm.MatchString(s) {
		return fmt.Errorf("%s is not a table name; write table or database.table in letters, digits, _ and $", clip(s))
	}
	return nil
}

func validRoot(s string) error {
	if !strings.HasPrefix(s, "/") || path.Clean(s) != s || s == "/" || !printable(s) || strings.Contains(s, " ") {
		return fmt.Errorf("%s is not a path in ZooKeeper; write /name or /name/name", clip(s))
	}
	return nil
}

func validName(s string) error {
	if s == "" || s == "." || s == ".." || strings.ContainsAny(s, "/ ") || !printable(s) {
		return fmt.Errorf("%s is not a name; it must not be empty and have no / or space", clip(s))
	}
	return nil
}

func validNode(s string) error {
	if strings.ContainsAny(s, "/ ") || !printable(s) || s == "." || s == ".." || len(s) > maxKey {
		return fmt.Errorf("%s is not an identity; it must have no / or space, such as 10.0.0.7:6380", clip(s))
	}
	return nil
}

func validUser(s string) error {
	switch {
	case s == "" || len(s) > maxKey || !printable(s) || strings.IndexFunc(s, unicode.IsSpace) >= 0:
		return fmt.Errorf("%s is not a user name; it needs 1 to 128 bytes without spaces", clip(s))
	case s == "default":
		return errors.New(`"default" is the user of auth.password; choose another name`)
	}
	return nil
}

func validHash(s string) error {
	if _, err := hex.DecodeString(s); err != nil || len(s) != 64 || s != strings.ToLower(s) {
		return errors.New("needs 64 lower-case hex digits, as printf %s PASSWORD | sha256sum prints them")
	}
	return nil
}

func validGroup(s string) error {
	if s != "issue" && s != "read" && s != "admin" {
		return fmt.Errorf("%s is not a group; there are issue, read and admin", clip(s))
	}
	return nil
}

// printable reports whether s is UTF-8 without control characters.
func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}

// hostPort reports whether s is host:port; listening, the host may be empty (every interface) and the port 0.
func hostPort(s string, listening bool) bool {
	host, port, err := net.SplitHostPort(s)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || !listening && (host == "" || n == 0) {
		return false
	}
	if strings.Contains(host, ":") {
		_, err := netip.ParseAddr(host)
		return err == nil
	}
	return printable(host) && !strings.ContainsAny(host, " /@,[]\"'\\")
}
