package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"

	"github.com/go-json-experiment/json"

	"telapi/callruntime"
	"telapi/internal/speech"
)

const maxAnswer = 16 << 20 // audio

// outside is whom a call asks beyond its channel: the bot, and the API server
// for speech, as every runtime with a team's key can.
type outside struct {
	bot, api   string
	key        string
	endpointID string // whom speech is counted for
	client     *http.Client
}

// ask returns in how many parts the bot will answer.
func (o outside) ask(ctx context.Context, ch *callruntime.Channel, q question, item callruntime.WorkItem) (int, error) {
	status, answer, err := exchange(ctx, o.client, http.MethodPost, o.bot, nil, order{q, ch.ID, callback{o.api + item.Path, item.Token}})
	if err == nil && status != http.StatusAccepted {
		err = fmt.Errorf("the bot answers %d", status)
	}
	accepted := struct {
		Parts int `json:"parts"`
	}{1}
	if err == nil {
		err = json.Unmarshal(answer, &accepted)
	}
	return accepted.Parts, err
}

// speak returns a text as A-law of 8 kHz.
func (o outside) speak(ctx context.Context, s sentence) (u speech.Response, err error) {
	s.Encoding, s.EndpointID = string(speech.ALaw), o.endpointID
	answer, err := o.fetch(ctx, http.MethodPost, speech.Route, s)
	if err == nil {
		err = json.Unmarshal(answer, &u)
	}
	if err == nil && len(u.Audio) == 0 { // it was kept
		u.Audio, err = o.fetch(ctx, http.MethodGet, u.URL, nil)
	}
	return u, err
}

func (o outside) fetch(ctx context.Context, method, path string, body any) ([]byte, error) {
	status, answer, err := exchange(ctx, o.client, method, o.api+path, http.Header{"X-Api-Key": {o.key}}, body)
	if err == nil && status/100 != 2 {
		err = fmt.Errorf("%s answers %d: %.200s", path, status, answer)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for speech: %w", err)
	}
	return answer, nil
}

// exchange sends a body, if there is one, as JSON, with a credential in a header
// of its own.
func exchange(ctx context.Context, client *http.Client, method, url string, credential http.Header, body any) (int, []byte, error) {
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return 0, nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(raw))
	if err != nil {
		return 0, nil, err
	}
	maps.Copy(req.Header, credential)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, answer, err
}
