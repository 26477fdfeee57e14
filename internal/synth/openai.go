package synth

import (
	"bytes"
	"cmp"
	"context"
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

// openAIRate is the sample rate of the response format pcm.
const openAIRate = 24000

// OpenAIOptions configure an OpenAI provider.
type OpenAIOptions struct {
	URL          string // without /v1/audio/speech
	Key          redact.Secret
	Voice, Model string        // defaults
	Timeout      time.Duration // without data
}

// OpenAI uses a service with OpenAI's speech API.
type OpenAI struct {
	OpenAIOptions
	http *http.Client
}

var _ speech.Provider = (*OpenAI)(nil)

// NewOpenAI returns a provider.
func NewOpenAI(o OpenAIOptions) *OpenAI {
	return &OpenAI{o, &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment, // the service is on the internet
			DialContext:         (&net.Dialer{Timeout: o.Timeout}).DialContext,
			TLSHandshakeTimeout: o.Timeout,
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     90 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a redirect must not get the key
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
	body, err := json.Marshal(map[string]any{"model": u.Model, "voice": u.Voice, "input": u.Text, "speed": u.Speed, "response_format": "pcm"})
	if err != nil {
		return audio.Sound{}, fmt.Errorf("encode request: %w", err)
	}
	ctx, watchdog, done := newWatchdog(ctx, o.Timeout)
	defer done()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.URL+"/v1/audio/speech", bytes.NewReader(body))
	if err != nil {
		return audio.Sound{}, fmt.Errorf("create request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if o.Key != "" {
		req.Header.Set("Authorization", "Bearer "+o.Key.Reveal())
	}
	resp, err := o.http.Do(req)
	if err != nil {
		return audio.Sound{}, fmt.Errorf("request speech: %w", cmp.Or(context.Cause(ctx), err))
	}
	defer resp.Body.Close()
	if err := checkResponse(resp); err != nil {
		return audio.Sound{}, err
	}
	content, err := watchdog.readAll(ctx, resp.Body)
	if err != nil {
		return audio.Sound{}, err
	}
	return decode(content, openAIRate)
}

// rejections are the statuses for an unsupported model, voice or text.
var rejections = []int{http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}

// checkResponse returns an error if the response is not PCM or WAV. It does not read
// the service's error message, which may contain the key.
func checkResponse(resp *http.Response) error {
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case slices.Contains(rejections, resp.StatusCode):
		return fmt.Errorf("status %d: %w", resp.StatusCode, speech.ErrRejected)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("status %d", resp.StatusCode)
	case strings.HasPrefix(mediaType, "text/") || mediaType == "application/json" || mediaType == "audio/mpeg":
		return fmt.Errorf("received %s instead of PCM", mediaType)
	}
	return nil
}
