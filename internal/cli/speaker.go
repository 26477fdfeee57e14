package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/fault"
	"telapi/internal/speech"
)

// maxTries is how often a server that is busy or away is asked.
const maxTries = 10

// speaker asks a running server for speech.
type speaker struct {
	client   *http.Client
	url, key string
}

func newSpeaker(url, key string) *speaker {
	return &speaker{&http.Client{Timeout: 2 * time.Minute}, strings.TrimRight(url, "/") + speech.Route, key}
}

// say has one sentence spoken, again when the server says that it may be. An error
// is one that every other sentence would meet too.
func (s *speaker) say(ctx context.Context, line sentence) (warmed, error) {
	for try := 1; ; try++ {
		a, refusal, err := s.ask(ctx, line.body)
		switch {
		case err != nil:
			return warmed{}, err
		case refusal == nil && a.URL == "":
			return warmed{Line: line.line, Error: "spoken, but not kept: the server's media service is away, or it has none"}, nil
		case refusal == nil:
			return warmed{Line: line.line, Answer: a}, nil
		case refusal.Code == fault.Unauthorized || refusal.Code == fault.Forbidden:
			return warmed{}, refusal
		case refusal.RetryAfter == 0 || try == maxTries:
			return warmed{Line: line.line, Error: refusal.Message}, nil
		}
		select {
		case <-time.After(refusal.RetryAfter):
		case <-ctx.Done():
			return warmed{}, ctx.Err()
		}
	}
}

// ask returns the server's answer or its refusal.
func (s *speaker) ask(ctx context.Context, body []byte) (a *speech.Answer, refusal *fault.Error, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, fmt.Errorf("ask the server: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-API-Key", s.key)
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, nil, fmt.Errorf("ask the server: %w", err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(content, &a); err != nil {
			return nil, nil, fmt.Errorf("read the answer: %w", err)
		}
		a.Audio = nil // of no use here
		return a, nil, nil
	}
	var envelope fault.Envelope
	if json.Unmarshal(content, &envelope) != nil || envelope.Error.Code == "" {
		return nil, nil, fmt.Errorf("the server at %s is no telapi: it answered %d", s.url, resp.StatusCode)
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	return nil, fault.New(envelope.Error.Code, "%s", envelope.Error.Message).After(time.Duration(seconds) * time.Second), nil
}
