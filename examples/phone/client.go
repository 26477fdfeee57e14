package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"example.com/phone/media"
)

const (
	maxResponse    = 4 << 20 // bytes: A-law of eight minutes
	requestTimeout = 20 * time.Second
	firstDelay     = 100 * time.Millisecond // before a request is repeated
	maxDelay       = time.Second
	speechPath     = "/api/v1/runtime/speech"
)

// request is an HTTP request to telapi, to the bot or to a recognizer with OpenAI's API: a
// POST if it has a body.
type request struct {
	url, contentType string
	body             []byte
	limits           limits
}

// do sends a request. It repeats the request while the server is unavailable, because
// another instance of telapi answers soon, and after other failures as often as r says.
func (p *Phone) do(ctx context.Context, r request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for delay := firstDelay; ; delay = min(2*delay, maxDelay) {
		reply, status, err := p.once(ctx, r)
		switch {
		case err == nil:
			return reply, nil
		case status == 0 && !errors.Is(err, context.DeadlineExceeded), status == http.StatusServiceUnavailable, status == http.StatusBadGateway: // unavailable
		case status/100 == 4 || r.limits.Retries == 0:
			return nil, err
		default:
			r.limits.Retries--
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}

func (p *Phone) once(ctx context.Context, r request) (reply []byte, status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(ms(r.limits.ConnectionTimeoutMs), requestTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, bytes.NewReader(r.body))
	if err != nil {
		return nil, 0, err
	}
	switch {
	case strings.HasPrefix(r.url, p.config.URL+"/"):
		req.Header.Set("X-API-Key", p.config.Key)
	case p.config.STTKey != "" && strings.HasPrefix(r.url, p.config.STTURL+"/"):
		req.Header.Set("Authorization", "Bearer "+p.config.STTKey)
	}
	if r.body != nil {
		req.Method = http.MethodPost
		req.Header.Set("Content-Type", r.contentType)
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	reply, err = io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s returned status %d: %.200s", r.url, resp.StatusCode, reply)
	}
	return reply, resp.StatusCode, err
}

// doJSON sends a request with a JSON body, unless it is nil, and decodes the response.
func (p *Phone) doJSON(ctx context.Context, r request, body, response any) (err error) {
	if body != nil {
		r.contentType = "application/json"
		if r.body, err = json.Marshal(body); err != nil {
			return err
		}
	}
	reply, err := p.do(ctx, r)
	if err != nil || len(reply) == 0 {
		return err
	}
	return json.Unmarshal(reply, response)
}

// profile returns the gateway profile of the endpoint, for a new channel.
func (p *Phone) profile(ctx context.Context) (jsontext.Value, error) {
	cursor := "" // as a query parameter
	for {
		var list struct {
			Data []struct {
				ID             string         `json:"id"`
				GatewayProfile jsontext.Value `json:"gatewayProfile"`
			} `json:"data"`
			NextCursor string `json:"nextCursor"`
		}
		err := p.doJSON(ctx, request{url: p.config.URL + "/api/v1/endpoints?limit=100" + cursor}, nil, &list)
		if err != nil {
			return nil, fmt.Errorf("read endpoint: %w", err)
		}
		for _, endpoint := range list.Data {
			if endpoint.ID == p.config.Endpoint {
				return endpoint.GatewayProfile, nil
			}
		}
		if list.NextCursor == "" {
			return nil, fmt.Errorf("endpoint %q not found: check PHONE_ENDPOINT", p.config.Endpoint)
		}
		cursor = "&cursor=" + url.QueryEscape(list.NextCursor)
	}
}

// audio returns the A-law of an item. It reads addresses of telapi, and of hosts that the
// operator allows: otherwise a bot could read any server of the network.
func (p *Phone) audio(ctx context.Context, i item, s settings) (audio []byte, err error) {
	r := request{url: p.config.URL + speechPath}
	if i.text != "" {
		r.limits = s.TTS
		var response struct {
			Audio []byte `json:"audio"`
			URL   string `json:"url"`
		}
		body := map[string]any{
			"text": i.text, "disableCache": i.noCache, "encoding": "alaw", "endpointId": p.config.Endpoint,
			"provider": s.TTS.Provider, "voice": s.Voice, "speed": s.Rate,
		}
		maps.DeleteFunc(body, func(_ string, value any) bool { return value == "" || value == 0.0 }) // the provider chooses
		err = p.doJSON(ctx, r, body, &response)
		if err != nil || len(response.Audio) > 0 {
			return response.Audio, err
		}
		i.address = response.URL
	}
	if strings.HasPrefix(i.address, "/") {
		i.address = p.config.URL + i.address
	}
	target, err := url.Parse(i.address)
	if err != nil || !strings.HasPrefix(i.address, p.config.URL+"/") && !slices.Contains(p.config.MediaHosts, target.Host) {
		return nil, errors.New("address not allowed: use a path of telapi, or set PHONE_MEDIA_HOSTS")
	}
	r.url = i.address
	audio, err = p.do(ctx, r)
	if bytes.HasPrefix(audio, []byte("RIFF")) {
		err = errors.New("unsupported audio: use A-law with 8 kHz, not a WAV file")
	}
	return audio, err
}

// recognize returns the text of an utterance.
func (p *Phone) recognize(ctx context.Context, alaw []byte, limits limits) (string, error) {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	file, err := form.CreateFormFile("file", "utterance.wav")
	if err == nil {
		_, err = file.Write(media.WAV(alaw))
	}
	if err := errors.Join(err, form.WriteField("model", p.config.STTModel), form.Close()); err != nil {
		return "", err
	}
	r := request{p.config.STTURL + "/v1/audio/transcriptions", form.FormDataContentType(), body.Bytes(), limits}
	var response struct {
		Text string `json:"text"`
	}
	err = p.doJSON(ctx, r, nil, &response)
	return strings.TrimSpace(response.Text), err
}
