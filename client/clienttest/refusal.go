package clienttest

import (
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Refusal is what a daemon refuses with.
type Refusal struct {
	Code    codes.Code
	Reason  pb.ErrorReason
	Message string
	Details map[string]string
	Fields  [][2]string // name and problem of each wrong field
}

// Err is the refusal as an error that a handler returns.
func (r Refusal) Err() error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Domain: "accelfab", Reason: strings.TrimPrefix(r.Reason.String(), "ERROR_REASON_"), Metadata: r.Details,
	}}
	if len(r.Fields) > 0 {
		bad := &errdetails.BadRequest{}
		for _, f := range r.Fields {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: f[0], Description: f[1]})
		}
		details = append(details, bad)
	}
	s, err := status.New(r.Code, r.Message).WithDetails(details...)
	if err != nil {
		return err
	}
	return s.Err()
}
