// Package datadir owns the data directory: who may use it, whose it is, and which state files must be in it.
//
//	LOCK            held by flock as long as a process lives; names its pid
//	identity.json   id, the machine it was made on, and every state file that was ever made here
//	*.db, …         the state files, each owned by the package that makes it
//
// The identity is what makes an absence visible. A state file that is gone leaves no trace of its own; without the identity
// a deleted segment.db and a first start would look the same, and the counters would begin at 1 again (I11).
//
// A state file is made in this order, so that a crash at any point leaves something the next start can tell apart:
// Expect says "not recorded" → the file is written whole and fsynced → Record → first use.
package datadir

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockName     = "LOCK"
	identityName = "identity.json"
	identityTemp = "identity.json.new"
	format       = 1
	maxIdentity  = 1 << 20
)

// Options of Open.
type Options struct {
	// AcceptMoved records this machine and place as the right ones from now on, once (accept_moved_data). The operator says by
	// it that no other process goes on with a copy of this directory.
	AcceptMoved bool
	// TolerateMoved opens a directory that was made elsewhere without recording anything. It is for instances that keep no
	// engine's truth in here (segment in MySQL, worker numbers from ZooKeeper): they compare Fingerprint themselves.
	TolerateMoved bool
	// Machine describes this machine; nil reads it from the system.
	Machine *Machine
}

// Machine is what tells one machine from another. A part that is empty on either side is not compared: the DMI id, for one,
// can be read by root alone.
type Machine struct {
	ID   string `json:"machine_id,omitempty"` // /etc/machine-id
	DMI  string `json:"dmi_uuid,omitempty"`   // /sys/class/dmi/id/product_uuid
	Host string `json:"hostname,omitempty"`
	Boot string `json:"-"` // /proc/sys/kernel/random/boot_id: another one after each boot
}

// identity is the content of identity.json.
type identity struct {
	Format      int       `json:"format"`
	ID          string    `json:"id"`
	Created     time.Time `json:"created"`
	Fingerprint string    `json:"fingerprint"` // random; another one after each accepted move
	Machine     Machine   `json:"machine"`
	Place       string    `json:"place"`  // file system and inode of this very file: a copy has others
	Stores      []string  `json:"stores"` // state files that must be here
}

// Dir is an open data directory. Its methods are safe for concurrent use.
type Dir struct {
	path        string
	lock        *os.File
	boot        string
	created     bool
	moved       string
	foreign     bool // moved and only tolerated: the identity goes on naming the original's machine and place
	fingerprint string

	mu    sync.Mutex // guards ident and the file behind it
	ident identity
}

// InUseError says that another process holds the directory.
type InUseError struct {
	Path string
	PID  int // 0: unknown
}

func (e *InUseError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = "process " + strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("data_dir %s is in use by %s: two processes would hand out the same IDs. Stop that one, or give this one a data_dir of its own", e.Path, who)
}

// MovedError says that the directory was made on another machine or is a copy.
type MovedError struct{ Path, What string }

func (e *MovedError) Error() string {
	return fmt.Sprintf("data_dir %s was made elsewhere (%s): if the original goes on, both hand out the same IDs. Once you are sure that nothing uses the original any more, set accept_moved_data = true for one start", e.Path, e.What)
}

// Open locks the directory, making it if need be, and reads or begins its identity. An error names the file and the way out;
// nothing was changed then, but for an empty LOCK.
func Open(dir string, o Options) (*Dir, error) {
	if dir == "" {
		return nil, errors.New("data_dir is empty: set it to a directory that survives restarts")
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("data_dir %s: %w", dir, err)
	}
	if err := makeDir(path); err != nil {
		return nil, fmt.Errorf("data_dir %s can't be made: %w. Make it, writable for this user, or set data_dir", path, err)
	}
	lock, err := takeLock(path)
	if err != nil {
		return nil, err
	}
	m := o.Machine
	if m == nil {
		m = thisMachine()
	}
	d := &Dir{path: path, lock: lock, boot: m.Boot}
	if err := d.load(*m, o); err != nil {
		lock.Close()
		return nil, err
	}
	return d, nil
}

// makeDir is MkdirAll that survives a power cut: a directory entry that is not on disk takes everything below it along.
func makeDir(path string) error {
	if fi, err := os.Stat(path); err == nil {
		if !fi.IsDir() {
			return errors.New("it is not a directory")
		}
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(path)
	if parent == path {
		return fs.ErrNotExist
	}
	if err := makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// SyncDir makes the names in a directory durable: a created or renamed file is not on disk before that.
func SyncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// Some network and FUSE file systems know no fsync of directories; there is nothing more to do on them.
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return err
	}
	return nil
}

