package host

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/devicetest"
	"github.com/accelfab/accelfab/device/ib"
	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

// fill puts something that is not zero into every field, so that one which a
// conversion forgets shows.
func fill(v reflect.Value, random *rand.Rand) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1 + random.Int64N(1<<30))
	case reflect.Uint8:
		v.SetUint(1 + random.Uint64N(255))
	case reflect.Uint16:
		v.SetUint(1 + random.Uint64N(65535))
	case reflect.Uint32:
		v.SetUint(1 + random.Uint64N(1<<32-1))
	case reflect.Uint64:
		v.SetUint(1 + random.Uint64N(1<<63))
	case reflect.String:
		v.SetString(fmt.Sprint(random.Uint64()))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), random)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), random)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(random.Int64N(1<<32), random.Int64N(1e9))))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), random)
		}
	default:
		panic("cannot fill a " + v.Type().String())
	}
}

// crosses checks that a value, full and zero, is the same on the other side.
func crosses[V any, P proto.Message](t *testing.T, there func(V) P, back func(P) V) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	for _, full := range []bool{true, false} {
		var v V
		if full {
			fill(reflect.ValueOf(&v).Elem(), random)
		}
		b, err := proto.Marshal(there(v))
		if err != nil {
			t.Fatal(err)
		}
		p := there(*new(V)).ProtoReflect().New().Interface().(P)
		if err := proto.Unmarshal(b, p); err != nil {
			t.Fatal(err)
		}
		if got := back(p); !reflect.DeepEqual(got, v) {
			t.Errorf("%T crossed as\n%+v, was\n%+v", v, got, v)
		}
	}
}

func TestValuesCrossWhole(t *testing.T) {
	crosses(t, infoProto, infoOf)
	crosses(t, portProto, portOf)
	crosses(t, domainProto, domainOf)
	crosses(t, bufferProto, bufferOf)
	crosses(t, regionProto, regionOf)
	crosses(t, regionSpecProto, regionSpecOf)
	crosses(t, exportProto, exportOf)
	crosses(t, queuePairProto, queuePairOf)
	crosses(t, workProto, workOf)
	crosses(t, completionProto, completionOf)
}

func TestStepsCrossWhole(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	init, rtr, rts := device.ToInit{}, device.ToRTR{}, device.ToRTS{}
	for _, v := range []any{&init, &rtr, &rts} {
		fill(reflect.ValueOf(v).Elem(), random)
	}
	spec := device.QueuePairSpec{UID: devicetest.NewUID(), PD: 2, Port: 3, Type: ib.UD, SendWR: 4, RecvWR: 5, SGE: 6,
		Steps: []device.Transition{device.ToReset{}, init, rtr, rts, device.ToSQD{}, device.ToErr{}, device.ToRTR{GIDIndex: -1}}}
	got, err := queuePairSpecOf(queuePairSpecProto(spec))
	if err != nil || !reflect.DeepEqual(got, spec) {
		t.Errorf("crossed as\n%+v (%v), was\n%+v", got, err, spec)
	}
	if _, err := stepOf(&pb.Transition{}); err == nil {
		t.Error("a step that nobody knows was taken")
	}
}

// TestErrorsCross holds every error of a device to what errors.Is and errors.As
// find on the other side.
func TestErrorsCross(t *testing.T) {
	every := []error{device.ErrNotFound, device.ErrExists, device.ErrBusy, device.ErrClosed, device.ErrExhausted, device.ErrInvalid,
		device.ErrRevoked, device.ErrAttach, device.ErrUnavailable, errors.ErrUnsupported, context.Canceled, context.DeadlineExceeded, ib.ErrTransition}
	typed := []error{
		&device.FieldError{Field: "length", Problem: "0: at least 1"},
		&device.LimitError{Kind: "queue_pairs", Asked: 1, Available: 2, Limit: 3, Detail: "in pieces"},
		&device.StateError{State: ib.RTR, Want: "RTS"},
		&device.AttachError{Reason: device.NotReachable, Problem: "far", Alternatives: []string{"a", "b"}},
		&ib.TransitionError{Type: ib.RC, From: ib.Init, To: ib.RTS, Missing: ib.AttrAV, NotAllowed: ib.AttrQKey},
		&device.PostError{Index: 7, Err: &device.LimitError{Kind: "send_wr", Asked: 1}},
		&device.PostError{Index: 8, Err: fmt.Errorf("queue pair: %w", device.ErrNotFound)},
		&device.PostError{Index: 9, Err: &device.StateError{State: ib.Err, Want: "RTS"}},
	}
	cases := []error{errors.New("unknown to the contract"), errors.Join(device.ErrBusy, device.ErrNotFound)}
	for _, e := range append(every[:len(every)-1:len(every)-1], typed...) {
		cases = append(cases, e, fmt.Errorf("wrapped: %w", e))
	}
	for _, want := range cases {
		b, err := proto.Marshal(encodeError(want))
		if err != nil {
			t.Fatal(err)
		}
		var p pb.Error
		if err := proto.Unmarshal(b, &p); err != nil {
			t.Fatal(err)
		}
		got := decodeError(&p)
		if got.Error() != want.Error() {
			t.Errorf("text %q, was %q", got, want)
		}
		for _, e := range every {
			if errors.Is(got, e) != errors.Is(want, e) {
				t.Errorf("%v: errors.Is finds %v: %t, was %t", want, e, errors.Is(got, e), errors.Is(want, e))
			}
		}
		same[*device.FieldError](t, got, want)
		same[*device.LimitError](t, got, want)
		same[*device.StateError](t, got, want)
		same[*device.AttachError](t, got, want)
		same[*ib.TransitionError](t, got, want)
		same[*device.PostError](t, got, want)
	}
	if err := decodeError(encodeError(nil)); err != nil {
		t.Errorf("no error crossed as %v", err)
	}
	if errs := decodeErrors(encodeErrors([]error{nil, device.ErrBusy}), 3); errs[0] != nil || !errors.Is(errs[1], device.ErrBusy) || errs[2] == nil {
		t.Errorf("a batch crossed as %v", errs)
	}
}

func same[E error](t *testing.T, got, want error) {
	t.Helper()
	g, foundG := errors.AsType[E](got)
	w, foundW := errors.AsType[E](want)
	if foundG != foundW || foundW && g.Error() != w.Error() {
		t.Errorf("%v: errors.As finds a %T: %t %v, was %t %v", want, w, foundG, g, foundW, w)
	}
}

func TestVersionsMayBeOneApart(t *testing.T) {
	us := protocols{4, 5}
	for _, c := range []struct {
		them protocols
		want uint32
	}{{protocols{2, 3}, 0}, {protocols{3, 4}, 4}, {protocols{4, 5}, 5}, {protocols{5, 6}, 5}, {protocols{6, 7}, 0}, {protocols{}, 0}} {
		got, err := agree(us, "ours-1", c.them, "theirs-2")
		if got != c.want || (err == nil) != (c.want > 0) || err != nil && !errors.Is(err, ErrVersion) {
			t.Errorf("with %v: %d, %v; want %d", c.them, got, err, c.want)
		}
	}
}
