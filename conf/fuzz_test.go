package conf

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// FuzzLoad: whatever file, variable and flag say, Load returns; its error is a list of mistakes that each name a
// place or a setting on one line, and its Config satisfies what check promises. No file but the fuzzed one exists.
func FuzzLoad(f *testing.F) {
	files, _ := filepath.Glob("testdata/bad-*.toml")
	for _, file := range append(files, "redleaf.toml") {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "REDLEAF_SEGMENT_STEP=5", "segment.max_step=10")
	}
	f.Add("\xef\xbb\xbflisten = \":1\"", `REDLEAF_AUTH_USER=[{name = "a"}]`, `listen=["a:1"]`)
	f.Add("a.\"b\nc\" = \"\"\"\n", "REDLEAF_AUTH_PASSWORD_FILE=f", "snowflake.bits=1-1-1")
	f.Fuzz(func(t *testing.T, file, variable, set string) {
		c, _, err := load(map[string]string{"f": file}, []string{"-c", "f", "-set", set}, []string{variable})
		if errors.Is(err, flag.ErrHelp) {
			t.Fatal("help without -h")
		}
		if err != nil {
			var mistakes Mistakes
			if !errors.As(err, &mistakes) || len(mistakes) == 0 {
				t.Fatalf("not Mistakes: %v", err)
			}
			for _, m := range mistakes {
				if m.Problem == "" || m.Where == "" && m.Setting == "" || strings.IndexFunc(m.Error(), unicode.IsControl) >= 0 {
					t.Fatalf("%+v", m)
				}
			}
			return
		}
		b := c.Snowflake.Bits
		if len(c.Listen) == 0 || c.Segment.Step < 1 || c.Segment.Step > c.Segment.MaxStep || c.Segment.FailoverSkip < 0 || c.Segment.MaxCount < 1 ||
			b.Time < 1 || b.Worker < 1 || b.Sequence < 1 || b.Time+b.Worker+b.Sequence > 63 ||
			c.Snowflake.Workers.Low > c.Snowflake.Workers.High || c.Snowflake.WorkerID>>b.Worker != 0 || c.Snowflake.Epoch > noon.UnixMilli() {
			t.Fatalf("%+v", c)
		}
		if len(c.Settings()) != len(table(&c)) || c.Effective() == "" {
			t.Fatal("settings are missing")
		}
	})
}

// FuzzSecret: whatever stands around a secret on its line, and on the lines below, no mistake shows it (I13).
func FuzzSecret(f *testing.F) {
	for _, around := range [][3]string{
		{"", "", ""}, {"\"", "\" x", ""}, {"[\"", "\"", "]\n"}, {"\"\"\"", "\\q", "\"\"\"\n"}, {"[", "\", 5]", ""}, {"{a = ", "", "}"}, {"'a:", "', name = 5", ""}, {"5 ", " = 6", "[listen"},
	} {
		f.Add(around[0], around[1], around[2])
	}
	f.Fuzz(func(t *testing.T, before, after, below string) {
		if strings.ContainsAny(before, "\n#") || strings.Contains(after, "\n") {
			return // the secret would stand on a line of its own, where it may be a name, and names are shown
		}
		for _, head := range []string{"[auth]\npassword = ", "segment.mysql.dsn = ", "[snowflake.zookeeper]\nauth = ", "[[auth.user]]\nname = \"a\"\npassword_sha256 = "} {
			text := head + before + secretText + after + "\n" + below
			if _, _, err := load(map[string]string{"f": text}, []string{"-c", "f"}, nil); err != nil && strings.Contains(err.Error(), secretText) {
				t.Fatalf("%q: %v", text, err)
			}
		}
	})
}
