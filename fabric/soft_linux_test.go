package fabric_test

import (
	"bytes"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft"
	"github.com/accelfab/accelfab/device/topology"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/boltstore"
)

// pair is a node of two software cards and what one session has on both, by the
// two ends of a cable between them.
type pair struct {
	f       *fabric.Fabric
	session fabric.Session
	bufs    [2]fabric.Buffer
	regions [2]fabric.MemoryRegion
	create  [2]fabric.CreateQueuePair // a valid request of each card
}

// openPair opens the node in a directory; what the cards had before is lost.
func openPair(t *testing.T, dir string) *fabric.Fabric {
	t.Helper()
	m := must(topology.Lookup("hls-2"))
	ch := must(soft.Open(soft.Config{Map: m, Cards: 2, MemoryBytes: 1 << 20, LockDir: t.TempDir()}))
	f := must(fabric.Open(ctx(), fabric.Config{NodeID: "n1", BootID: "b", Store: must(boltstore.Open(filepath.Join(dir, "store"), boltstore.Options{})), Devices: ch.Devices()}))
	t.Cleanup(func() { f.Close(); ch.Close() })
	return f
}

func newPair(t *testing.T, dir string) *pair {
	t.Helper()
	p := &pair{f: openPair(t, dir)}
	ports := must(p.f.ListPorts(ctx(), alice, fabric.List{Parent: "nodes/local/devices/-", PageSize: 1000}, func(p *fabric.Port) bool { return p.Class == device.PortInternal && p.PeerDevice != "" }))
	if len(ports.Items) == 0 {
		t.Fatal("no cable between the two cards")
	}
	near := ports.Items[0]
	number := [2]int{near.Number, near.PeerPort}
	p.session = must(p.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/local"}, TTL: time.Hour}))
	for i, d := range [2]string{near.Name[:len(near.Name)-len("/ports/")-len(strconv.Itoa(near.Number))], near.PeerDevice} {
		on := fabric.Create{Parent: d}
		pd := must(p.f.CreateProtectionDomain(ctx(), alice, fabric.CreateProtectionDomain{Create: on, Session: p.session.Name}))
		p.bufs[i] = must(p.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: on, Session: p.session.Name, Size: 65536}))
		p.regions[i] = must(p.f.CreateMemoryRegion(ctx(), alice, fabric.CreateMemoryRegion{Create: on, ProtectionDomain: pd.Name, Buffer: p.bufs[i].Name, Access: ib.LocalWrite | ib.RemoteWrite}))
		p.create[i] = fabric.CreateQueuePair{Create: on, ProtectionDomain: pd.Name, Port: number[i]}
	}
	return p
}

// queuePairs makes one of a type on each card.
func (p *pair) queuePairs(typ ib.QPType) (qps [2]fabric.QueuePair) {
	for i, r := range p.create {
		r.Type = typ
		qps[i] = must(p.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{r}))[0]
	}
	return qps
}

// connect connects two queue pairs with each other.
func (p *pair) connect(t *testing.T, qps [2]fabric.QueuePair) {
	t.Helper()
	for i := range qps {
		q := must(p.f.ConnectQueuePairs(ctx(), alice, false, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: qps[i].Name}, Remote: qps[1-i].Local}}))[0]
		if q.QPState != ib.RTS {
			t.Fatalf("%+v", q)
		}
	}
}

// sgl is the first bytes of a card's memory.
func (p *pair) sgl(card int, length uint32) []device.SGE {
	return []device.SGE{{Address: p.regions[card].IOVA, Length: length, LKey: p.regions[card].LKey}}
}

func (p *pair) post(q fabric.QueuePair, r device.WorkRequest) {
	must(p.f.PostWork(ctx(), alice, fabric.PostWork{QueuePair: q.Name, Requests: []device.WorkRequest{r}}))
}

// next waits for the completion after a sequence.
func (p *pair) next(t *testing.T, q fabric.QueuePair, after uint64) fabric.Completion {
	t.Helper()
	done := must(p.f.PollCompletions(ctx(), alice, fabric.PollCompletions{QueuePair: q.Name, After: after, Wait: time.Minute}))
	if len(done) != 1 || done[0].Status != ib.Success {
		t.Fatalf("%+v: want one success", done)
	}
	return done[0]
}

