package speech_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/fault"
	"telapi/internal/speech"
)

func TestRetriesLeaveTimeForFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, f := newEnv(t), &provider{name: "fallback"}
		p := (&provider{name: "primary", delay: func() { time.Sleep(5 * time.Second) }}).fail(errDown)
		s := e.service(t, p, f)
		s.Retries = 10
		for _, body := range []string{`{"text":"abc"}`, `{"text":"abc","disableCache":true}`} {
			e.advance(time.Minute)
			if r := synthesize(t, s, body); r.Provider != "fallback" {
				t.Errorf("%s: %+v", body, r)
			}
		}
		e.advance(time.Minute)
		p.delay = func() { time.Sleep(speech.SynthesisTimeout + time.Second) }
		if _, err := s.Synthesize(t.Context(), "t1", []byte(`{"text":"def"}`)); !fault.Is(err, fault.ServiceUnavailable) || f.calls.Load() != 2 {
			t.Errorf("without time left: %v; %d calls of the fallback", err, f.calls.Load())
		}
	})
}

func TestStalledProvidersLeaveTimeForLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for others := range 4 {
			chain := []speech.Provider{&provider{name: "last"}}
			timeout := speech.ProviderTimeout(10*time.Minute, others+1)
			for n := range others {
				stalled := (&provider{name: fmt.Sprint(n), delay: func() { time.Sleep(timeout + time.Millisecond) }}).fail(errDown)
				chain = append([]speech.Provider{stalled}, chain...)
			}
			if r := synthesize(t, newEnv(t).service(t, chain...), `{"text":"abc"}`); r.Provider != "last" {
				t.Errorf("after %d stalled providers: %+v", others, r)
			}
		}
	})
}

func TestFallbackIsCachedUnderItsOwnName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, p, f := newEnv(t), &provider{name: "primary"}, &provider{name: "fallback"}
		s := e.service(t, p, f)
		p.fail(errDown)
		r := synthesize(t, s, `{"text":"abc"}`)
		if r.Provider != "fallback" || r.Hash != speech.Hash("t1", "fallback", 8000, speech.Utterance{"abc", "fallback-voice", "", 1}) || p.calls.Load() != 2 {
			t.Errorf("%+v; %d calls of the primary", r, p.calls.Load())
		}
		if r := synthesize(t, s, `{"text":"abc"}`); !r.Cached || r.Provider != "fallback" || p.calls.Load() != 2 {
			t.Errorf("during the cooldown: %+v; %d calls of the primary", r, p.calls.Load())
		}
		if r := synthesize(t, s, `{"text":"abc","provider":"fallback"}`); !r.Cached || f.calls.Load() != 1 {
			t.Errorf("requested by name: %+v", r)
		}
		p.fail(nil)
		e.advance(speech.FailureCooldown)
		if r := synthesize(t, s, `{"text":"abc"}`); r.Cached || r.Provider != "primary" {
			t.Errorf("after the cooldown: %+v", r)
		}
		for i, failure := range []error{errDown, context.Canceled} { // of the provider, not of the caller
			f.fail(failure)
			if r := synthesize(t, s, fmt.Sprintf(`{"text":"def %d","provider":"fallback"}`, i)); r.Provider != "primary" {
				t.Errorf("requested provider fails with %v: %+v", failure, r)
			}
			e.advance(speech.FailureCooldown)
		}
		if e := e.reports[0]; e.Provider != "fallback" || e.Voice != "fallback-voice" {
			t.Errorf("reported %+v", e)
		}
	})
}

func TestWaitingInstancesUseResultOfFallback(t *testing.T) {
	e, p, f := newEnv(t), (&provider{name: "primary"}).fail(errDown), &provider{name: "fallback", started: make(chan struct{}, 1), gate: make(chan struct{})}
	a, b := e.service(t, p, f), e.service(t, p, f)
	responses := make(chan speech.Response, 2)
	request := func(s *speech.Service) {
		r, _ := s.Synthesize(t.Context(), "t1", []byte(`{"text":"abc"}`))
		responses <- r
	}
	go request(a)
	<-f.started
	go request(b)
	close(f.gate)
	if one, other := <-responses, <-responses; one.Cached == other.Cached || one.Hash != other.Hash || f.calls.Load() != 1 {
		t.Errorf("%+v and %+v; %d calls of the fallback", one, other, f.calls.Load())
	}
}

func TestErrorWhenAllProvidersFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		rejects := fmt.Errorf("status 400: %w", speech.ErrRejected)
		for name, c := range map[string]struct {
			providers []speech.Provider
			code      fault.Code
			message   string
			calls     int64 // of the first provider
		}{
			"none is configured": {nil, fault.ServiceUnavailable, "SPEECH_PROVIDERS", 0},
			"all fail":           {[]speech.Provider{(&provider{name: "a"}).fail(errDown), (&provider{name: "b"}).fail(errDown)}, fault.ServiceUnavailable, "a, b", 2},
			"all reject":         {[]speech.Provider{(&provider{name: "a"}).fail(rejects), (&provider{name: "b"}).fail(rejects)}, fault.Validation, "voice", 1},
			"one rejects":        {[]speech.Provider{(&provider{name: "a"}).fail(rejects), (&provider{name: "b"}).fail(errDown)}, fault.ServiceUnavailable, "a, b", 1},
		} {
			_, err := e.service(t, c.providers...).Synthesize(t.Context(), "t1", []byte(`{"text":"abc","provider":"a"}`))
			e := fault.From(err)
			if e.Code != c.code || !strings.Contains(e.Message, c.message) || (e.Code == fault.ServiceUnavailable) != (e.RetryAfter > 0) || strings.Contains(e.Message, "refused") {
				t.Errorf("%s: %+v", name, e)
			}
			if len(c.providers) > 0 && c.providers[0].(*provider).calls.Load() != c.calls {
				t.Errorf("%s: %d calls of the first provider", name, c.providers[0].(*provider).calls.Load())
			}
		}
		if _, err := e.service(t, &provider{name: "a"}).Synthesize(t.Context(), "t1", []byte(`{"text":"panic"}`)); fault.From(err).Code != fault.Internal {
			t.Errorf("a panicking provider: %v", err)
		}
		if reports, _ := e.reported(); len(reports) != 0 {
			t.Errorf("reported %v", reports)
		}
	})
}
