package fabric_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
)

// of makes a queue pair of a type on port 1 of card 0.
func (w *world) of(t ib.QPType, id string, a fabric.Attributes) (fabric.QueuePair, error) {
	r := qpRequest(id, d0+"/protectionDomains/p")
	r.Type, r.Attributes = t, a
	qs, err := w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{r})
	if err != nil {
		return fabric.QueuePair{}, err
	}
	return qs[0], nil
}

func (w *world) modify(id string, to ib.QPState, a fabric.Attributes) (fabric.QueuePair, error) {
	return w.f.ModifyQueuePair(ctx(), alice, fabric.ModifyQueuePair{Update: fabric.Update{Name: d0 + "/queuePairs/" + id}, Target: to, Attributes: a})
}

// Each type has attributes of its own; the others are refused by name, in a
// create and on the way.
func TestAttributesByType(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.pd("p", "nodes/n1/sessions/s")
		n, one, index, psn, qkey, access := uint8(3), 1, 3, ib.PSN(7), ib.QKey(0x11111111), ib.RemoteWrite
		rc, uc, ud := []ib.QPType{ib.RC}, []ib.QPType{ib.RC, ib.UC}, []ib.QPType{ib.UD}
		all := append(uc, ud...)
		for _, typ := range all {
			must(w.of(typ, "q"+strings.ToLower(typ.String()), fabric.Attributes{}))
		}
		for _, tc := range []struct {
			field string
			a     fabric.Attributes
			types []ib.QPType
		}{
			{"path_mtu_bytes", fabric.Attributes{PathMTU: ib.MTU512}, uc},
			{"timeout", fabric.Attributes{Timeout: &n}, rc},
			{"retry_count", fabric.Attributes{RetryCount: &n}, rc},
			{"rnr_retry", fabric.Attributes{RNRRetry: &n}, rc},
			{"min_rnr_timer", fabric.Attributes{MinRNRTimer: &n}, rc},
			{"max_rd_atomic", fabric.Attributes{MaxRDAtomic: &one}, rc},
			{"max_dest_rd_atomic", fabric.Attributes{MaxDestRDAtomic: &one}, rc},
			{"traffic_class", fabric.Attributes{TrafficClass: &n}, all},
			{"hop_limit", fabric.Attributes{HopLimit: &n}, all},
			{"gid_index", fabric.Attributes{GIDIndex: &index}, all},
			{"psn", fabric.Attributes{PSN: &psn}, all},
			{"qkey", fabric.Attributes{QKey: &qkey}, ud},
			{"remote_access", fabric.Attributes{Access: &access}, uc},
		} {
			for _, typ := range all {
				_, err := w.of(typ, "", tc.a)
				_, onTheWay := w.modify("q"+strings.ToLower(typ.String()), ib.Reset, tc.a)
				if slices.Contains(tc.types, typ) {
					if err != nil || onTheWay != nil {
						t.Errorf("%v with %s: %v, %v", typ, tc.field, err, onTheWay)
					}
					must(w.modify("q"+strings.ToLower(typ.String()), ib.Init, fabric.Attributes{}))
					continue
				}
				for _, err := range []error{err, onTheWay} {
					if e := refused(t, err, fabric.FieldInvalid, "attributes."+tc.field); !strings.Contains(e.Error(), typ.String()) {
						t.Errorf("%v does not name the type %v", e, typ)
					}
				}
			}
		}
	})
}

func TestUCQueuePair(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		must(w.of(ib.UC, "u", fabric.Attributes{}))
		q := must(w.connect("u", peer))[0]
		if a := q.Attributes; q.QPState != ib.RTS || a.PathMTU != ib.MTU1024 || *a.Access != ib.RemoteWrite || a.Timeout != nil || a.RetryCount != nil ||
			a.RNRRetry != nil || a.MinRNRTimer != nil || a.MaxRDAtomic != nil || a.MaxDestRDAtomic != nil || a.QKey != nil {
			t.Errorf("in %v with %+v", q.QPState, a)
		}
		// A send that failed: receives go on, and the owner may go on sending.
		w.cards[0].fell(q.UID, ib.SQE, ib.LocProtErr, "not covered by its lkey")
		pass(time.Second)
		if q = w.getQP("u"); q.QPState != ib.SQE || q.Status != ib.LocProtErr || q.Target != ib.RTS {
			t.Errorf("%+v", q)
		}
		if q = must(w.modify("u", ib.RTS, fabric.Attributes{})); q.QPState != ib.RTS || q.Remote == nil || q.Remote.QPN != peer.QPN {
			t.Errorf("%+v", q)
		}
		must(w.connect("q", peer))
		w.cards[0].fell(w.getQP("q").UID, ib.SQE, ib.LocProtErr, "never seen of RC")
		pass(time.Second)
		_, err := w.modify("q", ib.RTS, fabric.Attributes{})
		refused(t, err, fabric.StateInvalid, "target_state")
		// A connected queue pair that the device lost has to be connected again.
		w.restart(true)
		if q = w.getQP("u"); q.QPState != ib.Init || q.Remote != nil {
			t.Errorf("%+v", q)
		}
		must(w.connect("u", peer))
	})
}

