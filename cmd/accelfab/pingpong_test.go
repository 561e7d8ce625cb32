package main

import (
	"encoding/json"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// pingpongPair runs a server on one node and a client of it on another, with
// the same flags and some of their own.
func pingpongPair(t *testing.T, a, b, kind string, both, server, client []string) (s, c result) {
	t.Helper()
	at := start(t, a, append(append([]string{"pingpong", kind, "-p", "0"}, both...), server...)...)
	port := at.says(`waiting on port (\d+)`)
	by := start(t, b, append(append([]string{"pingpong", kind, "127.0.0.1", "-p", port}, both...), client...)...)
	return at.wait(), by.wait()
}

const pingpongSays = `^(?:  waiting on port \d+
)?  local address:  LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID ([0-9a-f:.]+)
(?:  waiting on port \d+
)?  remote address: LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID ([0-9a-f:.]+)
(\d+) bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec
(\d+) iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter
$`

func pingpongBetweenNodes(t *testing.T, a, b string) {
	says := regexp.MustCompile(pingpongSays)
	for line, bytes := range map[string]string{
		"rc -n 50":                    "409600",
		"rc -n 50 -c -s 1":            "100",
		"rc -n 50 -c -e -s 10000":     "1000000",
		"rc -n 3 -c -s 1MiB -m 4096":  "6291456",
		"rc -n 20 -c -r 1 -m 256":     "163840",
		"rc -n 20 -c -r 2000 -l 5":    "163840",
		"uc -n 20 -c":                 "163840",
		"uc -n 20 -c -e -s 5000 -l 1": "200000",
		"ud -n 20 -c":                 "40960",
		"ud -n 20 -c -e -s 1 -l 7":    "40",
		"ud -n 20 -c -s 4096 -r 1":    "163840",
	} {
		t.Run(line, func(t *testing.T) {
			words := strings.Fields(line)
			s, c := pingpongPair(t, a, b, words[0], words[1:], nil, nil)
			var gids [2][]string
			for i, got := range []result{s, c} {
				found := says.FindStringSubmatch(got.stdout)
				if got.status != 0 || got.stderr != "" || found == nil || found[3] != bytes || found[4] != words[2] {
					t.Fatalf("%+v, want %s bytes", got, bytes)
				}
				gids[i] = found[1:3]
			}
			if gids[0][0] != gids[1][1] || gids[0][1] != gids[1][0] || gids[0][0] == gids[0][1] {
				t.Errorf("the ends tell GIDs %q", gids)
			}
		})
	}
	t.Run("json", func(t *testing.T) {
		flags := []string{"-n", "10", "-c", "-o", "json", "-d", "soft-0", "-i", "1", "-g", "1"}
		s, c := pingpongPair(t, a, b, "rc", flags, nil, nil)
		var reports [2]pingpongReport
		for i, got := range []result{s, c} {
			if err := json.Unmarshal([]byte(got.stdout), &reports[i]); err != nil || got.status != 0 {
				t.Fatalf("%v %+v", err, got)
			}
			r := reports[i]
			if r.Bytes != 81920 || r.Iters != 10 || r.Seconds <= 0 || r.Mbit <= 0 || r.Usec <= 0 || !r.Checked || r.Transport != "RC" {
				t.Errorf("%+v", r)
			}
		}
		if reports[0].Local != reports[1].Remote || reports[0].Remote != reports[1].Local {
			t.Errorf("the ends tell %+v", reports)
		}
	})
}

// Both ends find what does not fit.
func pingpongRefused(t *testing.T, a, b string) {
	for line, want := range map[string]string{
		"rc -g 7":                  "--gid-idx 7: no RoCE v2 GID of soft-0/8 has it; its table has 0 (fe80::",
		"rc -d soft-9":             "soft-9",
		"rc -i 99":                 "--ib-port 99: soft-0 has no such port",
		"rc -s 128MiB":             "buffer: ",
		"rc -r 10000000":           "recv_wr",
		"ud -s 4097":               "--size 4097: a UD message is at most the MTU of its port, and that of soft-0/8 is 4096 bytes",
		"rc 127.0.0.1 -p 1":        "no server to talk to: ",
		"rc nowhere.invalid -p 99": "no server to talk to: ",
	} {
		if got := start(t, a, append([]string{"pingpong"}, strings.Fields(line)...)...).wait(); got.status != exitFailed || got.stdout != "" && !strings.HasPrefix(got.stdout, "  local") || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v, want %s", line, got, want)
		}
	}
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, taken, _ := net.SplitHostPort(l.Addr().String())
	if got := start(t, a, "pingpong", "rc", "-p", taken).wait(); got.status != exitFailed || !strings.Contains(got.stderr, "--port "+taken+": ") {
		t.Errorf("a port that is taken: %+v", got)
	}

	t.Run("sizes", func(t *testing.T) {
		s, c := pingpongPair(t, a, b, "rc", []string{"--timeout", "3s"}, []string{"-s", "64"}, []string{"-s", "32"})
		if s.status != exitFailed || !strings.Contains(s.stderr, "1 of 1000 messages arrived and 0 were sent: a message has 32 bytes, want 64: give both ends the same --size") {
			t.Errorf("the server: %+v", s)
		}
		if c.status != exitFailed || !strings.Contains(c.stderr, "of 1000 messages arrived") {
			t.Errorf("the client: %+v", c)
		}
	})
	t.Run("checks", func(t *testing.T) {
		s, c := pingpongPair(t, a, b, "rc", []string{"-n", "3"}, []string{"-c"}, nil)
		if s.status != exitFailed || !strings.Contains(s.stderr, "invalid data in page 0: byte 0 is 0x7b, want 0x00; does the client check too (-c)") {
			t.Errorf("the server: %+v", s)
		}
		if c.status != 0 {
			t.Errorf("the client: %+v", c)
		}
	})
	for kind, why := range map[string]string{"rc": "is the other end still there", "ud": "UD sends nothing again, so one lost message ends the exchange"} {
		t.Run("iterations of "+kind, func(t *testing.T) {
			s, c := pingpongPair(t, a, b, kind, []string{"-e", "--timeout", "2s"}, []string{"-n", "20"}, []string{"-n", "10"})
			if s.status != exitFailed || !strings.Contains(s.stderr, "10 of 20 messages arrived and 10 were sent: nothing came for 2s (--timeout); "+why+"\n") {
				t.Errorf("the server: %+v", s)
			}
			if c.status != 0 {
				t.Errorf("the client: %+v", c)
			}
		})
	}
}

