package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/demo/voice"
	"telapi/internal/sleep"
)

// step is an entry or a report and the time at which it arrives.
type step struct {
	at     time.Duration
	entry  string
	report func(*call)
}

// simulation runs a call with a fake clock and logs its effects with their time, such
// as "2s says bot: hello".
type simulation struct {
	*loopState
	start     time.Time
	steps     []step
	log       []string
	asked     int           // questions to the bot
	speech    time.Duration // duration of every utterance
	stuck     bool          // whether playback never ends
	stop      context.CancelFunc
	received  int // entries
	committed int // number of the newest one
}

const maxDuration = time.Hour // longer than any timer

// simulate runs a call and returns the log.
func simulate(t *testing.T, mode string, speech time.Duration, steps ...step) (log string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{loopState: newLoopState(), start: time.Now(), steps: steps, speech: max(speech, -speech), stuck: speech < 0}
		entries := len(slices.DeleteFunc(slices.Clone(steps), func(c step) bool { return c.report != nil }))
		c := newCall(mode, s, time.Now)
		c.greeted = true
		ctx, cancel := context.WithTimeout(t.Context(), maxDuration)
		defer cancel()
		if err := loop(ctx, s, c, s.loopState); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		log = strings.Join(s.log, "\n")
		if c.settled() && s.committed != entries {
			t.Errorf("committed %d entries, want %d", s.committed, entries)
		}
	})
	return log
}

func (s *simulation) Receive(ctx context.Context) (callruntime.Delivery, error) {
	for len(s.steps) > 0 {
		next := s.steps[0]
		s.steps = s.steps[1:]
		time.Sleep(next.at - time.Since(s.start))
		if next.report != nil {
			s.reports <- next.report
			continue
		}
		return s.deliver(next.entry)
	}
	<-ctx.Done()
	return callruntime.Delivery{}, ctx.Err()
}

func (s *simulation) deliver(entry string) (callruntime.Delivery, error) {
	s.received++
	d := callruntime.Delivery{Position: fmt.Sprint(s.received), JSON: []byte(entry)}
	return d, json.Unmarshal(d.JSON, &d.Entry)
}

func (s *simulation) Commit(_ context.Context, position string) (err error) {
	s.committed, err = strconv.Atoi(position)
	return err
}

func (s *simulation) record(format string, args ...any) {
	s.log = append(s.log, fmt.Sprint(time.Since(s.start))+" "+fmt.Sprintf(format, args...))
}

func (s *simulation) send(t wire.MessageType, payload any) {
	if c, ok := payload.(chat); ok {
		s.record("says %s: %s", c.From, c.Text)
		return
	}
	raw, _ := json.Marshal(payload, json.Deterministic(true))
	s.record("%s %s", t, raw)
}

func (s *simulation) askBot(q question) string {
	s.asked++
	s.record("asks %s%s part %d", q.Text, q.DTMF, q.Part)
	if q.Text != "" && q.Part == 1 && s.entry == "" {
		s.record("outside of an entry")
	}
	return fmt.Sprint("item-", s.asked)
}

func (s *simulation) cancel(id string) { s.record("cancels %s", id) }

func (s *simulation) play(i item) {
	what := i.Text
	if i.DisableCache {
		what += " (not from the cache)"
	}
	length := s.speech
	if i.pause > 0 {
		what, length = "silence", i.pause
	}
	s.record("plays %s", what)
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

func (s *simulation) hear(alaw []byte) { s.record("hears %d bytes", len(alaw)) }

func (s *simulation) recognize(u voice.Utterance) { s.record("recognizes %v", u.Duration()) }

func (s *simulation) answer(offer signal) error {
	if offer.SDP == "invalid" {
		return errors.New("invalid SDP")
	}
	s.record("answers %s", offer.SDP)
	return nil
}

func (s *simulation) addCandidate(candidate jsontext.Value) { s.record("candidate %s", candidate) }

func (s *simulation) closeCall() { s.record("closes call") }

func (s *simulation) stopPlayback() { s.stop(); s.record("stops playback") }

func (s *simulation) end(reason string) { s.record("ends: %s", reason) }

func (s *simulation) publish(Lane, EventKind, string, any) {}

// Constructors of steps.

func callerSays(at time.Duration, text string) step {
	return step{at: at, entry: fmt.Sprintf(`{"kind":"frame","message":{"type":"chat","chat":{"text":%q}}}`, text)}
}

func callerPresses(at time.Duration, digits string) step {
	return step{at: at, entry: fmt.Sprintf(`{"kind":"frame","message":{"type":"browser_action","browserAction":{"type":"dtmf","digit":%q}}}`, digits)}
}

func botAnswer(at time.Duration, itemID, text string) step {
	return step{at: at, entry: fmt.Sprintf(`{"kind":"bot_message","workItemId":%q,"text":%q,"form":"plain"}`, itemID, text)}
}

func command(at time.Duration, apply wire.ApplyMode, command string) step {
	return step{at: at, entry: fmt.Sprintf(`{"kind":"command","apply":%q,"command":%s}`, apply, command)}
}

func botDelayConfig(fields string) step {
	return command(0, wire.ApplyImmediately, `{"type":"update_bot_delay_config","source":"bot",`+fields+`}`)
}

func dtmfConfig(fields string) step {
	return command(0, wire.ApplyImmediately, `{"type":"update_dtmf_config","source":"bot",`+fields+`}`)
}

// testCase is a sequence of steps and the expected log.
type testCase struct {
	name   string
	mode   string        // default chat
	speech time.Duration // negative: playback never ends
	steps  []step
	want   string
}

func runCases(t *testing.T, cases []testCase) {
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			if tt.mode == "" {
				tt.mode = "chat"
			}
			want := strings.Join(strings.Fields(tt.want), " ")
			got := simulate(t, tt.mode, tt.speech, tt.steps...)
			if strings.Join(strings.Fields(got), " ") != want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}
