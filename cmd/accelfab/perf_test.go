package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// perfPair runs a server on one node and a client of it on another.
func perfPair(t *testing.T, a, b string, server, client []string) (s, c result) {
	t.Helper()
	at := start(t, a, append([]string{"perf", server[0], "-p", "0"}, server[1:]...)...)
	port := at.says(`waiting on port (\d+)`)
	by := start(t, b, append([]string{"perf", client[0], "127.0.0.1", "-p", port}, client[1:]...)...)
	return at.wait(), by.wait()
}

func perfBetweenNodes(t *testing.T, a, b string) {
	for line, want := range map[string]struct{ rows, messages int }{
		"write -n 300":                      {1, 300},
		"write -n 7 -t 1 -s 1":              {1, 7},
		"write -n 100 -q 3 -s 1MiB -t 2":    {1, 300},
		"write --bw -n 3 -a":                {23, 3},
		"write --lat -n 300":                {1, 300},
		"read -n 100 -s 10000 -m 1024":      {1, 100},
		"read --lat -n 30 -x 1":             {1, 30},
		"send -n 1000 -s 100 -q 2":          {1, 2000},
		"send --lat -n 300 -s 5000 -i 1":    {1, 300},
		"send --lat -a -n 20 -d soft-0":     {23, 20},
		"write -D 100ms -s 4096":            {1, 0},
		"send --lat -D 100ms --timeout 20s": {1, 0},
		"read --lat -D 1ns":                 {1, 1},
		"write -D 1ns -s 1":                 {1, 64},
	} {
		t.Run(line, func(t *testing.T) {
			words := strings.Fields(line)
			server := append(words[:1:1], "-o", "json")
			if strings.Contains(line, "--lat") {
				server = append(server, "--lat")
			}
			s, c := perfPair(t, a, b, server, append(words, "-o", "json"))
			if s.status != 0 || c.status != 0 {
				t.Fatalf("%+v %+v", s, c)
			}
			if s.stdout != c.stdout {
				t.Errorf("the server prints\n%s\nand the client\n%s", s.stdout, c.stdout)
			}
			var report perfReport
			if err := json.Unmarshal([]byte(c.stdout), &report); err != nil {
				t.Fatalf("%v in %s", err, c.stdout)
			}
			if len(report.Rows) != want.rows || report.Note == "" || report.Plan.Test != words[0] {
				t.Errorf("%d rows, want %d: %s", len(report.Rows), want.rows, c.stdout)
			}
			for i, r := range report.Rows {
				if r.Bytes != report.Plan.Sizes[i] || r.Iterations != want.messages && want.messages > 0 || r.Iterations == 0 {
					t.Errorf("%+v, want %d messages", r, want.messages)
				}
				bw, lat := r.Bandwidth, r.Latency
				if (lat != nil) != strings.Contains(line, "--lat") || (bw == nil) != (lat != nil) {
					t.Fatalf("%+v", r)
				}
				if bw != nil && (bw.Average <= 0 || bw.Rate <= 0 || bw.Peak < bw.Average*0.999) {
					t.Errorf("%+v", *bw)
				}
				if lat != nil && (lat.Min <= 0 || lat.Min > lat.Typical || lat.Typical > lat.P99 || lat.P99 > lat.P999 || lat.P999 > lat.Max || lat.Avg > lat.Max) {
					t.Errorf("%+v", *lat)
				}
			}
		})
	}
	t.Run("table", func(t *testing.T) {
		s, c := perfPair(t, a, b, []string{"read"}, []string{"read", "-n", "5", "-s", "64"})
		for _, got := range []result{s, c} {
			table := got.stdout[strings.Index(got.stdout, " #bytes"):]
			if lines := strings.Split(table, "\n"); got.status != 0 || got.stderr != "" || len(lines) != 4 || lines[0] != perfBandwidthTitles || !strings.HasPrefix(lines[1], " 64         5 ") || !strings.Contains(lines[2], "calls of the daemon's API") {
				t.Errorf("%+v", got)
			}
		}
	})
}