func (p *pair) write(card int, data []byte) {
	must(0, p.f.WriteBuffer(ctx(), alice, fabric.BufferRange{Buffer: p.bufs[card].Name}, data))
}

func (p *pair) read(card, length int) []byte {
	got := make([]byte, length)
	must(0, p.f.ReadBuffer(ctx(), alice, fabric.BufferRange{Buffer: p.bufs[card].Name}, got))
	return got
}

// The whole below the doors: software cards, a file, and an RDMA WRITE over a
// cable of the port map; then the daemon ends and the cards lose everything.
func TestWriteOverACableOfTheMap(t *testing.T) {
	dir := t.TempDir()
	p := newPair(t, dir)
	qps := p.queuePairs(ib.RC)
	wrong := qps[1].Local
	wrong.GID[15] ^= 0x40
	_, err := p.f.ConnectQueuePairs(ctx(), alice, false, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: qps[0].Name}, Remote: wrong}})
	refused(t, err, fabric.PathNotCabled, "remote_endpoint.gid")
	p.connect(t, qps)
	want := bytes.Repeat([]byte("accelfab"), 8192)
	p.write(0, want)
	p.post(qps[0], device.WorkRequest{ID: 1, Opcode: device.WorkWrite, Signaled: true, SGL: p.sgl(0, 65536), RemoteAddr: p.regions[1].IOVA, RKey: p.regions[1].RKey})
	p.next(t, qps[0], 0)
	if !bytes.Equal(p.read(1, len(want)), want) {
		t.Fatal("what arrived is not what was sent")
	}
	if err := p.f.Close(); err != nil {
		t.Fatal(err)
	}
	f := openPair(t, dir)
	if b := must(f.GetBuffer(ctx(), alice, p.bufs[0].Name)); b.State != fabric.StateLost {
		t.Errorf("%+v: want LOST", b)
	}
	if q := must(f.GetQueuePair(ctx(), alice, qps[0].Name)); q.QPState != ib.Init || q.Remote != nil {
		t.Errorf("%+v: want INIT without a peer", q)
	}
	must(0, f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: p.session.Name}}))
	if l := must(f.ListQueuePairs(ctx(), root, fabric.List{Parent: "nodes/n1/devices/-"}, nil)); len(l.Items) != 0 {
		t.Errorf("%+v", l.Items)
	}
}

// A connected queue pair without acknowledgements: it writes, and says so by a
// receive of the peer.
func TestUCWriteWithImmediate(t *testing.T) {
	p := newPair(t, t.TempDir())
	qps := p.queuePairs(ib.UC)
	p.connect(t, qps)
	want := bytes.Repeat([]byte("accelfab"), 2048)
	p.write(0, want)
	p.post(qps[1], device.WorkRequest{ID: 2, Opcode: device.WorkRecv, SGL: p.sgl(1, 0)})
	p.post(qps[0], device.WorkRequest{ID: 1, Opcode: device.WorkWriteImm, Imm: 0xbeef, Signaled: true, Solicited: true, SGL: p.sgl(0, uint32(len(want))),
		RemoteAddr: p.regions[1].IOVA, RKey: p.regions[1].RKey})
	p.next(t, qps[0], 0)
	if c := p.next(t, qps[1], 0); c.ID != 2 || c.Opcode != ib.WCRecvRDMAWithImm || !c.HasImm || c.Imm != 0xbeef || !c.Solicited || c.Source != (device.Datagram{}) || c.HasGRH {
		t.Errorf("%+v", c)
	}
	if !bytes.Equal(p.read(1, len(want)), want) {
		t.Error("what arrived is not what was sent")
	}
}

