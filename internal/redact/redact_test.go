package redact

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"telapi/test/testkit"
)

const (
	callbackToken = "q8Zf3mN0vXc1B7yTtQe5KpLrS2wUoJ9hGdAi4EnRk_M"
	sampleJWT     = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.s5k3v-6Yd_x"
)

func TestSecretIsNotPrinted(t *testing.T) {
	s := Secret("hunter2")
	encoded, _ := json.Marshal(map[string]any{"s": s})
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "s", s)
	for _, printed := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s %q", s, s, s, s, s), string(encoded), log.String()} {
		if strings.Contains(printed, "hunter2") {
			t.Errorf("secret in output: %s", printed)
		}
	}
	if s.Reveal() != "hunter2" || s.Fingerprint() == Secret("hunter3").Fingerprint() {
		t.Error("Reveal does not return the value, or Fingerprint does not depend on it")
	}
}

// Consoles in other languages compute the same fingerprint:
// printf telapi-fingerprint | openssl dgst -sha256 -hmac "$JWT_SECRET"
func TestFingerprintIsTheDocumentedHMAC(t *testing.T) {
	for secret, want := range map[Secret]string{"0123456789abcdef0123456789abcdef": "8bdf9ecf", "": "none"} {
		testkit.Equal(t, "fingerprint", secret.Fingerprint(), want)
	}
}

func TestCredentialsAreRedacted(t *testing.T) {
	password := "pa/ss"
	_, parseErr := url.Parse(fmt.Sprintf("postgres://app:%s@db/telapi", password))
	for in, want := range map[string]string{
		"key tk_ab12_" + callbackToken + " revoked":          "key tk_ab12_[redacted] revoked",
		"X-API-Key: tk_ab12_s3cret":                          "X-API-Key: tk_ab12_[redacted]",
		`{"apiKey":"tk_a1_x-y_z","n":1}`:                     `{"apiKey":"tk_a1_[redacted]","n":1}`,
		"POST /api/v1/webhooks/bot/cbt_" + callbackToken:     "POST /api/v1/webhooks/bot/cbt_[redacted]",
		"two: tk_a_b,tk_c_d":                                 "two: tk_a_[redacted],tk_c_[redacted]",
		"jwt " + sampleJWT + " expired":                      "jwt [redacted] expired",
		"Sec-WebSocket-Protocol: telapi.bearer." + sampleJWT: "Sec-WebSocket-Protocol: telapi.bearer.[redacted]",
		"Authorization: Bearer abc123":                       "Authorization: Bearer [redacted]",
		"authorization: bearer  hunter":                      "authorization: bearer  [redacted]",
		"Authorization: Basic dXNlcjpwYXNzd29yZDEy":          "Authorization: Basic [redacted]",
		"Authorization: Basic dTpw==":                        "Authorization: Basic [redacted]",
		`map[Authorization:[Bearer abc] X:[1]]`:              `map[Authorization:[[redacted] [redacted] X:[1]]`,
		"GET /ws/session?token=abc&streamId=1":               "GET /ws/session?token=[redacted]&streamId=1",
		"/x?a=1&access_token=abc#f":                          "/x?a=1&access_token=[redacted]",
		"next=%2Fws%3Ftoken%3Dabc":                           "next=%2Fws%3Ftoken%3D[redacted]",
		"host=db password=hunter2 user=app":                  "host=db password=[redacted] user=app",
		"host=db password='a b' user=app":                    "host=db password='[redacted]' user=app",
		"password: hunter2":                                  "password: [redacted]",
		"JWT_SECRET = abc":                                   "JWT_SECRET = [redacted]",
		`{"token":"a b\"c","x":"y"}`:                         `{"token":"[redacted]","x":"y"}`,
		`{"token": "abc"}`:                                   `{"token": "[redacted]"}`,
		`body {\"password\":\"abc\",\"x\":1}`:                `body {\"password\":\"[redacted]",\"x\":1}`,
		"{Token:abc Password:def}":                           "{Token:[redacted] Password:[redacted]",
		"callback token " + callbackToken + " unknown":       "callback token [redacted] unknown",
		"token: " + callbackToken + ".":                      "token: [redacted]",
		`invalid token "` + callbackToken + `"`:              `invalid token "[redacted]"`,
		"Cookie: a=b; c=d\nHost: x":                          "Cookie: [redacted]\nHost: x",
		fmt.Sprint(http.Header{"Token": {callbackToken}}):    "map[Token:[[redacted]",
		"dial postgres://app:hunter2@db:5432/telapi":         "dial postgres://app:[redacted]@db:5432/telapi",
		"redis://:p@ss@h1:1,h2:2/0":                          "redis://:[redacted]@h1:1,h2:2/0",
		"redis://:a@h1,redis://u:b@h2":                       "redis://:[redacted]@h1,redis://u:[redacted]@h2",
		"postgres://u:p@h/d?sslpassword=x":                   "postgres://u:[redacted]@h/d?sslpassword=[redacted]",
		`token "password":"abc"`:                             `token "password":"[redacted]"`,
		`token= "password":"abc"`:                            `token= "[redacted]":"[redacted]"`,
		"secret token=abc":                                   "secret token=[redacted]",
		"Basic Bearer abc":                                   "Basic Bearer [redacted]",
		parseErr.Error():                                     `parse "postgres://app:[redacted]@db/telapi": invalid port ":pa" after host`,
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%s)\n got %s\nwant %s", in, got, want)
		}
		if once := Text(in); Text(once) != once {
			t.Errorf("a second pass changed %q to %q", once, Text(once))
		}
	}
}

