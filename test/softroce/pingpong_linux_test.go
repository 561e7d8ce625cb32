package softroce

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelfab/accelfab/test/daemon"
)

// The indexes of our and of Linux's GID table, which are built alike.
const (
	gidLinkLocal = iota
	gidIPv4
	gidIPv6
)

// exchange is one run of an ibv_*_pingpong of Linux against accelfab pingpong.
type exchange struct {
	kind        string // rc, uc, ud
	linuxServes bool
	size        int
	gid         int
	events      bool
}

func TestPingpong(t *testing.T) {
	t.Run("path MTU 4096", func(t *testing.T) {
		p := thePeer(t, largeMTU)
		d := startDaemon(t, p)
		rpingEnds := startRping(t, p)
		sizes := []int{1, 8, 1024, 1025, 4096, 10000, 262144, 1 << 20}
		for _, kind := range []string{"rc", "uc", "ud"} {
			for _, linuxServes := range []bool{true, false} {
				e := exchange{kind: kind, linuxServes: linuxServes, gid: gidIPv4}
				e.sizes(t, p, d, 4096, sizes)
				e.size = 1000
				sleeping, global, linkLocal := e, e, e
				sleeping.events = true
				sleeping.run(t, p, d, 4096)
				if kind == "uc" {
					continue
				}
				global.gid, linkLocal.gid = gidIPv6, gidLinkLocal
				global.run(t, p, d, 4096)
				linkLocal.run(t, p, d, 4096)
			}
		}
		rpingEnds(d)
	})
	t.Run("path MTU 1024", func(t *testing.T) {
		p := thePeer(t, ethernetMTU)
		d := startDaemon(t, p)
		for _, kind := range []string{"rc", "uc", "ud"} {
			for _, linuxServes := range []bool{true, false} {
				exchange{kind: kind, linuxServes: linuxServes, gid: gidIPv4}.sizes(t, p, d, 1024, []int{1, 1024, 1025, 10000, 1 << 20})
			}
		}
	})
}

// sizes runs the exchange with messages of each size that fits.
func (e exchange) sizes(t *testing.T, p *peer, d *daemon.Daemon, pathMTU int, sizes []int) {
	for _, size := range sizes {
		if e.kind == "ud" && size > pathMTU {
			continue
		}
		e.size = size
		e.run(t, p, d, pathMTU)
	}
}

func (e exchange) iters() int { return max(3, min(20, 200_000/e.size)) }

func (e exchange) role() string {
	if e.linuxServes {
		return "server"
	}
	return "client"
}

// how names the flags that are not those of every run.
func (e exchange) how() string {
	how := []string{"-c"}
	switch e.gid {
	case gidLinkLocal:
		how = append(how, "fe80::")
	case gidIPv6:
		how = append(how, "IPv6")
	}
	if e.events {
		how = append(how, "-e")
	}
	return strings.Join(how, " ")
}

func (e exchange) name() string {
	return strings.ReplaceAll(fmt.Sprintf("%s %s %d %s", e.kind, e.role(), e.size, e.how()), ":", "")
}

// flags are the same for both programs.
func (e exchange) flags(pathMTU int) []string {
	flags := []string{"-s", strconv.Itoa(e.size), "-n", strconv.Itoa(e.iters()), "-g", strconv.Itoa(e.gid), "-c"}
	if e.kind != "ud" {
		flags = append(flags, "-m", strconv.Itoa(pathMTU))
	}
	if e.events {
		flags = append(flags, "-e")
	}
	return flags
}

// lossTries is how often a run may lose a message where nothing is sent again.
const lossTries = 3

func (e exchange) run(t *testing.T, p *peer, d *daemon.Daemon, pathMTU int) {
	t.Run(e.name(), func(t *testing.T) {
		r := row{"ibv_" + e.kind + "_pingpong", e.role(), strconv.Itoa(pathMTU), strconv.Itoa(e.size), e.how(), ""}
		defer func() { record(t, r) }()
		var err error
		if r.result, err = e.tries(t, p, d, pathMTU); err != nil {
			t.Fatal(err)
		}
	})
}

// tries runs the two programs until it goes well, but UC and UD alone more than
// once, and says how it went.
func (e exchange) tries(t *testing.T, p *peer, d *daemon.Daemon, pathMTU int) (result string, err error) {
	t.Helper()
	most := 1
	if e.kind != "rc" {
		most = lossTries
	}
	for try := 1; ; try++ {
		took, err := e.once(t, p, d, pathMTU)
		switch {
		case err == nil && try == 1:
			return "ok, " + took + " us/iter", nil
		case err == nil:
			return fmt.Sprintf("ok in try %d of %d, %s us/iter", try, most, took), nil
		case try == most:
			return "", fmt.Errorf("try %d of %d: %w", try, most, err)
		}
		t.Logf("try %d of %d: %v", try, most, err)
	}
}

