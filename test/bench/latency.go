package main

import (
	"context"
	"errors"
	"time"

	"github.com/accelfab/accelfab/device/ib"
)

const (
	writeTripName = "RDMA WRITE of 8 bytes, from post to completion"
	sendTripName  = "RDMA SEND of 8 bytes and one in answer"
	echoTripName  = "plain UDP echo of 8 bytes"
)

// latency measures the round trips of messages of 8 bytes between two software
// devices in two processes, beside a UDP echo between the same processes.
func latency(ctx context.Context, b *bench) (err error) {
	e := Echo{Count: 10_000, Size: 8}
	if b.quick {
		e.Count = 200
	}
	p, err := b.startPair(ctx, 1<<20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.connect(ib.MTU4096, p.ends); err != nil {
		return err
	}
	add := func(name string, t Trips) {
		b.add(name+": p50", "us", float64(t.P50)/float64(time.Microsecond))
		b.add(name+": p99", "us", float64(t.P99)/float64(time.Microsecond))
	}
	write := func(context.Context) error {
		var t Trips
		err := p.sender().call("Device.PingWrite", DeviceEcho{e, p.ends[1]}, &t)
		add(writeTripName, t)
		return err
	}
	send := func(context.Context) error {
		t, err := p.sendEcho(e)
		add(sendTripName, t)
		return err
	}
	plain := func(context.Context) error {
		pong := p.receiver().calls.Go("Plain.Pong", PlainEcho{Echo: e}, new(None), nil)
		var t Trips
		if err := p.sender().call("Plain.Ping", PlainEcho{e, p.plain[1]}, &t); err != nil {
			return err
		}
		add(echoTripName, t)
		return (<-pong.Done).Error
	}
	if err := b.interleave(ctx, []cell{{writeTripName, write}, {echoTripName, plain}, {sendTripName, send}}); err != nil {
		return err
	}
	for _, what := range []string{": p50", ": p99"} {
		b.goalOf("WRITE over UDP echo"+what, "", b.over(writeTripName+what, echoTripName+what), 3, true)
		b.goalOf("SEND over UDP echo"+what, "", b.over(sendTripName+what, echoTripName+what), 3, true)
	}
	return nil
}

// sendEcho measures SENDs that are answered by SENDs.
func (p *pair) sendEcho(e Echo) (t Trips, err error) {
	if err := p.receiver().call("Device.Ready", DeviceEcho{e, p.ends[0]}, new(None)); err != nil {
		return t, err
	}
	pong := p.receiver().calls.Go("Device.Pong", DeviceEcho{e, p.ends[0]}, new(None), nil)
	if err := p.sender().call("Device.Ping", DeviceEcho{e, p.ends[1]}, &t); err != nil {
		return t, err
	}
	return t, (<-pong.Done).Error
}
