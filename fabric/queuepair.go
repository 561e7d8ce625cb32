package fabric

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/accelfab/accelfab/device/ib"
)

// maxBatch is the most that one batch may hold.
const maxBatch = 1000

// Defaults of queue pairs; those of attributes are with Attributes.
const (
	defaultWR  = 128
	defaultSGE = 1
)

func checkBatch(op string, n int) error {
	if n >= 1 && n <= maxBatch {
		return nil
	}
	return violations{{Field: "requests", Reason: FieldInvalid, Problem: fmt.Sprintf("%d requests: want 1 to %d", n, maxBatch)}}.err(op, "")
}

// CreateQueuePairs makes all of them or none, as one change: one commit, and
// one call of each device. requestID is that of the whole.
func (f *Fabric) CreateQueuePairs(ctx context.Context, c Caller, requestID string, validateOnly bool, rs []CreateQueuePair) ([]QueuePair, error) {
	const op = "CreateQueuePairs"
	if err := checkBatch(op, len(rs)); err != nil {
		return nil, err
	}
	if err := readEnds(ctx, op, f.endsOfCreates(rs)); err != nil {
		return nil, err
	}
	var out []QueuePair
	err := f.create(ctx, creation{op, c, requestID, validateOnly, rs, func() ([]*record, error) {
		recs := make([]*record, len(rs))
		var all violations
		seen := make(map[string]bool, len(rs))
		for i := range rs {
			r, err := f.buildQP(c, op, &rs[i])
			if err == nil && seen[r.name] {
				err = violations{{Field: "id", Reason: AlreadyExists, Problem: "the batch has it twice"}}.err(op, r.name)
			}
			if err != nil {
				if e := atIndex(err, i).(*Error); len(e.Violations) > 0 {
					all = append(all, e.Violations...)
					continue
				}
				if all == nil {
					return nil, err
				}
				continue
			}
			seen[r.name], recs[i] = true, r
		}
		if len(all) > 0 {
			e := all.err(op, "").(*Error)
			e.Index = all[0].Index
			return nil, e
		}
		return recs, nil
	}}, func(recs []*record) {
		out = f.viewQPs(c, recs)
	})
	return out, err
}

func (f *Fabric) buildQP(c Caller, op string, r *CreateQueuePair) (*record, error) {
	var v violations
	if !r.Type.Valid() {
		v.required("type", "want RC, UC or UD")
	}
	if r.ProtectionDomain == "" {
		v.required("protection_domain", "want "+f.pattern(kindPD))
	}
	var pd *record
	q, err := f.buildObject(c, op, kindQueuePair, &r.Create, &v, func() (*record, error) {
		var err error
		if pd, err = f.findUsable(c, op, kindPD, "protection_domain", r.ProtectionDomain); err != nil {
			return nil, err
		}
		return pd.sess, nil
	})
	if err != nil {
		return nil, err
	}
	if pd.card != q.card {
		v.invalid("protection_domain", pd.name+" is on another device than "+q.card.name)
	}
	info := &q.card.info
	ask := &qpAsk{PD: pd.id, Port: r.Port, Type: r.Type, SendWR: orDefault(r.SendWR, defaultWR), RecvWR: orDefault(r.RecvWR, defaultWR),
		SGE: orDefault(r.SGE, defaultSGE), Timeout: 14, RetryCount: 7, RNRRetry: 7, MinRNRTimer: 12, HopLimit: 64, GIDIndex: -1,
		MaxRDAtomic: min(16, info.Limits.RDAtomic), MaxDestRDAtomic: min(16, info.Limits.RDAtomic), PSN: ib.PSN(random32() & 0xffffff)}
	switch r.Type {
	case ib.RC:
		ask.Access = ib.RemoteWrite | ib.RemoteRead
	case ib.UC:
		ask.Access = ib.RemoteWrite
	case ib.UD:
		ask.QKey = ib.QKey(random32() >> 1) // keys with the highest bit are the device's own
	}
	if r.Port < 0 || r.Port >= info.Ports {
		v.invalid("port", fmt.Sprintf("%d: the device has the ports 0 to %d", r.Port, info.Ports-1))
	}
	within(&v, "capacities.send_wr", ask.SendWR, 1, info.Limits.SendWR)
	within(&v, "capacities.recv_wr", ask.RecvWR, 1, info.Limits.RecvWR)
	within(&v, "capacities.sge", ask.SGE, 1, info.Limits.SGE)
	ask.apply(&v, &r.Attributes, info)
	ask.Target = ib.Init
	if r.Type == ib.UD {
		ask.Target = ib.RTS
	}
	if r.Target != nil {
		ask.Target = *r.Target
		if ask.Target > ib.RTS {
			v.invalid("target_state", fmt.Sprintf("%v: a queue pair can be made in RESET, INIT, RTR or RTS", ask.Target))
		}
	}
	if err := v.err(op, ""); err != nil {
		return nil, err
	}
	if err := f.checkCapability(op, q.card, r.Type); err != nil {
		return nil, err
	}
	if err := f.checkPath(op, q, ask, r.Remote, ask.Target >= ib.RTR); err != nil {
		return nil, err
	}
	q.pd, q.QPAsk = pd, ask
	return q, nil
}

func (f *Fabric) checkCapability(op string, c *card, t ib.QPType) error {
	for _, have := range c.info.Capabilities {
		if string(have) == t.String() {
			return nil
		}
	}
	return &Error{Op: op, Name: c.name, Field: "type", Reason: Unsupported, Message: "the device makes no " + t.String() + " queue pairs",
		Details: map[string]string{"capability": t.String()}}
}

func orDefault(n, d int) int {
	if n == 0 {
		return d
	}
	return n
}

func random32() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return binary.LittleEndian.Uint32(b[:])
}

func within(v *violations, field string, n, low, high int) {
	if n < low || n > high {
		v.invalid(field, fmt.Sprintf("%d: want %d to %d", n, low, high))
	}
}
