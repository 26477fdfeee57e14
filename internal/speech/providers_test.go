package speech_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/fault"
	"telapi/internal/speech"
	"telapi/test/testkit"
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

func TestFailingVoiceDoesNotAffectOtherVoices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, primary, fallback := newEnv(t), &provider{name: "primary"}, &provider{name: "fallback"}
		s := e.service(t, primary, fallback)
		primary.fail(errDown)
		for _, members := range []string{`"voice":"broken"`, `"model":"broken"`} {
			for text := range 3 {
				body := fmt.Sprintf(`{"text":"%d",%s}`, text, members)
				if r := synthesize(t, s, body); r.Provider != "fallback" {
					t.Errorf("%s: used %s, want fallback", body, r.Provider)
				}
			}
		}
		primary.fail(nil)
		for body, want := range map[string]string{
			`{"text":"c","voice":"broken"}`: "fallback", `{"text":"c","model":"broken"}`: "fallback",
			`{"text":"c","voice":"sound"}`: "primary", `{"text":"c","voice":"broken","model":"other"}`: "primary", `{"text":"d"}`: "primary",
		} {
			if r := synthesize(t, s, body); r.Provider != want {
				t.Errorf("%s: used %s, want %s", body, r.Provider, want)
			}
		}
	})
}

func TestFailingTextDoesNotAffectOtherTexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, primary, fallback := newEnv(t), &provider{name: "primary"}, &provider{name: "fallback"}
		s := e.service(t, primary, fallback)
		expect := func(text, want string) {
			t.Helper()
			if r := synthesize(t, s, `{"text":"`+text+`","disableCache":true}`); r.Provider != want {
				t.Errorf("text %q: used %s, want %s", text, r.Provider, want)
			}
		}
		primary.fail(errDown)
		for range 5 {
			expect("bad", "fallback")
		}
		primary.fail(nil)
		expect("bad", "fallback")
		expect("good", "primary")
		expect("bad", "primary") // a success ends the penalty
		primary.fail(errDown)
		for _, text := range []string{"bad", "worse", "bad"} {
			expect(text, "fallback")
		}
		primary.fail(nil)
		expect("good", "fallback")
		e.advance(speech.FailureCooldown)
		expect("good", "primary")
	})
}

func TestOnlyFailuresWithoutTextAffectOtherTeams(t *testing.T) {
	for name, tt := range map[string]struct {
		failure error
		want    string
	}{
		"down":          {errDown, "primary"},
		"rate limit":    {&speech.RateLimitError{RetryAfter: speech.FailureCooldown, Err: errDown}, "fallback"},
		"misconfigured": {speech.ErrMisconfigured, "fallback"},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			e, primary, fallback := newEnv(t), (&provider{name: "primary"}).fail(tt.failure), &provider{name: "fallback"}
			s := e.service(t, primary, fallback)
			for n := range 3 {
				synthesize(t, s, fmt.Sprintf(`{"text":"abc %d"}`, n))
			}
			primary.fail(nil)
			for team, want := range map[string]string{"t1": "fallback", "t2": tt.want} {
				r, err := s.Synthesize(t.Context(), team, []byte(`{"text":"def","disableCache":true}`))
				if err != nil || r.Provider != want {
					t.Errorf("team %s: used %s, %v, want %s", team, r.Provider, err, want)
				}
			}
		})
	}
}

func TestSuccessEndsPenaltyOfAllTeams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, primary, fallback := newEnv(t), (&provider{name: "primary"}).fail(speech.ErrMisconfigured), &provider{name: "fallback"}
		s := e.service(t, primary, fallback)
		use := func(team, want string) {
			t.Helper()
			r, err := s.Synthesize(t.Context(), team, []byte(`{"text":"abc","disableCache":true}`))
			testkit.Must(t, err)
			testkit.Equal(t, "provider for "+team, r.Provider, want)
		}
		use("t1", "fallback")
		primary.fail(nil)
		fallback.fail(errDown)
		use("t2", "primary")
		fallback.fail(nil)
		use("t1", "primary")
	})
}

func TestFailuresOfThreeTeamsAffectAllTeams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, primary, fallback := newEnv(t), (&provider{name: "primary"}).fail(errDown), &provider{name: "fallback"}
		s := e.service(t, primary, fallback)
		texts := 0
		// use synthesizes a new text for each team. Only the given ones wait for the primary.
		use := func(slow string, teams ...string) {
			t.Helper()
			var tried []string
			for _, team := range teams {
				texts++
				before := primary.calls.Load()
				_, err := s.Synthesize(t.Context(), team, fmt.Appendf(nil, `{"text":"%d"}`, texts))
				testkit.Must(t, err)
				if primary.calls.Load() > before {
					tried = append(tried, team)
				}
			}
			testkit.Equal(t, "teams that tried the primary", strings.Join(tried, " "), slow)
		}
		use("t1 t2 t1 t2", "t1", "t2", "t1", "t2") // two teams alone do not affect others
		primary.fail(nil)
		use("t3", "t3") // a success ends the count
		primary.fail(errDown)
		use("t4 t5 t6", "t4", "t5", "t6", "t7", "t8")
		e.advance(speech.FailureCooldown)
		use("t6 t5 t9", "t6", "t5", "t9", "t10") // the last two teams do not start it again
		e.advance(speech.FailureCooldown)
		primary.fail(nil)
		use("t7 t8", "t7", "t8")
		primary.fail(&speech.RateLimitError{RetryAfter: speech.FailureCooldown / 2, Err: errDown})
		use("t11", "t11", "t12")
		e.advance(speech.FailureCooldown / 2)
		primary.fail(errDown)
		use("t13 t14", "t13", "t14") // a rate limit is not a failure of a team
	})
}

func TestPenaltiesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, failing := newEnv(t), (&provider{name: "failing"}).fail(errDown)
		s := e.service(t, failing)
		for n := range 20 {
			_, _ = s.Synthesize(t.Context(), "t1", fmt.Appendf(nil, `{"text":"abc","voice":"voice %d"}`, n))
		}
		testkit.Equal(t, "penalties", s.Penalties(), 40) // of the team and of all teams
		e.advance(speech.FailureCooldown + speech.FailureMemory)
		_, _ = s.Synthesize(t.Context(), "t1", []byte(`{"text":"abc"}`))
		testkit.Equal(t, "penalties after the cooldown", s.Penalties(), 2)
	})
}

func TestMisconfiguredProviderIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		misconfigured := fmt.Errorf("status 401: %w", speech.ErrMisconfigured)
		e, primary, fallback := newEnv(t), (&provider{name: "primary"}).fail(misconfigured), &provider{name: "fallback"}
		s := e.service(t, primary, fallback)
		s.Log = slog.New(slog.NewTextHandler(&log, nil))
		if r := synthesize(t, s, `{"text":"abc"}`); r.Provider != "fallback" || primary.calls.Load() != 1 {
			t.Errorf("used %s after %d calls of the primary, want fallback after 1", r.Provider, primary.calls.Load())
		}
		if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "status 401") {
			t.Errorf("log is %s, want an error with the cause", text)
		}
		_, err := e.service(t, primary).Synthesize(t.Context(), "t1", []byte(`{"text":"abc"}`))
		if e := fault.From(err); e.Code != fault.ServiceUnavailable || !strings.Contains(e.Message, "telapi doctor") || e.RetryAfter != time.Minute {
			t.Errorf("no other provider: %+v, want SERVICE_UNAVAILABLE that names telapi doctor", e)
		}
	})
}

func TestRateLimitedProvider(t *testing.T) {
	limit := func(pause time.Duration) error { return &speech.RateLimitError{RetryAfter: pause, Err: errDown} }
	testkit.RunBubble(t, "the last provider is waited for", func(t *testing.T) {
		only := &provider{name: "only"}
		only.delay = func() {
			if only.calls.Load() == 1 {
				only.fail(limit(7 * time.Second))
			} else {
				only.fail(nil)
			}
		}
		start := time.Now()
		synthesize(t, newEnv(t).service(t, only), `{"text":"abc"}`)
		if waited := time.Since(start); waited != 7*time.Second || only.calls.Load() != 2 {
			t.Errorf("answered after %s and %d calls, want 7s and 2", waited, only.calls.Load())
		}
	})
	testkit.RunBubble(t, "another provider is used at once", func(t *testing.T) {
		e, primary, fallback := newEnv(t), (&provider{name: "primary"}).fail(limit(30*time.Second)), &provider{name: "fallback"}
		s, start := e.service(t, primary, fallback), time.Now()
		for n := range 3 {
			if r := synthesize(t, s, fmt.Sprintf(`{"text":"abc %d"}`, n)); r.Provider != "fallback" {
				t.Errorf("used %s, want fallback", r.Provider)
			}
		}
		if primary.calls.Load() != 1 || time.Since(start) != 0 {
			t.Errorf("%d calls of the primary in %s, want 1 at once", primary.calls.Load(), time.Since(start))
		}
		primary.fail(nil)
		e.advance(30 * time.Second)
		if r := synthesize(t, s, `{"text":"def"}`); r.Provider != "primary" {
			t.Errorf("after the pause: used %s, want primary", r.Provider)
		}
	})
	testkit.RunBubble(t, "a pause that is too long is reported", func(t *testing.T) {
		only := (&provider{name: "only"}).fail(limit(4 * time.Minute))
		s := newEnv(t).service(t, only)
		for range 2 {
			_, err := s.Synthesize(t.Context(), "t1", []byte(`{"text":"abc"}`))
			if e := fault.From(err); e.Code != fault.ServiceUnavailable || e.RetryAfter != 4*time.Minute || only.calls.Load() != 1 {
				t.Errorf("error %+v after %d calls, want SERVICE_UNAVAILABLE with the pause, after 1", e, only.calls.Load())
			}
		}
	})
}
