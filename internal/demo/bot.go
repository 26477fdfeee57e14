package demo

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/sleep"
)

const (
	maxRequest         = 64 << 10
	botShutdownTimeout = 2 * time.Second
	maxPosts           = 3 // of one answer
)

// botRequest is a question to the bot with the callback for the answer.
type botRequest struct {
	question
	ChannelID string         `json:"channelId"`
	Callback  callbackTarget `json:"callback"`
}

type callbackTarget struct {
	URL   string `json:"url"`
	Token string `json:"token"` // value of the token header
}

// Bot is an asynchronous provider: it accepts a question with 202 and posts the
// answer to the webhook later.
type Bot struct {
	api      string
	client   *http.Client
	events   *Hub
	log      *slog.Logger
	listener net.Listener
	answers  sync.WaitGroup
	ctx      context.Context // of answers; set by Run
}

// NewBot listens on a free loopback port. The bot posts answers only to the API
// server at the given URL.
func NewBot(api string, client *http.Client, events *Hub, log *slog.Logger) (*Bot, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start demo bot: %w", err)
	}
	return &Bot{api: api, client: client, events: events, log: log, listener: l}, nil
}

// URL returns the URL for questions.
func (b *Bot) URL() string { return "http://" + b.listener.Addr().String() + "/" }

// Run answers questions until ctx ends.
func (b *Bot) Run(ctx context.Context) {
	b.ctx = ctx
	server := &http.Server{Handler: http.HandlerFunc(b.handle), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	var serving sync.WaitGroup
	served := make(chan error, 1)
	serving.Go(func() { served <- server.Serve(b.listener) })
	select {
	case err := <-served:
		b.log.WarnContext(ctx, "demo bot failed", "error", err)
	case <-ctx.Done():
	}
	// Wait for requests first: each of them may start an answer.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), botShutdownTimeout)
	defer cancel()
	if server.Shutdown(closing) != nil {
		_ = server.Close()
	}
	serving.Wait()
	b.answers.Wait()
}

// handle accepts a question and answers it in the background.
func (b *Bot) handle(w http.ResponseWriter, r *http.Request) {
	var q botRequest
	if err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, maxRequest), &q); err != nil || !strings.HasPrefix(q.Callback.URL, b.api+"/") {
		http.Error(w, "invalid question or callback URL", http.StatusBadRequest)
		return
	}
	parts := answerParts(q.question)
	if q.Part < 1 || q.Part > len(parts) {
		http.Error(w, "invalid part", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = fmt.Fprintf(w, `{"parts":%d}`, len(parts))
	b.answers.Go(func() {
		part := parts[q.Part-1]
		if sleep.For(b.ctx, part.after) == nil {
			b.post(b.ctx, q, part.body(q))
		}
	})
}

// post posts an answer with the work item's token. It retries if the result is unknown.
func (b *Bot) post(ctx context.Context, q botRequest, body any) {
	b.events.Publish(q.ChannelID, LaneBot, LaneService, EventCallback, fmt.Sprintf("posts answer, part %d", q.Part), body)
	for range maxPosts {
		status, receipt, err := doJSON(ctx, b.client, http.MethodPost, q.Callback.URL, http.Header{"Token": {q.Callback.Token}}, body)
		if err == nil {
			b.events.Publish(q.ChannelID, LaneService, LaneBot, EventCallback, receiptTitle(status, receipt), jsontext.Value(receipt))
		}
		if err == nil && status != http.StatusServiceUnavailable || ctx.Err() != nil {
			return
		}
		_ = sleep.For(ctx, time.Second)
	}
}

// receiptTitle summarizes the response to a callback.
func receiptTitle(status int, receipt []byte) string {
	var known struct {
		Status   string
		Commands []struct{ Type, Decision string }
		Error    struct{ Code string }
	}
	_ = json.Unmarshal(receipt, &known, json.MatchCaseInsensitiveNames(true)) // missing members stay empty
	title := strings.TrimSpace(fmt.Sprint(status, " ", known.Status, known.Error.Code))
	for _, c := range known.Commands {
		title += ", " + c.Type + " " + c.Decision
	}
	return title
}
