package faults

import (
	"bytes"
	"testing"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

// TestMemoryOfAClosedSessionReadsAsZeros fills all memory of a card, closes the
// session, and takes all of it again in another one.
func TestMemoryOfAClosedSessionReadsAsZeros(t *testing.T) {
	const size = 4 << 20
	d := daemon.Start(t, daemon.Config{Node: "zeros", Args: []string{"--device", "soft:hls-2,cards=1,memory=4MiB"}})
	ctx, c := t.Context(), d.Dial()
	secret := bytes.Repeat([]byte("secret! "), size/8)

	first := daemon.NewJob(t, c, "soft-0", "8", size)
	if err := c.Upload(ctx, first.Buffer.GetName(), secret); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Download(ctx, first.Buffer.GetName(), size); err != nil || !bytes.Equal(got, secret) {
		t.Fatalf("what was written is not there (%v): the test would show nothing", err)
	}
	if _, err := c.Sessions.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: first.Session.GetName()}); err != nil {
		t.Fatal(err)
	}
	second := daemon.NewJob(t, c, "soft-0", "8", size)
	if second.Buffer.GetDeviceAddress() != first.Buffer.GetDeviceAddress() {
		t.Fatalf("the second buffer is at %#x, the first was at %#x: not the same memory", second.Buffer.GetDeviceAddress(), first.Buffer.GetDeviceAddress())
	}
	got, err := c.Download(ctx, second.Buffer.GetName(), size)
	if err != nil {
		t.Fatal(err)
	}
	if i := bytes.IndexFunc(got, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d of fresh memory is %#x", i, got[i])
	}
}
