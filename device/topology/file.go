package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is the most bytes that a map file may have. The largest built-in one
// has 4 KiB.
const maxFile = 1 << 20

// The cells of a row of ports that name no peer.
const (
	cellScaleOut     = "SO"
	cellNotConnected = "NC"
	cellUnknown      = "IN"
)

// mapFile is the form of a map in a file; the package comment tells it.
type mapFile struct {
	Name          string     `yaml:"name,omitempty" json:"name,omitempty"`
	ASIC          string     `yaml:"asic,omitempty" json:"asic,omitempty"`
	Model         string     `yaml:"model,omitempty" json:"model,omitempty"`
	PortSpeedMbps uint32     `yaml:"portSpeedMbps,omitempty" json:"portSpeedMbps,omitempty"`
	Expect        expectFile `yaml:"expect,omitempty" json:"expect,omitzero"`
	Cards         []cardFile `yaml:"cards" json:"cards"`
	PeerAccess    []peerFile `yaml:"peerAccess,omitempty" json:"peerAccess,omitempty"`
}

type peerFile struct {
	Importer string `yaml:"importer" json:"importer"`
	Exporter string `yaml:"exporter" json:"exporter"`
	Path     string `yaml:"path,omitempty" json:"path,omitempty"`
	Obstacle string `yaml:"obstacle,omitempty" json:"obstacle,omitempty"`
}

type expectFile struct {
	Internal     int `yaml:"internal,omitempty" json:"internal,omitempty"`
	ScaleOut     int `yaml:"scaleOut,omitempty" json:"scaleOut,omitempty"`
	LanesPerPeer int `yaml:"lanesPerPeer,omitempty" json:"lanesPerPeer,omitempty"`
}

type cardFile struct {
	Card  *int   `yaml:"card" json:"card"`
	Ports string `yaml:"ports" json:"ports"`
}

// LoadFile reads the map file at path. A map that does not name itself gets the
// name of the file without its extension. Errors as of [Load].
func LoadFile(path string) (*Map, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	base := filepath.Base(path)
	return read(f, path, strings.TrimSuffix(base, filepath.Ext(base)))
}

// Load reads a map file, or a file of HCL's port mapping, and checks the map.
// name is what errors call the source, and the name of a map that has none in
// the file.
//
// Where the content is at fault, the error joins all faults and the map is nil.
// Where the only lack is that peers of internal ports are unknown, Load returns
// the map and an error that wraps [ErrPeersUnknown].
func Load(r io.Reader, name string) (*Map, error) { return read(r, name, name) }

func read(r io.Reader, source, name string) (*Map, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("topology %s: %w", source, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("topology %s: more than %d bytes: this is no map file", source, maxFile)
	}
	return load(data, source, name)
}

func load(data []byte, source, name string) (*Map, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, fmt.Errorf("topology %s: %w", source, err)
	}
	f := &faults{source: source}
	var m *Map
	if isHCL(&root) {
		var file hclFile
		if err := decode(data, &file); err != nil {
			return nil, fmt.Errorf("topology %s: %w", source, err)
		}
		m = file.toMap(f)
	} else {
		var file mapFile
		if err := decode(data, &file); err != nil {
			return nil, fmt.Errorf("topology %s: %w", source, err)
		}
		m = file.toMap(f)
	}
	if len(f.list) > 0 {
		return nil, errors.Join(f.list...)
	}
	if m.Name == "" {
		m.Name = name
	}
	m.Name = strings.ToLower(m.Name)
	slices.SortStableFunc(m.Cards, func(a, b Card) int { return a.Number - b.Number })
	if err := m.check(source); errors.Is(err, ErrPeersUnknown) {
		return m, err
	} else if err != nil {
		return nil, err
	}
	return m, nil
}

// goType is the part of yaml's errors that tells an operator nothing.
var goType = regexp.MustCompile(` (in type|into) topology\.\w+`)