var usecPerIter = regexp.MustCompile(` = ([0-9.]+) usec/iter`)

// once runs the two programs and gives Linux's time an iteration.
func (e exchange) once(t *testing.T, p *peer, d *daemon.Daemon, pathMTU int) (took string, err error) {
	t.Helper()
	flags := e.flags(pathMTU)
	m := meet(t, p, d, e.linuxServes, limited(fmt.Sprintf("ibv_%s_pingpong %s", e.kind, strings.Join(flags, " "))), append([]string{"pingpong", e.kind}, flags...))
	if m.status != 0 || m.err != nil {
		return "", fmt.Errorf("%v", m)
	}
	us := usecPerIter.FindStringSubmatch(m.linux)
	if us == nil {
		return "", fmt.Errorf("Linux ended well and said:\n%s", m.linux)
	}
	return us[1], nil
}

// meeting is how a program of Linux and ours have ended.
type meeting struct {
	linux  string // what it said
	status int
	we     string
	err    error
}

func (m meeting) String() string {
	return fmt.Sprintf("Linux ended with status %d:\n%swe ended with %v:\n%s", m.status, m.linux, m.err, m.we)
}

// meet runs a command of Linux and one of ours, the server first. The client's
// gets the server's address.
func meet(t *testing.T, p *peer, d *daemon.Daemon, linuxServes bool, linux string, ours []string) (m meeting) {
	t.Helper()
	if linuxServes {
		c := p.serve(t, linux)
		m.we, m.err = accelfab(t, p, d, append(ours, peerAddress)...).wait()
		m.linux, m.status = c.finish(t)
	} else {
		a := accelfab(t, p, d, ours...)
		a.waitListening(t, p)
		m.linux, m.status = p.shell(t, linux+" "+ourAddress)
		m.we, m.err = a.wait()
	}
	return m
}

// startDaemon runs accelfabd at our end of the bridge.
func startDaemon(t *testing.T, p *peer) *daemon.Daemon {
	t.Helper()
	return daemon.Start(t, daemon.Config{Node: "n1", Netns: p.netns, Args: []string{
		"--device", "soft:hls-2,cards=1,memory=64MiB", "--soft-network", ourAddress + "," + ourAddress6}})
}

// limited is a command of the machine that ends in time to be told about.
func limited(command string) string { return "timeout 25 " + command }

// serve starts a server of the pingpong programs in the machine and waits until
// it listens on their port, 18515.
func (p *peer) serve(t *testing.T, server string) *command {
	t.Helper()
	c := p.command(t, fmt.Sprintf(`
		%s >/tmp/server 2>&1 &
		while kill -0 $! && ! cat /proc/net/tcp /proc/net/tcp6 | grep -q ":4853 [0:]* 0A "; do usleep 20000; done
		echo listening
		wait $!; status=$?
		cat /tmp/server
		exit $status`, server))
	if line, err := c.lines.ReadString('\n'); err != nil || line != "listening\n" {
		t.Fatalf("%s does not listen: %q %v", server, line, err)
	}
	return c
}

// process is an accelfab at our end.
type process struct {
	cmd    *exec.Cmd
	out    bytes.Buffer
	exited chan struct{}
	err    error
}

// accelfab starts the command line.
func accelfab(t *testing.T, p *peer, d *daemon.Daemon, args ...string) *process {
	t.Helper()
	a := &process{exited: make(chan struct{})}
	args = append([]string{"netns", "exec", p.netns, daemon.Binary(t, "accelfab"), "--server", d.Target, "--timeout", "10s"}, args...)
	a.cmd = exec.CommandContext(t.Context(), "ip", args...)
	a.cmd.Stdout, a.cmd.Stderr = &a.out, &a.out
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { a.err = a.cmd.Wait(); close(a.exited) }()
	t.Cleanup(func() { a.cmd.Process.Kill(); <-a.exited })
	return a
}

// wait waits until it ends by itself.
func (a *process) wait() (out string, err error) {
	limit := time.AfterFunc(commandLimit, func() { a.cmd.Process.Kill() })
	defer limit.Stop()
	<-a.exited
	return a.out.String(), a.err
}

var listens = regexp.MustCompile(`:4853 [0:]+ 0A `)

// waitListening waits until it listens on the port of the pingpong programs.
func (a *process) waitListening(t *testing.T, p *peer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, file := range []string{"tcp", "tcp6"} {
			// qemu is in our namespace, which a program that has just started need not be.
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.PID, file)); listens.Match(b) {
				return
			}
		}
		select {
		case <-tick.C:
		case <-a.exited:
			t.Fatalf("accelfab ended before it listened: %v\n%s", a.err, &a.out)
		case <-ctx.Done():
			t.Fatal("accelfab does not listen")
		}
	}
}
