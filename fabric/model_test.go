package fabric_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/devicetest"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
)

// modelChecks is how many random lives of a node a run of the test has.
const modelChecks = 150

// TestRandomOperationsAgainstAModel does random things to a node, with crashes and
// failures of store and device before, after and in the middle of them, and
// compares it with a model that knows what must exist and what may. At the end all
// sessions are closed, and nothing is left.
//
// ACCELFAB_MODEL sets how many lives (150) and ACCELFAB_SEED the first.
func TestRandomOperationsAgainstAModel(t *testing.T) {
	set := func(name, value string) {
		t.Helper()
		old := flag.Lookup(name).Value.String()
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { flag.Set(name, old) })
	}
	set("rapid.nofailfile", "true")
	set("rapid.steps", "60")
	set("rapid.checks", fmt.Sprint(modelChecks))
	if n := os.Getenv("ACCELFAB_MODEL"); n != "" {
		set("rapid.checks", n)
	}
	if seed := os.Getenv("ACCELFAB_SEED"); seed != "" {
		set("rapid.seed", seed)
	}
	did := map[string]int{}
	rapid.Check(t, func(r *rapid.T) {
		rapid.SyncTest(r, func(r *rapid.T) {
			m := &model{T: r, w: newWorld(t), things: map[string]*thing{}, unsure: map[string]*thing{}, did: did}
			m.w.open()
			defer m.w.close()
			r.Repeat(map[string]func(*rapid.T){
				"create":  m.create, // and more often than the rest
				"create2": m.create,
				"create3": m.create,
				"create4": m.create,
				"create5": m.create,
				"delete":  m.delete,
				"connect": m.connect,
				"revoke":  m.revoke,
				"reset":   m.reset,
				"leases":  m.leases,
				"crash":   m.crash,
				"arm":     m.arm,
				"":        m.check,
			})
			m.end()
		})
	})
	t.Log(did)
	for _, what := range []string{"create", "delete", "connect", "revoke", "reset", "leases", "crash", "refused", "struck", "unsure", "came to be", "came to nothing"} {
		if did[what] == 0 {
			t.Errorf("%q never happened: nothing is known of it", what)
		}
	}
}

// thing is an object as the model knows it.
type thing struct {
	uid                      device.UID
	needs                    []string // names of what it is built on
	lost, revoked, connected bool
	qpn                      ib.QPN
}

type model struct {
	*rapid.T
	w      *world
	things map[string]*thing // acknowledged: must be there
	unsure map[string]*thing // nobody knows: may be there, whole, or not at all
	struck func() bool       // whether the fault that is armed has come; nil: none is armed
	fatal  bool              // what is armed ends the daemon
	did    map[string]int
}

// The kinds of the model, by the collection in the name.
var modelKinds = []string{"sessions", "protectionDomains", "buffers", "memoryRegions", "memoryExports", "queuePairs"}

func modelName(kind string, n int) string {
	if kind == "sessions" {
		return fmt.Sprintf("nodes/n1/sessions/x%d", n)
	}
	return fmt.Sprintf("%s/%s/x%d", d0, kind, n)
}

// pick gives a name of a kind; of what is there and in use, if anything is, seven
// times in eight.
func (m *model) pick(kind string) string {
	var usable []string
	for i := range 3 {
		if n := modelName(kind, i); m.usable(n) {
			usable = append(usable, n)
		}
	}
	if len(usable) > 0 && rapid.IntRange(0, 7).Draw(m.T, "any") < 7 {
		return rapid.SampledFrom(usable).Draw(m.T, kind)
	}
	return modelName(kind, rapid.IntRange(0, 2).Draw(m.T, kind))
}

func kindOf(name string) string {
	return name[strings.LastIndex(name[:strings.LastIndex(name, "/")], "/")+1 : strings.LastIndex(name, "/")]
}

func idOf(name string) string { return name[strings.LastIndex(name, "/")+1:] }

// usable says whether all of the names are there and in use.
func (m *model) usable(names ...string) bool {
	for _, n := range names {
		if t := m.things[n]; t == nil || t.lost {
			return false
		}
	}
	return true
}

// dependents are what is built on a name, directly or not.
func (m *model) dependents(name string) (all []string) {
	for n, t := range m.things {
		for _, need := range t.needs {
			if need == name {
				all = append(append(all, n), m.dependents(n)...)
			}
		}
	}
	return all
}

