package speech

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Limits of a request.
const (
	MaxCharacters = 4096 // code points of a text
	MinSpeed      = 0.25 // relative to the provider's normal speed
	maxSpeed      = 4.0
	maxTTL        = 365 * 24 * time.Hour

	maxName       = 128 // code points of a voice, a model or an endpoint ID
	telephoneRate = 8000
)

// sampleRates lists the sample rates of PCM. A-law supports only the first.
var sampleRates = []int{telephoneRate, 16000, 24000}

// requestBody is the JSON of a request. Unknown members are ignored, so that
// newer clients work with an older service.
type requestBody struct {
	Text         string    `json:"text"`
	Voice        string    `json:"voice"`
	Model        string    `json:"model"`
	Speed        *float64  `json:"speed"`
	Provider     *string   `json:"provider"`
	Encoding     *Encoding `json:"encoding"`
	SampleRate   *int64    `json:"sampleRate"`
	TTL          *int64    `json:"ttl"`
	DisableCache bool      `json:"disableCache"`
	EndpointID   string    `json:"endpointId"`
}

// request is a valid request for speech.
type request struct {
	Utterance
	TeamID       string
	Provider     string // empty: the first configured
	Encoding     Encoding
	SampleRate   int
	TTL          time.Duration // 0: it expires when it was not used for the retention of the Cleaner
	DisableCache bool
	EndpointID   string
}

// Utterance is the input of a synthesis.
type Utterance struct {
	Text, Voice, Model string
	Speed              float64
}

// Characters returns the number of characters that are billed.
func (u Utterance) Characters() int { return utf8.RuneCountInString(u.Text) }

// parseRequest validates a request body and reports all problems at once. Providers
// lists the names of the configured providers.
func parseRequest(body []byte, providers []string) (request, error) {
	var in requestBody
	var issues fault.Issues
	if err := strictjson.Decode(body, &in, "", &issues); err != nil {
		return request{}, err
	}
	r := request{
		Utterance:    Utterance{in.Text, in.Voice, in.Model, *cmp.Or(in.Speed, new(1.0))},
		Provider:     *cmp.Or(in.Provider, new("")),
		Encoding:     *cmp.Or(in.Encoding, new(ALaw)),
		SampleRate:   int(*cmp.Or(in.SampleRate, new(int64(telephoneRate)))),
		TTL:          time.Duration(*cmp.Or(in.TTL, new(int64(0)))) * time.Second,
		DisableCache: in.DisableCache,
		EndpointID:   in.EndpointID,
	}
	control := func(c rune) bool { return unicode.IsControl(c) && !strings.ContainsRune("\t\n\r", c) }
	switch {
	case issues.Has("/text"): // it has the wrong type
	case strings.TrimSpace(r.Text) == "":
		issues.Add("/text", fault.IssueRequired, "text must not be empty.")
	case r.Characters() > MaxCharacters:
		issues.Add("/text", fault.IssueTooLong, "text must have at most %d characters; it has %d.", MaxCharacters, r.Characters())
	case strings.ContainsFunc(r.Text, control):
		issues.Add("/text", fault.IssueForbidden, "text must not contain control characters except tabs and line breaks.")
	}
	issues.CheckName("/voice", r.Voice, maxName)
	issues.CheckName("/model", r.Model, maxName)
	issues.CheckName("/endpointId", r.EndpointID, maxName)
	fault.CheckRange(&issues, "/speed", r.Speed, MinSpeed, maxSpeed)
	if in.Provider != nil && len(providers) > 0 { // without providers every request fails with 503
		fault.CheckOneOf(&issues, "/provider", r.Provider, providers)
	}
	fault.CheckOneOf(&issues, "/encoding", r.Encoding, Encodings)
	validRate := slices.Contains(sampleRates, r.SampleRate) && (r.Encoding != ALaw || r.SampleRate == telephoneRate)
	issues.Check(validRate || issues.Has("/sampleRate"), "/sampleRate", fault.IssueValue, "sampleRate must be 8000 for alaw, and 8000, 16000 or 24000 for pcm.")
	if in.TTL != nil {
		fault.CheckRange(&issues, "/ttl", *in.TTL, 1, int64(maxTTL.Seconds()))
	}
	return r, issues.Err()
}
