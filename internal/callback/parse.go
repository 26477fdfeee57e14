package callback

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Result is a decoded callback body.
type Result struct {
	// hasIdentity reports whether the body has a message ID or a timestamp. Two
	// identical bodies with an identity are one message that was sent twice.
	hasIdentity bool

	// At most one of these is set.
	failure    *errorEnvelope // from any provider
	bot        *botBody
	llmContent *string
	toolResult jsontext.Value

	commands []command.Request
	streamed bool // the body is the last line of a streamed answer
	parts    int  // of the streamed answer

	allKnown bool                 // no unknown member outside of commands; false if a streamed last line has "done"
	ignored  []strictjson.Warning // known members that have no effect
}

// Parse decodes a callback body of the given kind. A bot's body must contain the
// channel ID. The error is MALFORMED_JSON, or a VALIDATION_ERROR that lists all
// issues.
func Parse(kind wire.WorkItemKind, data []byte, channelID string) (Result, error) {
	if isErrorEnvelope(data) {
		r, err := parseError(data, channelID)
		toolResult := kind == wire.ToolItem && r.failure == nil // it only looks like an error
		if !toolResult {
			return r, err
		}
	}
	var issues fault.Issues
	switch kind {
	case wire.BotItem:
		return parseBot(data, channelID, false, &issues)
	case wire.LLMItem:
		return parseLLM(data, false, &issues)
	case wire.ToolItem:
		var r Result
		err := strictjson.Decode(data, &r.toolResult, "", &issues) // every JSON value is valid
		return r, err
	default:
		return Result{}, fmt.Errorf("parse callback: unknown kind %q", kind)
	}
}

// Entries returns the entries for the runtime stream, in order, and the decision
// on each command. The commands of the whole body come last. Each entry is a copy
// of base with more fields. There is at least one entry, because the runtime waits
// for an entry of each work item. Entries doesn't change r: it can be called again
// with another policy.
func (r Result) Entries(base wire.Entry, policy *command.Policy) ([]wire.Entry, []command.Decision) {
	b := entryBuilder{base: base, policy: policy}
	switch {
	case r.failure != nil:
		if r.failure.Metadata != nil {
			b.add(wire.KindMetadata).Metadata = r.failure.Metadata
		}
		b.add(wire.KindProviderError).Error = r.failure.Error
	case r.bot != nil:
		r.bot.addTo(&b, r.streamed, r.parts)
	case r.toolResult != nil:
		b.add(wire.KindToolResult).Result = r.toolResult
	case r.llmContent != nil:
		e := b.add(wire.KindLLMResult)
		e.Content, e.Parts = r.llmContent, r.parts
	}
	b.addCommands(r.commands)
	if len(b.entries) == 0 {
		b.add(wire.KindBotEvent).Event = wire.EventEmpty
	}
	return b.entries, b.decisions
}

// entryBuilder collects the entries of one callback.
type entryBuilder struct {
	base      wire.Entry
	policy    *command.Policy
	entries   []wire.Entry
	decisions []command.Decision
}

// add appends a copy of base. The pointer is valid until the next call.
func (b *entryBuilder) add(kind wire.EntryKind) *wire.Entry {
	b.entries = append(b.entries, b.base)
	e := &b.entries[len(b.entries)-1]
	e.Kind = kind
	return e
}

func (b *entryBuilder) addEvent(name string, value any) {
	raw, _ := json.Marshal(value) // cannot fail: booleans, strings and validated numbers can be encoded
	e := b.add(wire.KindBotEvent)
	e.Event, e.Value = name, raw
}

func (b *entryBuilder) addCommands(list []command.Request) {
	for _, r := range list {
		d := b.policy.Decide(r, b.base.Source, b.base.Trace.TransactionID)
		b.decisions = append(b.decisions, d)
		kind := wire.KindCommand
		if d.Reason != "" {
			kind = wire.KindCommandDenied
		}
		e := b.add(kind)
		e.Command, e.Apply, e.Reason = wire.AnyCommand{Command: d.Command}, d.Apply, d.Reason
	}
}

// assistantMessage is a message of a language model. Its content is a string or
// an array of parts.
type assistantMessage struct {
	Content jsontext.Value `json:"content"`
}

// llmBody is the body of a language model.
type llmBody struct {
	assistantMessage
	Message assistantMessage `json:"message"`
	Choices []struct {
		Message assistantMessage `json:"message"`
	} `json:"choices"`
	Commands []jsontext.Value `json:"commands" max:"100"` // command.MaxCommands, for the error of strictjson
}

