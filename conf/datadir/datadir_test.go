package datadir

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A child of the test holds the directory named in childDir until its input ends.
const childDir = "REDLEAF_TEST_DATADIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		d, err := Open(dir, Options{})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("open", d.ID())
		bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var here = &Machine{ID: "m1", DMI: "d1", Host: "h1", Boot: "b1"}

func open(t *testing.T, dir string, o Options) *Dir {
	t.Helper()
	if o.Machine == nil {
		o.Machine = here
	}
	d, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func refused(t *testing.T, dir string, o Options, want ...string) error {
	t.Helper()
	if o.Machine == nil {
		o.Machine = here
	}
	d, err := Open(dir, o)
	if err == nil {
		d.Close()
		t.Fatalf("opened, want an error with %q", want)
	}
	mentions(t, err, want...)
	return err
}

func mentions(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func put(t *testing.T, d *Dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(d.Path(name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// populated leaves a closed directory with one recorded store.
func populated(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	d := open(t, dir, Options{})
	put(t, d, "segment.db", "tags")
	if err := d.Record("segment.db"); err != nil {
		t.Fatal(err)
	}
	d.Close()
	return dir
}

func TestFirstStartAndNext(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b", "data")
	d := open(t, dir, Options{})
	if !d.Created() || d.Moved() != "" || d.BootID() != "b1" {
		t.Fatalf("created %v moved %q boot %q", d.Created(), d.Moved(), d.BootID())
	}
	if existed, err := d.Expect("segment.db"); existed || err != nil {
		t.Fatalf("Expect before Record: %v %v", existed, err)
	}
	if err := d.Record("segment.db"); err == nil {
		t.Fatal("a store without a file was recorded")
	}
	put(t, d, "segment.db", "tags")
	for range 2 {
		if err := d.Record("segment.db"); err != nil {
			t.Fatal(err)
		}
	}
	if existed, err := d.Expect("segment.db"); !existed || err != nil {
		t.Fatalf("Expect after Record: %v %v", existed, err)
	}
	id, print := d.ID(), d.Fingerprint()
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	d.Close()

	d = open(t, dir, Options{})
	if d.Created() || d.ID() != id || d.Fingerprint() != print {
		t.Fatalf("second start: created %v id %s fingerprint %s, want false %s %s", d.Created(), d.ID(), d.Fingerprint(), id, print)
	}
	if existed, err := d.Expect("segment.db"); !existed || err != nil {
		t.Fatalf("Expect at the second start: %v %v", existed, err)
	}
}

func TestRecordConcurrently(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir, Options{})
	var wg sync.WaitGroup
	for i := range 8 {
		put(t, d, fmt.Sprint(i, ".db"), "x")
		wg.Go(func() {
			if err := d.Record(fmt.Sprint(i, ".db")); err != nil {
				t.Error(err)
			}
			d.ID()
		})
	}
	wg.Wait()
	d.Close()
	d = open(t, dir, Options{})
	for i := range 8 {
		if existed, err := d.Expect(fmt.Sprint(i, ".db")); !existed || err != nil {
			t.Errorf("%d: %v %v", i, existed, err)
		}
	}
}

func TestSecondProcess(t *testing.T) { // two processes on one data dir
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "open ") {
		t.Fatalf("child: %q %v", line, err)
	}
	err = refused(t, dir, Options{}, "data_dir "+dir, "in use by process "+strconv.Itoa(cmd.Process.Pid))
	var in2 *InUseError
	if !errors.As(err, &in2) {
		t.Errorf("error is a %T", err)
	}
	in.Close()
	cmd.Wait()

	// The lock goes with the process, however it ended; the identity stays.
	d, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if want := strings.TrimSpace(strings.TrimPrefix(line, "open ")); d.ID() != want {
		t.Errorf("id %s, want the child's %s", d.ID(), want)
	}
	if _, err := Open(dir, Options{}); err == nil {
		t.Error("opened twice in one process")
	}
}

func TestStoreLost(t *testing.T) {
	for _, c := range []struct {
		name   string
		break_ func(file string) error
		want   []string
	}{
		{"missing", os.Remove, []string{"segment.db is missing although identity.json lists it", "Put back"}},
		{"truncated", func(f string) error { return os.Truncate(f, 0) }, []string{"segment.db is empty", "Put back"}},
		{"a directory", func(f string) error { os.Remove(f); return os.Mkdir(f, 0o700) }, []string{"segment.db is not a regular file"}},
		{"a dangling link", func(f string) error { os.Remove(f); return os.Symlink(f+".gone", f) }, []string{"segment.db is missing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := populated(t)
			if err := c.break_(filepath.Join(dir, "segment.db")); err != nil {
				t.Fatal(err)
			}
			d := open(t, dir, Options{})
			existed, err := d.Expect("segment.db")
			if !existed {
				t.Error("reported as never made")
			}
			mentions(t, err, append(c.want, dir)...)
		})
	}
}

func TestIdentityLost(t *testing.T) {
	dir := populated(t)
	if err := os.Remove(filepath.Join(dir, identityName)); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, Options{}, dir, "no identity.json", "segment.db", "empty directory") // I11

	// A directory that is somebody's home is none either.
	home := t.TempDir()
	for i := range 7 {
		os.WriteFile(filepath.Join(home, fmt.Sprint("file", i)), nil, 0o600)
	}
	refused(t, home, Options{}, "not empty (file0, file1, file2, file3, file4, …)")

	// What a file system or an interrupted first start leaves is no store.
	fresh := t.TempDir()
	os.Mkdir(filepath.Join(fresh, "lost+found"), 0o700)
	os.WriteFile(filepath.Join(fresh, ".gitkeep"), nil, 0o600)
	os.WriteFile(filepath.Join(fresh, lockName), []byte("99999999\n"), 0o600)
	os.WriteFile(filepath.Join(fresh, identityTemp), []byte(`{"format":1,"id":"ha`), 0o600)
	if d := open(t, fresh, Options{}); !d.Created() {
		t.Error("not created")
	}
}

func TestIdentityDamaged(t *testing.T) {
	for _, c := range []struct{ name, content, want string }{
		{"empty", "", "is damaged"},
		{"zeros", string(make([]byte, 300)), "is damaged"},
		{"cut", `{"format":1,"id":"x","fing`, "is damaged"},
		{"two", `{"format":1,"id":"x","fingerprint":"y"}{}`, "is damaged"},
		{"no format", `{"id":"x","fingerprint":"y"}`, "is damaged: it has no format"},
		{"no id", `{"format":1,"fingerprint":"y"}`, "is damaged: it has no id"},
		{"store elsewhere", `{"format":1,"id":"x","fingerprint":"y","stores":["../x"]}`, `is damaged: it names a store "../x"`},
		{"newer", `{"format":2,"id":"x"}`, "format 2 and this version reads up to 1"},
		{"huge", strings.Repeat(" ", maxIdentity+1), "larger than 1 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := populated(t)
			name := filepath.Join(dir, identityName)
			if err := os.WriteFile(name, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, dir, Options{AcceptMoved: true}, name, c.want)
			if b, _ := os.ReadFile(name); string(b) != c.content {
				t.Error("the damaged file was changed")
			}
		})
	}
}

// A copy on the same machine, byte for byte, has another inode.
func TestCopied(t *testing.T) {
	dir := populated(t)
	copied := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-a", dir, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	err := refused(t, copied, Options{}, copied, "identity.json is a copy", "accept_moved_data")
	var moved *MovedError
	if !errors.As(err, &moved) {
		t.Errorf("error is a %T", err)
	}

	orig := open(t, dir, Options{})
	if orig.Moved() != "" {
		t.Errorf("the original moved: %s", orig.Moved())
	}
	tolerated := open(t, copied, Options{TolerateMoved: true})
	if tolerated.Moved() == "" || tolerated.Fingerprint() == orig.Fingerprint() {
		t.Error("a copy shows the original's fingerprint")
	}
	print := tolerated.Fingerprint()
	put(t, tolerated, "other.db", "x")
	if err := tolerated.Record("other.db"); err != nil { // writes identity.json anew, which must not make it the original
		t.Fatal(err)
	}
	tolerated.Close()
	tolerated = open(t, copied, Options{TolerateMoved: true})
	if tolerated.Moved() == "" || tolerated.Fingerprint() != print {
		t.Errorf("after a Record the copy is %q, %q; want moved, %q", tolerated.Moved(), tolerated.Fingerprint(), print)
	}
	tolerated.Close()
	refused(t, copied, Options{}, "accept_moved_data")

	accepted := open(t, copied, Options{AcceptMoved: true})
	if accepted.Fingerprint() == orig.Fingerprint() || accepted.ID() != orig.ID() {
		t.Error("an accepted copy must keep the id and change the fingerprint")
	}
	if existed, err := accepted.Expect("segment.db"); !existed || err != nil {
		t.Errorf("stores of an accepted copy: %v %v", existed, err)
	}
	print = accepted.Fingerprint()
	accepted.Close()
	again := open(t, copied, Options{}) // accepted for good: one start with the setting is enough
	if again.Moved() != "" || again.Fingerprint() != print {
		t.Errorf("after acceptance: moved %q", again.Moved())
	}
}

func TestOtherMachine(t *testing.T) {
	for _, c := range []struct {
		name string
		is   Machine
		want string // empty: not moved
	}{
		{"same", Machine{ID: "m1", DMI: "d1", Host: "h1"}, ""},
		{"rebooted", Machine{ID: "m1", DMI: "d1", Host: "h1", Boot: "b2"}, ""},
		{"machine-id", Machine{ID: "m2", DMI: "d1", Host: "h1"}, "machine-id was m1 and is m2"},
		{"DMI", Machine{ID: "m1", DMI: "d2", Host: "h1"}, "DMI uuid was d1 and is d2"},
		{"hostname", Machine{ID: "m1", DMI: "d1", Host: "h2"}, "hostname was h1 and is h2"},
		{"not root any more", Machine{ID: "m1", Host: "h1"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := populated(t)
			o := Options{Machine: &c.is}
			if c.want == "" {
				if d := open(t, dir, o); d.Moved() != "" {
					t.Errorf("moved: %s", d.Moved())
				}
				return
			}
			refused(t, dir, o, c.want, "accept_moved_data")
			o.AcceptMoved = true
			d := open(t, dir, o)
			if !strings.Contains(d.Moved(), c.want) {
				t.Errorf("moved %q, want %q", d.Moved(), c.want)
			}
			d.Close()
			o.AcceptMoved = false
			open(t, dir, o).Close()
			refused(t, dir, Options{}, "accept_moved_data") // and the first machine is the foreign one now
		})
	}
}

// The fingerprint of the machine the tests run on is steady, at least.
func TestThisMachine(t *testing.T) {
	dir := t.TempDir()
	var prints, boots []string
	for range 2 {
		d, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		prints, boots = append(prints, d.Fingerprint()), append(boots, d.BootID())
		d.Close()
	}
	if prints[0] != prints[1] || prints[0] == "" || boots[0] != boots[1] || boots[0] == "" {
		t.Errorf("fingerprints %q, boot ids %q", prints, boots)
	}
}

func TestRemovedWhileOpen(t *testing.T) {
	dir := populated(t)
	d := open(t, dir, Options{})
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	mentions(t, d.Check(), dir, "removed or replaced")
	if err := exec.Command("cp", "-a", dir+".old", dir).Run(); err != nil {
		t.Fatal(err)
	}
	mentions(t, d.Check(), dir, "removed or replaced")
	os.RemoveAll(dir)
	os.Rename(dir+".old", dir)
	if err := d.Check(); err != nil {
		t.Error(err)
	}
}

func TestNotADirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o600)
	refused(t, file, Options{}, "data_dir "+file, "not a directory")
	refused(t, filepath.Join(file, "data"), Options{}, "data_dir "+file)
	refused(t, "", Options{}, "data_dir is empty")
}