// A peer that is none of the family, or ends too soon, is told of.
func pingpongWithWrongPeer(t *testing.T, a, _ string) {
	text := string(itsAddress.text())
	gid4 := text[:19] + "00000000000000000000ffff7f400063\x00"
	for name, test := range map[string]struct {
		says string // and then closes
		want string
	}{
		"closes":         {"", "closed the connection after 0 of 52 bytes"},
		"HTTP":           {"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n", "is it an ibv_*_pingpong?"},
		"no GID":         {"0000:000011:000abc:" + strings.Repeat("0", 32) + "\x00", "tells no GID: give it -g"},
		"another family": {text, "connect: "},
		"not done":       {gid4, "closed the connection after 0 of 5 bytes"},
	} {
		t.Run("client "+name, func(t *testing.T) {
			at := start(t, a, "pingpong", "rc", "-p", "0")
			conn, err := net.Dial("tcp", "127.0.0.1:"+at.says(`waiting on port (\d+)`))
			if err != nil {
				t.Fatal(err)
			}
			conn.Write([]byte(test.says))
			conn.(*net.TCPConn).CloseWrite()
			got := at.wait()
			conn.Close()
			if got.status != exitFailed || !strings.Contains(got.stderr, test.want) {
				t.Errorf("%+v, want %s", got, test.want)
			}
		})
		if name == "not done" {
			continue
		}
		t.Run("server "+name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				if conn, err := l.Accept(); err == nil {
					read(conn, pingpongTextSize)
					conn.Write([]byte(test.says))
					conn.Close()
				}
			}()
			_, port, _ := net.SplitHostPort(l.Addr().String())
			if got := start(t, a, "pingpong", "rc", "127.0.0.1", "-p", port).wait(); got.status != exitFailed || !strings.Contains(got.stderr, test.want) {
				t.Errorf("%+v, want %s", got, test.want)
			}
		})
	}
}

