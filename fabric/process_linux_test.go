package fabric_test

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/accelfab/accelfab/fabric"
)

// victim is a process that does nothing until it is killed.
type victim struct {
	*exec.Cmd
	stdin io.Closer
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	cmd := exec.Command("cat", "-") // waits for its input
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	v := &victim{cmd, stdin}
	t.Cleanup(v.kill)
	return v
}

func (v *victim) kill() {
	v.Process.Kill()
	v.Wait()
}

// here is this process as a caller.
func here() fabric.Caller {
	return fabric.Caller{Identity: "uid:1000", UID: uint32(os.Getuid()), PID: int32(os.Getpid()), HasPeer: true}
}

// realWorld is a world with the machine's own time.
func realWorld(t *testing.T) *world {
	w := newWorld(t)
	w.open()
	t.Cleanup(w.close)
	return w
}

// gone waits until the session s is no more, with the cause that the journal tells.
func (w *world) gone(cause fabric.Reason, message string) {
	w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		if _, err := w.f.GetSession(ctx(), here(), sessionS); err != nil {
			refused(w.t, err, fabric.NotFound, "name")
			break
		}
		if time.Now().After(deadline) {
			w.t.Fatal("the session does not end")
		}
	}
	w.onDevice(0, 0, 0, 0)
	w.told(w.t, sessionS, "system", cause, message)
}

func (w *world) boundTo(pid int) fabric.Session {
	w.t.Helper()
	s := must(w.f.CreateSession(ctx(), here(), fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s"}, TTL: time.Hour, Process: &fabric.Process{PID: int32(pid)}}))
	must(w.f.CreateBuffer(ctx(), here(), fabric.CreateBuffer{Create: fabric.Create{Parent: d0, ID: "b"}, Session: s.Name, Size: 4096}))
	return s
}

// A session dies with the process that it was bound to, however that ends.
func TestASessionDiesWithItsProcess(t *testing.T) {
	w := realWorld(t)
	v := newVictim(t)
	s := w.boundTo(v.Process.Pid)
	if s.Process == nil || int(s.Process.PID) != v.Process.Pid || s.Process.Command != "cat" || !strings.Contains(s.Owner.Command, "fabric.test") {
		t.Errorf("process %+v, owner %+v", s.Process, s.Owner)
	}
	v.kill()
	w.gone(fabric.CauseProcess, `"cat", has ended`)
	_, err := w.f.KeepAlive(ctx(), here(), fabric.KeepAlive{Name: sessionS})
	if e := refused(t, err, fabric.SessionClosed, ""); !strings.Contains(e.Message, "ended with its process") {
		t.Errorf("%v", e)
	}
}

// L09: a device that a process holds alone is refused to others, by the name of that
// process, while it lives, and is theirs, clean, as soon as it is dead.
func TestL09ADeviceIsFreeWhenItsHolderIsDead(t *testing.T) {
	w := realWorld(t)
	v := newVictim(t)
	must(w.f.CreateSession(ctx(), here(), fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s"}, TTL: time.Hour,
		Devices: []string{d0}, Exclusive: true, Process: &fabric.Process{PID: int32(v.Process.Pid)}}))
	must(w.f.CreateBuffer(ctx(), here(), fabric.CreateBuffer{Create: fabric.Create{Parent: d0, ID: "b"}, Session: sessionS, Size: 4096}))
	must(0, w.f.WriteBuffer(ctx(), here(), fabric.BufferRange{Buffer: d0 + "/buffers/b"}, []byte("secret")))
	claim := fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "b"}, Devices: []string{d0}, Exclusive: true}
	_, err := w.f.CreateSession(ctx(), bob, claim)
	e := refused(t, err, fabric.DeviceBusy, "devices")
	if h := e.Shortage.Holders[0]; h.Name != sessionS || h.PID != here().PID || h.Since.IsZero() || !strings.Contains(h.Command, "fabric.test") {
		t.Errorf("%+v", h)
	}
	v.kill()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		_, err := w.f.CreateSession(ctx(), bob, claim)
		if err == nil {
			break
		}
		refused(t, err, fabric.DeviceBusy, "devices") // at last since the old session is closing
		if time.Now().After(deadline) {
			t.Fatal("the device does not come free")
		}
	}
	w.onDevice(0, 0, 0, 0) // not before all is gone
}

