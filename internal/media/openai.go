package media

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"go.opentelemetry.io/otel/propagation"

	"telapi/internal/background"
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
		CheckRedirect: refuseRedirect,
	}}
}

// Name implements speech.Provider.
func (o *OpenAI) Name() string { return "openai" }

// Resolve implements speech.Provider.
func (o *OpenAI) Resolve(voice, model string) (string, string) {
	return cmp.Or(voice, o.Voice), cmp.Or(model, o.Model)
}

// Synthesize implements speech.Provider. The timeout does not limit the whole response,
// because a long text takes long: it is how long no data may arrive.
func (o *OpenAI) Synthesize(ctx context.Context, u speech.Utterance) (speech.Sound, error) {
	ctx, watchdog := background.NewWatchdog(ctx, o.Timeout, errStalled)
	defer watchdog.Stop()
	req, err := o.newRequest(ctx, u)
	if err != nil {
		return speech.Sound{}, err
	}
	resp, err := o.http.Do(req)
	if err != nil {
		return speech.Sound{}, fmt.Errorf("request to SPEECH_OPENAI_URL: %w", cmp.Or(context.Cause(ctx), err))
	}
	defer resp.Body.Close()
	if err := o.checkResponse(resp, u); err != nil {
		return speech.Sound{}, err
	}
	audio, err := readAudio(ctx, watchdog.Watch(resp.Body))
	if err != nil {
		return speech.Sound{}, err
	}
	return decode(audio, openAIRate)
}

func (o *OpenAI) newRequest(ctx context.Context, u speech.Utterance) (*http.Request, error) {
	body, err := json.Marshal(map[string]any{"model": u.Model, "voice": u.Voice, "input": u.Text, "speed": u.Speed, "response_format": "pcm"})
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.URL+"/v1/audio/speech", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("create request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if o.Key != "" {
		req.Header.Set("Authorization", "Bearer "+o.Key.Reveal())
	}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header))
	return req, nil
}

const (
	maxErrorBytes = 4 << 10 // of a service's error message that are read
	maxErrorText  = 300     // characters of it that are logged
	minRetryAfter = time.Second
	maxRetryAfter = 5 * time.Minute // a service may recover earlier than it said
)

// checkResponse returns an error unless the response may be audio. Some compatible
// services ignore the requested format, or send errors with status 200.
func (o *OpenAI) checkResponse(resp *http.Response, u speech.Utterance) error {
	if resp.StatusCode == http.StatusOK {
		mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		if strings.HasPrefix(mediaType, "text/") || mediaType == "application/json" || mediaType == "audio/mpeg" {
			return fmt.Errorf("received %s instead of PCM", mediaType)
		}
		return nil
	}
	err := fmt.Errorf("status %d: %s", resp.StatusCode, o.errorText(resp.Body, u))
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity: // because of model, voice or text
		return fmt.Errorf("%w: %w", speech.ErrRejected, err)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w; check SPEECH_OPENAI_KEY and its permissions: %w", speech.ErrMisconfigured, err)
	case http.StatusTooManyRequests:
		return &speech.RateLimitError{RetryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()), Err: err}
	}
	return err
}

// errorText returns the start of a service's error message for the log. The message
// may quote the key and the text.
func (o *OpenAI) errorText(body io.Reader, u speech.Utterance) string {
	raw, _ := io.ReadAll(io.LimitReader(body, maxErrorBytes)) // a part is better than nothing
	return cmp.Or(redact.Excerpt(raw, maxErrorText, o.Key.Reveal(), u.Text), "no error message")
}

// retryAfter returns how long to wait according to a Retry-After header, which has a number
// of seconds or a date.
func retryAfter(header string, now time.Time) time.Duration {
	wait := minRetryAfter
	if seconds, err := strconv.ParseFloat(header, 64); err == nil {
		wait = time.Duration(seconds * float64(time.Second))
	} else if date, err := http.ParseTime(header); err == nil {
		wait = date.Sub(now)
	}
	return min(maxRetryAfter, max(minRetryAfter, wait))
}