// Ctrl-C ends each end in order, wherever it is.
func pingpongInterrupted(t *testing.T, a, b string) {
	const cleaned = "accelfab: interrupted, and cleaned up\n"
	at := start(t, a, "pingpong", "rc", "-p", "0")
	at.says(`waiting on port`)
	at.cancel()
	if got := at.wait(); got.status != exitFailed || got.stderr != cleaned {
		t.Errorf("while it waits for a client: %+v", got)
	}

	for _, flags := range [][]string{{"-n", "1000000000"}, {"-n", "1000000000", "-e"}} {
		at = start(t, a, append([]string{"pingpong", "rc", "-p", "0"}, flags...)...)
		port := at.says(`waiting on port (\d+)`)
		by := start(t, b, append([]string{"pingpong", "rc", "127.0.0.1", "-p", port, "--timeout", "2s"}, flags...)...)
		at.says(`remote address`)
		by.says(`remote address`)
		at.cancel()
		if got := at.wait(); got.status != exitFailed || !strings.HasSuffix(got.stderr, "interrupted, and cleaned up\n") {
			t.Errorf("a server under way: %+v", got)
		}
		if got := by.wait(); got.status != exitFailed || !strings.Contains(got.stderr, "of 1000000000 messages arrived") {
			t.Errorf("the client of one that is gone: %+v", got)
		}
	}
}

// What makes no sense is refused before a daemon is asked.
func TestPingpongUsage(t *testing.T) {
	r := newRecorder(t, nil)
	for line, want := range map[string]string{
		"":                "",
		"xrc":             `"xrc": no such command; see accelfab pingpong --help`,
		"rc a b":          "accepts at most 1 arg(s), received 2",
		"rc -p 65536":     "--port 65536: want 0 to 65535",
		"rc -p -1":        "--port -1: want 0 to 65535",
		"rc host -p 0":    "--port 0: want 1 to 65535",
		"rc -p x":         `invalid argument "x" for "-p, --port"`,
		"rc -s 0":         "--size 0: want 1 to 2GiB",
		"ud -s 0":         "--size 0: want 1 to 2GiB",
		"rc -s 3GiB":      "--size 3221225472: want 1 to 2GiB",
		"rc -s -1":        "want a number of bytes",
		"rc -m 1500":      "--mtu 1500: want 256, 512, 1024, 2048 or 4096",
		"ud -m 1024":      "unknown shorthand flag: 'm'",
		"rc -r 0":         "--rx-depth 0: want 1 or more",
		"rc -n 0":         "--iters 0: want 1 or more",
		"rc -n -5":        "--iters -5: want 1 or more",
		"uc -l 8":         "--sl 8: want 0 to 7",
		"rc -g -1":        "want a number from 0 to 0xffffffff",
		"rc -i 0":         "--ib-port 0: want 1 or more",
		"rc -d soft-0/8":  `device "soft-0/8": want an id or the whole name`,
		"rc --timeout 0":  "--timeout 0s: want more than 0",
		"rc -n 1 -s 1 -q": "unknown shorthand flag: 'q'",
	} {
		got := r.run(t, append([]string{"pingpong"}, strings.Fields(line)...)...)
		if want == "" {
			if got.status != 0 || !strings.Contains(got.stdout, "Usage:") {
				t.Errorf("%+v", got)
			}
			continue
		}
		if got.status != exitUsage || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v, want %s", line, got, want)
		}
		r.asked(t)
	}
	if got := r.run(t, "pingpong", "rc", ""); got.status != exitUsage || !strings.Contains(got.stderr, "HOST is empty") {
		t.Errorf("%+v", got)
	}
}

// pingpongRecorder is a daemon with what a pingpong needs, but for messages.
func pingpongRecorder(t *testing.T, answer func(method string) (proto.Message, error)) *recorder {
	port := proto.Clone(aPort).(*pb.Port)
	for _, g := range port.Gids {
		g.Type = pb.GidType_GID_TYPE_ROCE_V2
	}
	return newRecorder(t, func(method string, _ proto.Message) (proto.Message, error) {
		if reply, err := answer(method); reply != nil || err != nil {
			return reply, err
		}
		switch method {
		case "ListPorts":
			return &pb.ListPortsResponse{Ports: []*pb.Port{port}}, nil
		case "BatchCreateQueuePairs":
			return &pb.BatchCreateQueuePairsResponse{QueuePairs: []*pb.QueuePair{aQueuePair}}, nil
		}
		return nil, nil
	})
}

// sessionClosed checks that the last call closes the session that one before
// it has asked for.
func (r *recorder) sessionClosed(t *testing.T) {
	t.Helper()
	calls := r.Calls()
	var id string
	for _, c := range calls {
		if create, ok := c.Request.(*pb.CreateSessionRequest); ok {
			id = create.GetSessionId()
		}
	}
	last, ok := calls[len(calls)-1].Request.(*pb.DeleteSessionRequest)
	if !ok || id == "" || last.GetName() != localNode+"/sessions/"+id {
		t.Errorf("the last call is %v, want the close of session %q", calls[len(calls)-1], id)
	}
}

