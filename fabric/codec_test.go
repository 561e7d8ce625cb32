package fabric

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"github.com/accelfab/accelfab/device/ib"
)

func fullRecords() []*stored {
	base := func(k kind) *stored {
		return &stored{Kind: k, UID: newUID(), Revision: 3, Created: 1e18, Labels: map[string]string{"job": "1"}, Request: "r", Sum: 1 << 63, Session: 9, Deleting: true, Cause: CauseExpired}
	}
	s, b, m, q, p, g := base(kindSession), base(kindBuffer), base(kindRegion), base(kindQueuePair), base(kindPort), base(kindTombstone)
	s.SessionAsk = &sessionAsk{Identity: "uid:1", UID: 1, GID: 2, PID: 3, HasPeer: true, Devices: []string{"d0"}, Exclusive: true, TTL: 1e9, Generation: 1, BootID: "b"}
	b.BufferAsk = &bufferAsk{Size: 1 << 40, Alignment: 4096}
	m.RegionAsk = &regionAsk{PD: 1, Buffer: 2, Offset: 3, Length: 4, Access: ib.LocalWrite}
	q.QPAsk = &qpAsk{PD: 1, Port: 23, Type: ib.RC, SendWR: 1, RecvWR: 2, SGE: 3, Target: ib.RTS, Remote: &remoteAsk{GID: ib.GID{1}, QPN: 2, PSN: 3, PathMTU: 4, GIDIndex: -1, PKey: 5, Port: "p"},
		PathMTU: 3, Timeout: 14, RetryCount: 7, RNRRetry: 7, MinRNRTimer: 12, MaxRDAtomic: 1, MaxDestRDAtomic: 2, TrafficClass: 3, HopLimit: 64, GIDIndex: -1, PSN: 9, QKey: 8, Access: 6}
	p.PortAsk = &portAsk{Up: true}
	uid, e, i := newUID(), base(kindExport), base(kindRegion)
	e.ExportAsk = &exportAsk{Buffer: 3, Offset: 4096, Length: 8192, TTL: 1e9, Revoked: true, Fetchers: []fetcherAsk{{UID: new(uint32)}, {GID: new(uint32)}, {Session: "nodes/n/sessions/s", SessionUID: &uid}}}
	i.RegionAsk, i.ImportAsk = &regionAsk{PD: 1, Offset: 3, Length: 4}, &importAsk{Export: "nodes/n/devices/d/memoryExports/e", ExportUID: uid, IOVA: 3}
	g.Gone = &gone{Identity: "uid:1", At: 7}
	return []*stored{s, base(kindPD), b, m, q, p, g, e, i, base(kindNode)}
}

func TestCodecRoundTrip(t *testing.T) {
	for _, s := range fullRecords() {
		v := must(s.encode())
		got, err := decodeStored(v)
		if err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%v: %v\n got %+v\nwant %+v", s.Kind, err, got, s)
		}
		if len(v) > 400 {
			t.Errorf("%v takes %d bytes", s.Kind, len(v))
		}
	}
}

// S03: a later version's fields are kept by this one, and give it no trouble.
func TestS03UnknownFieldsSurvive(t *testing.T) {
	for _, s := range fullRecords() {
		var m map[uint64]cbor.RawMessage
		if err := cbor.Unmarshal(must(s.encode()), &m); err != nil {
			t.Fatal(err)
		}
		m[40], m[1000], m[41] = must(cbor.Marshal("later")), must(cbor.Marshal(map[string]int{"x": 1})), must(cbor.Marshal([]int{1, 2, 3}))
		old, err := decodeStored(must(cbor.Marshal(m)))
		if err != nil {
			t.Fatal(s.Kind, err)
		}
		old.Revision++
		v := must(old.encode())
		var back map[uint64]cbor.RawMessage
		if err := cbor.Unmarshal(v, &back); err != nil {
			t.Fatal(s.Kind, err)
		}
		for _, k := range []uint64{40, 41, 1000} {
			if !bytes.Equal(back[k], m[k]) {
				t.Errorf("%v: field %d is %x, was %x", s.Kind, k, back[k], m[k])
			}
		}
		again, err := decodeStored(v)
		if err != nil || again.Revision != s.Revision+1 || again.Kind != s.Kind {
			t.Errorf("%v: %+v, %v", s.Kind, again, err)
		}
	}
}

func TestCodecRefusals(t *testing.T) {
	later := fullRecords()[0]
	m := map[uint64]any{}
	if err := cbor.Unmarshal(must(later.encode()), &m); err != nil {
		t.Fatal(err)
	}
	m[0] = 2
	for name, v := range map[string][]byte{
		"later version": must(cbor.Marshal(m)),
		"empty":         {},
		"rubbish":       []byte("rubbish"),
		"no kind":       must(cbor.Marshal(map[int]int{0: 1})),
		"half":          must(cbor.Marshal(map[int]int{0: 1, 1: int(kindBuffer), 8: 1})),
	} {
		if _, err := decodeStored(v); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func FuzzDecodeStored(f *testing.F) {
	for _, s := range fullRecords() {
		f.Add(must(s.encode()))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeStored(b)
		if err != nil {
			return
		}
		v, err := s.encode()
		if err != nil {
			return // more unknown keys than a record may have
		}
		again, err := decodeStored(v)
		if err != nil || again.UID != s.UID || again.nx != s.nx {
			t.Fatalf("%x: %v", b, err)
		}
	})
}

func TestEventsRoundTrip(t *testing.T) {
	want := Event{Type: EventDeleted, Resource: "r", ResourceUID: newUID(), Labels: map[string]string{"a": "b"}, Session: "s", Owner: "o", Actor: "a", Before: "x", After: "y", Reason: CauseClosed, Message: "m"}
	got := decodeEvent(StoredEvent{Revision: 7, Value: must(encodeEvent(&want))})
	want.Cursor = 7
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if e := decodeEvent(StoredEvent{Revision: 8, Value: []byte("?")}); e.Cursor != 8 || e.Reason != Internal {
		t.Errorf("%+v", e)
	}
}
