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
		{"nested kept members", `{"a":{"b":[{"type":"click","id":"x","value":"secret"}]}}`, `{"a":{"b":[{"type":"click","id":"x","value":"[redacted]"}]}}`},
		{"object under a kept member", `{"action":{"transcript":"secret","type":"say"}}`, `{"action":{"transcript":"[redacted]","type":"say"}}`},
		{"array under a kept member", `{"name":["secret",["secret"],{"id":"i"}]}`, `{"name":["[redacted]",["[redacted]"],{"id":"i"}]}`},
		{"names similar to kept members", `{"Type":"secret","type ":"secret","names":"secret","user_id":"secret","actionText":"secret"}`,
			`{"Type":"[redacted]","type ":"[redacted]","names":"[redacted]","user_id":"[redacted]","actionText":"[redacted]"}`},
		{"escaped name of a kept member", `{"\u0074ype":"t"}`, `{"\u0074ype":"t"}`},
		{"member after a kept member", `{"id":{},"x":"secret"}`, `{"id":{},"x":"[redacted]"}`},
		{"member after an empty array", `{"id":[],"x":["secret"]}`, `{"id":[],"x":["[redacted]"]}`},
		{"name of a kept member as a value", `{"x":"type","y":"secret"}`, `{"x":"[redacted]","y":"[redacted]"}`},
		{"name of a kept member in an array", `{"x":["type","secret"]}`, `{"x":["[redacted]","[redacted]"]}`},
		{"empty text", `{"x":""}`, `{"x":"[redacted]"}`},
		{"white space", "{ \"x\" : \"secret\" ,\n \"type\":\"t\" }", `{"x":"[redacted]","type":"t"}`},
		{"empty", `{}`, `{}`},
		{"line break in a kept string", `{"type":"a\nb"}`, `{"type":"a\nb"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := redactText([]byte(tt.in))
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
	for _, invalid := range []string{``, ` `, `{`, `{"a":1}{"b":"secret"}`, `{"a":1,"a":2}`, "{\"a\":\"\xff\"}", `nope`} {
		if got, err := redactText([]byte(invalid)); err == nil {
			t.Errorf("redactText(%q) = %s, want an error", invalid, got)
		}
	}
}

// redactable returns the strings of a value that are not the value of a kept member.
func redactable(v any, member string) (found []string) {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			found = append(found, redactable(child, name)...)
		}
	case []any:
		for _, child := range v {
			found = append(found, redactable(child, "")...)
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
			t.Fatalf("redactText(%q): error %v, want an error only for invalid JSON", value, err)
		}
		if err != nil {
			return
		}
		var in, out any
		if json.Unmarshal(value, &in) != nil || json.Unmarshal(got, &out) != nil {
			return // a number exceeds float64
		}
		for _, text := range redactable(out, "") {
			if text != "[redacted]" {
				t.Fatalf("%s still contains %q", got, text)
			}
		}
		if len(redactable(in, "")) != len(redactable(out, "")) {
			t.Fatalf("redactText(%s) = %s, which has another number of strings", value, got)
		}
		if again, err := redactText(got); err != nil || !bytes.Equal(again, got) {
			t.Fatalf("redacting %s again gave %s, %v", got, again, err)
		}
	})
}
