package speech

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/fault"
)

func TestAnotherProviderHasTimeLeftHoweverOftenOneIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := newWorld(), &voice{name: "fallback"}
		p := (&voice{name: "primary", takes: func() { time.Sleep(5 * time.Second) }}).fail(errDown)
		s := w.service(t, p, f)
		s.Retries = 10
		for _, body := range []string{`{"text":"abc"}`, `{"text":"abc","disableCache":true}`} {
			w.pass(time.Minute)
			if a := speak(t, s, body); a.Provider != "fallback" {
				t.Errorf("%s: %+v", body, a)
			}
		}
		w.pass(time.Minute)
		p.takes = func() { time.Sleep(flightTime + time.Second) }
		if _, err := s.Synthesize(t.Context(), "t1", []byte(`{"text":"def"}`)); !fault.Is(err, fault.ServiceUnavailable) || f.said.Load() != 2 {
			t.Errorf("without time left: %v, and the fallback was asked %d times", err, f.said.Load())
		}
	})
}

func TestTheLastProviderIsReachedHoweverSilentTheOthersAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for others := range 4 {
			chain := []Provider{&voice{name: "last"}}
			patience := ProviderTimeout(10*time.Minute, others+1)
			for n := range others {
				hangs := (&voice{name: fmt.Sprint(n), takes: func() { time.Sleep(patience + time.Millisecond) }}).fail(errDown)
				chain = append([]Provider{hangs}, chain...)
			}
			if a := speak(t, newWorld().service(t, chain...), `{"text":"abc"}`); a.Provider != "last" {
				t.Errorf("after %d others: %+v", others, a)
			}
		}
	})
}

func TestFallbackIsKeptUnderItsOwnName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p, f := newWorld(), &voice{name: "primary"}, &voice{name: "fallback"}
		s := w.service(t, p, f)
		p.fail(errDown)
		a := speak(t, s, `{"text":"abc"}`)
		if a.Provider != "fallback" || a.Hash != Key("t1", "fallback", 8000, Utterance{"abc", "fallback-voice", "", 1}) || p.said.Load() != 2 {
			t.Errorf("%+v, primary asked %d times", a, p.said.Load())
		}
		if a := speak(t, s, `{"text":"abc"}`); !a.Cached || a.Provider != "fallback" || p.said.Load() != 2 {
			t.Errorf("while the primary rests: %+v, primary asked %d times", a, p.said.Load())
		}
		if a := speak(t, s, `{"text":"abc","provider":"fallback"}`); !a.Cached || f.said.Load() != 1 {
			t.Errorf("asked for by name: %+v", a)
		}
		p.fail(nil)
		w.pass(pauseAfterFailure)
		if a := speak(t, s, `{"text":"abc"}`); a.Cached || a.Provider != "primary" {
			t.Errorf("when the primary is back: %+v", a)
		}
		for i, failure := range []error{errDown, context.Canceled} { // not by whoever asks
			f.fail(failure)
			if a := speak(t, s, fmt.Sprintf(`{"text":"def %d","provider":"fallback"}`, i)); a.Provider != "primary" {
				t.Errorf("the one named fails with %v: %+v", failure, a)
			}
			w.pass(pauseAfterFailure)
		}
		if e := w.entries[0]; e.Provider != "fallback" || e.Voice != "fallback-voice" {
			t.Errorf("counted for %+v", e)
		}
	})
}

// Instances that wait for one that falls back take what it made, without asking
// the primary again.
func TestWaitingInstancesTakeWhatAFallbackMade(t *testing.T) {
	w, p, f := newWorld(), (&voice{name: "primary"}).fail(errDown), &voice{name: "fallback", gate: make(chan struct{})}
	a, b := w.service(t, p, f), w.service(t, p, f)
	answers := make(chan Response, 2)
	ask := func(s *Service) {
		answer, _ := s.Synthesize(t.Context(), "t1", []byte(`{"text":"abc"}`))
		answers <- answer
	}
	go ask(a)
	for f.said.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	go ask(b)
	close(f.gate)
	if one, other := <-answers, <-answers; one.Cached == other.Cached || one.Hash != other.Hash || f.said.Load() != 1 {
		t.Errorf("%+v and %+v; fallback asked %d times", one, other, f.said.Load())
	}
}

func TestWhenNobodySpeaksTheAnswerSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		refuses := fmt.Errorf("status 400: %w", ErrRejected)
		for name, c := range map[string]struct {
			providers []Provider
			code      fault.Code
			says      string
			said      int64 // by the first
		}{
			"none is configured": {nil, fault.ServiceUnavailable, "SPEECH_PROVIDERS", 0},
			"all fail":           {[]Provider{(&voice{name: "a"}).fail(errDown), (&voice{name: "b"}).fail(errDown)}, fault.ServiceUnavailable, "a, b", 2},
			"all refuse":         {[]Provider{(&voice{name: "a"}).fail(refuses), (&voice{name: "b"}).fail(refuses)}, fault.Validation, "voice", 1},
			"one refuses":        {[]Provider{(&voice{name: "a"}).fail(refuses), (&voice{name: "b"}).fail(errDown)}, fault.ServiceUnavailable, "a, b", 1},
		} {
			_, err := w.service(t, c.providers...).Synthesize(t.Context(), "t1", []byte(`{"text":"abc","provider":"a"}`))
			e := fault.From(err)
			if e.Code != c.code || !strings.Contains(e.Message, c.says) || (e.Code == fault.ServiceUnavailable) != (e.RetryAfter > 0) || strings.Contains(e.Message, "refused") {
				t.Errorf("%s: %+v", name, e)
			}
			if len(c.providers) > 0 && c.providers[0].(*voice).said.Load() != c.said {
				t.Errorf("%s: the first was asked %d times", name, c.providers[0].(*voice).said.Load())
			}
		}
		if _, err := w.service(t, &voice{name: "a"}).Synthesize(t.Context(), "t1", []byte(`{"text":"panic"}`)); fault.From(err).Code != fault.Internal {
			t.Errorf("a provider that is broken: %v", err)
		}
		if w.counted() != 0 {
			t.Errorf("%d were counted", w.counted())
		}
	})
}
