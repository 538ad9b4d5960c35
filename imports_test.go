package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// arrows lists, for each package, the packages of this module that it may import. DESIGN.md draws the same picture. A package
// that is not listed is a mistake as well: a new one needs a line here and a paragraph there.
var arrows = map[string][]string{
	"redleaf": {
		"redleaf/conf", "redleaf/conf/datadir", "redleaf/server", "redleaf/server/admin", "redleaf/engine",
		"redleaf/segment", "redleaf/segment/mysql", "redleaf/segment/local",
		"redleaf/snowflake", "redleaf/snowflake/zookeeper", "redleaf/snowflake/local",
	},
	"redleaf/conf":                 {},
	"redleaf/conf/datadir":         {},
	"redleaf/server":               {"redleaf/engine"},
	"redleaf/server/admin":         {"redleaf/engine", "redleaf/server"},
	"redleaf/engine":               {"redleaf/segment", "redleaf/snowflake"},
	"redleaf/segment":              {},
	"redleaf/segment/local":        {"redleaf/segment", "redleaf/conf/datadir"},
	"redleaf/segment/mysql":        {"redleaf/segment"},
	"redleaf/segment/storetest":    {"redleaf/segment"},
	"redleaf/snowflake":            {},
	"redleaf/snowflake/local":      {"redleaf/snowflake", "redleaf/conf/datadir"},
	"redleaf/snowflake/zookeeper":  {"redleaf/snowflake", "redleaf/conf/datadir"},
	"redleaf/snowflake/workertest": {"redleaf/snowflake"},
}

// only lists the packages that may import a library, so that a backend's errors and types never leak past its own package.
var only = map[string][]string{
	"github.com/tidwall/redcon":                      {"redleaf/server"},
	"database/sql":                                   {"redleaf/segment/mysql"},
	"github.com/go-sql-driver/mysql":                 {"redleaf/segment/mysql"},
	"github.com/go-zookeeper/zk":                     {"redleaf/snowflake/zookeeper"},
	"go.etcd.io/bbolt":                               {"redleaf/segment/local", "redleaf/snowflake/local"},
	"github.com/BurntSushi/toml":                     {"redleaf/conf"},
	"github.com/prometheus/client_golang/prometheus": {"redleaf/server/admin"},
}

// testOnly are the packages that nothing but tests (and the tools under scripts) may import.
func testOnly(path string) bool {
	return strings.HasPrefix(path, "redleaf/scripts") ||
		path == "redleaf/segment/storetest" || path == "redleaf/snowflake/workertest"
}

func TestImportArrows(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(p.ImportPath, "redleaf/scripts") {
			continue
		}
		seen++
		allowed, known := arrows[p.ImportPath]
		if !known {
			t.Errorf("package %s is not in the list of arrows: add it there and a paragraph to DESIGN.md", p.ImportPath)
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, "redleaf") && !slices.Contains(allowed, imp) {
				t.Errorf("%s imports %s: there is no such arrow", p.ImportPath, imp)
			}
			if testOnly(imp) {
				t.Errorf("%s imports %s outside a test", p.ImportPath, imp)
			}
			if who, ok := only[imp]; ok && !slices.Contains(who, p.ImportPath) {
				t.Errorf("%s imports %s: only %v may", p.ImportPath, imp, who)
			}
		}
	}
	if seen < 10 {
		t.Fatalf("go list named %d packages of the program: the test would prove nothing", seen)
	}
}
