package fabric

import (
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// The views of records. Fabric.mu is held for all of them.

func (r *record) meta() Meta {
	return Meta{Name: r.name, UID: r.UID, Revision: r.Revision, CreateTime: time.Unix(0, r.Created), Labels: r.Labels}
}

// condition says whether r is as asked.
func (r *record) condition() Condition {
	c := r.failure
	switch r.state() {
	case StatePending, StateDeleting, StateClosing, StateRevoking:
		c.Reconciling = true
	case StateRevoked:
		c = revokedCondition(r)
	case StateLost:
		if r.take != nil && r.take.cut && !r.lost {
			c = cutCondition(r)
		}
		if c.Reason == "" {
			c = Condition{Reason: Lost, Message: "what it had on devices is gone; delete it"}
		}
	}
	return c
}

func (f *Fabric) viewSession(r *record) Session {
	a := r.SessionAsk
	s := Session{Meta: r.meta(), Owner: Caller{Identity: a.Identity, UID: a.UID, GID: a.GID, PID: a.PID, HasPeer: a.HasPeer, Command: r.Command},
		Exclusive: a.Exclusive, TTL: time.Duration(a.TTL), Drain: time.Duration(a.Drain), Generation: a.Generation, State: r.state(), Condition: r.condition(),
		// As read from the lease's begin, so that two reads agree.
		LastSeen: r.life.seen, ExpireTime: r.life.seen.Add(time.Duration(a.TTL))}
	if p := r.ProcessAsk; p != nil {
		s.Process = &Process{PID: p.PID, Command: p.Command}
	}
	for _, id := range a.Devices {
		s.Devices = append(s.Devices, f.names.node+"/devices/"+id)
	}
	for _, u := range r.life.use {
		s.Usage.ProtectionDomains += u.ProtectionDomains
		s.Usage.Buffers += u.Buffers
		s.Usage.MemoryRegions += u.MemoryRegions
		s.Usage.QueuePairs += u.QueuePairs
		s.Usage.MemoryExports += u.MemoryExports
		s.Usage.BufferBytes += u.BufferBytes
	}
	return s
}

func (f *Fabric) viewPD(r *record) ProtectionDomain {
	return ProtectionDomain{Meta: r.meta(), Session: r.sess.name, State: r.state(), Condition: r.condition(),
		MemoryRegions: r.regions, QueuePairs: r.qps}
}

func (f *Fabric) viewBuffer(r *record) Buffer {
	b := Buffer{Meta: r.meta(), Session: r.sess.name, Size: r.BufferAsk.Size, Alignment: r.BufferAsk.Alignment,
		State: r.state(), Condition: r.condition(), MemoryRegions: r.regions, MemoryExports: r.exports}
	if r.there {
		b.Address = r.is.addr
	}
	return b
}

func (f *Fabric) viewRegion(c Caller, r *record) MemoryRegion {
	a := r.RegionAsk
	m := MemoryRegion{Meta: r.meta(), Session: r.sess.name, ProtectionDomain: r.pd.name,
		Length: a.Length, Access: a.Access, State: r.state(), Condition: r.condition()}
	if x := r.ImportAsk; x != nil {
		m.Import = &Import{Export: x.Export, Offset: a.Offset, Length: a.Length, IOVA: x.IOVA, Path: r.take.path}
	} else {
		m.Buffer, m.Offset = r.buf.name, a.Offset
	}
	if r.there {
		m.IOVA = r.is.addr
		if f.owns(c, r) {
			m.LKey, m.RKey = r.is.lkey, r.is.rkey
		}
	}
	return m
}

func (f *Fabric) viewQP(c Caller, r *record) QueuePair {
	q := r.QPAsk
	v := QueuePair{Meta: r.meta(), Session: r.sess.name, ProtectionDomain: r.pd.name, Port: q.Port, PortName: r.card.portName(q.Port),
		Type: q.Type, SendWR: q.SendWR, RecvWR: q.RecvWR, SGE: q.SGE, Target: q.Target, State: r.state(), Condition: r.condition()}
	v.Attributes = Attributes{PathMTU: q.PathMTU, Timeout: &q.Timeout, RetryCount: &q.RetryCount, RNRRetry: &q.RNRRetry,
		MinRNRTimer: &q.MinRNRTimer, MaxRDAtomic: &q.MaxRDAtomic, MaxDestRDAtomic: &q.MaxDestRDAtomic, TrafficClass: &q.TrafficClass,
		HopLimit: &q.HopLimit, PSN: &q.PSN, Access: &q.Access}
	if q.GIDIndex >= 0 {
		v.Attributes.GIDIndex = &q.GIDIndex
	}
	if f.owns(c, r) {
		v.Attributes.QKey = &q.QKey
	}
	if m := q.Remote; m != nil {
		v.Remote = &Endpoint{GID: m.GID, QPN: m.QPN, PSN: m.PSN, GIDIndex: -1, GIDType: ib.RoCEv2, HasType: true, PKey: m.PKey, Port: m.Port}
		v.Attributes.PathMTU, v.Attributes.GIDIndex = m.PathMTU, &m.GIDIndex
	}
	v.Local = Endpoint{PSN: q.PSN, GIDIndex: -1, PKey: ib.DefaultPKey, Port: v.PortName}
	if q.Port < len(r.card.ports) {
		p := &r.card.ports[q.Port]
		v.Local.ActiveMTU = p.ActiveMTU
		want := q.GIDIndex
		if q.Remote != nil {
			want = q.Remote.GIDIndex
		}
		if e := localGID(p, want); e != nil {
			v.Local.GID, v.Local.GIDIndex, v.Local.GIDType, v.Local.HasType = e.GID, e.Index, e.Type, true
		}
	}
	if r.there {
		d := r.is
		v.QPState, v.Status, v.StatusText, v.Local.QPN = d.state, d.status, d.reason, d.qpn
		v.SendWR, v.RecvWR, v.SGE = max(d.sendWR, v.SendWR), max(d.recvWR, v.RecvWR), max(d.sge, v.SGE)
		if !d.gid.IsZero() && d.gidIx >= 0 { // else each destination chooses
			v.Local.GID, v.Local.GIDIndex, v.Local.GIDType, v.Local.HasType = d.gid, d.gidIx, ib.RoCEv2, true
		}
		if d.mtu != 0 {
			v.Attributes.PathMTU = d.mtu
		}
	}
	v.Attributes.of(q.Type)
	return v
}

// localGID is the entry at an index of a port's GID table, or for -1 the one
// that peers reach best: the first RoCE v2 entry that is not link-local, else
// the first.
func localGID(p *device.Port, index int) *device.GIDEntry {
	var best *device.GIDEntry
	for i := range p.GIDs {
		e := &p.GIDs[i]
		switch {
		case index >= 0:
			if e.Index == index {
				return e
			}
		case e.Type == ib.RoCEv2 && (best == nil || best.GID.IsLinkLocal() && !e.GID.IsLinkLocal()):
			best = e
		}
	}
	return best
}
