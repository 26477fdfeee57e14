package synth

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/audio"
	"telapi/internal/redact"
	"telapi/internal/speech"
)

// openAIRate is what the interface lays down for pcm.
const openAIRate = 24000

// OpenAIOptions say where a service is and what it is asked for.
type OpenAIOptions struct {
	URL          string // before /v1/audio/speech
	Key          redact.Secret
	Voice, Model string        // where none is asked for
	Timeout      time.Duration // without a sign of life
}

// OpenAI speaks through a service with OpenAI's interface for speech.
type OpenAI struct {
	OpenAIOptions
	http *http.Client
}

var _ speech.Provider = (*OpenAI)(nil)

// NewOpenAI returns a provider.
func NewOpenAI(o OpenAIOptions) *OpenAI {
	return &OpenAI{o, &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment, // as with every service on the internet
			DialContext:         (&net.Dialer{Timeout: o.Timeout}).DialContext,
			TLSHandshakeTimeout: o.Timeout,
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     90 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the key goes nowhere else
	}}
}

// Name implements speech.Provider.
func (o *OpenAI) Name() string { return "openai" }

// Resolve implements speech.Provider.
func (o *OpenAI) Resolve(voice, model string) (string, string) {
	return cmp.Or(voice, o.Voice), cmp.Or(model, o.Model)
}

// Synthesize implements speech.Provider.
func (o *OpenAI) Synthesize(ctx context.Context, u speech.Utterance) (audio.Sound, error) {
	order, err := json.Marshal(map[string]any{"model": u.Model, "voice": u.Voice, "input": u.Text, "speed": u.Speed, "response_format": "pcm"})
	if err != nil {
		return audio.Sound{}, fmt.Errorf("encode the order: %w", err)
	}
	ctx, patience, done := newPatience(ctx, o.Timeout)
	defer done()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.URL+"/v1/audio/speech", bytes.NewReader(order))
	if err != nil {
		return audio.Sound{}, fmt.Errorf("ask for speech: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if o.Key != "" {
		req.Header.Set("Authorization", "Bearer "+o.Key.Reveal())
	}
	resp, err := o.http.Do(req)
	if err != nil {
		return audio.Sound{}, fmt.Errorf("ask for speech: %w", cmp.Or(context.Cause(ctx), err))
	}
	defer resp.Body.Close()
	if err := acceptable(resp); err != nil {
		return audio.Sound{}, err
	}
	body, err := patience.readAll(ctx, resp.Body)
	if err != nil {
		return audio.Sound{}, err
	}
	return decode(body, openAIRate)
}

// refusals are what a service answers that is well and does not like the order: a
// model it has not, a voice, a text.
var refusals = []int{http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}

// acceptable refuses an answer that cannot be sound. What a service says about
// the reason stays unread: it may repeat the key.
func acceptable(resp *http.Response) error {
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case slices.Contains(refusals, resp.StatusCode):
		return fmt.Errorf("it answered %d: %w", resp.StatusCode, speech.ErrRejected)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("it answered %d", resp.StatusCode)
	case strings.HasPrefix(mediaType, "text/") || mediaType == "application/json" || mediaType == "audio/mpeg":
		return errors.New("it sent " + mediaType + " in place of pcm")
	}
	return nil
}
