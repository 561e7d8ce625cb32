package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// perfPipe runs near on one end of a connection, at whose other end somebody
// says something and then waits.
func perfPipe(t *testing.T, says string, near func(context.Context, *perfConn) error) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer a.Close()
		go func() {
			fmt.Fprint(b, says)
			read(b, 1)
		}()
		err = near(t.Context(), newPerfConn(a, time.Minute))
	})
	return err
}

const perfGoodPlan = `{"plan":{"version":1,"test":"write","mode":"bw","sizes":[8],"iters":5,"tx_depth":128,"qps":1},"end":{"qps":[{}]}}`

func TestPerfPlanIsRefused(t *testing.T) {
	own := &perfPlan{Version: 1, Test: "write", Mode: "bw", Sizes: []uint64{65536}, Iters: 5000, TxDepth: 128, QPs: 1}
	change := func(from, to string) string {
		s := strings.Replace(perfGoodPlan, from, to, 1)
		if s == perfGoodPlan {
			t.Fatalf("%s is not in the plan", from)
		}
		return s + "\n"
	}
	for _, test := range []struct {
		says, given, want string
	}{
		{perfGoodPlan + "\n", "", ""},
		{perfGoodPlan + "\n", "tx-depth qp mtu", ""},
		{perfGoodPlan + "\n", "size", "--size: the client asks for [8] and the server was given [65536]"},
		{perfGoodPlan + "\n", "all", "--all: the client asks for [8]"},
		{perfGoodPlan + "\n", "iters", "--iters: the client asks for 5 and the server was given 5000"},
		{change(`"iters":5`, `"seconds":2`), "duration", "--duration: the client asks for 2 and the server was given 0"},
		{change(`"qps":1`, `"qps":3`), "qp", "--qp: the client asks for 3"},
		{change(`"qps":1`, `"qps":1,"mtu":512`), "mtu", "--mtu: the client asks for 512"},
		{change(`"tx_depth":128`, `"tx_depth":1`), "tx-depth", "--tx-depth: the client asks for 1"},
		{change(`"version":1`, `"version":2`), "", "the client has version 2 of the exchange and the server 1: take the same accelfab at both ends"},
		{change(`"write"`, `"read"`), "", "the client runs perf read --bw and the server perf write --bw"},
		{change(`"bw"`, `"lat"`), "", "the client runs perf write --lat"},
		{change(`[8]`, `[]`), "", "the client's plan: --size []: want 1 to 2GiB"},
		{change(`[8]`, `[8,0]`), "", "the client's plan: --size [8 0]"},
		{change(`[8]`, `[2147483649]`), "", "--size [2147483649]"},
		{change(`[8]`, `[-8]`), "", "is it accelfab perf?"},
		{change(`"iters":5`, `"iters":0`), "", "--iters 0: want 1 or more"},
		{change(`"iters":5`, `"seconds":-1`), "", "--duration -1"},
		{change(`"iters":5`, `"seconds":1e9`), "", "--duration 1e+09"},
		{change(`"qps":1`, `"qps":1001`), "", "--qp 1001: want 1 to 1000"},
		{change(`"qps":1`, `"qps":1,"mtu":1500`), "", "--mtu 1500"},
		{change(`"tx_depth":128`, `"tx_depth":8193`), "", "--tx-depth 8193"},
		{`{"ready":true}` + "\n", "", "tells no plan"},
		{"{}\n", "", "tells no plan"},
		{"null\n", "", "tells no plan"},
		{`{"error":"no device"}` + "\n", "", "the other end: no device"},
		{"GET / HTTP/1.1\r\n\r\n", "", `the other end says "GET / HTTP/1.1": is it accelfab perf?`},
		{"\x16\x03\x01\x00\n", "", "is it accelfab perf?"},
		{strings.Repeat("x", perfLine+1), "", "says more than 1048576 bytes in a line"},
		{"", "", "says nothing for 1m0s (--timeout)"},
		{`{"plan":`, "", "says nothing for 1m0s"},
	} {
		given := func(flag string) bool { return strings.Contains(" "+test.given+" ", " "+flag+" ") }
		err := perfPipe(t, test.says, func(ctx context.Context, c *perfConn) error {
			p, end, err := c.receivePlan(ctx, own, given)
			if err == nil && (p.Sizes[0] != 8 || p.Iters != 5 || len(end.QPs) != 1) {
				t.Errorf("plan %+v", p)
			}
			return err
		})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.80q given %q: %v, want %s", test.says, test.given, err, test.want)
		}
	}
}

func TestPerfEndGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		go b.Close()
		if _, err := newPerfConn(a, time.Minute).hear(t.Context(), 0); err == nil || err.Error() != "the other end closed the connection" {
			t.Errorf("%v", err)
		}
	})
}

// An end that fails tells the other why, and hears what it has to say, but does
// not wait long.
func TestPerfPartingWords(t *testing.T) {
	failure := errors.New("out of memory")
	for _, test := range []struct {
		says        string
		err         error
		want, heard string
	}{
		{"", nil, "<nil>", ""},
		{"", failure, "out of memory", `{"error":"out of memory"}` + "\n"},
		{`{"error":"no such port"}` + "\n", failure, "out of memory; the other end: no such port", `{"error":"out of memory"}` + "\n"},
		{`{"ready":true}` + "\n", failure, "out of memory", `{"error":"out of memory"}` + "\n"},
		{"", errInterrupted, "interrupted, and cleaned up", `{"error":"interrupted, and cleaned up"}` + "\n"},
		{"", perfPeerError("gone"), "the other end: gone", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, b := net.Pipe()
			told := make(chan string, 1)
			go func() { told <- read(b, 1000) }()
			go func() { fmt.Fprint(b, test.says) }()
			synctest.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // as after Ctrl-C
			began := time.Now()
			if err := newPerfConn(a, time.Minute).part(ctx, test.err); fmt.Sprint(err) != test.want {
				t.Errorf("%v, want %s", err, test.want)
			}
			if took := time.Since(began); took > 2*perfLastWords {
				t.Errorf("took %v", took)
			}
			a.Close()
			b.Close()
			if got := <-told; got != test.heard {
				t.Errorf("the other end heard %q, want %q", got, test.heard)
			}
		})
	}
}

// An end of ctx ends what waits, whenever it comes.
func TestPerfExchangeIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer b.Close()
		c := newPerfConn(a, time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		defer c.until(ctx)()
		for range 2 { // under way, and before
			if _, err := c.hear(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		}
	})
}
