package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
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

// modelAnswer is the answer of a model: a text, or an event stream that it is still
// writing.
type modelAnswer struct {
	text string        // so far, if it streams
	body io.ReadCloser // nil if it does not stream

	mu     sync.Mutex
	line   []byte       // the start of a line that is not complete
	events bytes.Buffer // to be sent, so far; they are kept to send them again
	next   time.Time    // of the next read
	done   bool         // the last event has arrived
	ended  bool
}

// complete asks the model for the answer to a conversation. The caller closes it. A
// server that does not stream sends the whole text.
func (m *Model) complete(ctx context.Context, conversation []modelMessage) (*modelAnswer, error) {
	messages := append([]modelMessage{{"system", systemPrompt}}, conversation...)
	raw, err := json.Marshal(map[string]any{"model": m.Name, "messages": messages, "max_tokens": maxAnswerTokens, "stream": true})
	if err != nil {
		return nil, fmt.Errorf("encode conversation: %w", err)
	}
	resp, err := m.send(ctx, completionsPath, "application/json", bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	if callback.MediaType(resp.Header.Get("Content-Type")) == callback.EventStream {
		return &modelAnswer{body: resp.Body}, nil
	}
	defer resp.Body.Close()
	var response struct {
		Choices []struct {
			Message modelMessage `json:"message"`
		} `json:"choices"`
	}
	if err := m.decode(resp, completionsPath, &response); err != nil {
		return nil, err
	}
	if len(response.Choices) == 0 || strings.TrimSpace(response.Choices[0].Message.Content) == "" {
		return nil, fmt.Errorf("the server in %s sent an empty answer", m.Setting)
	}
	return &modelAnswer{text: truncate(strings.TrimSpace(response.Choices[0].Message.Content), maxAnswer)}, nil
}

// brokenOff ends the stream of a model that stops before its end.
const brokenOff = "\n\ndata: {\"error\":{\"code\":\"MODEL_FAILED\",\"message\":\"the model broke off its answer\"}}\n\n"

// answerReader reads a streamed answer from its start. Several may exist, because a request
// that has failed may still read for a moment.
type answerReader struct {
	*modelAnswer
	pos int
}

func (r *answerReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.pos == r.events.Len() && !r.ended {
		r.fetch()
	}
	n := copy(p, r.events.Bytes()[r.pos:])
	if r.pos += n; n == 0 && r.ended {
		return 0, io.EOF
	}
	return n, nil
}

// fetch reads what the model has written since the last read.
func (a *modelAnswer) fetch() {
	time.Sleep(time.Until(a.next))
	piece := make([]byte, 4<<10)
	n, err := a.body.Read(piece)
	a.line = append(a.line, piece[:n]...)
	complete := bytes.LastIndexByte(a.line, '\n') + 1
	if a.addEvents(a.line[:complete]) && n < len(piece)/2 { // a fast model does not have to wait
		a.next = time.Now().Add(wordPause)
	}
	a.line = a.line[complete:]
	if err != nil || a.events.Len()+len(a.line) > maxModelResponse/2 {
		a.addEvents(append(a.line, '\n'))
		if a.ended = true; !a.done {
			a.events.WriteString(brokenOff)
		}
	}
}

// addEvents adds complete lines of an event stream. It joins the text of consecutive events, and
// returns whether there was any.
func (a *modelAnswer) addEvents(lines []byte) (hasText bool) {
	text := ""
	flush := func() {
		if text != "" {
			raw, _ := json.Marshal(text) // a string can always be encoded
			fmt.Fprintf(&a.events, "data: {\"choices\":[{\"delta\":{\"content\":%s}}]}\n\n", raw)
			a.text, text, hasText = a.text+text, "", true
		}
	}
	for line := range bytes.Lines(lines) {
		if delta := deltaOf(line); delta != "" {
			text += delta
			continue
		}
		if len(bytes.TrimSpace(line)) > 0 {
			flush()
			a.done = a.done || string(bytes.Join(bytes.Fields(line), nil)) == "data:[DONE]"
		}
		a.events.Write(line)
	}
	flush()
	return hasText
}

// deltaOf returns the text in a line of an event stream, if it is all that matters.
func deltaOf(line []byte) string {
	var chunk struct {
		Choices []struct {
			Index int64 `json:"index"`
			Delta struct {
				Content string `json:"content"`
			} `json:"delta"`
		} `json:"choices"`
		Error jsontext.Value `json:"error"`
	}
	data, found := bytes.CutPrefix(line, []byte("data:"))
	if !found || json.Unmarshal(bytes.TrimSpace(data), &chunk) != nil || len(chunk.Choices) != 1 || chunk.Choices[0].Index != 0 || chunk.Error != nil {
		return ""
	}
	return chunk.Choices[0].Delta.Content
}

// streamedText returns the text of the events so far.
func (a *modelAnswer) streamedText() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text
}

// askModel returns the model's answer to a question, or the body of an error that
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
	if answer.body != nil {
		return streamedAnswer{answer, func(text string) { b.histories.Add(q.ChannelID, append(history, modelMessage{"assistant", text})) }}
	}
	b.histories.Add(q.ChannelID, append(history, modelMessage{"assistant", answer.text}))
	return textAnswer(answer.text)(q)
}

// streamedAnswer is the body of a callback that streams. done is called with its text.
type streamedAnswer struct {
	*modelAnswer
	done func(text string)
}

// streamTrip sends a streamed answer from its start.
func streamTrip(ctx context.Context, client *http.Client, url string, header http.Header, answer streamedAnswer) (response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, &answerReader{modelAnswer: answer.modelAnswer})
	if err != nil {
		return response{}, err
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Content-Type", callback.EventStream)
	streaming := *client
	streaming.Timeout = maxStreamTime
	resp, err := streaming.Do(req)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxModelResponse))
	return response{resp.StatusCode, resp.Header, content}, err
}

// maxStreamTime bounds a streamed answer, like the default deadline of its work item.
const maxStreamTime = 5 * time.Minute