func TestExcerptOmitsSecrets(t *testing.T) {
	for want, message := range map[string]string{
		"":                              "",
		"bad key [redacted] for [reda…": "bad key\n\tk-1  for secret text: too long",
		"a b":                           "a\xff b",
	} {
		testkit.Equal(t, fmt.Sprintf("%q", message), Excerpt([]byte(message), 28, "k-1", "", "secret text"), want)
	}
}

func TestTextWithoutCredentialsIsUnchanged(t *testing.T) {
	for _, in := range []string{
		"",
		"listening on http://127.0.0.1:3001/api/v1/sessions/token",
		"verify token: signature is invalid",
		"token has invalid claims: token is expired",
		"CALLBACK_TOKEN_INVALID: the token: CALLBACK_TOKEN_INVALID",
		"Bearer authentication is required",
		"send a bearer token, please",
		"basic authentication",
		"input tokens=512 tokenType=call maxTokens: 4",
		`unexpected token "}" at offset 3`,
		"password authentication failed for user \"app\"",
		"key tk_ab12 of team t1",
		"token 550e8400-e29b-41d4-a716-446655440000 expired",
		"the secretary: John",
		"mailto://someone@example.com and https://app@db/x",
		"http://host:8080/users/a@b",
		"eyebrow.raised",
		"token=",
		"secret \xff\xfe bytes",
	} {
		if got := Text(in); got != in {
			t.Errorf("Text(%q) = %q, want it unchanged", in, got)
		}
	}
}

func TestMatchingCostGrowsLinearly(t *testing.T) {
	cost := func(text string) (bytes int) {
		for _, r := range rules {
			for m := range r.matches(text) {
				bytes += m.searched
			}
		}
		return bytes
	}
	for _, part := range []string{"token=", "token: a", "token '", "tk_1_", "x://u:", "Bearer bearer ", "password=tk_", "cookie:", "+1(", "0 1-", "%20&basic"} {
		once, twice := cost(strings.Repeat(part, 500)), cost(strings.Repeat(part, 1000))
		if twice > 3*once {
			t.Errorf("%q: searched %d bytes, and %d if the text is twice as long; want at most three times as many", part, once, twice)
		}
	}
}

func TestShortcutsDoNotChangeMasking(t *testing.T) {
	tokens := strings.Split("1|12|123|0|1234567|-|.|/|(|)|[| |\t|:|=|\"|'|\\|<|a|A|from|to|tel|sip|%3a|call_id|channel|caller|/webhooks/bot/|x", "|")
	random := rand.New(rand.NewPCG(1, 2))
	found := map[bool]int{}
	for range 50_000 {
		var text strings.Builder
		for range random.IntN(7) {
			text.WriteString(tokens[random.IntN(len(tokens))])
		}
		s := text.String()
		if context := matchContext(s); context != nothing && !mayHaveContext(s) {
			t.Fatalf("the context of a number after %q is %d, but the shortcut rules it out", s, context)
		}
		if formatted.MatchString(s) && !mayBeFormatted(s) {
			t.Fatalf("%q is a formatted number, but the shortcut rules it out", s)
		}
		found[mayHaveContext(s)]++
	}
	if found[true] < 1000 || found[false] < 1000 {
		t.Errorf("contexts possible and impossible: %v, want many of both", found)
	}
}

