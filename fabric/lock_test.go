package fabric

import (
	"context"
	"testing"
)

// A fault in what a call does with Fabric.mu held ends that call, which the
// doors contain, and no other.
func TestAPanicGivesTheLockBack(t *testing.T) {
	broken := func() ([]*record, error) { panic("a fault") }
	found := func() ([]*record, error) { return nil, nil }
	for _, tt := range []struct {
		name string
		call func(*Fabric) error
	}{
		{"build of a create", func(f *Fabric) error {
			return f.create(context.Background(), creation{op: "Create", build: broken}, func([]*record) {})
		}},
		{"view of a checked create", func(f *Fabric) error {
			return f.create(context.Background(), creation{op: "Create", build: found, validateOnly: true}, func([]*record) { panic("a fault") })
		}},
		{"resolve of a change", func(f *Fabric) error {
			return f.withIdle(context.Background(), "Change", broken, func([]*record) error { return nil })
		}},
		{"a change", func(f *Fabric) error {
			return f.withIdle(context.Background(), "Change", found, func([]*record) error { panic("a fault") })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &Fabric{}
			func() {
				defer func() {
					if recover() == nil {
						t.Error("no panic: the test shows nothing")
					}
				}()
				tt.call(f)
			}()
			if !f.mu.TryLock() {
				t.Fatal("the lock is held for ever")
			}
			f.mu.Unlock()
		})
	}
}
