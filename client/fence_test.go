package client

import (
	"google.golang.org/grpc/metadata"
	"testing"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Calls say which generations they are made in the belief of, until that is taken
// back.
func TestFence(t *testing.T) {
	c := &Client{}
	header := func() []string {
		md, _ := metadata.FromOutgoingContext(c.fences.context(t.Context()))
		return md[generationHeader]
	}
	if got := header(); len(got) != 0 {
		t.Errorf("nothing was fenced: %v", got)
	}
	c.Fence(&pb.Session{Name: "nodes/n/sessions/s", Generation: 3})
	c.Fence(&pb.Session{Name: "nodes/n/sessions/s", Generation: 4})
	if got := header(); len(got) != 1 || got[0] != "nodes/n/sessions/s=4" {
		t.Errorf("%v", got)
	}
	c.Unfence("nodes/n/sessions/s")
	if got := header(); len(got) != 0 {
		t.Errorf("it was taken back: %v", got)
	}
}
