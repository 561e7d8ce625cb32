package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
)

func TestCreateEachKindAndDelete(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.onDevice(1, 1, 1, 1)
		q := w.getQP("q")
		if q.QPState != ib.Init || q.State != fabric.StateReady || q.Local.QPN == 0 || q.Local.GID != gidOf(0, 1) || q.Local.GIDIndex != 3 {
			t.Errorf("queue pair %+v: want READY in INIT with the RoCE v2 GID that is not link-local", q)
		}
		m := must(w.f.GetMemoryRegion(ctx(), alice, d0+"/memoryRegions/m"))
		if m.RKey == 0 || m.Length != 8192 || m.Session != "nodes/n1/sessions/s" {
			t.Errorf("region %+v", m)
		}
		if m := must(w.f.GetMemoryRegion(ctx(), root, "nodes/local/devices/d0/memoryRegions/m")); m.RKey != 0 {
			t.Error("an operator who does not own the region sees its key")
		}
		e := refused(t, w.f.DeleteProtectionDomain(ctx(), alice, fabric.Delete{Name: d0 + "/protectionDomains/p"}), fabric.InUse, "")
		if e.Details["count"] != "2" || len(e.Shortage.Holders) != 2 {
			t.Errorf("%v: want both children named", e)
		}
		refused(t, w.f.DeleteBuffer(ctx(), alice, fabric.Delete{Name: d0 + "/buffers/b"}), fabric.InUse, "")
		refused(t, w.f.DeleteBuffer(ctx(), bob, fabric.Delete{Name: d0 + "/buffers/b"}), fabric.PermissionDenied, "")
		for _, err := range []error{
			w.f.DeleteQueuePairs(ctx(), alice, false, []fabric.Delete{{Name: d0 + "/queuePairs/q"}}),
			w.f.DeleteMemoryRegion(ctx(), alice, fabric.Delete{Name: d0 + "/memoryRegions/m"}),
			w.f.DeleteBuffer(ctx(), alice, fabric.Delete{Name: d0 + "/buffers/b"}),
			w.f.DeleteProtectionDomain(ctx(), alice, fabric.Delete{Name: d0 + "/protectionDomains/p"}),
			w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: "nodes/n1/sessions/s"}}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		w.onDevice(0, 0, 0, 0)
		_, err := w.f.GetQueuePair(ctx(), alice, d0+"/queuePairs/q")
		refused(t, err, fabric.NotFound, "name")
	})
}

func TestValidateOnlyChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		before := len(w.events())
		q := qpRequest("q2", d0+"/protectionDomains/p")
		qs, err := w.f.CreateQueuePairs(ctx(), alice, "r1", true, []fabric.CreateQueuePair{q})
		if must(qs, err); qs[0].Name != d0+"/queuePairs/q2" || qs[0].State != fabric.StatePending {
			t.Errorf("%+v", qs[0])
		}
		_, err = w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s2", ValidateOnly: true}})
		must(0, err)
		_, err = w.f.ConnectQueuePairs(ctx(), alice, true, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: d0 + "/queuePairs/q"}, Remote: peer}})
		must(0, err)
		refused(t, w.f.DeleteQueuePairs(ctx(), alice, false, nil), fabric.FieldInvalid, "requests")
		must(0, w.f.DeleteQueuePairs(ctx(), alice, true, []fabric.Delete{{Name: d0 + "/queuePairs/q"}}))
		must(0, w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: "nodes/n1/sessions/s", ValidateOnly: true}}))
		if q := w.getQP("q"); q.QPState != ib.Init || q.Remote != nil {
			t.Errorf("the queue pair moved: %+v", q)
		}
		w.onDevice(1, 1, 1, 1)
		if n := len(w.events()); n != before {
			t.Errorf("%d events were written", n-before)
		}
	})
}

