package conf

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fromText reads the text of a variable or flag as TOML would give it: a list is TOML or one value, a string is what
// it says, everything else is TOML or a string.
func (r *row) fromText(text string) any {
	switch r.dst.(type) {
	case *string, *Secret, *Range, *Bits:
		return text
	case *[]string, *[]Secret, *[]User:
		if text == "" {
			return []any{}
		}
		if !strings.HasPrefix(strings.TrimSpace(text), "[") {
			return text
		}
	}
	var v map[string]any
	if _, err := decode("v = "+text, &v); err == nil && len(v) == 1 {
		return v["v"]
	}
	if strings.HasPrefix(strings.TrimSpace(text), "[") {
		return nil // a broken list, which no setting takes
	}
	return text
}

// set puts a value as TOML decodes it into the setting, if it is good; on an error nothing changes. The error is a
// predicate for the setting's name, or userProblems, and holds no secret.
func (r *row) set(v any) error {
	switch dst := r.dst.(type) {
	case *bool:
		b, ok := v.(bool)
		if !ok {
			return r.wants("true or false", v)
		}
		*dst = b
	case *string:
		s, err := r.text(v)
		return put(dst, s, err)
	case *Secret:
		s, err := r.text(v)
		return put(dst, NewSecret(s), err)
	case *[]string:
		list, err := r.list(v)
		return put(dst, list, err)
	case *[]Secret:
		list, err := r.list(v)
		return put(dst, secrets(list), err)
	case *int:
		n, err := r.number(v)
		return put(dst, int(n), err)
	case *int64:
		n, err := r.number(v)
		return put(dst, n, err)
	case *time.Duration:
		n, err := r.number(v)
		return put(dst, time.Duration(n), err)
	case *Bytes:
		n, err := r.number(v)
		return put(dst, Bytes(n), err)
	case *Range:
		s, _ := v.(string)
		if s == "all" {
			*dst = Range{0, auto}
		} else if n := dashed(s, 2); n != nil {
			*dst = Range{n[0], n[1]}
		} else {
			return r.wants(`"all" or a range such as "0-511"`, v)
		}
	case *Bits:
		s, _ := v.(string)
		n := dashed(s, 3)
		if n == nil {
			return r.wants(`three numbers of bits, time-worker-sequence, such as "41-10-12"`, v)
		}
		*dst = Bits{n[0], n[1], n[2]}
	case *[]User:
		users, err := parseUsers(v)
		return put(dst, users, err)
	default:
		panic(fmt.Sprintf("conf: setting %s has no way to read %T", r.name, r.dst))
	}
	return nil
}

// put sets dst to v unless there is an error.
func put[T any](dst *T, v T, err error) error {
	if err == nil {
		*dst = v
	}
	return err
}

// text reads a string.
func (r *row) text(v any) (string, error) {
	s, ok := v.(string)
	if !ok {
		return "", r.wants("a string in quotes", v)
	}
	if r.oneOf != nil && !slices.Contains(r.oneOf, s) {
		return "", r.wants(strings.Join(r.oneOf[:len(r.oneOf)-1], ", ")+" or "+r.oneOf[len(r.oneOf)-1], v)
	}
	if r.valid != nil {
		return s, r.valid(s)
	}
	return s, nil
}

