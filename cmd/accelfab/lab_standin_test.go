package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// standIn is the variable that turns this test binary into a daemon with the
// manners of accelfabd: it says how that daemon behaves.
const standIn = "ACCELFAB_TEST_STAND_IN"

// In an init, since TestMain and the flags of testing come later.
func init() {
	if manner := os.Getenv(standIn); manner != "" {
		if err := beDaemon(manner); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func beDaemon(manner string) error {
	fs := flag.NewFlagSet("accelfabd", flag.ContinueOnError)
	node := fs.String("node-id", "", "")
	state := fs.String("state-dir", "", "")
	run := fs.String("run-dir", "", "")
	http := fs.String("http", "", "")
	var listen []string
	fs.Func("listen", "", func(s string) error { listen = append(listen, s); return nil })
	fs.String("device", "", "")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return err
	}
	fmt.Printf("stand-in of %s on %s and %s\n", *node, listen[1], *http)
	if manner == "refuse" && *node != "node-0" {
		return fmt.Errorf("level=ERROR msg=%q", "soft: no free network")
	}
	if manner == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	}
	term := make(chan os.Signal, 1)
	if manner == "serve" {
		signal.Notify(term, syscall.SIGTERM)
	}
	if manner == "mute" { // never serves
		signal.Notify(term, syscall.SIGTERM)
		<-term
		return nil
	}
	if err := os.WriteFile(filepath.Join(*state, "store"), []byte(*node), 0o600); err != nil {
		return err
	}
	path := strings.TrimPrefix(listen[0], "unix://")
	os.Remove(path)
	ln, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	go s.Serve(ln)
	data, _ := json.Marshal(doors{PID: os.Getpid(), GRPC: []string{listen[0], "127.0.0.1:1"}, HTTP: "127.0.0.1:2"})
	ready := filepath.Join(*run, "accelfabd.json")
	if err := os.WriteFile(ready+".new", data, 0o600); err != nil {
		return err
	}
	if err := os.Rename(ready+".new", ready); err != nil {
		return err
	}
	<-term // not to be had for a stubborn one
	return nil
}
