package fabric_test

import (
	"bytes"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft"
	"github.com/accelfab/accelfab/device/topology"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/boltstore"
)

// The whole below the doors: software cards, a file, and an RDMA WRITE over a
// cable of the port map; then the daemon ends and the cards lose everything.
func TestWriteOverACableOfTheMap(t *testing.T) {
	dir := t.TempDir()
	m, err := topology.Lookup("hls-2")
	if err != nil {
		t.Fatal(err)
	}
	open := func() *fabric.Fabric {
		ch := must(soft.Open(soft.Config{Map: m, Cards: 2, MemoryBytes: 1 << 20, LockDir: t.TempDir()}))
		f, err := fabric.Open(ctx(), fabric.Config{NodeID: "n1", BootID: "b", Store: must(boltstore.Open(filepath.Join(dir, "store"), boltstore.Options{})), Devices: ch.Devices()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close(); ch.Close() })
		return f
	}
	f := open()
	ports := must(f.ListPorts(ctx(), alice, fabric.List{Parent: "nodes/local/devices/-", PageSize: 1000}, func(p *fabric.Port) bool { return p.Class == device.PortInternal && p.PeerDevice != "" }))
	if len(ports.Items) == 0 {
		t.Fatal("no cable between the two cards")
	}
	a := ports.Items[0]
	devices := [2]string{a.Name[:len(a.Name)-len("/ports/")-len(strconv.Itoa(a.Number))], a.PeerDevice}
	number := [2]int{a.Number, a.PeerPort}
	s := must(f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/local"}, TTL: time.Hour}))
	var qps [2]fabric.QueuePair
	var bufs [2]fabric.Buffer
	var regions [2]fabric.MemoryRegion
	for i, d := range devices {
		pd := must(f.CreateProtectionDomain(ctx(), alice, fabric.CreateProtectionDomain{Create: fabric.Create{Parent: d}, Session: s.Name}))
		bufs[i] = must(f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: d}, Session: s.Name, Size: 65536}))
		regions[i] = must(f.CreateMemoryRegion(ctx(), alice, fabric.CreateMemoryRegion{Create: fabric.Create{Parent: d}, ProtectionDomain: pd.Name, Buffer: bufs[i].Name, Access: ib.LocalWrite | ib.RemoteWrite}))
		qps[i] = must(f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{{Create: fabric.Create{Parent: d}, ProtectionDomain: pd.Name, Port: number[i], Type: ib.RC}}))[0]
	}
	wrong := qps[1].Local
	wrong.GID[15] ^= 0x40
	_, err = f.ConnectQueuePairs(ctx(), alice, false, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: qps[0].Name}, Remote: wrong}})
	refused(t, err, fabric.PathNotCabled, "remote_endpoint.gid")
	for i := range qps {
		q := must(f.ConnectQueuePairs(ctx(), alice, false, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: qps[i].Name}, Remote: qps[1-i].Local}}))[0]
		if q.QPState != ib.RTS {
			t.Fatalf("%+v", q)
		}
	}
	want := bytes.Repeat([]byte("accelfab"), 8192)
	must(0, f.WriteBuffer(ctx(), alice, fabric.BufferRange{Buffer: bufs[0].Name}, want))
	must(f.PostWork(ctx(), alice, fabric.PostWork{QueuePair: qps[0].Name, Requests: []device.WorkRequest{{ID: 1, Opcode: device.WorkWrite, Signaled: true,
		SGL: []device.SGE{{Address: regions[0].IOVA, Length: 65536, LKey: regions[0].LKey}}, RemoteAddr: regions[1].IOVA, RKey: regions[1].RKey}}}))
	done := must(f.PollCompletions(ctx(), alice, fabric.PollCompletions{QueuePair: qps[0].Name, Wait: time.Minute}))
	if len(done) != 1 || done[0].Status != ib.Success {
		t.Fatalf("%+v", done)
	}
	got := make([]byte, len(want))
	must(0, f.ReadBuffer(ctx(), alice, fabric.BufferRange{Buffer: bufs[1].Name}, got))
	if !bytes.Equal(got, want) {
		t.Fatal("what arrived is not what was sent")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = open()
	if b := must(f.GetBuffer(ctx(), alice, bufs[0].Name)); b.State != fabric.StateLost {
		t.Errorf("%+v: want LOST", b)
	}
	if q := must(f.GetQueuePair(ctx(), alice, qps[0].Name)); q.QPState != ib.Init || q.Remote != nil {
		t.Errorf("%+v: want INIT without a peer", q)
	}
	must(0, f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: s.Name}}))
	if p := must(f.ListQueuePairs(ctx(), root, fabric.List{Parent: "nodes/n1/devices/-"}, nil)); len(p.Items) != 0 {
		t.Errorf("%+v", p.Items)
	}
}
