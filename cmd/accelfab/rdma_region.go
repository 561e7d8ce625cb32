package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	mathrand "math/rand/v2"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// rdmaRegion is a buffer with a memory region over all of it.
type rdmaRegion struct {
	node   *rdmaNode
	card   string
	pd     string
	buffer *pb.Buffer
	region *pb.MemoryRegion
}

func (n *rdmaNode) createDomain(ctx context.Context, card string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, rdmaCall)
	defer cancel()
	pd, err := n.client.Memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{
		Parent: card, ProtectionDomain: &pb.ProtectionDomain{Session: n.session.GetName()},
	})
	if err != nil {
		return "", fmt.Errorf("protection domain on %s: %w", card, err)
	}
	return pd.GetName(), nil
}

func (n *rdmaNode) createRegion(ctx context.Context, card, pd string, size uint64, access []pb.MemoryRegion_Access) (*rdmaRegion, error) {
	ctx, cancel := context.WithTimeout(ctx, rdmaCall)
	defer cancel()
	buffer, err := n.client.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{
		Parent: card, Buffer: &pb.Buffer{Session: n.session.GetName(), SizeBytes: size},
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
	if region.GetLengthBytes() != size {
		return nil, fmt.Errorf("%s has %d bytes, want those of its buffer, %d", region.GetName(), region.GetLengthBytes(), size)
	}
	return &rdmaRegion{node: n, card: card, pd: pd, buffer: buffer, region: region}, nil
}

// remove deletes the region and its buffer.
func (r *rdmaRegion) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rdmaCall)
	defer cancel()
	if _, err := r.node.client.Memory.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: r.region.GetName()}); err != nil {
		return err
	}
	_, err := r.node.client.Memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: r.buffer.GetName()})
	return err
}

// fill writes random bytes into the whole buffer and gives their SHA-256.
func (r *rdmaRegion) fill(ctx context.Context) ([sha256.Size]byte, error) {
	var seed [32]byte
	rand.Read(seed[:]) // never fails
	data := make([]byte, r.buffer.GetSizeBytes())
	mathrand.NewChaCha8(seed).Read(data)
	return sha256.Sum256(data), r.node.client.Upload(ctx, r.buffer.GetName(), data)
}

// sum reads the whole buffer and gives its SHA-256.
func (r *rdmaRegion) sum(ctx context.Context) ([sha256.Size]byte, error) {
	data, err := r.node.client.Download(ctx, r.buffer.GetName(), int(r.buffer.GetSizeBytes()))
	return sha256.Sum256(data), err
}

// holds checks that the buffer holds what has this SHA-256.
func (r *rdmaRegion) holds(ctx context.Context, want [sha256.Size]byte) error {
	got, err := r.sum(ctx)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%s has SHA-256 %x, want that of the source, %x", r.buffer.GetName(), got, want)
	}
	return nil
}