// A UD queue pair is in RTS at create, by one call of the device, with a Q_Key
// for its owner's eyes.
func TestUDQueuePair(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.pd("p", "nodes/n1/sessions/s")
		w.cards[0].calls = 0
		u := must(w.of(ib.UD, "u", fabric.Attributes{}))
		if a := u.Attributes; u.QPState != ib.RTS || w.cards[0].calls != 1 || a.QKey == nil || *a.QKey>>31 != 0 || a.Access != nil || a.PathMTU != 0 || a.Timeout != nil {
			t.Errorf("%d calls, %v, %+v", w.cards[0].calls, u.QPState, a)
		}
		if u.Local.GID != gidOf(0, 1) || u.Local.GIDIndex != 3 || u.Local.ActiveMTU != ib.MTU1024 {
			t.Errorf("local endpoint %+v: want the RoCE v2 entry that is not link-local", u.Local)
		}
		if init, rtr := lastTold[device.ToInit](w.cards[0], u.UID), lastTold[device.ToRTR](w.cards[0], u.UID); init.QKey != *u.Attributes.QKey || rtr.GIDIndex != -1 {
			t.Errorf("the device was told %+v, %+v: want the Q_Key, and the GID by each destination", init, rtr)
		}
		if other := must(w.of(ib.UD, "u2", fabric.Attributes{})); *other.Attributes.QKey == *u.Attributes.QKey {
			t.Error("two have one Q_Key by chance")
		}
		if seen := must(w.f.GetQueuePair(ctx(), root, u.Name)); seen.Attributes.QKey != nil {
			t.Error("the operator sees the Q_Key")
		}
		key, index, class := ib.QKey(0x11111111), 0, uint8(0x20)
		v := must(w.of(ib.UD, "v", fabric.Attributes{QKey: &key, GIDIndex: &index, TrafficClass: &class}))
		if rtr := lastTold[device.ToRTR](w.cards[0], v.UID); *v.Attributes.QKey != key || !v.Local.GID.IsLinkLocal() || rtr.GIDIndex != 0 || rtr.TrafficClass != class {
			t.Errorf("%+v, %+v, told %+v", v.Attributes, v.Local, rtr)
		}

		_, err := w.connect("u", peer)
		refused(t, err, fabric.FieldInvalid, "remote_endpoint")
		wrong := 1 // RoCE v1
		_, err = w.of(ib.UD, "", fabric.Attributes{GIDIndex: &wrong})
		refused(t, err, fabric.FieldInvalid, "attributes.gid_index")
		none := 2
		_, err = w.of(ib.UD, "", fabric.Attributes{GIDIndex: &none})
		refused(t, err, fabric.FieldInvalid, "attributes.gid_index")
		r := qpRequest("x", d0+"/protectionDomains/p")
		r.Type, r.Port = ib.UD, 2
		_, err = w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{r})
		refused(t, err, fabric.PathNotCabled, "port")
		r.Target = new(ib.QPState) // RESET needs no path
		must(w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{r}))

		w.cards[0].fell(u.UID, ib.SQE, ib.LocQPOpErr, "no such destination")
		pass(time.Second)
		if q := w.getQP("u"); q.QPState != ib.SQE {
			t.Errorf("%+v", q)
		}
		if q := must(w.modify("u", ib.RTS, fabric.Attributes{})); q.QPState != ib.RTS {
			t.Errorf("%+v", q)
		}
	})
}

func TestTypeThatTheDeviceLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cards[0].info.Capabilities = []device.Capability{device.CapRC}
		w.open()
		defer w.close()
		w.full()
		for _, typ := range []ib.QPType{ib.UC, ib.UD} {
			_, err := w.of(typ, "", fabric.Attributes{})
			if e := refused(t, err, fabric.Unsupported, "type"); e.Details["capability"] != typ.String() {
				t.Errorf("%v: %v", e, e.Details)
			}
		}
	})
}

// It has no connection that a restart could void: it is made again as it was,
// with another QPN.
func TestUDQueuePairSurvivesALossOfTheDevice(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		before := must(w.of(ib.UD, "u", fabric.Attributes{}))
		for _, lose := range []bool{false, true} {
			w.restart(lose)
			u := w.getQP("u")
			if u.QPState != ib.RTS || *u.Attributes.QKey != *before.Attributes.QKey || *u.Attributes.PSN != *before.Attributes.PSN || u.Condition.Reason != "" {
				t.Errorf("lost %v: %+v", lose, u)
			}
			if init := lastTold[device.ToInit](w.cards[0], u.UID); init.QKey != *before.Attributes.QKey {
				t.Errorf("lost %v: the device was told the Q_Key %#x, want %#x", lose, init.QKey, *before.Attributes.QKey)
			}
			if lose == (u.Local.QPN == before.Local.QPN) {
				t.Errorf("lost %v: QPN %#x, before %#x", lose, u.Local.QPN, before.Local.QPN)
			}
		}
	})
}

