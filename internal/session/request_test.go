package session

import (
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/team"
	"telapi/test/testkit"
)

func TestICEServersHaveSessionCredentials(t *testing.T) {
	s := Session{ID: "ses_1", Mode: team.WebRTC, ExpiresAt: time.Unix(1_800_000_000, 0)}
	ice := ICEConfig{Secret: "north", Servers: []config.ICEServer{
		{URLs: []string{"stun:a"}},
		{URLs: []string{"turn:b", "turns:b"}},
		{URLs: []string{"turn:c"}, Username: "u", Credential: "p"},
	}}
	// printf 1800000000:ses_1 | openssl dgst -sha1 -hmac north -binary | base64
	want := `[{"urls":["stun:a"]},{"urls":["turn:b","turns:b"],"username":"1800000000:ses_1","credential":"Fyi7AQrQkE6ZPicuax9m0pEdt3c="},{"urls":["turn:c"],"username":"u","credential":"p"}]`
	if got, err := json.Marshal(ice.For(s.ID, s.ExpiresAt)); err != nil || string(got) != want {
		t.Errorf("ICE servers\n%s (error %v), want\n%s", got, err, want)
	}
}

func TestTokenRequestTimes(t *testing.T) {
	type times struct{ ttl, lifetime time.Duration } // in seconds
	for members, want := range map[string]times{
		``:                          {300, 3600},
		`"ttlSeconds":10`:           {10, 3600},
		`"ttlSeconds":3600`:         {3600, 3600},
		`"maxSessionSeconds":60`:    {60, 60},
		`"maxSessionSeconds":86400`: {300, 86400},
		`"maxSessionSeconds":301`:   {300, 301},
		`"ttlSeconds":null,"maxSessionSeconds":null`: {300, 3600},
	} {
		body := strings.Replace(`{"endpointId":"ep",`+members+`}`, ",}", "}", 1)
		now := time.Date(2026, 11, 15, 9, 30, 0, 250_000_000, time.UTC)
		s, _, err := parseTokenRequest(TokenRequest{Body: []byte(body)}, "t1", now)
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		issuedAt := now.Truncate(time.Second)
		if got := s.RedeemBy.Sub(issuedAt); got != want.ttl*time.Second {
			t.Errorf("%s: redeemable for %v, want %ds", body, got, want.ttl)
		}
		if got := s.ExpiresAt.Sub(issuedAt); got != want.lifetime*time.Second {
			t.Errorf("%s: expires after %v, want %ds", body, got, want.lifetime)
		}
	}
	for _, members := range []string{
		`"ttlSeconds":9`,
		`"ttlSeconds":3601,"maxSessionSeconds":86400`,
		`"maxSessionSeconds":59,"ttlSeconds":10`,
		`"maxSessionSeconds":86401`,
		`"ttlSeconds":61,"maxSessionSeconds":60`,
		`"ttlSeconds":40,"maxSessionSeconds":30`,
		`"ttlSeconds":3601,"maxSessionSeconds":60`,
	} {
		_, _, err := parseTokenRequest(TokenRequest{Body: []byte(`{"endpointId":"ep",` + members + `}`)}, "t1", time.Now())
		if len(testkit.Issues(err)) != 1 {
			t.Errorf("{%s}: error %v, want a validation error with one issue", members, err)
		}
	}
}

func TestInvalidTokenRequestReportsIssues(t *testing.T) {
	long := strings.Repeat("x", 256)
	for _, tt := range []struct {
		members string
		keys    []string
		want    string // path and code
	}{
		{`"metadata":{ "a": "` + long[:24] + `" }`, []string{long[:255]}, ""},
		{`"metadata":{ "a": "` + strings.Repeat(long, 16)[:4088] + `" }`, nil, ""}, // 4,096 bytes without the spaces
		{`"metadata":{"a":"` + strings.Repeat(long, 16)[:4089] + `"}`, nil, "/metadata too_large"},
		{`"metadata":null`, nil, ""},
		{`"metadata":"x"`, nil, "/metadata invalid_type"},
		{`"metadata":"` + strings.Repeat(long, 17) + `"`, nil, "/metadata invalid_type"},
		{`"identity":{"id":"a\nb"}`, nil, "/identity/id forbidden_character"},
		{`"identity":{"name":"a\nb"}`, nil, "/identity/name forbidden_character"},
		{`"mode":null`, []string{"a", "a"}, "/header/Idempotency-Key too_many"},
		{`"mode":null`, []string{long}, "/header/Idempotency-Key invalid_value"},
		{`"mode":null`, []string{""}, "/header/Idempotency-Key invalid_value"},
		{`"mode":null`, []string{"a b"}, "/header/Idempotency-Key invalid_value"},
		{`"duplicatePolicy":"keep"`, nil, "/duplicatePolicy invalid_value"},
		{`"mode":"fax","ttlSeconds":61,"maxSessionSeconds":60`, nil, "/mode invalid_value, /ttlSeconds too_large"},
	} {
		s, _, err := parseTokenRequest(TokenRequest{Body: []byte(`{"endpointId":"ep",` + tt.members + `}`), IdempotencyKeys: tt.keys}, "t1", time.Now())
		if got := strings.Join(testkit.Issues(err), ", "); got != tt.want || (err != nil) != (tt.want != "") {
			t.Errorf("%.40s with keys %.40q: error %v, want %q", tt.members, tt.keys, err, tt.want)
		}
		if metadata := s.Metadata; err == nil && strings.Contains(tt.members, "{") == (metadata == nil) {
			t.Errorf("%.40s: metadata %.40s", tt.members, metadata)
		}
	}
}

