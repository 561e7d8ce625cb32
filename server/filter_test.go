package server

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

type thing struct {
	name, state, owner string
	labels             map[string]string
}

var thingFields = fields[thing]{by: map[string]field[thing]{
	"name":  text(func(x *thing) string { return x.name }),
	"owner": resource(func(x *thing) string { return x.owner }),
	"state": ofEnum(pb.Buffer_State(0), func(x *thing) protoreflect.Enum {
		return pb.Buffer_State(pb.Buffer_State_value["STATE_"+x.state])
	}),
}, labels: func(x *thing) map[string]string { return x.labels }}

func localIsN(s string) string { return strings.Replace(s, "nodes/local", "nodes/n", 1) }

func TestFilters(t *testing.T) {
	x := thing{name: `a "b" \ AND c`, state: "READY", owner: "nodes/n/sessions/s", labels: map[string]string{"job": "7", "a/b.c": "x=y", "empty": ""}}
	for _, c := range []struct {
		filter string
		match  bool
	}{
		{``, true},
		{`   `, true},
		{`state=READY`, true},
		{`state = "READY"`, true},
		{`state = STATE_READY`, true},
		{`state=LOST`, false},
		{`owner=nodes/local/sessions/s`, true},
		{`owner=nodes/n/sessions/t`, false},
		{`labels.job=7`, true},
		{`labels.job = 7 AND state = READY`, true},
		{`labels.job = 7 AND state = LOST`, false},
		{`labels.a/b.c = "x=y"`, true},
		{`labels.a/b.c = x=y`, true},
		{`labels.empty = ""`, true},
		{`labels.absent = ""`, false},
		{`name = "a \"b\" \\ AND c"`, true},
		{`name = "a"  AND  state=READY`, false},
	} {
		f, err := parseFilter(c.filter, thingFields, localIsN)
		if err != nil {
			t.Errorf("%s: %v", c.filter, err)
			continue
		}
		if got := f.match == nil || f.match(&x); got != c.match {
			t.Errorf("%s: %v", c.filter, got)
		}
	}
}

func TestFiltersThatAreRefused(t *testing.T) {
	for filter, want := range map[string]string{
		`color = red`:             `unknown field "color": want one of name, owner, state, labels.KEY`,
		`state = BROKEN`:          `want one of PENDING, READY, LOST, DELETING`,
		`state`:                   `want field = "value"`,
		`= x`:                     `want field = "value"`,
		`state =`:                 `want a value`,
		`state = "READY`:          `closing quote is missing`,
		`state = READY OR name=x`: `want AND`,
		`state = READY name=x`:    `want AND`,
		`state = READY AND`:       ``,
		`name = "a"b`:             `want a space`,
		`name = a"b`:              `quote`,
		`not state = x`:           `want field = "value"`,
		strings.Repeat("name=a AND ", 40) + "name=a": `more than 32 terms`,
	} {
		f, err := parseFilter(filter, thingFields, localIsN)
		if filter == `state = READY AND` {
			if err == nil {
				t.Errorf("%s: %d terms", filter, len(f.terms))
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", filter, err, want)
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add(`name = "a \"b\"" AND labels.x = y`)
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := parseFilter(s, thingFields, localIsN); err == nil && got.match != nil {
			got.match(&thing{})
		}
	})
}

func TestPageTokensBelongToTheirList(t *testing.T) {
	a, b := listScope("ListBuffers", "nodes/n/devices/d", "state=READY"), listScope("ListBuffers", "nodes/n/devices/d", "")
	token := pageToken(a, 77)
	if got, err := parsePageToken(a, token); err != nil || got != 77 {
		t.Errorf("got %d, %v", got, err)
	}
	if pageToken(a, 0) != "" {
		t.Error("the last page has a token")
	}
	for _, bad := range []string{token + "A", token[1:], "!", "AAAA"} {
		if got, err := parsePageToken(a, bad); err == nil {
			t.Errorf("%s: taken as %d", bad, got)
		}
	}
	if _, err := parsePageToken(b, token); err == nil {
		t.Error("the token is taken with another filter")
	}
}
