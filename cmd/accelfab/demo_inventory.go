package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// demoNode is one node as the demo's client sees it.
type demoNode struct {
	rdmaNode
	daemon  *labNode
	name    string
	card    string            // the one with module id 0
	port    string            // the first one of that card that leads outside
	nic     string            // the host NIC
	nicPort string            // its first port
	free    map[string]uint64 // bytes of memory free before the demo made anything, by card
}

// demoLane is a cable between two cards of one node, and a port of the peer
// where that cable does not end.
type demoLane struct {
	card, port     string
	peer, peerPort string
	otherPort      string
}

func (d *demo) startNodes(ctx context.Context) error {
	d.took("2 daemons started", time.Since(d.began))
	for i, at := range []**demoNode{&d.a, &d.b} {
		n := &demoNode{daemon: d.lab.Nodes[i]}
		if err := n.dial(); err != nil {
			return err
		}
		*at = n
		node, err := n.node(ctx)
		if err != nil {
			return err
		}
		n.name = node.GetName()
		d.say("%s: accelfabd %s, process %d, %s", n.name, node.GetVersion(), n.daemon.Process.PID, n.daemon.server())
	}
	d.say("both serve after %s", rounded(time.Since(d.began)))
	return nil
}

func (n *demoNode) dial() error {
	c, err := client.Dial(n.daemon.server())
	n.client = c
	return err
}

// hangUp closes what the demo has dialled.
func (d *demo) hangUp() {
	for _, n := range []*demoNode{d.a, d.b} {
		if n != nil && n.client != nil {
			n.client.Close()
		}
	}
}

func (n *demoNode) node(ctx context.Context) (*pb.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	return n.client.Nodes.GetNode(ctx, &pb.GetNodeRequest{Name: "nodes/local"})
}

func (d *demo) inventory(ctx context.Context) error {
	for _, n := range []*demoNode{d.a, d.b} {
		devices, err := n.devices(ctx)
		if err != nil {
			return err
		}
		n.free = map[string]uint64{}
		for _, dev := range devices {
			n.free[dev.GetName()] = dev.GetMemoryFreeBytes()
		}
		topo, err := n.topology(ctx)
		if err != nil {
			return err
		}
		if len(topo.GetCards()) != len(devices) || len(devices) < 2 {
			return fmt.Errorf("%s lists %d devices, and %d cards in its topology; want the same, and at least 2", n.name, len(devices), len(topo.GetCards()))
		}
		count := map[pb.Port_Class]int{}
		active := 0
		for _, card := range topo.GetCards() {
			for _, p := range card.GetPorts() {
				count[p.GetClass()]++
				if p.GetState() == pb.Port_STATE_ACTIVE {
					active++
				}
			}
		}
		if err := n.findNIC(devices, topo); err != nil {
			return err
		}
		d.say("%s: %d cards %s with %d MiB each, and %s; port map %s, ports: %d to other cards, %d to the outside, %d active",
			n.name, len(devices)-1, devices[0].GetModel(), devices[0].GetMemoryBytes()>>20, n.nic, topo.GetPortMap(),
			count[pb.Port_CLASS_INTERNAL], count[pb.Port_CLASS_SCALE_OUT], active)
		card := topo.GetCards()[0]
		n.card = card.GetDevice()
		i := slices.IndexFunc(card.GetPorts(), func(p *pb.Topology_Link) bool { return p.GetClass() == pb.Port_CLASS_SCALE_OUT })
		if i < 0 {
			return fmt.Errorf("%s has no port that leads outside", n.card)
		}
		n.port = card.GetPorts()[i].GetPort()
		if n == d.a {
			if d.lane, err = laneOf(card); err != nil {
				return err
			}
		}
	}
	d.say("path outside: %s to %s; cable inside: %s to %s", d.a.port, d.b.port, d.lane.port, d.lane.peerPort)
	return nil
}

