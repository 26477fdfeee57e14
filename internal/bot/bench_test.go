package bot

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
)

// BenchmarkBody compares parsing a typical body of 1 KB with decoding it.
func BenchmarkBody(b *testing.B) {
	body := fmt.Appendf(nil, `{"conversation":{"identifier":{"id":"c","name":"Support"}},"from":{"identifier":{"id":"bot-1"}},"messages":{"timestamp":"2026-11-15T09:30:00Z","message":[
		{"messageId":1,"sequence":1,"content":{"textMessage":{"textPlain":%q}}},
		{"messageId":2,"sequence":2,"content":{"textMessage":{"textPlain":%q},"event":{"typing":{"enable":true},"custom":{"name":"config","value":{"sessionParams":{"bargeIn":true,"botNoInputTimeoutMs":5000}}}}}}]},
		"metadata":{"provider":"x","latency":12},"nluData":{"intents":[{"name":"greet","score":0.9}]}}`, strings.Repeat("word ", 60), strings.Repeat("word ", 40))
	rules := policy(b, "open")
	b.Run("decode alone", func(b *testing.B) {
		for b.Loop() {
			var d document
			if err := json.Unmarshal(body, &d); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parse", func(b *testing.B) {
		for b.Loop() {
			if _, err := Parse(wire.BotItem, body, "c"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parse and write entries", func(b *testing.B) {
		for b.Loop() {
			parsed, err := Parse(wire.BotItem, body, "c")
			if err != nil {
				b.Fatal(err)
			}
			entries, _ := parsed.Entries(entryOf(wire.SourceBot), rules)
			for _, e := range entries {
				if _, err := e.AppendTo(nil); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

// Decoding a second time would allocate as much as the first time.
func TestBodyIsDecodedOnce(t *testing.T) {
	data := strings.Repeat(`{"key":"order","value":{"number":"4711"},"sensitiveData":true},`, 100)
	body := []byte(`{"conversation":{"identifier":{"id":"c"}},"channelData":[` + strings.TrimSuffix(data, ",") + `]}`)
	decodeOnce := testing.AllocsPerRun(100, func() {
		var d document
		if err := json.Unmarshal(body, &d); err != nil {
			t.Fatal(err)
		}
	})
	parsed := testing.AllocsPerRun(100, func() {
		if _, err := Parse(wire.BotItem, body, "c"); err != nil {
			t.Fatal(err)
		}
	})
	if parsed > 1.5*decodeOnce {
		t.Errorf("%v allocations to parse, want at most 1.5 times the %v to decode once", parsed, decodeOnce)
	}
}
