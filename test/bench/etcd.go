package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// etcd is an etcd server of one member, spoken to by gRPC as accelfabd is. Its
// two calls are encoded here: that is less than its client module.
type etcd struct {
	cmd  *exec.Cmd
	conn *grpc.ClientConn
	next atomic.Uint64
}

// startEtcd starts etcd if it is in PATH; else it gives nil.
func (b *bench) startEtcd(ctx context.Context) (*etcd, error) {
	path, err := exec.LookPath("etcd")
	if err != nil {
		return nil, nil
	}
	client, err := freeAddress()
	if err != nil {
		return nil, err
	}
	peer, err := freeAddress()
	if err != nil {
		return nil, err
	}
	e := &etcd{cmd: exec.CommandContext(ctx, path,
		"--data-dir", filepath.Join(b.dir, "etcd"), "--max-txn-ops", "1000",
		"--listen-client-urls", "http://"+client, "--advertise-client-urls", "http://"+client,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer,
		"--initial-cluster", "default=http://"+peer)}
	if err := e.cmd.Start(); err != nil {
		return nil, err
	}
	if e.conn, err = grpc.NewClient("passthrough:///"+client, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return nil, errors.Join(err, e.stop())
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := e.put(ctx)
		if err == nil {
			return e, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("etcd does not serve: %w", err), e.stop())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// putRequest is an etcdserverpb.PutRequest of a new key.
func (e *etcd) putRequest() []byte {
	b := protowire.AppendTag(nil, 1, protowire.BytesType)
	b = protowire.AppendString(b, fmt.Sprintf("%016x", e.next.Add(1)))
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	return protowire.AppendBytes(b, boltRecord)
}

func (e *etcd) put(ctx context.Context) error {
	return e.invoke(ctx, "/etcdserverpb.KV/Put", e.putRequest())
}

// putMany puts n records in one etcdserverpb.TxnRequest: RequestOps in its
// field success, each with its field request_put.
func (e *etcd) putMany(ctx context.Context, n int) error {
	var b []byte
	for range n {
		op := protowire.AppendTag(nil, 2, protowire.BytesType)
		op = protowire.AppendBytes(op, e.putRequest())
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendBytes(b, op)
	}
	return e.invoke(ctx, "/etcdserverpb.KV/Txn", b)
}

// invoke sends an encoded message: to an Empty it is fields that it does not
// know and keeps.
func (e *etcd) invoke(ctx context.Context, method string, message []byte) error {
	var in, out emptypb.Empty
	in.ProtoReflect().SetUnknown(message)
	return e.conn.Invoke(ctx, method, &in, &out)
}

func (e *etcd) stop() error {
	if e.conn != nil {
		e.conn.Close()
	}
	e.cmd.Process.Kill()
	e.cmd.Wait() // it was killed
	return nil
}