func TestRequestID(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		r := fabric.CreateBuffer{Create: fabric.Create{Parent: d0, RequestID: "r-1"}, Session: "nodes/n1/sessions/s", Size: 4096}
		first := must(w.f.CreateBuffer(ctx(), alice, r))
		again := must(w.f.CreateBuffer(ctx(), alice, r))
		if first.UID != again.UID {
			t.Fatal("the same request made two")
		}
		other := r
		other.Size = 8192
		_, err := w.f.CreateBuffer(ctx(), alice, other)
		refused(t, err, fabric.RequestIDReused, "request_id")

		w.restart(false)
		again = must(w.f.CreateBuffer(ctx(), alice, r))
		if first.UID != again.UID || again.State != fabric.StateReady {
			t.Fatalf("after a restart the request has the answer %+v", again)
		}
		must(0, w.f.DeleteBuffer(ctx(), alice, fabric.Delete{Name: first.Name}))
		_, err = w.f.CreateBuffer(ctx(), alice, r)
		if e := refused(t, err, fabric.Tombstoned, "request_id"); e.Name != first.Name {
			t.Errorf("%v does not name %s", e, first.Name)
		}
		w.restart(false)
		_, err = w.f.CreateBuffer(ctx(), alice, r)
		refused(t, err, fabric.Tombstoned, "request_id")
		w.onDevice(0, 0, 0, 0)

		// Another identity may use the same id.
		w.session("t", bob)
		r.Session = "nodes/n1/sessions/t"
		must(w.f.CreateBuffer(ctx(), bob, r))
	})
}

// A check with the request id of a call is a check of that call: it has that
// call's answer, and with any other content or kind it is refused as the call
// would be.
func TestValidateOnlyWithARequestIDThatWasUsed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := fabric.CreateSession{Create: fabric.Create{Parent: "nodes/local", ID: "s", RequestID: "r-1"}, TTL: time.Hour}
		first := must(w.f.CreateSession(ctx(), alice, s))
		s.ValidateOnly = true
		if again := must(w.f.CreateSession(ctx(), alice, s)); again.UID != first.UID {
			t.Errorf("the check answers %+v: want the session that the call made", again)
		}
		check := fabric.Create{Parent: d0, RequestID: "r-1", ValidateOnly: true}
		_, err := w.f.CreateProtectionDomain(ctx(), alice, fabric.CreateProtectionDomain{Create: check, Session: first.Name})
		refused(t, err, fabric.RequestIDReused, "request_id")
		_, err = w.f.CreateQueuePairs(ctx(), alice, "r-1", true, []fabric.CreateQueuePair{qpRequest("q", d0+"/protectionDomains/p")})
		refused(t, err, fabric.RequestIDReused, "request_id")
		s.ID = "other"
		_, err = w.f.CreateSession(ctx(), alice, s)
		refused(t, err, fabric.RequestIDReused, "request_id")
	})
}

// Of two callers that wait for one create the first to go leaves the other
// waiting: it is not told of a queue pair that is not made yet.
func TestARetryThatGivesUpLeavesTheFirstCallWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.pd("p", "nodes/n1/sessions/s")
		w.cards[0].hold = make(chan struct{})
		create := func(within time.Duration) (fabric.QueuePair, error) {
			c, cancel := context.WithTimeout(ctx(), within)
			defer cancel()
			qs, err := w.f.CreateQueuePairs(c, alice, "r-1", false, []fabric.CreateQueuePair{qpRequest("q", d0+"/protectionDomains/p")})
			if err != nil {
				return fabric.QueuePair{}, err
			}
			return qs[0], nil
		}
		type answer struct {
			fabric.QueuePair
			err error
		}
		first := make(chan answer, 1)
		go func() {
			q, err := create(10 * time.Second)
			first <- answer{q, err}
		}()
		synctest.Wait()
		_, err := create(time.Second)
		refused(t, err, fabric.Timeout, "")
		synctest.Wait()
		select {
		case a := <-first:
			t.Fatalf("the first call has ended with %+v while the device was still at work", a)
		default:
		}
		close(w.cards[0].hold)
		if a := <-first; a.err != nil || a.QPState != ib.Init {
			t.Errorf("the first call: %+v", a)
		}
	})
}

func TestTombstonesAreForgottenInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		_, err := w.f.UpdateSession(ctx(), alice, fabric.UpdateSession{Update: fabric.Update{Name: "nodes/n1/sessions/s"}, TTL: 24 * time.Hour})
		must(0, err)
		r := fabric.CreateBuffer{Create: fabric.Create{Parent: d0, ID: "b", RequestID: "r-1"}, Session: "nodes/n1/sessions/s", Size: 4096}
		must(w.f.CreateBuffer(ctx(), alice, r))
		must(0, w.f.DeleteBuffer(ctx(), alice, fabric.Delete{Name: d0 + "/buffers/b"}))
		pass(2 * time.Hour)
		must(w.f.CreateBuffer(ctx(), alice, r))
	})
}

func TestRequestIDOfACallerThatLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.pd("p", "nodes/n1/sessions/s")
		hold := make(chan struct{})
		w.cards[0].mu.Lock()
		w.cards[0].hold = hold
		w.cards[0].mu.Unlock()
		gone, cancel := context.WithCancel(ctx())
		answer := make(chan error)
		rs := []fabric.CreateQueuePair{qpRequest("q", d0+"/protectionDomains/p")}
		go func() {
			_, err := w.f.CreateQueuePairs(gone, alice, "r", false, rs)
			answer <- err
		}()
		synctest.Wait()
		cancel()
		refused(t, <-answer, fabric.Cancelled, "")
		go func() {
			_, err := w.f.CreateQueuePairs(ctx(), alice, "r", false, rs)
			answer <- err
		}()
		synctest.Wait()
		close(hold)
		if err := <-answer; err != nil {
			t.Fatal("the retry:", err)
		}
		w.onDevice(1, 0, 0, 1)
	})
}

func TestBadFieldsAreAllNamed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.session("t", bob)
		pd := d0 + "/protectionDomains/p"
		u8 := func(n uint8) *uint8 { return &n }
		for _, tc := range []struct {
			name   string
			change func(*fabric.CreateQueuePair)
			reason fabric.Reason
			field  string
		}{
			{"no parent", func(r *fabric.CreateQueuePair) { r.Parent = "" }, fabric.FieldRequired, "parent"},
			{"parent of another node", func(r *fabric.CreateQueuePair) { r.Parent = "nodes/n2/devices/d0" }, fabric.FieldInvalid, "parent"},
			{"device that is not there", func(r *fabric.CreateQueuePair) { r.Parent = "nodes/n1/devices/d7" }, fabric.NotFound, "parent"},
			{"bad id", func(r *fabric.CreateQueuePair) { r.ID = "Q_1" }, fabric.FieldInvalid, "id"},
			{"id taken", func(r *fabric.CreateQueuePair) { r.ID = "q" }, fabric.AlreadyExists, "id"},
			{"no domain", func(r *fabric.CreateQueuePair) { r.ProtectionDomain = "" }, fabric.FieldRequired, "protection_domain"},
			{"domain of the wrong form", func(r *fabric.CreateQueuePair) { r.ProtectionDomain = d0 + "/buffers/b" }, fabric.FieldInvalid, "protection_domain"},
			{"domain that is not there", func(r *fabric.CreateQueuePair) { r.ProtectionDomain = d0 + "/protectionDomains/x" }, fabric.NotFound, "protection_domain"},
			{"no type", func(r *fabric.CreateQueuePair) { r.Type = 0 }, fabric.FieldRequired, "type"},
			{"port", func(r *fabric.CreateQueuePair) { r.Port = 3 }, fabric.FieldInvalid, "port"},
			{"queue too long", func(r *fabric.CreateQueuePair) { r.SendWR = 1025 }, fabric.FieldInvalid, "capacities.send_wr"},
			{"retry count", func(r *fabric.CreateQueuePair) { r.Attributes.RetryCount = u8(8) }, fabric.FieldInvalid, "attributes.retry_count"},
			{"QKey of RC", func(r *fabric.CreateQueuePair) { k := ib.QKey(1); r.Attributes.QKey = &k }, fabric.FieldInvalid, "attributes.qkey"},
			{"target", func(r *fabric.CreateQueuePair) { s := ib.SQD; r.Target = &s }, fabric.FieldInvalid, "target_state"},
			{"RTS without a peer", func(r *fabric.CreateQueuePair) { s := ib.RTS; r.Target = &s }, fabric.FieldRequired, "remote_endpoint.gid"},
			{"labels", func(r *fabric.CreateQueuePair) { r.Labels = map[string]string{"A": "x"} }, fabric.FieldInvalid, "labels"},
		} {
			r := qpRequest("new", pd)
			tc.change(&r)
			_, err := w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{r})
			t.Log(tc.name, err)
			refused(t, err, tc.reason, tc.field)
		}
		two := qpRequest("Bad", pd)
		two.Port, two.SGE = 9, 99
		_, err := w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{qpRequest("ok", pd), two})
		if e := refused(t, err, fabric.FieldInvalid, "id"); e.Violations[0].Index != 1 {
			t.Errorf("%+v: want the second of the batch", e)
		}
		_, err = w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/x", ID: "-"}, TTL: time.Millisecond, Devices: []string{"d0"}})
		if e := refused(t, err, fabric.FieldInvalid, "parent"); len(e.Violations) != 4 {
			t.Errorf("%d violations: %v; want 4", len(e.Violations), e)
		}
		_, err = w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: d0}, Session: "nodes/n1/sessions/t", Size: 1})
		refused(t, err, fabric.PermissionDenied, "")
		_, err = w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: d0}, Session: "nodes/n1/sessions/s", Alignment: 3})
		if e := refused(t, err, fabric.FieldRequired, "size_bytes"); len(e.Violations) != 2 {
			t.Errorf("%v: want both faults", e)
		}
		_, err = w.f.CreateMemoryRegion(ctx(), alice, fabric.CreateMemoryRegion{Create: fabric.Create{Parent: d0}, ProtectionDomain: pd, Buffer: d0 + "/buffers/b", Offset: 4096, Length: 4097})
		refused(t, err, fabric.FieldInvalid, "length_bytes")
		_, err = w.f.CreateMemoryRegion(ctx(), alice, fabric.CreateMemoryRegion{Create: fabric.Create{Parent: d0}, ProtectionDomain: pd, Buffer: d0 + "/buffers/b", Access: ib.RemoteWrite})
		refused(t, err, fabric.FieldInvalid, "access")
		w.onDevice(1, 1, 1, 1)
	})
}

