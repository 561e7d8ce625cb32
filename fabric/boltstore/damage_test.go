package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/accelfab/accelfab/fabric"
)

// soundFile makes a store of some pages and gives its bytes: 400 records that
// are left of 500, so that there are free pages and older states.
func soundFile(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fabric.db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for id := uint64(1); id <= 500; {
		var c fabric.Change
		for range 10 {
			c.Put = append(c.Put, record(id, fmt.Sprintf("%0100d", id)))
			c.Events = append(c.Events, []byte("made"))
			id++
		}
		if id%50 == 1 {
			for gone := id - 20; gone < id-10; gone++ {
				c.Delete = append(c.Delete, gone)
			}
		}
		commit(t, s, c)
	}
	closeStore(t, s)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const soundRecords = 400

// openDamaged opens bytes as a store, reads all and commits; it gives how many
// records were there. It fails the test if anything but a clear refusal or a
// store that works comes of it.
func openDamaged(t testing.TB, what string, b []byte) (result fabric.LoadResult, opened bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fabric.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, Options{})
	if err != nil {
		if !errors.Is(err, fabric.ErrStoreFailed) && !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: refused without a clear reason: %v", what, err)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, b) {
			t.Errorf("%s: the refused file was changed (%v)", what, err)
		}
		return result, false
	}
	var last uint64
	result, err = s.Load(context.Background(), func(r fabric.Record) error {
		if r.ID <= last || string(r.Value) != fmt.Sprintf("%0100d", r.ID) {
			t.Errorf("%s: record %d after %d is %q", what, r.ID, last, r.Value)
		}
		last = r.ID
		return nil
	})
	if err != nil {
		t.Errorf("%s: Load: %v", what, err)
	}
	if _, err := s.Events(context.Background(), 0, 1000); err != nil {
		t.Errorf("%s: Events: %v", what, err)
	}
	for range 2 {
		change := fabric.Change{Events: [][]byte{[]byte("e")}}
		for id := uint64(1); id < 600; id += 7 { // in every page
			change.Put = append(change.Put, record(id, "new"))
		}
		commit(t, s, change)
	}
	closeStore(t, s)
	checkFile(t, path)
	if result.Damage != "" && strings.Contains(result.Damage, ".damaged-") {
		kept, err := filepath.Glob(path + ".damaged-*")
		if err != nil || len(kept) != 1 || !strings.Contains(result.Damage, kept[0]) {
			t.Fatalf("%s: %q, and kept is %v", what, result.Damage, kept)
		}
		if now, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(now, b) {
			t.Errorf("%s: the file kept aside is not what it was (%v)", what, err)
		}
	}
	if left, _ := filepath.Glob(path + newSuffix); len(left) > 0 {
		t.Errorf("%s: %v is left", what, left)
	}
	return result, true
}

// TestDamagedPage (S15) spoils one page after the other in several ways. A page
// that is in use makes the store say so; none makes it panic.
func TestDamagedPage(t *testing.T) {
	sound := soundFile(t)
	pageSize := readMetas(bytes.NewReader(sound))[0].pageSize
	random := rand.New(rand.NewPCG(1, 2))
	ways := []struct {
		name  string
		spoil func(page []byte)
	}{
		{"zeroed", func(p []byte) { clear(p) }},
		{"second half zeroed", func(p []byte) { clear(p[len(p)/2:]) }},
		{"filled with ff", func(p []byte) {
			for i := range p {
				p[i] = 0xff
			}
		}},
		{"head filled with noise", func(p []byte) {
			for i := range 64 {
				p[i] = byte(random.Uint32())
			}
		}},
		{"one bit turned over", func(p []byte) { p[random.IntN(len(p))] ^= 1 << random.IntN(8) }},
		{"eight bits turned over", func(p []byte) {
			for range 8 {
				p[random.IntN(len(p))] ^= 1 << random.IntN(8)
			}
		}},
		{"overflow count", func(p []byte) { order.PutUint32(p[12:], 1<<31) }},
		{"entry count", func(p []byte) { order.PutUint16(p[10:], 0xfff0) }},
	}
	if result, ok := openDamaged(t, "sound", sound); !ok || result.Records != soundRecords || result.Damage != "" {
		t.Fatalf("the sound file: %+v", result)
	}
	damaged, saved := 0, 0
	pages := int(readMetas(bytes.NewReader(sound))[0].pages)
	for page := range pages {
		for _, way := range ways {
			b := bytes.Clone(sound)
			spoilt := b[page*pageSize : (page+1)*pageSize]
			way.spoil(spoilt)
			if bytes.Equal(b, sound) {
				continue
			}
			result, opened := openDamaged(t, fmt.Sprintf("page %d %s", page, way.name), b)
			if result.Damage != "" || !opened {
				damaged++
			}
			if opened && result.Damage != "" {
				saved++
				if result.Records < soundRecords-120 && page > 1 {
					t.Logf("page %d %s: %d records left: %s", page, way.name, result.Records, result.Damage)
				}
			}
			if page < 2 && way.name == "zeroed" && (!opened || !strings.Contains(result.Damage, "meta page") || result.Records < soundRecords-1) {
				t.Errorf("meta page %d zeroed: opened %v, %+v", page, opened, result)
			}
		}
	}
	if damaged == 0 || saved < damaged/2 {
		t.Errorf("of %d damaged files %d were saved", damaged, saved)
	}
	t.Logf("%d pages: %d damaged files, %d of them saved", pages, damaged, saved)
}

