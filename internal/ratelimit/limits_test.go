package ratelimit

import (
	"slices"
	"testing"

	"telapi/internal/fault"
)

func TestParseLimits(t *testing.T) {
	changed := DefaultLimits()
	changed.Tiers.API = Limit{10, 1000}
	for name, tc := range map[string]struct {
		value string
		want  Limits
	}{
		"no tier: defaults":                  {`{"tiers":{}}`, DefaultLimits()},
		"one tier: the others have defaults": {` {"tiers": {"api":{"windowMs":1000,"max":10}}} `, changed},
		"output of JSON":                     {string(changed.JSON()), changed},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseLimits([]byte(tc.value))
			if err != nil || got != tc.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
}

func TestWithReplacesOneTier(t *testing.T) {
	got, err := DefaultLimits().With(Auth, Limit{1, 2})
	if err != nil || got.Tiers.Auth != (Limit{1, 2}) || got.Tiers.API != DefaultLimits().Tiers.API {
		t.Errorf("With(Auth) returned %+v, %v, want only tier auth replaced", got, err)
	}
	if _, err := DefaultLimits().With("unknown", Limit{}); !fault.Is(err, fault.Validation) {
		t.Errorf("unknown tier: error %v, want %s", err, fault.Validation)
	}
}

func TestParseLimitsReportsAllIssues(t *testing.T) {
	for value, want := range map[string][]string{
		`[]`:                              {" invalid_type"},
		`null`:                            {"/tiers required"},
		`{}`:                              {"/tiers required"},
		`{"tiers":null}`:                  {"/tiers required"},
		`{"tiers":{},"Tiers":1,"a/b":1}`:  {"/Tiers unknown_key", "/a~1b unknown_key"},
		`{"tiers":{"api":null,"API":{}}}`: {"/tiers/API unknown_key", "/tiers/api/max required", "/tiers/api/windowMs required"},
		`{"tiers":{"api":{}}}`:            {"/tiers/api/max required", "/tiers/api/windowMs required"},
		`{"tiers":{"api":{"max":0,"windowMs":999}}}`:                           {"/tiers/api/max too_small", "/tiers/api/windowMs too_small"},
		`{"tiers":{"api":{"max":1000000001,"windowMs":86400001}}}`:             {"/tiers/api/max too_large", "/tiers/api/windowMs too_large"},
		`{"tiers":{"api":{"max":"10","windowMs":1e2}}}`:                        {"/tiers/api/max invalid_type", "/tiers/api/windowMs too_small"},
		`{"tiers":{"auth":{"max":1.5,"windowMs":99999999999999999999,"x":1}}}`: {"/tiers/auth/max invalid_type", "/tiers/auth/windowMs invalid_type", "/tiers/auth/x unknown_key"},
		`{"tiers":{"api":{"max":null,"windowMs":true}}}`:                       {"/tiers/api/windowMs invalid_type", "/tiers/api/max required"},
	} {
		t.Run(value, func(t *testing.T) {
			_, err := ParseLimits([]byte(value))
			if !fault.Is(err, fault.Validation) {
				t.Fatalf("error %v, want %s", err, fault.Validation)
			}
			var got []string
			for _, issue := range fault.From(err).Details.([]fault.Issue) {
				got = append(got, issue.Path+" "+issue.Code)
			}
			if !slices.Equal(got, want) {
				t.Errorf("got issues %q, want %q", got, want)
			}
		})
	}
}

func TestParseLimitsRejectsInvalidJSON(t *testing.T) {
	for _, value := range []string{``, `{`, `{"tiers":{}}{}`, `{"tiers":{},"tiers":{}}`, "{\"tiers\":{\"\xff\":1}}"} {
		if _, err := ParseLimits([]byte(value)); !fault.Is(err, fault.MalformedJSON) {
			t.Errorf("%q: error %v, want %s", value, err, fault.MalformedJSON)
		}
	}
}

func FuzzParseLimits(f *testing.F) {
	f.Add(DefaultLimits().JSON())
	f.Add([]byte(`{"tiers":{"api":{"max":-0,"windowMs":1000}}}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		limits, err := ParseLimits(value)
		if err != nil {
			if code := fault.From(err).Code; code != fault.Validation && code != fault.MalformedJSON {
				t.Fatalf("error %v, want %s or %s", err, fault.Validation, fault.MalformedJSON)
			}
			return
		}
		if again, err := ParseLimits(limits.JSON()); err != nil || again != limits {
			t.Fatalf("%+v parsed again is %+v, %v", limits, again, err)
		}
	})
}