// decode reads the one document of data, and refuses fields that v has not.
func decode(data []byte, v any) error {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	err := d.Decode(v)
	if errors.Is(err, io.EOF) {
		return errors.New("the file is empty")
	}
	if te := (*yaml.TypeError)(nil); errors.As(err, &te) {
		lines := make([]string, len(te.Errors))
		for i, line := range te.Errors {
			lines[i] = goType.ReplaceAllString(line, "")
		}
		return errors.New(strings.Join(lines, "; "))
	}
	if err != nil {
		return err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return errors.New("more than one document in the file")
	}
	return nil
}

func (file *mapFile) toMap(f *faults) *Map {
	m := &Map{
		Name:          file.Name,
		Model:         file.Model,
		ASIC:          file.ASIC,
		PortSpeedMbps: file.PortSpeedMbps,
		Expect:        Expect(file.Expect),
	}
	if e := file.Expect; e.Internal < 0 || e.ScaleOut < 0 || e.LanesPerPeer < 0 {
		f.add(-1, -1, "expect: a count is negative")
	}
	for i, row := range file.Cards {
		if row.Card == nil || *row.Card < 0 {
			f.add(-1, -1, "cards[%d]: card: give the module id, from 0", i)
			continue
		}
		c := Card{Number: *row.Card}
		for number, cell := range strings.Fields(row.Ports) {
			p, ok := parseCell(number, cell)
			if !ok {
				f.add(c.Number, number, "%q is no peer: write CARD:PORT, CARD (the same port number), %s, %s or %s",
					cell, cellScaleOut, cellNotConnected, cellUnknown)
			}
			c.Ports = append(c.Ports, p)
		}
		m.Cards = append(m.Cards, c)
	}
	for _, r := range file.PeerAccess {
		m.PeerAccess = append(m.PeerAccess, PeerRule(r))
	}
	return m
}

func parseCell(number int, cell string) (p Port, ok bool) {
	p = Port{Number: number, Class: Internal, PeerCard: -1, PeerPort: -1}
	switch cell {
	case cellScaleOut:
		p.Class = ScaleOut
		return p, true
	case cellNotConnected:
		p.Class = NotConnected
		return p, true
	case cellUnknown:
		return p, true
	}
	card, port, both := strings.Cut(cell, ":")
	c, err := strconv.ParseUint(card, 10, 16)
	if err != nil {
		return p, false
	}
	p.PeerCard, p.PeerPort = int(c), number
	if both {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return p, false
		}
		p.PeerPort = int(n)
	}
	return p, true
}

// MarshalYAML gives the map in the form that Load reads.
func (m Map) MarshalYAML() (any, error) { return m.toFile(), nil }

// MarshalJSON gives the map in the form that Load reads.
func (m Map) MarshalJSON() ([]byte, error) { return json.Marshal(m.toFile()) }

func (m *Map) toFile() *mapFile {
	file := &mapFile{
		Name:          m.Name,
		ASIC:          m.ASIC,
		Model:         m.Model,
		PortSpeedMbps: m.PortSpeedMbps,
		Expect:        expectFile(m.Expect),
		Cards:         make([]cardFile, len(m.Cards)),
	}
	for i, c := range m.Cards {
		cells := make([]string, len(c.Ports))
		for j, p := range c.Ports {
			switch {
			case p.Class == ScaleOut:
				cells[j] = cellScaleOut
			case p.Class == NotConnected:
				cells[j] = cellNotConnected
			case p.PeerCard < 0:
				cells[j] = cellUnknown
			default:
				cells[j] = fmt.Sprintf("%d:%d", p.PeerCard, p.PeerPort)
			}
		}
		file.Cards[i] = cardFile{Card: &c.Number, Ports: strings.Join(cells, " ")}
	}
	for _, r := range m.PeerAccess {
		file.PeerAccess = append(file.PeerAccess, peerFile(r))
	}
	return file
}
