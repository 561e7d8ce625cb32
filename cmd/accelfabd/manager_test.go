package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// notifySocket is what a service manager listens on.
type notifySocket struct {
	t *testing.T
	*net.UnixConn
}

func newNotifySocket(t *testing.T, name string) notifySocket {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	deadline, _ := t.Deadline()
	if deadline.IsZero() {
		deadline = time.Now().Add(time.Minute)
	}
	conn.SetReadDeadline(deadline)
	return notifySocket{t, conn}
}

// next gives the assignments of the next message.
func (s notifySocket) next() []string {
	s.t.Helper()
	b := make([]byte, 4096)
	n, err := s.Read(b)
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Split(string(b[:n]), "\n")
}

// until reads messages until one begins so, and gives how many others came
// before, by their first word.
func (s notifySocket) until(begin string) map[string]int {
	s.t.Helper()
	before := map[string]int{}
	for {
		m := s.next()
		if strings.HasPrefix(m[0], begin) {
			return before
		}
		before[m[0]]++
	}
}

// shortDir is a folder whose name leaves room in a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nfy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestWhoStartedIt(t *testing.T) {
	const pid = 4711
	for _, c := range []struct {
		name, usec, of string
		want           time.Duration
		bad            bool
	}{
		{"no watchdog", "", "", 0, false},
		{"a watchdog", "3000000", "4711", 3 * time.Second, false},
		{"for whoever reads it", "3000000", "", 3 * time.Second, false},
		{"for another process", "3000000", "4712", 0, false},
		{"nonsense for another process", "x", "4712", 0, false},
		{"no number", "x", "4711", 0, true},
		{"zero", "0", "", 0, true},
		{"negative", "-1", "", 0, true},
		{"too long", "99999999999999", "", 0, true},
	} {
		m, err := startedBy(env(map[string]string{"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": c.usec, "WATCHDOG_PID": c.of}), pid)
		if (err != nil) != c.bad || err != nil && !strings.Contains(err.Error(), "WATCHDOG_USEC") {
			t.Errorf("%s: %v", c.name, err)
		}
		if m.watchdog != c.want || m.socket != "/s" {
			t.Errorf("%s: %+v, want %v", c.name, m, c.want)
		}
	}
	if err := (manager{}).tell("READY=1"); err != nil {
		t.Errorf("without a manager: %v", err)
	}
	if err := (manager{socket: filepath.Join(t.TempDir(), "nobody")}).tell("READY=1"); err == nil {
		t.Error("a manager that is not there was told")
	}
}

func TestAbstractNotifySocket(t *testing.T) {
	name := "@accelfabd-test-" + strconv.Itoa(os.Getpid())
	s := newNotifySocket(t, name)
	if err := (manager{socket: name}).tell("READY=1", "STATUS=x"); err != nil {
		t.Fatal(err)
	}
	if got := s.next(); strings.Join(got, " ") != "READY=1 STATUS=x" {
		t.Errorf("got %q", got)
	}
}

// A sign of life comes only while the daemon is alive.
func TestWatchdogOfADaemonThatHangs(t *testing.T) {
	m := manager{socket: filepath.Join(shortDir(t), "s"), watchdog: 20 * time.Millisecond}
	s := newNotifySocket(t, m.socket)
	var dead atomic.Bool
	asked := make(chan struct{}, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		m.beat(ctx, slog.New(slog.DiscardHandler), func(ctx context.Context) error {
			select {
			case asked <- struct{}{}:
			default:
			}
			if dead.Load() {
				<-ctx.Done() // as fabric.Alive does
				return errors.New("the store does not answer")
			}
			return nil
		})
	}()
	defer func() { cancel(); <-over }()
	for range 3 {
		if got := s.next(); got[0] != "WATCHDOG=1" {
			t.Fatalf("got %q", got)
		}
	}
	dead.Store(true)
	for range 3 { // questions of which the last one finds it dead, whatever is under way
		for len(asked) > 0 {
			<-asked
		}
		<-asked
	}
	if err := m.tell("MARK=1"); err != nil {
		t.Fatal(err)
	}
	s.until("MARK")
	for range 5 {
		<-asked
	}
	if err := m.tell("MARK=2"); err != nil {
		t.Fatal(err)
	}
	if n := s.until("MARK"); n["WATCHDOG=1"] > 0 {
		t.Errorf("%d signs of life of a daemon that hangs", n["WATCHDOG=1"])
	}
	dead.Store(false)
	s.until("WATCHDOG=1")
}

// The daemon itself, as systemd would start it.
func TestDaemonUnderAServiceManager(t *testing.T) {
	dir := shortDir(t)
	s := newNotifySocket(t, filepath.Join(dir, "notify"))
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	t.Setenv("WATCHDOG_USEC", "50000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	c := Config{NodeID: "n1", StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), HTTP: "off",
		Listen: []string{"unix://" + filepath.Join(dir, "run", "s")}, Devices: []string{"soft:hls-2,cards=1,memory=1MiB"},
		DeviceHosts: hostsInside, LogLevel: "error", LogFormat: "text"}
	c.complete()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, &c, io.Discard) }()
	before := s.until("READY=1")
	if before["WATCHDOG=1"] > 0 || before["STATUS=Reaching the devices"] != 1 {
		t.Errorf("before it was ready: %v", before)
	}
	if _, err := os.Stat(filepath.Join(c.RunDir, readyName)); err != nil {
		t.Errorf("ready, and %v", err)
	}
	s.until("STATUS=Serving, the node is OK")
	s.until("WATCHDOG=1")
	s.until("WATCHDOG=1")
	cancel()
	s.until("STOPPING=1")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := (manager{socket: filepath.Join(dir, "notify")}).tell("MARK=1"); err != nil {
		t.Fatal(err)
	}
	if after := s.until("MARK"); len(after) > 0 {
		t.Errorf("after it said that it stops: %v", after)
	}
}
