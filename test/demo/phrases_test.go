// Package demo tests the demo of telapi dev: every phrase of the bot has the
// documented effect.
package demo

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"telapi/internal/demo"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // conversations mostly wait
	testkit.Main(m)
}

// connect opens a session of the demo team and connects to it.
func connect(t *testing.T, i *harness.Instance, mode string) *harness.Browser {
	t.Helper()
	d, err := i.App.Demo(t.Context())
	testkit.Must(t, err)
	b, _ := harness.DevOutput{Key: d.Key.Reveal(), EndpointID: d.EndpointID}.Connect(t, i, mode)
	return b
}

// readUntil reads frames up to one of a type that contains the text, and returns all
// except acknowledgements.
func readUntil(b *harness.Browser, kind, text string) []harness.Received {
	b.T.Helper()
	var seen []harness.Received
	for {
		m, err := b.Read()
		if err != nil {
			b.T.Fatalf("no %s with %q: %v, after %s", kind, text, err, show(seen))
		}
		if strings.Contains(m.Raw, `"event":"ack"`) {
			continue
		}
		seen = append(seen, m)
		if string(m.Type) == kind && strings.Contains(m.Raw, text) {
			return seen
		}
	}
}

// show returns the frames without audio, for failure messages.
func show(seen []harness.Received) string {
	text := ""
	for _, m := range seen {
		if m.Type != "audio" {
			text += "\n  " + m.Raw
		}
	}
	return fmt.Sprintf("%d frames%s", len(seen), text)
}

func TestPhrasesHaveTheirEffect(t *testing.T) {
	t.Parallel()
	i := harness.StartDev(t, harness.Env{}, true)
	checks := map[string]func(b *harness.Browser){ // by phrase
		"hello": func(b *harness.Browser) { readUntil(b, "chat", "How are you?") },
		"transfer me": func(b *harness.Browser) {
			readUntil(b, "chat", "transfer you now")
			readUntil(b, "action", `"target":"tel:+493012345678"`)
			testkit.Equal(b.T, "close code", b.CloseCode(), 4503)
		},
		"transfer me abroad": func(b *harness.Browser) {
			readUntil(b, "chat", "A transfer was denied: target_not_allowed")
			b.Chat("hello")
			readUntil(b, "chat", "How are you?") // the call continues
		},
		"call me slowly": func(b *harness.Browser) {
			readUntil(b, "chat", "# submits")
			press := func(digits string) {
				for _, d := range digits {
					b.Send("browser_action", "browserAction", fmt.Sprintf(`{"type":"dtmf","digit":"%c"}`, d))
				}
			}
			press("12A345") // A is not an allowed digit, 5 starts a new collection
			readUntil(b, "status", `"digits":"1234"`)
			readUntil(b, "chat", "You pressed 1 2 3 4.")
			press("#")
			readUntil(b, "chat", "You pressed 5.")
			press("67")
			readUntil(b, "chat", "You pressed 6 7.") // after the inter-digit timeout
		},
		"be silent": func(b *harness.Browser) {
			seen := readUntil(b, "status", "bot_timeout")
			testkit.Contains(b.T, "frames", show(seen), "still thinking")
			readUntil(b, "chat", "did not answer in time")
			b.Chat("hello")
			readUntil(b, "chat", "How are you?")
		},
		"fail": func(b *harness.Browser) {
			readUntil(b, "chat", "could not answer")
			b.Chat("hello")
			readUntil(b, "chat", "How are you?")
		},
		"out of order": func(b *harness.Browser) {
			if seen := readUntil(b, "chat", "second answer"); !strings.Contains(show(seen), "first answer") {
				b.T.Errorf("want the first answer before the second: %s", show(seen))
			}
		},
		"pause chat": func(b *harness.Browser) {
			readUntil(b, "control", "disable_text_chat")
			b.Chat("hello")
			rejected, enabled := false, false
			for m := b.Next(); !strings.Contains(m.Raw, "How are you?"); m = b.Next() {
				rejected = rejected || strings.Contains(m.Raw, "TEXT_CHAT_DISABLED") // unless three seconds have passed
				enabled = enabled || strings.Contains(m.Raw, "enable_text_chat")
				if rejected && enabled {
					rejected = false
					b.Chat("hello")
				}
			}
		},
		"speak": func(b *harness.Browser) {
			if seen := readUntil(b, "audio", `"last":true`); len(seen) < 20 {
				b.T.Errorf("%d frames of speech, want at least 20", len(seen))
			}
		},
		"hang up": func(b *harness.Browser) {
			readUntil(b, "chat", "Goodbye.")
			testkit.Equal(b.T, "close code", b.CloseCode(), 4503)
		},
		"help": func(b *harness.Browser) {
			seen := show(readUntil(b, "chat", "I understand"))
			for _, p := range demo.Phrases() {
				testkit.Contains(b.T, "help", seen, p.Say)
			}
		},
	}
	for _, p := range demo.Phrases() {
		t.Run(p.Say, func(t *testing.T) {
			t.Parallel()
			b := connect(t, i, "chat")
			readUntil(b, "chat", "Say help")
			b.Chat(p.Say)
			check, ok := checks[p.Say]
			if !ok {
				t.Fatalf("phrase %q has no check", p.Say)
			}
			check(b)
		})
	}
}

func TestDocsMentionEveryPhrase(t *testing.T) {
	page, err := os.ReadFile("../../docs/demo.md")
	testkit.Must(t, err)
	for _, p := range demo.Phrases() {
		if !strings.Contains(string(page), "| "+p.Say+" | ") {
			t.Errorf("docs/demo.md does not mention %q", p.Say)
		}
	}
}
