package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

type eventService struct {
	pb.UnimplementedEventServiceServer
	*Server
}

var eventFields = fields[fabric.Event]{by: map[string]field[fabric.Event]{
	"resource":     resource(func(e *fabric.Event) string { return e.Resource }),
	"resource_uid": text(func(e *fabric.Event) string { return uidText(e.ResourceUID) }),
	"session":      resource(func(e *fabric.Event) string { return e.Session }),
	"type":         ofEnum(pb.Event_Type(0), func(e *fabric.Event) protoreflect.Enum { return eventTypes.proto(e.Type) }),
	"actor":        text(func(e *fabric.Event) string { return e.Actor }),
	"reason":       text(func(e *fabric.Event) string { return string(e.Reason) }),
}, labels: func(e *fabric.Event) map[string]string { return e.Labels }}

func (s eventService) ListEvents(ctx context.Context, r *pb.ListEventsRequest) (*pb.ListEventsResponse, error) {
	if err := s.checkNode("parent", r.Parent, ""); err != nil {
		return nil, err
	}
	var v faults
	scope := listScope("ListEvents", r.Parent, r.Filter, utoa(r.After))
	next, err := parsePageToken(scope, r.PageToken)
	if err != nil {
		v.invalid("page_token", "%s", err)
	}
	f, err := parseFilter(r.Filter, eventFields, s.canonical)
	if err != nil {
		v.invalid("filter", "%s", err)
	}
	if r.PageSize < 0 {
		v.invalid("page_size", "%d: want 0 to 1000", r.PageSize)
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	page, err := s.fabric.ListEvents(ctx, caller(ctx), fabric.ListEvents{After: max(r.After, next), Limit: int(r.PageSize)}, f.match)
	if err != nil {
		return nil, err
	}
	node := s.fabric.Node()
	out := &pb.ListEventsResponse{NextPageToken: pageToken(scope, page.Next)}
	for i := range page.Items {
		out.Events = append(out.Events, eventToProto(&node, &page.Items[i]))
	}
	return out, nil
}

func (s eventService) WatchEvents(r *pb.WatchEventsRequest, stream grpc.ServerStreamingServer[pb.WatchEventsResponse]) error {
	if err := s.checkNode("parent", r.Parent, ""); err != nil {
		return err
	}
	var v faults
	f, err := parseFilter(r.Filter, eventFields, s.canonical)
	if err != nil {
		v.invalid("filter", "%s", err)
	}
	if err := v.err(); err != nil {
		return err
	}
	ctx := stream.Context()
	node := s.fabric.Node()
	for e, err := range s.fabric.Watch(ctx, caller(ctx), fabric.Watch{After: r.GetAfter(), FromNow: r.After == nil}) {
		if err != nil {
			return err
		}
		var m *pb.WatchEventsResponse
		switch {
		case e.Type == fabric.EventGap:
			m = &pb.WatchEventsResponse{Message: &pb.WatchEventsResponse_Gap{Gap: &pb.Gap{After: e.Cursor, Oldest: e.Oldest}}}
		case e.Type == fabric.EventBookmark:
			m = &pb.WatchEventsResponse{Message: &pb.WatchEventsResponse_Bookmark{Bookmark: &pb.Bookmark{Cursor: e.Cursor}}}
		case f.match != nil && !f.match(&e):
			continue
		default:
			m = &pb.WatchEventsResponse{Message: &pb.WatchEventsResponse_Event{Event: eventToProto(&node, &e)}}
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return ctx.Err()
}
