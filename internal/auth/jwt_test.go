package auth_test

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"hash"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/redact"
)

var jwtNow = time.Unix(1_800_000_000, 0)

const (
	validHeader = `{"alg":"HS256","typ":"JWT"}`
	validClaims = `{"sub":"user-1","teamId":"tm_1","scopes":["READ_TEAM_APPS"],"exp":1800000060}`
)

func segment(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// signHMAC returns a token with any header and claims, valid or not.
func signHMAC(newHash func() hash.Hash, secret, header, claims string) string {
	signed := segment([]byte(header)) + "." + segment([]byte(claims))
	h := hmac.New(newHash, []byte(secret))
	h.Write([]byte(signed))
	return signed + "." + segment(h.Sum(nil))
}

func hs256(header, claims string) string {
	return signHMAC(sha256.New, testSecret.Reveal(), header, claims)
}

func newTestTokens() *auth.ConsoleTokens {
	return auth.NewConsoleTokens(auth.Secrets{Current: testSecret}, 24*time.Hour, func() time.Time { return jwtNow })
}

func TestConsoleTokenReturnsItsPrincipal(t *testing.T) {
	for name, tt := range map[string]struct {
		header, claims string
		want           auth.Principal
	}{
		"minimum":                 {validHeader, validClaims, auth.Principal{"tm_1", "user-1", []auth.Scope{auth.ReadTeamApps}, audit.Console}},
		"without typ":             {`{"alg":"HS256"}`, validClaims, auth.Principal{"tm_1", "user-1", []auth.Scope{auth.ReadTeamApps}, audit.Console}},
		"no scopes":               {validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800000060}`, auth.Principal{"t", "u", []auth.Scope{}, audit.Console}},
		"unknown scope":           {validHeader, `{"sub":"u","teamId":"t","scopes":["ADMIN"],"exp":1800000060}`, auth.Principal{"t", "u", []auth.Scope{"ADMIN"}, audit.Console}},
		"audience of the console": {validHeader, `{"aud":["console"],"sub":"u","teamId":"t","scopes":[],"exp":1800000060}`, auth.Principal{"t", "u", []auth.Scope{}, audit.Console}},
		"unknown claims":          {validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800000060,"role":{"a":[1]},"TeamID":"x"}`, auth.Principal{"t", "u", []auth.Scope{}, audit.Console}},
		"one second before exp":   {validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800000001}`, auth.Principal{"t", "u", []auth.Scope{}, audit.Console}},
		"nbf and iat now":         {validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800000060,"nbf":1800000000,"iat":1800000000}`, auth.Principal{"t", "u", []auth.Scope{}, audit.Console}},
		"console's clock ahead":   {validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800000060,"nbf":1800000002,"iat":1800000002}`, auth.Principal{"t", "u", []auth.Scope{}, audit.Console}},
		"console's clock behind":  {validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1799999999}`, auth.Principal{"t", "u", []auth.Scope{}, audit.Console}},
		"fractions of a second":   {validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800000060.25,"nbf":1799999999.5,"iat":1.7999999995e9}`, auth.Principal{"t", "u", []auth.Scope{}, audit.Console}},
		"nbf 0":                   {validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800000060,"nbf":0}`, auth.Principal{"t", "u", []auth.Scope{}, audit.Console}},
		"longest life":            {validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800086400,"iat":1800000000}`, auth.Principal{"t", "u", []auth.Scope{}, audit.Console}},
		"longest life, no iat":    {validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800086402}`, auth.Principal{"t", "u", []auth.Scope{}, audit.Console}},
		"sub is an email address": {validHeader, `{"sub":"zoë o'neil+x@example.com","teamId":"t","scopes":[],"exp":1800000060}`, auth.Principal{"t", "zoë o'neil+x@example.com", []auth.Scope{}, audit.Console}},
	} {
		t.Run(name, func(t *testing.T) {
			who, err := newTestTokens().Verify(hs256(tt.header, tt.claims))
			if err != nil {
				t.Fatal(err)
			}
			if who.TeamID != tt.want.TeamID || who.Subject != tt.want.Subject || !slices.Equal(who.Scopes, tt.want.Scopes) {
				t.Errorf("principal %+v, want %+v", who, tt.want)
			}
		})
	}
}

