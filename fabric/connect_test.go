package fabric_test

import (
	"strings"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
)

func TestConnect(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		qs := must(w.connect("q", peer))
		if q := qs[0]; q.QPState != ib.RTS || q.Remote.QPN != 77 || q.Local.GIDIndex != 3 || q.Attributes.PathMTU != ib.MTU1024 || q.Target != ib.RTS {
			t.Errorf("%+v", q)
		}
		n := len(w.events())
		again := must(w.connect("q", peer))
		if again[0].Revision != qs[0].Revision || len(w.events()) != n {
			t.Error("the same endpoint again is a change")
		}
		other := peer
		other.QPN = 78
		_, err := w.connect("q", other)
		if e := refused(t, err, fabric.StateInvalid, "remote_endpoint"); e.Details["state"] != "RTS" || e.Details["asked"] != "RTS" {
			t.Errorf("%+v", e)
		}
		q := must(w.f.ModifyQueuePair(ctx(), alice, fabric.ModifyQueuePair{Update: fabric.Update{Name: d0 + "/queuePairs/q"}, Target: ib.Init}))
		if q.QPState != ib.Init || q.Remote != nil || q.Local.QPN != qs[0].Local.QPN {
			t.Errorf("%+v", q)
		}
		must(w.connect("q", other))
	})
}

func TestConnectInOneCreate(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.pd("p", "nodes/n1/sessions/s")
		r := qpRequest("q", d0+"/protectionDomains/p")
		rts, psn := ib.RTS, ib.PSN(9)
		r.Target, r.Remote, r.Attributes.PSN, r.Attributes.PathMTU = &rts, &peer, &psn, ib.MTU512
		w.cards[0].calls = 0
		q := must(w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{r}))[0]
		if q.QPState != ib.RTS || q.Local.PSN != 9 || q.Attributes.PathMTU != ib.MTU512 || w.cards[0].calls != 1 {
			t.Errorf("%d calls, %+v", w.cards[0].calls, q)
		}
	})
}

// Q02, Q04 and their kind: what does not fit is refused before RTR, and says
// which field, with both ends.
func TestQ02Q04ConnectRefusals(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		in := qpRequest("in", d0+"/protectionDomains/p")
		in.Port = 0
		none := qpRequest("none", d0+"/protectionDomains/p")
		none.Port = 2
		must(w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{in, none}))
		zero := 1 // the RoCE v1 entry
		for _, tc := range []struct {
			name   string
			qp     string
			to     fabric.Endpoint
			attrs  fabric.Attributes
			reason fabric.Reason
			field  string
			says   []string
		}{
			{"no GID", "q", fabric.Endpoint{QPN: 77}, fabric.Attributes{}, fabric.FieldRequired, "remote_endpoint.gid", nil},
			{"QPN 1", "q", fabric.Endpoint{GID: peer.GID, QPN: 1}, fabric.Attributes{}, fabric.FieldInvalid, "remote_endpoint.qpn", nil},
			{"multicast QPN", "q", fabric.Endpoint{GID: peer.GID, QPN: ib.MaxQPN}, fabric.Attributes{}, fabric.FieldInvalid, "remote_endpoint.qpn", nil},
			{"IPv6 peer", "q", fabric.Endpoint{GID: ib.GID{0: 0x20, 1: 1, 15: 1}, QPN: 77}, fabric.Attributes{}, fabric.GIDFamilyMismatch, "remote_endpoint.gid", []string{"::ffff:10.0.0.1", "2001::1"}},
			{"RoCE v1 peer", "q", fabric.Endpoint{GID: peer.GID, QPN: 77, HasType: true, GIDType: ib.RoCEv1}, fabric.Attributes{}, fabric.GIDFamilyMismatch, "remote_endpoint.gid", []string{"RoCE v1"}},
			{"local index of RoCE v1", "q", peer, fabric.Attributes{GIDIndex: &zero}, fabric.GIDFamilyMismatch, "remote_endpoint.gid", nil},
			{"MTU", "q", peer, fabric.Attributes{PathMTU: ib.MTU2048}, fabric.MTUMismatch, "attributes.path_mtu_bytes", []string{"2048", "1024"}},
			{"MTU of the peer", "q", fabric.Endpoint{GID: peer.GID, QPN: 77, ActiveMTU: ib.MTU512}, fabric.Attributes{PathMTU: ib.MTU1024}, fabric.MTUMismatch, "attributes.path_mtu_bytes", nil},
			{"P_Key", "q", fabric.Endpoint{GID: peer.GID, QPN: 77, PKey: 0x8001}, fabric.Attributes{}, fabric.PKeyMismatch, "remote_endpoint.pkey", []string{"0x8001", "0xffff"}},
			{"another card than the cable's", "in", peer, fabric.Attributes{}, fabric.PathNotCabled, "remote_endpoint.gid", []string{d1 + "/ports/0"}},
			{"a port without GIDs", "none", peer, fabric.Attributes{}, fabric.GIDFamilyMismatch, "remote_endpoint.gid", nil},
			{"no such queue pair", "nix", peer, fabric.Attributes{}, fabric.NotFound, "name", nil},
		} {
			_, err := w.f.ConnectQueuePairs(ctx(), alice, false, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: d0 + "/queuePairs/" + tc.qp}, Remote: tc.to, Attributes: tc.attrs}})
			t.Log(tc.name, err)
			e := refused(t, err, tc.reason, tc.field)
			for _, s := range tc.says {
				if !strings.Contains(e.Error(), s) {
					t.Errorf("%s: %v does not name %s", tc.name, e, s)
				}
			}
		}
		if q := w.getQP("q"); q.QPState != ib.Init || q.Remote != nil {
			t.Errorf("%+v: want nothing changed", q)
		}
		to := fabric.Endpoint{GID: gidOf(1, 0), QPN: 40}
		if qs := must(w.connect("in", to)); qs[0].QPState != ib.RTS {
			t.Errorf("%+v", qs[0])
		}
		_, err := w.f.ModifyQueuePair(ctx(), alice, fabric.ModifyQueuePair{Update: fabric.Update{Name: d0 + "/queuePairs/q"}, Target: ib.RTR})
		refused(t, err, fabric.FieldRequired, "remote_endpoint.gid")
	})
}

