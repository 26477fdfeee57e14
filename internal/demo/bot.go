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
	maxRequest = 64 << 10
	// closeLimit is how long the bot's end waits for questions that are slow to come.
	closeLimit = 2 * time.Second
)

// order is what a runtime asks the bot, and how to answer.
type order struct {
	question
	ChannelID string   `json:"channelId"`
	Callback  callback `json:"callback"`
}

type callback struct {
	URL   string `json:"url"`
	Token string `json:"token"` // for the header of this name, raw
}

// Bot is an asynchronous provider as any other: it takes a question with 202
// and posts the answer to the webhook later.
type Bot struct {
	api      string
	client   *http.Client
	events   *Hub
	log      *slog.Logger
	listener net.Listener
	answers  sync.WaitGroup
	life     context.Context // of answers under way; set by Run
}

// NewBot listens on a loopback port of its own. It posts answers to the API at
// the given address only.
func NewBot(api string, client *http.Client, events *Hub, log *slog.Logger) (*Bot, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the demo bot: %w", err)
	}
	return &Bot{api: api, client: client, events: events, log: log, listener: l}, nil
}

// URL is where it is asked.
func (b *Bot) URL() string { return "http://" + b.listener.Addr().String() + "/" }

// Run answers until ctx ends.
func (b *Bot) Run(ctx context.Context) {
	b.life = ctx
	server := &http.Server{Handler: http.HandlerFunc(b.take), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(b.listener) }()
	select {
	case err := <-ended:
		b.log.WarnContext(ctx, "the demo bot ended", "error", err)
	case <-ctx.Done():
	}
	// Questions that are being taken come first: each may begin an answer.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	if server.Shutdown(closing) != nil {
		_ = server.Close()
	}
	b.answers.Wait()
}

// take accepts a question and answers it later.
func (b *Bot) take(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, maxRequest), &o); err != nil || !strings.HasPrefix(o.Callback.URL, b.api+"/") {
		http.Error(w, "not a question with an address to answer to", http.StatusBadRequest)
		return
	}
	parts := answersTo(o.question)
	if o.Part < 1 || o.Part > len(parts) {
		http.Error(w, "no such part", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = fmt.Fprintf(w, `{"parts":%d}`, len(parts))
	b.answers.Go(func() {
		part := parts[o.Part-1]
		if sleep.For(b.life, part.after) == nil {
			b.answer(b.life, o, part.body(o))
		}
	})
}

// answer posts a body with the work item's token, once more when it is not
// known whether it arrived.
func (b *Bot) answer(ctx context.Context, o order, body any) {
	b.events.Publish(o.ChannelID, LaneBot, LaneService, EventCallback, fmt.Sprintf("posts its answer, part %d", o.Part), body)
	for range 3 {
		status, receipt, err := exchange(ctx, b.client, http.MethodPost, o.Callback.URL, http.Header{"Token": {o.Callback.Token}}, body)
		if err == nil {
			b.events.Publish(o.ChannelID, LaneService, LaneBot, EventCallback, receiptTitle(status, receipt), jsontext.Value(receipt))
		}
		if err == nil && status != http.StatusServiceUnavailable || ctx.Err() != nil {
			return
		}
		_ = sleep.For(ctx, time.Second)
	}
}

// receiptTitle sums up the service's answer to a callback.
func receiptTitle(status int, receipt []byte) string {
	var known struct {
		Status   string
		Commands []struct{ Type, Decision string }
		Error    struct{ Code string }
	}
	_ = json.Unmarshal(receipt, &known, json.MatchCaseInsensitiveNames(true)) // what is not there is not shown
	title := strings.TrimSpace(fmt.Sprint(status, " ", known.Status, known.Error.Code))
	for _, c := range known.Commands {
		title += ", " + c.Type + " " + c.Decision
	}
	return title
}