func TestPhoneNumbersAreMasked(t *testing.T) {
	for in, want := range map[string]string{
		"+4915112345678":                         "+*********5678",
		"call to +49 151 12345678 failed":        "call to +** *** ****5678 failed",
		"+49 (0)30 1234567":                      "+** (*)** ***4567",
		"(+49) 171 1234567":                      "(+**) *** ***4567",
		"+1-212-555-0123,+1.212.555.0199":        "+*-***-***-0123,+*.***.***.0199",
		"+33 1 23 45 67 89":                      "+** * ** ** 67 89",
		"+491711234567 200 OK":                   "+********4567 200 OK",
		"+491711234567abc":                       "+********4567abc",
		"tel:+4930123456;ext=5":                  "tel:+******3456;ext=5",
		"TEL:12345678":                           "TEL:****5678",
		"tel:030-123456":                         "tel:***-**3456",
		"sip:10012@pbx.example":                  "sip:*0012@pbx.example",
		"sip:+49301234567@10.0.0.1:5060":         "sip:+*******4567@10.0.0.1:5060",
		"<sips:491711234567@h;user=phone>":       "<sips:********4567@h;user=phone>",
		"?to=%2B49301234567&x=1":                 "?to=%2B*******4567&x=1",
		"sip%3A491711234567%40host":              "sip%3A********4567%40host",
		"a%20+49301234567":                       "a%20+*******4567",
		"ring 030 1234567 now":                   "ring *** ***4567 now",
		"089/12345678":                           "***/****5678",
		"030 / 123456-78":                        "*** / ****56-78",
		"0171.1234567.":                          "****.***4567.",
		"01.23.45.67.89":                         "**.**.**.67.89",
		"0049301234567":                          "*********4567",
		"01511234567":                            "*******4567",
		"recording 01511234567.wav":              "recording *******4567.wav",
		"(555) 123-4567":                         "(***) ***-4567",
		"555-123-4567":                           "***-***-4567",
		"1-800-555-0199":                         "*-***-***-0199",
		"555-0123":                               "***-0123",
		"12 34 56 78":                            "** ** 56 78",
		"612 345 678":                            "*** **5 678",
		"49 171 1234567":                         "** *** ***4567",
		"PJSIP/491711234567-0000001a":            "PJSIP/********4567-0000001a",
		"SIP/01711234567-00000012":               "SIP/*******4567-00000012",
		"PJSIP/491711234567":                     "PJSIP/********4567",
		"sip%3a491711234567%40host":              "sip%3a********4567%40host",
		"sip%3a10012":                            "sip%3a*0012",
		"PJSIP/10012":                            "PJSIP/*0012",
		"PJSIP/10012-0000001a":                   "PJSIP/*0012-0000001a",
		"/webhooks/llm/call-4711/+4915112345678": "/webhooks/llm/call-4711/+*********5678",
		"/webhooks/llm/4711/+4915112345678":      "/webhooks/llm/4711/+*********5678",
		"/webhooks/tool/call-4711/4915112345678": "/webhooks/tool/call-4711/*********5678",
		"/api/v1/webhooks/bot/4915112345678":     "/api/v1/webhooks/bot/*********5678",
		"/webhooks/llm/4915112345678/1":          "/webhooks/llm/*********5678/1",
		"/webhooks/llm/4915112345678/wi-1":       "/webhooks/llm/*********5678/wi-1",
		"/webhooks/llm/01981234-5678-7123-8abc-446655440000/+4915112345678": "/webhooks/llm/01981234-5678-7123-8abc-446655440000/+*********5678",
		"channel 4915112345678 has ended":                                   "channel *********5678 has ended",
		`channel "4915112345678": unknown`:                                  `channel "*********5678": unknown`,
		`{"channelId":"1234567","x":1}`:                                     `{"channelId":"***4567","x":1}`,
		`{\"callId\":\"4915112345678\"}`:                                    `{\"callId\":\"*********5678\"}`,
		`{"target":"1234567"}`:                                              `{"target":"***4567"}`,
		"call ID 4915112345678.":                                            "call ID *********5678.",
		"caller=491711234567":                                               "caller=********4567",
		`"callerNumber":"491711234567"`:                                     `"callerNumber":"********4567"`,
		"dialing 2125550123":                                                "dialing ******0123",
		"msisdn: 1711234567":                                                "msisdn: ******4567",
		`{"from":"491711234567"}`:                                           `{"from":"********4567"}`,
		"GET /x 200 01511234567":                                            "GET /x 200 *******4567",
		"2025-01-02 15:04:05 +49301234567 called":                           "2025-01-02 15:04:05 +*******4567 called",
		"[01511234567 01511234568]":                                         "[*******4567 *******4568]",
		"拨打01511234567":                                                     "拨打*******4567",
	} {
		if got := maskPhones(in, "", 4); got != want {
			t.Errorf("maskPhones(%s)\n got %s\nwant %s", in, got, want)
		}
	}
}