// What does not fit fails at both ends, and each says why.
func perfRefused(t *testing.T, a, b string) {
	for _, test := range []struct{ server, client, serverSays, clientSays string }{
		{"write", "read", "the client runs perf read --bw and the server perf write --bw", "the other end: the client runs perf read --bw"},
		{"write", "write --lat", "the client runs perf write --lat", "the other end: the client runs"},
		{"write -s 8", "write -s 16", "--size: the client asks for [16] and the server was given [8]", "the other end: --size"},
		{"send", "send -s 32MiB -q 3", "the other end closed the connection", "buffer: "},
		{"send", "send -t 8192 -n 10", "", ""},
	} {
		t.Run(test.server+" and "+test.client, func(t *testing.T) {
			if test.clientSays == "buffer: " { // it fails before it calls
				got := start(t, b, append([]string{"perf"}, append(strings.Fields(test.client), "127.0.0.1")...)...).wait()
				if got.status != exitFailed || !strings.Contains(got.stderr, test.clientSays) {
					t.Errorf("%+v", got)
				}
				return
			}
			s, c := perfPair(t, a, b, strings.Fields(test.server), strings.Fields(test.client))
			if test.serverSays == "" {
				if s.status != 0 || c.status != 0 {
					t.Errorf("%+v %+v", s, c)
				}
				return
			}
			if s.status != exitFailed || !strings.Contains(s.stderr, test.serverSays) {
				t.Errorf("the server: %+v, want %s", s, test.serverSays)
			}
			if c.status != exitFailed || !strings.Contains(c.stderr, test.clientSays) {
				t.Errorf("the client: %+v, want %s", c, test.clientSays)
			}
		})
	}
	for line, want := range map[string]string{
		"write -x 9":           "--gid-index 9: no RoCE v2 GID of soft-0/8 has it",
		"write -d soft-7":      "soft-7",
		"write -i 77":          "--ib-port 77: soft-0 has no such port",
		"write 127.0.0.1 -p 1": "no server to talk to: ",
	} {
		if got := start(t, a, append([]string{"perf"}, strings.Fields(line)...)...).wait(); got.status != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v, want %s", line, got, want)
		}
	}
}

// A client that is none, or goes away, ends the server in order.
func perfWithWrongClient(t *testing.T, a, _ string) {
	plan := strings.Replace(perfGoodPlan, `{"qps":[{}]}`, `{"qps":[{"gid":"::ffff:127.127.0.1","qpn":17}]}`, 1) + "\n"
	ready := plan + `{"ready":true}` + "\n"
	for name, test := range map[string]struct{ says, want string }{
		"HTTP":            {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "is it accelfab perf?"},
		"closes":          {"", "the other end closed the connection"},
		"no endpoint":     {perfGoodPlan + "\n", "remote_endpoint"},
		"no queue pairs":  {strings.Replace(plan, `"qps":1`, `"qps":2`, 1), "does not tell 2 queue pairs"},
		"bad endpoint":    {strings.Replace(plan, `"qpn":17`, `"qpn":"x"`, 1), "queue pair 0 of the other end: "},
		"is not ready":    {plan + `{"bye":true}` + "\n", "does not say that it is ready"},
		"goes away":       {ready, "the other end closed the connection"},
		"another size":    {ready + `{"size":9}` + "\n", "goes on with size 9, which its plan does not have"},
		"measures not":    {ready + `{"size":8}` + "\n", "the other end closed the connection"},
		"has no row":      {ready + `{"size":8}` + "\n{}\n", "does not say what it measured"},
		"fails":           {ready + `{"size":8}` + "\n" + `{"error":"I fell"}` + "\n", "the other end: I fell"},
		"too much memory": {strings.Replace(plan, `[8]`, `[1073741824]`, 1), "buffer: "},
	} {
		t.Run(name, func(t *testing.T) {
			at := start(t, a, "perf", "write", "-p", "0")
			conn, err := net.Dial("tcp", "127.0.0.1:"+at.says(`waiting on port (\d+)`))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprint(conn, test.says)
			conn.(*net.TCPConn).CloseWrite()
			heard, _ := io.ReadAll(conn)
			got := at.wait()
			if got.status != exitFailed || !strings.Contains(got.stderr, test.want) {
				t.Errorf("%+v, want %s", got, test.want)
			}
			if name != "fails" && !strings.Contains(string(heard), `"error":"`) {
				t.Errorf("the client is told %s", heard)
			}
		})
	}
}

