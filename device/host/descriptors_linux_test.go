package host

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/device"
	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

// pipe gives an end of a pipe to pass on, and a function that tells whether all
// copies of it are closed.
func pipe(t *testing.T) (end *os.File, closed func() bool) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return w, func() bool {
		p := []unix.PollFd{{Fd: int32(r.Fd())}}
		n, err := unix.Poll(p, 0)
		return err == nil && n == 1 && p[0].Revents&unix.POLLHUP != 0
	}
}

func TestDescriptorsThatNobodyTakesAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(slog.New(slog.DiscardHandler))
		end, closed := pipe(t)
		if err := w.put(descriptorID{1}, end); err != nil {
			t.Fatal(err)
		}
		<-time.After(waitingLife - time.Nanosecond)
		synctest.Wait()
		if closed() {
			t.Error("it was closed too soon")
		}
		<-time.After(1 * time.Nanosecond)
		synctest.Wait()
		if !closed() || w.take(descriptorID{1}) != nil {
			t.Error("it waits still")
		}
		taken, takenClosed := pipe(t)
		if err := w.put(descriptorID{2}, taken); err != nil || w.take(descriptorID{2}) != taken {
			t.Fatal("it is not given")
		}
		<-time.After(2 * waitingLife)
		synctest.Wait()
		if takenClosed() {
			t.Error("one that was taken was closed")
		}
	})
}

func TestDescriptorsThatWaitAreBounded(t *testing.T) {
	w := newWaiting(slog.New(slog.DiscardHandler))
	var all []func() bool
	for n := range maxWaiting + 1 {
		end, closed := pipe(t)
		err := w.put(descriptorID{byte(n), 1}, end)
		if full := n == maxWaiting; (err != nil) != full || closed() != full {
			t.Errorf("number %d: %v, closed %t", n, err, closed())
		}
		all = append(all, closed)
	}
	end, closed := pipe(t)
	if err := w.put(descriptorID{0, 1}, end); err == nil || !closed() {
		t.Errorf("an id that is taken: %v, closed %t", err, closed())
	}
	w.close()
	for n, closed := range all {
		if !closed() {
			t.Errorf("number %d is open at the end", n)
		}
	}
	end, closed = pipe(t)
	if err := w.put(descriptorID{9}, end); err == nil || !closed() {
		t.Errorf("after the end: %v, closed %t", err, closed())
	}
}