func takeLock(path string) (*os.File, error) {
	name := filepath.Join(path, lockName)
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("data_dir %s can't be written: %w. Make it writable for this user, or set data_dir", path, pathless(err))
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			defer f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, &InUseError{Path: path, PID: holder(f)}
			}
			return nil, fmt.Errorf("%s can't be locked: %w. Put data_dir on a file system that has flock", name, err)
		}
		// Somebody may have replaced the file between open and flock; a lock on a file without a name keeps nobody out.
		if sameFile(f, name) {
			f.Truncate(0)
			f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0) // for people only: a full disk is no reason to stop
			return f, nil
		}
		f.Close()
	}
}

func holder(f *os.File) int {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || pid <= 0 {
		return 0
	}
	return pid
}

func sameFile(f *os.File, name string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(name)
	return err == nil && os.SameFile(a, b)
}

// load reads the identity, or begins one where the directory is empty.
func (d *Dir) load(m Machine, o Options) error {
	name := d.Path(identityName)
	b, err := readSmall(name)
	if errors.Is(err, fs.ErrNotExist) {
		return d.begin(m)
	}
	if err != nil {
		return fmt.Errorf("%s can't be read: %w. Make it readable for this user; don't remove it", name, pathless(err))
	}
	var id identity
	if err := json.Unmarshal(b, &id); err != nil {
		return d.damaged(err.Error())
	}
	if id.Format > format {
		return fmt.Errorf("%s has format %d and this version reads up to %d: it was written by a newer Redleaf. Start that version", name, id.Format, format)
	}
	switch {
	case id.Format < 1:
		return d.damaged("it has no format")
	case id.ID == "" || id.Fingerprint == "":
		return d.damaged("it has no id")
	}
	for _, s := range id.Stores {
		if s == "" || s != filepath.Base(s) {
			return d.damaged(fmt.Sprintf("it names a store %q", s))
		}
	}
	d.ident, d.fingerprint = id, id.Fingerprint

	here, err := placeOf(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, pathless(err))
	}
	if d.moved = differs(id, m, here); d.moved == "" {
		return nil
	}
	switch {
	case o.AcceptMoved:
		id.Machine, id.Fingerprint = m, newID()
		if err := d.write(id); err != nil {
			return err
		}
		d.fingerprint = id.Fingerprint
	case o.TolerateMoved:
		// Steady on this machine, and never what the original has: LOCK is the one file here that is never written anew.
		at, err := placeOf(d.Path(lockName))
		if err != nil {
			return fmt.Errorf("%s: %w", d.Path(lockName), pathless(err))
		}
		d.foreign = true
		d.fingerprint = strings.Join([]string{"moved", id.Fingerprint, m.ID, m.DMI, m.Host, at}, "/")
	default:
		return &MovedError{Path: d.path, What: d.moved}
	}
	return nil
}

func (d *Dir) damaged(why string) error {
	return fmt.Errorf("%s is damaged: %s. Put back a copy of this very file; if there is none, nobody knows what was handed out from here: begin with another data_dir above every ID that was used", d.Path(identityName), why)
}

// differs says what about the machine or place is not as recorded; empty if nothing is.
func differs(id identity, m Machine, place string) string {
	var what []string
	for _, p := range []struct{ name, was, is string }{
		{"machine-id", id.Machine.ID, m.ID},
		{"DMI uuid", id.Machine.DMI, m.DMI},
		{"hostname", id.Machine.Host, m.Host},
	} {
		if p.was != "" && p.is != "" && p.was != p.is {
			what = append(what, fmt.Sprintf("%s was %s and is %s", p.name, p.was, p.is))
		}
	}
	if id.Place != "" && place != "" && id.Place != place {
		what = append(what, fmt.Sprintf("%s is a copy, inode %s and not %s", identityName, place, id.Place))
	}
	return strings.Join(what, "; ")
}

// begin makes the identity of an empty directory. One that holds anything else is refused: what was handed out from it is
// written in files whose identity is gone (I11).
func (d *Dir) begin(m Machine) error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("data_dir %s can't be read: %w. Make it readable for this user, or set data_dir", d.path, pathless(err))
	}
	var found []string
	for _, e := range entries {
		switch n := e.Name(); {
		case n == lockName, n == identityTemp, n == "lost+found", strings.HasPrefix(n, "."):
		default:
			found = append(found, n)
		}
	}
	if len(found) > 0 {
		list := strings.Join(found[:min(len(found), 5)], ", ")
		if len(found) > 5 {
			list += ", …"
		}
		return fmt.Errorf("data_dir %s has no %s but is not empty (%s): if these are Redleaf's, put its %s back; otherwise set data_dir to an empty directory", d.path, identityName, list, identityName)
	}
	d.created = true
	id := identity{Format: format, ID: newID(), Created: time.Now().UTC().Truncate(time.Second), Fingerprint: newID(), Machine: m, Stores: []string{}}
	if err := d.write(id); err != nil {
		return err
	}
	d.fingerprint = id.Fingerprint
	return nil
}