func TestLastDigitsAreKept(t *testing.T) {
	for keep, want := range map[int]string{-1: "+** ******", 0: "+** ******", 1: "+** *****6", 6: "+** 123456", 7: "+*9 123456", 15: "+49 123456"} {
		testkit.Equal(t, fmt.Sprintf("keep %d: masked as", keep), maskPhones("+49 123456", "", keep), want)
	}
}

func TestExtensionsAreMasked(t *testing.T) {
	for in, want := range map[string]string{
		"sip:1001": "sip:****", "sip%3a1001": "sip%3a****", "sip%3A1001": "sip%3A****", "PJSIP/1001": "PJSIP/****", "tel%3a110": "tel%3a***",
	} {
		testkit.Equal(t, fmt.Sprintf("masked %s as", in), maskPhones(in, "", 0), want)
	}
}

func TestOtherNumbersAreNotMasked(t *testing.T) {
	for _, in := range []string{
		"550e8400-e29b-41d4-a716-446655440000",
		"01981234-5678-7123-8abc-446655440000",
		"01981234-5678-7123-a123-044665544000",
		"55008400-1234-4123-8123-446655440000",
		"2025-01-02T08:00:00.123456Z", "2025-01-02T08:00:00+02:00", "2025-01-02 15:04:05.0123456",
		"2025/11/15 02:34:00.123456 INFO", "02.01.2025", "01/02/2025 15.04", "2025-01-02", "20250102150405", "2025-01-02-15",
		"1763174400", "1763174400000", "1763174400000-0", "1763174400000-12", "from 1763174400000 to 1763174500000",
		"1763174400.1234", "channel 1763174400.1234", // a channel ID of Asterisk
		"/webhooks/bot/1763174400.1234", "/webhooks/bot/01981234-5678-7123-8abc-446655440000", "/webhooks/bot/123456", "/webhooks/bot/1234567890123456",
		"/webhooks/llm/call-4711/1", "/api/v1/sessions/1234567", "channel ch-4711 has 1234567 entries",
		"bytes=12345678901", "id 12345678", "sequence number 1234567", "00000012", "0000001234567",
		"192.168.100.200", "192.168.100.200:5060", "10.120.130.140/24", "sip:192.168.100.200", "sip:192.168.100.200:5060", "sip:alice@192.168.100.200",
		"fe80::1234:5678:9012", "00:11:22:33:44:55", "127.0.0.1:6379",
		"1234567ms", "0.1234567s", "12345678.9", "0.123456789", "1.5s", "1h2m3s",
		"deadbeef0123456789", "0123456789abcdef", "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7",
		"0.9.20-patch2", "v1.26.8", "go1.26.8", "1.3.6.1.4.1.311",
		"HTTP/1.1 200 1234567", "SIP/2.0 404", "SIP 486 Busy", "1000/2000000", "200 512",
		"[100 200 300]", "[200 300 4000]", "x+12345678", "1e+1234567", "team_0123456789", "tk_0123456789",
		"1234 5678 9012 3456", "+02:00", "+1", "", "abc",
	} {
		for _, keep := range []int{0, 4} {
			if got := maskPhones(in, "", keep); got != in {
				t.Errorf("maskPhones(%q, %d) = %q, want it unchanged", in, keep, got)
			}
		}
	}
}

