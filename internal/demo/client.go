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

const maxResponse = 16 << 20 // audio

// client sends a call's requests to the bot and, for speech, to the API server.
type client struct {
	bot, api   string
	key        string
	endpointID string // for usage reports
	http       *http.Client
}

// askBot returns the number of parts of the bot's answer.
func (c client) askBot(ctx context.Context, ch *callruntime.Channel, q question, item callruntime.WorkItem) (int, error) {
	status, response, err := doJSON(ctx, c.http, http.MethodPost, c.bot, nil, botRequest{q, ch.ID, callbackTarget{c.api + item.Path, item.Token}})
	if err == nil && status != http.StatusAccepted {
		err = fmt.Errorf("bot returned status %d", status)
	}
	accepted := struct {
		Parts int `json:"parts"`
	}{1}
	if err == nil {
		err = json.Unmarshal(response, &accepted)
	}
	return accepted.Parts, err
}

// synthesize returns speech as A-law with 8 kHz.
func (c client) synthesize(ctx context.Context, r speechRequest) (response speech.Response, err error) {
	r.Encoding, r.EndpointID = string(speech.ALaw), c.endpointID
	body, err := c.callAPI(ctx, http.MethodPost, speech.Route, r)
	if err == nil {
		err = json.Unmarshal(body, &response)
	}
	if err == nil && len(response.Audio) == 0 { // it is in the media cache
		response.Audio, err = c.callAPI(ctx, http.MethodGet, response.URL, nil)
	}
	return response, err
}

func (c client) callAPI(ctx context.Context, method, path string, body any) ([]byte, error) {
	status, response, err := doJSON(ctx, c.http, method, c.api+path, http.Header{"X-Api-Key": {c.key}}, body)
	if err == nil && status/100 != 2 {
		err = fmt.Errorf("%s returned status %d: %.200s", path, status, response)
	}
	if err != nil {
		return nil, fmt.Errorf("request speech: %w", err)
	}
	return response, nil
}

// doJSON sends a request with an optional JSON body and returns the status and body of the response.
func doJSON(ctx context.Context, client *http.Client, method, url string, header http.Header, body any) (int, []byte, error) {
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
	maps.Copy(req.Header, header)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	response, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	return resp.StatusCode, response, err
}
