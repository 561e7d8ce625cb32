package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"runtime/pprof"
)

// A child is this program again, started to be measured in a process of its
// own. It answers calls of net/rpc on its standard input and output, and ends
// when its input does, so that none outlives the one that started it.
//
// What it serves are the methods of Server, Device, Plain and Lossy.
type child struct {
	cmd   *exec.Cmd
	calls *rpc.Client
}

const (
	childEnv   = "ACCELFAB_BENCH_CHILD"
	profileEnv = "ACCELFAB_BENCH_CPUPROFILE"
)

// childMain does the work of a child. It gives false if this process is none.
func childMain() bool {
	role := os.Getenv(childEnv)
	if role == "" {
		return false
	}
	if err := serveParent(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: child %s: %v\n", role, err)
		os.Exit(1)
	}
	return true
}

func serveParent() error {
	if path := os.Getenv(profileEnv); path != "" {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	server, device, plain, lossy := &Server{}, &Device{}, &Plain{}, &Lossy{}
	rpcs := rpc.NewServer()
	for _, service := range []any{server, device, plain, lossy} {
		if err := rpcs.Register(service); err != nil {
			return err
		}
	}
	rpcs.ServeConn(stdio{os.Stdin, os.Stdout})
	return errors.Join(server.close(), device.close(), plain.close(), lossy.close())
}

// stdio is a pair of pipes as one connection.
type stdio struct {
	io.Reader
	io.WriteCloser
}

// startChild starts a child; role is its name in messages and profiles. The
// caller stops it.
func (b *bench) startChild(ctx context.Context, role string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childEnv+"="+role)
	if b.cpuProfile != "" {
		b.children++
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%s.%d-%s.pprof", profileEnv, b.cpuProfile, b.children, role))
	}
	cmd.Stderr = b.log
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &child{cmd: cmd, calls: rpc.NewClient(stdio{out, in})}, nil
}

// call calls a method of the child.
func (c *child) call(method string, args, reply any) error {
	if err := c.calls.Call(method, args, reply); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}

// stop ends the child in order.
func (c *child) stop() error {
	c.calls.Close() // closes its input
	return c.cmd.Wait()
}
