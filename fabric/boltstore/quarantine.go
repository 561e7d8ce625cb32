package boltstore

import (
	"context"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// Quarantined is a record that was put out of the way.
type Quarantined struct {
	ID     uint64
	Reason string
	Bytes  []byte // what stood in the file: a frame, whole or not
}

// Quarantined gives what is in quarantine, in ascending order of id, for an
// operator to look at.
func (s *Store) Quarantined(ctx context.Context) ([]Quarantined, error) {
	var out []Quarantined
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketQuarantine).ForEach(func(k, v []byte) error {
			q := parseQuarantined(k, v)
			q.Bytes = append([]byte(nil), q.Bytes...)
			out = append(out, q)
			return nil
		})
	})
	return out, err
}

// parseQuarantined reads an entry of quarantine. Bytes are a part of v.
func parseQuarantined(k, v []byte) Quarantined {
	q := Quarantined{Reason: "unknown"}
	if len(k) == 8 {
		q.ID = binary.BigEndian.Uint64(k)
	}
	if len(v) >= 2 {
		if n := 2 + int(binary.BigEndian.Uint16(v)); n <= len(v) {
			q.Reason, v = string(v[2:n]), v[n:]
		}
	}
	q.Bytes = v
	return q
}

// moveToQuarantine takes what is under key out of the records. The reason
// stands before it, with its length in 2 bytes, big-endian.
func moveToQuarantine(tx *bbolt.Tx, key []byte, reason string) error {
	records := tx.Bucket(bucketRecords)
	frame := records.Get(key)
	if frame == nil {
		return nil
	}
	if len(reason) > maxName {
		reason = reason[:maxName]
	}
	value := binary.BigEndian.AppendUint16(nil, uint16(len(reason)))
	value = append(append(value, reason...), frame...)
	if err := tx.Bucket(bucketQuarantine).Put(key, value); err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	return records.Delete(key)
}
