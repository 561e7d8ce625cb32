package fabric

import (
	"fmt"
	"time"
)

// RecordText is a stored record for people to read, as in a dump. It has no keys
// that give access to anything.
type RecordText struct {
	ID         uint64            `json:"id"`
	Name       string            `json:"name"`
	Kind       string            `json:"kind"`
	UID        string            `json:"uid"`
	Revision   uint64            `json:"revision"`
	CreateTime time.Time         `json:"create_time"`
	Labels     map[string]string `json:"labels,omitempty"`
	Request    string            `json:"request_id,omitempty"`
	Session    uint64            `json:"session,omitempty"` // id of its record
	Deleting   bool              `json:"deleting,omitempty"`
	Cause      Reason            `json:"cause,omitempty"`
	Asked      any               `json:"asked,omitempty"`
	Unknown    int               `json:"unknown_keys,omitempty"` // of a later version
}

// DescribeRecord reads a record as Open does, and says what is wrong with one that
// Open would set aside.
func DescribeRecord(r Record) (RecordText, error) {
	s, err := decodeStored(r.Value)
	if err != nil {
		return RecordText{}, err
	}
	t := RecordText{ID: r.ID, Name: r.Name, Kind: s.Kind.String(), UID: uidString(s.UID), Revision: s.Revision, CreateTime: time.Unix(0, s.Created).UTC(),
		Labels: s.Labels, Request: s.Request, Session: s.Session, Deleting: s.Deleting, Cause: s.Cause, Unknown: s.nx}
	switch s.Kind {
	case kindSession:
		t.Asked = s.SessionAsk
	case kindBuffer:
		t.Asked = s.BufferAsk
	case kindRegion:
		t.Asked = s.RegionAsk
	case kindQueuePair:
		ask := *s.QPAsk
		ask.QKey = 0 // who has it can send
		t.Asked = &ask
	case kindPort:
		t.Asked = s.PortAsk
	case kindExport:
		t.Asked = s.ExportAsk
	case kindNode:
		t.Asked = struct {
			Life    *nodeLife             `json:"life,omitempty"`
			Devices map[string]deviceMark `json:"devices,omitempty"`
		}{s.Life, s.Devices}
	case kindTombstone:
		t.Asked = s.Gone
	}
	return t, nil
}

// DescribeEvent reads an entry of the journal.
func DescribeEvent(e StoredEvent) (Event, error) {
	out := decodeEvent(e)
	if out.Resource == "" {
		return out, fmt.Errorf("%s", out.Message)
	}
	return out, nil
}
