package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/fabric"
)

// errorDomain is the domain of every ErrorInfo.
const errorDomain = "accelfab"

// unauthenticated is a reason that only a door has: it cannot tell who calls.
const unauthenticated fabric.Reason = "UNAUTHENTICATED"

// A row says how a reason goes over the wire. The HTTP status follows from the
// code as google.rpc.Code tells.
type row struct {
	code codes.Code
	// details that fit, beside ErrorInfo, which all have, and RetryInfo, which
	// those have that a retry may help.
	details []detail
}

// A detail makes one further part of an error; nil if it has nothing to say.
type detail func(*fabric.Error) proto.Message

// reasons is the one place that maps reasons.
var reasons = map[fabric.Reason]row{
	fabric.FieldInvalid:      {codes.InvalidArgument, []detail{badRequest}},
	fabric.FieldRequired:     {codes.InvalidArgument, []detail{badRequest}},
	fabric.RequestIDReused:   {codes.InvalidArgument, []detail{badRequest}},
	fabric.NotFound:          {codes.NotFound, []detail{resourceInfo}},
	fabric.Tombstoned:        {codes.NotFound, []detail{resourceInfo}},
	fabric.AlreadyExists:     {codes.AlreadyExists, []detail{badRequest, resourceInfo}},
	fabric.PermissionDenied:  {codes.PermissionDenied, []detail{resourceInfo}},
	unauthenticated:          {codes.Unauthenticated, nil},
	fabric.ETagMismatch:      {codes.Aborted, nil},
	fabric.InstanceMismatch:  {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.StateInvalid:      {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.InUse:             {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.DeviceBusy:        {codes.FailedPrecondition, []detail{preconditionFailure, holderInfo}},
	fabric.Lost:              {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.SessionClosed:     {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.GenerationStale:   {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.GIDFamilyMismatch: {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.MTUMismatch:       {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.PathNotCabled:     {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.PKeyMismatch:      {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.Exhausted:         {codes.ResourceExhausted, []detail{quotaFailure, holderInfo}},
	fabric.ExportRevoked:     {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.NotAnExport:       {codes.InvalidArgument, []detail{badRequest}},
	fabric.OutOfRange:        {codes.OutOfRange, []detail{badRequest}},

	fabric.ImportUnsupported:  {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.P2PUnsupported:     {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.PathNotReachable:   {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.OutsideAperture:    {codes.FailedPrecondition, []detail{preconditionFailure}},
	fabric.SegmentUnsupported: {codes.FailedPrecondition, []detail{preconditionFailure}},

	fabric.CursorExpired:     {codes.OutOfRange, []detail{badRequest}},
	fabric.DeviceUnavailable: {codes.Unavailable, nil},
	fabric.StoreUnavailable:  {codes.Unavailable, nil},
	fabric.Unsupported:       {codes.Unimplemented, nil},
	fabric.Timeout:           {codes.DeadlineExceeded, nil},
	fabric.Cancelled:         {codes.Canceled, nil},
	fabric.Internal:          {codes.Internal, nil},
}

// Bounds of an error. It travels in HTTP/2 trailers, and clients refuse those
// above 8 KiB.
const (
	maxText       = 256  // bytes of one text
	maxMessage    = 1024 // bytes of the message
	maxDetailSize = 2560 // bytes of one part
)

// refusal turns what a handler returns into a status.
func refusal(err error) *status.Status {
	if err == nil {
		return nil
	}
	var e *fabric.Error
	if !errors.As(err, &e) {
		if s, ok := status.FromError(err); ok {
			return s
		}
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			e = &fabric.Error{Reason: fabric.Timeout, Message: "the deadline passed before there was an answer"}
		case errors.Is(err, context.Canceled):
			e = &fabric.Error{Reason: fabric.Cancelled, Message: "the caller gave up"}
		default:
			e = &fabric.Error{Reason: fabric.Internal, Message: "a fault of accelfab; its log has more under this time"}
		}
	}
	r, ok := reasons[e.Reason]
	if !ok {
		r = reasons[fabric.Internal]
	}
	details := []protoadapt.MessageV1{protoadapt.MessageV1Of(errorInfo(e))}
	for _, d := range r.details {
		if m := d(e); m != nil {
			details = append(details, protoadapt.MessageV1Of(m))
		}
	}
	if e.RetryAfter > 0 {
		details = append(details, protoadapt.MessageV1Of(&errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)}))
	}
	s := status.New(r.code, message(e))
	if with, err := s.WithDetails(details...); err == nil {
		return with
	}
	return s
}

// message says on one line what, why and what to do.
func message(e *fabric.Error) string {
	short := *e
	short.Op = "" // the caller knows what it called
	if e.Reason == fabric.Internal || e.Err != nil && strings.Contains(e.Message, e.Err.Error()) {
		short.Err = nil // for the log, or said already
	}
	short.Name, short.Field, short.Message = clip(e.Name, maxText), clip(e.Field, maxText), clip(e.Message, maxMessage)
	short.Violations = nil
	for i, v := range e.Violations {
		if i == 8 {
			short.Violations = append(short.Violations, fabric.Violation{Field: "...", Problem: fmt.Sprintf("%d more", len(e.Violations)-i)})
			break
		}
		short.Violations = append(short.Violations, fabric.Violation{Field: clip(v.Field, maxText), Problem: clip(v.Problem, maxText)})
	}
	return clip(strings.Join(strings.Fields(short.Error()), " "), maxMessage)
}

// clip cuts s to at most n bytes of valid UTF-8.
func clip(s string, n int) string {
	whole := len(s) <= n
	s = strings.ToValidUTF8(s[:min(len(s), n)], "?")
	if whole {
		return s
	}
	n = min(len(s), n-len("..."))
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

func errorInfo(e *fabric.Error) *errdetails.ErrorInfo {
	md := map[string]string{}
	set := func(key, value string) {
		if value != "" {
			md[key] = clip(value, maxText)
		}
	}
	set("name", e.Name)
	set("field", e.Field)
	for k, v := range e.Details {
		set(k, v)
	}
	if s := e.Shortage; s != nil {
		if e.Reason == fabric.Exhausted {
			set("kind", s.Kind)
			set("asked", utoa(s.Asked))
			set("available", utoa(s.Available))
			set("limit", utoa(s.Limit))
			md["holders"] = clip(holders(s.Holders), maxMessage)
		}
		if e.Reason == fabric.InUse && md["count"] == "" {
			set("count", utoa(max(s.Asked, uint64(len(s.Holders)))))
		}
	}
	if n := len(e.Violations); n > 1 {
		set("violations", strconv.Itoa(n))
	}
	return &errdetails.ErrorInfo{Reason: string(e.Reason), Domain: errorDomain, Metadata: md}
}

func holders(hs []fabric.Holder) string {
	var parts []string
	for _, h := range hs {
		parts = append(parts, h.Name+"="+utoa(h.Amount))
	}
	return strings.Join(parts, ",")
}

func badRequest(e *fabric.Error) proto.Message {
	b := &errdetails.BadRequest{}
	vs := e.Violations
	if len(vs) == 0 && e.Field != "" {
		vs = []fabric.Violation{{Field: e.Field, Reason: e.Reason, Problem: e.Message}}
	}
	size := 0
	for _, v := range vs {
		f := &errdetails.BadRequest_FieldViolation{Field: clip(v.Field, maxText), Reason: string(v.Reason), Description: clip(v.Problem, maxText)}
		if size += proto.Size(f); size > maxDetailSize {
			break
		}
		b.FieldViolations = append(b.FieldViolations, f)
	}
	if len(b.FieldViolations) == 0 {
		return nil
	}
	return b
}

func preconditionFailure(e *fabric.Error) proto.Message {
	p := &errdetails.PreconditionFailure{}
	add := func(subject, description string) {
		p.Violations = append(p.Violations, &errdetails.PreconditionFailure_Violation{
			Type: string(e.Reason), Subject: clip(subject, maxText), Description: clip(description, maxText)})
	}
	if s := e.Shortage; s != nil && e.Reason == fabric.InUse && len(s.Holders) > 0 {
		for _, h := range s.Holders {
			if proto.Size(p) > maxDetailSize/2 {
				break
			}
			add(h.Name, "needs "+e.Name)
		}
		return p
	}
	add(e.Name, e.Message)
	return p
}

func quotaFailure(e *fabric.Error) proto.Message {
	s := e.Shortage
	if s == nil {
		return nil
	}
	v := &errdetails.QuotaFailure_Violation{Subject: clip(e.Name, maxText), QuotaMetric: s.Kind, QuotaValue: int64(s.Limit),
		Description: fmt.Sprintf("%s: asked for %d, %d of %d available", s.Kind, s.Asked, s.Available, s.Limit)}
	for i, h := range s.Holders {
		v.Description += []string{"; held by ", ", "}[min(i, 1)] + fmt.Sprintf("%s: %d", h, h.Amount)
	}
	v.Description = clip(v.Description, maxMessage)
	return &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{v}}
}

// resourceInfo names what is not there, is there already, or is another's.
func resourceInfo(e *fabric.Error) proto.Message {
	if e.Name == "" {
		return nil
	}
	return &errdetails.ResourceInfo{ResourceType: resourceType(e.Name), ResourceName: clip(e.Name, maxText), Description: clip(e.Message, maxText)}
}

// holderInfo names the session that has most of what is short.
func holderInfo(e *fabric.Error) proto.Message {
	if e.Shortage == nil || len(e.Shortage.Holders) == 0 {
		return nil
	}
	h := e.Shortage.Holders[0]
	return &errdetails.ResourceInfo{ResourceType: resourceType(h.Name), ResourceName: h.Name, Owner: h.Identity, Description: "holds it: " + h.String()}
}

var resourceTypes = map[string]string{
	"nodes": "Node", "devices": "Device", "ports": "Port", "sessions": "Session", "protectionDomains": "ProtectionDomain",
	"buffers": "Buffer", "memoryRegions": "MemoryRegion", "memoryExports": "MemoryExport", "queuePairs": "QueuePair", "events": "Event",
}

// resourceType gives the type of a resource name, as the contract calls it.
func resourceType(name string) string {
	parts := strings.Split(name, "/")
	if len(parts) < 2 {
		return ""
	}
	if t := resourceTypes[parts[len(parts)-2]]; t != "" {
		return errorDomain + "/" + t
	}
	return ""
}

func utoa(n uint64) string { return strconv.FormatUint(n, 10) }
