package datadir

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func thisMachine() *Machine {
	host, _ := os.Hostname()
	return &Machine{
		ID:   firstLine("/etc/machine-id"),
		DMI:  firstLine("/sys/class/dmi/id/product_uuid"),
		Host: host,
		Boot: firstLine("/proc/sys/kernel/random/boot_id"),
	}
}

func firstLine(name string) string {
	b, err := readSmall(name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}

// Magic numbers of statfs that golang.org/x/sys/unix has no name for in this spelling.
const (
	magicXFS  = 0x58465342
	magicCIFS = 0xff534d42
	magicSMB2 = 0xfe534d42
)

// placeOf names the file system and inode of a file: a copy has another inode, whatever tool made it. The file system's own
// id (from its UUID) stands for the device, whose number may change with each boot; XFS and NFS have no steady one. File
// systems that make inode numbers up anew with each mount answer nothing.
func placeOf(name string) (string, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(name, &fs); err != nil {
		return "", err
	}
	ino := fi.Sys().(*syscall.Stat_t).Ino
	switch uint32(fs.Type) {
	case unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC, magicCIFS, magicSMB2, unix.SMB_SUPER_MAGIC:
		return "", nil
	case magicXFS, unix.NFS_SUPER_MAGIC:
		return fmt.Sprintf("%d", ino), nil
	}
	return fmt.Sprintf("%08x%08x:%d", uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1]), ino), nil
}

func networkFS(path string) string {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return ""
	}
	switch uint32(fs.Type) {
	case unix.NFS_SUPER_MAGIC:
		return "NFS"
	case magicCIFS, magicSMB2, unix.SMB_SUPER_MAGIC:
		return "SMB"
	case unix.V9FS_MAGIC:
		return "9p"
	case unix.FUSE_SUPER_MAGIC:
		return "FUSE"
	}
	return ""
}
