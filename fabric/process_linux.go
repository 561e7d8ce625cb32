package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// pidfd watches a process by a descriptor of it (pidfd_open(2), Linux 5.3), which
// stands for that one and no other.
type pidfd struct {
	file  *os.File
	began uint64
	user  uint32
}

func (p *pidfd) start() uint64 { return p.began }
func (p *pidfd) uid() uint32   { return p.user }
func (p *pidfd) close()        { p.file.Close() }

func (p *pidfd) wait() error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { return ended(int(fd)) })
}

// ended says whether the process of a pidfd has ended: it can be read from then on.
func ended(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// openProcess opens a process. errNoProcess if there is none.
func openProcess(pid int32) (proc, error) {
	fd, err := unix.PidfdOpen(int(pid), 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, errNoProcess
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that waiting holds no thread
		unix.Close(fd)
		return nil, fmt.Errorf("pidfd: %w", err)
	}
	p := &pidfd{file: os.NewFile(uintptr(fd), "pidfd")}
	p.began, p.user, err = statProcess(pid)
	// What /proc says is of this process if that had not ended by then.
	if err == nil && ended(fd) {
		err = errNoProcess
	}
	if err != nil {
		p.file.Close()
		return nil, err
	}
	return p, nil
}

// ProcessBegan tells when a process began, in clock ticks after the boot, which with
// the id tells it from every other of the same boot.
func ProcessBegan(pid int32) (uint64, error) {
	began, _, err := statProcess(pid)
	return began, err
}

// statProcess reads when a process began, in clock ticks after the boot, and whom
// it runs as (proc_pid_stat(5), field 22).
func statProcess(pid int32) (began uint64, uid uint32, err error) {
	dir := "/proc/" + strconv.Itoa(int(pid))
	b, err := os.ReadFile(dir + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, 0, errNoProcess
	}
	if err != nil {
		return 0, 0, err
	}
	// The second field is a name in parentheses, which may have any byte in it.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("%s/stat has %d fields after the name", dir, len(fields))
	}
	if began, err = strconv.ParseUint(string(fields[19]), 10, 64); err != nil {
		return 0, 0, fmt.Errorf("%s/stat: start time: %w", dir, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, 0, errNoProcess
	}
	return began, st.Uid, nil
}

// commandOf is what a process calls itself, for people: "" if it cannot be told.
// With arguments it is read out of the process's own memory, and who reads waits for
// that: so of a process that nobody has to trust its name alone.
func commandOf(pid int32, arguments bool) string {
	if pid <= 0 {
		return ""
	}
	file := "/comm"
	if arguments {
		file = "/cmdline"
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(int(pid)) + file)
	if err != nil {
		return ""
	}
	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
	text = strings.TrimSpace(text)
	if len(text) > maxCommand {
		text = text[:maxCommand]
		for !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}
	}
	return text
}
