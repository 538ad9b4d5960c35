package conf

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// file reads the TOML file.
func (l *loader) file(name string) {
	data, err := l.readFile(name)
	if err != nil {
		l.blind = true
		l.mistake("-c", "", "%v", err)
		return
	}
	text := string(data)
	l.fileText = text
	var root map[string]toml.Primitive
	var md toml.MetaData
	for last := 0; ; { // each round leaves out one line that is not TOML, so that all of them are reported
		root = nil
		md, err = decode(text, &root)
		var syntax toml.ParseError
		if err == nil {
			break
		}
		if !errors.As(err, &syntax) {
			l.blind = true
			l.mistake(name, "", "%s", notTOML(""))
			return
		}
		lines := strings.SplitAfter(text, "\n")
		line := min(max(syntax.Position.Line, 1), len(lines))
		setting := syntax.LastKey // the table, when the parser was past the value
		if m := nameValue.FindStringSubmatch(lines[line-1]); m != nil && l.rows[setting] == nil {
			setting = strings.TrimPrefix(setting+"."+m[1], ".")
		}
		header := strings.Contains(syntax.Message, "table name") || strings.Contains(syntax.Message, "table array name")
		for header && line > 1 && !strings.HasPrefix(strings.TrimSpace(lines[line-1]), "[") {
			line-- // told at the end of the line
		}
		if l.rows[setting] == nil || header {
			setting, l.blind = "", true
		} else {
			l.bad[setting] = true
		}
		l.mistake(fmt.Sprintf("%s:%d", name, line), setting, "%s", notTOML(syntax.Message))
		if header || line <= last || !standsAlone(lines[line-1]) {
			l.blind = true
			return
		}
		lines[line-1] = "\n"
		text, last = strings.Join(lines, ""), line
	}
	var found []fileValue
	walk(&md, "", root, func(name string) bool { return l.rows[name] != nil }, &found)
	slices.SortStableFunc(found, func(a, b fileValue) int {
		if a.line != b.line {
			return a.line - b.line
		}
		return strings.Compare(a.name, b.name)
	})
	for _, f := range found {
		where := fmt.Sprintf("%s:%d", name, f.line)
		if l.rows[f.name] != nil {
			l.assign(f.name, f.value, origin{"file", where})
		} else if table, ok := f.value.(map[string]any); !ok || len(table) > 0 || l.below(f.name) == "" { // not an empty [segment]
			l.unknown(where, f.name)
		}
	}
}

// lineOf returns the line of the file a mistake stands on; mistakes elsewhere come after all of them.
func (l *loader) lineOf(m Mistake) int {
	if at, ok := strings.CutPrefix(m.Where, l.c.File+":"); ok {
		if n, err := strconv.Atoi(at); err == nil {
			return n
		}
	}
	return math.MaxInt
}

var nameValue = regexp.MustCompile(`^\s*([\w.]+)\s*=`)

// standsAlone reports whether a line can be left out without changing what the lines below it mean. The first line of
// a string or list of several is none: its rest would be read, and shown, as names.
func standsAlone(line string) bool {
	return nameValue.MatchString(line) && !strings.Contains(line, `"""`) && !strings.Contains(line, "'''") &&
		strings.Count(line, "[") <= strings.Count(line, "]") && strings.Count(line, "{") <= strings.Count(line, "}")
}

// notTOML puts what the parser says into words of ours, because its own quote the line, which may hold a secret (I13).
func notTOML(message string) string {
	for _, m := range []struct{ has, say string }{
		{"already", "is there twice, or both as a table and as a value"},
		{"cannot contain newlines|expected '\"|expected \"'", "a string is not closed"},
		{"expected value", "the value is missing or stands without quotes"},
		{"escape|hexadecimal digits", `a backslash inside "…" begins an escape: write \\, or put the text in '…'`},
		{"out of range", "the number is too large"},
		{"control characters|UTF-8", "a TOML file is UTF-8 without control characters"},
		{"end with a newline", "text after the value; a string with quotes inside needs '…' around it"},
		{"comma", "a comma is missing or there is one too many, or a list or an inline table is not closed"},
		{"key|'.' or '='", "a name or the = after it is missing"},
		{"table", "a table's name stands in brackets, [name]"},
		{"digit|number|nteger|float|datetime", "not a number as TOML writes it; text stands in quotes"},
	} {
		for part := range strings.SplitSeq(m.has, "|") {
			if strings.Contains(message, part) {
				return m.say
			}
		}
	}
	return "not TOML, which has name = value on each line and [table] above"
}

// decode is toml.Decode with its panics turned into errors: it has some for broken input.
func decode(text string, v any) (md toml.MetaData, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("not TOML")
		}
	}()
	return toml.Decode(text, v)
}

// fileValue is one name = value of the file.
type fileValue struct {
	name  string
	value any
	line  int
}

// walk finds the values under prefix: everything known, and what is unknown and not a table.
func walk(md *toml.MetaData, prefix string, level map[string]toml.Primitive, known func(string) bool, found *[]fileValue) {
	for key, primitive := range level {
		name := prefix + key
		var p probe
		var at toml.ParseError
		errors.As(md.PrimitiveDecode(primitive, &p), &at)
		var below map[string]toml.Primitive
		if inner, ok := p.value.(map[string]any); ok && len(inner) > 0 && !known(name) && md.PrimitiveDecode(primitive, &below) == nil {
			walk(md, name+".", below, known, found)
			continue
		}
		*found = append(*found, fileValue{name, p.value, max(at.Position.Line, 1)})
	}
}

// probe takes any value and fails: the parser knows on which line a value stands, but tells it only in errors.
type probe struct{ value any }

func (p *probe) UnmarshalTOML(v any) error {
	p.value = v
	return errors.New("line wanted")
}

var (
	userHeader = regexp.MustCompile(`^\s*\[\[\s*auth\s*\.\s*user\s*\]\]`)
	userField  = regexp.MustCompile(`^\s*"?([a-z0-9_]+)"?\s*=`)
)

// userLine returns the place of a user's field. The parser keeps only the last line of a name that repeats in
// [[auth.user]], so the text is searched; the place of the whole setting serves when that leads nowhere.
func (l *loader) userLine(from origin, p userProblem) string {
	if from.source != "file" {
		return from.where
	}
	user, at := -1, 0
	for i, line := range strings.Split(l.fileText, "\n") {
		if userHeader.MatchString(line) {
			if user++; user == p.index {
				at = i + 1
			}
		} else if m := userField.FindStringSubmatch(line); m != nil && user == p.index && m[1] == p.field {
			at = i + 1
		}
	}
	if at == 0 {
		return from.where
	}
	return fmt.Sprintf("%s:%d", l.c.File, at)
}
