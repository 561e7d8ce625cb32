// Package accelfab holds no code: its test keeps the rules of the house, which
// ARCHITECTURE.md explains.
package accelfab

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/accelfab/accelfab/"

const (
	maxFileLines        = 600
	maxInterfaceMethods = 6
)

// room is a folder and everything below it. A package belongs to the longest
// room that holds it.
type room struct {
	path string
	// may is which rooms of this module it may import, besides itself.
	may []string
	// not is which packages of other modules it must not import, by prefix.
	not []string
}

var contractAndDoors = []string{"google.golang.org/", "github.com/grpc-ecosystem/", "github.com/fullstorydev/"}
var stores = []string{"go.etcd.io/"}

var rooms = []room{
	{path: "proto", not: stores},
	{path: "device/ib", not: join(contractAndDoors, stores)},
	{path: "device/topology", may: []string{"device"}, not: join(contractAndDoors, stores)},
	{path: "device/soft", may: []string{"device", "device/ib", "device/topology"}, not: join(contractAndDoors, stores)},
	{path: "device/host", may: []string{"device", "device/ib", "proto"}, not: stores},
	{path: "device/devicetest", may: []string{"device", "device/ib"}, not: join(contractAndDoors, stores)},
	{path: "device", may: []string{"device/ib"}, not: join(contractAndDoors, stores)},
	{path: "fabric/boltstore", may: []string{"fabric"}, not: contractAndDoors},
	{path: "fabric/storetest", may: []string{"fabric"}, not: join(contractAndDoors, stores)},
	{path: "fabric", may: []string{"device", "device/ib", "device/topology"}, not: join(contractAndDoors, stores)},
	{path: "server", may: []string{"fabric", "device", "device/ib", "proto"}, not: stores},
	{path: "client", may: []string{"proto"}, not: stores},
	{path: "cmd/accelfab", may: []string{"client", "proto"}},
	{path: "cmd/accelfabd", may: []string{"server", "fabric", "fabric/boltstore", "device", "device/host", "device/soft", "device/topology"}},
	{path: "test", may: []string{"client", "server", "fabric", "fabric/boltstore", "fabric/storetest", "device", "device/ib", "device/host", "device/soft", "device/topology", "proto"}},
	{path: "tools"},
}

// In tests a package may also use what other rooms offer for testing.
var forTests = []string{"device", "device/soft", "device/devicetest", "device/topology", "fabric/storetest", "fabric/boltstore"}

var vagueNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "base", "shared"}

func join(lists ...[]string) []string { return slices.Concat(lists...) }

func roomOf(dir string) (room, bool) {
	var best room
	for _, r := range rooms {
		if (dir == r.path || strings.HasPrefix(dir, r.path+"/")) && len(r.path) > len(best.path) {
			best = r
		}
	}
	return best, best.path != ""
}

type file struct {
	path   string // slash separated, from the root
	syntax *ast.File
	fset   *token.FileSet
}

func (f file) dir() string     { return path.Dir(f.path) }
func (f file) isTest() bool    { return strings.HasSuffix(f.path, "_test.go") }
func (f file) lines() int      { return f.fset.File(f.syntax.Package).LineCount() }
func (f file) generated() bool { return ast.IsGenerated(f.syntax) }

func goFiles(t *testing.T) []file {
	t.Helper()
	var files []file
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); p != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		syntax, err := parser.ParseFile(fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file{filepath.ToSlash(p), syntax, fset})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 50 {
		t.Fatalf("only %d Go files found: the walk is broken", len(files))
	}
	return files
}

func TestEveryPackageHasARoom(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.dir() == "." {
			continue
		}
		if _, ok := roomOf(f.dir()); !ok {
			t.Errorf("%s: no room for %s", f.path, f.dir())
		}
	}
}

func TestImportsStayInTheirRooms(t *testing.T) {
	for _, f := range goFiles(t) {
		from, ok := roomOf(f.dir())
		if !ok {
			continue
		}
		for _, spec := range f.syntax.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			inside, ours := strings.CutPrefix(imported, module)
			if !ours {
				for _, no := range from.not {
					if strings.HasPrefix(imported, no) && !f.isTest() {
						t.Errorf("%s imports %s, which has no place in %s", f.path, imported, from.path)
					}
				}
				continue
			}
			to, ok := roomOf(inside)
			if !ok {
				t.Errorf("%s imports %s, which is in no room", f.path, imported)
				continue
			}
			allowed := to.path == from.path || slices.Contains(from.may, to.path)
			if f.isTest() {
				allowed = allowed || slices.Contains(forTests, to.path)
			}
			if !allowed {
				t.Errorf("%s: %s must not import %s", f.path, from.path, to.path)
			}
		}
	}
}

func TestSystemCallsAndUnsafeAreFenced(t *testing.T) {
	for _, f := range goFiles(t) {
		for _, spec := range f.syntax.Imports {
			switch strings.Trim(spec.Path.Value, `"`) {
			case "golang.org/x/sys/unix":
				if !strings.HasSuffix(f.path, "_linux.go") && !strings.HasSuffix(f.path, "_linux_test.go") {
					t.Errorf("%s imports x/sys/unix; only *_linux.go files do", f.path)
				}
			case "unsafe":
				if !f.generated() && !strings.Contains(path.Base(f.path), "unsafe") && !strings.Contains(path.Base(f.path), "ioctl") {
					t.Errorf("%s imports unsafe; only files named for it do", f.path)
				}
			}
		}
	}
}

func TestOnePackageCommentAPackage(t *testing.T) {
	comments := map[string][]string{}
	packages := map[string]bool{}
	for _, f := range goFiles(t) {
		if f.isTest() && f.dir() != "." || f.generated() {
			continue
		}
		packages[f.dir()] = true
		if f.syntax.Doc != nil {
			comments[f.dir()] = append(comments[f.dir()], f.path)
		}
	}
	for dir := range packages {
		switch n := len(comments[dir]); {
		case n == 0:
			t.Errorf("%s has no package comment", dir)
		case n > 1:
			t.Errorf("%s has %d package comments: %v", dir, n, comments[dir])
		}
	}
}

func TestFilesHoldOneConcept(t *testing.T) {
	for _, f := range goFiles(t) {
		if n := f.lines(); n > maxFileLines && !f.generated() {
			t.Errorf("%s has %d lines; at most %d", f.path, n, maxFileLines)
		}
	}
}

func TestInterfacesAreSmall(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.generated() {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if it, ok := spec.Type.(*ast.InterfaceType); ok {
				own := 0
				for _, m := range it.Methods.List {
					own += len(m.Names) // embedded interfaces have no name
				}
				if own > maxInterfaceMethods {
					t.Errorf("%s: interface %s has %d methods of its own; at most %d", f.path, spec.Name, own, maxInterfaceMethods)
				}
			}
			return true
		})
	}
}

func TestPackageNamesSayWhatTheyHold(t *testing.T) {
	for _, f := range goFiles(t) {
		if slices.Contains(vagueNames, f.syntax.Name.Name) {
			t.Errorf("%s: package %s says nothing", f.path, f.syntax.Name.Name)
		}
	}
}
