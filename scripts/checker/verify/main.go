// Command verify computes the verdict over a history of IDs from its file alone:
//
//	go run ./scripts/checker/verify FILE...
//
// It exits 0 when every history is clean, 1 when one is not, 2 when one cannot be read.
package main

import (
	"fmt"
	"os"

	"redleaf/scripts/checker"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: verify FILE...")
		os.Exit(2)
	}
	code := 0
	for _, path := range os.Args[1:] {
		r, err := checker.Verify(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "verify:", err)
			code = 2
			continue
		}
		fmt.Print(r)
		if !r.Clean() {
			code = max(code, 1)
		}
	}
	os.Exit(code)
}