// list reads a list of strings; one string is a list of one.
func (r *row) list(v any) ([]string, error) {
	list, err := stringList(v)
	if _, isList := v.([]any); isList && err != nil {
		return nil, r.wants("a list of strings in quotes", nil)
	} else if err != nil {
		return nil, r.wants("a list of strings in quotes", v)
	}
	if r.name == "snowflake.zookeeper.servers" { // the form of Leaf and of ZooKeeper's own connect string
		list = splitAll(list, ",")
	}
	for _, s := range list {
		if s == "" {
			return nil, errors.New("an empty element in the list")
		}
		if r.valid != nil {
			if err := r.valid(s); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// number reads an integer, a duration in ns or a size in bytes, and holds it against the range.
func (r *row) number(v any) (int64, error) {
	n, isInt := v.(int64)
	s, isText := v.(string)
	switch r.dst.(type) {
	case *time.Duration:
		d, err := time.ParseDuration(s)
		if !(isText && err == nil) && !(isInt && n == 0) {
			return 0, r.wants(`a duration with its unit, such as "1m30s"`, v)
		}
		n = int64(d)
	case *Bytes:
		if isText {
			n, isInt = parseBytes(s)
		}
		if !isInt {
			return 0, r.wants(`bytes, such as 65536, "64KiB", "1MiB" or "1GiB"`, v)
		}
	default:
		if isText && s == "auto" && r.def == `"auto"` {
			return auto, nil
		}
		if !isInt && r.def == `"auto"` {
			return 0, r.wants(`a whole number without quotes, or "auto"`, v)
		} else if !isInt {
			return 0, r.wants("a whole number without quotes", v)
		}
	}
	switch {
	case n == 0 && r.off:
	case n < r.min && r.off:
		return 0, fmt.Errorf("%s is below %s, the least besides 0 for off", r.numeral(n), r.numeral(r.min))
	case n < r.min:
		return 0, fmt.Errorf("%s is below %s, the least", r.numeral(n), r.numeral(r.min))
	case r.max > 0 && n > r.max:
		return 0, fmt.Errorf("%s is above %s, the most", r.numeral(n), r.numeral(r.max))
	}
	return n, nil
}

// wants says what the setting needs, and what it got unless that could be a secret.
func (r *row) wants(what string, got any) error {
	if s, ok := got.(string); ok && !r.secret {
		return fmt.Errorf("needs %s, not %s", what, clip(s))
	}
	if r.secret {
		return fmt.Errorf("needs %s", what)
	}
	switch got.(type) {
	case int64, float64, bool:
		return fmt.Errorf("needs %s, not %v", what, got)
	case []any, []map[string]any:
		return fmt.Errorf("needs %s, not a list", what)
	case map[string]any:
		return fmt.Errorf("needs %s, not a table", what)
	}
	return fmt.Errorf("needs %s", what)
}

// toml returns the value in force as one writes it in TOML, secrets masked.
func (r *row) toml() string {
	switch d := r.dst.(type) {
	case *bool:
		return strconv.FormatBool(*d)
	case *string:
		return strconv.Quote(*d)
	case *Secret:
		return strconv.Quote(d.String())
	case *[]string:
		return quoteList(*d)
	case *[]Secret:
		return quoteList(*d)
	case *int:
		return strconv.Itoa(*d)
	case *int64:
		if *d == auto {
			return `"auto"`
		}
		return strconv.FormatInt(*d, 10)
	case *time.Duration:
		return strconv.Quote(r.numeral(int64(*d)))
	case *Bytes:
		return strconv.Quote(r.numeral(int64(*d)))
	case *Range:
		if d.High == auto {
			return `"all"`
		}
		return fmt.Sprintf(`"%d-%d"`, d.Low, d.High)
	case *Bits:
		return fmt.Sprintf(`"%d-%d-%d"`, d.Time, d.Worker, d.Sequence)
	case *[]User:
		users := make([]string, len(*d))
		for i, u := range *d {
			users[i] = fmt.Sprintf("{name = %q, password_sha256 = %s, tags = %s, groups = %s, rate = %d}",
				u.Name, quoteList(u.PasswordSHA256), quoteList(u.Tags), quoteList(u.Groups), u.Rate)
		}
		return "[" + strings.Join(users, ", ") + "]"
	}
	panic(fmt.Sprintf("conf: setting %s has no way to write %T", r.name, r.dst))
}

// numeral writes a number of the setting's kind: 90s is 1m30s, 1048576 bytes are 1MiB.
func (r *row) numeral(n int64) string {
	switch r.dst.(type) {
	case *time.Duration:
		s := time.Duration(n).String()
		if n == 0 {
			return "0"
		}
		if strings.HasSuffix(s, "m0s") {
			s = strings.TrimSuffix(s, "0s")
		}
		if strings.HasSuffix(s, "h0m") {
			s = strings.TrimSuffix(s, "0m")
		}
		return s
	case *Bytes:
		for i := len(units) - 1; i >= 0; i-- {
			if u := units[i]; n != 0 && n%u.size == 0 {
				return fmt.Sprint(n/u.size) + u.name
			}
		}
	}
	return strconv.FormatInt(n, 10)
}

// units are the units of bytes, ascending.
var units = []struct {
	name string
	size int64
}{{"", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}

func parseBytes(s string) (int64, bool) {
	digits := strings.TrimRight(s, "KMGiB")
	n, err := strconv.ParseInt(digits, 10, 64)
	for _, u := range units {
		if u.name == s[len(digits):] && err == nil && n <= (1<<62)/u.size {
			return n * u.size, true
		}
	}
	return 0, false
}

// dashed reads count numbers below 2^30 with dashes between them, or returns nil.
func dashed(s string, count int) []int {
	var numbers []int
	for part := range strings.SplitSeq(s, "-") {
		n, err := strconv.ParseUint(part, 10, 30)
		if err != nil {
			return nil
		}
		numbers = append(numbers, int(n))
	}
	if len(numbers) != count {
		return nil
	}
	return numbers
}

// stringList reads a TOML list of strings, or one string; "" and nothing are the empty list.
func stringList(v any) ([]string, error) {
	switch v := v.(type) {
	case string:
		if v == "" {
			return []string{}, nil
		}
		return []string{v}, nil
	case []any:
		list := make([]string, len(v))
		for i := range v {
			s, ok := v[i].(string)
			if !ok {
				return nil, errors.New("not a string")
			}
			list[i] = s
		}
		return list, nil
	}
	return nil, errors.New("not a list")
}

func secrets(list []string) []Secret {
	s := make([]Secret, len(list))
	for i := range list {
		s[i] = NewSecret(list[i])
	}
	return s
}

func splitAll(list []string, sep string) []string {
	out := []string{}
	for _, s := range list {
		for _, part := range strings.Split(s, sep) {
			out = append(out, strings.TrimSpace(part))
		}
	}
	return out
}

// quoteList writes strings or secrets as a TOML list.
func quoteList[T any](list []T) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = strconv.Quote(fmt.Sprint(s))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// clip quotes s for an error, shortened, on one line.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(strings.ToValidUTF8(s[:most], "")) + "…"
	}
	return strconv.Quote(s)
}
