// Package capture records the RoCE v2 packets of an interface and checks them
// by two readers: the ICRC and headers by device/ib, the dissection by tshark.
// It needs root, and Debian's tcpdump and tshark.
//
// A capture shows packets as they are on a wire only where the interface cuts
// and merges nothing: switch tx-udp-segmentation and gro off.
package capture

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device/ib"
)

// Start records what an interface of a network namespace sends and gets on the
// RoCE v2 port into a file, until the test calls the function that it gives.
func Start(t testing.TB, netns, link, file string) (stop func()) {
	t.Helper()
	// Room for packets is set aside by their largest length.
	cmd := exec.Command("ip", "netns", "exec", netns, "tcpdump", "--immediate-mode", "-B", "16384", "-U", "-i", link, "-s", "9216", "-w", file, "udp", "port", "4791")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // of a test that ends before it stops
		cmd.Process.Kill()
		cmd.Wait()
	})
	lines := bufio.NewReader(stderr)
	for { // it says "listening on" when it does
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("tcpdump: %v %s", err, line)
		}
		if strings.Contains(line, "listening on") {
			break
		}
	}
	counts := make(chan string)
	go func() { // the answers to SIGUSR1, and what it says at its end
		defer close(counts)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			counts <- line
		}
	}()
	return func() {
		// On a busy machine tcpdump is behind what has passed.
		behind, deadline := true, time.After(time.Minute)
		last, same := -1, 0
		for ask := time.NewTicker(20 * time.Millisecond); behind; {
			select {
			case <-ask.C:
				cmd.Process.Signal(syscall.SIGUSR1)
			case line, more := <-counts:
				captured, all, ok := counted(line)
				if same++; captured != last {
					same = 0
				}
				if ok {
					last = captured
				}
				// What came before its filter was in place never counts as captured.
				behind = more && !(ok && (all || same >= 5))
			case <-deadline:
				t.Error("tcpdump does not catch up")
				behind = false
			}
		}
		cmd.Process.Signal(syscall.SIGINT)
		var end strings.Builder
		for line := range counts {
			end.WriteString(line)
		}
		cmd.Wait()
		if !strings.Contains(end.String(), "\n0 packets dropped by kernel") {
			t.Logf("tcpdump: %s", end.String())
		}
	}
}

// counted reads a line that tcpdump writes when it is asked: how many packets it
// has captured, and whether these are all that it has seen.
func counted(line string) (captured int, all, ok bool) {
	var received, dropped int
	_, counts, _ := strings.Cut(strings.ReplaceAll(line, "packets", "packet"), ": ")
	_, err := fmt.Sscanf(counts, "%d packet captured, %d packet received by filter, %d packet dropped", &captured, &received, &dropped)
	return captured, captured+dropped >= received, err == nil
}

// Packets gives the IP packets of a classic pcap file of Ethernet frames.
func Packets(t testing.TB, file string) (list [][]byte) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 {
		t.Fatalf("%s is no pcap file", file)
	}
	for b = b[24:]; len(b) >= 16; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		ip := b[16 : 16+n][14:]
		b = b[16+n:]
		switch ip[0] >> 4 {
		case 4:
			list = append(list, ip[:binary.BigEndian.Uint16(ip[2:])])
		case 6:
			list = append(list, ip[:40+int(binary.BigEndian.Uint16(ip[4:]))])
		}
	}
	return list
}

// CheckICRC parses every packet of a file, recomputes its ICRC, and gives how
// many there are by sender and opcode.
func CheckICRC(t testing.TB, file string) map[Kind]int {
	t.Helper()
	seen := map[Kind]int{}
	for i, ip := range Packets(t, file) {
		body, want, ok := ib.CutICRC(ip)
		if !ok {
			t.Fatalf("packet %d is too short: %x", i, ip)
		}
		if got, err := ib.ICRC(body); err != nil || got != want {
			t.Errorf("packet %d: ICRC 0x%08x, want 0x%08x (%v)", i, want, got, err)
		}
		source, headers := ip[12:16], 28
		if ip[0]>>4 == 6 {
			source, headers = ip[8:24], 48
		}
		var p ib.Packet
		if err := p.Parse(body[headers:]); err != nil {
			t.Errorf("packet %d: %v", i, err)
		}
		from, _ := netip.AddrFromSlice(source)
		seen[Kind{from, p.Opcode}]++
	}
	return seen
}

// Kind is what CheckICRC counts by.
type Kind struct {
	From   netip.Addr
	Opcode ib.Opcode
}

// CheckTshark lets Wireshark's dissector read a file.
func CheckTshark(t testing.TB, file string) {
	t.Helper()
	cmd := exec.Command("tshark", "-r", file, "--disable-protocol", "rpcordma", "-T", "fields", "-e", "frame.number", "-e", "infiniband.bth.opcode", "-e", "_ws.malformed", "-e", "_ws.expert.message")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, stderr.String())
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	if want := len(Packets(t, file)); len(lines) != want || want == 0 {
		t.Fatalf("tshark has %d packets, the file %d", len(lines), want)
	}
	for _, line := range lines {
		fields := strings.Split(line, "\t")
		if len(fields) < 3 || fields[1] == "" {
			t.Errorf("tshark does not read this as InfiniBand: %q", line)
		} else if fields[2] != "" {
			t.Errorf("tshark calls this malformed: %q", line)
		}
	}
}