// Ctrl-C at either end ends both.
func perfInterrupted(t *testing.T, a, b string) {
	at := start(t, a, "perf", "send", "-p", "0")
	at.says("waiting on port")
	at.cancel()
	if got := at.wait(); got.status != exitFailed || got.stderr != "accelfab: interrupted, and cleaned up\n" {
		t.Errorf("a server that waits: %+v", got)
	}
	for _, mode := range []string{"--bw", "--lat"} {
		for _, who := range []string{"server", "client"} {
			t.Run(mode+" "+who, func(t *testing.T) {
				at := start(t, a, "perf", "send", mode, "-p", "0")
				port := at.says(`waiting on port (\d+)`)
				by := start(t, b, "perf", "send", mode, "127.0.0.1", "-p", port, "-a", "-n", "20", "--timeout", "5s")
				by.says(`\n 8  `)
				first, second := at, by
				if who == "client" {
					first, second = by, at
				}
				first.cancel()
				if got := first.wait(); got.status != exitFailed || !strings.Contains(got.stderr, "interrupted, and cleaned up\n") {
					t.Errorf("%+v", got)
				}
				if got := second.wait(); got.status != exitFailed || !strings.Contains(got.stderr, "the other end: interrupted, and cleaned up\n") {
					t.Errorf("the other end: %+v", got)
				}
			})
		}
	}
}

func TestPerfUsage(t *testing.T) {
	r := newRecorder(t, nil)
	for line, want := range map[string]string{
		"atomic":                  `"atomic": no such command; see accelfab perf --help`,
		"write a b":               "accepts at most 1 arg(s), received 2",
		"write --bw --lat":        "[bw lat]",
		"write -s 1 -a":           "[all size]",
		"write -n 1 -D 1":         "[duration iters]",
		"write -s 0":              "--size [0]: want 1 to 2GiB",
		"write -s 3GiB":           "--size [3221225472]: want 1 to 2GiB",
		"write -n 0":              "--iters 0: want 1 or more",
		"write -D 0":              "want a number of seconds, or a duration such as 500ms",
		"write -D -1s":            "want a number of seconds",
		"write -D x":              "want a number of seconds",
		"write -D 100h":           "--duration 360000: want more than 0 and at most a day",
		"write -t 0":              "--tx-depth 0: want 1 to 8192",
		"write -t 8193":           "--tx-depth 8193: want 1 to 8192",
		"write -q 0":              "--qp 0: want 1 to 1000",
		"write -q 1001":           "--qp 1001: want 1 to 1000",
		"write --lat -q 2":        "--qp does not go with --lat, which has one message under way",
		"write --lat -t 2":        "--tx-depth does not go with --lat",
		"write -m 1500":           "--mtu 1500: want 256, 512, 1024, 2048 or 4096",
		"write -m 0":              "--mtu 0: want 256",
		"read -p 65536":           "--port 65536: want 0 to 65535",
		"read host -p 0":          "--port 0: want 1 to 65535",
		"read -x -1":              "want a number from 0 to 0xffffffff",
		"read -i 0":               "--ib-port 0: want 1 or more",
		"read -d a/b":             `device "a/b": want an id or the whole name`,
		"read -c":                 "unknown shorthand flag: 'c'",
		"read host --timeout -1s": "--timeout -1s: want more than 0",
	} {
		got := r.run(t, append([]string{"perf"}, strings.Fields(line)...)...)
		if got.status != exitUsage || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v, want %s", line, got, want)
		}
		r.asked(t)
	}
}
