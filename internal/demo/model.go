package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/background"
	"telapi/internal/redact"
)

const (
	modelTimeout       = 25 * time.Second // of a silent model; shorter than the bot's timeout, so that the caller learns the reason
	maxModelResponse   = 1 << 20
	maxModelError      = 200   // characters of an error message that are shown
	maxAnswer          = 2_000 // characters of an answer or transcript
	maxHistories       = 1_000 // conversations that the bot remembers
	maxHistoryMessages = 20    // of a conversation
	maxAnswerTokens    = 300

	systemPrompt = "You answer callers of a hotline. Use one or two short sentences without markup: they are spoken."
)

// Model is a server with OpenAI's API: a language model or speech recognition.
type Model struct {
	Setting string // name of the setting with the URL, for errors
	URL     string // without /v1
	Name    string // of the model
	Key     redact.Secret
	client  http.Client
}

// NewModel returns nil if url is empty. A trailing /v1 of the URL is ignored.
func NewModel(setting, url, name string, key redact.Secret) *Model {
	if url == "" {
		return nil
	}
	m := &Model{Setting: setting, URL: strings.TrimSuffix(strings.TrimRight(url, "/"), "/v1"), Name: name, Key: key}
	m.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // a redirect must not get the key
	return m
}

type modelMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// transcribe returns the text of a WAV file. It is empty if nothing was said.
func (m *Model) transcribe(ctx context.Context, wav []byte) (string, error) {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	file, err := form.CreateFormFile("file", "utterance.wav")
	if err == nil {
		_, err = file.Write(wav)
	}
	err = errors.Join(err, form.WriteField("model", m.Name), form.WriteField("response_format", "json"), form.Close())
	if err != nil {
		return "", fmt.Errorf("encode audio: %w", err)
	}
	var response struct {
		Text string `json:"text"`
	}
	const path = "/v1/audio/transcriptions"
	resp, err := m.post(ctx, path, form.FormDataContentType(), &body)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	err = m.decode(resp, path, &response)
	return truncate(strings.TrimSpace(response.Text), maxAnswer), err
}

// post sends a request. The status of the response is 200. The request ends if the model sends
// nothing for modelTimeout. Errors are for people and never contain the key.
func (m *Model) post(ctx context.Context, path, contentType string, body io.Reader) (*http.Response, error) {
	ctx, watchdog := background.NewWatchdog(ctx, modelTimeout, fmt.Errorf("no data for %s", modelTimeout))
	var resp *http.Response
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL+path, body)
	if err == nil {
		req.Header.Set("Content-Type", contentType)
		repeatOnNewConnection(req)
		if m.Key != "" {
			req.Header.Set("Authorization", "Bearer "+m.Key.Reveal())
		}
		resp, err = m.client.Do(req)
	}
	if err != nil {
		watchdog.Stop()
		return nil, fmt.Errorf("the server in %s does not answer: %w", m.Setting, err)
	}
	resp.Body = watchdog.Watch(resp.Body)
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxModelResponse)) // the status says enough
		return nil, fmt.Errorf("the server in %s returned status %d: %s", m.Setting, resp.StatusCode, redact.Excerpt(raw, maxModelError, m.Key.Reveal()))
	}
	return resp, nil
}

func (m *Model) decode(resp *http.Response, path string, response any) error {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxModelResponse))
	switch {
	case err != nil:
		return fmt.Errorf("the server in %s stopped answering: %w", m.Setting, err)
	case json.Unmarshal(raw, response) != nil:
		return fmt.Errorf("the server in %s sent no valid response for %s", m.Setting, path)
	}
	return nil
}

// truncate limits a text to a number of characters.
func truncate(text string, limit int) string {
	for i := range text {
		if limit--; limit < 0 {
			return text[:i] + "…"
		}
	}
	return text
}
