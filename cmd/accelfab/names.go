package main

import (
	"strings"
)

// kind is a kind of resource, for the forms of its names.
type kind struct {
	noun       string // for people
	collection string // in names
	onDevice   bool   // its parent is a device rather than the node
}

var (
	deviceKind  = kind{"device", "devices", false}
	sessionKind = kind{"session", "sessions", false}
	portKind    = kind{"port", "ports", true}
	pdKind      = kind{"protection domain", "protectionDomains", true}
	bufferKind  = kind{"buffer", "buffers", true}
	mrKind      = kind{"memory region", "memoryRegions", true}
	exportKind  = kind{"export", "memoryExports", true}
	qpKind      = kind{"queue pair", "queuePairs", true}
)

const localNode = "nodes/local"

// name completes a short name.
func (k kind) name(arg string) (string, error) {
	switch device, id, split := strings.Cut(arg, "/"); {
	case strings.HasPrefix(arg, "nodes/"):
		return arg, nil
	case !k.onDevice && !split && arg != "":
		return localNode + "/" + k.collection + "/" + arg, nil
	case k.onDevice && split && device != "" && id != "" && !strings.Contains(id, "/"):
		return localNode + "/devices/" + device + "/" + k.collection + "/" + id, nil
	case k.onDevice:
		return "", usage("%s %q: want DEVICE/ID, such as soft-0/x1, or the whole name", k.noun, arg)
	}
	return "", usage("%s %q: want an id or the whole name", k.noun, arg)
}

// short is the short form of a name, for tables.
func short(name string) string {
	p := strings.Split(name, "/")
	switch {
	case len(p) == 6 && p[0] == "nodes" && p[2] == "devices":
		return p[3] + "/" + p[5]
	case len(p) == 4 && p[0] == "nodes":
		return p[3]
	}
	return name
}