// try does one operation. Without a fault it is done if and only if it is
// possible; with one, what touches may have happened or not.
func (m *model) try(what string, possible bool, do func(context.Context) error, done func(), touches ...string) {
	c, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	err := do(c)
	cancel()
	switch {
	case err == nil && possible:
		m.did[what]++
		done()
	case err == nil:
		m.Fatalf("%s was done, and was not possible", what)
	case m.struck == nil && possible:
		m.Fatalf("%s was possible and is refused: %v", what, err)
	case m.struck == nil || !possible:
		m.did["refused"]++
		var e *fabric.Error
		if !errors.As(err, &e) || m.struck == nil && (e.Reason == fabric.Internal || e.Reason == fabric.Timeout) {
			m.Fatalf("%s is refused with %v, which says nothing", what, err)
		}
	default:
		m.did["unsure"]++
		for _, n := range touches {
			m.unsure[n] = m.things[n]
			delete(m.things, n)
		}
	}
	m.after()
}

// after looks whether the fault that was armed has come.
func (m *model) after() {
	synctest.Wait()
	if m.struck == nil || !m.struck() {
		if len(m.unsure) > 0 { // a time-out of a retry that waits: end it now
			m.restart()
		}
		return
	}
	m.did["struck"]++
	if m.fatal {
		m.restart()
		return
	}
	m.struck = nil
	pass(time.Minute) // back-off is over, retries are done
	m.settle()
}

// restart ends the daemon as it stands and opens another on what is there.
func (m *model) restart() {
	if m.w.f != nil {
		_ = m.w.f.Close() // of a dead store it fails
		m.w.f = nil
	}
	m.struck = nil
	m.w.open()
	pass(time.Minute)
	m.settle()
}

// settle finds out what became of what nobody knew.
func (m *model) settle() {
	for name, was := range m.unsure {
		now, state, err := m.get(name)
		switch {
		case errors.Is(err, fabric.NotFound):
			m.did["came to nothing"]++
			if was != nil {
				for _, n := range m.dependents(name) {
					if _, there := m.things[n]; there {
						m.Fatalf("%s is gone, and %s, which needs it, was acknowledged", name, n)
					}
				}
			}
		case err != nil:
			m.Fatal(err)
		default:
			m.did["came to be"]++
			if was != nil && was.uid != now.uid {
				m.Fatalf("%s has the uid %v, and was made with %v", name, now.uid, was.uid)
			}
			// A create that nobody acknowledged may have had contents, for all that
			// the next daemon knows: it is LOST rather than made again.
			now.lost = was != nil && was.lost || was == nil && state == fabric.StateLost
			if state == fabric.StateLost && !now.lost || state == fabric.StateDeleting || state == fabric.StateClosing || state == fabric.StatePending || state == fabric.StateRevoking {
				m.Fatalf("%s is %s, and nothing goes on with it", name, state)
			}
			m.things[name] = now
		}
		delete(m.unsure, name)
	}
}

// get reads an object of any kind.
func (m *model) get(name string) (*thing, fabric.State, error) {
	f := m.w.f
	switch kindOf(name) {
	case "sessions":
		s, err := f.GetSession(ctx(), alice, name)
		return &thing{uid: s.UID}, s.State, err
	case "protectionDomains":
		p, err := f.GetProtectionDomain(ctx(), alice, name)
		return &thing{uid: p.UID, needs: []string{p.Session}}, p.State, err
	case "buffers":
		b, err := f.GetBuffer(ctx(), alice, name)
		return &thing{uid: b.UID, needs: []string{b.Session}}, b.State, err
	case "memoryRegions":
		r, err := f.GetMemoryRegion(ctx(), alice, name)
		return &thing{uid: r.UID, needs: []string{r.ProtectionDomain, r.Buffer}}, r.State, err
	case "memoryExports":
		e, err := f.GetMemoryExport(ctx(), alice, name)
		return &thing{uid: e.UID, needs: []string{e.Buffer}, revoked: e.State == fabric.StateRevoked}, e.State, err
	default:
		q, err := f.GetQueuePair(ctx(), alice, name)
		return &thing{uid: q.UID, needs: []string{q.ProtectionDomain}, connected: q.QPState == ib.RTS, qpn: q.Local.QPN}, q.State, err
	}
}

