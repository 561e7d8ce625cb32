package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

type transferService struct {
	pb.UnimplementedTransferServiceServer
	*Server
}

// maxChunk is the most that one read or write of a buffer carries, bytes.
const maxChunk = 1 << 20

// uses says which fields of a work request its opcode has.
var uses = map[device.WorkOpcode]struct{ remote, imm, compareAdd, swap, sends bool }{
	device.WorkSend:        {sends: true},
	device.WorkSendImm:     {sends: true, imm: true},
	device.WorkWrite:       {remote: true},
	device.WorkWriteImm:    {remote: true, imm: true},
	device.WorkRead:        {remote: true},
	device.WorkCompareSwap: {remote: true, compareAdd: true, swap: true},
	device.WorkFetchAdd:    {remote: true, compareAdd: true},
	device.WorkRecv:        {},
}

// work converts a work request.
func (v *faults) work(field string, r *pb.WorkRequest) device.WorkRequest {
	op, ok := workOpcodes.domain(r.GetOpcode())
	out := device.WorkRequest{ID: r.GetWrId(), Opcode: op, RemoteAddr: r.GetRemoteAddress(), RKey: ib.RKey(r.GetRkey()),
		Imm: r.GetImmData(), Compare: r.GetCompareAdd(), Swap: r.GetSwap(), Signaled: r.GetSignaled(), Solicited: r.GetSolicited()}
	switch {
	case r.GetOpcode() == pb.WorkRequest_OPCODE_UNSPECIFIED:
		v.required(field+".opcode", "want one of "+workOpcodes.names())
	case !ok:
		v.invalid(field+".opcode", "%d: want one of %s", r.GetOpcode(), workOpcodes.names())
	}
	for i, s := range r.GetSges() {
		if s.GetLkey() == 0 {
			v.required(fmt.Sprintf("%s.sges[%d].lkey", field, i), "want the lkey of a memory region")
		}
		out.SGL = append(out.SGL, device.SGE{Address: s.GetAddress(), Length: s.GetLengthBytes(), LKey: ib.LKey(s.GetLkey())})
	}
	if d := r.GetDestination(); d != nil {
		at := field + ".destination"
		if d.Gid == "" {
			v.required(at+".gid", "want the GID of the receiver")
		}
		if d.Qpn < 1 || ib.QPN(d.Qpn) >= ib.MaxQPN { // the last is multicast
			v.invalid(at+".qpn", "%#x: want 1 to 0xfffffe", d.Qpn)
		}
		out.Dest = &device.Datagram{GID: v.gid(at+".gid", d.Gid), QPN: ib.QPN(d.Qpn), QKey: ib.QKey(d.Qkey)}
	}
	if !ok {
		return out
	}
	u := uses[op]
	for _, f := range []struct {
		name  string
		given bool
		fits  bool
	}{
		{"remote_address", r.GetRemoteAddress() != 0, u.remote},
		{"rkey", r.GetRkey() != 0, u.remote},
		{"imm_data", r.GetImmData() != 0, u.imm},
		{"compare_add", r.GetCompareAdd() != 0, u.compareAdd},
		{"swap", r.GetSwap() != 0, u.swap},
		{"destination", r.GetDestination() != nil, u.sends},
		{"solicited", r.GetSolicited(), u.sends || u.imm},
	} {
		if f.given && !f.fits {
			v.invalid(field+"."+f.name, "%v has none", r.GetOpcode())
		}
	}
	return out
}

// workPath is for a list of work requests.
func workPath(index int, field string) string {
	switch field {
	case "name", "requests":
		return field
	case "sgl":
		field = "sges"
	}
	return fmt.Sprintf("requests[%d].%s", index, field)
}

func (s transferService) PostWork(ctx context.Context, r *pb.PostWorkRequest) (*pb.PostWorkResponse, error) {
	var v faults
	ask := fabric.PostWork{QueuePair: r.Name}
	for i, one := range r.Requests {
		ask.Requests = append(ask.Requests, v.work(fmt.Sprintf("requests[%d]", i), one))
	}
	n, err := attempt(v, workPath, &ask.ValidateOnly, func() (int, error) { return s.fabric.PostWork(ctx, caller(ctx), ask) })
	if err != nil {
		return nil, err
	}
	return &pb.PostWorkResponse{Posted: uint32(n)}, nil
}

