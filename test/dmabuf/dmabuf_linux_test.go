package dmabuf

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelfab/accelfab/test/daemon"
	"github.com/accelfab/accelfab/test/machine"
)

// runLimit bounds the run of the machine, whose processor is emulated, on one
// that is busy.
const runLimit = 8 * time.Minute

func TestMain(m *testing.M) {
	status := m.Run()
	daemon.Remove()
	os.Exit(status)
}

// runTests is what the machine does: what a card does with real dma-bufs, then
// the whole of it from the API to the importer in the kernel.
const runTests = `
/soft.test -test.v -test.run 'RealDMABuf' || exit 1
exec /inside
`

// TestRealDMABufs boots a machine whose kernel has /dev/udmabuf and runs in it
// what this one cannot.
func TestRealDMABufs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to build the machine's file system")
	}
	for _, tool := range []string{"qemu-system-x86_64", "gcc", "make", "cpio", "depmod", "gzip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s; tools/deps.sh installs it", tool)
		}
	}
	var stderr strings.Builder
	build := exec.CommandContext(t.Context(), "machine/build.sh")
	build.Stderr = &stderr
	out, err := build.Output()
	if err != nil {
		t.Fatalf("machine/build.sh built no machine: %v\n%s", err, &stderr)
	}
	dir := strings.TrimSpace(string(out))
	m, err := machine.Start(machine.Config{Kernel: dir + "/vmlinuz", Initrd: initrd(t, dir+"/initrd"), MemoryMiB: 768})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Await("status 0", runLimit); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &m.Console)
	for _, want := range []string{"--- PASS: TestRealDMABufs", "the importer in the kernel read", "everything is closed"} {
		if !strings.Contains(m.Console.String(), want) {
			t.Errorf("the machine has not said %q", want)
		}
	}
}

// initrd puts the programs behind the machine's own file system: the kernel
// unpacks one after the other.
func initrd(t *testing.T, base string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"inside":    {"build", "-o", root + "/inside", "./inside"},
		"accelfab*": {"build", "-o", root + "/", "../../cmd/accelfab", "../../cmd/accelfabd"},
		"soft.test": {"test", "-c", "-o", root + "/soft.test", "../../device/soft"},
	} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	if err := os.WriteFile(root+"/run-tests", []byte(runTests), 0o755); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	pack := exec.CommandContext(t.Context(), "sh", "-c", "find . | cpio -o -H newc --quiet")
	pack.Dir, pack.Stdout = root, &archive
	if err := pack.Run(); err != nil {
		t.Fatal(fmt.Errorf("cpio: %w", err))
	}
	first, err := os.ReadFile(base)
	if err != nil {
		t.Fatal(err)
	}
	// The second archive begins at a multiple of 4 bytes.
	first = append(first, make([]byte, -len(first)&3)...)
	path := filepath.Join(filepath.Dir(root), "initrd")
	if err := os.WriteFile(path, append(first, archive.Bytes()...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