func TestModifyNamesBothStates(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		name := fabric.Update{Name: d0 + "/queuePairs/q"}
		_, err := w.f.ModifyQueuePair(ctx(), alice, fabric.ModifyQueuePair{Update: name, Target: ib.SQD})
		if e := refused(t, err, fabric.StateInvalid, "target_state"); !strings.Contains(e.Error(), "INIT") || !strings.Contains(e.Error(), "SQD") {
			t.Errorf("%v does not name both states", e)
		}
		_, err = w.f.ModifyQueuePair(ctx(), alice, fabric.ModifyQueuePair{Update: name, Target: ib.SQE})
		refused(t, err, fabric.FieldInvalid, "target_state")
		for _, to := range []ib.QPState{ib.RTR, ib.RTS, ib.SQD, ib.RTS, ib.Err, ib.Init, ib.Reset, ib.Err} {
			m := fabric.ModifyQueuePair{Update: name, Target: to}
			if to == ib.RTR {
				m.Remote = &peer
			}
			if q := must(w.f.ModifyQueuePair(ctx(), alice, m)); q.QPState != to {
				t.Fatalf("in %v: want %v", q.QPState, to)
			}
		}
		_, err = w.f.ModifyQueuePair(ctx(), alice, fabric.ModifyQueuePair{Update: name, Target: ib.RTS, Remote: &peer})
		refused(t, err, fabric.StateInvalid, "target_state")
	})
}

// L16: a connect that the device fails leaves the queue pair in INIT with the
// same QPN, and says so.
func TestL16ConnectFails(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.qp("q2", d0+"/protectionDomains/p")
		before := w.getQP("q")
		w.cards[0].mu.Lock()
		w.cards[0].rtsErr = &device.FieldError{Field: "remote_endpoint.gid", Problem: "is not at the other end of the cable"}
		w.cards[0].mu.Unlock()
		_, err := w.connect("q", peer)
		e := refused(t, err, fabric.PathNotCabled, "remote_endpoint.gid")
		if e.Details["phase"] != "connect" || !strings.Contains(e.Error(), "INIT") {
			t.Errorf("%v %v: want the phase and the state it is in", e, e.Details)
		}
		q := w.getQP("q")
		if q.QPState != ib.Init || q.Local.QPN != before.Local.QPN || q.Remote != nil || q.Target != ib.Init || q.Condition.Reason != fabric.PathNotCabled {
			t.Errorf("%+v", q)
		}
		// Of several, each says how it went.
		qs, err := w.f.ConnectQueuePairs(ctx(), alice, false, []fabric.ConnectQueuePair{
			{Update: fabric.Update{Name: d0 + "/queuePairs/q"}, Remote: peer}, {Update: fabric.Update{Name: d0 + "/queuePairs/q2"}, Remote: peer}})
		if must(qs, err); qs[0].Condition.Reason != fabric.PathNotCabled || qs[1].QPState != ib.Init {
			t.Errorf("%+v", qs)
		}
		// A create that is to connect leaves nothing.
		r := qpRequest("q3", d0+"/protectionDomains/p")
		rts := ib.RTS
		r.Target, r.Remote = &rts, &peer
		_, err = w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{r})
		refused(t, err, fabric.PathNotCabled, "")
		w.onDevice(1, 1, 1, 2)
		w.cards[0].mu.Lock()
		w.cards[0].rtsErr = nil
		w.cards[0].mu.Unlock()
		w.restart(false)
		if q := w.getQP("q"); q.QPState != ib.Init {
			t.Errorf("the restart connected it: %+v", q)
		}
		if q := must(w.connect("q", peer))[0]; q.QPState != ib.RTS || q.Condition != (fabric.Condition{}) {
			t.Errorf("%+v", q)
		}
	})
}

func TestDeviceMovesAQueuePairToErr(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		q := must(w.connect("q", peer))[0]
		w.cards[0].fell(q.UID, ib.Err, ib.RetryExcErr, "no answer")
		pass(1)
		q = must(w.f.ListQueuePairs(ctx(), alice, fabric.List{Parent: d0}, nil)).Items[0]
		if q.QPState != ib.Err || q.Status != ib.RetryExcErr || q.StatusText != "no answer" || q.Target != ib.RTS {
			t.Errorf("%+v", q)
		}
		es := w.events()
		if e := es[len(es)-1]; e.Before != "RTS" || e.After != "ERR" || e.Reason != fabric.CauseDevice {
			t.Errorf("%+v", e)
		}
		w.restart(false) // it is left to its owner
		if q := w.getQP("q"); q.QPState != ib.Err {
			t.Errorf("%+v", q)
		}
	})
}