func (s transferService) PollCompletions(ctx context.Context, r *pb.PollCompletionsRequest) (*pb.PollCompletionsResponse, error) {
	var v faults
	ask := fabric.PollCompletions{QueuePair: r.Name, After: r.After, Limit: int(r.MaxCompletions), Wait: v.duration("wait", r.Wait),
		SolicitedOnly: r.SolicitedOnly}
	if err := v.err(); err != nil {
		return nil, err
	}
	// A wait for completions ends early when the daemon ends.
	wait, cancel := s.untilDrain(ctx)
	defer cancel()
	list, err := s.fabric.PollCompletions(wait, caller(ctx), ask)
	switch {
	case err == nil:
	case s.stopping() && ctx.Err() == nil && wait.Err() != nil:
		return &pb.PollCompletionsResponse{}, nil
	default:
		return nil, inContract(err, renamed(map[string]string{"limit": "max_completions"}))
	}
	out := &pb.PollCompletionsResponse{Completions: make([]*pb.Completion, len(list))}
	for i := range list {
		out.Completions[i] = completionToProto(&list[i])
	}
	return out, nil
}

// statusHelp says for people what a completion status means.
var statusHelp = map[ib.WCStatus]string{
	ib.LocLenErr:          "the message is larger than the receive, or than the device allows",
	ib.LocQPOpErr:         "the queue pair cannot do this; look at its type, state and attributes",
	ib.LocProtErr:         "a scatter/gather entry is not covered by its lkey: look at range, access and protection domain",
	ib.WRFlushErr:         "not done: the queue pair went to ERR before; the first failed completion tells why",
	ib.BadRespErr:         "the peer answered what the protocol does not allow",
	ib.LocAccessErr:       "the memory of a receive is not accessible for the incoming write",
	ib.RemInvReqErr:       "the peer takes the request as invalid: too long for its receive, or not allowed for its queue pair",
	ib.RemAccessErr:       "the peer's rkey does not cover this: look at key, range, access and protection domain there",
	ib.RemOpErr:           "the peer could not do it for a reason of its own",
	ib.RetryExcErr:        "no answer after all retries: look at the peer's state, the cable, and the GID index at both ends",
	ib.RNRRetryExcErr:     "the peer had no receive posted after all retries",
	ib.RemAbortErr:        "the peer gave up the operation",
	ib.FatalErr:           "the device failed",
	ib.ResponseTimeoutErr: "the responder gave up waiting",
	ib.GeneralErr:         "another fault; vendor_error says more",
}

func completionToProto(c *fabric.Completion) *pb.Completion {
	out := &pb.Completion{Sequence: c.Sequence, WrId: c.ID, Status: completionStatuses.proto(c.Status), LengthBytes: c.Length,
		Receive: c.Receive, Solicited: c.Solicited, HasGrh: c.HasGRH, VendorError: c.VendorErr, Message: statusHelp[c.Status]}
	if c.Status == ib.Success { // else the opcode means nothing
		out.Opcode = completionOpcodes.proto(c.Opcode)
	}
	if c.HasImm {
		out.ImmData = &c.Imm
	}
	if c.HasGRH {
		out.SourceQpn, out.SourceGid = uint32(c.Source.QPN), gidText(c.Source.GID)
	}
	return out
}

func (s transferService) WriteBuffer(ctx context.Context, r *pb.WriteBufferRequest) (*pb.WriteBufferResponse, error) {
	var v faults
	if len(r.Data) == 0 {
		v.required("data", "want 1 to 1,048,576 bytes")
	}
	c := caller(ctx)
	if len(v) > 0 {
		_, err := s.fabric.GetBuffer(ctx, c, r.Name)
		return nil, v.with(err)
	}
	err := s.fabric.WriteBuffer(ctx, c, fabric.BufferRange{Buffer: r.Name, Offset: r.OffsetBytes}, r.Data)
	if err != nil {
		return nil, inContract(err, renamed(map[string]string{"size_bytes": "data"}))
	}
	return &pb.WriteBufferResponse{}, nil
}

func (s transferService) ReadBuffer(ctx context.Context, r *pb.ReadBufferRequest) (*pb.ReadBufferResponse, error) {
	c := caller(ctx)
	length := r.LengthBytes
	if length > maxChunk {
		var v faults
		v.invalid("length_bytes", "%d: want 0 to %d", length, maxChunk)
		_, err := s.fabric.GetBuffer(ctx, c, r.Name)
		return nil, v.with(err)
	}
	if length == 0 {
		b, err := s.fabric.GetBuffer(ctx, c, r.Name)
		if err != nil {
			return nil, err
		}
		// Of an offset beyond the end the domain says what is wrong.
		length = min(b.Size-min(r.OffsetBytes, b.Size-1), maxChunk)
	}
	data := slices.Grow([]byte(nil), int(length))[:length]
	if err := s.fabric.ReadBuffer(ctx, c, fabric.BufferRange{Buffer: r.Name, Offset: r.OffsetBytes}, data); err != nil {
		return nil, inContract(err, renamed(map[string]string{"size_bytes": "length_bytes"}))
	}
	return &pb.ReadBufferResponse{Data: data}, nil
}
