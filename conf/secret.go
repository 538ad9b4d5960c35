package conf

import (
	"fmt"
	"regexp"
)

// Mask stands wherever a secret would.
const Mask = "********"

// Secret is text that must not be seen: a password, a DSN, a hash (I13). Every way of printing it shows Mask, or
// nothing when there is no secret; only Reveal gives the text away. The text hangs on a pointer, because fmt prints
// an unexported field of a foreign struct without asking its methods, and then shows an address.
type Secret struct{ text *string }

// NewSecret returns s as a Secret.
func NewSecret(s string) Secret { return Secret{&s} }

// Reveal returns the text. Whoever calls it answers for where the text goes.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsSet reports whether there is anything to hide.
func (s Secret) IsSet() bool { return s.Reveal() != "" }

// String returns Mask, or "" when there is no secret.
func (s Secret) String() string {
	if s.IsSet() {
		return Mask
	}
	return ""
}

// GoString is String in quotes.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// Format writes String for every verb, so that not even %x or %d shows the text.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		fmt.Fprint(f, s.GoString())
		return
	}
	fmt.Fprint(f, s.String())
}

// MarshalText writes String; encoding/json, log/slog and TOML encoders use it.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// dsnForm is user[:password]@net(addr)/db?params. What follows the last @ must be free of another one, so that no
// piece of a password can pass for the address.
var dsnForm = regexp.MustCompile(`^([^:@/?]*)(:.*)?@([a-z0-9]*(?:\([^()@]*\))?/[^@/?]*(?:\?[^@]*)?)$`)

// maskDSN hides the password of a MySQL DSN, and the whole of one that does not have a DSN's form.
func maskDSN(s Secret) string {
	part := dsnForm.FindStringSubmatch(s.Reveal())
	switch {
	case part == nil:
		return s.String()
	case part[2] == "":
		return part[1] + "@" + part[3]
	}
	return part[1] + ":" + Mask + "@" + part[3]
}
