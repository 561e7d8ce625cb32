package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
)

// pingpongAddress is one end, as the pingpong programs tell it to each other.
type pingpongAddress struct {
	LID uint16     `json:"lid"` // 0 with RoCE
	QPN uint32     `json:"qpn"`
	PSN uint32     `json:"psn"` // of the first packet that this end sends
	GID netip.Addr `json:"gid"`
}

func (a pingpongAddress) String() string {
	return fmt.Sprintf("LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s", a.LID, a.QPN, a.PSN, a.GID)
}

// What goes over TCP: an address as text with a NUL, the client's first and then
// the server's, and the client's last word.
const (
	pingpongTextSize = len("0000:000000:000000:00000000000000000000000000000000") + 1
	pingpongDone     = "done\x00"
)

func (a pingpongAddress) text() []byte {
	gid := a.GID.As16()
	return fmt.Appendf(nil, "%04x:%06x:%06x:%x\x00", a.LID, a.QPN, a.PSN, gid[:])
}

var pingpongText = regexp.MustCompile(`^([[:xdigit:]]{4}):([[:xdigit:]]{6}):([[:xdigit:]]{6}):([[:xdigit:]]{32})\x00$`)

// parsePingpongText reads a peer's address. Only one that a queue pair can be
// connected with passes.
func parsePingpongText(text []byte) (pingpongAddress, error) {
	part := pingpongText.FindSubmatch(text)
	if part == nil {
		return pingpongAddress{}, fmt.Errorf("the peer says %q, which is no LID:QPN:PSN:GID: is it an ibv_*_pingpong?", text)
	}
	var n [3]uint64
	for i := range n {
		n[i], _ = strconv.ParseUint(string(part[i+1]), 16, 24) // the pattern leaves digits alone
	}
	var gid [16]byte
	_, _ = hex.Decode(gid[:], part[4])
	a := pingpongAddress{LID: uint16(n[0]), QPN: uint32(n[1]), PSN: uint32(n[2]), GID: netip.AddrFrom16(gid)}
	switch {
	case a.GID.IsUnspecified():
		return a, errors.New("the peer tells no GID: give it -g with the index of a RoCE v2 entry of its GID table, such as -g 1")
	case a.QPN < 2 || a.QPN > 0xfffffe:
		return a, fmt.Errorf("the peer tells QPN %#x: want 0x2 to 0xfffffe", a.QPN)
	}
	return a, nil
}

// introduce tells this end's address to the peer and calls connect with the
// peer's, at the moment at which the peer relies on it: a server before it
// answers, a client before it says that it is done.
func introduce(ctx context.Context, p tcpPeer, server bool, own pingpongAddress, connect func(pingpongAddress) error) error {
	defer p.until(ctx)()
	if !server {
		if err := p.send(ctx, own.text()); err != nil {
			return err
		}
	}
	text, err := p.receive(ctx, pingpongTextSize)
	if err != nil {
		return err
	}
	peer, err := parsePingpongText(text)
	if err != nil {
		return err
	}
	if err := connect(peer); err != nil {
		return err
	}
	if !server {
		return p.send(ctx, []byte(pingpongDone))
	}
	if err := p.send(ctx, own.text()); err != nil {
		return err
	}
	last, err := p.receive(ctx, len(pingpongDone))
	if err == nil && string(last) != pingpongDone {
		err = fmt.Errorf("the peer says %q, want %q", last, pingpongDone)
	}
	return err
}
