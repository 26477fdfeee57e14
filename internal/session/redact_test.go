package session

import (
	"bytes"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

func TestRedactText(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"plain", `{"text":"hello"}`, `{"text":"[redacted]"}`},
		{"kept members", `{"type":"t","action":"a","id":"i","timestamp":"s"}`, `{"type":"t","action":"a","id":"i","timestamp":"s"}`},
		{"name", `{"name":"Ada"}`, `{"name":"[redacted]"}`},
		{"numbers", `{"pin":4711,"digits":[-1,1.50e3]}`, `{"pin":"[redacted]","digits":["[redacted]","[redacted]"]}`},
		{"numbers in kept members", `{"timestamp":1731641234567,"id":7}`, `{"timestamp":1731641234567,"id":7}`},
		{"booleans and null", `{"b":true,"z":null,"type":false}`, `{"b":true,"z":null,"type":false}`},
		{"longest identifier", `{"id":"` + strings.Repeat("ü", 64) + `"}`, `{"id":"` + strings.Repeat("ü", 64) + `"}`},
		{"long text in a kept member", `{"id":"` + strings.Repeat("x", 65) + `"}`, `{"id":"[redacted]"}`},
		{"long number in a kept member", `{"id":` + strings.Repeat("4", 65) + `}`, `{"id":"[redacted]"}`},
		{"blank in a kept member", `{"action":"my card","type":"a\u00a0b","id":"\t"}`, `{"action":"[redacted]","type":"[redacted]","id":"[redacted]"}`},
		{"empty kept member", `{"type":""}`, `{"type":"[redacted]"}`},
		{"nested transcript", `{"type":"voice","payload":{"transcript":{"final":"my card is 4111","words":["my","card"]}}}`,
			`{"type":"voice","payload":{"transcript":{"final":"[redacted]","words":["[redacted]","[redacted]"]}}}`},
		{"nested kept members", `{"a":{"b":[{"type":"click","id":"x","value":"secret"}]}}`, `{"a":{"b":[{"type":"[redacted]","id":"[redacted]","value":"[redacted]"}]}}`},
		{"object under a kept member", `{"action":{"transcript":"secret","type":"say"}}`, `{"action":{"transcript":"[redacted]","type":"[redacted]"}}`},
		{"array under a kept member", `{"type":["secret",["secret"],{"id":"i"}]}`, `{"type":["[redacted]",["[redacted]"],{"id":"[redacted]"}]}`},
		{"member after a nested member", `{"x":{"type":{}},"y":"secret","type":"t"}`, `{"x":{"type":{}},"y":"[redacted]","type":"t"}`},
		{"no object", `["secret",["type","secret"],1]`, `["[redacted]",["[redacted]","[redacted]"],"[redacted]"]`},
		{"only a string", `"secret"`, `"[redacted]"`},
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
		{"line break in a kept member", `{"type":"a\nb"}`, `{"type":"[redacted]"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := RedactText([]byte(tt.in))
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
	for _, invalid := range []string{``, ` `, `{`, `{"a":1}{"b":"secret"}`, `{"a":1,"a":2}`, "{\"a\":\"\xff\"}", `nope`} {
		if got, err := RedactText([]byte(invalid)); err == nil {
			t.Errorf("RedactText(%q) = %s, want an error", invalid, got)
		}
	}
}

// redactable returns the strings and numbers of a value, except those of kept
// members of the top level.
func redactable(v any, depth int) (found []any) {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			_, isObject := child.(map[string]any)
			_, isArray := child.([]any)
			if depth > 0 || !keptMembers[name] || isObject || isArray {
				found = append(found, redactable(child, depth+1)...)
			}
		}
	case []any:
		for _, child := range v {
			found = append(found, redactable(child, depth+1)...)
		}
	case string, float64:
		found = append(found, v)
	}
	return found
}

func FuzzRedactText(f *testing.F) {
	for _, seed := range []string{`{"type":"t","x":{"y":["z",1,null,{"id":"i"}]}}`, `{"name":{"name":["name"]}}`, `"x"`, `[[]]`, `{"":""}`, `{"a":1e999}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		got, err := RedactText(value)
		if (err == nil) != jsontext.Value(value).IsValid() {
			t.Fatalf("RedactText(%q): error %v, want an error only for invalid JSON", value, err)
		}
		if err != nil {
			return
		}
		var in, out any
		if json.Unmarshal(value, &in) != nil || json.Unmarshal(got, &out) != nil {
			return // a number exceeds float64
		}
		for _, text := range redactable(out, 0) {
			if text != "[redacted]" {
				t.Fatalf("%s still contains %v", got, text)
			}
		}
		if len(redactable(in, 0)) != len(redactable(out, 0)) {
			t.Fatalf("RedactText(%s) = %s, which has another number of strings and numbers", value, got)
		}
		if again, err := RedactText(got); err != nil || !bytes.Equal(again, got) {
			t.Fatalf("redacting %s again gave %s, %v", got, again, err)
		}
	})
}
