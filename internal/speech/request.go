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

// What may be asked for.
const (
	MaxCharacters = 4096 // code points of a text
	MinSpeed      = 0.25 // of the provider's own pace
	MaxSpeed      = 4.0
	MaxTTL        = 365 * 24 * time.Hour

	maxName       = 128 // code points of a voice, a model or an endpoint's id
	telephoneRate = 8000
)

// SampleRates are those that PCM may be asked for in; A-law has the first.
var SampleRates = []int{telephoneRate, 16000, 24000}

// order is the body of a request for speech. Members it does not have pass
// unread, so that clients may be newer than the service.
type order struct {
	Text         *string  `json:"text"`
	Voice        *string  `json:"voice"`
	Model        *string  `json:"model"`
	Speed        *float64 `json:"speed"`
	Provider     *string  `json:"provider"`
	Encoding     *string  `json:"encoding"`
	SampleRate   *int64   `json:"sampleRate"`
	TTL          *int64   `json:"ttl"`
	DisableCache *bool    `json:"disableCache"`
	EndpointID   *string  `json:"endpointId"`
}

// Request is an order that is as it should be.
type Request struct {
	Utterance
	TeamID       string
	Provider     string // empty: the first of the chain
	Encoding     Encoding
	SampleRate   int
	TTL          time.Duration // 0: kept for good
	DisableCache bool
	EndpointID   string
}

// Utterance is what a provider is asked to say.
type Utterance struct {
	Text, Voice, Model string
	Speed              float64
}

// Characters is what a text is counted as.
func (u Utterance) Characters() int { return utf8.RuneCountInString(u.Text) }

// Parse reads a body and reports everything wrong with it. Providers are those
// that may be named.
func Parse(body []byte, providers []string) (Request, error) {
	var in order
	var issues fault.Issues
	if err := strictjson.Decode(body, &in, "", &issues); err != nil {
		return Request{}, err
	}
	r := Request{
		Utterance:    Utterance{Text: value(in.Text), Voice: value(in.Voice), Model: value(in.Model), Speed: *cmp.Or(in.Speed, new(1.0))},
		Provider:     value(in.Provider),
		Encoding:     Encoding(*cmp.Or(in.Encoding, new(string(ALaw)))),
		SampleRate:   int(*cmp.Or(in.SampleRate, new(int64(telephoneRate)))),
		TTL:          time.Duration(value(in.TTL)) * time.Second,
		DisableCache: value(in.DisableCache),
		EndpointID:   value(in.EndpointID),
	}
	r.checkText(&issues)
	issues.CheckName("/voice", r.Voice, maxName)
	issues.CheckName("/model", r.Model, maxName)
	issues.CheckName("/endpointId", r.EndpointID, maxName)
	fault.CheckRange(&issues, "/speed", r.Speed, MinSpeed, MaxSpeed)
	if in.Provider != nil && len(providers) > 0 { // with none it is not the order that is wrong
		fault.CheckOneOf(&issues, "/provider", r.Provider, providers)
	}
	fault.CheckOneOf(&issues, "/encoding", r.Encoding, Encodings)
	if !slices.Contains(SampleRates, r.SampleRate) || r.Encoding == ALaw && r.SampleRate != telephoneRate {
		if !issues.Has("/sampleRate") {
			issues.Add("/sampleRate", fault.IssueValue, "sampleRate is 8000 for alaw, and 8000, 16000 or 24000 for pcm.")
		}
	}
	if in.TTL != nil {
		fault.CheckRange(&issues, "/ttl", *in.TTL, 1, int64(MaxTTL.Seconds()))
	}
	return r, issues.Err()
}

func (r Request) checkText(issues *fault.Issues) {
	const path = "/text"
	unspeakable := func(c rune) bool { return unicode.IsControl(c) && !strings.ContainsRune("\t\n\r", c) }
	switch {
	case issues.Has(path):
	case strings.TrimSpace(r.Text) == "":
		issues.Add(path, fault.IssueRequired, "text is what is to be said.")
	case r.Characters() > MaxCharacters:
		issues.Add(path, fault.IssueTooLong, "text has %d characters at the most; this has %d.", MaxCharacters, r.Characters())
	case strings.ContainsFunc(r.Text, unspeakable):
		issues.Add(path, fault.IssueForbidden, "text holds no control characters but tabs and line breaks.")
	}
}

func value[T any](given *T) T { return *cmp.Or(given, new(T)) }