// check compares all that is there with all that must be.
func (m *model) check(*rapid.T) {
	if m.struck != nil {
		return // to look would be to strike
	}
	synctest.Wait()
	for _, kind := range modelKinds {
		for i := range 3 {
			name := modelName(kind, i)
			now, state, err := m.get(name)
			want := m.things[name]
			if err != nil && !errors.Is(err, fabric.NotFound) {
				m.Fatal(err)
			}
			if (err == nil) != (want != nil) {
				m.Fatalf("%s: there: %v (%s), must be there: %v", name, err == nil, state, want != nil)
			}
			if want == nil {
				continue
			}
			if now.uid != want.uid || now.connected != want.connected || now.revoked != want.revoked && !want.lost || (state == fabric.StateLost) != want.lost && !want.revoked {
				m.Fatalf("%s is %s, %+v, want %+v", name, state, now, want)
			}
			if want.qpn != 0 && now.qpn != want.qpn {
				m.Fatalf("%s has the QPN %d, want %d", name, now.qpn, want.qpn)
			}
		}
	}
	pds, bufs, regions, qps := m.w.cards[0].count()
	exports := len(must(m.w.cards[0].ListExports(ctx())))
	want := map[string]int{}
	for name, t := range m.things {
		if !t.lost {
			want[kindOf(name)]++
		}
	}
	if pds != want["protectionDomains"] || bufs != want["buffers"] || regions != want["memoryRegions"] || qps != want["queuePairs"] || exports > want["memoryExports"] {
		m.Fatalf("the device has %d domains, %d buffers, %d regions, %d queue pairs, %d exports; want %v", pds, bufs, regions, qps, exports, want)
	}
}

func (m *model) create(*rapid.T) {
	name := modelName(rapid.SampledFrom(modelKinds).Draw(m.T, "kind"), rapid.IntRange(0, 2).Draw(m.T, "name"))
	c := fabric.Create{Parent: d0, ID: idOf(name)}
	f := m.w.f
	var needs []string
	var do func(context.Context) error
	switch kindOf(name) {
	case "sessions":
		c.Parent = "nodes/local"
		do = func(x context.Context) error {
			_, err := f.CreateSession(x, alice, fabric.CreateSession{Create: c, TTL: 12 * time.Hour})
			return err
		}
	case "protectionDomains":
		needs = []string{m.pick("sessions")}
		do = func(x context.Context) error {
			_, err := f.CreateProtectionDomain(x, alice, fabric.CreateProtectionDomain{Create: c, Session: needs[0]})
			return err
		}
	case "buffers":
		needs = []string{m.pick("sessions")}
		do = func(x context.Context) error {
			_, err := f.CreateBuffer(x, alice, fabric.CreateBuffer{Create: c, Session: needs[0], Size: 8192})
			return err
		}
	case "memoryRegions":
		needs = []string{m.pick("protectionDomains"), m.pick("buffers")}
		do = func(x context.Context) error {
			_, err := f.CreateMemoryRegion(x, alice, fabric.CreateMemoryRegion{Create: c, ProtectionDomain: needs[0], Buffer: needs[1]})
			return err
		}
	case "memoryExports":
		needs = []string{m.pick("buffers")}
		do = func(x context.Context) error {
			_, err := f.CreateMemoryExport(x, alice, fabric.CreateMemoryExport{Create: c, Buffer: needs[0]})
			return err
		}
	case "queuePairs":
		needs = []string{m.pick("protectionDomains")}
		do = func(x context.Context) error {
			_, err := f.CreateQueuePairs(x, alice, "", false, []fabric.CreateQueuePair{qpRequest(idOf(name), needs[0])})
			return err
		}
	}
	possible := m.things[name] == nil && m.usable(needs...)
	if kindOf(name) == "memoryRegions" && possible {
		possible = m.things[needs[0]].needs[0] == m.things[needs[1]].needs[0] // of one session
	}
	touches := []string{name}
	if m.things[name] != nil {
		touches = nil
	}
	m.try("create", possible, do, func() { m.things[name] = &thing{needs: needs}; m.adopt(name) }, touches...)
}

// adopt learns the uid of what was just made; while a fault is armed that call may
// be the one that strikes, and then settle learns it.
func (m *model) adopt(name string) {
	now, _, err := m.get(name)
	if err == nil {
		m.things[name].uid, m.things[name].qpn = now.uid, now.qpn
	} else if m.struck == nil {
		m.Fatalf("%s was made, and: %v", name, err)
	}
}