// Root ignores permissions, so the file systems themselves have to refuse: a read-only and a full one.
func TestDiskRefuses(t *testing.T) {
	mount := filepath.Join(t.TempDir(), "mnt")
	os.Mkdir(mount, 0o700)
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=64k,nr_inodes=16"); err != nil {
		t.Logf("no mount (%v), so no full disk here: the tests need root for it", err)
		return
	}
	t.Cleanup(func() { unix.Unmount(mount, unix.MNT_DETACH) })
	dir := filepath.Join(mount, "data")

	d := open(t, dir, Options{})
	put(t, d, "segment.db", "tags")
	put(t, d, "floors.db", "tags")
	if err := d.Record("segment.db"); err != nil {
		t.Fatal(err)
	}
	fill := filepath.Join(mount, "fill")
	os.WriteFile(fill, make([]byte, 1<<20), 0o600) // as much as fits
	mentions(t, d.Record("floors.db"), d.Path(identityName), "no space left", "Free space")
	if existed, err := d.Expect("floors.db"); existed || err != nil {
		t.Errorf("after a failed Record: %v %v", existed, err)
	}
	d.Close()
	d = open(t, dir, Options{}) // what is there can be read on a full disk, and is unhurt
	if existed, err := d.Expect("segment.db"); !existed || err != nil {
		t.Errorf("after a failed Record: %v %v", existed, err)
	}
	os.Remove(fill)
	if err := d.Record("floors.db"); err != nil {
		t.Errorf("with space again: %v", err)
	}
	d.Close()

	if err := unix.Mount("", mount, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, Options{}, "data_dir "+dir, "read-only file system")
	refused(t, filepath.Join(mount, "new"), Options{}, "data_dir "+mount, "read-only file system")
}

func TestIdentityIsReadable(t *testing.T) {
	d := open(t, populated(t), Options{})
	b, err := os.ReadFile(d.Path(identityName))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if got["format"] != 1.0 || got["id"] != d.ID() || fmt.Sprint(got["stores"]) != "[segment.db]" {
		t.Errorf("identity.json holds %s", b)
	}
}
