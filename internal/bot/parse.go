// Package bot decodes and validates the callback bodies of bots, language
// models and tools and converts them to entries of the runtime stream.
package bot

import (
	"bytes"
	"fmt"
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
	// HasIdentity reports whether the body has message IDs or a timestamp, so
	// that an identical body is a repetition and not a second message.
	HasIdentity bool

	failure  jsontext.Value // the error object of any provider
	bot      *document
	content  *string // of a language model
	tool     jsontext.Value
	commands []wire.Command
}

// Parse decodes a callback body of the given kind. The body of a bot has to name
// the channel. The error is MALFORMED_JSON or a VALIDATION_ERROR that lists all
// issues.
func Parse(kind wire.WorkItemKind, data []byte, channelID string) (Result, error) {
	if isErrorEnvelope(data) {
		result, err := parseError(data)
		if kind != wire.ToolItem || !fault.Is(err, fault.Validation) { // a tool's result may resemble an error
			return result, err
		}
	}
	switch kind {
	case wire.BotItem:
		return parseBot(data, channelID)
	case wire.LLMItem:
		return parseLLM(data)
	case wire.ToolItem:
		return parseTool(data)
	default:
		return Result{}, fmt.Errorf("parse callback: unknown kind %q", kind)
	}
}

// Entries returns the entries for the runtime stream, in order. The commands of
// the body as a whole are last. Each entry is a copy of base with its own fields
// set. Entries may be called again with another policy.
func (r Result) Entries(base wire.Entry, policy *command.Policy) []wire.Entry {
	b := entryBuilder{base: base, policy: policy}
	switch {
	case r.failure != nil:
		b.add(wire.KindProviderError).Error = r.failure
	case r.bot != nil:
		b.entries = make([]wire.Entry, 0, 1+2*len(r.bot.Messages.Message)+len(r.commands))
		r.bot.addTo(&b)
	case r.tool != nil:
		b.add(wire.KindToolResult).Result = r.tool
	case r.content != nil:
		b.add(wire.KindLLMResult).Content = r.content
	}
	b.addCommands(r.commands)
	return b.entries
}

// entryBuilder collects entries that share a base.
type entryBuilder struct {
	base    wire.Entry
	policy  *command.Policy
	entries []wire.Entry
}

// add appends an entry. The pointer is valid until the next add.
func (b *entryBuilder) add(kind wire.EntryKind) *wire.Entry {
	b.entries = append(b.entries, b.base)
	e := &b.entries[len(b.entries)-1]
	e.Kind = kind
	return e
}

func (b *entryBuilder) addEvent(name string, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		return // cannot happen: booleans, strings and validated numbers always encode
	}
	e := b.add(wire.KindBotEvent)
	e.Event, e.Value = name, raw
}

func (b *entryBuilder) addCommands(list []wire.Command) {
	for _, c := range list {
		d := b.policy.Decide(c, b.base.Source, b.base.Trace.TransactionID)
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

// parseLLM decodes the body of a language model: an assistant message as
// content, as message.content or in the chat completions format, managed
// commands, or both.
func parseLLM(data []byte) (Result, error) {
	var issues fault.Issues
	var doc struct {
		assistantMessage
		Message assistantMessage `json:"message"`
		Choices []struct {
			Message assistantMessage `json:"message"`
		} `json:"choices"`
		Commands []jsontext.Value `json:"commands"`
	}
	if err := strictjson.Decode(data, &doc, "", &issues); err != nil {
		return Result{}, err
	}
	var r Result
	switch {
	case strictjson.Present(doc.Content):
		r.content = doc.text("/content", &issues)
	case strictjson.Present(doc.Message.Content):
		r.content = doc.Message.text("/message/content", &issues)
	case len(doc.Choices) > 0 && strictjson.Present(doc.Choices[0].Message.Content):
		r.content = doc.Choices[0].Message.text("/choices/0/message/content", &issues)
	case len(doc.Commands) == 0:
		issues.Missing("/content", "Send content, message.content, choices or commands.")
	}
	r.commands = command.ParseList(doc.Commands, "/commands", &issues)
	return r, issues.Err()
}

// text joins the text of all parts.
func (m assistantMessage) text(path string, issues *fault.Issues) *string {
	var text string
	if m.Content.Kind() != '[' {
		_ = strictjson.Decode(m.Content, &text, path, issues) // cannot fail: the value is already decoded
		return &text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = strictjson.Decode(m.Content, &parts, path, issues)
	var all strings.Builder
	for _, p := range parts {
		all.WriteString(p.Text)
	}
	text = all.String()
	return &text
}

// parseTool decodes the body of a tool, which may be any JSON value. A tool sends
// no commands.
func parseTool(data []byte) (Result, error) {
	var issues fault.Issues // stays empty: every JSON value is a result
	var result jsontext.Value
	if err := strictjson.Decode(data, &result, "", &issues); err != nil {
		return Result{}, err
	}
	return Result{tool: result}, nil
}

// isErrorEnvelope reports whether data is an object with "error" as its only
// member. For most bodies the first letter of the first name decides.
func isErrorEnvelope(data []byte) bool {
	if name := bytes.TrimLeft(data, "{ \t\r\n"); len(name) < 2 || name[1] != 'e' && name[1] != '\\' {
		return false
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(data))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return false
	}
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '"' || t.String() != "error" {
		return false
	}
	return dec.SkipValue() == nil && dec.PeekKind() == '}'
}

// parseError decodes an error envelope, which has to have a code and a message.
func parseError(data []byte) (Result, error) {
	var issues fault.Issues
	var envelope struct {
		Error jsontext.Value `json:"error"`
	}
	if err := strictjson.Decode(data, &envelope, "", &issues); err != nil {
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
	return Result{failure: envelope.Error}, issues.Err()
}
