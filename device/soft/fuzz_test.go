package soft

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/topology"
)

// FuzzReceive plays programs of packets against a port with live queue pairs of
// all three types, and checks after each what must always hold. The program is
// read by attack.step.
func FuzzReceive(f *testing.F) {
	a := newAttack(f)
	f.Fuzz(func(t *testing.T, program []byte) {
		// Long programs find nothing that short ones do not.
		a.play(t, program[:min(len(program), 1024)])
	})
}

// TestReceiveKeepsTheInvariants plays random programs, each of some fifty packets:
// as many as take about half a minute with the race detector, which makes them
// ten times slower, on two cores of 2026.
func TestReceiveKeepsTheInvariants(t *testing.T) {
	a := newAttack(t)
	const programs = 4000
	program := make([]byte, 400)
	for seed := range uint64(programs) {
		rng := rand.NewChaCha8([32]byte{1: byte(seed), 2: byte(seed >> 8), 3: byte(seed >> 16)})
		rng.Read(program)
		a.play(t, program)
		if t.Failed() {
			t.Fatalf("program of seed %d", seed)
		}
	}
	for typ, n := range a.reached {
		if n == 0 {
			t.Errorf("%v: nothing arrived: the programs do not get anywhere", typ)
		}
	}
}

// attack is a port under attack: on it are queue pairs that a stranger sends to,
// and a bystander that transfers all the same.
type attack struct {
	card    *card
	port    *port
	in      *ingress // beside the one of the port, which takes what the bystander gets
	peer    netip.Addr
	guarded *guarded
	near    *end // the bystander
	far     *end // whom it writes to
	reached map[ib.QPType]uint64
}

// guarded is a buffer with regions in it. All of it but the first is not for
// writing, and full of one byte.
type guarded struct {
	base           uint64
	size           uint64
	clean          []byte // its contents at first
	pd, stranger   device.PD
	open, readable device.Region // of pd
	foreign        device.Region // of another protection domain
}

const (
	guard      = 0xa5
	regionSize = 8192
	guardSize  = 16384
	attackMTU  = 256
	attackKey  = ib.QKey(0x11111111)
)

// newAttack has its bystander on the port under attack.
func newAttack(t testing.TB) *attack { return newAttackFrom(t, newStranger(t), 0) }

// newAttackFrom has its bystander on the nth scale-out port, of which the first is
// under attack.
func newAttackFrom(t testing.TB, s *stranger, nth int) *attack {
	t.Helper()
	dir := t.TempDir()
	const spec = "soft:hls-2,cards=1,memory=16MiB"
	ca, cb := openChassis(t, dir, spec).cards[0], openChassis(t, dir, spec).cards[0]
	a := &attack{card: ca, port: ca.ports[scaleOut(t, ca)], peer: s.addr, reached: map[ib.QPType]uint64{}}
	a.in = &ingress{port: a.port, socket: a.port.ipv4()}
	var ports []int
	for _, p := range ca.ports {
		if p.wiring.Class == topology.ScaleOut {
			ports = append(ports, p.number)
		}
	}
	a.near, a.far = newEnd(t, ca, ports[nth], 4096), newEnd(t, cb, ports[nth], 4096)
	connect(t, a.near, a.far, ib.MTU1024)
	a.guarded = newGuarded(t, ca)
	return a
}

func newGuarded(t testing.TB, c *card) *guarded {
	t.Helper()
	ctx := context.Background()
	g := &guarded{size: 3*regionSize + 4*guardSize}
	buf, err := c.Allocate(ctx, device.BufferSpec{UID: newUID(), Size: g.size})
	if err != nil {
		t.Fatal(err)
	}
	g.base = buf.Address
	g.clean = bytes.Repeat([]byte{guard}, int(g.size))
	if err := c.WriteMemory(ctx, g.base, g.clean); err != nil {
		t.Fatal(err)
	}
	pds := c.CreateProtectionDomains(ctx, []device.UID{newUID(), newUID()})
	g.pd, g.stranger = pds[0].PD, pds[1].PD
	at := g.base + guardSize
	for _, r := range []struct {
		to     *device.Region
		pd     device.PD
		access ib.Access
	}{{&g.open, g.pd, fullAccess}, {&g.readable, g.pd, ib.RemoteRead}, {&g.foreign, g.stranger, fullAccess}} {
		made := c.RegisterRegions(ctx, []device.RegionSpec{{UID: newUID(), PD: r.pd, Address: at, Length: regionSize, Access: r.access}})[0]
		if made.Err != nil {
			t.Fatal(made.Err)
		}
		*r.to = made.Region
		at += regionSize + guardSize
	}
	return g
}

