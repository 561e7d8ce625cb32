package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

const (
	// checkLimit bounds one check, trialTTL its sessions if this program dies.
	checkLimit = 2 * time.Minute
	trialTTL   = 3 * time.Minute
	// trialBytes is the size of a buffer, a multiple of trafficMessage.
	trialBytes = 1 << 20
)

// conformance is a suite of checks of two devices.
type conformance struct {
	client             *client.Client
	server             string // as the command line has it, for children
	exporter, importer string // names
	devices            []*pb.Device
	path               *trialPath // nil if no port leads to the importer
	disruptive         bool
}

// trialPath is a way for packets to the importer.
type trialPath struct{ device, port, importerPort string }

// openConformance chooses the devices, where the command line does not.
func openConformance(ctx context.Context, c *client.Client, server, exporter, importer string) (*conformance, error) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	h := &conformance{client: c, server: server}
	list, err := c.Devices.ListDevices(ctx, &pb.ListDevicesRequest{Parent: localNode, PageSize: pageSize})
	if err != nil {
		return nil, err
	}
	h.devices = list.GetDevices()
	choose := func(what, arg string, fits func(*pb.Device) bool) (string, error) {
		if arg != "" {
			name, err := deviceKind.name(arg)
			if err != nil {
				return "", err
			}
			d, err := c.Devices.GetDevice(ctx, &pb.GetDeviceRequest{Name: name})
			return d.GetName(), err
		}
		for _, d := range h.devices {
			if fits(d) {
				return d.GetName(), nil
			}
		}
		return "", fmt.Errorf("no device of the node can be the %s; name one with --%s", what, what)
	}
	if h.exporter, err = choose("exporter", exporter, func(d *pb.Device) bool {
		return slices.Contains(d.GetCapabilities(), "EXPORT")
	}); err != nil {
		return nil, err
	}
	if h.importer, err = choose("importer", importer, func(d *pb.Device) bool {
		a, err := c.Nodes.CheckPeerAccess(ctx, &pb.CheckPeerAccessRequest{Name: localNode, Exporter: h.exporter, Importer: d.GetName()})
		return d.GetName() != h.exporter && err == nil && a.GetReachable()
	}); err != nil {
		return nil, err
	}
	return h, h.findPath(ctx)
}

// findPath looks for a port whose packets reach the importer, by trying.
func (h *conformance) findPath(ctx context.Context) error {
	topo, err := h.client.Nodes.GetTopology(ctx, &pb.GetTopologyRequest{Name: localNode + "/topology"})
	if err != nil {
		return err
	}
	for _, p := range pathsTo(topo, h.importer) {
		h.path = &p
		err := h.check(ctx, conformanceCheck{run: func(t *trial, ctx context.Context) error { return t.connect(ctx) }})
		if err == nil {
			return nil
		}
		h.path = nil
		if r := client.Reason(err); r != pb.ErrorReason_ERROR_REASON_PATH_NOT_CABLED && r != pb.ErrorReason_ERROR_REASON_GID_FAMILY_MISMATCH {
			return fmt.Errorf("a way to the importer: %w", err)
		}
	}
	return nil
}

// pathsTo lists what may be a way to a device: by cables first, then from port to
// port outside, one of each device.
func pathsTo(topo *pb.Topology, importer string) (paths []trialPath) {
	var ports []*pb.Topology_Link
	for _, c := range topo.GetCards() {
		if c.GetDevice() == importer {
			ports = c.GetPorts()
		}
	}
	active := func(p *pb.Topology_Link, class pb.Port_Class) bool {
		return p.GetState() == pb.Port_STATE_ACTIVE && p.GetClass() == class
	}
	for _, p := range ports {
		if active(p, pb.Port_CLASS_INTERNAL) && p.GetPeer().GetPort() != "" {
			paths = append(paths, trialPath{p.GetPeer().GetDevice(), p.GetPeer().GetPort(), p.GetPort()})
		}
	}
	for _, p := range ports {
		if !active(p, pb.Port_CLASS_SCALE_OUT) {
			continue
		}
		for _, c := range topo.GetCards() {
			i := slices.IndexFunc(c.GetPorts(), func(q *pb.Topology_Link) bool { return active(q, pb.Port_CLASS_SCALE_OUT) })
			if c.GetDevice() != importer && i >= 0 {
				paths = append(paths, trialPath{c.GetDevice(), c.GetPorts()[i].GetPort(), p.GetPort()})
			}
		}
	}
	return paths
}

// trial is what one check has: two sessions, whose ends end all that it made.
type trial struct {
	*conformance
	from, to rdmaNode // who exports, and who imports
	pd       string   // of the importer's
	near     *rdmaRegion
	export   *pb.MemoryExport
	far      *rdmaRegion // made of the export; its buffer is that of near
	source   *rdmaRegion // on the device at the other end of the path
	pair     rdmaPair
}

// check makes one check in sessions of its own, and leaves nothing.
func (h *conformance) check(ctx context.Context, c conformanceCheck) (err error) {
	t := &trial{conformance: h}
	defer func() {
		done, cancel := context.WithTimeout(context.WithoutCancel(ctx), rdmaCall)
		defer cancel()
		for _, n := range []rdmaNode{t.to, t.from} {
			if n.session != nil {
				err = errors.Join(err, t.end(done, n))
			}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	for _, n := range []*rdmaNode{&t.from, &t.to} {
		if err := t.begin(ctx, n); err != nil {
			return err
		}
	}
	return c.run(t, ctx)
}

// begin opens a session on the devices of the check.
func (t *trial) begin(ctx context.Context, n *rdmaNode) (err error) {
	names := []string{t.exporter}
	more := []string{t.importer}
	if t.path != nil {
		more = append(more, t.path.device)
	}
	for _, d := range more {
		if !slices.Contains(names, d) {
			names = append(names, d)
		}
	}
	n.client = t.client
	n.session, err = t.client.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: localNode, Session: &pb.Session{
		Devices: names, Mode: pb.Session_MODE_SHARED, Ttl: durationpb.New(trialTTL),
		Labels: map[string]string{"conformance": fmt.Sprint(os.Getpid())},
	}})
	return err
}