// After a restart of the daemon the process is found again, or its end while nobody
// watched.
func TestAProcessIsFoundAgain(t *testing.T) {
	w := realWorld(t)
	v := newVictim(t)
	w.boundTo(v.Process.Pid)
	w.restart(false)
	if s := must(w.f.GetSession(ctx(), here(), sessionS)); s.State != fabric.StateActive || s.Process == nil {
		t.Fatalf("%+v", s)
	}
	v.kill()
	w.gone(fabric.CauseProcess, "has ended")

	v = newVictim(t)
	w.boundTo(v.Process.Pid)
	w.close()
	v.kill()
	w.open()
	w.gone(fabric.CauseProcess, "has ended")
}

// A session that is taken over lives with the new holder's process, and no longer
// dies with the old one.
func TestAResumedSessionHasAnotherProcess(t *testing.T) {
	w := realWorld(t)
	old, next := newVictim(t), newVictim(t)
	first := w.boundTo(old.Process.Pid)
	s := must(w.f.ResumeSession(ctx(), here(), fabric.ResumeSession{Update: fabric.Update{Name: sessionS}, Process: &fabric.Process{PID: int32(next.Process.Pid)}}))
	if s.Generation <= first.Generation || int(s.Process.PID) != next.Process.Pid {
		t.Fatalf("%+v", s)
	}
	old.kill()
	w.restart(false) // what was due has been done
	if s := must(w.f.GetSession(ctx(), here(), sessionS)); s.State != fabric.StateActive {
		t.Fatalf("%+v", s)
	}
	next.kill()
	w.gone(fabric.CauseProcess, "has ended")
}

// Only a process that is there, of the caller's user, can be named, and only by a
// caller whom the kernel has told of.
func TestWhichProcessASessionDiesWith(t *testing.T) {
	w := realWorld(t)
	bind := func(c fabric.Caller, pid int32) error {
		_, err := w.f.CreateSession(ctx(), c, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1"}, Process: &fabric.Process{PID: pid}})
		return err
	}
	ended := newVictim(t)
	ended.kill()
	other := here()
	other.Identity, other.UID = "uid:4242", 4242
	refused(t, bind(here(), int32(ended.Process.Pid)), fabric.FieldInvalid, "process.pid")
	refused(t, bind(here(), -1), fabric.FieldInvalid, "process.pid")
	dead := here()
	dead.Began = 1 // another process has its id
	refused(t, bind(dead, 0), fabric.FieldInvalid, "process.pid")
	refused(t, bind(fabric.Caller{Identity: "anonymous"}, 0), fabric.FieldInvalid, "process")
	refused(t, bind(other, int32(os.Getpid())), fabric.PermissionDenied, "process.pid")
	other.Operator = true
	if err := bind(other, int32(os.Getpid())); err != nil {
		t.Errorf("an operator names another's process: %v", err)
	}
	list := must(w.f.ListSessions(ctx(), root, fabric.List{Parent: "nodes/n1"}, nil)).Items
	if p := list[0].Process; p == nil || !strings.Contains(p.Command, "-test.") {
		t.Errorf("an operator's process has its arguments: %+v", p)
	}
	alive := here()
	alive.Began = must(fabric.ProcessBegan(alive.PID))
	if err := bind(alive, 0); err != nil {
		t.Errorf("its own: %v", err)
	}
	if list := must(w.f.ListSessions(ctx(), root, fabric.List{Parent: "nodes/n1"}, nil)); len(list.Items) != 2 {
		t.Errorf("%d sessions", len(list.Items))
	}
}
