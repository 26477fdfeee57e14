package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/cache"
	"telapi/internal/callback"
)

const (
	maxRequest         = 64 << 10
	botShutdownTimeout = 2 * time.Second
	maxPosts           = 60 // attempts to post an answer, one per second
	maxNextWait        = 10 * time.Second
	maxStreamTime      = 5 * time.Minute // of a streamed answer, like the default deadline of its work item
)

// botRequest is the body of a request to the bot: a question, and where to post the
// answer. docs/providers.md suggests this form.
type botRequest struct {
	Kind       wire.WorkItemKind `json:"kind"`
	ChannelID  string            `json:"channelId"`
	WorkItemID string            `json:"workItemId"`
	question
	Callback callbackTarget `json:"callback"`
}

type callbackTarget struct {
	URL       string    `json:"url"`
	Token     string    `json:"token"` // value of the token header
	ExpiresAt time.Time `json:"expiresAt"`
}

// Bot is an asynchronous provider: it accepts a question with 202 and posts the
// answer to the webhook later.
type Bot struct {
	api       string
	client    *http.Client
	model     *Model                     // nil: small talk
	histories *cache.LRU[[]modelMessage] // by channel ID
	events    *Hub
	log       *slog.Logger
	listener  net.Listener
	answers   sync.WaitGroup
	posted    sync.Map        // chan struct{} by work item: closed when the answer is posted
	ctx       context.Context // for answers, which outlive their questions; set by Run
}

// NewBot listens on a free loopback port. The bot posts answers only to the API
// server at the given URL. It passes questions without a scripted answer to model,
// unless model is nil.
func NewBot(api string, client *http.Client, model *Model, events *Hub, log *slog.Logger) (*Bot, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start demo bot: %w", err)
	}
	return &Bot{api: api, client: client, model: model, histories: cache.NewLRU[[]modelMessage](maxHistories, 100), events: events, log: log, listener: l}, nil
}

// URL returns the URL for questions.
func (b *Bot) URL() string { return "http://" + b.listener.Addr().String() + "/" }

// Close releases the port. It is not needed after Run.
func (b *Bot) Close() { _ = b.listener.Close() }

// Run answers questions until ctx ends. It then closes the bot.
func (b *Bot) Run(ctx context.Context) {
	b.ctx = ctx
	server := &http.Server{Handler: http.HandlerFunc(b.handle), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(b.listener); !errors.Is(err, http.ErrServerClosed) {
			b.log.WarnContext(ctx, "demo bot failed", "error", err)
		}
	})
	<-ctx.Done()
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
	switch {
	case parts != nil:
	case b.model != nil:
		parts = []part{{body: b.askModel}}
	default:
		parts = []part{{delay: thinkingTime, body: textAnswer(smallTalk(q.Text))}}
	}
	if q.Part < 1 || q.Part > len(parts) {
		http.Error(w, "invalid part", http.StatusBadRequest)
		return
	}
	part := parts[q.Part-1]
	q.itemID = q.WorkItemID
	var nextPosted chan struct{}
	if part.afterNext { // the runtime asks for the next part when it has the response to this request
		posted, _ := b.posted.LoadOrStore(q.next().itemID, make(chan struct{})) // the question may be asked twice
		nextPosted = posted.(chan struct{})
	}
	received := time.Now()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = fmt.Fprintf(w, `{"parts":%d}`, len(parts))
	b.answers.Go(func() {
		if part.afterNext {
			select {
			case <-nextPosted:
			case <-time.After(maxNextWait): // the runtime has had time enough to ask for it
				b.posted.CompareAndDelete(q.next().itemID, nextPosted)
			case <-b.ctx.Done():
			}
		}
		if background.Sleep(b.ctx, part.delay) == nil {
			b.post(b.ctx, q, part.body(q), received)
		}
		if posted, ok := b.posted.LoadAndDelete(q.WorkItemID); ok {
			close(posted.(chan struct{}))
		}
	})
}