func (t *trial) end(ctx context.Context, n rdmaNode) error {
	_, err := t.client.Sessions.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: n.session.GetName()})
	if client.Reason(err) == pb.ErrorReason_ERROR_REASON_NOT_FOUND {
		return nil // the check has ended it
	}
	return err
}

// trialAccess is what is asked for a region that the wire reads and writes.
var trialAccess = []pb.MemoryRegion_Access{
	pb.MemoryRegion_ACCESS_LOCAL_WRITE, pb.MemoryRegion_ACCESS_REMOTE_WRITE, pb.MemoryRegion_ACCESS_REMOTE_READ,
}

// exports makes a buffer on the exporter and an export of all of it.
func (t *trial) exports(ctx context.Context) error {
	pd, err := t.from.createDomain(ctx, t.exporter)
	if err != nil {
		return err
	}
	if t.near, err = t.from.createRegion(ctx, t.exporter, pd, trialBytes, trialAccess[:1]); err != nil {
		return err
	}
	t.export, err = t.client.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{
		Parent: t.exporter, MemoryExport: &pb.MemoryExport{Buffer: t.near.buffer.GetName()},
	})
	return err
}

// upload fetches a descriptor, hands it in, and closes it.
func (t *trial) upload(ctx context.Context) (string, error) {
	f, err := t.client.FetchDescriptor(ctx, t.export.GetName())
	if err != nil {
		return "", fmt.Errorf("fetch: %w", err)
	}
	defer f.Close()
	u, err := t.client.UploadDescriptor(ctx, f)
	if err != nil {
		return "", fmt.Errorf("upload: %w", err)
	}
	return u.GetUploadId(), nil
}

// window makes a region of a part of the export, on the importer.
func (t *trial) window(ctx context.Context, offset, length uint64) (*pb.MemoryRegion, error) {
	id, err := t.upload(ctx)
	if err != nil {
		return nil, err
	}
	return t.importAs(ctx, t.importer, t.pd, &pb.MemoryRegion_ImportSource{UploadId: id, OffsetBytes: offset, LengthBytes: length})
}

func (t *trial) importAs(ctx context.Context, device, pd string, from *pb.MemoryRegion_ImportSource) (*pb.MemoryRegion, error) {
	return t.client.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: device, MemoryRegion: &pb.MemoryRegion{
		ProtectionDomain: pd, ImportSource: from, Access: trialAccess,
	}})
}

// imports makes an export and a region of all of it on the importer.
func (t *trial) imports(ctx context.Context) (err error) {
	if err := t.exports(ctx); err != nil {
		return err
	}
	if t.pd == "" {
		if t.pd, err = t.to.createDomain(ctx, t.importer); err != nil {
			return err
		}
	}
	m, err := t.window(ctx, 0, 0)
	if err != nil {
		return err
	}
	t.far = &rdmaRegion{node: &t.to, card: t.importer, pd: t.pd, buffer: t.near.buffer, region: m}
	return nil
}

// connect connects the device at the other end of the path to the importer.
func (t *trial) connect(ctx context.Context) error {
	if t.path == nil {
		return notApplicable("no port of the node leads to the importer")
	}
	pd, err := t.to.createDomain(ctx, t.path.device)
	if err != nil {
		return err
	}
	if t.source, err = t.to.createRegion(ctx, t.path.device, pd, trialBytes, trialAccess); err != nil {
		return err
	}
	if t.pd == "" {
		if t.pd, err = t.to.createDomain(ctx, t.importer); err != nil {
			return err
		}
	}
	if t.pair.requester, err = t.to.createEnd(ctx, t.path.device, pd, t.path.port); err != nil {
		return err
	}
	if t.pair.responder, err = t.to.createEnd(ctx, t.importer, t.pd, t.path.importerPort); err != nil {
		return err
	}
	return t.pair.connect(ctx)
}

// again connects a pair anew, after a failure took it to ERR.
func (p rdmaPair) again(ctx context.Context) error {
	for _, e := range []*rdmaEnd{p.requester, p.responder} {
		if _, err := e.node.client.QueuePairs.ModifyQueuePair(ctx, &pb.ModifyQueuePairRequest{
			Name: e.qp.GetName(), TargetState: pb.QueuePair_STATE_INIT,
		}); err != nil {
			return err
		}
	}
	return p.connect(ctx)
}

// registry reads the export and checks its state and how many are attached.
func (t *trial) registry(ctx context.Context, state pb.MemoryExport_State, attached int) (*pb.MemoryExport, error) {
	e, err := t.client.Memory.GetMemoryExport(ctx, &pb.GetMemoryExportRequest{Name: t.export.GetName()})
	if err == nil && (e.GetState() != state || len(e.GetAttachments()) != attached) {
		err = fmt.Errorf("the registry has it %v with %d attached, want %v with %d", e.GetState(), len(e.GetAttachments()), state, attached)
	}
	return e, err
}

// capable says whether a device has a capability.
func (h *conformance) capable(device, capability string) bool {
	for _, d := range h.devices {
		if d.GetName() == device {
			return slices.Contains(d.GetCapabilities(), capability)
		}
	}
	return false
}