// check looks whether only the open region was written.
func (g *guarded) check(t *testing.T, c *card) {
	t.Helper()
	p := make([]byte, g.size)
	if err := c.ReadMemory(context.Background(), g.base, p); err != nil {
		t.Fatal(err)
	}
	copy(p[g.open.Address-g.base:][:regionSize], g.clean)
	if !bytes.Equal(p, g.clean) {
		i := slices.IndexFunc(p, func(b byte) bool { return b != guard })
		t.Fatalf("byte %d of the buffer, outside the region that may be written, is %#x", i, p[i])
	}
}

// victim is a queue pair under attack, and what its user has done.
type victim struct {
	*queuePair
	psn      ib.PSN // that a packet in order has, as far as the program kept order
	sent     ib.PSN // of the next request it makes itself
	posted   [2]uint64
	signaled [2][]bool
	done     [2]int
}

// program reads decisions; after its end all are 0.
type program []byte

func (p *program) byte() int {
	if len(*p) == 0 {
		return 0
	}
	b := (*p)[0]
	*p = (*p)[1:]
	return int(b)
}

const attackPSN = 1<<24 - 8 // sequence numbers wrap early

func (a *attack) newVictims(t *testing.T) (victims [3]*victim, uids []device.UID) {
	t.Helper()
	ctx := context.Background()
	specs := make([]device.QueuePairSpec, len(victims))
	for i := range specs {
		typ := ib.RC + ib.QPType(i)
		rtr := device.ToRTR{Remote: device.Remote{GID: ib.GIDFromAddr(a.peer), QPN: 77, PSN: attackPSN}, GIDIndex: 1, PathMTU: ib.MTU256, MaxDestRDAtomic: 2}
		specs[i] = device.QueuePairSpec{
			UID: newUID(), PD: a.guarded.pd, Port: a.port.number, Type: typ, SendWR: 4, RecvWR: 4, SGE: 2,
			// No time-out: what happens depends on the program alone.
			Steps: []device.Transition{device.ToInit{PKey: ib.DefaultPKey, Access: fullAccess, QKey: attackKey}, rtr, device.ToRTS{PSN: attackPSN, RNRRetry: 7, MaxRDAtomic: 2}},
		}
		uids = append(uids, specs[i].UID)
	}
	for i, r := range a.card.CreateQueuePairs(ctx, specs) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		victims[i] = &victim{queuePair: a.card.qps.byNumber(r.QPN), psn: attackPSN, sent: attackPSN}
	}
	return victims, uids
}

