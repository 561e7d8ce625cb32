package server

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// The filter language: terms `field = "value"` joined by AND, all of which
// must hold. Spaces around = may be left out, and so may the quotes of a value
// without spaces; inside quotes \" and \\ stand for " and \. The fields are
// those that a list names. The value of an enum may be given with or without
// the prefix of its type, and a resource name with nodes/local.

// A field is what a term can ask of a T.
type field[T any] struct {
	get    func(*T) []string // one of these must be the value
	values []string          // if not nil, the only values there are
	name   bool              // values are resource names
	prefix string            // of the values in the contract, "STATE_"
}

// fields are what the terms of a list can ask. labels, if not nil, serves
// labels.KEY.
type fields[T any] struct {
	by     map[string]field[T]
	labels func(*T) map[string]string
}

func text[T any](get func(*T) string) field[T] {
	return field[T]{get: func(x *T) []string { return []string{get(x)} }}
}

func resource[T any](get func(*T) string) field[T] {
	f := text(get)
	f.name = true
	return f
}

// ofEnum is a field of an enum that e is of; get gives the value.
func ofEnum[T any](e protoreflect.Enum, get func(*T) protoreflect.Enum) field[T] {
	values := e.Descriptor().Values()
	f := text(func(x *T) string { return shortName(get(x)) })
	f.prefix = strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
	for i := range values.Len() {
		if v := values.Get(i); v.Number() != 0 {
			f.values = append(f.values, strings.TrimPrefix(string(v.Name()), f.prefix))
		}
	}
	return f
}

// maxTerms bounds the work that a filter makes for each item.
const maxTerms = 32

type term[T any] struct {
	field string
	get   func(*T) []string
	value string
}

// filter is a parsed filter. The zero value matches everything.
type filter[T any] struct {
	terms []term[T]
	match func(*T) bool // nil without terms
}

// only gives the value of a field that is asked for once, or "".
func (f filter[T]) only(field string) string {
	value := ""
	for _, t := range f.terms {
		if t.field == field {
			if value != "" {
				return ""
			}
			value = t.value
		}
	}
	return value
}

// parseFilter reads a filter. canonical gives the canonical form of a resource
// name.
func parseFilter[T any](text string, fs fields[T], canonical func(string) string) (filter[T], error) {
	var f filter[T]
	in := strings.TrimSpace(text)
	for in != "" {
		if len(f.terms) > 0 {
			word, rest, _ := strings.Cut(in, " ")
			if word != "AND" {
				return filter[T]{}, fmt.Errorf("%q: want AND between two terms", clip(word, 64))
			}
			in = strings.TrimLeft(rest, " ")
		}
		if len(f.terms) == maxTerms {
			return filter[T]{}, fmt.Errorf("more than %d terms", maxTerms)
		}
		name, rest, ok := strings.Cut(in, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.ContainsAny(name, " \"") {
			return filter[T]{}, fmt.Errorf(`%q: want field = "value"`, clip(in, 64))
		}
		value, rest, err := filterValue(strings.TrimLeft(rest, " "))
		if err != nil {
			return filter[T]{}, fmt.Errorf("%s: %w", clip(name, 64), err)
		}
		t, err := fs.term(name, value, canonical)
		if err != nil {
			return filter[T]{}, err
		}
		f.terms = append(f.terms, t)
		in = strings.TrimLeft(rest, " ")
	}
	if len(f.terms) > 0 {
		f.match = func(x *T) bool {
			for _, t := range f.terms {
				if !slices.Contains(t.get(x), t.value) {
					return false
				}
			}
			return true
		}
	}
	return f, nil
}

// filterValue reads a value at the beginning of in.
func filterValue(in string) (value, rest string, err error) {
	if !strings.HasPrefix(in, `"`) {
		value, rest, _ = strings.Cut(in, " ")
		if value == "" {
			return "", "", fmt.Errorf(`want a value after =; the empty one is ""`)
		}
		if strings.Contains(value, `"`) {
			return "", "", fmt.Errorf("%q: a quote may only stand at the ends of a value", clip(value, 64))
		}
		return value, rest, nil
	}
	var b strings.Builder
	for i := 1; i < len(in); i++ {
		switch c := in[i]; {
		case c == '"':
			if rest = in[i+1:]; rest != "" && rest[0] != ' ' {
				return "", "", fmt.Errorf("want a space after the closing quote")
			}
			return b.String(), rest, nil
		case c == '\\' && i+1 < len(in) && (in[i+1] == '"' || in[i+1] == '\\'):
			i++
			b.WriteByte(in[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", fmt.Errorf("the closing quote is missing")
}

// term makes a term of a field and a value.
func (fs fields[T]) term(name, value string, canonical func(string) string) (term[T], error) {
	if key, ok := strings.CutPrefix(name, "labels."); ok && fs.labels != nil {
		return term[T]{name, func(x *T) []string {
			if v, ok := fs.labels(x)[key]; ok {
				return []string{v}
			}
			return nil
		}, value}, nil
	}
	f, ok := fs.by[name]
	if !ok {
		want := sorted(fs.by)
		if fs.labels != nil {
			want = append(want, "labels.KEY")
		}
		return term[T]{}, fmt.Errorf("unknown field %q: want one of %s", clip(name, 64), strings.Join(want, ", "))
	}
	if f.name {
		value = canonical(value)
	}
	if f.values != nil {
		value = strings.TrimPrefix(value, f.prefix)
		if !slices.Contains(f.values, value) {
			return term[T]{}, fmt.Errorf("%s = %q: want one of %s", name, clip(value, 64), strings.Join(f.values, ", "))
		}
	}
	return term[T]{name, f.get, value}, nil
}
