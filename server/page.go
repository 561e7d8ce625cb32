package server

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/fnv"

	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/fabric"
)

// A page token holds the place to go on from and a sum of the request that it
// belongs to. It is no secret and grants nothing: it only moves within what
// the caller may list anyway.
const (
	tokenVersion = 1
	tokenSize    = 1 + 8 + 4
)

var errToken = errors.New("it is not a next_page_token that this list gave, or parent, filter or another field has changed since; begin again without it")

// listScope sums up the fields that must not change from page to page.
func listScope(fields ...string) uint32 {
	h := fnv.New32a()
	for _, f := range fields {
		h.Write([]byte(f))
		h.Write([]byte{0})
	}
	return h.Sum32()
}

func pageToken(scope uint32, next uint64) string {
	if next == 0 {
		return ""
	}
	b := make([]byte, 0, tokenSize)
	b = append(b, tokenVersion)
	b = binary.BigEndian.AppendUint64(b, next)
	b = binary.BigEndian.AppendUint32(b, scope)
	return base64.RawURLEncoding.EncodeToString(b)
}

func parsePageToken(scope uint32, token string) (uint64, error) {
	if token == "" {
		return 0, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) != tokenSize || b[0] != tokenVersion || binary.BigEndian.Uint32(b[9:]) != scope {
		return 0, errToken
	}
	return binary.BigEndian.Uint64(b[1:]), nil
}

// listRequest is what all lists ask.
type listRequest interface {
	proto.Message
	GetParent() string
	GetPageSize() int32
	GetPageToken() string
	GetFilter() string
}

// maxReply keeps a page below the 4 MiB that clients accept by default.
const maxReply = 3 << 20

// list serves one page of a list. fetch reads the domain's page, convert one
// item of it.
func list[T any, P proto.Message](s *Server, r listRequest, terms fields[T],
	fetch func(fabric.List, func(*T) bool) (fabric.Page[T], error), convert func(*T) P) ([]P, string, error) {
	var v faults
	if r.GetParent() == "" {
		v.required("parent", "want the name of what is listed; nodes/local is this node")
	}
	scope := listScope(string(r.ProtoReflect().Descriptor().Name()), r.GetParent(), r.GetFilter())
	after, err := parsePageToken(scope, r.GetPageToken())
	if err != nil {
		v.invalid("page_token", "%s", err)
	}
	f, err := parseFilter(r.GetFilter(), terms, s.canonical)
	if err != nil {
		v.invalid("filter", "%s", err)
	}
	ask := fabric.List{Parent: r.GetParent(), PageSize: int(r.GetPageSize()), After: after, Session: f.only("session")}
	for {
		ignored := false
		page, err := attempt(v, asIs, &ignored, func() (fabric.Page[T], error) { return fetch(ask, f.match) })
		if err != nil {
			var e *fabric.Error
			if ask.Session != "" && errors.As(err, &e) && e.Field == "session" {
				// A filter that names a session which is not there, or not the
				// caller's, matches nothing.
				ask.Session = ""
				continue
			}
			return nil, "", err
		}
		items := make([]P, len(page.Items))
		size := 0
		for i := range page.Items {
			items[i] = convert(&page.Items[i])
			size += proto.Size(items[i])
		}
		if size > maxReply && len(items) > 1 {
			ask.PageSize = len(items) / 2
			continue
		}
		return items, pageToken(scope, page.Next), nil
	}
}
