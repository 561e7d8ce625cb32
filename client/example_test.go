package client_test

import (
	"context"
	"fmt"
	"log"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Two queue pairs on two nodes, each in a session of its node, are connected.
func Example() {
	ctx := context.Background()
	near, err := client.Dial("")
	if err != nil {
		log.Fatal(err)
	}
	defer near.Close()
	far, err := client.Dial("unix:///run/n2/accelfabd.sock")
	if err != nil {
		log.Fatal(err)
	}
	defer far.Close()

	session, err := near.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{}})
	switch client.Reason(err) {
	case pb.ErrorReason_ERROR_REASON_UNSPECIFIED:
		if err != nil {
			log.Fatal(client.Explain(err))
		}
	case pb.ErrorReason_ERROR_REASON_DEVICE_BUSY:
		log.Fatalf("held by %s", client.Holders(err))
	default:
		log.Fatal(client.Explain(err))
	}
	go near.KeepAlive(ctx, session)

	// With a protection domain, a port and a queue pair on each side:
	a, b, err := client.ConnectPair(ctx,
		client.End{Client: near, Name: "nodes/local/devices/soft-0/queuePairs/q1"},
		client.End{Client: far, Name: "nodes/local/devices/soft-3/queuePairs/q1"})
	if err != nil {
		log.Fatal(client.Explain(err))
	}
	fmt.Println(a.GetState(), b.GetState())

	for m, err := range near.Watch(ctx, client.Watch{Node: "nodes/local"}) {
		if err != nil {
			log.Fatal(client.Explain(err))
		}
		fmt.Println(m.GetEvent().GetResource(), m.GetEvent().GetAfter())
	}
}