// What a queue pair does is of its type; of a list that has a fault nothing is
// posted.
func TestWorkByType(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		must(w.of(ib.UC, "u", fabric.Attributes{}))
		must(w.connect("u", peer))
		must(w.of(ib.UD, "d", fabric.Attributes{}))
		must(w.connect("q", peer))
		to := &device.Datagram{GID: peer.GID, QPN: 7}
		ops := []device.WorkOpcode{device.WorkSend, device.WorkSendImm, device.WorkWrite, device.WorkWriteImm, device.WorkRead, device.WorkCompareSwap, device.WorkFetchAdd, device.WorkRecv}
		for id, can := range map[string][]device.WorkOpcode{"q": ops, "u": {device.WorkSend, device.WorkSendImm, device.WorkWrite, device.WorkWriteImm, device.WorkRecv}, "d": {device.WorkSend, device.WorkSendImm, device.WorkRecv}} {
			for _, op := range ops {
				r := device.WorkRequest{Opcode: op}
				if id == "d" && op != device.WorkRecv {
					r.Dest = to
				}
				n, err := w.f.PostWork(ctx(), alice, fabric.PostWork{QueuePair: d0 + "/queuePairs/" + id, Requests: []device.WorkRequest{r}})
				switch {
				case slices.Contains(can, op):
					if must(n, err) != 1 {
						t.Errorf("%s: %d posted", id, n)
					}
				default:
					refused(t, err, fabric.FieldInvalid, "opcode")
				}
			}
		}
		for _, tc := range []struct {
			id     string
			r      device.WorkRequest
			reason fabric.Reason
			field  string
		}{
			{"q", device.WorkRequest{Opcode: device.WorkSend, Dest: to}, fabric.FieldInvalid, "destination"},
			{"u", device.WorkRequest{Opcode: device.WorkSend, Dest: to}, fabric.FieldInvalid, "destination"},
			{"d", device.WorkRequest{Opcode: device.WorkSend}, fabric.FieldRequired, "destination"},
			{"d", device.WorkRequest{Opcode: device.WorkSendImm, Dest: &device.Datagram{QPN: 7}}, fabric.FieldRequired, "destination.gid"},
		} {
			name, uid := d0+"/queuePairs/"+tc.id, w.getQP(tc.id).UID
			was := len(w.cards[0].work[uid])
			fine := device.WorkRequest{Opcode: device.WorkRecv}
			n, err := w.f.PostWork(ctx(), alice, fabric.PostWork{QueuePair: name, Requests: []device.WorkRequest{fine, tc.r, tc.r}})
			e := refused(t, err, tc.reason, tc.field)
			if n != 0 || e.Details["posted"] != "0" || e.Index != 1 || len(e.Violations) != 2 || e.Violations[1].Index != 2 {
				t.Errorf("%s: %d posted, %+v", tc.id, n, e)
			}
			if n := must(w.f.PostWork(ctx(), alice, fabric.PostWork{QueuePair: name, Requests: []device.WorkRequest{fine}, ValidateOnly: true})); n != 0 || len(w.cards[0].work[uid]) != was {
				t.Errorf("%s: a check or a refused list has posted", tc.id)
			}
		}
	})
}

// A device is told an attribute on the way to one state. After that another
// value would be a lie, and is refused; before, it is told.
func TestAttributesThatComeTooLate(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		n, access := uint8(3), ib.RemoteRead
		connect := fabric.ConnectQueuePair{Update: fabric.Update{Name: d0 + "/queuePairs/q"}, Remote: peer, Attributes: fabric.Attributes{Access: &access}}
		q := must(w.f.ConnectQueuePairs(ctx(), alice, false, []fabric.ConnectQueuePair{connect}))[0]
		if init := lastTold[device.ToInit](w.cards[0], q.UID); init.Access != access || *q.Attributes.Access != access {
			t.Errorf("the device was told %v, want %v", init.Access, access)
		}
		must(w.modify("q", ib.SQD, fabric.Attributes{}))
		for field, a := range map[string]fabric.Attributes{"timeout": {Timeout: &n}, "hop_limit": {HopLimit: &n}, "remote_access": {Access: &access}} {
			_, err := w.modify("q", ib.RTS, a)
			refused(t, err, fabric.StateInvalid, "attributes."+field)
		}
		if q = must(w.modify("q", ib.Init, fabric.Attributes{Timeout: &n})); *q.Attributes.Timeout != n {
			t.Errorf("%+v", q.Attributes)
		}
		if q = must(w.connect("q", peer))[0]; lastTold[device.ToRTS](w.cards[0], q.UID).Timeout != n {
			t.Error("the device was not told")
		}
	})
}