// A datagram goes to who is named and knows the Q_Key, and its completion tells
// who sent it. After a restart the same Q_Key is right.
func TestDatagrams(t *testing.T) {
	dir := t.TempDir()
	p := newPair(t, dir)
	qps := p.queuePairs(ib.UD)
	to := func(q fabric.QueuePair) *device.Datagram {
		return &device.Datagram{GID: q.Local.GID, QPN: q.Local.QPN, QKey: *q.Attributes.QKey}
	}
	for _, q := range qps { // as the port's table has it
		if port := must(p.f.GetPort(ctx(), alice, q.PortName)); !slices.Contains(port.GIDs, device.GIDEntry{Index: q.Local.GIDIndex, GID: q.Local.GID, Type: ib.RoCEv2}) {
			t.Errorf("local endpoint %+v: the port has %+v", q.Local, port.GIDs)
		}
	}
	const grh = 40
	want := []byte("a datagram")
	p.write(0, want)
	send := device.WorkRequest{ID: 1, Opcode: device.WorkSendImm, Imm: 7, Signaled: true, SGL: p.sgl(0, uint32(len(want))), Dest: to(qps[1])}
	send.Dest.QKey++ // wrong: dropped and counted
	p.post(qps[1], device.WorkRequest{ID: 2, Opcode: device.WorkRecv, SGL: p.sgl(1, 4096)})
	p.post(qps[0], send)
	p.next(t, qps[0], 0)
	send.Dest = to(qps[1])
	p.post(qps[0], send)
	p.next(t, qps[0], 1)
	c := p.next(t, qps[1], 0)
	if c.ID != 2 || c.Opcode != ib.WCRecv || int(c.Length) != grh+len(want) || !c.HasGRH || c.Imm != 7 || c.Source.GID != qps[0].Local.GID || c.Source.QPN != qps[0].Local.QPN {
		t.Errorf("%+v", c)
	}
	if got := p.read(1, grh+len(want))[grh:]; !bytes.Equal(got, want) {
		t.Errorf("%q arrived", got)
	}
	if port := must(p.f.GetPort(ctx(), alice, qps[1].PortName)); port.Counters.QKeyViolations != 1 {
		t.Errorf("%+v", port.Counters)
	}

	if err := p.f.Close(); err != nil {
		t.Fatal(err)
	}
	p.f = openPair(t, dir)
	for i := range qps {
		q := must(p.f.GetQueuePair(ctx(), alice, qps[i].Name))
		if q.QPState != ib.RTS || *q.Attributes.QKey != *qps[i].Attributes.QKey || q.Condition.Reason != "" {
			t.Errorf("%+v: want RTS with the Q_Key of before", q)
		}
		qps[i] = q
	}
	p.post(qps[1], device.WorkRequest{ID: 3, Opcode: device.WorkRecv}) // the memory is gone: room for nothing
	p.post(qps[0], device.WorkRequest{ID: 4, Opcode: device.WorkSend, Signaled: true, Dest: to(qps[1])})
	p.next(t, qps[0], 0)
	done := must(p.f.PollCompletions(ctx(), alice, fabric.PollCompletions{QueuePair: qps[1].Name, Wait: time.Minute}))
	if len(done) != 1 || done[0].ID != 3 || done[0].Status != ib.LocLenErr {
		t.Errorf("%+v: want the receive that was too small", done)
	}
}

// L18: a session whose sends wait for a receive that nobody posts, with 100 regions in
// their list, is off the device after its drain, to the last domain.
func TestL18ASessionWithSendsUnderWay(t *testing.T) {
	p := newPair(t, t.TempDir())
	qps := p.queuePairs(ib.RC)
	p.connect(t, qps)
	for range 99 {
		must(p.f.CreateMemoryRegion(ctx(), alice, fabric.CreateMemoryRegion{Create: p.create[0].Create, ProtectionDomain: p.create[0].ProtectionDomain, Buffer: p.bufs[0].Name, Access: ib.LocalWrite}))
	}
	for i := range 100 {
		p.post(qps[0], device.WorkRequest{ID: uint64(i), Opcode: device.WorkSend, Signaled: true, SGL: p.sgl(0, 64)})
	}
	must(0, p.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: p.session.Name}}))
	for _, d := range must(p.f.ListDevices(ctx(), root, fabric.List{Parent: "nodes/n1"}, nil)).Items {
		if d.Usage != (fabric.Usage{}) {
			t.Errorf("%s still has %+v", d.Name, d.Usage)
		}
	}
	told := must(p.f.ListEvents(ctx(), root, fabric.ListEvents{Limit: 1000}, func(e *fabric.Event) bool { return e.Reason == fabric.Timeout })).Items
	if len(told) != 1 || !strings.Contains(told[0].Message, "100 sends that were under way are dropped") {
		t.Errorf("%+v", told)
	}
}