// What is made and refused half-way is taken back: the session is closed after
// each call that fails, and after one whose answer was lost.
func TestPingpongTakesBack(t *testing.T) {
	for _, failing := range []string{"CreateSession", "CreateProtectionDomain", "CreateBuffer", "CreateMemoryRegion", "BatchCreateQueuePairs", "WriteBuffer", "PostWork"} {
		r := pingpongRecorder(t, func(method string) (proto.Message, error) {
			if method == failing {
				return nil, errEnough
			}
			return nil, nil
		})
		if got := r.run(t, "pingpong", "rc", "-p", "0"); got.status != exitFailed || !strings.HasSuffix(got.stderr, "that is all\n") {
			t.Errorf("%s fails: %+v", failing, got)
		}
		r.sessionClosed(t)
	}
}

// A session that the daemon has given up ends what it was for.
func TestPingpongSessionIsLost(t *testing.T) {
	r := pingpongRecorder(t, func(method string) (proto.Message, error) {
		switch method {
		case "CreateSession":
			s := proto.Clone(aSession).(*pb.Session)
			s.Ttl = durationpb.New(300 * time.Millisecond)
			return s, nil
		case "KeepAliveSession":
			return nil, errEnough
		}
		return nil, nil
	})
	got := r.run(t, "pingpong", "rc", "-p", "0")
	if lost := regexp.MustCompile(`^accelfab: the session pingpong-[a-z0-9]{12} is lost: that is all\n$`); got.status != exitFailed || !lost.MatchString(got.stderr) {
		t.Errorf("%+v", got)
	}
	r.sessionClosed(t)
}

// A node that cannot be told leaves it to the lease.
func TestPingpongCleanUpFails(t *testing.T) {
	r := pingpongRecorder(t, func(method string) (proto.Message, error) {
		if method == "DeleteSession" || method == "PostWork" {
			return nil, errEnough
		}
		return nil, nil
	})
	got := r.run(t, "pingpong", "rc", "-p", "0")
	if said := regexp.MustCompile(`^accelfab: post: that is all; the session pingpong-[a-z0-9]{12} goes away by itself within 30s, as closing it failed: that is all\n$`); got.status != exitFailed || !said.MatchString(got.stderr) {
		t.Errorf("%+v", got)
	}
}

func TestPingpongPlaces(t *testing.T) {
	scaleOut := func(name string, ibPort uint32, state pb.Port_State) *pb.Port {
		return &pb.Port{Name: localNode + "/devices/" + name, IbPort: ibPort, State: state, Class: pb.Port_CLASS_SCALE_OUT}
	}
	internal := &pb.Port{Name: localNode + "/devices/soft-0/ports/0", IbPort: 1, State: pb.Port_STATE_ACTIVE, Class: pb.Port_CLASS_INTERNAL}
	list := []*pb.Port{internal, scaleOut("soft-0/ports/8", 2, pb.Port_STATE_DOWN),
		scaleOut("soft-1/ports/8", 2, pb.Port_STATE_ACTIVE), scaleOut("soft-1/ports/9", 3, pb.Port_STATE_ACTIVE)}
	for _, test := range []struct {
		list  []*pb.Port
		place jobPlace
		want  string
	}{
		{list, jobPlace{}, "soft-1/8"},
		{list, jobPlace{ibPort: 3}, "soft-1/9"},
		{list, jobPlace{ibPort: 1}, "--ib-port 1: soft-1 has no such port"},
		{list[:2], jobPlace{}, "this node has no active scale-out port"},
		{list[:2], jobPlace{device: "soft-0"}, "soft-0 has no active scale-out port"},
		{list[:2], jobPlace{device: "soft-0", ibPort: 1}, "soft-0/0"},
		{list[:2], jobPlace{device: "soft-0", ibPort: 2}, "--ib-port 2: soft-0/8 is DOWN"},
		{nil, jobPlace{}, "this node has no active scale-out port"},
	} {
		p, err := choosePort(test.list, test.place)
		got := short(p.GetName())
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, test.want) {
			t.Errorf("%+v of %d: %s, want %s", test.place, len(test.list), got, test.want)
		}
	}
}