// packetTo sends one packet as no client of ours would.
func packetTo(t *testing.T, socket string, data []byte, files ...*os.File) (refusal string) {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: beside(socket, ".fds"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	if _, _, err := conn.WriteMsgUnix(data, unix.UnixRights(fds...), nil); err != nil {
		t.Fatal(err)
	}
	reply, got, err := receivePacket(conn)
	for _, f := range got {
		f.Close()
	}
	var r pb.TransferResponse
	if err == nil {
		err = proto.Unmarshal(reply, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r.GetRefusal()
}

func TestBadPacketsAreRefusedAndClosed(t *testing.T) {
	socket := socketIn(t)
	start(t, socket, Served{Devices: []device.Device{newFake("d0")}}, current)
	request := func(id []byte) []byte {
		b, err := proto.Marshal(&pb.TransferRequest{DescriptorId: id})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := request(make([]byte, 16))
	for name, c := range map[string]struct {
		data  []byte
		files int
	}{
		"no message":         {[]byte("\xff\xff\xff"), 1},
		"an id too short":    {request([]byte{1}), 1},
		"two descriptors":    {good, 2},
		"eight descriptors":  {good, 8},
		"too long":           {append(good, make([]byte, maxPacket)...), 1},
		"nothing waits":      {good, 0},
		"of an unknown call": {request(make([]byte, 17)), 0},
	} {
		t.Run(name, func(t *testing.T) {
			var files []*os.File
			var closed []func() bool
			for range c.files {
				f, is := pipe(t)
				files, closed = append(files, f), append(closed, is)
			}
			if said := packetTo(t, socket, c.data, files...); said == "" {
				t.Error("it was not refused")
			}
			for i := range files {
				files[i].Close()
				deadline := time.Now().Add(30 * time.Second)
				for tick := time.NewTicker(time.Millisecond); !closed[i](); <-tick.C {
					if time.Now().After(deadline) {
						t.Fatalf("descriptor %d is held", i)
					}
				}
			}
		})
	}
}

// As another user this binary listens at a socket, or dials one.
func init() {
	switch path := os.Getenv("ACCELFAB_TEST_STRANGER"); os.Getenv("ACCELFAB_TEST_STRANGER_DOES") {
	case "listen":
		l, err := net.Listen("unix", path)
		if err != nil {
			os.Exit(1)
		}
		os.Stdout.WriteString("listening\n")
		for {
			if _, err := l.Accept(); err != nil { // and says nothing
				os.Exit(1)
			}
		}
	case "dial":
		conn, err := net.Dial("unix", path)
		if err != nil {
			os.Exit(3)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		_, err = conn.Read(make([]byte, 1))
		if errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
			os.Exit(4) // it was let in
		}
		os.Exit(0)
	}
}

// stranger runs this binary as user nobody.
func stranger(t *testing.T, does, path string) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	// Other users may not reach the test's binary.
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(path), "stranger")
	if err := os.WriteFile(program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "ACCELFAB_TEST_STRANGER="+path, "ACCELFAB_TEST_STRANGER_DOES="+does)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return cmd
}

func TestASocketOfAnotherUserIsRefused(t *testing.T) {
	socket := socketIn(t)
	cmd := stranger(t, "listen", socket)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	_, err = Dial(t.Context(), Config{Socket: socket, BootID: testBoot(t)})
	if !errors.Is(err, ErrStranger) || !strings.Contains(err.Error(), "uid 65534") {
		t.Errorf("error %v, want ErrStranger that names the user", err)
	}
}

func TestAnotherUserIsRefused(t *testing.T) {
	socket := socketIn(t)
	cmd := stranger(t, "dial", socket)
	start(t, socket, Served{Devices: []device.Device{newFake("d0")}}, current)
	if err := os.Chmod(socket, 0o666); err != nil { // as if the modes were wrong
		t.Fatal(err)
	}
	if err := cmd.Run(); err != nil {
		t.Errorf("another user: %v (3: not reached, 4: let in)", err)
	}
}

func TestWordOfAnotherUserIsNotBelieved(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to give a file away")
	}
	socket := socketIn(t)
	me, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	if err := (Runtime{Process: me}).write(socket); err != nil {
		t.Fatal(err)
	}
	if r, err := ReadRuntime(socket); err != nil || r.Process != me {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := os.Chown(beside(socket, ".json"), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	// It names this process, which would be ended.
	if _, err := End(socket, time.Second); !errors.Is(err, ErrStranger) {
		t.Errorf("%v, want ErrStranger", err)
	}
}

// TestAConnectionThatEndsWithoutAnAnswer: whether the host has the descriptor is
// asked again.
func TestAConnectionThatEndsWithoutAnAnswer(t *testing.T) {
	for _, took := range []bool{false, true} {
		path := beside(socketIn(t), ".fds")
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		w := newWaiting(slog.New(slog.DiscardHandler))
		done := make(chan struct{})
		go func() {
			defer close(done)
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			data, files, _ := receivePacket(conn)
			if took {
				w.do(data, files)
			} else {
				files[0].Close()
			}
			conn.Close()
			w.serve(l)
		}()
		end, closed := pipe(t)
		id, err := leave(t.Context(), path, end)
		if err != nil {
			t.Errorf("taken before %t: %v", took, err)
		}
		end.Close()
		if f := w.take(id); f == nil || closed() {
			t.Errorf("taken before %t: the descriptor is not there", took)
		} else if f.Close(); !closed() {
			t.Errorf("taken before %t: a copy is left", took)
		}
		l.Close()
		<-done
		w.close()
	}
}
