package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// twoNodes starts two real daemons with one software card each and gives their
// addresses. They end with the test.
func twoNodes(t *testing.T) (a, b string) {
	t.Helper()
	accelfabd := filepath.Join(filepath.Dir(programs(t)), "accelfabd")
	labHome(t, "")
	dir, err := tempLabDir("two")
	if err != nil {
		t.Fatal(err)
	}
	l, lock, err := newLab(dir, labConfig{nodes: 2, devices: []string{"soft:hls-2,cards=1,memory=64MiB"}, accelfabd: accelfabd, stderr: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	l.MadeDir = true
	t.Cleanup(func() {
		defer lock.Close()
		if err := l.stop(); err != nil {
			t.Error(err)
		}
		if err := l.remove(); err != nil {
			t.Error(err)
		}
	})
	if err := l.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l.Nodes[0].server(), l.Nodes[1].server()
}

// nothingLeft checks that a node has no object of anybody.
func nothingLeft(t *testing.T, targets ...string) {
	t.Helper()
	for _, target := range targets {
		c, err := client.Dial(target)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, parent := context.WithoutCancel(t.Context()), localNode+"/devices/-"
		for _, left := range []struct {
			what  string
			count func() (int, error)
		}{
			{"sessions", func() (int, error) {
				r, err := c.Sessions.ListSessions(ctx, &pb.ListSessionsRequest{Parent: localNode})
				return len(r.GetSessions()), err
			}},
			{"protection domains", func() (int, error) {
				r, err := c.Memory.ListProtectionDomains(ctx, &pb.ListProtectionDomainsRequest{Parent: parent})
				return len(r.GetProtectionDomains()), err
			}},
			{"buffers", func() (int, error) {
				r, err := c.Memory.ListBuffers(ctx, &pb.ListBuffersRequest{Parent: parent})
				return len(r.GetBuffers()), err
			}},
			{"memory regions", func() (int, error) {
				r, err := c.Memory.ListMemoryRegions(ctx, &pb.ListMemoryRegionsRequest{Parent: parent})
				return len(r.GetMemoryRegions()), err
			}},
			{"queue pairs", func() (int, error) {
				r, err := c.QueuePairs.ListQueuePairs(ctx, &pb.ListQueuePairsRequest{Parent: parent})
				return len(r.GetQueuePairs()), err
			}},
		} {
			if n, err := left.count(); err != nil || n > 0 {
				t.Errorf("%d %s are left, %v", n, left.what, err)
			}
		}
	}
}

// endLimit bounds how long a command line may take on a busy machine.
const endLimit = 2 * time.Minute

// running is a command line under way.
type running struct {
	t      *testing.T
	cancel context.CancelFunc // as Ctrl-C does
	both   watched            // what it has written so far
	ended  chan result
}

// start runs a command line against a daemon.
func start(t *testing.T, target string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r := &running{t: t, cancel: cancel, ended: make(chan result, 1)}
	r.both.more = sync.NewCond(&r.both.mu)
	go func() {
		var out, errs bytes.Buffer
		status := run(ctx, append([]string{"--server", target}, args...), strings.NewReader(""),
			io.MultiWriter(&out, &r.both), io.MultiWriter(&errs, &r.both))
		r.both.end()
		r.ended <- result{status, out.String(), errs.String()}
	}()
	return r
}

// says waits until the output has a match and gives its first group.
func (r *running) says(pattern string) string {
	r.t.Helper()
	found := r.both.wait(regexp.MustCompile(pattern))
	if found == nil {
		r.t.Fatalf("ended without %s: %+v", pattern, <-r.ended)
	}
	return found[len(found)-1]
}

// wait gives what it came to.
func (r *running) wait() result {
	r.t.Helper()
	select {
	case got := <-r.ended:
		return got
	case <-time.After(endLimit):
		r.t.Fatal("it does not end")
		return result{}
	}
}

// watched is an output that can be waited for.
type watched struct {
	mu    sync.Mutex
	more  *sync.Cond
	b     bytes.Buffer
	ended bool
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.more.Broadcast()
	return w.b.Write(p)
}

func (w *watched) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.more.Broadcast()
}

func (w *watched) wait(pattern *regexp.Regexp) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		found := pattern.FindStringSubmatch(w.b.String())
		if found != nil || w.ended {
			return found
		}
		w.more.Wait()
	}
}

// TestBetweenTwoNodes runs what needs two nodes.
func TestBetweenTwoNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("runs two daemons")
	}
	a, b := twoNodes(t)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, a, b string)
	}{
		{"pingpong", pingpongBetweenNodes},
		{"pingpong with a wrong peer", pingpongWithWrongPeer},
		{"pingpong refused", pingpongRefused},
		{"pingpong interrupted", pingpongInterrupted},
		{"perf", perfBetweenNodes},
		{"perf refused", perfRefused},
		{"perf with a wrong client", perfWithWrongClient},
		{"perf interrupted", perfInterrupted},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(t, a, b)
			nothingLeft(t, a, b)
		})
	}
}
