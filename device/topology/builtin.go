package topology

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

// maps holds one file a server, named as the server.
//
//go:embed maps/*.yaml
var maps embed.FS

// Names returns the names of the built-in maps, sorted.
func Names() []string {
	entries, err := maps.ReadDir("maps")
	if err != nil {
		panic(err) // the folder is part of the program
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), ".yaml")
	}
	slices.Sort(names)
	return names
}

// Lookup returns a built-in map by its name, in any case. The caller owns it.
// The error for an unknown name lists the known ones.
//
// Where the cabling of a server is not public (hls-1), Lookup returns the map
// and an error that wraps [ErrPeersUnknown].
func Lookup(name string) (*Map, error) {
	lower := strings.ToLower(name)
	if !slices.Contains(Names(), lower) {
		return nil, fmt.Errorf("topology %q is not known: use one of %s (hls-1 only with a map file, as its cabling is not public), or a map file",
			name, strings.Join(Names(), ", "))
	}
	data, err := maps.ReadFile("maps/" + lower + ".yaml")
	if err != nil {
		return nil, err
	}
	return load(data, lower, lower)
}