func TestDigestIgnoresFormatting(t *testing.T) {
	digest := func(body string) string {
		_, record, err := parseTokenRequest(TokenRequest{Body: []byte(body)}, "t1", time.Now())
		testkit.Must(t, err)
		return record.Digest
	}
	first := digest(`{"endpointId":"ep","metadata":{"n":9007199254740993,"s":"é"}}`)
	for body, same := range map[string]bool{
		"\n{ \"metadata\":{\"s\":\"\\u00e9\",\"n\":9007199254740993},\"endpointId\":\"ep\"}": true,
		`{"endpointId":"ep","metadata":{"n":9007199254740992,"s":"é"}}`:                      false,
		`{"endpointId":"ep","metadata":{"n":9007199254740993,"s":"é"},"more":1}`:             false,
		`{"endpointId":"ep","metadata":{"n":"9007199254740993","s":"é"}}`:                    false,
	} {
		if (digest(body) == first) != same {
			t.Errorf("%s: digest %s, the first has %s; want the same: %v", body, digest(body), first, same)
		}
	}
}

func FuzzTokenRequest(f *testing.F) {
	for _, body := range []string{
		`{"endpointId":"ep","mode":"chat","identity":{"id":"1","name":"A"},"ttlSeconds":10,"maxSessionSeconds":60,"duplicatePolicy":"reject","metadata":{"a":[1,{}]}}`,
		`{"endpointId":1,"identity":{"id":[]},"ttlSeconds":1e400,"metadata":"x"}`, `{"endpointId":"ep","metadata":{ "a" : 1 }}`, `null`, `[`, `{"a":1,"a":2}`, "{\"a\":\"\xff\"}", `{"metadata":{"x":"` + strings.Repeat("y", 5000) + `"}}`,
	} {
		f.Add([]byte(body), "key")
	}
	f.Fuzz(func(t *testing.T, body []byte, key string) {
		before := sha256.Sum256(body)
		s, record, err := parseTokenRequest(TokenRequest{Body: body, IdempotencyKeys: []string{key}}, "t1", time.Now())
		if sha256.Sum256(body) != before {
			t.Fatal("the body was modified")
		}
		if err != nil {
			if code := fault.From(err).Code; code != fault.Validation && code != fault.MalformedJSON {
				t.Fatalf("%q: error %v, want a validation or JSON error", body, err)
			}
			return
		}
		tokenTTL, lifetime, digest := s.RedeemBy.Sub(s.IssuedAt), s.ExpiresAt.Sub(s.IssuedAt), record.Digest
		for rule, holds := range map[string]bool{
			"endpoint is set":            s.EndpointID != "",
			"token TTL is in range":      tokenTTL >= 10*time.Second && tokenTTL <= lifetime,
			"lifetime is in range":       lifetime <= 24*time.Hour,
			"metadata is a small object": s.Metadata == nil || s.Metadata.Kind() == '{' && len(s.Metadata) <= 4096,
			"digest is a SHA-256":        len(digest) == 64,
			"idempotency key is kept":    record.Key == key,
			"duplicate policy is known":  s.DuplicatePolicy == Replace || s.DuplicatePolicy == Reject,
		} {
			if !holds {
				t.Fatalf("%q violates %q: %+v", body, rule, s)
			}
		}
		if _, again, err := parseTokenRequest(TokenRequest{Body: append([]byte(" \n"), body...), IdempotencyKeys: []string{key}}, "t1", time.Now()); err != nil || again.Digest != digest {
			t.Fatalf("leading white space changes the digest of %q: %v", body, err)
		}
	})
}
