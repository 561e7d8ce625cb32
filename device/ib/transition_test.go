package ib

import (
	"errors"
	"strings"
	"testing"
)

// legalSteps has a line a state that is left and a column a state that is
// entered, both in the order RESET INIT RTR RTS SQD SQE ERR. The letters are the
// types for which the step may be asked for: a for all, u for UC and UD.
const legalSteps = `
	a a . . . . a
	a a a . . . a
	a . . a . . a
	a . . a a . a
	a . . a a . a
	a . . u . . a
	a . . . . . a`

// stepAttrs has the attributes of each step that takes any: type, step,
// required, optional. It was written from the specification's table by way of
// qp_state_table in the kernel's verbs.c, and shares nothing with the code.
const stepAttrs = `
	RC RESET>INIT PKEY_INDEX,PORT,ACCESS_FLAGS -
	UC RESET>INIT PKEY_INDEX,PORT,ACCESS_FLAGS -
	UD RESET>INIT PKEY_INDEX,PORT,QKEY -
	RC INIT>INIT - PKEY_INDEX,PORT,ACCESS_FLAGS
	UC INIT>INIT - PKEY_INDEX,PORT,ACCESS_FLAGS
	UD INIT>INIT - PKEY_INDEX,PORT,QKEY
	RC INIT>RTR AV,PATH_MTU,DEST_QPN,RQ_PSN,MAX_DEST_RD_ATOMIC,MIN_RNR_TIMER ALT_PATH,ACCESS_FLAGS,PKEY_INDEX
	UC INIT>RTR AV,PATH_MTU,DEST_QPN,RQ_PSN ALT_PATH,ACCESS_FLAGS,PKEY_INDEX
	UD INIT>RTR - PKEY_INDEX,QKEY
	RC RTR>RTS TIMEOUT,RETRY_CNT,RNR_RETRY,SQ_PSN,MAX_QP_RD_ATOMIC CUR_STATE,ALT_PATH,ACCESS_FLAGS,MIN_RNR_TIMER,PATH_MIG_STATE
	UC RTR>RTS SQ_PSN CUR_STATE,ALT_PATH,ACCESS_FLAGS,PATH_MIG_STATE
	UD RTR>RTS SQ_PSN CUR_STATE,QKEY
	RC RTS>RTS - CUR_STATE,ACCESS_FLAGS,ALT_PATH,PATH_MIG_STATE,MIN_RNR_TIMER
	UC RTS>RTS - CUR_STATE,ACCESS_FLAGS,ALT_PATH,PATH_MIG_STATE
	UD RTS>RTS - CUR_STATE,QKEY
	RC RTS>SQD - EN_SQD_ASYNC_NOTIFY
	UC RTS>SQD - EN_SQD_ASYNC_NOTIFY
	UD RTS>SQD - EN_SQD_ASYNC_NOTIFY
	RC SQD>RTS - CUR_STATE,ALT_PATH,ACCESS_FLAGS,MIN_RNR_TIMER,PATH_MIG_STATE
	UC SQD>RTS - CUR_STATE,ALT_PATH,ACCESS_FLAGS,PATH_MIG_STATE
	UD SQD>RTS - CUR_STATE,QKEY
	RC SQD>SQD - PORT,AV,TIMEOUT,RETRY_CNT,RNR_RETRY,MAX_QP_RD_ATOMIC,MAX_DEST_RD_ATOMIC,ALT_PATH,ACCESS_FLAGS,PKEY_INDEX,MIN_RNR_TIMER,PATH_MIG_STATE
	UC SQD>SQD - AV,ALT_PATH,ACCESS_FLAGS,PKEY_INDEX,PATH_MIG_STATE
	UD SQD>SQD - PKEY_INDEX,QKEY
	UC SQE>RTS - CUR_STATE,ACCESS_FLAGS
	UD SQE>RTS - CUR_STATE,QKEY`

// attrBits are the verbs' names in the order of their bits.
var attrBits = strings.Fields(`STATE CUR_STATE EN_SQD_ASYNC_NOTIFY ACCESS_FLAGS PKEY_INDEX PORT QKEY AV PATH_MTU TIMEOUT
	RETRY_CNT RNR_RETRY RQ_PSN MAX_QP_RD_ATOMIC ALT_PATH MIN_RNR_TIMER SQ_PSN MAX_DEST_RD_ATOMIC PATH_MIG_STATE CAP DEST_QPN`)

func parseAttrs(t *testing.T, list string) (m AttrMask) {
	t.Helper()
	if list == "-" {
		return 0
	}
next:
	for name := range strings.SplitSeq(list, ",") {
		for i, bit := range attrBits {
			if bit == name {
				m |= 1 << i
				continue next
			}
		}
		t.Fatalf("no attribute %s", name)
	}
	return m
}