func TestFieldUsesName(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"token", "abc", Placeholder}, {"X-API-Key", "abc", Placeholder}, {"Set-Cookie", "a=b", Placeholder}, {"clientSecret", "abc", Placeholder},
		{"authorization", "abc", Placeholder}, {"db_password", "a b", Placeholder}, {"token", "", ""},
		{"input_tokens", "512", "512"}, {"tokenType", "call", "call"}, {"keyId", "ab12", "ab12"},
		{"caller", "491711234567", "********4567"}, {"to", "491711234567", "********4567"}, {"phone_number", "1711234567", "******4567"},
		{"from", "2025-01-01", "2025-01-01"}, {"id", "491711234567", "491711234567"},
		{"to", "1763174400000", "*********0000"}, {"from", "1234567", "***4567"}, {"target", "1234567", "***4567"}, {"from", "123456", "123456"},
		{"call_id", "1234567", "***4567"}, {"callId", "491711234567", "********4567"}, {"telapi.call_id", "491711234567", "********4567"},
		{"channel_id", "491711234567", "********4567"}, {"channel", "491711234567", "********4567"}, {"telapi.channel_id", "123456789012345", "***********2345"},
		{"channel_id", "1234567890123456", "1234567890123456"}, {"channel_id", "1763174400.1234", "1763174400.1234"}, {"channel_id", "call-4711", "call-4711"},
		{"callback_id", "491711234567", "491711234567"}, {"session_id", "491711234567", "491711234567"},
		{"path", "/ws/session?token=abc", "/ws/session?token=[redacted]"},
	} {
		testkit.Equal(t, fmt.Sprintf("Field(%q, %q)", c.name, c.value), Field(c.name, c.value, 4), c.want)
	}
}

func FuzzText(f *testing.F) {
	f.Add("GET /x?", "&y=1")
	f.Add("a tk_1_2 postgres://u:p@h ", " Bearer x")
	f.Add("token='", "'")
	f.Fuzz(func(t *testing.T, before, after string) {
		raw, _ := base64.RawURLEncoding.DecodeString(callbackToken)
		secret := base64.RawURLEncoding.EncodeToString(raw)
		for _, form := range []string{" tk_ab12_%s ", " token=%s ", ` "password":"%s" `, " Bearer %s ", " eyJhbGciOiJIUzI1NiJ9.eyJ4Ijox.%s ", " x://u:%s@h "} {
			in := before + fmt.Sprintf(form, secret) + after
			got := Text(in)
			if strings.Count(got, secret) > strings.Count(before+after, secret) {
				t.Errorf("Text(%q) contains the secret: %q", in, got)
			}
			if utf8.ValidString(in) && !utf8.ValidString(got) {
				t.Errorf("Text(%q) is not valid UTF-8: %q", in, got)
			}
		}
		_ = Text(before)
	})
}

func FuzzPhones(f *testing.F) {
	f.Add("call ", " now", 4)
	f.Add("550e8400-e29b-", "-0", 0)
	f.Add("%2B4930123456 (030) 1", ";x=1", 15)
	f.Fuzz(func(t *testing.T, before, after string, keep int) {
		in := before + " +4915112345678 , " + after
		got := maskPhones(in, "", keep)
		if keep <= 4 && strings.Contains(got, "15112345678") && !strings.Contains(before+after, "15112345678") {
			t.Errorf("maskPhones(%q) contains the number: %q", in, got)
		}
		if len(got) != len(in) {
			t.Fatalf("maskPhones(%q) changed the length: %q", in, got)
		}
		for i := range len(in) {
			if got[i] != in[i] && (got[i] != '*' || !isDigit(in[i])) {
				t.Fatalf("maskPhones(%q) changed more than digits: %q", in, got)
			}
		}
		if maskPhones(got, "", 0) == "" && got != "" {
			t.Errorf("a second pass deletes %q", got)
		}
	})
}
