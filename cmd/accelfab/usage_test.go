package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client/clienttest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// A command line that makes no sense ends with 2, says in one line what is wrong
// and what to do, and asks the daemon nothing.
func TestUsage(t *testing.T) {
	r := newRecorder(t, nil)
	for line, want := range map[string]string{
		"frob":                             `"frob": no such command; see accelfab --help`,
		"qp frob":                          `"frob": no such command; see accelfab qp --help`,
		"qp list --frob":                   "unknown flag: --frob",
		"qp get soft-0/q1 -x":              "unknown shorthand flag: 'x' in -x",
		"qp get":                           "accepts 1 arg(s), received 0; usage: accelfab qp get DEVICE/ID [flags]",
		"qp get soft-0/q1 soft-0/q2":       "accepts 1 arg(s), received 2; usage: ",
		"qp connect soft-0/q1":             "accepts 2 arg(s), received 1; usage: accelfab qp connect A B",
		"qp delete":                        "requires at least 1 arg(s), only received 0",
		"node get n1":                      `unknown command "n1" for "accelfab node get"`,
		"buffer list soft-0 soft-1":        "accepts at most 1 arg(s), received 2",
		"pd create soft-0":                 `required flag(s) "session" not set`,
		"pd create soft-0 --session=":      `session "": want an id or the whole name`,
		"buffer create soft-0 --session s": `required flag(s) "size" not set`,
		"mr create soft-0":                 `required flag(s) "pd" not set`,
		"mr create soft-0 --pd soft-0/p":   "want exactly one of --buffer, --import-fd and --import-export",
		"mr create soft-0 --pd soft-0/p --buffer soft-0/b --import-fd 3":        "want exactly one of --buffer, --import-fd and --import-export",
		"mr create soft-0 --pd soft-0/p --import-export soft-0/e --import-fd 3": "want exactly one of --buffer, --import-fd and --import-export",
		"mr create soft-0 --pd soft-0/p --buffer soft-0/b --iova 4096":          "--iova goes with --import-fd and --import-export",
		"export create soft-0":                                                         `required flag(s) "buffer" not set`,
		"export create soft-0 --buffer soft-0/b --fetcher bob":                         `--fetcher "bob": want uid:N, gid:N or session:ID`,
		"export create soft-0 --buffer soft-0/b --fetcher uid:-1":                      `--fetcher "uid:-1": want uid:N`,
		"export fetch soft-0/e":                                                        "requires at least 2 arg(s), only received 1",
		"topo pick":                                                                    "accepts 1 arg(s), received 0",
		"topo pick all":                                                                `"all": want a number of cards, 1 to 16`,
		"topo pick 0":                                                                  `"0": want a number of cards, 1 to 16`,
		"topo pick 17":                                                                 `"17": want a number of cards, 1 to 16`,
		"topo graph --format png":                                                      `--format "png": want dot or svg`,
		"topo peer-access soft-0":                                                      "accepts 2 arg(s), received 1",
		"qp modify soft-0/q1":                                                          `required flag(s) "state" not set`,
		"qp modify soft-0/q1 --state up":                                               `--state "up": want one of reset, init, rtr, rts, sqd, sqe, err`,
		"qp create soft-0 --pd soft-0/p --port 8":                                      `port "8": want DEVICE/ID, such as soft-0/`,
		"qp create soft-0 --pd soft-0/p --port soft-0/8 --type xrc":                    `--type "xrc": want one of rc, uc, ud`,
		"qp create soft-0 --pd soft-0/p --port soft-0/8 --count 0":                     "--count 0: want 1 to 1000",
		"qp create soft-0 --pd soft-0/p --port soft-0/8 --count 1001":                  "--count 1001: want 1 to 1000",
		"qp create soft-0 --pd soft-0/p --port soft-0/8 --count 2 --id q":              "--id goes with --count 1",
		"qp create soft-0 --pd soft-0/p --port soft-0/8 --sge -1":                      `invalid argument "-1" for "--sge"`,
		"qp create soft-0 --pd soft-0/p --port soft-0/8 --gid-index -1":                "want a number from 0 to 0xffffffff",
		"qp create soft-0 --pd soft-0/p --port soft-0/8 --access all":                  `--access "all": want one of local-write`,
		"mr create soft-0 --pd soft-0/p --buffer soft-0/b --access all":                `--access "all": want one of local-write, remote-write, remote-read, remote-atomic`,
		"buffer create soft-0 --session s --size 64MB":                                 "want a number of bytes, or one with KiB, MiB, GiB or TiB behind it",
		"buffer create soft-0 --session s --size -1":                                   "want a number of bytes",
		"buffer create soft-0 --session s --size 16777216TiB":                          "want a number of bytes",
		"device get soft-0/8":                                                          `device "soft-0/8": want an id or the whole name`,
		"port get 8":                                                                   `port "8": want DEVICE/ID`,
		"qp get soft-0/":                                                               `queue pair "soft-0/": want DEVICE/ID`,
		"qp get a/b/c":                                                                 `queue pair "a/b/c": want DEVICE/ID`,
		"qp delete soft-0/q1 q2":                                                       `queue pair "q2": want DEVICE/ID`,
		"qp delete soft-0/q1 soft-0/q2 --etag e":                                       "--etag goes with one name",
		"qp connect soft-0/q1 soft-0/q1":                                               "soft-0/q1 with itself: give two queue pairs, or --peer-server",
		"qp post soft-0/q1 --opcode rdma-write --mr soft-0/m":                          "--opcode rdma-write needs --to-mr, or --to-address with --rkey",
		"qp post soft-0/q1 --opcode send --mr soft-0/m --to-mr soft-0/m":               "--to-mr does not go with --opcode send",
		"qp post soft-0/q1 --opcode rdma-read --mr soft-0/m --to-mr soft-0/m --imm 1":  "--imm does not go with --opcode rdma-read",
		"qp post soft-0/q1 --opcode fetch-add --mr soft-0/m --to-mr soft-0/m --swap 1": "--swap does not go with --opcode fetch-add",
		"qp post soft-0/q1 --opcode rdma-read --mr soft-0/m --to-address 1":            "[to-address rkey]",
		"qp post soft-0/q1 --opcode rdma-read --mr soft-0/m --to-address 1 --rkey 1 --to-mr soft-0/m":                   "[to-mr to-address]",
		"qp post soft-0/q1 --opcode rdma-read --mr soft-0/m --to-address 1 --rkey 0x100000000":                          "want a number from 0 to 0xffffffff",
		"qp post soft-0/q1 --opcode rdma-read --mr soft-0/m --to-address 1 --rkey 1 --peer-server x:1":                  "--peer-server goes with --to-mr",
		"qp post soft-0/q1 --opcode rdma-read --mr soft-0/m --to-mr soft-0/m --dest-gid ::1 --dest-qpn 1 --dest-qkey 1": "--dest-gid does not go with --opcode rdma-read",
		"qp post soft-0/q1 --opcode recv --mr soft-0/m --solicited":                                                     "--solicited does not go with --opcode recv",
		"qp post soft-0/q1 --opcode send --mr soft-0/m --dest-gid ::1 --dest-qpn 1":                                     "[dest-gid dest-qpn dest-qkey]",
		"qp post soft-0/q1 --opcode recv --mr m":                                                                        `memory region "m": want DEVICE/ID`,
		"qp post soft-0/q1 --opcode jump --mr soft-0/m":                                                                 `--opcode "jump": want one of send, send-with-imm`,
		"qp post soft-0/q1 --opcode recv --mr soft-0/m --wait -1s":                                                      "--wait -1s: want 0 or more",
		"session create --device soft-0/8":                                                                              `device "soft-0/8": want an id`,
		"session create --ttl 5":                                                                                        `invalid argument "5" for "--ttl"`,
		"session create --label job":                                                                                    `invalid argument "job" for "--label"`,
		"-o xml node get":                                                                                               `--output "xml": want table, json, yaml`,
		"--timeout 0 node get":                                                                                          "--timeout 0s: want more than 0",
		"--server nonsense node get":                                                                                    `server "nonsense": want unix:///path or host:port`,
		"--server unix://rel.sock node get":                                                                             "want an absolute path, as in unix:///run/accelfab/accelfabd.sock",
	} {
		t.Run(line, func(t *testing.T) {
			got := r.run(t, strings.Fields(line)...)
			if got.status != exitUsage || got.stdout != "" || !strings.HasPrefix(got.stderr, "accelfab: ") || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("%+v, want status 2 and one line", got)
			}
			if !strings.Contains(got.stderr, want) {
				t.Errorf("%slacks %s", got.stderr, want)
			}
			r.asked(t)
		})
	}
}