// TestTruncated (S15) cuts the file at every page, and within pages.
func TestTruncated(t *testing.T) {
	sound := soundFile(t)
	metas := readMetas(bytes.NewReader(sound))
	size := metas[0].pageSize
	for page := range int(metas[0].pages) {
		for _, cut := range []int{page*size + 1, page*size + size/2, page * size} {
			if cut == 0 {
				continue // an empty file is a new store
			}
			result, opened := openDamaged(t, fmt.Sprintf("cut at %d", cut), sound[:cut])
			if opened && result.Damage == "" && result.Records != soundRecords {
				t.Errorf("cut at %d: %d records and no word of it", cut, result.Records)
			}
		}
	}
}

func TestBothMetasTorn(t *testing.T) {
	b := soundFile(t)
	size := readMetas(bytes.NewReader(b))[0].pageSize
	for _, at := range []int{0, size} {
		b[at+pageHead+50] ^= 1 // in the transaction number
	}
	if _, opened := openDamaged(t, "both metas torn", b); opened {
		t.Error("opened a file without a readable meta page")
	}
}

// TestDamagedRecord has bits of one value turned over: the page is sound, the
// record is not.
func TestDamagedRecord(t *testing.T) {
	b := soundFile(t)
	at := bytes.LastIndex(b, fmt.Appendf(nil, "%0100d", 217))
	for i := range len(b) { // in every state of the page
		if bytes.HasPrefix(b[i:], b[at:at+100]) {
			b[i+40] ^= 8
			if i == at {
				break
			}
		}
	}
	path := filepath.Join(t.TempDir(), "fabric.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		s, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		result, err := s.Load(context.Background(), func(r fabric.Record) error {
			if r.ID == 217 {
				t.Errorf("the damaged record is given: %q", r.Value)
			}
			return nil
		})
		if err != nil || result.Records != soundRecords-1 || result.Damage != "" {
			t.Errorf("round %d: %+v, %v", round, result, err)
		}
		if want := 1 - round; len(result.Quarantined) != want || want == 1 && result.Quarantined[0] != "records/217" {
			t.Errorf("round %d: quarantined %q", round, result.Quarantined)
		}
		aside, err := s.Quarantined(context.Background())
		if err != nil || len(aside) != 1 || aside[0].ID != 217 || !strings.Contains(aside[0].Reason, "checksum") || len(aside[0].Bytes) < 100 {
			t.Errorf("round %d: in quarantine %+v, %v", round, aside, err)
		}
		closeStore(t, s)
	}
}

// putRaw writes beside the store's back.
func putRaw(t testing.TB, path string, bucket, k, v []byte) {
	t.Helper()
	db, _, err := openBolt(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket).Put(k, v) }); err != nil {
		t.Fatal(err)
	}
}

func TestUnknownFrameVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	closeStore(t, open(t, path, Options{}))
	frame := appendFrame(nil, key(5), "records/5", []byte("v"))
	frame[0] = 7
	putRaw(t, path, bucketRecords, key(5), frame)
	s := open(t, path, Options{})
	result, err := s.Load(context.Background(), func(fabric.Record) error { return nil })
	if err != nil || len(result.Quarantined) != 1 || result.Quarantined[0] != "record 5" {
		t.Errorf("%+v, %v", result, err)
	}
	aside, err := s.Quarantined(context.Background())
	if err != nil || len(aside) != 1 || !strings.Contains(aside[0].Reason, "version 7") || !bytes.Equal(aside[0].Bytes, frame) {
		t.Errorf("in quarantine %+v, %v", aside, err)
	}
}

func TestNewerFormat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	closeStore(t, open(t, path, Options{}))
	putRaw(t, path, bucketMeta, keyFormat, binary.BigEndian.AppendUint32(nil, 4))
	_, err := Open(path, Options{})
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "format 4") || !strings.Contains(err.Error(), "up to 1") {
		t.Errorf("a file of format 4 gives %v", err)
	}
}

func TestForeignFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("a bbolt file of another program gives %v", err)
	}
}

// TestDamagedEvent leaves out an event and lets readers from before it know.
func TestDamagedEvent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		commit(t, s, fabric.Change{Events: [][]byte{[]byte("e")}})
	}
	closeStore(t, s)
	putRaw(t, path, bucketJournal, key(4), []byte("broken"))
	s = open(t, path, Options{})
	for _, c := range []struct{ after, oldest, first uint64 }{{0, 5, 5}, {3, 5, 5}, {4, 1, 5}, {7, 1, 8}} {
		page, err := s.Events(context.Background(), c.after, 100)
		if err != nil || page.Oldest != c.oldest || page.Events[0].Revision != c.first {
			t.Errorf("after %d: oldest %d, first %d, %v; want %d, %d", c.after, page.Oldest, page.Events[0].Revision, err, c.oldest, c.first)
		}
	}
}

func FuzzWalk(f *testing.F) {
	sound := soundFile(f)
	f.Add(uint32(0), []byte{1, 2, 3})
	f.Add(uint32(2*4096+10), []byte{0xff, 0xff})
	f.Add(uint32(4096+16+16), bytes.Repeat([]byte{9}, 32))
	f.Fuzz(func(t *testing.T, at uint32, noise []byte) {
		b := bytes.Clone(sound)
		copy(b[int(at)%len(b):], noise)
		r := bytes.NewReader(b)
		for _, m := range readMetas(r) {
			if _, err := walk(r, m, func(string, uint64, []byte, []byte) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestDamageTells has the store tell which ids a lost page may have held, and
// lose those and no other.
func TestDamageTells(t *testing.T) {
	b := soundFile(t)
	size := readMetas(bytes.NewReader(b))[0].pageSize
	at := bytes.LastIndex(b, fmt.Appendf(nil, "%0100d", 217)) / size * size
	clear(b[at : at+size])
	result, opened := openDamaged(t, "the page of record 217", b)
	if !opened {
		t.Fatal("not opened")
	}
	i := strings.Index(result.Damage, "records from ")
	if i < 0 {
		t.Fatalf("no range of ids in %q", result.Damage)
	}
	var from, below int
	if _, err := fmt.Sscanf(result.Damage[i:], "records from %d to below %d", &from, &below); err != nil {
		t.Fatalf("%q: %v", result.Damage, err)
	}
	if from > 217 || below <= 217 || result.Records < soundRecords-(below-from) || result.Records >= soundRecords {
		t.Errorf("%d of %d records are left: %s", result.Records, soundRecords, result.Damage)
	}
	t.Log(result.Damage)
}

// TestPowerLoss has the disk lose the pages of the last commit but not its meta
// page: the state before it is whole and is taken.
func TestPowerLoss(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for id := uint64(1); id <= 100; id++ {
		commit(t, s, fabric.Change{Put: []fabric.Record{record(id, "v")}})
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, fabric.Change{Put: []fabric.Record{record(101, "v")}})
	closeStore(t, s)
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := readMetas(bytes.NewReader(after))[0].pageSize
	copy(after[2*size:], before[2*size:])
	if err := os.WriteFile(path, after, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, Options{})
	result, err := s.Load(context.Background(), func(fabric.Record) error { return nil })
	if err != nil || result.Records != 100 || !strings.Contains(result.Damage, "state before the last commit is whole") {
		t.Errorf("%+v, %v", result, err)
	}
}