func TestCheckTransition(t *testing.T) {
	type attrs struct{ need, may AttrMask }
	want := map[string]attrs{}
	for line := range strings.Lines(strings.TrimSpace(stepAttrs)) {
		f := strings.Fields(line)
		want[f[0]+" "+f[1]] = attrs{parseAttrs(t, f[2]), parseAttrs(t, f[3])}
	}
	legal := strings.Fields(legalSteps)
	steps := 0
	for _, typ := range []QPType{RC, UC, UD} {
		for from := Reset; from <= Err; from++ {
			for to := Reset; to <= Err; to++ {
				name := typ.String() + " " + from.String() + ">" + to.String()
				a := want[name]
				delete(want, name)
				switch cell := legal[int(from)*7+int(to)]; {
				case cell == "a", cell == "u" && typ != RC:
					steps++
					checkLegal(t, name, typ, from, to, a.need, a.may)
				default:
					checkIllegal(t, name, typ, from, to)
				}
			}
		}
	}
	if steps != 3*23-1 {
		t.Errorf("%d legal steps, want 68", steps)
	}
	if len(want) != 0 {
		t.Errorf("attributes of steps that were not tried: %v", want)
	}
}

func checkLegal(t *testing.T, name string, typ QPType, from, to QPState, need, may AttrMask) {
	for _, mask := range []AttrMask{need, need | may, need | may | AttrState} {
		if err := CheckTransition(typ, from, to, mask); err != nil {
			t.Errorf("%s with %v: %v", name, mask, err)
		}
	}
	for bit := range 32 {
		attr := AttrMask(1) << bit
		var wantMissing, wantExtra AttrMask
		mask := need
		switch {
		case need&attr != 0:
			mask, wantMissing = need&^attr, attr
		case may&attr == 0 && attr != AttrState:
			mask, wantExtra = need|attr, attr
		default:
			continue
		}
		var e *TransitionError
		err := CheckTransition(typ, from, to, mask)
		if !errors.As(err, &e) || !errors.Is(err, ErrTransition) ||
			*e != (TransitionError{typ, from, to, wantMissing, wantExtra}) {
			t.Errorf("%s with %v: got %#v, want missing %v, not allowed %v", name, mask, err, wantMissing, wantExtra)
			continue
		}
		for _, part := range []string{from.String(), to.String(), attr.String()} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not name %s", name, err, part)
			}
		}
	}
}

func checkIllegal(t *testing.T, name string, typ QPType, from, to QPState) {
	for _, mask := range []AttrMask{0, AttrState, 1<<attrEnd - 1} {
		var e *TransitionError
		err := CheckTransition(typ, from, to, mask)
		if !errors.As(err, &e) || *e != (TransitionError{Type: typ, From: from, To: to}) {
			t.Errorf("%s with %v: got %#v, want it refused", name, mask, err)
		}
	}
}

func TestTransitionErrorText(t *testing.T) {
	tests := []struct {
		typ      QPType
		from, to QPState
		mask     AttrMask
		want     string
	}{
		{RC, Reset, RTS, 0, "RC queue pair cannot go from RESET to RTS: from RESET it may go to RESET, INIT, ERR"},
		{RC, SQE, RTS, 0, "RC queue pair cannot go from SQE to RTS: from SQE it may go to RESET, ERR"},
		{UD, Reset, Init, AttrPort | AttrAV, "UD queue pair cannot go from RESET to INIT: missing PKEY_INDEX|QKEY: not allowed here AV"},
		{9, Reset, Init, 0, "QPType(9) queue pair cannot go from RESET to INIT"},
		{RC, 7, Reset, 0, "RC queue pair cannot go from QPState(7) to RESET"},
		{RC, RTS, 8, 0, "RC queue pair cannot go from RTS to QPState(8): from RTS it may go to RESET, RTS, SQD, ERR"},
	}
	for _, tt := range tests {
		err := CheckTransition(tt.typ, tt.from, tt.to, tt.mask)
		if err == nil || err.Error() != tt.want {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
	}
}

func TestAttrMaskString(t *testing.T) {
	for i, name := range attrBits {
		if got := AttrMask(1 << i).String(); got != name {
			t.Errorf("bit %d is %s, want %s", i, got, name)
		}
	}
	if got, want := (AttrState | AttrDestQPN | 1<<25).String(), "STATE|DEST_QPN|0x2000000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := AttrMask(0).String(); got != "0" {
		t.Errorf("empty set is %q", got)
	}
}
