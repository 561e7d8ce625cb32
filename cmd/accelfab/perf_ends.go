package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// perfClient measures with a server at the other end of conn. tell is given each
// row as it comes.
func perfClient(ctx context.Context, conn *perfConn, run *perfRun, tell func(*perfRow)) error {
	defer conn.until(ctx)()
	end, err := newPerfEnd(run.job)
	if err != nil {
		return err
	}
	if err := conn.say(ctx, perfMessage{Plan: run.plan, End: end}); err != nil {
		return err
	}
	m, err := conn.hear(ctx, conn.limit)
	if err != nil {
		return err
	}
	if err := m.End.connect(ctx, run.job); err != nil {
		return err
	}
	run.remote = m.End
	if err := run.prepare(ctx, false); err != nil {
		return err
	}
	if err := conn.say(ctx, perfMessage{Ready: true}); err != nil {
		return err
	}
	for _, size := range run.plan.Sizes {
		if err := conn.say(ctx, perfMessage{Size: size}); err != nil {
			return err
		}
		if err := conn.hearReady(ctx); err != nil {
			return err
		}
		row, err := run.measure(ctx, size)
		if err != nil {
			return err
		}
		tell(&row)
		if err := conn.say(ctx, perfMessage{Row: &row}); err != nil {
			return err
		}
	}
	return conn.say(ctx, perfMessage{Bye: true})
}

func (c *perfConn) hearReady(ctx context.Context) error {
	m, err := c.hear(ctx, c.limit)
	if err == nil && !m.Ready {
		err = errors.New("the other end does not say that it is ready")
	}
	return err
}

// perfServer is the other end, once the client's plan has been accepted and
// its job made.
func perfServer(ctx context.Context, conn *perfConn, run *perfRun, tell func(*perfRow)) error {
	defer conn.until(ctx)()
	if err := run.remote.connect(ctx, run.job); err != nil {
		return err
	}
	if err := run.prepare(ctx, true); err != nil {
		return err
	}
	end, err := newPerfEnd(run.job)
	if err != nil {
		return err
	}
	if err := conn.say(ctx, perfMessage{End: end}); err != nil {
		return err
	}
	if err := conn.hearReady(ctx); err != nil {
		return err
	}
	for {
		m, err := conn.hear(ctx, conn.limit)
		switch {
		case err != nil:
			return err
		case m.Bye:
			return nil
		case !slices.Contains(run.plan.Sizes, m.Size):
			return fmt.Errorf("the other end goes on with size %d, which its plan does not have", m.Size)
		}
		row, err := perfServe(ctx, conn, run, m.Size)
		if err != nil {
			return err
		}
		tell(row)
	}
}

// perfServe is the server's part at one size, up to the client's row, for which
// it waits as long as the connection lasts.
func perfServe(ctx context.Context, conn *perfConn, run *perfRun, size uint64) (*perfRow, error) {
	poll, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		err := run.serve(ctx, poll, size)
		if err != nil {
			conn.giveUp()
		}
		served <- err
	}()
	m, err := perfMessage{}, conn.say(ctx, perfMessage{Ready: true})
	if err == nil {
		m, err = conn.hear(ctx, 0)
	}
	stop()
	switch failed := <-served; {
	case failed != nil && !errors.As(err, new(perfPeerError)):
		return nil, failed
	case err != nil:
		return nil, err
	case m.Row == nil:
		return nil, errors.New("the other end does not say what it measured")
	}
	return m.Row, nil
}

// receivePlan gives the client's plan and end, if this end can do what it asks for.
// own is what this command line says, and given tells which of its flags are.
func (c *perfConn) receivePlan(ctx context.Context, own *perfPlan, given func(flag string) bool) (*perfPlan, *perfEnd, error) {
	defer c.until(ctx)()
	m, err := c.hear(ctx, c.limit)
	if err != nil {
		return nil, nil, err
	}
	p := m.Plan
	switch {
	case p == nil || m.End == nil:
		return nil, nil, errors.New("the other end tells no plan: is it accelfab perf?")
	case p.Version != perfVersion:
		return nil, nil, fmt.Errorf("the client has version %d of the exchange and the server %d: take the same accelfab at both ends", p.Version, perfVersion)
	case p.Test != own.Test || p.Mode != own.Mode:
		return nil, nil, fmt.Errorf("the client runs %v and the server %v: give both the same", p, own)
	}
	if err := p.check(); err != nil {
		return nil, nil, fmt.Errorf("the client's plan: %w", err)
	}
	for _, x := range []struct {
		flag         string
		asked, known any
		same         bool
	}{
		{"size", p.Sizes, own.Sizes, slices.Equal(p.Sizes, own.Sizes)},
		{"all", p.Sizes, own.Sizes, slices.Equal(p.Sizes, own.Sizes)},
		{"iters", p.Iters, own.Iters, p.Iters == own.Iters},
		{"duration", p.Seconds, own.Seconds, p.Seconds == own.Seconds},
		{"tx-depth", p.TxDepth, own.TxDepth, p.TxDepth == own.TxDepth},
		{"qp", p.QPs, own.QPs, p.QPs == own.QPs},
		{"mtu", p.MTU, own.MTU, p.MTU == own.MTU},
	} {
		if given(x.flag) && !x.same {
			return nil, nil, fmt.Errorf("--%s: the client asks for %v and the server was given %v: the client says what is measured, so a server needs no such flag", x.flag, x.asked, x.known)
		}
	}
	return p, m.End, nil
}
