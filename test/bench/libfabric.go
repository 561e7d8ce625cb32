package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/accelfab/accelfab/device/ib"
)

// The figures of fi_pingpong are means of half a round trip, so those of the
// software device are, too.
const (
	sendHalfName = "RDMA SEND of 8 bytes: half a round trip, mean"
	sendMiBName  = "RDMA SEND of 1 MiB and one in answer"
)

// fabricProvider is a provider of libfabric and its endpoint, as fi_pingpong
// takes them.
type fabricProvider struct{ provider, endpoint string }

var fabricProviders = []fabricProvider{{"tcp", "msg"}, {"tcp;ofi_rxm", "rdm"}, {"udp", "dgram"}}

func (f fabricProvider) String() string { return "fi_pingpong, " + f.provider + " " + f.endpoint }

// libfabric measures messages that are answered by messages beside fi_pingpong,
// whose providers do in software what RDMA hardware does. It is no goal:
// libfabric polls, and its providers end where a job ends.
func libfabric(ctx context.Context, b *bench) (err error) {
	small, large := Echo{Count: 4000, Size: 8}, Echo{Count: 100, Size: 1 << 20}
	if b.quick {
		small.Count, large.Count = 100, 4
	}
	p, err := b.startPair(ctx, uint64(2*large.Size))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.connect(ib.MTU4096, p.ends); err != nil {
		return err
	}
	add := func(e Echo, half time.Duration, name string) {
		if e.Size == large.Size {
			b.add(name, "Gbit/s", gbits(e.Size, half))
		} else {
			b.add(name, "us", float64(half)/float64(time.Microsecond))
		}
	}
	device := func(name string, e Echo) cell {
		return cell{name, func(context.Context) error {
			t, err := p.sendEcho(e)
			add(e, t.Mean/2, name)
			return err
		}}
	}
	cells := []cell{device(sendHalfName, small), device(sendMiBName, large)}
	path, err := exec.LookPath("fi_pingpong")
	if err != nil {
		b.Skipped = append(b.Skipped, "fi_pingpong, as it is not in PATH (Debian: libfabric-bin)")
	}
	for _, f := range fabricProviders {
		for _, e := range []Echo{small, large} {
			if path == "" || f.endpoint == "dgram" && e.Size == large.Size {
				continue
			}
			name := fmt.Sprintf("%v: %s bytes", f, figure(float64(e.Size)))
			cells = append(cells, cell{name, func(ctx context.Context) error {
				half, err := f.run(ctx, path, e)
				if err == nil {
					add(e, half, name)
				}
				return err
			}})
		}
	}
	return b.interleave(ctx, cells)
}

// run runs a server and a client, and gives the mean of half a round trip.
func (f fabricProvider) run(ctx context.Context, path string, e Echo) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	args := []string{"-p", f.provider, "-e", f.endpoint, "-I", strconv.Itoa(e.Count), "-S", strconv.Itoa(e.Size)}
	server := exec.CommandContext(ctx, path, append(args, "-B", port)...)
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer server.Wait()
	defer cancel() // before the wait
	for {
		out, err := exec.CommandContext(ctx, path, append(args, "-P", port, "127.0.0.1")...).CombinedOutput()
		switch {
		case ctx.Err() != nil:
			return 0, fmt.Errorf("fi_pingpong: %w", ctx.Err())
		case err == nil:
			return halfTrip(string(out))
		case !bytes.Contains(out, []byte("Connection refused")):
			return 0, fmt.Errorf("fi_pingpong: %w: %s", err, bytes.TrimSpace(append(out, said.Bytes()...)))
		}
		// The server does not say when it listens.
	}
}

// halfTrip reads the table of fi_pingpong, whose last line ends with MB/sec,
// usec/xfer and Mxfers/sec.
func halfTrip(table string) (time.Duration, error) {
	lines := strings.Split(strings.TrimSpace(table), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(fields) < 3 {
		return 0, fmt.Errorf("fi_pingpong printed no table: %q", table)
	}
	us, err := strconv.ParseFloat(fields[len(fields)-2], 64)
	if err != nil || us <= 0 {
		return 0, fmt.Errorf("fi_pingpong printed no usec/xfer: %q", table)
	}
	return time.Duration(us * float64(time.Microsecond)), nil
}
