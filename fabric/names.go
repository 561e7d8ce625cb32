package fabric

import (
	"crypto/rand"
	"encoding/base32"
	"strconv"
	"strings"

	"github.com/accelfab/accelfab/device"
)

// kind is what a record is. The numbers are stored.
type kind uint8

const (
	kindSession   kind = 1
	kindPD        kind = 2
	kindBuffer    kind = 3
	kindRegion    kind = 4
	kindQueuePair kind = 5
	kindNode      kind = 6 // the node itself: one record
	kindTombstone kind = 7
	kindPort      kind = 8 // an administrative state that was asked
	kindExport    kind = 9
)

// collections are the name segments of the kinds (AIP-122), by kind.
var collections = [...]string{
	kindSession:   "sessions",
	kindPD:        "protectionDomains",
	kindBuffer:    "buffers",
	kindRegion:    "memoryRegions",
	kindQueuePair: "queuePairs",
	kindPort:      "ports",
	kindExport:    "memoryExports",
}

func (k kind) String() string {
	return [...]string{"", "session", "protection domain", "buffer", "memory region", "queue pair", "node", "tombstone", "port", "memory export"}[k]
}

// objectKinds are what a session owns on devices, in the order in which a
// session's end destroys them.
var objectKinds = [...]kind{kindQueuePair, kindRegion, kindExport, kindBuffer, kindPD}

const idRule = "want lower case letters, digits and hyphens, beginning with a letter, not ending with a hyphen, at most 63 characters"

// validID says whether id may be the last part of a name.
func validID(id string) bool {
	if id == "" || len(id) > 63 || id[0] < 'a' || id[0] > 'z' || id[len(id)-1] == '-' {
		return false
	}
	for i := range len(id) {
		if c := id[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newID makes an id out of a record's uid, with a letter of its kind.
func newID(k kind, uid device.UID) string {
	letter := collections[k][:1]
	if k == kindExport {
		letter = "e" // m is a region's
	}
	return letter + "-" + idEncoding.EncodeToString(uid[:10])
}

func newUID() (uid device.UID) {
	rand.Read(uid[:]) // never fails (crypto/rand)
	uid[6] = uid[6]&0x0f | 0x40
	uid[8] = uid[8]&0x3f | 0x80 // a version 4 UUID
	return uid
}

// names knows the node's own name.
type names struct {
	node string // "nodes/n"
}

// canonical turns "nodes/local/..." into the node's real name.
func (n names) canonical(name string) string {
	if name == "nodes/local" {
		return n.node
	}
	if rest, ok := strings.CutPrefix(name, "nodes/local/"); ok {
		return n.node + "/" + rest
	}
	return name
}

// child gives the id of a name right below the node, of a collection:
// "sessions", "devices". ok is false if it has another form.
func (n names) child(name, collection string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(n.canonical(name), n.node+"/"+collection+"/")
	return rest, ok && rest != "" && !strings.Contains(rest, "/")
}

// object checks the form of a name of kind k and gives it in its canonical
// form.
func (n names) object(k kind, name string) (string, bool) {
	name = n.canonical(name)
	rest, ok := strings.CutPrefix(name, n.node+"/")
	if !ok {
		return name, false
	}
	if k == kindSession {
		id, ok := strings.CutPrefix(rest, "sessions/")
		return name, ok && validID(id)
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 4 || parts[0] != "devices" || parts[2] != collections[k] {
		return name, false
	}
	if k == kindPort {
		n, err := strconv.Atoi(parts[3])
		return name, err == nil && n >= 0 && strconv.Itoa(n) == parts[3]
	}
	return name, validID(parts[1]) && validID(parts[3])
}

// pattern tells the form of names of kind k.
func (n names) pattern(k kind) string {
	switch k {
	case kindSession:
		return n.node + "/sessions/{session}"
	case kindPort:
		return n.node + "/devices/{device}/ports/{number}"
	}
	return n.node + "/devices/{device}/" + collections[k] + "/{id}"
}