// post posts an answer with the work item's token. It retries after a network error
// or status 503.
func (b *Bot) post(ctx context.Context, q botRequest, body any, received time.Time) {
	url, contentType, shown, client := q.Callback.URL, "application/json", body, b.client
	stream, streams := body.(*streamedAnswer)
	if streams {
		defer stream.body.Close() // also ends a model whose answer is not needed any more
		url += "?split=none"      // the runtime shows words as they come, and speaks sentences
		contentType, shown = callback.NDJSON, object{"stream": b.model.Name}
		client = &http.Client{Transport: b.client.Transport, Timeout: maxStreamTime}
	}
	b.events.Record(Event{SessionID: q.ChannelID, Lane: LaneBot, To: LaneService, Kind: EventCallback, Title: fmt.Sprintf("answer from bot, part %d", q.Part),
		IDs: []string{answerRef(q.WorkItemID)}, After: []string{requestRef(q.WorkItemID)}, Ms: milliseconds(received),
		HTTP: &Exchange{Method: http.MethodPost, URL: url, Headers: map[string]string{"Content-Type": contentType, "token": callbackTokenPlaceholder}}}, shown)
	for range maxPosts {
		if streams {
			body = &answerReader{streamedAnswer: stream}
		}
		start := time.Now()
		receipt, err := roundTrip(ctx, client, http.MethodPost, url, http.Header{"Token": {q.Callback.Token}, "Content-Type": {contentType}}, body)
		if err == nil {
			b.events.Record(receiptEvent(q, receipt, milliseconds(start)), jsontext.Value(receipt.body))
		}
		if err == nil && receipt.status != http.StatusServiceUnavailable || ctx.Err() != nil {
			break
		}
		_ = background.Sleep(ctx, time.Second)
	}
	if streams {
		_ = stream.body.Close() // ends a read that holds the answer
		stream.breakOff()
	}
}

// receiptEvent describes the response to a callback. On the timeline it comes after
// the callback's entries. If these are parked, it comes before them.
func receiptEvent(q botRequest, receipt response, ms float64) Event {
	var known struct {
		Status     string
		CallbackID string
		Commands   []struct{ Type, Decision string }
		Error      struct{ Code string }
	}
	_ = json.Unmarshal(receipt.body, &known, json.MatchCaseInsensitiveNames(true)) // missing members stay empty
	title := strings.TrimSpace(fmt.Sprint(receipt.status, " ", known.Status, known.Error.Code))
	for _, c := range known.Commands {
		title += ", " + c.Type + " " + c.Decision
	}
	e := Event{SessionID: q.ChannelID, Lane: LaneService, To: LaneBot, Kind: EventCallback, Title: title, After: []string{answerRef(q.WorkItemID)}, Ms: ms,
		HTTP: &Exchange{http.MethodPost, q.Callback.URL, receipt.status, headersOf(receipt.header)}}
	switch known.Status {
	case "parked":
		e.IDs = []string{parkedRef(q.WorkItemID)}
	case "accepted":
		e.After = append(e.After, routedRef(known.CallbackID))
	}
	return e
}

// Phrase is a sentence the bot understands and its effect.
type Phrase struct {
	Say, Does string
	parts     []part // of the answer
}

// Phrases returns all phrases.
func Phrases() []Phrase { return script }

// part is a part of an answer. It is posted after a delay. Each part has its own work
// item.
type part struct {
	delay     time.Duration
	body      func(botRequest) any
	afterNext bool // delay starts when the next part is posted, at the latest after maxNextWait
}

// thinkingTime is the delay of most answers.
const thinkingTime = 300 * time.Millisecond

// Transfer targets that the demo endpoint's policy allows and denies.
const (
	allowedTarget = "tel:+493012345678"
	deniedTarget  = "tel:+19005550100"
)

