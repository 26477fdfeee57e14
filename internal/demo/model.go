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

	"telapi/internal/redact"
)

const (
	modelTimeout       = 25 * time.Second // shorter than the bot's timeout, so that the caller learns the reason
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
	m.client.Timeout = modelTimeout
	m.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // a redirect must not get the key
	return m
}

// modelMessage is a message of a conversation with a language model.
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
	err = m.post(ctx, "/v1/audio/transcriptions", form.FormDataContentType(), &body, &response)
	return truncate(strings.TrimSpace(response.Text), maxAnswer), err
}

// complete returns the model's answer to a conversation.
func (m *Model) complete(ctx context.Context, conversation []modelMessage) (string, error) {
	messages := append([]modelMessage{{"system", systemPrompt}}, conversation...)
	raw, err := json.Marshal(map[string]any{"model": m.Name, "messages": messages, "max_tokens": maxAnswerTokens})
	if err != nil {
		return "", fmt.Errorf("encode conversation: %w", err)
	}
	var response struct {
		Choices []struct {
			Message modelMessage `json:"message"`
		} `json:"choices"`
	}
	if err := m.post(ctx, "/v1/chat/completions", "application/json", bytes.NewReader(raw), &response); err != nil {
		return "", err
	}
	if len(response.Choices) == 0 || strings.TrimSpace(response.Choices[0].Message.Content) == "" {
		return "", fmt.Errorf("the server in %s sent an empty answer", m.Setting)
	}
	return truncate(strings.TrimSpace(response.Choices[0].Message.Content), maxAnswer), nil
}

// post sends a request and decodes the response. Its errors are for people and never
// contain the key.
func (m *Model) post(ctx context.Context, path, contentType string, body io.Reader, response any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL+path, body)
	if err != nil {
		return fmt.Errorf("invalid %s: %w", m.Setting, err)
	}
	req.Header.Set("Content-Type", contentType)
	if m.Key != "" {
		req.Header.Set("Authorization", "Bearer "+m.Key.Reveal())
	}
	resp, err := m.client.Do(req)
	if err != nil {
		return fmt.Errorf("the server in %s does not answer: %w", m.Setting, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxModelResponse))
	switch {
	case err != nil:
		return fmt.Errorf("the server in %s stopped answering: %w", m.Setting, err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("the server in %s returned status %d: %s", m.Setting, resp.StatusCode, redact.Excerpt(raw, maxModelError, m.Key.Reveal()))
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

// askModel returns the body of the model's answer to a question, or of an error that
// the runtime shows to the caller.
func (b *Bot) askModel(q botRequest) any {
	history, _ := b.histories.Get(q.ChannelID)
	history = append(history[:len(history):len(history)], modelMessage{"user", truncate(q.Text, maxAnswer)})
	history = history[max(0, len(history)-maxHistoryMessages):]
	b.events.Publish(q.ChannelID, LaneBot, "", EventHTTP, "request to model "+b.model.Name, nil)
	start := time.Now()
	answer, err := b.model.complete(b.ctx, history)
	if err != nil {
		b.events.Publish(q.ChannelID, LaneBot, "", EventHTTP, "model failed", map[string]string{"error": err.Error()})
		return object{"error": object{"code": "MODEL_FAILED", "message": err.Error()}}
	}
	b.events.Publish(q.ChannelID, LaneBot, "", EventHTTP, "model answered", map[string]int64{"ms": time.Since(start).Milliseconds()})
	b.histories.Add(q.ChannelID, append(history, modelMessage{"assistant", answer}))
	return textAnswer(answer)(q)
}