// write replaces identity.json durably. A crash leaves the old one or the new one, whole.
func (d *Dir) write(id identity) error {
	name, temp := d.Path(identityName), d.Path(identityTemp)
	broken := func(err error) error {
		os.Remove(temp)
		return fmt.Errorf("%s can't be written: %w. Free space in data_dir and make it writable", name, pathless(err))
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return broken(err)
	}
	defer f.Close()
	// rename keeps the inode, so the file can name its own before it has its name.
	if !d.foreign {
		if id.Place, err = placeOf(temp); err != nil {
			return broken(err)
		}
	}
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return broken(err)
	}
	if _, err := f.Write(append(b, '\n')); err != nil {
		return broken(err)
	}
	if err := f.Sync(); err != nil {
		return broken(err)
	}
	if err := f.Close(); err != nil {
		return broken(err)
	}
	if err := os.Rename(temp, name); err != nil {
		return broken(err)
	}
	d.ident = id
	if err := SyncDir(d.path); err != nil {
		return fmt.Errorf("%s: %w", d.path, pathless(err))
	}
	return nil
}

// Path is the absolute path of a file in the directory.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, name) }

// ID is the identity's UUID. State files carry it, so that a file of another directory is told apart.
func (d *Dir) ID() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ident.ID
}

// Created says that Open began a new identity: this is the first start from this directory.
func (d *Dir) Created() bool { return d.created }

// Moved says what is not as recorded about machine or place, in words for people; empty if nothing is. It is set where Open
// accepted or tolerated a move.
func (d *Dir) Moved() string { return d.moved }

// Fingerprint is the same as long as the directory was neither copied nor moved to another machine, and an accepted move
// changes it too. It is text to compare, with no meaning inside.
func (d *Dir) Fingerprint() string { return d.fingerprint }

// BootID changes with each boot of the machine; empty where the system has none.
func (d *Dir) BootID() string { return d.boot }

// Network names the file system where it is one that several machines may share or whose locks may be advisory across them;
// empty for a local one.
func (d *Dir) Network() string { return networkFS(d.path) }

// Expect says whether the state file was recorded here. One that was must be there, readable and not empty: anything else is
// an error that names it (I11). One that was not recorded may still exist: left by a crash before Record, thus never used.
func (d *Dir) Expect(name string) (existed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(d.ident.Stores, name) {
		return false, nil
	}
	path := d.Path(name)
	const cure = "Put back the file as it was last; if it is lost, nobody knows what was handed out: begin with another data_dir above every ID that was used"
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, fmt.Errorf("%s is missing although %s lists it. %s", path, identityName, cure)
	}
	if err != nil {
		return true, fmt.Errorf("%s can't be read: %w. Make it readable for this user", path, pathless(err))
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return true, fmt.Errorf("%s can't be read: %w", path, pathless(err))
	case !fi.Mode().IsRegular():
		return true, fmt.Errorf("%s is not a regular file. %s", path, cure)
	case fi.Size() == 0:
		return true, fmt.Errorf("%s is empty although %s lists it. %s", path, identityName, cure)
	}
	return true, nil
}

// Record notes durably that the state file exists from now on. The file must be whole and fsynced, and nothing in it used
// before Record returned nil.
func (d *Dir) Record(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if name == "" || name != filepath.Base(name) {
		return fmt.Errorf("%q is no file name", name)
	}
	if slices.Contains(d.ident.Stores, name) {
		return nil
	}
	if fi, err := os.Stat(d.Path(name)); err != nil {
		return fmt.Errorf("%s: %w", d.Path(name), pathless(err))
	} else if fi.Size() == 0 {
		return fmt.Errorf("%s is empty", d.Path(name))
	}
	if err := SyncDir(d.path); err != nil { // the file's own name, before it is relied on
		return fmt.Errorf("%s: %w", d.path, pathless(err))
	}
	id := d.ident
	id.Stores = append(slices.Clone(id.Stores), name)
	return d.write(id)
}

// Check says whether the directory is still the one that was opened. An error means that somebody removed or replaced it under
// the running process, so that the lock keeps nobody out any more: stop.
func (d *Dir) Check() error {
	if !sameFile(d.lock, d.Path(lockName)) {
		return fmt.Errorf("data_dir %s was removed or replaced while it is in use: another process could start from it. Stopping; put it back before the next start", d.path)
	}
	return nil
}

// Close gives up the lock.
func (d *Dir) Close() error { return d.lock.Close() }

func readSmall(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxIdentity+1))
	if err == nil && len(b) > maxIdentity {
		err = errors.New("larger than 1 MiB")
	}
	return b, err
}

// pathless leaves out the path of a file error where the text around it names the path already.
func pathless(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		return le.Err
	}
	return err
}

// newID makes a random (version 4) UUID.
func newID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
