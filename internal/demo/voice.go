package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/go-json-experiment/json"
)

const maxAudio = 16 << 20

// voice asks the API server for speech, as every runtime with a team's key can.
type voice struct {
	api, key   string
	endpointID string // whom it is counted for
	client     *http.Client
}

// utterance is the server's answer.
type utterance struct {
	Hash       string `json:"hash"`
	Cached     bool   `json:"cached"`
	Encoding   string `json:"encoding"`
	SampleRate int    `json:"sampleRate"`
	URL        string `json:"url"`
	Characters int    `json:"characters"`
	Audio      []byte `json:"audio"` // where it was not kept
}

// speak returns a text as A-law of 8 kHz.
func (v voice) speak(ctx context.Context, i item) (utterance, error) {
	body := map[string]any{"text": i.text, "encoding": "alaw", "endpointId": v.endpointID}
	for name, value := range map[string]string{"voice": i.voiceName, "provider": i.provider} {
		if value != "" {
			body[name] = value
		}
	}
	if i.rate != 0 {
		body["speed"] = i.rate
	}
	if i.noCache {
		body["disableCache"] = true
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return utterance{}, err
	}
	answer, err := v.call(ctx, http.MethodPost, v.api+"/api/v1/runtime/speech", raw)
	if err != nil {
		return utterance{}, err
	}
	var u utterance
	if err := json.Unmarshal(answer, &u); err != nil {
		return u, fmt.Errorf("read the answer about speech: %w", err)
	}
	if len(u.Audio) == 0 {
		u.Audio, err = v.call(ctx, http.MethodGet, v.api+u.URL, nil)
	}
	return u, err
}

func (v voice) call(ctx context.Context, method, url string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-API-Key", v.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := v.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask for speech: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAudio))
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s answers %d: %.200s", req.URL.Path, resp.StatusCode, answer)
	}
	return answer, err
}