var script = []Phrase{
	{"hello", "small talk; the bot answers anything else, too", nil},
	{"transfer me", "a transfer that the policy allows: the call is transferred and ends", []part{
		{delay: thinkingTime, body: controlAnswer("I will transfer you now.", "transfer", object{"transferTarget": allowedTarget})}}},
	{"transfer me abroad", "a transfer that the policy denies", []part{
		{delay: thinkingTime, body: controlAnswer("I will try to transfer you abroad.", "transfer", object{"transferTarget": deniedTarget})}}},
	{"call me slowly", "digit collection: press up to four keys, or # to finish", []part{
		{delay: thinkingTime, body: controlAnswer("Press up to four keys, slowly. # submits them.", "config", object{"sessionParams": object{
			"sendDTMF": true, "bargeIn": true, "bargeInOnDTMF": true, "dtmfCollect": true, "dtmfDigits": "0123456789",
			"dtmfCollectMaxDigits": 4, "dtmfCollectInterDigitTimeoutMS": 3000, "dtmfCollectSubmitDigit": "#",
		}})}}},
	{"be silent", "comfort prompts while the bot is silent, then a timeout", []part{
		{delay: thinkingTime, body: controlAnswer("I will be silent for a while.", "config", object{"sessionParams": object{
			"botNoInputTimeoutMs": 2000, "botNoInputSpeech": "The bot is still thinking.", "botNoInputRetries": 1, "botNoInputGiveUpTimeoutMs": 6000,
		}})},
		{delay: 9 * time.Second, body: textAnswer("This answer is late and will be rejected.")}}},
	{"fail", "the provider reports an error and the conversation continues", []part{
		{delay: thinkingTime, body: func(botRequest) any {
			return object{"error": object{"code": "DEMO_FAILURE", "message": "The demo bot was asked to fail."}}
		}}}},
	{"out of order", "two answers, the second posted first; they arrive in order", []part{
		{delay: 1200 * time.Millisecond, body: textAnswer("This is the first answer, posted last."), afterNext: true},
		{delay: thinkingTime, body: textAnswer("This is the second answer, posted first and parked.")}}},
	{"pause chat", "the runtime disables text chat for three seconds", []part{
		{delay: thinkingTime, body: emitAnswer("Text chat is off for three seconds.", wire.DisableTextChat)},
		{delay: 3 * time.Second, body: emitAnswer("Text chat is on again.", wire.EnableTextChat)}}},
	{"speak", "synthesized speech in every mode; say it twice to see a cache hit", []part{
		{delay: thinkingTime, body: answerWith(object{"voiceMessage": "This sentence is synthesized once and then read from the media cache."}, nil)}}},
	{"hang up", "the call ends after all playback has finished", []part{
		{delay: thinkingTime, body: controlAnswer("Goodbye.", "hangup", object{"hangupReason": "the demo bot hung up"})}}},
	{"help", "the list of these phrases", nil},
}

// answerParts returns the parts of the scripted answer to a question, or nil.
func answerParts(q question) []part {
	if q.DTMF != "" {
		return []part{{delay: thinkingTime, body: textAnswer("You pressed " + strings.Join(strings.Split(q.DTMF, ""), " ") + ".")}}
	}
	said := strings.ToLower(strings.Trim(strings.TrimSpace(q.Text), ".!?"))
	for _, p := range script {
		if said == p.Say && p.parts != nil {
			return p.parts
		}
	}
	if said == "help" {
		return []part{{delay: thinkingTime, body: textAnswer(help())}}
	}
	return nil
}

var smallTalkReplies = []struct{ contains, reply string }{
	{"hello", "Hello! How are you?"},
	{"good morning", "Good morning!"},
	{"how are you", "Always on. And you?"},
	{"who are you", "A demo bot with a few hundred lines of code, connected by a webhook."},
	{"thank", "You are welcome."},
	{"bye", "Goodbye. Say hang up to end the call."},
}

func smallTalk(text string) string {
	said := strings.ToLower(text)
	for _, t := range smallTalkReplies {
		if strings.Contains(said, t.contains) {
			return t.reply
		}
	}
	return `You said "` + text + `". Say help to hear what else I understand.`
}

func help() string {
	text := "I understand:"
	for _, p := range script {
		text += "\n" + p.Say + ": " + p.Does
	}
	return text
}

type object map[string]any

func textAnswer(text string) func(botRequest) any {
	return answerWith(object{"textMessage": object{"textPlain": text}}, nil)
}

// controlAnswer returns the body of an answer with a text and a control event.
func controlAnswer(text, event string, value object) func(botRequest) any {
	return answerWith(object{"textMessage": object{"textPlain": text}, "event": object{"custom": object{"name": event, "value": value}}}, nil)
}

// emitAnswer returns the body of an answer with a text and a command that emits an event.
func emitAnswer(text, event string) func(botRequest) any {
	return answerWith(object{"textMessage": object{"textPlain": text}}, object{"type": "emit_event", "event": event})
}

// answerWith returns the body of an answer with one message. command may be nil.
func answerWith(content, command object) func(botRequest) any {
	return func(q botRequest) any {
		body := object{
			"conversation": object{"identifier": object{"id": q.ChannelID}},
			"from":         object{"identifier": object{"id": "demo-bot", "name": "Demo bot"}},
			"messages":     object{"timestamp": time.Now().UTC().Format(time.RFC3339Nano), "message": []object{{"content": content}}},
		}
		if command != nil {
			body["actions"] = command
		}
		return body
	}
}
