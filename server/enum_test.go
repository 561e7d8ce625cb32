package server

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// whole checks that a table is one to one and has every value of the
// contract's enum but the first, and those that others serve.
func whole[D comparable, P protoEnum](t *testing.T, e enum[D, P], others ...P) {
	t.Helper()
	var zero P
	if len(e.to) != len(e.from) {
		t.Errorf("%s: two values of the domain are one of the contract", zero.Descriptor().Name())
	}
	served := map[protoreflect.EnumNumber]bool{0: true}
	for p, d := range e.from {
		if e.proto(d) != p {
			t.Errorf("%v does not come back", p)
		}
		if p.Descriptor().Values().ByNumber(p.Number()) == nil {
			t.Errorf("%d is no value of %s", p, zero.Descriptor().Name())
		}
		served[p.Number()] = true
	}
	for _, p := range others {
		served[p.Number()] = true
	}
	values := zero.Descriptor().Values()
	for i := range values.Len() {
		if !served[values.Get(i).Number()] {
			t.Errorf("%s is in no table", values.Get(i).FullName())
		}
	}
	if _, ok := e.domain(zero); ok {
		t.Errorf("%s: unspecified means something", zero.Descriptor().Name())
	}
}

func TestEnumTablesAreWhole(t *testing.T) {
	whole(t, sessionStates)
	whole(t, domainStates)
	whole(t, bufferStates)
	whole(t, regionStates)
	whole(t, exportStates)
	whole(t, queuePairPhases, pb.QueuePair_STATE_RESET, pb.QueuePair_STATE_INIT, pb.QueuePair_STATE_RTR, pb.QueuePair_STATE_RTS,
		pb.QueuePair_STATE_SQD, pb.QueuePair_STATE_SQE, pb.QueuePair_STATE_ERR)
	whole(t, queuePairStates, pb.QueuePair_STATE_PENDING, pb.QueuePair_STATE_LOST, pb.QueuePair_STATE_DELETING)
	whole(t, queuePairTypes)
	whole(t, accessFlags)
	whole(t, gidTypes)
	whole(t, portStates)
	whole(t, portClasses)
	whole(t, adminStates)
	whole(t, sessionModes)
	whole(t, workOpcodes)
	whole(t, completionOpcodes)
	whole(t, completionStatuses)
	whole(t, eventTypes)
	whole(t, healthStatuses)
	for status := range completionStatuses.to {
		if status != 0 && statusHelp[status] == "" {
			t.Errorf("nothing tells people what %v means", status)
		}
	}
	for op := range workOpcodes.to {
		if _, ok := uses[op]; !ok {
			t.Errorf("nothing tells which fields opcode %d has", op)
		}
	}
}
