package server

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// faults gathers what a door finds wrong with a request: what cannot be said
// in the domain's values at all. Fields are paths of the contract,
// "queue_pair.attributes.path_mtu_bytes".
type faults []fabric.Violation

func (v *faults) invalid(field, format string, args ...any) {
	*v = append(*v, fabric.Violation{Field: field, Reason: fabric.FieldInvalid, Problem: fmt.Sprintf(format, args...)})
}

func (v *faults) required(field, problem string) {
	*v = append(*v, fabric.Violation{Field: field, Reason: fabric.FieldRequired, Problem: problem})
}

func (v faults) has(field string) bool {
	return slices.ContainsFunc(v, func(x fabric.Violation) bool { return x.Field == field })
}

func (v faults) err() error {
	if len(v) == 0 {
		return nil
	}
	return &fabric.Error{Field: v[0].Field, Reason: v[0].Reason, Message: v[0].Problem, Violations: v}
}

// A pathFunc gives the contract's path of a field that the domain names.
type pathFunc func(index int, field string) string

// attempt runs call. A request that has faults already is run only to be
// checked, so that the answer names what the domain finds too.
func attempt[T any](v faults, path pathFunc, validateOnly *bool, call func() (T, error)) (T, error) {
	var none T
	if len(v) > 0 {
		*validateOnly = true
	}
	out, err := call()
	err = inContract(err, path)
	if len(v) > 0 {
		return none, v.with(err)
	}
	if err != nil {
		return none, err
	}
	return out, nil
}

// with joins the domain's faults to those of the door. A field is at fault
// once.
func (v faults) with(err error) error {
	var e *fabric.Error
	if errors.As(err, &e) {
		seen := map[string]bool{}
		for _, x := range v {
			seen[x.Field] = true
		}
		for _, x := range e.Violations {
			if !seen[x.Field] {
				v = append(v, x)
			}
		}
	}
	return v.err()
}

// inContract renames the fields of the domain's error.
func inContract(err error, path pathFunc) error {
	var e *fabric.Error
	if !errors.As(err, &e) {
		return err
	}
	c := *e
	if c.Field != "" {
		c.Field = path(c.Index, c.Field)
	}
	c.Violations = nil
	seen := map[string]bool{}
	for _, x := range e.Violations {
		x.Field = path(x.Index, x.Field)
		if key := x.Field + "\x00" + x.Problem; !seen[key] {
			seen[key] = true
			c.Violations = append(c.Violations, x)
		}
	}
	return &c
}

// asIs is for requests whose fields the domain names as the contract does.
func asIs(_ int, field string) string { return field }

// createPath is for a create of the resource in the given field.
func createPath(resource string) pathFunc {
	return func(_ int, field string) string {
		switch field {
		case "parent", "request_id", "validate_only":
			return field
		case "id":
			return resource + "_id"
		}
		return resource + "." + field
	}
}

// updatePath is for an update of the resource in the given field.
func updatePath(resource string) pathFunc {
	return func(_ int, field string) string { return resource + "." + field }
}

// batchPath is for a batch of requests with the given path.
func batchPath(path pathFunc) pathFunc {
	return func(index int, field string) string {
		switch field {
		case "requests", "request_id", "parent":
			return field
		}
		return fmt.Sprintf("requests[%d].%s", index, path(index, field))
	}
}

// renamed gives some fields other names.
func renamed(names map[string]string) pathFunc {
	return func(_ int, field string) string {
		if name, ok := names[field]; ok {
			return name
		}
		return field
	}
}

// create converts what all creates have.
func create(parent, id, requestID string, labels map[string]string, validateOnly bool) fabric.Create {
	return fabric.Create{Parent: parent, ID: id, RequestID: requestID, Labels: labels, ValidateOnly: validateOnly}
}

// duration converts a duration; unset gives 0.
func (v *faults) duration(field string, d *durationpb.Duration) time.Duration {
	if d == nil {
		return 0
	}
	if err := d.CheckValid(); err != nil {
		v.invalid(field, "is not a duration: %d s and %d ns", d.Seconds, d.Nanos)
		return 0
	}
	return d.AsDuration()
}

// byteOf converts an optional number that has the given range.
func (v *faults) byteOf(field string, p *uint32, low, high uint32) *uint8 {
	if p == nil {
		return nil
	}
	if *p < low || *p > high {
		v.invalid(field, "%d: want %d to %d", *p, low, high)
		return nil
	}
	b := uint8(*p)
	return &b
}

// intOf converts an optional number; its upper bound is the domain's to say.
func intOf(p *uint32) *int {
	if p == nil {
		return nil
	}
	n := int(*p)
	return &n
}

// gid converts a GID; empty is the domain's to refuse.
func (v *faults) gid(field, text string) ib.GID {
	if text == "" {
		return ib.GID{}
	}
	g, err := ib.ParseGID(text)
	if err != nil {
		v.invalid(field, "%s", err)
	}
	return g
}

// mtu converts a path MTU in bytes; 0 is not given.
func (v *faults) mtu(field string, n uint32) ib.MTU {
	if n == 0 {
		return 0
	}
	m, ok := ib.MTUFromBytes(int(n))
	if !ok {
		v.invalid(field, "%d: want 256, 512, 1024, 2048 or 4096", n)
	}
	return m
}

// access converts access flags, each given once.
func (v *faults) access(field string, list []pb.MemoryRegion_Access) ib.Access {
	var a ib.Access
	for i, x := range list {
		flag, ok := accessFlags.domain(x)
		switch at := fmt.Sprintf("%s[%d]", field, i); {
		case !ok:
			v.invalid(at, "%v: want %s", x, accessFlags.names())
		case a&flag != 0:
			v.invalid(at, "%v is there twice", x)
		}
		a |= flag
	}
	return a
}

// mask resolves an update mask of m. Paths in change are what may be changed,
// those in fixed what is fixed for life. Output, name and etag may be named
// without effect, so that what was read can be given back. An empty mask means
// each field of change and fixed that is set. The result holds paths of both.
func (v *faults) mask(paths []string, m protoreflect.Message, change, fixed []string) map[string]bool {
	out := map[string]bool{}
	fields := m.Descriptor().Fields()
	if len(paths) == 0 {
		for _, p := range append(slices.Clone(change), fixed...) {
			if m.Has(fields.ByName(protoreflect.Name(p))) {
				out[p] = true
			}
		}
		return out
	}
	for _, p := range paths {
		first, _, _ := strings.Cut(p, ".")
		switch f := fields.ByName(protoreflect.Name(first)); {
		case p == "*":
			for _, c := range change {
				out[c] = true
			}
		case slices.Contains(change, p), slices.Contains(fixed, p):
			out[p] = true
		case f != nil && hasPath(m.Descriptor(), p) && (isOutput(f) || p == "name" || p == "etag"):
		default:
			v.invalid("update_mask", "%q: want one of %s", clip(p, maxText), strings.Join(change, ", "))
		}
	}
	return out
}

// isOutput says whether only the server sets a field.
func isOutput(f protoreflect.FieldDescriptor) bool {
	behaviors, _ := proto.GetExtension(f.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return slices.Contains(behaviors, annotations.FieldBehavior_OUTPUT_ONLY)
}

// sorted gives the keys of a map in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
