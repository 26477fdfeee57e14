package auth_test

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"hash"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/test/testkit"
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
	const rest = `"sub":"u","teamId":"t","scopes":[]`
	other := auth.Principal{TeamID: "t", Subject: "u"}
	for _, tt := range []struct {
		header, claims string
		want           auth.Principal
	}{
		{validHeader, validClaims, auth.Principal{"tm_1", "user-1", []auth.Scope{auth.ReadTeamApps}, audit.Console}},
		{`{"alg":"HS256"}`, validClaims, auth.Principal{"tm_1", "user-1", []auth.Scope{auth.ReadTeamApps}, audit.Console}},
		{validHeader, `{"sub":"u","teamId":"t","scopes":["ADMIN"],"exp":1800000060}`, auth.Principal{"t", "u", []auth.Scope{"ADMIN"}, audit.Console}},
		{validHeader, `{"sub":"zoë o'neil+x@example.com","teamId":"t","scopes":[],"exp":1800000060}`, auth.Principal{TeamID: "t", Subject: "zoë o'neil+x@example.com"}},
		{validHeader, `{"aud":["console"],` + rest + `,"exp":1800000060}`, other},
		{validHeader, `{` + rest + `,"exp":1800000060,"role":{"a":[1]},"TeamID":"x"}`, other}, // unknown claims
		{validHeader, `{` + rest + `,"exp":1800000001}`, other},
		{validHeader, `{` + rest + `,"exp":1800000060,"nbf":1800000000,"iat":1800000000}`, other},
		{validHeader, `{` + rest + `,"exp":1800000060,"nbf":1800000002,"iat":1800000002}`, other}, // the console's clock is ahead
		{validHeader, `{` + rest + `,"exp":1799999999}`, other},                                   // or behind
		{validHeader, `{` + rest + `,"exp":1800000060.25,"nbf":1799999999.5,"iat":1.7999999995e9}`, other},
		{validHeader, `{` + rest + `,"exp":1800000060,"nbf":0}`, other},
		{validHeader, `{` + rest + `,"exp":1800086400,"iat":1800000000}`, other}, // the longest life
		{validHeader, `{` + rest + `,"exp":1800086402}`, other},                  // without iat
	} {
		who, err := newTestTokens().Verify(hs256(tt.header, tt.claims))
		if err != nil || who.TeamID != tt.want.TeamID || who.Subject != tt.want.Subject || !slices.Equal(who.Scopes, tt.want.Scopes) {
			t.Errorf("%s %s: principal %+v and error %v, want %+v", tt.header, tt.claims, who, err, tt.want)
		}
	}
}

