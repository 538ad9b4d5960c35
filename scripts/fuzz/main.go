// Command fuzz runs every fuzz target of the module, one after the other, with an equal part of the time:
//
//	go run ./scripts/fuzz -time 2m
//
// What go test finds it keeps below the package's testdata/fuzz, where each later run of the tests tries it again. The exit code is 1
// when a target failed.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

func main() {
	long := flag.Duration("time", 2*time.Minute, "for all targets together")
	flag.Parse()
	out, err := exec.Command("go", "list", "./...").Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz: go list:", err)
		os.Exit(1)
	}
	type target struct{ pkg, name string }
	var targets []target
	for _, pkg := range strings.Fields(string(out)) {
		list, err := exec.Command("go", "test", "-list", "^Fuzz", pkg).CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "fuzz: %s\n%s", pkg, list)
			os.Exit(1)
		}
		for line := range strings.Lines(string(list)) {
			if name := strings.TrimSpace(line); strings.HasPrefix(name, "Fuzz") {
				targets = append(targets, target{pkg, name})
			}
		}
	}
	failed := 0
	for i, t := range targets {
		each := max(time.Second, (*long / time.Duration(len(targets))).Round(time.Second))
		fmt.Printf("fuzz %d of %d: %s %s for %v\n", i+1, len(targets), t.pkg, t.name, each)
		c := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), t.pkg)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Run(); err != nil {
			failed++
			fmt.Printf("fuzz: %s %s: %v\n", t.pkg, t.name, err)
		}
	}
	fmt.Printf("fuzz: targets=%d failed=%d\n", len(targets), failed)
	if failed > 0 || len(targets) == 0 {
		os.Exit(1)
	}
}
