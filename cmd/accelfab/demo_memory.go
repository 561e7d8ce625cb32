package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// demoRegion is a buffer with a memory region over all of it.
type demoRegion struct {
	node   *demoNode
	card   string
	pd     string
	buffer *pb.Buffer
	region *pb.MemoryRegion
}

// memory is the step that makes protection domains, buffers and regions.
func (d *demo) memory(ctx context.Context) error {
	began := time.Now()
	pds := map[string]string{}
	for _, at := range []struct {
		n    *demoNode
		card string
	}{{d.a, d.lane.card}, {d.a, d.lane.peer}, {d.b, d.b.card}} {
		pd, err := at.n.createDomain(ctx, at.card)
		if err != nil {
			return err
		}
		pds[at.card] = pd
	}
	remote := []pb.MemoryRegion_Access{
		pb.MemoryRegion_ACCESS_LOCAL_WRITE, pb.MemoryRegion_ACCESS_REMOTE_WRITE, pb.MemoryRegion_ACCESS_REMOTE_READ,
	}
	local := remote[:1]
	var err error
	if d.source, err = d.a.createRegion(ctx, d.lane.card, pds[d.lane.card], nil); err != nil {
		return err
	}
	if d.back, err = d.a.createRegion(ctx, d.lane.card, pds[d.lane.card], local); err != nil {
		return err
	}
	if d.near, err = d.a.createRegion(ctx, d.lane.peer, pds[d.lane.peer], remote); err != nil {
		return err
	}
	if d.target, err = d.b.createRegion(ctx, d.b.card, pds[d.b.card], remote); err != nil {
		return err
	}
	t := time.Since(began)
	d.took("3 protection domains, 4 buffers, 4 memory regions made", t)
	d.say("3 protection domains, 4 buffers of %d MiB and a memory region on each, in %s", demoBytes>>20, rounded(t))
	for _, r := range []*demoRegion{d.source, d.target} {
		d.say("%s: device address %#x, rkey %#x", r.region.GetName(), r.buffer.GetDeviceAddress(), r.region.GetRkey())
	}
	return nil
}

func (n *demoNode) createDomain(ctx context.Context, card string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	pd, err := n.client.Memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{
		Parent: card, ProtectionDomain: &pb.ProtectionDomain{Session: n.session.GetName()},
	})
	if err != nil {
		return "", fmt.Errorf("protection domain on %s: %w", card, err)
	}
	return pd.GetName(), nil
}

func (n *demoNode) createRegion(ctx context.Context, card, pd string, access []pb.MemoryRegion_Access) (*demoRegion, error) {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	buffer, err := n.client.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{
		Parent: card, Buffer: &pb.Buffer{Session: n.session.GetName(), SizeBytes: demoBytes},
	})
	if err != nil {
		return nil, fmt.Errorf("buffer on %s: %w", card, err)
	}
	region, err := n.client.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{
		Parent: card, MemoryRegion: &pb.MemoryRegion{ProtectionDomain: pd, Buffer: buffer.GetName(), Access: access},
	})
	if err != nil {
		return nil, fmt.Errorf("memory region on %s: %w", buffer.GetName(), err)
	}
	if region.GetLengthBytes() != demoBytes {
		return nil, fmt.Errorf("%s has %d bytes, want those of its buffer, %d", region.GetName(), region.GetLengthBytes(), demoBytes)
	}
	return &demoRegion{node: n, card: card, pd: pd, buffer: buffer, region: region}, nil
}

// remove deletes the region and its buffer.
func (r *demoRegion) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	if _, err := r.node.client.Memory.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: r.region.GetName()}); err != nil {
		return err
	}
	_, err := r.node.client.Memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: r.buffer.GetName()})
	return err
}

// fill writes random bytes into the whole buffer and gives their SHA-256.
func (r *demoRegion) fill(ctx context.Context) ([sha256.Size]byte, error) {
	var seed [32]byte
	rand.Read(seed[:]) // never fails
	data := make([]byte, demoBytes)
	mathrand.NewChaCha8(seed).Read(data)
	return sha256.Sum256(data), r.node.client.Upload(ctx, r.buffer.GetName(), data)
}

// sum reads the whole buffer and gives its SHA-256.
func (r *demoRegion) sum(ctx context.Context) ([sha256.Size]byte, error) {
	data, err := r.node.client.Download(ctx, r.buffer.GetName(), demoBytes)
	return sha256.Sum256(data), err
}

// holds checks that the buffer holds what has this SHA-256.
func (r *demoRegion) holds(ctx context.Context, want [sha256.Size]byte) error {
	got, err := r.sum(ctx)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%s has SHA-256 %x, want that of the source, %x", r.buffer.GetName(), got, want)
	}
	return nil
}
