package conf

import (
	"fmt"
	"strconv"
	"strings"
)

// Setting is one setting as others see it, secrets masked.
type Setting struct {
	Name    string
	Value   string // in force; lists are TOML, everything else stands without quotes
	Default string // as one writes it in TOML, or how it follows from other settings
	Doc     string // meaning, unit and range
	Source  string // "default", "file", "env", "flag" or "CONFIG SET"
	Where   string // "redleaf.toml:12", "REDLEAF_LISTEN" or "-listen"; "" with the default
	Secret  bool   // Value is masked
	Reload  bool   // SIGHUP takes a change over
}

// Settings returns every setting in the order of the table. CONFIG GET answers with them.
func (c Config) Settings() []Setting {
	var all []Setting
	for _, r := range table(&c) {
		s := Setting{r.name, unquote(r.toml()), r.defaultText(), r.meaning(), "default", "", r.secret, r.reload}
		if o, ok := c.origin[r.name]; ok {
			s.Source, s.Where = o.source, o.where
		}
		all = append(all, s)
	}
	return all
}

// Effective returns what -check prints: every setting in force as a line of TOML with the place it comes from. Secrets
// are masked; of a DSN only the password is, so that one sees which database is meant.
func (c Config) Effective() string {
	var out strings.Builder
	for _, r := range table(&c) {
		value := r.toml()
		if dsns, ok := r.dst.(*[]Secret); ok {
			masked := make([]string, len(*dsns))
			for i := range masked {
				masked[i] = maskDSN((*dsns)[i])
			}
			value = quoteList(masked)
		}
		from := "default"
		if o, ok := c.origin[r.name]; ok {
			from = strings.TrimSpace(o.source + " " + o.where)
		}
		fmt.Fprintf(&out, "%s = %s  # %s\n", r.name, value, from)
	}
	return out.String()
}

// unquote takes the quotes off a TOML string, and leaves everything else as it is.
func unquote(toml string) string {
	if s, err := strconv.Unquote(toml); err == nil {
		return s
	}
	return toml
}

// defaultText is the default for README.
func (r *row) defaultText() string {
	if r.depends != "" {
		return r.depends
	}
	return r.def
}

// meaning is the doc with the range.
func (r *row) meaning() string {
	var limits []string
	if r.off {
		limits = append(limits, "0 = off")
	}
	switch {
	case r.max > 0:
		limits = append(limits, r.numeral(r.min)+" to "+r.numeral(r.max))
	case r.min > 1:
		limits = append(limits, "at least "+r.numeral(r.min))
	}
	if r.oneOf != nil {
		limits = append(limits, strings.Join(r.oneOf, ", "))
	}
	if limits == nil {
		return r.doc
	}
	return r.doc + " (" + strings.Join(limits, "; ") + ")"
}

// userExample follows auth.user in the file.
const userExample = `#[[auth.user]]
#name = "orders"
#password_sha256 = ["0000000000000000000000000000000000000000000000000000000000000000"]  # printf %s PASSWORD | sha256sum
#tags = ["order:*"]
#groups = ["issue", "read"]
#rate = 10000
`

// File returns conf/redleaf.toml: every setting with its meaning, commented out at its default. A line that begins
// with # and no space is a setting; without the # the file means the same.
func File() string {
	var out strings.Builder
	out.WriteString(`# Settings of Redleaf, each at its default. Take the # off to change one.
# Environment: REDLEAF_ and the name in capitals, each . as _ (REDLEAF_SEGMENT_STEP=1000).
# Command line: -set segment.step=1000. A flag overrides the environment, which overrides this file.
# "reload" marks what kill -HUP takes over. redleaf -c FILE -check says what is wrong and shows what is in force.
# This file is made from the table in conf/settings.go.
`)
	section := ""
	for _, r := range table(&Config{}) {
		dot := strings.LastIndexByte(r.name, '.')
		if s := r.name[:max(dot, 0)]; s != section {
			section = s
			fmt.Fprintf(&out, "\n[%s]\n", section)
		}
		text := r.meaning()
		if r.depends != "" {
			text += " Default: " + r.depends + "."
		}
		if r.reload {
			text += " (reload)"
		}
		out.WriteString("\n" + wrap(strings.ReplaceAll(text, "`", ""), 100))
		if r.name == "auth.user" {
			out.WriteString(userExample)
			continue
		}
		fmt.Fprintf(&out, "#%s = %s\n", r.name[dot+1:], r.def)
	}
	return out.String()
}

// wrap breaks text into comment lines of at most width characters.
func wrap(text string, width int) string {
	var out strings.Builder
	line := "#"
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > width {
			out.WriteString(line + "\n")
			line = "#"
		}
		line += " " + word
	}
	return out.String() + line + "\n"
}

// Table returns the settings as a Markdown table, for README.
func Table() string {
	var out strings.Builder
	out.WriteString("| setting | default | meaning |\n|---|---|---|\n")
	for _, r := range table(&Config{}) {
		def := r.depends
		if def == "" && r.def != `""` && r.def != `[]` {
			def = "`" + unquote(r.def) + "`"
		} else if def == "" && r.def == `[]` {
			def = "`[]`"
		}
		meaning := r.meaning()
		if r.reload {
			meaning += " *reload*"
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", r.name, strings.ReplaceAll(def, "|", `\|`), strings.ReplaceAll(meaning, "|", `\|`))
	}
	return out.String()
}

// Usage returns the text of redleaf -h.
func Usage() string {
	return `usage: redleaf [-c FILE] [-listen ADDR] [-admin ADDR] [-data-dir DIR] [-set name=value]... [-check] [-version] [-bootstrap]

  -c FILE          read settings from a TOML file
  -listen ADDR     listen: host:port or unix:/path for Redis clients; a TOML list for several
  -admin ADDR      admin.listen: host:port for HTTP, empty = off
  -data-dir DIR    data_dir: directory of the local state
  -set name=value  any setting, as in -set segment.step=1000; repeatable
  -check           check the settings, print those in force and exit
  -version         print the version and exit
  -bootstrap       make what the registry needs in ZooKeeper and exit

Every setting can also stand in the environment: segment.step is REDLEAF_SEGMENT_STEP.
conf/redleaf.toml documents them all.
`
}
