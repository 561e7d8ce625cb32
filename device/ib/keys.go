package ib

// PKey is a partition key: 15 bits that name the partition and a top bit that
// says full (1) or limited (0) membership.
type PKey uint16

// DefaultPKey is the default partition with full membership, the only key that
// Linux Soft-RoCE knows.
const DefaultPKey PKey = 0xffff

const pkeyMember = 0x8000

// Base gives the partition without the membership bit.
func (k PKey) Base() PKey { return k &^ pkeyMember }

// FullMember reports whether the key grants full membership.
func (k PKey) FullMember() bool { return k&pkeyMember != 0 }

// Valid reports whether the key names a partition: base 0 names none.
func (k PKey) Valid() bool { return k.Base() != 0 }

// Matches reports whether holders of k and other may talk: both name the same
// partition and at least one is a full member.
func (k PKey) Matches(other PKey) bool {
	return k.Valid() && k.Base() == other.Base() && (k | other).FullMember()
}

// QKey is the queue key that a datagram carries and its receiver checks.
type QKey uint32

// Controlled reports whether only a privileged sender may choose the key: the
// top bit. A work request that names such a key sends the queue pair's own
// key in its place.
func (k QKey) Controlled() bool { return k&(1<<31) != 0 }

// RKey lets a remote peer at a memory region. It is a secret between the
// region's owner and the peers it was told to.
type RKey uint32

// LKey names a memory region in local work requests.
type LKey uint32
