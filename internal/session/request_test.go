package session

import (
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/config"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
)

func TestICEServersHaveSessionCredentials(t *testing.T) {
	s := Session{ID: "ses_1", Mode: endpoint.WebRTC, ExpiresAt: time.Unix(1_800_000_000, 0)}
	ice := ICEConfig{Secret: "north", Servers: []config.ICEServer{
		{URLs: []string{"stun:a"}},
		{URLs: []string{"turn:b", "turns:b"}},
		{URLs: []string{"turn:c"}, Username: "u", Credential: "p"},
	}}
	// printf 1800000000:ses_1 | openssl dgst -sha1 -hmac north -binary | base64
	want := `[{"urls":["stun:a"]},{"urls":["turn:b","turns:b"],"username":"1800000000:ses_1","credential":"Fyi7AQrQkE6ZPicuax9m0pEdt3c="},{"urls":["turn:c"],"username":"u","credential":"p"}]`
	if got, err := json.Marshal(ice.servers(s)); err != nil || string(got) != want {
		t.Errorf("got\n%s, want\n%s, %v", got, want, err)
	}
}

func TestTokenRequestTimes(t *testing.T) {
	for body, want := range map[string][2]int{
		``:                          {300, 3600},
		`"ttlSeconds":10`:           {10, 3600},
		`"ttlSeconds":3600`:         {3600, 3600},
		`"maxSessionSeconds":60`:    {60, 60},
		`"maxSessionSeconds":86400`: {300, 86400},
		`"maxSessionSeconds":301`:   {300, 301},
		`"ttlSeconds":null,"maxSessionSeconds":null`: {300, 3600},
	} {
		p, err := parseRequest([]byte(strings.Replace(`{"endpointId":"ep",`+body+`}`, ",}", "}", 1)), nil)
		now := time.Date(2026, 11, 15, 9, 30, 0, 250_000_000, time.UTC)
		s, issued := p.newSession("t1", now), now.Truncate(time.Second)
		if err != nil || s.RedeemBy != issued.Add(time.Duration(want[0])*time.Second) || s.ExpiresAt != issued.Add(time.Duration(want[1])*time.Second) {
			t.Errorf("{%s}: redeem by %v, expires %v, %v", body, s.RedeemBy, s.ExpiresAt, err)
		}
	}
	for _, body := range []string{`"ttlSeconds":9`, `"ttlSeconds":3601,"maxSessionSeconds":86400`, `"maxSessionSeconds":59,"ttlSeconds":10`, `"maxSessionSeconds":86401`, `"ttlSeconds":61,"maxSessionSeconds":60`} {
		_, err := parseRequest([]byte(`{"endpointId":"ep",`+body+`}`), nil)
		if fault.From(err).Code != fault.Validation || len(fault.From(err).Details.([]fault.Issue)) != 1 {
			t.Errorf("{%s}: %v", body, err)
		}
	}
}

func TestDigestIgnoresFormatting(t *testing.T) {
	digest := func(body string) string {
		p, err := parseRequest([]byte(body), nil)
		if err != nil {
			t.Fatal(err)
		}
		return p.idempotency.Digest
	}
	first := digest(`{"endpointId":"ep","metadata":{"n":9007199254740993,"s":"é"}}`)
	for body, same := range map[string]bool{
		"\n{ \"metadata\":{\"s\":\"\\u00e9\",\"n\":9007199254740993},\"endpointId\":\"ep\"}": true,
		`{"endpointId":"ep","metadata":{"n":9007199254740992,"s":"é"}}`:                      false,
		`{"endpointId":"ep","metadata":{"n":9007199254740993,"s":"é"},"more":1}`:             false,
		`{"endpointId":"ep","metadata":{"n":"9007199254740993","s":"é"}}`:                    false,
	} {
		if (digest(body) == first) != same {
			t.Errorf("%s: same digest: want %v", body, same)
		}
	}
}

func FuzzRequest(f *testing.F) {
	for _, body := range []string{
		`{"endpointId":"ep","mode":"chat","identity":{"id":"1","name":"A"},"ttlSeconds":10,"maxSessionSeconds":60,"duplicatePolicy":"reject","metadata":{"a":[1,{}]}}`,
		`{"endpointId":1,"identity":{"id":[]},"ttlSeconds":1e400,"metadata":"x"}`, `null`, `[`, `{"a":1,"a":2}`, "{\"a\":\"\xff\"}", `{"metadata":{"x":"` + strings.Repeat("y", 5000) + `"}}`,
	} {
		f.Add([]byte(body), "key")
	}
	f.Fuzz(func(t *testing.T, body []byte, key string) {
		before := sha256.Sum256(body)
		p, err := parseRequest(body, []string{key})
		if sha256.Sum256(body) != before {
			t.Fatal("the body was modified")
		}
		if err != nil {
			if code := fault.From(err).Code; code != fault.Validation && code != fault.MalformedJSON {
				t.Fatalf("%q: %v", body, err)
			}
			return
		}
		s := p.session
		if s.EndpointID == "" || p.tokenTTL < 10*time.Second || p.tokenTTL > p.lifetime || p.lifetime > 24*time.Hour || len(s.Metadata) > 4096 || s.Metadata != nil && s.Metadata.Kind() != '{' ||
			len(p.idempotency.Digest) != 64 || p.idempotency.Key != key || s.DuplicatePolicy != Replace && s.DuplicatePolicy != Reject {
			t.Fatalf("%q gave %+v", body, p)
		}
		if again, err := parseRequest(append([]byte(" \n"), body...), []string{key}); err != nil || again.idempotency.Digest != p.idempotency.Digest {
			t.Fatalf("leading white space changes the digest of %q: %v", body, err)
		}
	})
}
