package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

// inject has strace do to the system calls of a process what its inject= says, until
// the function that it gives, or the end of the test.
func inject(t *testing.T, pid int, what string) (end func()) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skipf("strace is not there: %v", err)
	}
	calls, _, _ := strings.Cut(what, ":")
	var said bytes.Buffer
	cmd := exec.Command(strace, "-f", "-p", fmt.Sprint(pid), "-o", "/dev/null", "-e", "trace="+calls, "-e", "inject="+what)
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { cmd.Wait(); close(gone) }()
	over := false
	end = func() {
		if !over {
			over = true
			cmd.Process.Signal(syscall.SIGINT) // it lets go of the process and ends
			<-gone
		}
	}
	t.Cleanup(end)
	eventually(t, "strace holds all threads", func() error {
		select {
		case <-gone:
			if strings.Contains(said.String(), "Operation not permitted") {
				t.Skipf("ptrace is not allowed here: %s", said.String())
			}
			t.Fatalf("strace ended: %s", said.String())
		default:
		}
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("process %d has no threads: %v", pid, err)
		}
		for _, path := range threads {
			if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), "\nTracerPid:\t0\n") {
				return fmt.Errorf("%s is not traced", path)
			}
		}
		return nil
	})
	return end
}

// TestSystemCallsOfTheStoreThatFail has the kernel refuse some of the system calls by
// which the store writes, at different places of a commit. A change that was
// acknowledged is there after a kill, one that was refused is not.
func TestSystemCallsOfTheStoreThatFail(t *testing.T) {
	for _, what := range []string{
		"fdatasync:error=EIO:when=1+3", "fdatasync:error=EIO:when=2+3", "pwrite64:error=EIO:when=3+5", "pwrite64:error=ENOSPC:when=2+7",
		"fdatasync,fsync,pwrite64:error=EIO",
	} {
		t.Run(what, func(t *testing.T) {
			d := daemon.Start(t, daemon.Config{Node: "calls", Args: []string{"--device", "soft:hls-2,cards=1,memory=4MiB"}})
			ctx, c := t.Context(), d.Dial()
			job := daemon.NewJob(t, c, "soft-0", "8", 4096)
			want := map[string]bool{job.PD.GetName(): true}
			create := func() error {
				p, err := c.Memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{Parent: card,
					ProtectionDomain: &pb.ProtectionDomain{Session: job.Session.GetName()}})
				if err == nil {
					want[p.GetName()] = true
				}
				return err
			}
			end := inject(t, d.PID(), what)
			refused := 0
			for range 30 {
				if err := create(); err != nil {
					refused++
					if status.Code(err) != codes.Unavailable {
						t.Errorf("a create is refused with %v, want UNAVAILABLE", err)
					}
				}
			}
			if _, err := c.QueuePairs.GetQueuePair(ctx, &pb.GetQueuePairRequest{Name: job.QP.GetName()}); err != nil {
				t.Errorf("what is there cannot be read: %v", err)
			}
			if refused == 0 {
				t.Error("nothing failed: nothing was tested")
			}
			t.Logf("%d of 30 creates were refused", refused)
			end()
			eventually(t, "the store takes changes again", create)
			d.Kill()
			out, err := exec.CommandContext(ctx, daemon.Binary(t, "accelfabd"), "store", "check", "--state-dir", filepath.Join(d.Dir, "state")).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "0 in quarantine") {
				t.Errorf("store check: %v\n%s", err, out)
			}
			d.Start()
			list, err := c.Memory.ListProtectionDomains(ctx, &pb.ListProtectionDomainsRequest{Parent: card, PageSize: 1000})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range list.GetProtectionDomains() {
				if !want[p.GetName()] {
					t.Errorf("%s is there, and was refused", p.GetName())
				}
				delete(want, p.GetName())
			}
			if len(want) > 0 {
				t.Errorf("acknowledged, and gone: %v", want)
			}
		})
	}
}

// TestADeviceHostWhoseCallsHang delays each write of a device host, and so each of its
// answers. Calls of the device end by their deadline, others are answered, and when it
// is over the device is used as before (L12, X07).
func TestADeviceHostWhoseCallsHang(t *testing.T) {
	d := daemon.Start(t, daemon.Config{Node: "hang", Args: []string{"--device", "soft:hls-2,cards=1,memory=4MiB"}})
	c := d.Dial()
	job := daemon.NewJob(t, c, "soft-0", "8", 4096)
	within := func(limit time.Duration, call func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return call(ctx)
	}
	port := func(ctx context.Context) error {
		_, err := c.Devices.GetPort(ctx, &pb.GetPortRequest{Name: card + "/ports/8"})
		return err
	}
	end := inject(t, d.Host("soft").PID, "write,sendmsg:delay_enter=20s")
	if err := within(time.Second, port); err == nil {
		t.Error("a host whose answers are delayed has answered: nothing is tested")
	}
	if err := within(10*time.Second, func(ctx context.Context) error {
		_, err := c.Memory.GetBuffer(ctx, &pb.GetBufferRequest{Name: job.Buffer.GetName()})
		return err
	}); err != nil {
		t.Errorf("what the daemon knows cannot be read beside a host that hangs: %v", err)
	}
	// A daemon that is killed meanwhile is followed by one that serves.
	d.Kill()
	d.Start()
	if _, err := c.Sessions.GetSession(t.Context(), &pb.GetSessionRequest{Name: job.Session.GetName()}); err != nil {
		t.Errorf("the session, with a host that hangs: %v", err)
	}
	end()
	eventually(t, "the device answers again", func() error { return within(10*time.Second, port) })
	eventually(t, "the queue pair is the one that was there", func() error { // the device is compared after it answers
		q, err := c.QueuePairs.GetQueuePair(t.Context(), &pb.GetQueuePairRequest{Name: job.QP.GetName()})
		if err == nil && q.GetLocalEndpoint().GetQpn() != job.QP.GetLocalEndpoint().GetQpn() {
			err = fmt.Errorf("it is %v", q)
		}
		return err
	})
}