// Q09: a shortage says what was asked, what is left, and who has the rest.
func TestOverAskNamesTheHolders(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.buffer("b", "nodes/n1/sessions/s", 1<<20-4096)
		s2 := w.session("t", bob)
		_, err := w.f.CreateBuffer(ctx(), bob, fabric.CreateBuffer{Create: fabric.Create{Parent: d0, ID: "c", RequestID: "r"}, Session: s2.Name, Size: 8192})
		e := refused(t, err, fabric.Exhausted, "")
		if s := e.Shortage; s == nil || s.Asked != 8192 || s.Available != 4096 || s.Limit != 1<<20 || s.Holders[0].Name != "nodes/n1/sessions/s" || s.Holders[0].PID != 4711 {
			t.Errorf("%+v", e.Shortage)
		}
		if !strings.Contains(e.Error(), "nodes/n1/sessions/s") {
			t.Errorf("%v does not name the holder", e)
		}
		// Nothing stays of it, and the request may be tried again.
		_, err = w.f.GetBuffer(ctx(), bob, d0+"/buffers/c")
		refused(t, err, fabric.NotFound, "")
		must(0, w.f.DeleteBuffer(ctx(), alice, fabric.Delete{Name: d0 + "/buffers/b"}))
		must(w.f.CreateBuffer(ctx(), bob, fabric.CreateBuffer{Create: fabric.Create{Parent: d0, ID: "c", RequestID: "r"}, Session: s2.Name, Size: 8192}))
	})
}

func TestBatchIsAllOrNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.pd("p", "nodes/n1/sessions/s")
		w.cards[0].info.Limits.QueuePairs = 5
		rs := make([]fabric.CreateQueuePair, 8)
		for i := range rs {
			rs[i] = qpRequest(fmt.Sprintf("q%d", i), d0+"/protectionDomains/p")
		}
		_, err := w.f.CreateQueuePairs(ctx(), alice, "batch", false, rs)
		if e := refused(t, err, fabric.Exhausted, ""); e.Index != 5 {
			t.Errorf("the fault is at %d: want 5", e.Index)
		}
		w.onDevice(1, 0, 0, 0)
		p := must(w.f.ListQueuePairs(ctx(), alice, fabric.List{Parent: d0}, nil))
		if len(p.Items) != 0 {
			t.Errorf("%d records stay", len(p.Items))
		}
		qs, err := w.f.CreateQueuePairs(ctx(), alice, "batch", false, rs[:5])
		must(qs, err)
		again, err := w.f.CreateQueuePairs(ctx(), alice, "batch", false, rs[:5])
		if must(again, err); len(again) != 5 || again[4].UID != qs[4].UID {
			t.Error("the batch has another answer the second time")
		}
	})
}

func TestManyCreatesTakeFewDeviceCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.pd("p", "nodes/n1/sessions/s")
		hold := make(chan struct{})
		w.cards[0].mu.Lock()
		w.cards[0].hold, w.cards[0].calls = hold, 0
		w.cards[0].mu.Unlock()
		errs := make(chan error)
		for i := range 64 {
			go func() {
				_, err := w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{qpRequest(fmt.Sprintf("q%d", i), d0+"/protectionDomains/p")})
				errs <- err
			}()
		}
		synctest.Wait()
		close(hold)
		for range 64 {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		w.cards[0].mu.Lock()
		defer w.cards[0].mu.Unlock()
		if w.cards[0].calls > 2 {
			t.Errorf("%d calls of the device for 64 creates that were there together: want at most 2", w.cards[0].calls)
		}
	})
}

