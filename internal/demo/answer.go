package demo

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/callback"
)

const completionsPath = "/v1/chat/completions"

// wordPause is the time for which the words of a model are collected. Each part of a stream
// costs requests, and a message in the history.
const wordPause = 50 * time.Millisecond

// streamedAnswer is an answer that the model is still writing.
type streamedAnswer struct {
	body     io.ReadCloser
	remember func(text string) // is called with the text when it has ended

	mu     sync.Mutex
	events *bufio.Reader // of body
	text   string        // so far
	lines  bytes.Buffer  // the body of the callback so far; it is kept to send it again
	next   time.Time     // of the next read
	ended  bool          // lines has the last line
}

// complete asks the model for the answer to a conversation: a stream, whose body the caller closes,
// or the text if the server does not stream.
func (m *Model) complete(ctx context.Context, conversation []modelMessage) (stream *streamedAnswer, text string, err error) {
	messages := append([]modelMessage{{"system", systemPrompt}}, conversation...)
	raw, err := json.Marshal(object{"model": m.Name, "messages": messages, "max_tokens": maxAnswerTokens, "stream": true})
	if err != nil {
		return nil, "", fmt.Errorf("encode conversation: %w", err)
	}
	resp, err := m.post(ctx, completionsPath, "application/json", bytes.NewReader(raw))
	if err != nil {
		return nil, "", err
	}
	if callback.MediaType(resp.Header.Get("Content-Type")) == callback.EventStream {
		return newStreamedAnswer(resp.Body), "", nil
	}
	defer resp.Body.Close()
	var response struct {
		Choices []struct {
			Message modelMessage `json:"message"`
		} `json:"choices"`
	}
	if err := m.decode(resp, completionsPath, &response); err != nil {
		return nil, "", err
	}
	if len(response.Choices) > 0 {
		text = truncate(strings.TrimSpace(response.Choices[0].Message.Content), maxAnswer)
	}
	if text == "" {
		return nil, "", fmt.Errorf("the server in %s sent an empty answer", m.Setting)
	}
	return nil, text, nil
}

// newStreamedAnswer returns the answer in an event stream.
func newStreamedAnswer(body io.ReadCloser) *streamedAnswer {
	return &streamedAnswer{body: body, remember: func(string) {}, events: bufio.NewReaderSize(io.LimitReader(body, maxModelResponse), 64<<10)}
}

// answerReader reads the body of a streamed answer's callback from its start. Several may
// exist, because a request that has failed may still read for a moment.
type answerReader struct {
	*streamedAnswer
	pos int
}

func (r *answerReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.pos == r.lines.Len() && !r.ended {
		r.fetch()
	}
	n := copy(p, r.lines.Bytes()[r.pos:])
	if r.pos += n; n == 0 && r.ended {
		return 0, io.EOF
	}
	return n, nil
}

// fetch waits for the next read and adds a line with the words that the model has written since
// the last one, and the last line if the model has ended or broken off its answer. The caller
// holds mu.
func (a *streamedAnswer) fetch() {
	time.Sleep(time.Until(a.next))
	text, last := "", ""
	for more := true; more && last == ""; more = a.events.Buffered() > 0 {
		event, err := a.events.ReadBytes('\n')
		data := bytes.TrimSpace(bytes.TrimPrefix(event, []byte("data:")))
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
			Error *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		switch decodeErr := json.Unmarshal(data, &chunk); {
		case string(data) == "[DONE]":
			last = `{"done":true}`
		case decodeErr == nil && chunk.Error != nil:
			last = modelFailed(chunk.Error.Message)
		case decodeErr == nil && len(chunk.Choices) > 0:
			text += chunk.Choices[0].Delta.Content
		}
		if err != nil && last == "" {
			last = modelFailed("the model broke off its answer")
		}
	}
	if text != "" {
		line, _ := json.Marshal(object{"delta": text}) // a string can always be encoded
		a.lines.Write(append(line, '\n'))
		a.text, a.next = a.text+text, time.Now().Add(wordPause)
	}
	a.lines.WriteString(last)
	if last != "" {
		a.end()
	}
}

// modelFailed returns the body of a callback with an error that the runtime shows to the caller.
func modelFailed(message string) string {
	raw, _ := json.Marshal(object{"error": object{"code": "MODEL_FAILED", "message": message}}, json.Deterministic(true)) // strings can always be encoded
	return string(raw)
}

// end remembers the text, once. fetch calls it before the last line is read, so that the next
// question, which may follow at once, finds the text. The caller holds mu.
func (a *streamedAnswer) end() {
	if !a.ended {
		a.ended = true
		a.remember(a.text)
	}
}

// breakOff ends an answer that is not needed any more.
func (a *streamedAnswer) breakOff() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end()
}

// askModel returns the body of a callback with the model's answer to a question, or its error.
func (b *Bot) askModel(q botRequest) any {
	history, _ := b.histories.Get(q.ChannelID)
	history = append(history[:len(history):len(history)], modelMessage{"user", truncate(q.Text, maxAnswer)})
	history = history[max(0, len(history)-maxHistoryMessages):]
	publish := func(title string, data any) {
		b.events.Record(Event{SessionID: q.ChannelID, Lane: LaneBot, Kind: EventHTTP, Title: title}, data)
	}
	publish("request to model "+b.model.Name, nil)
	start := time.Now()
	stream, text, err := b.model.complete(b.ctx, history)
	if err != nil {
		publish("model failed", map[string]string{"error": err.Error()})
		return jsontext.Value(modelFailed(err.Error()))
	}
	publish("model answered", map[string]int64{"ms": time.Since(start).Milliseconds()})
	remember := func(text string) {
		b.histories.Add("", q.ChannelID, 1, append(history, modelMessage{"assistant", text}))
	}
	if stream != nil {
		stream.remember = remember
		return stream
	}
	remember(text)
	return textAnswer(text)(q)
}
