package demo

import (
	"context"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"

	"telapi/internal/speech"
)

// voice asks the API server for speech, as every runtime with a team's key can.
type voice struct {
	api, key   string
	endpointID string
	client     *http.Client
}

// speak returns a text as A-law of 8 kHz.
func (v voice) speak(ctx context.Context, s sentence) (u speech.Answer, err error) {
	s.Encoding, s.EndpointID = string(speech.ALaw), v.endpointID
	answer, err := v.ask(ctx, http.MethodPost, speech.Route, s)
	if err == nil {
		err = json.Unmarshal(answer, &u)
	}
	if err == nil && len(u.Audio) == 0 { // it was kept
		u.Audio, err = v.ask(ctx, http.MethodGet, u.URL, nil)
	}
	return u, err
}

func (v voice) ask(ctx context.Context, method, path string, body any) ([]byte, error) {
	status, answer, err := exchange(ctx, v.client, method, v.api+path, http.Header{"X-Api-Key": {v.key}}, body)
	if err == nil && status/100 != 2 {
		err = fmt.Errorf("%s answers %d: %.200s", path, status, answer)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for speech: %w", err)
	}
	return answer, nil
}