func (m *model) delete(*rapid.T) {
	name := m.pick(rapid.SampledFrom(modelKinds).Draw(m.T, "kind"))
	f, d, possible := m.w.f, fabric.Delete{Name: name}, m.things[name] != nil
	gone := []string{name}
	if kindOf(name) == "sessions" {
		gone = append(gone, m.dependents(name)...)
	} else if len(m.dependents(name)) > 0 {
		possible = false
	}
	m.try("delete", possible, func(x context.Context) error {
		switch kindOf(name) {
		case "sessions":
			return f.CloseSession(x, alice, fabric.CloseSession{Delete: d})
		case "protectionDomains":
			return f.DeleteProtectionDomain(x, alice, d)
		case "buffers":
			return f.DeleteBuffer(x, alice, d)
		case "memoryRegions":
			return f.DeleteMemoryRegion(x, alice, d)
		case "memoryExports":
			return f.DeleteMemoryExport(x, alice, d)
		}
		return f.DeleteQueuePairs(x, alice, false, []fabric.Delete{d})
	}, func() {
		for _, n := range gone {
			delete(m.things, n)
		}
	}, gone...)
}

func (m *model) connect(*rapid.T) {
	name := m.pick("queuePairs")
	q := m.things[name]
	m.try("connect", q != nil, func(x context.Context) error {
		_, err := m.w.f.ConnectQueuePairs(x, alice, false, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: name}, Remote: peer}})
		return err
	}, func() { q.connected = true }, name)
}

func (m *model) revoke(*rapid.T) {
	name := m.pick("memoryExports")
	e := m.things[name]
	if e != nil && (e.lost || e.revoked) {
		m.Skip("there is nothing to revoke")
	}
	m.try("revoke", e != nil, func(x context.Context) error {
		_, err := m.w.f.RevokeMemoryExport(x, alice, fabric.Update{Name: name})
		return err
	}, func() { e.revoked = true }, name)
}

// reset takes all from the device: what had contents is lost, the rest is made again.
func (m *model) reset(*rapid.T) {
	if m.struck != nil || rapid.IntRange(0, 3).Draw(m.T, "let it be") > 0 {
		m.Skip("one fault at a time")
	}
	m.did["reset"]++
	m.w.cards[0].wipe()
	m.w.cards[0].hint(device.Event{Kind: device.DeviceChanged})
	pass(time.Minute)
	for name, t := range m.things {
		switch kindOf(name) {
		case "buffers", "memoryRegions", "memoryExports":
			t.lost = true
		case "queuePairs":
			t.connected, t.qpn = false, 0
		}
	}
}

// leases lets time pass, until all leases are over.
func (m *model) leases(*rapid.T) {
	if m.struck != nil || rapid.IntRange(0, 5).Draw(m.T, "let them be") > 0 {
		m.Skip("not now")
	}
	m.did["leases"]++
	pass(13 * time.Hour)
	clear(m.things)
}

// crash ends the daemon between two operations.
func (m *model) crash(*rapid.T) {
	if rapid.IntRange(0, 3).Draw(m.T, "let it be") > 0 {
		m.Skip("not now")
	}
	m.did["crash"]++
	m.restart()
}

// arm opens the next daemon with a store or a device that strikes at one of its
// next calls.
func (m *model) arm(*rapid.T) {
	if m.struck != nil {
		m.Skip("one fault at a time")
	}
	m.w.close()
	m.w.mem = m.w.mem.Reopen()
	n := rapid.IntRange(1, 12).Draw(m.T, "calls after the start")
	var cfg fabric.Config
	if rapid.Bool().Draw(m.T, "of the store") {
		s := storetest.NewFailing(m.w.mem, 3+n, storetest.Strike(rapid.IntRange(0, 2).Draw(m.T, "strike")))
		cfg, m.struck, m.fatal = m.w.config(s), s.Struck, true
	} else {
		strike := devicetest.Strike(rapid.IntRange(0, 2).Draw(m.T, "strike"))
		cfg = m.w.config(m.w.mem)
		d := devicetest.NewFailing(cfg.Devices[0], "", 8+n, strike)
		cfg.Devices[0], m.struck, m.fatal = d, d.Struck, strike != devicetest.Refuse
	}
	f, err := fabric.Open(ctx(), cfg)
	if err != nil {
		for _, d := range m.w.devs {
			d.Close()
		}
		m.w.f = nil
		m.restart()
		return
	}
	m.w.f = f
	m.after()
}

// end closes all, and wants nothing left.
func (m *model) end() {
	m.restart()
	m.check(nil)
	for i := range 3 {
		name := modelName("sessions", i)
		err := m.w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: name}})
		if (err == nil) != (m.things[name] != nil) {
			m.Fatalf("close %s: %v", name, err)
		}
	}
	synctest.Wait()
	clear(m.things)
	m.check(nil)
	if d := must(m.w.f.GetDevice(ctx(), root, d0)); d.Usage != (fabric.Usage{}) || len(d.Holders) > 0 {
		m.Fatalf("of no session at all, %+v is in use, held by %+v", d.Usage, d.Holders)
	}
}
