package conf

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
)

// origin says where a value comes from.
type origin struct {
	source string // "file", "env", "flag" or "CONFIG SET"; "" = default
	where  string // "redleaf.toml:12", "REDLEAF_LISTEN" or "-listen"
}

// rank orders the sources; a later one overrides an earlier one.
func (o origin) rank() int { return slices.Index([]string{"", "file", "env", "flag"}, o.source) }

// loader gathers settings and mistakes.
type loader struct {
	c        *Config
	rows     map[string]*row
	now      func() time.Time
	readFile func(string) ([]byte, error)
	mistakes Mistakes
	notes    []string
	bad      map[string]bool // settings with a mistake, which no further check needs to judge
	blind    bool            // the file could not be understood: what it sets is unknown
	fileText string
}

func newLoader(now func() time.Time, readFile func(string) ([]byte, error)) *loader {
	l := &loader{c: &Config{origin: map[string]origin{}}, rows: map[string]*row{}, bad: map[string]bool{}, now: now, readFile: readFile}
	rows := table(l.c)
	for i := range rows {
		r := &rows[i]
		l.rows[r.name] = r
		if err := r.set(r.fromText(unquote(r.def))); err != nil {
			panic(fmt.Sprintf("conf: default of %s %v", r.name, err))
		}
	}
	return l
}

func (l *loader) load(args, environ []string) (Config, []string, error) {
	flags, err := l.flags(args)
	if err != nil { // flag.ErrHelp
		return Config{}, nil, err
	}
	if l.c.Version && len(l.mistakes) == 0 {
		return Config{Version: true}, nil, nil
	}
	flagMistakes := l.mistakes
	l.mistakes = nil
	if l.c.File != "" {
		l.file(l.c.File)
	}
	l.environ(environ)
	l.mistakes = append(l.mistakes, flagMistakes...)
	for _, f := range flags {
		l.assign(f.setting, l.rows[f.setting].fromText(f.text), origin{"flag", f.flag})
	}
	l.passwords()
	l.resolve()
	l.check()
	if len(l.mistakes) > 0 {
		slices.SortStableFunc(l.mistakes, func(a, b Mistake) int { return cmp.Compare(l.lineOf(a), l.lineOf(b)) })
		return Config{}, nil, l.mistakes
	}
	return *l.c, l.notes, nil
}

// mistake reports one mistake. A path or a variable's name may hold a line end; the report is one line.
func (l *loader) mistake(where, setting, format string, args ...any) {
	l.mistakes = append(l.mistakes, Mistake{oneLine(where), oneLine(setting), oneLine(fmt.Sprintf(format, args...))})
}

func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, s)
}

// assign gives a known setting a value from one source.
func (l *loader) assign(name string, v any, from origin) {
	if before, ok := l.c.origin[name]; ok && before.source == from.source {
		l.bad[name] = true
		if before.where == from.where {
			l.mistake(from.where, name, "is set twice")
		} else {
			l.mistake(from.where, name, "is set by %s as well; take one away", before.where)
		}
		return
	}
	l.c.origin[name] = from
	err := l.rows[name].set(v)
	var users userProblems
	switch {
	case errors.As(err, &users):
		for _, p := range users {
			who := fmt.Sprintf("%s %q", name, p.name)
			if p.name == "" {
				who = fmt.Sprintf("%s %d", name, p.index+1)
			}
			l.mistake(l.userLine(from, p), who, "%s %s", p.field, p.problem)
		}
	case err != nil:
		l.mistake(from.where, name, "%v", err)
	}
	if err != nil {
		l.bad[name] = true
	}
}

// unknown reports a name that is no setting, with the nearest one that is.
func (l *loader) unknown(where, name string) {
	if inner := l.below(name); inner != "" {
		l.mistake(where, "", "%q is a table of settings, not a setting; one of them is %s", name, inner)
		return
	}
	l.mistake(where, "", "unknown setting %s%s", clip(name), didYouMean(name, l.names()))
}

// below returns a setting in the table name, or "" when there is no such table.
func (l *loader) below(name string) string {
	for _, known := range l.names() {
		if strings.HasPrefix(known, name+".") {
			return known
		}
	}
	return ""
}

func (l *loader) names() []string { return sortedKeys(l.rows) }

// sortedKeys returns the keys of m in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// didYouMean returns "; did you mean x?" for the known name nearest to name, or "" when none is near.
func didYouMean(name string, known []string) string {
	best, least := "", max(2, len(name)/4)+1
	for _, k := range known {
		d := distance(strings.ToLower(name), strings.ToLower(k), least)
		table, _, _ := strings.Cut(name, ".")
		if strings.HasPrefix(k, table+".") && strings.HasSuffix(k, "."+name[strings.LastIndexByte(name, '.')+1:]) {
			d = min(d, least-1) // in the right table, only not deep enough or too deep
		}
		if d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance counts the letters to add, drop or change to make b of a, up to limit.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := diagonal
			if a[i-1] != b[j-1] {
				change++
			}
			diagonal = row[j]
			row[j] = min(change, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
