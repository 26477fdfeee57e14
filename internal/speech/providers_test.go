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
		e, fallback := newEnv(t), &provider{name: "fallback"}
		primary := (&provider{name: "primary", delay: func() { time.Sleep(5 * time.Second) }}).fail(errDown)
		s := e.service(t, primary, fallback)
		s.Retries = 10
		for _, body := range []string{`{"text":"abc"}`, `{"text":"abc","disableCache":true}`} {
			e.advance(time.Minute)
			if r := synthesize(t, s, body); r.Provider != "fallback" {
				t.Errorf("%s: used provider %s, want fallback", body, r.Provider)
			}
		}
		e.advance(time.Minute)
		primary.delay = func() { time.Sleep(speech.SynthesisTimeout + time.Second) }
		if _, err := s.Synthesize(t.Context(), "t1", []byte(`{"text":"def"}`)); !fault.Is(err, fault.ServiceUnavailable) || fallback.calls.Load() != 2 {
			t.Errorf("without time left: %v with %d calls of the fallback, want SERVICE_UNAVAILABLE with 2", err, fallback.calls.Load())
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
				t.Errorf("after %d stalled providers: used %s, want last", others, r.Provider)
			}
		}
	})
}

func TestFallbackIsCachedUnderItsOwnName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, primary, fallback := newEnv(t), &provider{name: "primary"}, &provider{name: "fallback"}
		s := e.service(t, primary, fallback)
		primary.fail(errDown)
		r := synthesize(t, s, `{"text":"abc"}`)
		if r.Provider != "fallback" || r.Hash != speech.Hash("t1", "fallback", 8000, speech.Utterance{"abc", "fallback-voice", "", 1}) || primary.calls.Load() != 2 {
			t.Errorf("response %+v with %d calls of the primary, want the fallback's recording with 2", r, primary.calls.Load())
		}
		if r := synthesize(t, s, `{"text":"abc"}`); !r.Cached || r.Provider != "fallback" || primary.calls.Load() != 2 {
			t.Errorf("during the cooldown: %+v with %d calls of the primary, want cached with 2", r, primary.calls.Load())
		}
		if r := synthesize(t, s, `{"text":"abc","provider":"fallback"}`); !r.Cached || fallback.calls.Load() != 1 {
			t.Errorf("requested by name: %+v with %d calls of the fallback, want cached with 1", r, fallback.calls.Load())
		}
		primary.fail(nil)
		e.advance(speech.FailureCooldown)
		if r := synthesize(t, s, `{"text":"abc"}`); r.Cached || r.Provider != "primary" {
			t.Errorf("after the cooldown: %+v, want a synthesis by the primary", r)
		}
		for i, failure := range []error{errDown, context.Canceled} { // of the provider, not of the caller
			fallback.fail(failure)
			if r := synthesize(t, s, fmt.Sprintf(`{"text":"def %d","provider":"fallback"}`, i)); r.Provider != "primary" {
				t.Errorf("requested provider fails with %v: used %s, want primary", failure, r.Provider)
			}
			e.advance(speech.FailureCooldown)
		}
		if report := e.reports[0]; report.Provider != "fallback" || report.Voice != "fallback-voice" {
			t.Errorf("reported %+v, want the fallback and its voice", report)
		}
	})
}

func TestWaitingInstancesUseResultOfFallback(t *testing.T) {
	e, primary := newEnv(t), (&provider{name: "primary"}).fail(errDown)
	fallback := &provider{name: "fallback", started: make(chan struct{}, 1), gate: make(chan struct{})}
	a, b := e.service(t, primary, fallback), e.service(t, primary, fallback)
	responses := make(chan speech.Response, 2)
	request := func(s *speech.Service) {
		r, _ := s.Synthesize(t.Context(), "t1", []byte(`{"text":"abc"}`))
		responses <- r
	}
	go request(a)
	<-fallback.started
	go request(b)
	close(fallback.gate)
	if one, other := <-responses, <-responses; one.Cached == other.Cached || one.Hash != other.Hash || fallback.calls.Load() != 1 {
		t.Errorf("responses %+v and %+v with %d calls of the fallback; want one of them cached, with 1 call", one, other, fallback.calls.Load())
	}
}

func TestErrorWhenAllProvidersFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		rejects := fmt.Errorf("status 400: %w", speech.ErrRejected)
		for name, tt := range map[string]struct {
			providers []speech.Provider
			code      fault.Code
			message   string
			calls     int64 // of the first provider
		}{
			"no provider": {nil, fault.ServiceUnavailable, "SPEECH_PROVIDERS", 0},
			"all fail":    {[]speech.Provider{(&provider{name: "a"}).fail(errDown), (&provider{name: "b"}).fail(errDown)}, fault.ServiceUnavailable, "a, b", 2},
			"all reject":  {[]speech.Provider{(&provider{name: "a"}).fail(rejects), (&provider{name: "b"}).fail(rejects)}, fault.Validation, "voice", 1},
			"one rejects": {[]speech.Provider{(&provider{name: "a"}).fail(rejects), (&provider{name: "b"}).fail(errDown)}, fault.ServiceUnavailable, "a, b", 1},
		} {
			_, err := e.service(t, tt.providers...).Synthesize(t.Context(), "t1", []byte(`{"text":"abc","provider":"a"}`))
			e := fault.From(err)
			if e.Code != tt.code || !strings.Contains(e.Message, tt.message) || (e.Code == fault.ServiceUnavailable) != (e.RetryAfter > 0) || strings.Contains(e.Message, "refused") {
				t.Errorf("%s: error %+v, want %s with %q, a Retry-After only if unavailable, and no cause", name, e, tt.code, tt.message)
			}
			if len(tt.providers) > 0 && tt.providers[0].(*provider).calls.Load() != tt.calls {
				t.Errorf("%s: %d calls of the first provider, want %d", name, tt.providers[0].(*provider).calls.Load(), tt.calls)
			}
		}
		if _, err := e.service(t, &provider{name: "a"}).Synthesize(t.Context(), "t1", []byte(`{"text":"panic"}`)); fault.From(err).Code != fault.Internal {
			t.Errorf("panicking provider: %v, want INTERNAL_ERROR", err)
		}
		if reports, _ := e.reported(); len(reports) != 0 {
			t.Errorf("reported %v, want nothing", reports)
		}
	})
}
