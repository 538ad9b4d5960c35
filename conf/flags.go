package conf

import (
	"errors"
	"flag"
	"io"
	"strings"
)

// flagValue is one setting given by a flag.
type flagValue struct{ flag, setting, text string }

// flags parses the command line. Modes and -c go into the Config at once; the settings are returned, because file and
// environment come first.
func (l *loader) flags(args []string) (values []flagValue, err error) {
	set := flag.NewFlagSet("redleaf", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&l.c.File, "c", "", "")
	set.BoolVar(&l.c.Check, "check", false, "")
	set.BoolVar(&l.c.Version, "version", false, "")
	set.BoolVar(&l.c.Bootstrap, "bootstrap", false, "")
	for _, r := range l.rows {
		if r.flag != "" {
			set.Func(r.flag, "", func(text string) error {
				values = append(values, flagValue{"-" + r.flag, r.name, text})
				return nil
			})
		}
	}
	set.Func("set", "", func(text string) error {
		name, value, ok := strings.Cut(text, "=")
		if !ok { // the text may be a secret with a slip in it: not shown
			l.mistake("-set", "", "needs name=value, as in -set segment.step=1000")
		} else if l.rows[name] == nil {
			l.unknown("-set", name)
		} else {
			values = append(values, flagValue{"-set", name, value})
		}
		return nil
	})
	for rest := args; ; {
		err = set.Parse(rest)
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		if err == nil {
			if n := set.NArg(); n > 0 { // not shown, it may be the second half of a password
				l.mistake("command line", "", "argument %d belongs to no flag; a value with spaces needs quotes", len(args)-n+1)
			}
			return values, nil
		}
		rest = l.badFlag(err, set, rest)
	}
}

// badFlag reports the flag at which parsing stopped, since the flag package's own text quotes values, and returns the
// arguments after it.
func (l *loader) badFlag(err error, set *flag.FlagSet, args []string) []string {
	rest := set.Args()
	if strings.HasPrefix(err.Error(), "bad flag syntax") { // "-=x" and "---x" are not consumed
		rest = rest[1:]
	}
	name, _, hasValue := strings.Cut(strings.TrimLeft(args[len(args)-len(rest)-1], "-"), "=")
	switch {
	case set.Lookup(name) != nil:
		l.mistake("-"+name, "", "needs a value that it did not get, or got one that it does not take")
		return rest
	case l.rows[name] != nil:
		l.mistake("-"+name, "", "is a setting, not a flag; write -set %s=…", name)
	default:
		l.mistake("command line", "", "unknown flag %s; see redleaf -h", clip("-"+name))
	}
	if !hasValue && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return rest[1:] // its value
	}
	return rest
}
