package main

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// readyName is the file in the run directory that tells who serves, and where.
const readyName = "accelfabd.json"

// ready is its content.
type ready struct {
	PID      int      `json:"pid"`
	Node     string   `json:"node"`
	Instance string   `json:"instance"`
	GRPC     []string `json:"grpc"` // unix:///path or tcp://host:port
	HTTP     string   `json:"http"` // host:port, unix:///path, or "" for none
	// Descriptors is the path of the descriptor socket.
	Descriptors string `json:"descriptors"`
}

// write puts the file into dir in one step: a reader sees all of it or none.
func (r ready) write(dir string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "."+readyName)
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, readyName))
}

// remove takes the file away, unless it is another process's by now.
func (r ready) remove(dir string) {
	path := filepath.Join(dir, readyName)
	b, err := os.ReadFile(path)
	var now ready
	if err == nil && json.Unmarshal(b, &now) == nil && now.PID == r.PID {
		os.Remove(path)
	}
}
