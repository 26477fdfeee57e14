package speech

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"telapi/internal/fault"
	"telapi/test/testkit"
)

var configured = []string{"openai", "tone"}

func TestParseAppliesDefaults(t *testing.T) {
	for body, want := range map[string]request{
		`{"text":"Hi"}`: {Utterance: Utterance{Text: "Hi", Speed: 1}, Encoding: ALaw, SampleRate: 8000},
		`{"text":"Hi","voice":null,"speed":null,"ttl":null,"zzz":[1]}`: {Utterance: Utterance{Text: "Hi", Speed: 1}, Encoding: ALaw, SampleRate: 8000},
		`{"text":" \tgrüß\n","voice":"v","model":"m","speed":0.25,"provider":"tone","encoding":"pcm","sampleRate":24000,"ttl":31536000,"disableCache":true,"endpointId":"ep_1"}`: {
			Utterance: Utterance{" \tgrüß\n", "v", "m", 0.25}, Provider: "tone", Encoding: PCM, SampleRate: 24000,
			TTL: maxTTL, DisableCache: true, EndpointID: "ep_1"},
		`{"text":"` + strings.Repeat("🌍", MaxCharacters) + `","speed":4,"ttl":1}`: {
			Utterance: Utterance{Text: strings.Repeat("🌍", MaxCharacters), Speed: 4}, Encoding: ALaw, SampleRate: 8000, TTL: time.Second},
	} {
		if got, err := parseRequest([]byte(body), configured); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%.80s: %+v, %v, want %+v", body, got, err, want)
		}
	}
}

func TestParseReportsAllIssues(t *testing.T) {
	for body, want := range map[string]string{
		`{}`:              "/text required",
		`{"text":null}`:   "/text required",
		`{"text":" \n "}`: "/text required",
		`{"text":1,"voice":2,"model":3,"speed":"4","provider":5,"encoding":6,"sampleRate":7.5,"ttl":"8","disableCache":9,"endpointId":10}`: "/text invalid_type, /voice invalid_type, " +
			"/model invalid_type, /speed invalid_type, /provider invalid_type, /encoding invalid_type, /sampleRate invalid_type, /ttl invalid_type, /disableCache invalid_type, /endpointId invalid_type",
		`{"text":"` + strings.Repeat("ü", MaxCharacters+1) + `"}`:                          "/text too_long",
		`{"text":"a\u0000b","voice":"a\u0007","model":"` + strings.Repeat("m", 129) + `"}`: "/text forbidden_character, /voice forbidden_character, /model too_long",
		`{"text":"x","speed":0.2499,"encoding":"mp3","ttl":0,"provider":"espeak"}`:         "/speed too_small, /provider invalid_value, /encoding invalid_value, /ttl too_small",
		`{"text":"x","speed":4.01,"encoding":"ALAW","ttl":31536001,"provider":""}`:         "/speed too_large, /provider invalid_value, /encoding invalid_value, /ttl too_large",
		`{"text":"x","sampleRate":44100}`:                                                  "/sampleRate invalid_value",
		`{"text":"x","sampleRate":16000}`:                                                  "/sampleRate invalid_value",
		`{"text":"x","encoding":"pcm","sampleRate":8001}`:                                  "/sampleRate invalid_value",
		`{"text":"x","ttl":9007199254740991}`:                                              "/ttl too_large",
		`[]`:                                                                               " invalid_type",
	} {
		_, err := parseRequest([]byte(body), configured)
		testkit.Equal(t, fmt.Sprintf("%.80s: issues", body), strings.Join(testkit.Issues(err), ", "), want)
	}
	for _, body := range []string{"", "{", `{"text":"a","text":"b"}`, "{\"text\":\"\xff\"}", `{} {}`} {
		testkit.WantFault(t, fmt.Sprintf("%q", body), testkit.ErrorOf(parseRequest([]byte(body), configured)), fault.MalformedJSON)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"text":"Hi","voice":"v","speed":1.5,"encoding":"pcm","sampleRate":16000,"ttl":60,"disableCache":true}`))
	f.Add([]byte(`{"text":1,"ttl":-1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := parseRequest(body, configured)
		switch {
		case fault.Is(err, fault.Validation), fault.Is(err, fault.MalformedJSON):
		case err != nil:
			t.Fatalf("error %v, want VALIDATION_ERROR or MALFORMED_JSON", err)
		case r.Text == "" || r.Characters() > MaxCharacters || strings.ContainsRune(r.Text, 0) || !(r.Speed >= MinSpeed && r.Speed <= maxSpeed) ||
			r.TTL < 0 || r.TTL > maxTTL || r.Encoding == ALaw && r.SampleRate != 8000:
			t.Fatalf("accepted an invalid request: %+v", r)
		}
	})
}