// What the daemon refuses ends with 1, and its words are one line.
func TestRefusal(t *testing.T) {
	refused := clienttest.Refusal{
		Code: codes.InvalidArgument, Reason: pb.ErrorReason_ERROR_REASON_FIELD_INVALID,
		Message: "buffer.size_bytes: 3 TiB: soft-0 has 1 GiB;\n ask for less",
		Fields:  [][2]string{{"buffer.size_bytes", "3 TiB: soft-0 has 1 GiB;\n ask for less"}, {"buffer.alignment_bytes", "3: want a power of two"}},
	}.Err()
	r := newRecorder(t, func(method string, req proto.Message) (proto.Message, error) {
		if r, ok := req.(*pb.DeleteBufferRequest); ok && strings.HasSuffix(r.GetName(), "ok") {
			return nil, nil
		}
		return nil, refused
	})
	const words = "buffer.size_bytes: 3 TiB: soft-0 has 1 GiB; ask for less; buffer.alignment_bytes: 3: want a power of two"
	for _, output := range outputs {
		got := r.run(t, "-o", output, "buffer", "create", "soft-0", "--session", "s", "--size", "3TiB")
		if got != (result{exitFailed, "", "accelfab: " + words + "\n"}) {
			t.Errorf("%+v", got)
		}
	}
	// Of several names those that can be are deleted, and each other is told.
	got := r.run(t, "buffer", "delete", "soft-0/b1", "soft-0/ok", "soft-0/b2")
	if got != (result{exitFailed, "buffer soft-0/ok: deleted\n", "accelfab: " + words + "; " + words + "\n"}) {
		t.Errorf("%+v", got)
	}
}

func TestNoDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d")
	got := runWith(t, "", "--server", "unix://"+socket, "device", "list")
	if got.status != exitFailed || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("%+v", got)
	}
	for _, want := range []string{"no daemon answers", socket, "is accelfabd running, and is this its address"} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("%slacks %q", got.stderr, want)
		}
	}
}

// A daemon that takes the connection and says nothing is given up.
func TestMuteDaemon(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "d"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := runWith(t, "", "--server", "unix://"+l.Addr().String(), "--timeout", "20ms", "device", "list")
	if got.status != exitFailed || !strings.Contains(got.stderr, "the daemon did not answer in time") {
		t.Errorf("%+v", got)
	}
}

func TestServerFromEnvironment(t *testing.T) {
	r := newRecorder(t, nil)
	t.Setenv("ACCELFAB_SERVER", r.target)
	if got := runWith(t, "", "device", "get", "soft-0"); got.status != 0 {
		t.Errorf("%+v", got)
	}
	r.asked(t, &pb.GetDeviceRequest{Name: device0})
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"qp"}, {"help", "qp"}, {"qp", "create", "--help"}} {
		got := runWith(t, "", args...)
		if got.status != 0 || got.stderr != "" || !strings.Contains(got.stdout, "Usage:") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := runWith(t, "", "version", "-o", "json"); got.stdout != "{\n  \"version\": \""+version()+"\"\n}\n" {
		t.Errorf("version: %+v", got)
	}
}

