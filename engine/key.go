package engine

import (
	"strconv"
	"unicode"
	"unicode/utf8"
)

// MaxKey is the longest key in bytes: Leaf's column is varchar(128), and one rule holds for every store.
const MaxKey = 128

// CheckKey says whether key may name a tag: 1 to 128 bytes of valid UTF-8 without control characters and without a space at
// either end, the same for every store, so that a key never names another tag because of a column's rules.
func CheckKey(key []byte) error {
	switch {
	case len(key) == 0:
		return errorf(PlainError, "the key is empty: a tag is 1 to %d bytes of UTF-8", MaxKey)
	case len(key) > MaxKey:
		return errorf(PlainError, "the key is %d bytes long: a tag is 1 to %d bytes of UTF-8", len(key), MaxKey)
	case !utf8.Valid(key):
		return errorf(PlainError, "the key %s is not valid UTF-8: set your client's key serializer to a string one", show(key))
	}
	for i, r := range string(key) {
		if unicode.IsControl(r) {
			return errorf(PlainError, "the key %s holds a control character: set your client's key serializer to a string one", show(key))
		}
		if unicode.IsSpace(r) && (i == 0 || i+utf8.RuneLen(r) == len(key)) {
			return errorf(PlainError, "the key %s begins or ends with a space: databases drop it, so it is refused", show(key))
		}
	}
	return nil
}

// show prints key with every odd byte escaped: no reply carries a CR or LF that came from input.
func show(key []byte) string { return strconv.QuoteToASCII(string(key)) }
