package main

import (
	"flag"
	"os"
	"strings"
	"testing"

	"redleaf/conf"
	"redleaf/server"
)

var update = flag.Bool("update", false, "write the generated parts of README.md anew")

// TestReadmeDocumented keeps README's tables equal to the tables in the code.
func TestReadmeDocumented(t *testing.T) {
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for name, table := range map[string]string{"commands": server.CommandTable(), "settings": conf.Table()} {
		begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->"
		before, rest, ok := strings.Cut(text, begin)
		old, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("README.md has no %s … %s", strings.TrimSpace(begin), end)
		}
		want := strings.TrimSpace(table) + "\n"
		if old != want && !*update {
			t.Errorf("README's %s differ from the code: run `make docs`", name)
		}
		text = before + begin + want + end + after
	}
	if *update {
		if err := os.WriteFile("README.md", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
