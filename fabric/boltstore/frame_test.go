package boltstore

import (
	"bytes"
	"errors"
	"testing"
)

func TestFrame(t *testing.T) {
	k := key(7)
	whole := appendFrame(nil, k, "nodes/a/sessions/s", []byte("value"))
	if len(whole) != frameSize("nodes/a/sessions/s", []byte("value")) {
		t.Errorf("frame has %d bytes", len(whole))
	}
	newer := bytes.Clone(whole)
	newer[0] = 9
	for _, c := range []struct {
		name  string
		key   []byte
		frame []byte
		err   error
	}{
		{"whole", k, whole, nil},
		{"under another key", key(8), whole, errFrameChecksum},
		{"empty", k, nil, errFrameShort},
		{"zeroed", k, make([]byte, len(whole)), errFrameVersion},
		{"another version", k, newer, errFrameVersion},
		{"cut", k, whole[:len(whole)-1], errFrameChecksum},
	} {
		name, value, err := parseFrame(c.key, c.frame)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		if c.err == nil && (string(name) != "nodes/a/sessions/s" || string(value) != "value") {
			t.Errorf("%s: %q, %q", c.name, name, value)
		}
	}
	for i := range whole {
		for bit := range 8 {
			b := bytes.Clone(whole)
			b[i] ^= 1 << bit
			if _, _, err := parseFrame(k, b); err == nil {
				t.Fatalf("bit %d of byte %d turned over and not found", bit, i)
			}
		}
	}
}

func TestGuessName(t *testing.T) {
	whole := appendFrame(nil, key(1), "records/1", []byte("value"))
	bad := bytes.Clone(whole)
	bad[len(bad)-6] ^= 1
	if name, ok := guessName(bad); !ok || name != "records/1" {
		t.Errorf("name of a record with a bad value is %q, %v", name, ok)
	}
	bad[4] = 0
	if name, ok := guessName(bad); ok {
		t.Errorf("unprintable bytes pass as name %q", name)
	}
	if _, ok := guessName([]byte{1, 255, 255, 'a', 0, 0, 0, 0}); ok {
		t.Error("a name longer than the frame passes")
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(uint64(1), "records/1", []byte("value"))
	f.Add(uint64(0), "", []byte{})
	f.Fuzz(func(t *testing.T, id uint64, name string, value []byte) {
		name = name[:min(len(name), maxName)]
		b := appendFrame([]byte("before"), key(id), name, value)[len("before"):]
		gotName, gotValue, err := parseFrame(key(id), b)
		if err != nil || string(gotName) != name || !bytes.Equal(gotValue, value) {
			t.Fatalf("%q, %q, %v", gotName, gotValue, err)
		}
	})
}

func FuzzParseFrame(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0})
	f.Add(appendFrame(nil, key(1), "n", []byte("v")))
	f.Fuzz(func(t *testing.T, b []byte) {
		guessName(b)
		name, value, err := parseFrame(key(1), b)
		if err == nil && !bytes.Equal(appendFrame(nil, key(1), string(name), value), b) {
			t.Fatal("a frame that is read is not the frame that is written")
		}
	})
}