// A hash that changes by accident invalidates the whole cache, which customers
// have paid for.
func TestHashIsStable(t *testing.T) {
	for want, got := range map[string]string{
		"f070e2d3be7dba23900f98fed360ac5febc3a0cf0e6e3f762931e681110182ac": Hash("tm_1", "openai", 8000, Utterance{"Good morning, how can I help you?", "alloy", "tts-1", 1}),
		"3790609f72b0bc368859e0f5668050ba74fbd4df1a858f4bff32ba9570755a0c": Hash("tm_2", "espeak", 24000, Utterance{"Grüß Gott, 世界 🌍\n", "de+f3", "espeak-ng", 0.25}),
		"06a304f503294a786727e7763d9a957e4d0f8f7b1d67ecc5e77fea378d399834": Hash("", "", 8000, Utterance{"x", "", "", 1.1}),
	} {
		testkit.Equal(t, "hash", got, want)
	}
}

func TestHashDependsOnEveryInput(t *testing.T) {
	u := Utterance{"text", "voice", "model", 1}
	inputs := map[string]string{} // changed input by hash
	for input, hash := range map[string]string{
		"baseline":                         Hash("team", "provider", 8000, u),
		"team":                             Hash("team2", "provider", 8000, u),
		"provider":                         Hash("team", "provider2", 8000, u),
		"rate":                             Hash("team", "provider", 16000, u),
		"text":                             Hash("team", "provider", 8000, Utterance{"text ", "voice", "model", 1}),
		"voice":                            Hash("team", "provider", 8000, Utterance{"text", "voice2", "model", 1}),
		"model":                            Hash("team", "provider", 8000, Utterance{"text", "voice", "model2", 1}),
		"speed":                            Hash("team", "provider", 8000, Utterance{"text", "voice", "model", 1.0000000000000002}),
		"byte moved from provider to team": Hash("teamp", "rovider", 8000, u),
		"empty voice":                      Hash("team", "provider", 8000, Utterance{"text", "", "model", 1}),
		"voice and model swapped":          Hash("team", "provider", 8000, Utterance{"text", "model", "voice", 1}),
	} {
		if len(hash) != 64 {
			t.Errorf("%s: hash %q, want 64 characters", input, hash)
		}
		if other, taken := inputs[hash]; taken {
			t.Errorf("%s and %s have the same hash", input, other)
		}
		inputs[hash] = input
	}
}

func TestParseBlobName(t *testing.T) {
	hash := Hash("t", "p", 8000, Utterance{})
	for _, e := range Encodings {
		if gotHash, encoding, ok := parseBlobName(hash + "." + string(e)); !ok || gotHash != hash || encoding != e {
			t.Errorf("parsed %s.%s as %s, %s, %v", hash, e, gotHash, encoding, ok)
		}
		testkit.Equal(t, "path", BlobPath(hash, e), fmt.Sprintf("%s/%s.%s", hash[:2], hash, e))
	}
	for _, name := range []string{"", ".", hash, hash + ".", hash + ".wav", hash + ".alaw.pcm", hash[1:] + ".pcm", strings.ToUpper(hash) + ".pcm", "../" + hash + ".pcm", hash + ".pcm\x00"} {
		if _, _, ok := parseBlobName(name); ok {
			t.Errorf("accepted invalid name %q", name)
		}
	}
}
