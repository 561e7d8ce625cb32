package server

import (
	"context"
	"sync"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
)

const (
	// freshTime is what a scrape waits for devices; of one that takes longer it
	// tells what was read last.
	freshTime = 500 * time.Millisecond
	// readTime is what a device has to give its ports, for this scrape or a later.
	readTime = 30 * time.Second
	// staleTime is how long a reading is told.
	staleTime = 5 * time.Minute
)

// portReading is what a device last said of its ports.
type portReading struct {
	ports []fabric.Port
	at    time.Time
}

// portReader reads the ports of devices, each in its own time, so that a slow
// device costs a scrape no more than freshTime.
type portReader struct {
	mu      sync.Mutex
	reading map[string]chan struct{} // by device: closed when what is under way is over
	last    map[string]portReading
}

// read starts reading the ports of a device, if that is not under way, and gives
// what is closed when it is over. A device that refuses has no reading.
func (r *portReader) read(ctx context.Context, dev string, list func(context.Context) ([]fabric.Port, error)) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if done := r.reading[dev]; done != nil {
		return done
	}
	done := make(chan struct{})
	r.reading[dev] = done
	go func() {
		ctx, cancel := context.WithTimeout(ctx, readTime)
		defer cancel()
		ports, err := list(ctx)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil {
			r.last[dev] = portReading{ports, time.Now()}
		} else if ctx.Err() == nil {
			delete(r.last, dev)
		}
		delete(r.reading, dev)
		close(done)
	}()
	return done
}

// readPorts gives the ports of devices: those that are read within freshTime, and
// of the others what they said last.
func (s *Server) readPorts(ctx context.Context, devices []fabric.DeviceStats) map[string]portReading {
	r := &s.metrics.ports
	under := make([]<-chan struct{}, len(devices))
	for i, d := range devices {
		under[i] = r.read(s.drain.begun, d.ID, func(ctx context.Context) ([]fabric.Port, error) {
			page, err := s.fabric.ListPorts(ctx, fabric.Caller{Identity: anonymous}, fabric.List{Parent: s.node + "/devices/" + d.ID, PageSize: 1000},
				func(p *fabric.Port) bool { return p.Class != device.PortNotConnected })
			return page.Items, err
		})
	}
	ctx, cancel := context.WithTimeout(ctx, freshTime)
	defer cancel()
	for _, done := range under {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := map[string]portReading{}
	for _, d := range devices {
		if p, ok := r.last[d.ID]; ok && time.Since(p.at) < staleTime {
			now[d.ID] = p
		}
	}
	return now
}
