package session

import (
	"bytes"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

func TestRedactText(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"plain", `{"text":"hello"}`, `{"text":"[redacted]"}`},
		{"kept members", `{"type":"t","name":"n","action":"a","id":"i","timestamp":"s"}`, `{"type":"t","name":"n","action":"a","id":"i","timestamp":"s"}`},
		{"numbers, booleans and null", `{"n":1.50,"b":true,"z":null,"type":7}`, `{"n":1.50,"b":true,"z":null,"type":7}`},
		{"nested transcript", `{"type":"voice","payload":{"transcript":{"final":"my card is 4111","words":["my","card"]}}}`,
			`{"type":"voice","payload":{"transcript":{"final":"[redacted]","words":["[redacted]","[redacted]"]}}}`},
		{"exceptions deeper down", `{"a":{"b":[{"type":"click","id":"x","value":"secret"}]}}`, `{"a":{"b":[{"type":"click","id":"x","value":"[redacted]"}]}}`},
		{"objects under an exception", `{"action":{"transcript":"secret","type":"say"}}`, `{"action":{"transcript":"[redacted]","type":"say"}}`},
		{"lists under an exception", `{"name":["secret",["secret"],{"id":"i"}]}`, `{"name":["[redacted]",["[redacted]"],{"id":"i"}]}`},
		{"similar names", `{"Type":"secret","type ":"secret","names":"secret","user_id":"secret","actionText":"secret"}`,
			`{"Type":"[redacted]","type ":"[redacted]","names":"[redacted]","user_id":"[redacted]","actionText":"[redacted]"}`},
		{"escaped name", `{"\u0074ype":"t"}`, `{"\u0074ype":"t"}`},
		{"after an exception", `{"id":{},"x":"secret"}`, `{"id":{},"x":"[redacted]"}`},
		{"after an empty list", `{"id":[],"x":["secret"]}`, `{"id":[],"x":["[redacted]"]}`},
		{"an exception as a value", `{"x":"type","y":"secret"}`, `{"x":"[redacted]","y":"[redacted]"}`},
		{"a list of pairs", `{"x":["type","secret"]}`, `{"x":["[redacted]","[redacted]"]}`},
		{"empty text", `{"x":""}`, `{"x":"[redacted]"}`},
		{"white space", "{ \"x\" : \"secret\" ,\n \"type\":\"t\" }", `{"x":"[redacted]","type":"t"}`},
		{"empty", `{}`, `{}`},
		{"line break in a kept text", `{"type":"a\nb"}`, `{"type":"a\nb"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := redactText([]byte(tt.in))
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
	for _, bad := range []string{``, ` `, `{`, `{"a":1}{"b":"secret"}`, `{"a":1,"a":2}`, "{\"a\":\"\xff\"}", `nope`} {
		if got, err := redactText([]byte(bad)); err == nil {
			t.Errorf("%q was accepted as %s", bad, got)
		}
	}
}

// leaves returns the strings of a value that are not the value of a kept member.
func leaves(v any, member string) (found []string) {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			found = append(found, leaves(child, name)...)
		}
	case []any:
		for _, child := range v {
			found = append(found, leaves(child, "")...)
		}
	case string:
		if !keptMembers[member] {
			found = append(found, v)
		}
	}
	return found
}

func FuzzRedactText(f *testing.F) {
	for _, seed := range []string{`{"type":"t","x":{"y":["z",1,null,{"id":"i"}]}}`, `{"name":{"name":["name"]}}`, `"x"`, `[[]]`, `{"":""}`, `{"a":1e999}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		got, err := redactText(value)
		if (err == nil) != jsontext.Value(value).IsValid() {
			t.Fatalf("%q: %v", value, err)
		}
		if err != nil {
			return
		}
		var in, out any
		if json.Unmarshal(value, &in) != nil || json.Unmarshal(got, &out) != nil {
			return // a number no float can hold
		}
		for _, text := range leaves(out, "") {
			if text != "[redacted]" {
				t.Fatalf("%s still contains %q", got, text)
			}
		}
		if len(leaves(in, "")) != len(leaves(out, "")) {
			t.Fatalf("%s became %s", value, got)
		}
		if again, err := redactText(got); err != nil || !bytes.Equal(again, got) {
			t.Fatalf("redacting %s again gave %s, %v", got, again, err)
		}
	})
}
