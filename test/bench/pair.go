package main

import (
	"context"
	"crypto/sha256"
	"errors"

	"github.com/accelfab/accelfab/device/ib"
)

// pair is two software devices in two children, which also speak plain UDP.
// They are not connected yet.
type pair struct {
	children [2]*child
	ends     [2]DeviceEnd
	plain    [2]PlainEnd
}

// startPair starts a pair with a buffer of size bytes each. The caller stops
// it.
func (b *bench) startPair(ctx context.Context, size uint64) (*pair, error) {
	p := &pair{}
	for i := range p.children {
		c, err := b.startChild(ctx, "device")
		if err != nil {
			return nil, errors.Join(err, p.stop())
		}
		p.children[i] = c
		if err := errors.Join(c.call("Device.Open", size, &p.ends[i]), c.call("Plain.Open", None(0), &p.plain[i])); err != nil {
			return nil, errors.Join(err, p.stop())
		}
	}
	return p, nil
}

// connect connects the devices, each to what it sees as the other end.
func (p *pair) connect(mtu ib.MTU, seen [2]DeviceEnd) error {
	for i, c := range p.children {
		if err := c.call("Device.Connect", Link{Peer: seen[1-i], MTU: mtu}, new(None)); err != nil {
			return err
		}
	}
	return nil
}

// sender and receiver: the one that posts the work is child 0.
func (p *pair) sender() *child   { return p.children[0] }
func (p *pair) receiver() *child { return p.children[1] }

// fill fills the sender's buffer with random bytes, and gives a check that the
// receiver has the same.
func (p *pair) fill() (same func() error, err error) {
	var sent [sha256.Size]byte
	if err := p.sender().call("Device.Fill", None(0), &sent); err != nil {
		return nil, err
	}
	return func() error {
		var got [sha256.Size]byte
		if err := p.receiver().call("Device.Sum", None(0), &got); err != nil {
			return err
		}
		if got != sent {
			return errors.New("what was moved by RDMA differs from what was sent")
		}
		return nil
	}, nil
}

// retransmits counts the requests that the sender sent again.
func (p *pair) retransmits() (n uint64, err error) {
	err = p.sender().call("Device.Retransmits", None(0), &n)
	return n, err
}

func (p *pair) stop() error {
	var errs []error
	for _, c := range p.children {
		if c != nil {
			errs = append(errs, c.stop())
		}
	}
	return errors.Join(errs...)
}
