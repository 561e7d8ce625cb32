package server

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
)

// Each counter of a port is in the contract, and no two are the same one.
func TestEveryCounterOfAPortIsTold(t *testing.T) {
	p := fabric.Port{Port: device.Port{Reason: "no carrier", ReceiveBuffer: 4096, ReceiveBufferAsked: 8192}}
	counters := reflect.ValueOf(&p.Counters).Elem()
	for i := range counters.NumField() {
		counters.Field(i).SetUint(uint64(i) + 1)
	}
	out := portToProto(device.UID{}, &p)
	if out.Message != "no carrier" || out.ReceiveBufferBytes != 4096 || out.ReceiveBufferAskedBytes != 8192 {
		t.Errorf("message %q, receive buffer %d of %d", out.Message, out.ReceiveBufferBytes, out.ReceiveBufferAskedBytes)
	}
	told := map[uint64]protoreflect.Name{}
	m := out.Counters.ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		n := m.Get(f).Uint()
		if other, twice := told[n]; twice || n == 0 {
			t.Errorf("%s has %d, as %q has", f.Name(), n, other)
		}
		told[n] = f.Name()
	}
	for i := range counters.NumField() {
		if told[uint64(i)+1] == "" {
			t.Errorf("%s is not told", counters.Type().Field(i).Name)
		}
	}
}