// play runs one program against queue pairs of its own.
func (a *attack) play(t *testing.T, data []byte) {
	victims, uids := a.newVictims(t)
	p := program(data)
	before := a.port.counters.read()
	for len(p) > 0 && !t.Failed() {
		v := victims[p.byte()%len(victims)]
		switch what := p.byte(); {
		case what%4 != 0:
			a.send(v, &p)
		case what == 0:
			_ = v.steps([]device.Transition{device.ToSQD{}}, time.Now()) // refused in ERR and SQE
		case what == 4:
			_ = v.steps([]device.Transition{device.ToRTS{}}, time.Now()) // refused in ERR
		default:
			a.post(v, &p)
		}
	}
	for _, v := range victims {
		v.check(t)
		a.reached[v.info.Type] += uint64(v.done[1])
	}
	a.guarded.check(t, a.card)
	a.transfer(t)
	checkCounters(t, before, a.port.counters.read())
	a.checkAccounts(t)
	for _, err := range a.card.DestroyQueuePairs(context.Background(), uids) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// post lets the user of a queue pair post work.
func (a *attack) post(v *victim, p *program) {
	kind, size := p.byte(), uint32(p.byte())*8
	g := a.guarded
	wr := device.WorkRequest{
		Opcode: device.WorkOpcode(1 + kind%7), Signaled: kind&0x80 != 0, Compare: 1,
		SGL:        []device.SGE{{Address: g.open.Address, Length: size / 3, LKey: g.open.LKey}, {Address: g.open.Address + 4096, Length: size - size/3, LKey: g.open.LKey}},
		RemoteAddr: 1 << 20, RKey: 5,
	}
	queue := 0
	switch {
	case kind&0x40 != 0:
		wr.Opcode, queue = device.WorkRecv, 1
	case kind&0x38 == 0x38:
		wr.SGL[0].LKey ^= 1
	case wr.Opcode == device.WorkCompareSwap || wr.Opcode == device.WorkFetchAdd:
		wr.SGL = []device.SGE{{Address: g.open.Address, Length: 8, LKey: g.open.LKey}}
	}
	if v.info.Type == ib.UD && queue == 0 {
		wr.Dest = &device.Datagram{GID: ib.GIDFromAddr(a.peer), QPN: 77, QKey: attackKey}
	}
	wr.ID = v.posted[queue]
	if v.post([]device.WorkRequest{wr}) == nil {
		v.posted[queue]++
		v.signaled[queue] = append(v.signaled[queue], wr.Signaled || queue == 1)
	}
}

// send lets one to four packets arrive in one call.
func (a *attack) send(v *victim, p *program) {
	how := p.byte()
	count := 1
	if how&3 == 3 {
		count = 2 + how>>2&1*2
	}
	from, tos := a.peer, uint8(how>>6&3)
	switch {
	case how&0x38 == 0x38:
		from = a.peer.Next()
	case how&0x38 == 0x30:
		from = a.port.ipv4().addr
	}
	var b []byte
	segment := 0
	for i := range count {
		d := a.datagram(v, p, from, uint16(i))
		if i == 0 {
			segment = len(d)
		}
		b = append(b, d...)
		if len(d) != segment { // as the kernel joins them: the shorter one is the last
			break
		}
	}
	if len(b) > 0 {
		a.in.take(b, arrival{from: netip.AddrPortFrom(from, ib.UDPPort), segment: segment, tos: tos, ttl: 64})
	}
}

// datagram makes a packet that is near to what v may expect, spoils it now and
// then, and mostly gives it the invariant CRC that it needs to get in.
func (a *attack) datagram(v *victim, p *program, from netip.Addr, id uint16) []byte {
	packet := a.packet(v, p)
	b := packet.Append(nil)
	spoil := p.byte()
	for range spoil & 3 * (spoil >> 2 & 1) {
		b[p.byte()%len(b)] ^= 1 << (p.byte() % 8)
	}
	switch spoil >> 3 {
	case 0:
		b = b[:p.byte()%len(b)]
	case 1:
		b = append(b, make([]byte, p.byte()%9)...)
	case 2:
		b[p.byte()%min(len(b), 32)] = byte(p.byte())
	case 3:
		id += uint16(p.byte())
	}
	pseudo := ib.PseudoIPv4{Src: from.As4(), Dst: a.port.ipv4().addr.As4(), SrcPort: ib.UDPPort, DstPort: ib.UDPPort, DontFragment: true, ID: id}
	var icrc uint32
	if spoil>>3 != 4 && len(b) >= ib.BTHLen {
		icrc = pseudo.ICRC(b)
	}
	return ib.AppendICRC(b, icrc)
}

var attackOpcodes = map[ib.QPType][]ib.Opcode{
	ib.RC: {
		ib.RCSendFirst, ib.RCSendMiddle, ib.RCSendLast, ib.RCSendLastImm, ib.RCSendOnly, ib.RCSendOnlyImm,
		ib.RCRDMAWriteFirst, ib.RCRDMAWriteMiddle, ib.RCRDMAWriteLast, ib.RCRDMAWriteLastImm, ib.RCRDMAWriteOnly, ib.RCRDMAWriteOnlyImm,
		ib.RCRDMAReadRequest, ib.RCRDMAReadResponseFirst, ib.RCRDMAReadResponseMiddle, ib.RCRDMAReadResponseLast, ib.RCRDMAReadResponseOnly,
		ib.RCAcknowledge, ib.RCAcknowledge, ib.RCAtomicAcknowledge, ib.RCCompareSwap, ib.RCFetchAdd, ib.RCSendOnly, ib.RCRDMAWriteOnly,
	},
	ib.UC: {
		ib.UCSendFirst, ib.UCSendMiddle, ib.UCSendLast, ib.UCSendLastImm, ib.UCSendOnly, ib.UCSendOnlyImm,
		ib.UCRDMAWriteFirst, ib.UCRDMAWriteMiddle, ib.UCRDMAWriteLast, ib.UCRDMAWriteLastImm, ib.UCRDMAWriteOnly, ib.UCRDMAWriteOnlyImm,
	},
	ib.UD: {ib.UDSendOnly, ib.UDSendOnlyImm},
}

func (a *attack) packet(v *victim, p *program) ib.Packet {
	opcodes := attackOpcodes[v.info.Type]
	kind, flags, size, psn := p.byte(), p.byte(), p.byte(), p.byte()
	packet := ib.Packet{BTH: ib.BTH{
		Opcode: opcodes[kind%len(opcodes)], PKey: ib.DefaultPKey, DestQP: v.info.QPN, AckReq: flags&1 != 0, SolicitedEvent: flags&2 != 0,
	}}
	op := packet.Opcode
	next := &v.psn
	if op.IsResponse() {
		next = &v.sent
	}
	packet.PSN = *next
	if psn < 64 {
		packet.PSN = packet.PSN.Add(int(int8(psn<<2)) / 16)
	} else {
		*next = next.Next()
	}
	g := a.guarded
	target := g.open
	switch size >> 6 {
	case 1:
		target = g.readable
	case 2:
		target = g.foreign
	}
	if flags&0x1c == 0x1c { // a small slip
		switch flags >> 5 {
		case 0:
			packet.PKey = 0x8001
		case 1:
			packet.DestQP ^= 1
		case 2:
			packet.Version = 1
		case 3:
			packet.Opcode = ib.Opcode(p.byte())
		case 4:
			target.RKey ^= 1
		case 5:
			packet.PSN = ib.PSN(p.byte()) << 16
		case 6:
			packet.Opcode = ib.CNP
		}
	}
	if op.HasPayload() {
		sizes := []int{attackMTU, attackMTU, attackMTU, 4, 1, 0, attackMTU - 1, attackMTU + 1}
		packet.Payload = bytes.Repeat([]byte{0x77}, sizes[size%8])
	}
	packet.RETH = ib.RETH{VA: target.Address + uint64(p.byte())<<5, RKey: target.RKey, Length: uint32(len(packet.Payload))}
	switch size >> 3 & 7 {
	case 0:
		packet.RETH.Length += uint32(p.byte())
	case 1:
		packet.RETH.Length = 1<<31 - 128 + uint32(p.byte())
	case 2:
		packet.RETH.VA = binary.BigEndian.Uint64([]byte{byte(p.byte()), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, byte(p.byte())})
	case 3:
		packet.RETH.VA = target.Address - uint64(p.byte())
	}
	packet.AtomicETH = ib.AtomicETH{VA: packet.RETH.VA, RKey: target.RKey, Swap: 1, Compare: 2}
	packet.AETH = ib.AETH{Syndrome: ib.AckSyndrome(ib.UnlimitedCredits)}
	if psn&3 == 1 {
		packet.AETH.Syndrome = ib.Syndrome(p.byte())
	}
	packet.DETH = ib.DETH{QKey: attackKey, SrcQP: 99}
	if psn&15 == 2 {
		packet.DETH.QKey++
	}
	return packet
}

// check takes completions and looks at what must always hold for a queue pair.
func (v *victim) check(t *testing.T) {
	t.Helper()
	for {
		list, _ := v.pop(16)
		if len(list) == 0 {
			break
		}
		for _, wc := range list {
			q := 0
			if wc.Receive {
				q = 1
			}
			// Silent successes may be passed over; nothing else may.
			for v.done[q] < len(v.signaled[q]) && uint64(v.done[q]) != wc.ID && !v.signaled[q][v.done[q]] {
				v.done[q]++
			}
			if v.done[q] >= len(v.signaled[q]) || uint64(v.done[q]) != wc.ID {
				t.Fatalf("%v: completion %+v of queue %d, after %d of %d", v.info.Type, wc, q, v.done[q], v.posted[q])
			}
			v.done[q]++
		}
	}
	qp := v.read()
	failed := qp.State == ib.Err || qp.State == ib.SQE
	if failed != (qp.Status != ib.Success) || failed != (qp.Reason != "") || !failed && qp.State != ib.RTS && qp.State != ib.SQD {
		t.Fatalf("queue pair %+v", qp)
	}
}

// transfer lets the bystander write.
func (a *attack) transfer(t *testing.T) {
	t.Helper()
	a.near.t, a.far.t = t, t
	a.near.post(device.WorkRequest{Opcode: device.WorkWrite, SGL: a.near.sge(0, 4096), RemoteAddr: a.far.region.Address, RKey: a.far.region.RKey, Signaled: true})
	a.near.succeed(1)
}

// checkCounters looks whether a counter went back.
func checkCounters(t *testing.T, before, after device.PortCounters) {
	t.Helper()
	b, a := reflect.ValueOf(before), reflect.ValueOf(after)
	for i := range b.NumField() {
		if a.Field(i).Uint() < b.Field(i).Uint() {
			t.Errorf("%s went back from %d to %d", b.Type().Field(i).Name, b.Field(i).Uint(), a.Field(i).Uint())
		}
	}
}

// checkAccounts looks whether every packet that the port received is counted for
// one reason. It waits for a packet that is being taken in.
func (a *attack) checkAccounts(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		received, accounted := a.port.rcvPackets.Load(), a.port.accounted()
		if received == accounted {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d packets were received, %d are accounted for: %+v", received, accounted, a.port.counters.read())
		}
	}
}

// accounted counts the packets that have a reason: those that were turned away,
// and those that did something.
func (c *counters) accounted() (n uint64) {
	for i := range c.packets {
		n += c.packets[i].Load()
	}
	return n + c.wiringViolations.Load() + c.truncated.Load() + c.icrcErrors.Load() + c.unsupportedVersions.Load() +
		c.unknownOpcodes.Load() + c.malformed.Load() + c.cnpsReceived.Load() + c.unknownQPs.Load() + c.pkeyViolations.Load()
}
