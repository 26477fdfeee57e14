package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/sleep"
)

// A cue is an entry, or a report, and when it comes.
type cue struct {
	at    time.Duration
	entry string
	tell  func(*call)
}

// stage lets a call live through its cues in a bubble of time and writes down
// what it does and when: "2s says bot: hello".
type stage struct {
	*ledger
	begun     time.Time
	cues      []cue
	seen      []string
	asked     int
	speech    time.Duration // how long everything takes to be said
	stuck     bool          // and whether it ever ends
	stop      context.CancelFunc
	committed int
}

const noted = time.Hour // nothing is awaited that long

// act runs a call and returns what was seen.
func act(t *testing.T, mode string, speech time.Duration, cues ...cue) (seen string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{ledger: newLedger(), begun: time.Now(), cues: cues, speech: max(speech, -speech), stuck: speech < 0}
		entries := len(slices.DeleteFunc(slices.Clone(cues), func(c cue) bool { return c.tell != nil }))
		c := newCall(mode, s, time.Now)
		c.greeted = true
		ctx, cancel := context.WithTimeout(t.Context(), noted)
		defer cancel()
		if err := loop(ctx, s, c, s.ledger); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		seen = strings.Join(s.seen, "\n")
		if s.committed != entries {
			t.Errorf("%d of %d entries were committed", s.committed, entries)
		}
	})
	return seen
}

func (s *stage) Receive(ctx context.Context) (callruntime.Delivery, error) {
	for len(s.cues) > 0 {
		next := s.cues[0]
		s.cues = s.cues[1:]
		time.Sleep(next.at - time.Since(s.begun))
		if next.tell != nil {
			s.reports <- next.tell
			continue
		}
		d := callruntime.Delivery{Position: fmt.Sprint(len(s.cues))}
		return d, json.Unmarshal([]byte(next.entry), &d.Entry)
	}
	<-ctx.Done()
	return callruntime.Delivery{}, ctx.Err()
}

func (s *stage) Commit(context.Context, string) error { s.committed++; return nil }

func (s *stage) see(format string, args ...any) {
	s.seen = append(s.seen, fmt.Sprint(time.Since(s.begun))+" "+fmt.Sprintf(format, args...))
}

func (s *stage) send(t wire.MessageType, payload any) {
	if c, ok := payload.(chat); ok {
		s.see("says %s: %s", c.From, c.Text)
		return
	}
	raw, _ := json.Marshal(payload, json.Deterministic(true))
	s.see("%s %s", t, raw)
}

func (s *stage) ask(q question) string {
	s.asked++
	s.see("asks %s%s part %d", q.Text, q.DTMF, q.Part)
	if q.Text != "" && q.Part == 1 && s.entry == "" {
		s.see("on behalf of no entry")
	}
	return fmt.Sprint("item-", s.asked)
}

func (s *stage) cancel(id string) { s.see("cancels %s", id) }

func (s *stage) play(i item) {
	what := i.Text
	if i.DisableCache {
		what += " (not from the cache)"
	}
	length := s.speech
	if i.pause > 0 {
		what, length = "silence", i.pause
	}
	s.see("plays %s", what)
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	report := func(f func(*call)) {
		s.reports <- func(c *call) {
			if ctx.Err() == nil {
				f(c)
			}
		}
	}
	if s.stuck {
		return
	}
	go func() {
		report(func(c *call) { c.playing(length) })
		if sleep.For(ctx, length) == nil {
			report(func(c *call) { c.played() })
		}
	}()
}

func (s *stage) hush() { s.stop(); s.see("hush") }

func (s *stage) end(reason string) { s.see("ends: %s", reason) }

func (s *stage) note(Lane, EventKind, string, any) {}

// What comes by the stream.

func caller(at time.Duration, text string) cue {
	return cue{at: at, entry: fmt.Sprintf(`{"kind":"frame","message":{"type":"chat","chat":{"text":%q}}}`, text)}
}

func presses(at time.Duration, digits string) cue {
	return cue{at: at, entry: fmt.Sprintf(`{"kind":"frame","message":{"type":"browser_action","browserAction":{"type":"dtmf","digit":%q}}}`, digits)}
}

func answers(at time.Duration, itemID, text string) cue {
	return cue{at: at, entry: fmt.Sprintf(`{"kind":"bot_message","workItemId":%q,"text":%q,"form":"plain"}`, itemID, text)}
}

func orders(at time.Duration, apply wire.Apply, command string) cue {
	return cue{at: at, entry: fmt.Sprintf(`{"kind":"command","apply":%q,"command":%s}`, apply, command)}
}

func delays(fields string) cue {
	return orders(0, wire.Immediate, `{"type":"update_bot_delay_config","source":"bot",`+fields+`}`)
}

func dtmf(fields string) cue {
	return orders(0, wire.Immediate, `{"type":"update_dtmf_config","source":"bot",`+fields+`}`)
}

// scene is a rule: what happens, and what is seen of it.
type scene struct {
	rule   string
	mode   string        // default chat
	speech time.Duration // negative: it never ends
	cues   []cue
	want   string
}

func play(t *testing.T, scenes []scene) {
	for _, s := range scenes {
		t.Run(s.rule, func(t *testing.T) {
			if s.mode == "" {
				s.mode = "chat"
			}
			want := strings.Join(strings.Fields(s.want), " ")
			got := act(t, s.mode, s.speech, s.cues...)
			if strings.Join(strings.Fields(got), " ") != want {
				t.Errorf("seen\n%s\nwant\n%s", got, s.want)
			}
		})
	}
}
