package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	labFile     = "lab.json"
	labBaseName = "accelfab-labs"
	// maxSocketPath is the room for a path in sockaddr_un, less the final zero.
	maxSocketPath = 107
)

// lab is a number of daemons on this machine, each a node of its own. DIR holds
// lab.json, which is this, and a directory for each node.
type lab struct {
	Dir       string     `json:"dir"`
	MadeDir   bool       `json:"made_dir"` // DIR was not there before
	Accelfabd string     `json:"accelfabd"`
	Devices   []string   `json:"devices"`
	Nodes     []*labNode `json:"nodes"`

	stderr io.Writer
}

// labNode is one daemon of a lab.
type labNode struct {
	Name string `json:"name"`
	// Process is the zero value until the daemon has been started.
	Process process  `json:"process"`
	GRPC    []string `json:"grpc"`
	HTTP    string   `json:"http"`

	dir    string
	exited chan struct{} // closed when a daemon that this process started has ended
}

func (n *labNode) runDir() string   { return filepath.Join(n.dir, "run") }
func (n *labNode) stateDir() string { return filepath.Join(n.dir, "state") }
func (n *labNode) logPath() string  { return filepath.Join(n.dir, "accelfabd.log") }
func (n *labNode) socket() string   { return filepath.Join(n.runDir(), "accelfabd.sock") }
func (n *labNode) server() string   { return "unix://" + n.socket() }

// labBase is where labs are that have no directory of their user's choice. It
// is short, since paths of sockets are in it.
func labBase() string {
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		return filepath.Join(run, labBaseName)
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("%s-%d", labBaseName, os.Getuid()))
}

// makeLabBase makes the base, or makes sure that the one that is there is
// nobody else's: in a temporary directory anyone may have made it.
func makeLabBase() (string, error) {
	base := labBase()
	err := os.Mkdir(base, 0o700)
	if errors.Is(err, fs.ErrExist) {
		fi, err := os.Lstat(base)
		if err != nil {
			return "", err
		}
		if !ours(fi) {
			return "", fmt.Errorf("%s is not a directory that you alone can write; remove it, or choose another with --dir", base)
		}
		return base, nil
	}
	return base, err
}

// tempLabDir makes a directory for a lab that ends with the command.
func tempLabDir(kind string) (string, error) {
	base, err := makeLabBase()
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(base, kind+"-")
}

// labDir is the directory that --dir means; "" means the default lab.
func labDir(flag string) (string, error) {
	if flag == "" {
		return filepath.Join(labBase(), "default"), nil
	}
	return filepath.Abs(flag)
}

// readLab reads DIR/lab.json. Where there is none, errors.Is finds
// fs.ErrNotExist.
func readLab(dir string) (*lab, error) {
	path := filepath.Join(dir, labFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	l := &lab{}
	if err := json.Unmarshal(data, l); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	l.Dir = dir // it may have been moved, or reached by another path
	for _, n := range l.Nodes {
		// Names become paths that are removed.
		if !strings.HasPrefix(n.Name, "node-") || n.Name != filepath.Base(n.Name) {
			return nil, fmt.Errorf("%s: %q is no name of a node", path, n.Name)
		}
		n.dir = filepath.Join(dir, n.Name)
	}
	return l, nil
}

// save writes DIR/lab.json, as a whole or not at all.
func (l *lab) save() error {
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(l.Dir, labFile)
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// running counts the daemons that are there.
func (l *lab) running() int {
	count := 0
	for _, n := range l.Nodes {
		if n.Process.running() {
			count++
		}
	}
	return count
}

// hosts are the device hosts of a node, which outlive its daemon: each has left
// word of itself in the run directory. A file that says nothing is not of one
// that ever served.
func (n *labNode) hosts() []process {
	files, _ := filepath.Glob(filepath.Join(n.runDir(), "hosts", "*.json")) // the pattern is right
	var all []process
	for _, path := range files {
		var p process
		if data, err := os.ReadFile(path); err == nil && json.Unmarshal(data, &p) == nil && p.PID > 0 {
			all = append(all, p)
		}
	}
	return all
}

// endHosts ends the device hosts of a node whose daemon has ended.
func (n *labNode) endHosts() error {
	var errs []error
	for _, p := range n.hosts() {
		errs = append(errs, p.end(labStopGrace))
	}
	return errors.Join(errs...)
}

// remove removes what the lab made and nothing else, once its device hosts have
// ended.
func (l *lab) remove() error {
	var errs []error
	for _, n := range l.Nodes {
		errs = append(errs, n.endHosts())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, n := range l.Nodes {
		errs = append(errs, os.RemoveAll(n.dir))
	}
	for _, name := range []string{labFile, labFile + ".new"} {
		if err := os.Remove(filepath.Join(l.Dir, name)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if l.MadeDir {
		removeEmpty(l.Dir)
	}
	if filepath.Dir(l.Dir) == labBase() {
		removeEmpty(labBase())
	}
	return nil
}

// removeEmpty removes a directory unless something is in it, which is then
// somebody else's.
func removeEmpty(dir string) { _ = os.Remove(dir) }

// labsHere are the labs in the base, in the order of their names.
func labsHere() ([]*lab, error) {
	entries, err := os.ReadDir(labBase())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var labs []*lab
	for _, e := range entries {
		l, err := readLab(filepath.Join(labBase(), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		labs = append(labs, l)
	}
	slices.SortFunc(labs, func(a, b *lab) int { return strings.Compare(a.Dir, b.Dir) })
	return labs, nil
}
