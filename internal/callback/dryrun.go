package callback

import (
	"bytes"
	"cmp"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Trial is a callback that is decoded and decided on, but not delivered.
type Trial struct {
	Kind      wire.WorkItemKind
	Body      []byte
	MediaType string // of a streamed answer: NDJSON or EventStream; otherwise empty
	PerDelta  bool   // of a streamed answer: each delta is a part, not each sentence
	ChannelID string // empty: the one in the body
}

// DryRun describes the effects that a callback would have.
type DryRun struct {
	Entries   []wire.Entry         `json:"entries"`
	Decisions []CommandDecision    `json:"decisions"`
	Warnings  []strictjson.Warning `json:"warnings"` // members of the body that have no effect
}

// Try returns the effects of a trial. The error is the one that a valid credential would
// get.
func Try(t Trial, policy *command.Policy, now time.Time) (DryRun, error) {
	if t.MediaType != "" {
		return tryStream(t, policy, now)
	}
	t.ChannelID = cmp.Or(t.ChannelID, bodyChannelID(t.Body))
	result, err := Parse(t.Kind, t.Body, t.ChannelID)
	if err != nil {
		return DryRun{}, err
	}
	entries, decisions := result.Entries(t.entry(now), policy)
	return DryRun{entries, reportDecisions(decisions), result.lint(t.Body)}, nil
}

func tryStream(t Trial, policy *command.Policy, now time.Time) (DryRun, error) {
	if t.Kind == wire.ToolItem {
		return DryRun{}, fault.New(fault.UnsupportedMedia, "The result of a tool cannot be streamed. Send it as application/json.")
	}
	body := bytes.TrimSpace(t.Body)
	lastLine := body[bytes.LastIndexByte(body, '\n')+1:]
	t.ChannelID = cmp.Or(t.ChannelID, bodyChannelID(lastLine))
	s := &streamDecoder{kind: t.Kind, channelID: t.ChannelID, mediaType: t.MediaType, perDelta: t.PerDelta}
	texts, err := s.Write(t.Body)
	if err != nil {
		return DryRun{}, err
	}
	rest, err := s.Close()
	if err != nil {
		return DryRun{}, err
	}
	var entries []wire.Entry
	for i, text := range append(texts, rest...) {
		entries = append(entries, s.Part(t.entry(now), i+1, text))
	}
	last, decisions := s.result.Entries(t.entry(now), policy)
	return DryRun{append(entries, last...), reportDecisions(decisions), s.result.lint(s.lastLine)}, nil
}

func (t Trial) entry(now time.Time) wire.Entry {
	return wire.Entry{ChannelID: t.ChannelID, At: now.UnixMilli(), Source: t.Kind.Source()}
}

// bodyChannelID returns the channel ID in a bot's callback body, or a placeholder:
// other bodies have none.
func bodyChannelID(body []byte) string {
	var callback struct {
		Conversation struct {
			Identifier wire.Identifier `json:"identifier"`
		} `json:"conversation"`
	}
	_ = json.Unmarshal(body, &callback) // Parse reports an invalid body
	return cmp.Or(callback.Conversation.Identifier.ID, "channel")
}