func TestForgedTokenIsRejected(t *testing.T) {
	good := hs256(validHeader, validClaims)
	parts := strings.Split(good, ".")
	claims := func(json string) string { return hs256(validHeader, json) }
	signed := func(newHash func() hash.Hash, secret, header string) string {
		return signHMAC(newHash, secret, header, validClaims)
	}
	secret := testSecret.Reveal()
	tokens := map[string]string{
		"alg none, no signature":       segment([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".",
		"HS384 with our secret":        signed(sha512.New384, secret, `{"alg":"HS384"}`),
		"HS512 with our secret":        signed(sha512.New, secret, `{"alg":"HS512"}`),
		"RS256 with a foreign key":     rs256(t, validClaims),
		"alg HS256, signed with HS512": signed(sha512.New, secret, validHeader),
		"another secret":               signed(sha256.New, strings.Repeat("x", 32), validHeader),
		"empty secret":                 signed(sha256.New, "", validHeader),
		"secret and a line break":      signed(sha256.New, secret+"\n", validHeader),
		"kid refers to an empty file":  signed(sha256.New, "", `{"alg":"HS256","kid":"/dev/null"}`),
		"kid with SQL":                 signed(sha256.New, "x", `{"alg":"HS256","kid":"' UNION SELECT 'x"}`),
		"jwk contains the key":         signed(sha256.New, "theirs", `{"alg":"HS256","jwk":{"kty":"oct","k":"dGhlaXJz"}}`),
		"jku refers to another server": signed(sha256.New, "theirs", `{"alg":"HS256","jku":"https://attacker.example/keys"}`),
		"x5u refers to another server": signed(sha256.New, "theirs", `{"alg":"HS256","x5u":"https://attacker.example/c"}`),
		"no signature":                 parts[0] + "." + parts[1] + ".",
		"signature of other claims":    parts[0] + "." + parts[1] + "." + strings.Split(claims(`{}`), ".")[2],
		"claims changed":               parts[0] + "." + segment([]byte(strings.Replace(validClaims, "tm_1", "tm_2", 1))) + "." + parts[2],
		"truncated signature":          good[:len(good)-1],
		"signature padded":             good + "=",
		"signature with spare bits":    good[:len(good)-1] + spareBits(good[len(good)-1]),
		"life too long":                claims(`{"sub":"u","teamId":"t","scopes":[],"iat":1799999999,"exp":1800086400}`),
		"call token":                   claims(`{"iss":"telapi","aud":"telapi:session","sub":"s1","teamId":"t","endpointId":"e","mode":"chat","jti":"j","iat":1799999999,"exp":1800000060,"rdm":1800000060}`),
		"four segments":                good + "." + parts[2],
		"standard base64":              strings.ReplaceAll(good, segment([]byte(validHeader)), "+/+/"),
		"a megabyte of dots":           strings.Repeat(".", 1<<20),
		"surrounded by spaces":         " " + good + " ",
		"line break in the middle":     parts[0] + "." + parts[1] + "\n." + parts[2],
	}
	for _, token := range []string{"", "token", "..", parts[0] + "." + parts[1], parts[0] + "...." + parts[2], "!." + parts[1] + "." + parts[2]} {
		tokens["malformed "+token] = token
	}
	for _, header := range []string{
		`{"alg":"none"}`, `{"alg":"None"}`, `{"alg":"hs256"}`, `{"alg":""}`, `{}`, `{"alg":null}`, `{"alg":256}`, `{"alg":["HS256"]}`, `{"alg":"RS256"}`, `{"alg":"ES256"}`,
		`{"alg":"HS256","crit":["exp2"],"exp2":1}`, `{"alg":"HS256","crit":["b64"],"b64":false}`, `{"alg":"HS256","crit":[]}`, `{"alg":"HS256","crit":null}`,
		`{"alg":"none","alg":"HS256"}`, `{"\u0061lg":"none","alg":"HS256"}`, `{"alg":"HS256","typ":"JWT","typ":"JWT"}`, `alg`, `[]`, `null`,
	} {
		tokens["header "+header] = hs256(header, validClaims)
	}
	for _, text := range []string{
		`sub`, `null`, `[]`, `"sub"`, validClaims + validClaims, "{\"sub\":\"\xff\",\"teamId\":\"t\",\"scopes\":[],\"exp\":1800000060}",
		`{"sub":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}`, `{"sub":"u","teamId":"t","teamId":"x","scopes":[],"exp":1800000060}`,
		`{"sub":"u","teamId":"t","scopes":[],"EXP":1800000060}`, `{"sub":"u","TEAMID":"t","scopes":[],"exp":1800000060}`, `{"sub":"u","teamId":"t","scope":"READ_TEAM_APPS","exp":1800000060}`,
	} {
		tokens["claims "+text] = claims(text)
	}
	for claim, values := range map[string]string{ // the other claims are valid
		"exp":    `missing null 0 -1 1799999998 "never" "2099-01-01T00:00:00Z" [1800000060] 1e999 "1800000060" 1e300 253402300800 1800086403`,
		"nbf":    `null 1800000003 "now" "1" -1 -1e300`,
		"iat":    `null 1799900000 1800000003 "now" "1799999999" -1 -1e300 true`,
		"aud":    `1 [1] "telapi:session" ["telapi:session"] ["console","telapi:session"] "telapi:session","aud":"console"`,
		"sub":    `missing null "" "\u0020\u0020" 7 {"id":7} "u\nlevel=error" "u\u001b[2J" "` + strings.Repeat("u", 257) + `"`,
		"teamId": `missing null "" 1 "{tm_1}" "tm\u00201" "tm_1\n" "` + strings.Repeat("t", 129) + `"`,
		"scopes": `missing null "READ_TEAM_APPS" {"0":"READ_TEAM_APPS"} [1]`,
		"pad":    `"` + strings.Repeat("x", auth.MaxTokenBytes) + `"`,
	} {
		for value := range strings.FieldsSeq(values) {
			members := map[string]string{"sub": `"u"`, "teamId": `"t"`, "scopes": `[]`, "exp": `1800000060`}
			if members[claim] = value; value == "missing" {
				delete(members, claim)
			}
			var list []string
			for name, raw := range members {
				list = append(list, fmt.Sprintf("%q:%s", name, raw))
			}
			tokens[claim+" "+value] = claims("{" + strings.Join(list, ",") + "}")
		}
	}
	for name, token := range tokens {
		who, err := newTestTokens().Verify(token)
		if !fault.Is(err, fault.Unauthorized) || who.TeamID != "" || who.Subject != "" || who.Scopes != nil {
			t.Errorf("%.100s: principal %+v and error %v, want only %s", name, who, err, fault.Unauthorized)
		}
		if !wellSigned(token) {
			wantUnauthorized(t, err)
		}
		if strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("%.100s: the error contains the signing secret", name)
		}
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
		wantUnauthorized(t, testkit.ErrorOf(newTestTokens().Verify(signHMAC(sha256.New, strings.Repeat("x", 32), validHeader, claims))))
	}
}

func TestUnknownTeamIsRejected(t *testing.T) {
	registry := prometheus.NewRegistry()
	a := auth.NewAuthenticator(nil, nil, auth.NewTokenFailures(registry), discard(), time.Now)
	testkit.NoError(t, "administrator of the platform", a.CheckTeam(auth.Principal{TeamID: "console", Scopes: []auth.Scope{auth.ManagePlatform}}, false, false))
	err := a.CheckTeam(auth.Principal{TeamID: "tm_2", Scopes: []auth.Scope{auth.ManageTeam}}, false, false)
	if f := fault.From(err); f.Code != fault.Unauthorized || !strings.Contains(f.Message, `its teamId "tm_2" is not a team of this service`) {
		t.Errorf("error %v, want %s with the team", err, fault.Unauthorized)
	}
	testkit.Equal(t, "failures are counted", testkit.Metrics(t, registry)["telapi_jwt_failures_total claims console"], 1)
	testkit.NoError(t, "existing team", a.CheckTeam(auth.Principal{TeamID: "tm_1"}, true, false))
}

func TestDisabledTeamIsRejected(t *testing.T) {
	a := auth.NewAuthenticator(nil, nil, nil, discard(), time.Now)
	for _, s := range []auth.Scope{auth.ManageTeam, auth.ManagePlatform} {
		wantUnauthorized(t, a.CheckTeam(auth.Principal{TeamID: "tm_1", Scopes: []auth.Scope{s}}, true, true))
	}
}

func rs256(t *testing.T, claims string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	testkit.Must(t, err)
	signed := segment([]byte(`{"alg":"RS256"}`)) + "." + segment([]byte(claims))
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	testkit.Must(t, err)
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
	for _, header := range []string{"Bearer " + good, "bearer " + good, "BEARER  " + good} {
		if who, err := a.Bearer(header); err != nil || who.TeamID != "tm_1" {
			t.Errorf("%s: principal %+v and error %v, want team tm_1", header, who, err)
		}
	}
	for _, header := range []string{
		"", good, "Bearer", "Bearer ", "Basic " + good, "Token " + good, "Bearer Bearer " + good, "Bearer " + good + ", " + good, "Bearer " + good + " " + good,
		"Bearer\t" + good, "Bearer tk_abc_0123456789",
	} {
		wantUnauthorized(t, testkit.ErrorOf(a.Bearer(header)))
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
