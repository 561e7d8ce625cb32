package server

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Two cards of an HLS-2 have three lanes; who has a card is told, and REST says
// the same.
func TestPickDevices(t *testing.T) {
	h := newHouse(t)
	ctx := context.Background()
	topo := must[*pb.Topology](t)(h.node.GetTopology(ctx, &pb.GetTopologyRequest{Name: "nodes/local/topology"}))
	if len(topo.Islands) != 1 || !slices.Equal(topo.Islands[0].Devices, []string{dev0, dev1}) {
		t.Errorf("islands %v", topo.Islands)
	}
	// Of the eight cards of the map two are there: most ports lead nowhere.
	p := must[*pb.PickDevicesResponse](t)(h.node.PickDevices(ctx, &pb.PickDevicesRequest{Name: "nodes/local", Count: 2}))
	if !slices.Equal(p.Devices, []string{dev0, dev1}) || p.MinLanes != 3 || p.Lanes != 3 || len(p.Excluded) != 0 || !strings.Contains(p.Reason, "every pair 3 lanes") {
		t.Errorf("%v", p)
	}
	must[*pb.Session](t)(h.session.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/n", SessionId: "s", Session: &pb.Session{Devices: []string{dev0}}}))
	code, body, _ := h.http("GET", "/v1/nodes/local:pickDevices?count=1", "")
	reply := parse(t, body)
	if code != 200 || len(reply["devices"].([]any)) != 1 || reply["devices"].([]any)[0] != dev1 {
		t.Fatalf("%d %s", code, body)
	}
	x := reply["excluded"].([]any)[0].(object)
	if x["device"] != dev0 || x["reason"] != "DEVICE_BUSY" || !strings.Contains(x["message"].(string), "nodes/n/sessions/s") {
		t.Errorf("excluded %v", x)
	}
	_, err := h.node.PickDevices(ctx, &pb.PickDevicesRequest{Name: "nodes/local", Count: 2, AllowDegraded: true})
	got := asRefused(err)
	if md := got.info.Metadata; got.code != codes.ResourceExhausted || md["kind"] != "devices" || md["asked"] != "2" || md["available"] != "1" || md["limit"] != "2" || md["holders"] != "nodes/n/sessions/s=1" {
		t.Errorf("%+v", got)
	}
}
