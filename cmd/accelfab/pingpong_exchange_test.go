package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	anAddress     = pingpongAddress{QPN: 0x11, PSN: 0xabc, GID: netip.MustParseAddr("::ffff:10.77.0.1")}
	itsAddress    = pingpongAddress{LID: 0x7, QPN: 0xfffffe, PSN: 0, GID: netip.MustParseAddr("fe80::2:3")}
	anAddressText = "0000:000011:000abc:00000000000000000000ffff0a4d0001\x00"
	itsText       = "0007:fffffe:000000:fe800000000000000000000000020003\x00"
)

func TestPingpongText(t *testing.T) {
	for text, want := range map[string]pingpongAddress{
		anAddressText:            anAddress,
		itsText:                  itsAddress,
		strings.ToUpper(itsText): itsAddress,
	} {
		got, err := parsePingpongText([]byte(text))
		if err != nil || got != want {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
	for _, a := range []pingpongAddress{anAddress, itsAddress} {
		if len(a.text()) != pingpongTextSize {
			t.Errorf("%v: text of %d bytes, want %d", a, len(a.text()), pingpongTextSize)
		}
	}
	if got := string(anAddress.text()); got != anAddressText {
		t.Errorf("text %q, want %q", got, anAddressText)
	}
	gid := itsText[19:]
	for text, want := range map[string]string{
		"0000:000011:000abc:00000000000000000000000000000000\x00":   "tells no GID: give it -g",
		"0000:000001:000abc:" + gid:                                 "QPN 0x1: want 0x2 to 0xfffffe",
		"0000:ffffff:000abc:" + gid:                                 "QPN 0xffffff: want 0x2 to 0xfffffe",
		"GET / HTTP/1.1\r\nHost: accelfab\r\nUser-Agent: x/1.0\r\n": "is no LID:QPN:PSN:GID: is it an ibv_*_pingpong?",
		itsText[:51] + "\n":                                         "is no LID",
		"0007:ffffff:00000g:" + gid:                                 "is no LID",
		"0007-ffffff:000000:" + gid:                                 "is no LID",
		"    :ffffff:000000:" + gid:                                 "is no LID",
		"0007:0xffff:000000:" + gid:                                 "is no LID",
		"0007:ffffff:000000:" + gid[:20]:                            "is no LID",
		"":                                                          "is no LID",
		itsText + itsText:                                           "is no LID",
		"\n" + itsText:                                              "is no LID",
		"0007:ffffff:-00001:" + gid:                                 "is no LID",
		"0007:ffffff:000000:" + "::" + gid[2:]:                      "is no LID",
	} {
		if got, err := parsePingpongText([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v %v, want an error with %q", text, got, err, want)
		}
	}
}

// introduction is what one end of an exchange came to.
type introduction struct {
	steps []string // what this end had done when
	err   error
}

// introduced runs one end against what other does at the far end of the
// connection, in a bubble of fake time.
func introduced(t *testing.T, ctx context.Context, server bool, refuse error, other func(net.Conn)) introduction {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		defer far.Close()
		other(far)
	}()
	var in introduction
	p := tcpPeer{conn: near, limit: time.Minute}
	in.err = introduce(ctx, p, server, anAddress, func(a pingpongAddress) error {
		in.steps = append(in.steps, a.String())
		return refuse
	})
	return in
}

// read is what the far end is told.
func read(c net.Conn, n int) string {
	b := make([]byte, n)
	n, _ = io.ReadFull(c, b)
	return string(b[:n])
}

func TestPingpongClientIntroducesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan []string, 1)
		got := introduced(t, t.Context(), false, nil, func(c net.Conn) {
			list := []string{read(c, pingpongTextSize)}
			c.Write([]byte(itsText))
			told <- append(list, read(c, 10)) // to its end
		})
		if got.err != nil || !slices.Equal(got.steps, []string{itsAddress.String()}) {
			t.Errorf("%+v", got)
		}
		if want := []string{anAddressText, "done\x00"}; !slices.Equal(<-told, want) {
			t.Errorf("the server was not told %q", want)
		}
	})
}

func TestPingpongServerAnswersOnceItIsConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan string, 1)
		got := introduced(t, t.Context(), true, nil, func(c net.Conn) {
			c.Write([]byte(itsText[:20])) // in two pieces
			c.Write([]byte(itsText[20:]))
			told <- read(c, pingpongTextSize)
			c.Write([]byte("done\x00"))
		})
		if got.err != nil || !slices.Equal(got.steps, []string{itsAddress.String()}) {
			t.Errorf("%+v", got)
		}
		if text := <-told; text != anAddressText {
			t.Errorf("the client was told %q", text)
		}
	})
}

// An end that cannot connect does not let the other believe that it did.
func TestPingpongRefusalEndsTheExchange(t *testing.T) {
	refusal := errors.New("no path")
	for _, server := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			rest := make(chan string, 1)
			got := introduced(t, t.Context(), server, refusal, func(c net.Conn) {
				if !server {
					read(c, pingpongTextSize)
				}
				c.Write([]byte(itsText))
				rest <- read(c, 100)
			})
			if !errors.Is(got.err, refusal) {
				t.Errorf("server %v: %v", server, got.err)
			}
			if r := <-rest; r != "" {
				t.Errorf("server %v: then says %q", server, r)
			}
		})
	}
}

func TestPingpongPeerIsWrong(t *testing.T) {
	for name, test := range map[string]struct {
		server bool
		other  func(net.Conn)
		want   string
		steps  int
	}{
		"server closes at once":      {false, func(c net.Conn) { read(c, pingpongTextSize) }, "closed the connection after 0 of 52 bytes", 0},
		"server closes half-way":     {false, func(c net.Conn) { read(c, pingpongTextSize); c.Write([]byte("0000:0000")) }, `closed the connection after 9 of 52 bytes ("0000:0000")`, 0},
		"server says something else": {false, func(c net.Conn) { read(c, pingpongTextSize); c.Write([]byte(strings.Repeat("x", 60))) }, "is it an ibv_*_pingpong?", 0},
		"server says nothing":        {false, func(c net.Conn) { read(c, 1000) }, "says nothing for 1m0s (--timeout)", 0},
		"client closes at once":      {true, func(c net.Conn) {}, "closed the connection after 0 of 52 bytes", 0},
		"client says nothing":        {true, func(c net.Conn) { read(c, 1) }, "says nothing for 1m0s", 0},
		"client has no GID":          {true, func(c net.Conn) { c.Write([]byte("0000:000011:000abc:" + strings.Repeat("0", 32) + "\x00")) }, "tells no GID", 0},
		"client is never done":       {true, func(c net.Conn) { c.Write([]byte(itsText)); read(c, 1000) }, "says nothing for 1m0s", 1},
		"client closes before done":  {true, func(c net.Conn) { c.Write([]byte(itsText)); read(c, pingpongTextSize) }, "closed the connection after 0 of 5 bytes", 1},
		"client is not done":         {true, func(c net.Conn) { c.Write([]byte(itsText)); read(c, pingpongTextSize); c.Write([]byte("what?")) }, `says "what?", want "done\x00"`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := introduced(t, t.Context(), test.server, nil, test.other)
				if got.err == nil || !strings.Contains(got.err.Error(), test.want) || len(got.steps) != test.steps {
					t.Errorf("%+v, want %d steps and an error with %q", got, test.steps, test.want)
				}
			})
		})
	}
}

func TestPingpongExchangeIsInterrupted(t *testing.T) {
	for _, server := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			got := introduced(t, ctx, server, nil, func(c net.Conn) { read(c, 1000) })
			if !errors.Is(got.err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Errorf("server %v: %v after %v", server, got.err, time.Since(began))
			}
		})
	}
}
