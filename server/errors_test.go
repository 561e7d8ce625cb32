package server

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// domainReasons reads the reasons of errors that the domain declares: the
// block of constants that begins with FieldInvalid.
func domainReasons(t *testing.T) map[fabric.Reason]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../fabric/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[fabric.Reason]bool{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Reason" {
				out[fabric.Reason(strings.Trim(v.Values[0].(*ast.BasicLit).Value, `"`))] = true
			}
		}
	}
	if len(out) < 20 {
		t.Fatalf("found %d reasons: the search is broken", len(out))
	}
	return out
}

func TestEveryReasonHasARow(t *testing.T) {
	for r := range domainReasons(t) {
		if _, ok := reasons[r]; !ok {
			t.Errorf("%s has no row", r)
		}
	}
	for r := range reasons {
		if _, ok := pb.ErrorReason_value["ERROR_REASON_"+string(r)]; !ok {
			t.Errorf("%s is not in the contract", r)
		}
	}
	for name, n := range pb.ErrorReason_value {
		if _, ok := reasons[fabric.Reason(strings.TrimPrefix(name, "ERROR_REASON_"))]; !ok && n != 0 {
			t.Errorf("%s of the contract has no row", name)
		}
	}
}

// The contract tells the code of each reason in its comment.
func TestReasonsHaveTheCodesOfTheContract(t *testing.T) {
	text, err := os.ReadFile("../proto/accelfab/v1/errors.proto")
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile(`(?m)^  // ([A-Z_]+)\. [^=]*?ERROR_REASON_([A-Z0-9_]+) = `).FindAllStringSubmatch(string(text), -1)
	if len(said) != len(reasons) {
		t.Errorf("the contract tells %d codes for %d reasons", len(said), len(reasons))
	}
	for _, s := range said {
		var want codes.Code
		if err := want.UnmarshalJSON([]byte(`"` + s[1] + `"`)); err != nil {
			t.Errorf("%s: %v", s[2], err)
			continue
		}
		if got := reasons[fabric.Reason(s[2])].code; got != want {
			t.Errorf("%s goes out as %v; the contract says %v", s[2], got, want)
		}
	}
}

func TestWhatARefusalCarries(t *testing.T) {
	since := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	holder := fabric.Holder{Name: "nodes/n/sessions/big", Identity: "uid:7", PID: 42, Since: since, Amount: 900}
	got := asRefused(refusal(&fabric.Error{Op: "CreateBuffer", Name: "nodes/n/devices/d", Reason: fabric.Exhausted, Message: "the device is full", RetryAfter: 2 * time.Second,
		Shortage: &fabric.Shortage{Kind: "memory_bytes", Asked: 200, Available: 100, Limit: 1000, Holders: []fabric.Holder{holder}}}).Err())
	if got.code != codes.ResourceExhausted {
		t.Errorf("code %v", got.code)
	}
	for key, want := range map[string]string{"kind": "memory_bytes", "asked": "200", "available": "100", "limit": "1000", "holders": "nodes/n/sessions/big=900", "name": "nodes/n/devices/d"} {
		if got.info.Metadata[key] != want {
			t.Errorf("metadata %s is %q, want %q", key, got.info.Metadata[key], want)
		}
	}
	quota, ok := detailOf[*errdetails.QuotaFailure](got)
	if !ok || !strings.Contains(quota.Violations[0].Description, "asked for 200, 100 of 1000 available; held by nodes/n/sessions/big (uid:7, pid 42") {
		t.Errorf("quota failure %v", quota)
	}
	if who, ok := detailOf[*errdetails.ResourceInfo](got); !ok || who.ResourceName != holder.Name || who.Owner != "uid:7" || who.ResourceType != "accelfab/Session" {
		t.Errorf("resource info %v", who)
	}
	if retry, ok := detailOf[*errdetails.RetryInfo](got); !ok || retry.RetryDelay.AsDuration() != 2*time.Second {
		t.Errorf("retry info %v", retry)
	}

	got = asRefused(refusal(&fabric.Error{Name: "nodes/n/devices/d/buffers/b", Reason: fabric.InUse, Message: "regions are on it",
		Shortage: &fabric.Shortage{Kind: "children", Asked: 3, Holders: []fabric.Holder{{Name: "nodes/n/devices/d/memoryRegions/m"}}}}).Err())
	p, ok := detailOf[*errdetails.PreconditionFailure](got)
	if !ok || p.Violations[0].Type != "IN_USE" || p.Violations[0].Subject != "nodes/n/devices/d/memoryRegions/m" || got.info.Metadata["count"] != "3" {
		t.Errorf("precondition failure %v, metadata %v", p, got.info.Metadata)
	}
}

func TestErrorsThatAreNotTheDomains(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{context.DeadlineExceeded, codes.DeadlineExceeded, "TIMEOUT"},
		{fmt.Errorf("read: %w", context.Canceled), codes.Canceled, "CANCELLED"},
		{errors.New("secret path"), codes.Internal, "INTERNAL"},
		{&fabric.Error{Reason: "NEW_REASON", Message: "x"}, codes.Internal, "NEW_REASON"},
		{&fabric.Error{Reason: fabric.Internal, Message: "a fault", Err: errors.New("secret path")}, codes.Internal, "INTERNAL"},
	} {
		got := asRefused(refusal(c.err).Err())
		if got.code != c.code || got.info.Reason != c.reason {
			t.Errorf("%v: %v %s", c.err, got.code, got.info.Reason)
		}
		if strings.Contains(got.message, "secret") {
			t.Errorf("%v: the message %q tells what is for the log", c.err, got.message)
		}
	}
	if refusal(nil).Err() != nil {
		t.Error("no error became one")
	}
}

// Whatever a caller sends, an error fits into the 8 KiB of headers that
// clients take, and is valid UTF-8 on one line.
func TestErrorsStaySmall(t *testing.T) {
	long := strings.Repeat("\xff\n\u20ac", 100000)
	e := &fabric.Error{Op: "X", Name: long, Field: long, Reason: fabric.FieldInvalid, Message: long, Details: map[string]string{"asked": long}, Err: errors.New(long)}
	for i := range 1000 {
		e.Violations = append(e.Violations, fabric.Violation{Field: fmt.Sprint(long[:300], i), Reason: fabric.FieldInvalid, Problem: long})
	}
	for r := range reasons {
		x := *e
		x.Reason = r
		x.Shortage = &fabric.Shortage{Kind: "memory_bytes", Asked: 1, Limit: 1}
		for range 16 {
			x.Shortage.Holders = append(x.Shortage.Holders, fabric.Holder{Name: "nodes/" + strings.Repeat("n", 63) + "/sessions/" + strings.Repeat("s", 63), Identity: strings.Repeat("i", 100)})
		}
		st := refusal(&x)
		encoded := proto.Size(st.Proto())*4/3 + len(st.Message())
		if encoded > 8<<10-512 {
			t.Errorf("%s: %d bytes of headers", r, encoded)
		}
		if strings.ContainsAny(st.Message(), "\n\r") || strings.ToValidUTF8(st.Message(), "") != st.Message() {
			t.Errorf("%s: message %q", r, st.Message())
		}
	}
}