// Every command says what it is and gives an example, and the examples are
// command lines that it takes.
func TestExamples(t *testing.T) {
	root := newRootCmd()
	var walk func(cmd *cobra.Command)
	seen := 0
	walk = func(cmd *cobra.Command) {
		seen++
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("%s has no Short or no Example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			line = strings.TrimSpace(line)
			_, line, found := strings.Cut("| "+line[max(strings.LastIndex(line, "| "), 0):], "accelfab ")
			line, _, _ = strings.Cut(line, " > ")
			if !found {
				t.Errorf("%s: example without accelfab", cmd.CommandPath())
				continue
			}
			// A tree of its own, as flags keep what they are given.
			of, rest, err := newRootCmd().Find(strings.Fields(line))
			if err != nil {
				t.Errorf("%s: %v", line, err)
				continue
			}
			if cmd.HasParent() && !strings.HasPrefix(of.CommandPath(), cmd.CommandPath()) {
				t.Errorf("%s has an example of %s", cmd.CommandPath(), of.CommandPath())
			}
			if err := of.ParseFlags(rest); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			if err := of.ValidateArgs(of.Flags().Args()); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			if err := of.ValidateRequiredFlags(); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	if seen < 40 {
		t.Errorf("%d commands: the walk is broken", seen)
	}
}

func TestCompletion(t *testing.T) {
	r := newRecorder(t, nil)
	for line, want := range map[string]string{
		"device get ":                          "soft-0",
		"port get ":                            "soft-0/8",
		"session close ":                       "job1",
		"session close job1 ":                  "job1",
		"qp connect soft-0/q1 ":                "soft-0/q1",
		"buffer list ":                         "soft-0",
		"mr create soft-0 --pd ":               "soft-0/pd1",
		"mr create soft-0 --buffer ":           "soft-0/b1",
		"qp create soft-0 --port ":             "soft-0/8",
		"qp post soft-0/q1 --mr ":              "soft-0/mr1",
		"pd create soft-0 --session ":          "job1",
		"session create --device ":             "soft-0",
		"buffer write ":                        "soft-0/b1",
		"buffer write soft-0/b1 ":              "", // a file
		"qp get soft-0/q1 ":                    "",
		"qp modify soft-0/q1 --state err --et": "--etag",
	} {
		args := append([]string{"__complete", "--server", r.target}, strings.Split(line, " ")...)
		got := runWith(t, "", args...)
		words := strings.Split(strings.TrimSuffix(got.stdout, "\n"), "\n")
		if word, _, _ := strings.Cut(words[0], "\t"); got.status != 0 || word != want && !(want == "" && strings.HasPrefix(word, ":")) {
			t.Errorf("%s<TAB>: %q, want %q", line, words, want)
		}
		if file := words[len(words)-1] == ":0"; file != (strings.HasPrefix(line, "buffer write soft-0/b1") || line == "qp get soft-0/q1 ") && want != "--etag" {
			t.Errorf("%s<TAB>: directive %s", line, words[len(words)-1])
		}
	}
	// Without a daemon nothing is offered, and no error is shown among the words.
	got := runWith(t, "", "__complete", "--server", "unix://"+filepath.Join(t.TempDir(), "d"), "device", "get", "")
	if words := strings.Split(strings.TrimSpace(got.stdout), "\n"); len(words) != 1 || words[0] != ":1" {
		t.Errorf("without a daemon: %q", words)
	}
}

// The rule of short names in the root's help holds for every kind.
func TestShortNames(t *testing.T) {
	help := newRootCmd().Long
	for _, k := range []kind{deviceKind, sessionKind, portKind, pdKind, bufferKind, mrKind, qpKind} {
		given, whole := "x1", "nodes/local/"+k.collection+"/x1"
		if k.onDevice {
			given, whole = "soft-0/x1", "nodes/local/devices/soft-0/"+k.collection+"/x1"
		}
		if got, err := k.name(given); err != nil || got != whole {
			t.Errorf("%s %s: %s %v, want %s", k.noun, given, got, err, whole)
		}
		if got, err := k.name(whole); err != nil || got != whole {
			t.Errorf("%s: %s %v", whole, got, err)
		}
		if got := short(whole); got != given {
			t.Errorf("%s is shown as %s, want %s", whole, got, given)
		}
	}
	for _, name := range []string{"nodes/n1/devices/soft-0/queuePairs/q1", "soft-0/q1", "soft-0/8"} {
		if !strings.Contains(help, name) {
			t.Errorf("the help does not have %s", name)
		}
	}
	for _, name := range []string{"", "nodes/n1", "a/b/c"} {
		if got := short(name); got != name {
			t.Errorf("%q is shown as %q", name, got)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "1": 1, "0x1000": 4096, "1KiB": 1024, "64MiB": 64 << 20, "3GiB": 3 << 30, "16777215TiB": 16777215 << 40} {
		var s sizeFlag
		if err := s.Set(text); err != nil || uint64(s) != want {
			t.Errorf("%s: %d %v, want %d", text, uint64(s), err, want)
		}
	}
	for n, want := range map[uint64]string{0: "0", 1: "1", 1023: "1023", 1024: "1KiB", 1536: "1536", 1 << 20: "1MiB", 3 << 40: "3TiB", 1 << 60: "1048576TiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d is shown as %s, want %s", n, got, want)
		}
	}
}
