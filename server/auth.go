package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"sync/atomic"
	"time"

	"redleaf/engine"
)

// User is one who may connect: [[auth.user]].
type User struct {
	Name           string
	PasswordSHA256 []string // hex; any of them lets the user in
	Tags           []string // glob patterns of the keys the user may name; none = no key
	Groups         []string // of "issue", "read" and "admin"
	Rate           int64    // IDs per second; 0 = no limit
}

// rights are the command groups of design: a row of the command table belongs to one of them, or to none.
type rights uint8

const (
	issue rights = 1 << iota // takes IDs
	read                     // looks
	admin                    // changes counters or the server
)

var rightNames = map[string]rights{"issue": issue, "read": read, "admin": admin}

// Account is a user as the server knows it. Accounts never change: a reload makes new ones.
type Account struct {
	name    string
	hashes  [][sha256.Size]byte
	noPass  bool
	allTags bool
	tags    []string
	groups  rights
	bucket  *bucket // nil: no limit
}

// accounts is the table of users in force. It never changes.
type accounts struct {
	byName map[string]*Account
	def    *Account // "default"; nil: there is none, so everybody must say who they are
}

// defaultUser is the user that AUTH with a password alone means, as in Redis.
const defaultUser = "default"

// newAccounts builds the table. With neither a password nor users everybody is the default user and may do everything. Users
// without a password of the default user's make AUTH mandatory: a door that is always open beside theirs would make them vain.
func newAccounts(password string, users []User, old *accounts) (*accounts, error) {
	t := &accounts{byName: make(map[string]*Account)}
	switch {
	case password != "":
		t.def = &Account{name: defaultUser, hashes: [][sha256.Size]byte{sha256.Sum256([]byte(password))}}
	case len(users) == 0:
		t.def = &Account{name: defaultUser, noPass: true}
	}
	if t.def != nil {
		t.def.allTags, t.def.groups = true, issue|read|admin
		t.byName[defaultUser] = t.def
	}
	for _, u := range users {
		if u.Name == "" {
			return nil, fmt.Errorf("auth.user: a user has no name")
		}
		if t.byName[u.Name] != nil {
			return nil, fmt.Errorf("auth.user '%s': there are two of this name (auth.password makes one called '%s')", u.Name, defaultUser)
		}
		a := &Account{name: u.Name, tags: u.Tags}
		for _, h := range u.PasswordSHA256 {
			sum, err := hex.DecodeString(h)
			if err != nil || len(sum) != sha256.Size {
				return nil, fmt.Errorf("auth.user '%s': password_sha256 must be %d hex digits", u.Name, 2*sha256.Size)
			}
			a.hashes = append(a.hashes, [sha256.Size]byte(sum))
		}
		for _, p := range u.Tags {
			a.allTags = a.allTags || p == "*"
		}
		for _, g := range u.Groups {
			r, ok := rightNames[g]
			if !ok {
				return nil, fmt.Errorf("auth.user '%s': there is no group '%s': issue, read and admin are", u.Name, g)
			}
			a.groups |= r
		}
		switch {
		case u.Rate < 0:
			return nil, fmt.Errorf("auth.user '%s': rate %d is negative", u.Name, u.Rate)
		case u.Rate > 0:
			a.bucket = &bucket{rate: u.Rate}
			if old != nil { // a reload does not refill what was used up
				if was := old.byName[u.Name]; was != nil && was.bucket != nil && was.bucket.rate == u.Rate {
					a.bucket = was.bucket
				}
			}
		}
		t.byName[u.Name] = a
		if u.Name == defaultUser {
			t.def = a
		}
	}
	return t, nil
}

// login finds the account for a name and password. It compares in constant time, and takes as long for a name that does not
// exist. hash is what let it in, for a reload to compare.
func (t *accounts) login(name, password []byte) (a *Account, hash [sha256.Size]byte, ok bool) {
	hash = sha256.Sum256(password)
	a = t.byName[string(name)]
	if a == nil {
		var none [sha256.Size]byte
		subtle.ConstantTimeCompare(hash[:], none[:])
		return nil, hash, false
	}
	return a, hash, a.noPass || a.has(hash)
}

func (a *Account) has(hash [sha256.Size]byte) bool {
	found := 0
	for i := range a.hashes {
		found |= subtle.ConstantTimeCompare(a.hashes[i][:], hash[:])
	}
	return found == 1
}

// Name is the user's name.
func (a *Account) Name() string { return a.name }

// tag says whether the user may name key.
func (a *Account) tag(key []byte) bool {
	if a.allTags {
		return true
	}
	for _, p := range a.tags {
		if glob(p, key) {
			return true
		}
	}
	return false
}

// Issue says whether the user may take n IDs of key now ("" for snowflakes, which have no key), and counts them. The error is
// an *engine.Error with the word NOPERM or LIMIT.
func (a *Account) Issue(key string, n int64) error {
	if a.groups&issue == 0 {
		return &engine.Error{Word: wordNoPerm, Text: "this user has no permissions to take IDs"}
	}
	if key != "" && !a.tag([]byte(key)) {
		return &engine.Error{Word: wordNoPerm, Text: errNoPermKey[len("NOPERM "):]}
	}
	if a.bucket != nil && !a.bucket.take(n, monotonic()) {
		return &engine.Error{Word: engine.Limit, Text: a.limitText(n)}
	}
	return nil
}

func (a *Account) limitText(n int64) string {
	if n > a.bucket.rate {
		return fmt.Sprintf("user '%s' may take %d IDs per second and asked for %d at once: nothing was taken", a.name, a.bucket.rate, n)
	}
	return fmt.Sprintf("user '%s' may take %d IDs per second and has taken them: nothing was taken, try again in a second", a.name, a.bucket.rate)
}

// bucket lets rate IDs pass each second, one second's worth at once. It is safe for concurrent use.
type bucket struct {
	rate int64
	// due is when the IDs taken so far are paid for, in ns of monotonic time.
	due atomic.Int64
}

// take takes n IDs at the time now, if there are that many.
func (b *bucket) take(n, now int64) bool {
	if n > b.rate {
		return false
	}
	cost := int64(float64(n) / float64(b.rate) * float64(time.Second))
	for {
		due := b.due.Load()
		next := max(due, now) + cost
		if next-now > int64(time.Second) {
			return false
		}
		if b.due.CompareAndSwap(due, next) {
			return true
		}
	}
}

// give puts n IDs back that were not used.
func (b *bucket) give(n int64) {
	b.due.Add(-int64(float64(n) / float64(b.rate) * float64(time.Second)))
}

var epoch = time.Now()

// monotonic is a clock that never steps, in ns since the process began.
func monotonic() int64 { return int64(time.Since(epoch)) }