// parseLLM decodes the body of a language model: an assistant message as content, as
// message.content or in the chat completions format, managed commands, or both. The last line of a
// streamed answer may have neither. The error has the given issues and those that parseLLM adds.
func parseLLM(data []byte, streamed bool, issues *fault.Issues) (r Result, err error) {
	var body llmBody
	if r.allKnown, err = strictjson.DecodeKnown(data, &body, issues); err != nil {
		return Result{}, err
	}
	r.setContent(body.Content, "/content", issues)
	r.setContent(body.Message.Content, "/message/content", issues)
	for i, c := range body.Choices {
		if path := fault.Pointer("/choices", i); i == 0 {
			r.setContent(c.Message.Content, path+"/message/content", issues)
		} else {
			r.ignore(path, "Has no effect: only the first choice is used.")
		}
	}
	if r.llmContent == nil && len(body.Commands) == 0 && !streamed {
		issues.Missing("/content", "Send content, message.content, choices or commands.")
	}
	r.commands = command.ParseList(body.Commands, "/commands", issues)
	return r, issues.Err()
}

// setContent sets llmContent if there is none yet. It joins the texts of a content with parts.
func (r *Result) setContent(content jsontext.Value, path string, issues *fault.Issues) {
	var text string
	switch {
	case !strictjson.Present(content):
		return
	case r.llmContent != nil:
		r.ignore(path, "Has no effect: the body has another content.")
		return
	case content.Kind() == '[':
		var parts []struct {
			Text *string `json:"text"`
		}
		_ = strictjson.Decode(content, &parts, path, issues) // an error is also in issues
		var all strings.Builder
		for i, p := range parts {
			if p.Text == nil {
				r.ignore(fault.Pointer(path, i), "Has no effect: it has no text.")
			} else {
				all.WriteString(*p.Text)
			}
		}
		text = all.String()
	default:
		_ = strictjson.Decode(content, &text, path, issues) // cannot fail: the value is already decoded
	}
	r.llmContent = &text
}

// ignore records a member that has no effect.
func (r *Result) ignore(path, why string) {
	if len(r.ignored) < strictjson.MaxWarnings {
		r.ignored = append(r.ignored, strictjson.Warning{Path: path, Message: why})
	}
}

// errorEnvelope is the body with which a provider reports an error.
type errorEnvelope struct {
	Error        jsontext.Value `json:"error"`
	Conversation struct {
		Identifier struct {
			ID *string `json:"id"`
		} `json:"identifier"`
	} `json:"conversation"`
	From     wire.Party     `json:"from"`
	Metadata jsontext.Value `json:"metadata"`
	Done     bool           `json:"done"` // of the last line of a streamed answer
}

// isErrorEnvelope reports whether data is an object with the member "error" and
// no other members except "conversation", "from", "metadata" and the given ones. Members that
// are null are ignored.
func isErrorEnvelope(data []byte, others ...string) bool {
	// Most bodies contain neither the name nor an escaped form of it.
	if !bytes.Contains(data, []byte(`"error"`)) && !bytes.Contains(data, []byte(`\u`)) {
		return false
	}
	found := false
	for name, value := range strictjson.Members(data) {
		switch {
		case value.Kind() == 'n': // null
		case name == "error":
			found = true
		case name != "conversation" && name != "from" && name != "metadata" && !slices.Contains(others, name):
			return false
		}
	}
	return found
}

// parseError decodes an error envelope. A code and a message are required; without them, failure
// is not set. The ID of the channel is optional.
func parseError(data []byte, channelID string) (Result, error) {
	var issues fault.Issues
	envelope := new(errorEnvelope)
	allKnown, err := strictjson.DecodeKnown(data, envelope, &issues)
	if err != nil {
		return Result{}, err
	}
	var known struct {
		Code    *string `json:"code"`
		Message *string `json:"message"`
	}
	if err := strictjson.Decode(envelope.Error, &known, "/error", &issues); err != nil {
		return Result{}, err
	}
	if known.Code == nil {
		issues.Missing("/error/code", "code is required.")
	}
	if known.Message == nil {
		issues.Missing("/error/message", "message is required.")
	}
	strictjson.CheckObject(&envelope.Metadata, "/metadata", &issues)
	if err := issues.Err(); err != nil {
		return Result{}, err
	}
	if id := envelope.Conversation.Identifier.ID; id != nil && *id != channelID {
		issues.Add("/conversation/identifier/id", fault.IssueValue, "The channel ID differs from the one in the path.")
	}
	return Result{failure: envelope, allKnown: allKnown}, issues.Err()
}
