package topology

import "go.yaml.in/yaml/v3"

// The file from which HCL reads a port mapping other than its own, as
// HabanaAI/HCL hcl/src/platform/gen2_arch_common/port_mapping_config.cpp (at
// 54fed3a) does. It tells neither ASIC nor speed. SPOTLIGHT_TYPE and
// REMOTE_SUB_NIC are of use to HCL alone.
type hclFile struct {
	SpotlightType int       `yaml:"SPOTLIGHT_TYPE"`
	Cards         []hclCard `yaml:"HCL_NICS"`
}

type hclCard struct {
	CardLocation *int     `yaml:"CARD_LOCATION"`
	NICs         []hclNIC `yaml:"NICS"`
}

type hclNIC struct {
	RemoteCard   *int `yaml:"REMOTE_CARD"` // or one of the two below
	RemoteNIC    *int `yaml:"REMOTE_NIC"`
	RemoteSubNIC int  `yaml:"REMOTE_SUB_NIC"`
}

// Values of REMOTE_CARD that are no card.
const (
	hclScaleOut     = -1
	hclNotConnected = -2
)

// isHCL reports whether a document is a mapping with the key HCL_NICS.
func isHCL(root *yaml.Node) bool {
	if root.Kind != yaml.DocumentNode || len(root.Content) != 1 || root.Content[0].Kind != yaml.MappingNode {
		return false
	}
	fields := root.Content[0].Content // keys and values in turn
	for i := 0; i < len(fields); i += 2 {
		if fields[i].Value == "HCL_NICS" {
			return true
		}
	}
	return false
}

func (file *hclFile) toMap(f *faults) *Map {
	m := &Map{}
	for i, hc := range file.Cards {
		if hc.CardLocation == nil || *hc.CardLocation < 0 {
			f.add(-1, -1, "HCL_NICS[%d]: CARD_LOCATION: give the module id, from 0", i)
			continue
		}
		c := Card{Number: *hc.CardLocation}
		for number, nic := range hc.NICs {
			p := Port{Number: number, PeerCard: -1, PeerPort: -1}
			switch {
			case nic.RemoteCard == nil || nic.RemoteNIC == nil:
				f.add(c.Number, number, "REMOTE_CARD and REMOTE_NIC: give both")
			case *nic.RemoteCard == hclScaleOut:
				p.Class = ScaleOut
			case *nic.RemoteCard == hclNotConnected:
				p.Class = NotConnected
			case *nic.RemoteCard < 0 || *nic.RemoteNIC < 0:
				f.add(c.Number, number, "REMOTE_CARD %d REMOTE_NIC %d: no such port (scale-out is card %d, not connected %d)",
					*nic.RemoteCard, *nic.RemoteNIC, hclScaleOut, hclNotConnected)
			default:
				p.Class, p.PeerCard, p.PeerPort = Internal, *nic.RemoteCard, *nic.RemoteNIC
			}
			c.Ports = append(c.Ports, p)
		}
		m.Cards = append(m.Cards, c)
	}
	return m
}