func TestTransientFaultIsRetried(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.cards[0].fail("CreateProtectionDomains", errIO)
		late, cancel := context.WithTimeout(ctx(), time.Second)
		defer cancel()
		r := fabric.CreateProtectionDomain{Create: fabric.Create{Parent: d0, ID: "p", RequestID: "r"}, Session: "nodes/n1/sessions/s"}
		_, err := w.f.CreateProtectionDomain(late, alice, r)
		if e := refused(t, err, fabric.Timeout, ""); !strings.Contains(e.Error(), errIO.Error()) {
			t.Errorf("%v does not say what is wrong", e)
		}
		p := must(w.f.GetProtectionDomain(ctx(), alice, d0+"/protectionDomains/p"))
		if p.State != fabric.StatePending || !p.Condition.Reconciling || p.Condition.Reason != fabric.DeviceUnavailable {
			t.Errorf("%+v", p)
		}
		w.cards[0].fail("CreateProtectionDomains", nil)
		again := must(w.f.CreateProtectionDomain(ctx(), alice, r))
		if again.UID != p.UID || again.State != fabric.StateReady {
			t.Errorf("%+v", again)
		}
	})
}

func TestStoreRefusal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.mem.Close() // a store that refuses from now on
		_, err := w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: d0, ID: "b", RequestID: "r"}, Session: "nodes/n1/sessions/s", Size: 1})
		refused(t, err, fabric.StoreUnavailable, "")
		if !errors.Is(err, fabric.ErrStoreClosed) {
			t.Errorf("%v does not wrap the store's error", err)
		}
		_, err = w.f.GetBuffer(ctx(), alice, d0+"/buffers/b")
		refused(t, err, fabric.NotFound, "")
		w.onDevice(0, 0, 0, 0)
	})
}

func TestListPages(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.session("t", bob)
		for i := range 25 {
			parent := []string{d0, d1}[i%2]
			_, err := w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: parent, ID: fmt.Sprintf("b%d", i)}, Session: "nodes/n1/sessions/s", Size: 1})
			must(0, err)
		}
		var names []string
		for r := (fabric.List{Parent: "nodes/local/devices/-", PageSize: 10}); ; {
			p := must(w.f.ListBuffers(ctx(), alice, r, nil))
			for _, b := range p.Items {
				names = append(names, b.Name[strings.LastIndex(b.Name, "/")+1:])
			}
			if p.Next == 0 {
				break
			}
			r.After = p.Next
		}
		if len(names) != 25 || names[0] != "b0" || names[24] != "b24" || names[13] != "b13" {
			t.Errorf("%v: want b0 to b24 in the order of their age", names)
		}
		if p := must(w.f.ListBuffers(ctx(), bob, fabric.List{Parent: d0}, nil)); len(p.Items) != 0 {
			t.Error("another tenant sees them")
		}
		if p := must(w.f.ListBuffers(ctx(), root, fabric.List{Parent: d1, Session: "nodes/n1/sessions/s"}, nil)); len(p.Items) != 12 {
			t.Errorf("the operator sees %d on d1: want 12", len(p.Items))
		}
		p := must(w.f.ListBuffers(ctx(), alice, fabric.List{Parent: d0}, func(b *fabric.Buffer) bool { return b.Name == d0+"/buffers/b4" }))
		if len(p.Items) != 1 {
			t.Errorf("filter gave %d", len(p.Items))
		}
	})
}

func TestSetPort(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		_, err := w.f.SetPort(ctx(), alice, fabric.SetPort{Update: fabric.Update{Name: d0 + "/ports/1"}, Up: true})
		refused(t, err, fabric.PermissionDenied, "")
		_, err = w.f.SetPort(ctx(), root, fabric.SetPort{Update: fabric.Update{Name: d0 + "/ports/2"}, Up: true})
		refused(t, err, fabric.FieldInvalid, "admin_state")
		_, err = w.f.SetPort(ctx(), root, fabric.SetPort{Update: fabric.Update{Name: d0 + "/ports/01"}, Up: true})
		refused(t, err, fabric.FieldInvalid, "name")
		p := must(w.f.SetPort(ctx(), root, fabric.SetPort{Update: fabric.Update{Name: d0 + "/ports/0"}, Up: true}))
		if p.PeerDevice != d1 || p.Class != device.PortInternal {
			t.Errorf("%+v", p)
		}
		w.restart(false)
	})
}
