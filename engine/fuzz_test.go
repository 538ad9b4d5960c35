package engine

import (
	"bytes"
	"testing"
	"unicode/utf8"
)

// FuzzCheckKey: a key is judged without being changed, and what a table can't hold is refused.
func FuzzCheckKey(f *testing.F) {
	for _, s := range []string{"", "order", "order:1", " x", "x ", "a\x00b", "\xff", "名", "a\nb"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		before := bytes.Clone(key)
		err := CheckKey(key)
		if !bytes.Equal(before, key) {
			t.Fatalf("%q became %q", before, key)
		}
		if err == nil && (len(key) == 0 || !utf8.Valid(key) || utf8.RuneCount(key) > 128 || bytes.IndexByte(key, 0) >= 0) {
			t.Fatalf("%q is taken as a key", key)
		}
	})
}