func TestForgedTokenIsRejected(t *testing.T) {
	good := hs256(validHeader, validClaims)
	parts := strings.Split(good, ".")
	withClaim := func(field string) string {
		return hs256(validHeader, strings.Replace(validClaims, `"exp"`, field+`,"exp"`, 1))
	}
	claims := func(json string) string { return hs256(validHeader, json) }

	for name, token := range map[string]string{
		// Signature and header.
		"alg none, no signature":             segment([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".",
		"alg none, good signature":           hs256(`{"alg":"none"}`, validClaims),
		"alg None":                           hs256(`{"alg":"None"}`, validClaims),
		"alg hs256":                          hs256(`{"alg":"hs256"}`, validClaims),
		"alg empty":                          hs256(`{"alg":""}`, validClaims),
		"alg missing":                        hs256(`{}`, validClaims),
		"alg null":                           hs256(`{"alg":null}`, validClaims),
		"alg a number":                       hs256(`{"alg":256}`, validClaims),
		"alg a list":                         hs256(`{"alg":["HS256"]}`, validClaims),
		"HS384 with our secret":              signHMAC(sha512.New384, testSecret.Reveal(), `{"alg":"HS384"}`, validClaims),
		"HS512 with our secret":              signHMAC(sha512.New, testSecret.Reveal(), `{"alg":"HS512"}`, validClaims),
		"RS256 with a foreign key":           rs256(t, validClaims),
		"alg RS256, signed with HMAC":        hs256(`{"alg":"RS256"}`, validClaims),
		"alg HS256, signed with HS512":       signHMAC(sha512.New, testSecret.Reveal(), validHeader, validClaims),
		"alg ES256, signed with HMAC":        hs256(`{"alg":"ES256"}`, validClaims),
		"another secret":                     signHMAC(sha256.New, strings.Repeat("x", 32), validHeader, validClaims),
		"empty secret":                       signHMAC(sha256.New, "", validHeader, validClaims),
		"secret and a line break":            signHMAC(sha256.New, testSecret.Reveal()+"\n", validHeader, validClaims),
		"kid refers to an empty file":        signHMAC(sha256.New, "", `{"alg":"HS256","kid":"/dev/null"}`, validClaims),
		"kid with SQL":                       signHMAC(sha256.New, "x", `{"alg":"HS256","kid":"' UNION SELECT 'x"}`, validClaims),
		"jwk contains the key":               signHMAC(sha256.New, "theirs", `{"alg":"HS256","jwk":{"kty":"oct","k":"dGhlaXJz"}}`, validClaims),
		"jku refers to another server":       signHMAC(sha256.New, "theirs", `{"alg":"HS256","jku":"https://attacker.example/keys"}`, validClaims),
		"x5u refers to another server":       signHMAC(sha256.New, "theirs", `{"alg":"HS256","x5u":"https://attacker.example/c"}`, validClaims),
		"crit requires an extension":         hs256(`{"alg":"HS256","crit":["exp2"],"exp2":1}`, validClaims),
		"crit requires an unencoded payload": hs256(`{"alg":"HS256","crit":["b64"],"b64":false}`, validClaims),
		"crit is empty":                      hs256(`{"alg":"HS256","crit":[]}`, validClaims),
		"crit is null":                       hs256(`{"alg":"HS256","crit":null}`, validClaims),
		"alg twice":                          hs256(`{"alg":"none","alg":"HS256"}`, validClaims),
		"alg twice, escaped":                 hs256(`{"\u0061lg":"none","alg":"HS256"}`, validClaims),
		"typ twice":                          hs256(`{"alg":"HS256","typ":"JWT","typ":"JWT"}`, validClaims),
		"no signature":                       parts[0] + "." + parts[1] + ".",
		"signature of other claims":          parts[0] + "." + parts[1] + "." + strings.Split(claims(`{}`), ".")[2],
		"claims changed":                     parts[0] + "." + segment([]byte(strings.Replace(validClaims, "tm_1", "tm_2", 1))) + "." + parts[2],
		"truncated signature":                good[:len(good)-1],
		"signature padded":                   good + "=",
		"signature with spare bits":          good[:len(good)-1] + spareBits(good[len(good)-1]),

		// Times.
		"expired":              claims(`{"sub":"u","teamId":"t","scopes":[],"exp":1799999998}`),
		"exp missing":          claims(`{"sub":"u","teamId":"t","scopes":[]}`),
		"exp null":             claims(`{"sub":"u","teamId":"t","scopes":[],"exp":null}`),
		"exp zero":             claims(`{"sub":"u","teamId":"t","scopes":[],"exp":0}`),
		"exp negative":         claims(`{"sub":"u","teamId":"t","scopes":[],"exp":-1}`),
		"exp a word":           claims(`{"sub":"u","teamId":"t","scopes":[],"exp":"never"}`),
		"exp a date":           claims(`{"sub":"u","teamId":"t","scopes":[],"exp":"2099-01-01T00:00:00Z"}`),
		"exp a list":           claims(`{"sub":"u","teamId":"t","scopes":[],"exp":[1800000060]}`),
		"exp exceeds float64":  claims(`{"sub":"u","teamId":"t","scopes":[],"exp":1e999}`),
		"exp a quoted number":  claims(`{"sub":"u","teamId":"t","scopes":[],"exp":"1800000060"}`),
		"exp overflows":        claims(`{"sub":"u","teamId":"t","scopes":[],"exp":1e300}`),
		"exp in a year 10000":  claims(`{"sub":"u","teamId":"t","scopes":[],"exp":253402300800}`),
		"exp too late":         claims(`{"sub":"u","teamId":"t","scopes":[],"exp":1800086403}`),
		"life too long":        claims(`{"sub":"u","teamId":"t","scopes":[],"iat":1799999999,"exp":1800086400}`),
		"old, exp extended":    claims(`{"sub":"u","teamId":"t","scopes":[],"iat":1799900000,"exp":1800000060}`),
		"exp in upper case":    claims(`{"sub":"u","teamId":"t","scopes":[],"EXP":1800000060}`),
		"not yet valid":        withClaim(`"nbf":1800000003`),
		"nbf a word":           withClaim(`"nbf":"now"`),
		"nbf null":             withClaim(`"nbf":null`),
		"nbf a quoted number":  withClaim(`"nbf":"1"`),
		"nbf negative":         withClaim(`"nbf":-1`),
		"nbf overflows":        withClaim(`"nbf":-1e300`),
		"iat null":             withClaim(`"iat":null`),
		"iat a quoted number":  withClaim(`"iat":"1799999999"`),
		"iat negative":         withClaim(`"iat":-1`),
		"iat overflows":        withClaim(`"iat":-1e300`),
		"iat a boolean":        withClaim(`"iat":true`),
		"issued in the future": withClaim(`"iat":1800000003`),
		"iat a word":           withClaim(`"iat":"now"`),

		// Audience.
		"session audience":              withClaim(`"aud":"telapi:session"`),
		"session audience in a list":    withClaim(`"aud":["telapi:session"]`),
		"session audience among others": withClaim(`"aud":["console","telapi:session"]`),
		"audience a number":             withClaim(`"aud":1`),
		"audience a list of numbers":    withClaim(`"aud":[1]`),
		"call token":                    claims(`{"iss":"telapi","aud":"telapi:session","sub":"s1","teamId":"t","endpointId":"e","mode":"chat","jti":"j","iat":1799999999,"exp":1800000060,"rdm":1800000060}`),
		"two audiences, the last valid": withClaim(`"aud":"telapi:session","aud":"console"`),

		// Subject, team and scopes.
		"sub missing":              claims(`{"teamId":"t","scopes":[],"exp":1800000060}`),
		"sub null":                 claims(`{"sub":null,"teamId":"t","scopes":[],"exp":1800000060}`),
		"sub empty":                claims(`{"sub":"","teamId":"t","scopes":[],"exp":1800000060}`),
		"sub blank":                claims(`{"sub":"  ","teamId":"t","scopes":[],"exp":1800000060}`),
		"sub a number":             claims(`{"sub":7,"teamId":"t","scopes":[],"exp":1800000060}`),
		"sub an object":            claims(`{"sub":{"id":7},"teamId":"t","scopes":[],"exp":1800000060}`),
		"sub with a line break":    claims(`{"sub":"u\nlevel=error","teamId":"t","scopes":[],"exp":1800000060}`),
		"sub with a terminal code": claims(`{"sub":"u\u001b[2J","teamId":"t","scopes":[],"exp":1800000060}`),
		"sub too long":             claims(`{"sub":"` + strings.Repeat("u", 257) + `","teamId":"t","scopes":[],"exp":1800000060}`),
		"teamId missing":           claims(`{"sub":"u","scopes":[],"exp":1800000060}`),
		"teamId null":              claims(`{"sub":"u","teamId":null,"scopes":[],"exp":1800000060}`),
		"teamId empty":             claims(`{"sub":"u","teamId":"","scopes":[],"exp":1800000060}`),
		"teamId a number":          claims(`{"sub":"u","teamId":1,"scopes":[],"exp":1800000060}`),
		"teamId with a brace":      claims(`{"sub":"u","teamId":"{tm_1}","scopes":[],"exp":1800000060}`),
		"teamId with a space":      claims(`{"sub":"u","teamId":"tm 1","scopes":[],"exp":1800000060}`),
		"teamId with a line break": claims(`{"sub":"u","teamId":"tm_1\n","scopes":[],"exp":1800000060}`),
		"teamId too long":          claims(`{"sub":"u","teamId":"` + strings.Repeat("t", 129) + `","scopes":[],"exp":1800000060}`),
		"teamId in another case":   claims(`{"sub":"u","TEAMID":"t","scopes":[],"exp":1800000060}`),
		"two teams":                claims(`{"sub":"u","teamId":"t","teamId":"x","scopes":[],"exp":1800000060}`),
		"scopes missing":           claims(`{"sub":"u","teamId":"t","exp":1800000060}`),
		"scopes null":              claims(`{"sub":"u","teamId":"t","scopes":null,"exp":1800000060}`),
		"scopes a string":          claims(`{"sub":"u","teamId":"t","scopes":"READ_TEAM_APPS","exp":1800000060}`),
		"scopes an object":         claims(`{"sub":"u","teamId":"t","scopes":{"0":"READ_TEAM_APPS"},"exp":1800000060}`),
		"scopes a list of numbers": claims(`{"sub":"u","teamId":"t","scopes":[1],"exp":1800000060}`),
		"scopes named scope":       claims(`{"sub":"u","teamId":"t","scope":"READ_TEAM_APPS","exp":1800000060}`),

		// Malformed tokens.
		"empty":                    "",
		"a word":                   "token",
		"only dots":                "..",
		"two segments":             parts[0] + "." + parts[1],
		"four segments":            good + "." + parts[2],
		"five segments":            parts[0] + "...." + parts[2],
		"not base64":               "!." + parts[1] + "." + parts[2],
		"standard base64":          strings.ReplaceAll(good, segment([]byte(validHeader)), "+/+/"),
		"header not JSON":          hs256(`alg`, validClaims),
		"header a list":            hs256(`[]`, validClaims),
		"header null":              hs256(`null`, validClaims),
		"claims not JSON":          claims(`sub`),
		"claims null":              claims(`null`),
		"claims a list":            claims(`[]`),
		"claims a string":          claims(`"sub"`),
		"claims twice":             claims(validClaims + validClaims),
		"claims not UTF-8":         claims("{\"sub\":\"\xff\",\"teamId\":\"t\",\"scopes\":[],\"exp\":1800000060}"),
		"claims nested too deep":   claims(`{"sub":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}`),
		"too long":                 withClaim(`"pad":"` + strings.Repeat("x", auth.MaxTokenBytes) + `"`),
		"a megabyte of dots":       strings.Repeat(".", 1<<20),
		"surrounded by spaces":     " " + good + " ",
		"line break in the middle": parts[0] + "." + parts[1] + "\n." + parts[2],
	} {
		t.Run(name, func(t *testing.T) {
			who, err := newTestTokens().Verify(token)
			if err == nil {
				t.Fatalf("accepted as %+v", who)
			}
			if !fault.Is(err, fault.Unauthorized) {
				t.Errorf("error %v, want %s", err, fault.Unauthorized)
			}
			if !wellSigned(token) {
				wantUnauthorized(t, err)
			}
			if who.TeamID != "" || who.Subject != "" || who.Scopes != nil {
				t.Errorf("Verify returned principal %+v with the error", who)
			}
			if strings.Contains(err.Error(), testSecret.Reveal()) {
				t.Error("the error contains the signing secret")
			}
		})
	}
}

// wellSigned reports whether the last part of the token is its signature.
func wellSigned(token string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	h := hmac.New(sha256.New, []byte(testSecret.Reveal()))
	h.Write([]byte(parts[0] + "." + parts[1]))
	return parts[2] == segment(h.Sum(nil))
}

func TestErrorExplainsWellSignedToken(t *testing.T) {
	for claims, want := range map[string]string{
		`{"sub":"u","teamId":"t","scopes":[],"exp":1799999998}`:                        "the JWT has expired (exp). Sign a new one.",
		`{"sub":"u","teamId":"t","scopes":[],"exp":1800086403}`:                        "it lives longer than JWT_MAX_AGE (24h0m0s). Sign one with an earlier exp.",
		`{"sub":"u","teamId":"t","scopes":[],"iat":1799900000,"exp":1800000060}`:       "it lives longer than JWT_MAX_AGE",
		`{"sub":"u","teamId":"t","scopes":[],"nbf":1800000003,"exp":1800000060}`:       "nbf or iat is in the future",
		`{"sub":"u","teamId":"t","scopes":[],"iat":1800000003,"exp":1800000060}`:       "nbf or iat is in the future",
		`{"sub":"u","teamId":"t","scopes":[]}`:                                         "the claim exp is missing",
		`{"teamId":"t","scopes":[],"exp":1800000060}`:                                  "the claim sub is missing",
		`{"sub":"u","teamId":"a b","scopes":[],"exp":1800000060}`:                      "the claim teamId is missing or invalid",
		`{"sub":"u","teamId":"t","exp":1800000060}`:                                    "the claim scopes is missing",
		`{"sub":"u","teamId":"t","scopes":[],"exp":1800000060,"aud":"telapi:session"}`: "aud is the audience of call tokens",
	} {
		_, err := newTestTokens().Verify(hs256(validHeader, claims))
		if f := fault.From(err); f.Code != fault.Unauthorized || f.Cause == nil || !strings.HasPrefix(f.Message, "The signature of the console JWT is valid, but "+want) {
			t.Errorf("%s: %s %q, want %s with %q", claims, f.Code, f.Message, fault.Unauthorized, want)
		}
		// Who doesn't know the secret learns nothing.
		_, err = newTestTokens().Verify(signHMAC(sha256.New, strings.Repeat("x", 32), validHeader, claims))
		wantUnauthorized(t, err)
	}
}

func TestUnknownTeamIsRejected(t *testing.T) {
	registry := prometheus.NewRegistry()
	a := auth.NewAuthenticator(nil, nil, auth.NewTokenFailures(registry), discard(), time.Now)
	if err := a.UnknownTeam(auth.Principal{TeamID: "console", Scopes: []auth.Scope{auth.ManagePlatform}}); err != nil {
		t.Errorf("administrator of the platform: %v", err)
	}
	err := a.UnknownTeam(auth.Principal{TeamID: "tm_2", Scopes: []auth.Scope{auth.ManageTeam}})
	if f := fault.From(err); f.Code != fault.Unauthorized || !strings.Contains(f.Message, `its teamId "tm_2" is not a team of this service`) {
		t.Errorf("error %v, want %s with the team", err, fault.Unauthorized)
	}
	if n := metrics(t, registry)["telapi_jwt_failures_total claims console"]; n != 1 {
		t.Errorf("%v failures are counted, want 1", n)
	}
}

func rs256(t *testing.T, claims string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	signed := segment([]byte(`{"alg":"RS256"}`)) + "." + segment([]byte(claims))
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + segment(signature)
}

// spareBits changes the bits of the last base64 character that are not part of the
// signature. A lax decoder ignores them, so that one token has several spellings.
func spareBits(last byte) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return string(alphabet[strings.IndexByte(alphabet, last)^1])
}

func TestTimeInMillisecondsIsReported(t *testing.T) {
	_, err := newTestTokens().Verify(hs256(validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800000060000}`))
	if cause := fault.From(err).Cause; cause == nil || !strings.Contains(cause.Error(), "/exp") || !strings.Contains(cause.Error(), "1800000060000 is too large: use Unix seconds") {
		t.Errorf("cause %v, want the claim, its value and the unit", cause)
	}
}

func TestBearerParsesAuthorizationHeader(t *testing.T) {
	a := newTestAuthenticator(nil, func() time.Time { return jwtNow })
	good := hs256(validHeader, validClaims)
	for _, tt := range []struct {
		name, header string
		accepted     bool
	}{
		{"usual spelling", "Bearer " + good, true},
		{"lower-case scheme", "bearer " + good, true},
		{"upper-case scheme, two spaces", "BEARER  " + good, true},
		{"no scheme", good, false},
		{"only a scheme", "Bearer", false},
		{"no token", "Bearer ", false},
		{"empty", "", false},
		{"Basic", "Basic " + good, false},
		{"another scheme", "Token " + good, false},
		{"scheme twice", "Bearer Bearer " + good, false},
		{"two tokens", "Bearer " + good + ", " + good, false},
		{"two tokens, one scheme", "Bearer " + good + " " + good, false},
		{"tab", "Bearer\t" + good, false},
		{"an API key", "Bearer tk_abc_0123456789", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			who, err := a.Bearer(tt.header)
			if tt.accepted {
				if err != nil || who.TeamID != "tm_1" {
					t.Errorf("principal %+v and error %v, want team tm_1", who, err)
				}
				return
			}
			wantUnauthorized(t, err)
		})
	}
}

func TestTokenExpiresByInjectedClock(t *testing.T) {
	now := jwtNow
	tokens := auth.NewConsoleTokens(auth.Secrets{Current: testSecret}, time.Hour, func() time.Time { return now })
	token := hs256(validHeader, validClaims)
	if _, err := tokens.Verify(token); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute + auth.MaxSkew)
	_, err := tokens.Verify(token)
	if !errors.Is(err, jwt.ErrTokenExpired) {
		t.Errorf("error %v, want %v", err, jwt.ErrTokenExpired)
	}
}

func TestTokenSignedWithPreviousSecretIsAccepted(t *testing.T) {
	const previous = redact.Secret("fedcba9876543210fedcba9876543210")
	token := signHMAC(sha256.New, previous.Reveal(), validHeader, validClaims)
	for _, tt := range []struct {
		name     string
		secrets  auth.Secrets
		accepted bool
	}{
		{"previous secret configured", auth.Secrets{testSecret, previous}, true},
		{"previous secret removed", auth.Secrets{Current: testSecret}, false},
		{"no secrets", auth.Secrets{}, false},
	} {
		if _, err := auth.NewConsoleTokens(tt.secrets, time.Hour, func() time.Time { return jwtNow }).Verify(token); (err == nil) != tt.accepted {
			t.Errorf("%s: error %v, want accepted %v", tt.name, err, tt.accepted)
		}
	}
}
