package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// completionTimeout bounds what a press of the tab key may wait.
const completionTimeout = 2 * time.Second

// creation is the flags of all creates.
type creation struct {
	id           string
	labels       map[string]string
	requestID    string
	validateOnly bool
}

func (c *creation) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.id, "id", "", "last part of the name (default: the daemon chooses)")
	f.StringToStringVar(&c.labels, "label", nil, "labels, KEY=VALUE (repeatable)")
	f.StringVar(&c.requestID, "request-id", "", "id of this change: the same call again makes nothing new")
	validateOnlyFlag(cmd, &c.validateOnly)
}

func validateOnlyFlag(cmd *cobra.Command, v *bool) {
	cmd.Flags().BoolVar(v, "validate-only", false, "check everything and change nothing")
}

// sizeFlag is a number of bytes with a unit.
type sizeFlag uint64

func (s *sizeFlag) String() string { return bytesText(uint64(*s)) }
func (s *sizeFlag) Type() string   { return "size" }

func (s *sizeFlag) Set(text string) error {
	digits, shift := text, 0
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if d, ok := strings.CutSuffix(text, unit); ok {
			digits, shift = d, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 0, 64)
	if err != nil || n<<shift>>shift != n {
		return fmt.Errorf("want a number of bytes, or one with KiB, MiB, GiB or TiB behind it")
	}
	*s = sizeFlag(n << shift)
	return nil
}

// numberFlag takes decimal and 0x numbers of up to 32 bits.
type numberFlag uint32

func (n *numberFlag) String() string { return fmt.Sprint(uint32(*n)) }
func (n *numberFlag) Type() string   { return "number" }

func (n *numberFlag) Set(text string) error {
	v, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		return fmt.Errorf("want a number from 0 to 0xffffffff")
	}
	*n = numberFlag(v)
	return nil
}

// parseEnum finds an enum's value by its name, in any case, with hyphens or
// underscores and without its prefix: remote-write for ACCESS_REMOTE_WRITE.
func parseEnum[E interface {
	~int32
	Descriptor() protoreflect.EnumDescriptor
}](flag, text, prefix string) (E, error) {
	var zero E
	values := zero.Descriptor().Values()
	want := prefix + "_" + strings.ToUpper(strings.ReplaceAll(text, "-", "_"))
	if v := values.ByName(protoreflect.Name(want)); v != nil && v.Number() != 0 {
		return E(v.Number()), nil
	}
	var known []string
	for i := range values.Len() {
		if v := values.Get(i); v.Number() != 0 {
			name := strings.TrimPrefix(string(v.Name()), prefix+"_")
			known = append(known, strings.ToLower(strings.ReplaceAll(name, "_", "-")))
		}
	}
	return zero, usage("%s %q: want one of %s", flag, text, strings.Join(known, ", "))
}
