package main

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/accelfab/accelfab/device/soft"
	"github.com/accelfab/accelfab/server"
)

// Server is a daemon in a child: a software HLS-2, a fabric and the door of a
// unix socket. accelfabd puts the same parts together; here the store can
// be another or none.
type Server struct {
	stop func() error
}

// ServerConfig says what to serve.
type ServerConfig struct {
	Socket  string
	Store   string // kind
	Dir     string // of the store
	Records int    // queue pairs to be in a boltStore, of a device that is not there
}

// Open fills the store and serves.
func (s *Server) Open(cfg ServerConfig, _ *None) error {
	ctx := context.Background()
	if cfg.Store == boltStore {
		if err := fill(ctx, cfg.Dir, cfg.Records); err != nil {
			return err
		}
	}
	spec, err := soft.ParseSpec(devices)
	if err != nil {
		return err
	}
	chassis, err := soft.Open(spec)
	if err != nil {
		return err
	}
	f, err := openFabric(ctx, cfg.Store, cfg.Dir, chassis.Devices())
	if err != nil {
		return errors.Join(err, chassis.Close())
	}
	l, err := server.Listen("unix://" + cfg.Socket)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	srv := server.New(server.Options{Fabric: f})
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve([]net.Listener{l}, nil) }()
	s.stop = func() error {
		srv.Stop(ctx)
		return errors.Join(<-ended, f.Close(), chassis.Close(), os.RemoveAll(cfg.Dir))
	}
	return nil
}

func (s *Server) close() error {
	if s.stop == nil {
		return nil
	}
	return s.stop()
}
