// Package bot decodes and validates the callback bodies of bots, language
// models and tools and converts them to entries of the runtime stream.
package bot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Limits that the interface document leaves open. Each entry repeats the sender
// and the conversation, so that a small body could become a huge stream.
const (
	MaxMessages  = 500
	maxRepeated  = 4 << 20 // bytes of sender and conversation over all messages
	maxTimestamp = 64
)

// document is the body of a bot.
type document struct {
	Conversation struct {
		Identifier wire.Identifier `json:"identifier"`
	} `json:"conversation"`
	From     *wire.Party `json:"from"`
	Messages struct {
		Timestamp *string   `json:"timestamp"`
		Message   []message `json:"message"`
	} `json:"messages"`
	Metadata    jsontext.Value      `json:"metadata"`
	ChannelData []wire.ChannelDatum `json:"channelData"`
	NLUData     jsontext.Value      `json:"nluData"`
	Actions     jsontext.Value      `json:"actions"`

	actions []wire.Command
}

// Parse decodes a callback body of the given kind. The body of a bot has to name
// the channel. The error is MALFORMED_JSON or a VALIDATION_ERROR that lists all
// issues.
func Parse(kind wire.WorkItemKind, data []byte, channelID string) (Result, error) {
	switch kind {
	case wire.BotItem:
		return parseBot(data, channelID)
	case wire.LLMItem:
		return parseLLM(data)
	case wire.ToolItem:
		return parseTool(data)
	default:
		return nil, fmt.Errorf("parse callback: unknown kind %q", kind)
	}
}

func parseBot(data []byte, channelID string) (Result, error) {
	if isErrorEnvelope(data) {
		return parseError(data)
	}
	var issues fault.Issues
	d := new(document)
	if err := strictjson.Decode(data, d, "", &issues); err != nil {
		return nil, err
	}
	d.check(channelID, &issues)
	return d, issues.Err()
}

func (d *document) check(channelID string, issues *fault.Issues) {
	const idPath, timestampPath = "/conversation/identifier/id", "/messages/timestamp"
	switch id := d.Conversation.Identifier.ID; id {
	case channelID:
	case "":
		issues.Missing(idPath, "The channel ID is required.")
	default:
		issues.Add(idPath, fault.IssueValue, "The channel ID differs from the one in the path.")
	}
	if s := d.Messages.Timestamp; s != nil && !validTimestamp(*s) && !issues.Has(timestampPath) {
		issues.Add(timestampPath, fault.IssueValue, "Use RFC 3339 with a time zone, such as 2026-11-15T09:30:00Z.")
	}
	n := len(d.Messages.Message)
	if n > MaxMessages {
		issues.Add("/messages/message", fault.IssueTooMany, "At most %d messages are allowed.", MaxMessages)
	}
	repeated := len(d.Conversation.Identifier.Name)
	if d.From != nil {
		repeated += len(d.From.Avatar) + len(d.From.Identifier.ID) + len(d.From.Identifier.Name)
	}
	if n*repeated > maxRepeated {
		issues.Add("/from", fault.IssueTooLong, "The sender is too long to be repeated in each of %d messages. Shorten it or send fewer messages.", n)
	}
	for i := range d.Messages.Message {
		d.Messages.Message[i].check(fault.Pointer("/messages/message", i), issues)
	}
	sortBySequence(d.Messages.Message)
	strictjson.CheckObject(&d.Metadata, "", "/metadata", issues)
	for i := range d.ChannelData {
		if d.ChannelData[i].Key == nil {
			issues.Missing(fault.Pointer("/channelData", i)+"/key", "key is required.")
		}
	}
	d.actions = command.ParseActions(d.Actions, "/actions", issues)
}

// validTimestamp is stricter than time.Parse, which accepts one-digit hours, a
// comma before the fraction, fractions of any length and offsets over 24 hours.
func validTimestamp(s string) bool {
	if _, err := time.Parse(time.RFC3339, s); err != nil || len(s) > maxTimestamp || s[13] != ':' || strings.Contains(s, ",") {
		return false
	}
	zone := s[len(s)-5:] // hh:mm, or ends with Z
	return zone[4] == 'Z' || zone[:2] < "24" && zone[3:] < "60"
}

// sortBySequence sorts messages if all of them have a sequence.
func sortBySequence(list []message) {
	for i := range list {
		if !strictjson.Present(list[i].Sequence) {
			return
		}
	}
	slices.SortStableFunc(list, func(a, b message) int { return cmp.Compare(a.sequence, b.sequence) })
}

// HasIdentity implements Result.
func (d *document) HasIdentity() bool {
	return d.Messages.Timestamp != nil ||
		slices.ContainsFunc(d.Messages.Message, func(m message) bool { return strictjson.Present(m.MessageID) })
}