// findNIC finds the host NIC, by its driver, and its first port.
func (n *demoNode) findNIC(devices []*pb.Device, topo *pb.Topology) error {
	for _, dev := range devices {
		if dev.GetDriver() == "soft-nic" {
			n.nic = dev.GetName()
		}
	}
	for _, card := range topo.GetCards() {
		if card.GetDevice() == n.nic && len(card.GetPorts()) > 0 {
			n.nicPort = card.GetPorts()[0].GetPort()
			return nil
		}
	}
	return fmt.Errorf("%s has no host NIC with a port", n.name)
}

// laneOf chooses the first cable of a card to another, and a second cable
// between the same two.
func laneOf(card *pb.Topology_Card) (demoLane, error) {
	var lane demoLane
	for _, p := range card.GetPorts() {
		peer := p.GetPeer()
		switch {
		case p.GetClass() != pb.Port_CLASS_INTERNAL || peer.GetPort() == "":
		case lane.port == "":
			lane = demoLane{card: card.GetDevice(), port: p.GetPort(), peer: peer.GetDevice(), peerPort: peer.GetPort()}
		case peer.GetDevice() == lane.peer:
			lane.otherPort = peer.GetPort()
			return lane, nil
		}
	}
	return lane, fmt.Errorf("%s has no two cables to one other card", card.GetDevice())
}

func (n *demoNode) devices(ctx context.Context) ([]*pb.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	r, err := n.client.Devices.ListDevices(ctx, &pb.ListDevicesRequest{Parent: n.name, PageSize: 1000})
	return r.GetDevices(), err
}

func (n *demoNode) topology(ctx context.Context) (*pb.Topology, error) {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	return n.client.Nodes.GetTopology(ctx, &pb.GetTopologyRequest{Name: n.name + "/topology"})
}

func (d *demo) sessions(ctx context.Context) error {
	for _, at := range []struct {
		n     *demoNode
		cards []string
	}{{d.a, []string{d.lane.card, d.lane.peer, d.a.nic}}, {d.b, []string{d.b.card}}} {
		s, err := at.n.openSession(ctx, at.cards)
		if err != nil {
			return err
		}
		at.n.session = s
		devices, err := at.n.devices(ctx)
		if err != nil {
			return err
		}
		for _, dev := range devices {
			if slices.Contains(at.cards, dev.GetName()) && (len(dev.GetHolders()) != 1 || dev.GetHolders()[0].GetSession() != s.GetName()) {
				return fmt.Errorf("%s is held by %v, want %s alone", dev.GetName(), dev.GetHolders(), s.GetName())
			}
		}
		d.say("%s of %s holds %s", s.GetName(), s.GetOwner().GetIdentity(), strings.Join(at.cards, ", "))
	}
	return nil
}

func (n *demoNode) openSession(ctx context.Context, cards []string) (*pb.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	return n.client.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{
		Parent: n.name,
		Session: &pb.Session{
			Labels:  map[string]string{"job": "demo"},
			Devices: cards,
			Mode:    pb.Session_MODE_EXCLUSIVE,
			Ttl:     durationpb.New(demoLimit),
		},
	})
}

func (d *demo) takenDevice(ctx context.Context) error {
	s, err := d.a.openSession(ctx, []string{d.lane.card})
	if err == nil {
		return fmt.Errorf("%s was given %s, which %s holds alone", s.GetName(), d.lane.card, d.a.session.GetName())
	}
	if err := refusedWith(err, pb.ErrorReason_ERROR_REASON_DEVICE_BUSY); err != nil {
		return err
	}
	if holder := client.Details(err)["holder"]; holder != d.a.session.GetName() {
		return fmt.Errorf("the refusal names %q as the holder, want %s: %w", holder, d.a.session.GetName(), err)
	}
	d.say("a second session is refused: %s", client.Explain(err))
	return nil
}

// refusedWith checks that a call was refused for this reason.
func refusedWith(err error, want pb.ErrorReason) error {
	if err == nil {
		return errors.New("the call was not refused")
	}
	if got := client.Reason(err); got != want {
		return fmt.Errorf("refused with %v, want %v: %w", got, want, err)
	}
	return nil
}
