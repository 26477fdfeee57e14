// Package bot owns what asynchronous providers post back: the bodies of bots,
// language models and tools, their bounds, the text in them, and the entries
// they put on a channel's stream.
package bot

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Bounds that the interface leaves open, against bodies that are small on the
// wire and huge on the stream, where every message repeats who speaks and when.
const (
	MaxMessages  = 500
	maxRepeated  = 4 << 20
	maxTimestamp = 64
)

// Body is a bot's checked callback body.
type Body struct {
	document
	failure jsontext.Value // the provider's error, when that is all there is
	actions []wire.Command
}

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
}

// Parse reads a body that was posted for a channel. It reports bytes that are
// not JSON, or else everything that is wrong with what they say.
func Parse(data []byte, channelID string) (*Body, error) {
	b := new(Body)
	var issues fault.Issues
	if onlyError(data) {
		var err error
		if b.failure, err = readFailure(data, &issues); err != nil {
			return nil, err
		}
		return b, issues.Err()
	}
	if err := strictjson.Decode(data, &b.document, "", &issues); err != nil {
		return nil, err
	}
	b.check(channelID, &issues)
	return b, issues.Err()
}

func (b *Body) check(channelID string, issues *fault.Issues) {
	const id = "/conversation/identifier/id"
	switch b.Conversation.Identifier.ID {
	case channelID:
	case "":
		issues.Missing(id, "The body names the channel it is for.")
	default:
		issues.Add(id, fault.IssueValue, "This is not the channel in the path.")
	}
	if s := b.Messages.Timestamp; s != nil {
		if !rfc3339(*s) && !issues.Has("/messages/timestamp") {
			issues.Add("/messages/timestamp", fault.IssueValue, "This is a time with a time zone, such as 2026-11-15T09:30:00Z.")
		}
	}
	n := len(b.Messages.Message)
	if n > MaxMessages {
		issues.Add("/messages/message", fault.IssueTooMany, "There may be %d messages at the most.", MaxMessages)
	}
	repeated := len(b.Conversation.Identifier.Name)
	if b.From != nil {
		repeated += len(b.From.Avatar) + len(b.From.Identifier.ID) + len(b.From.Identifier.Name)
	}
	if n*repeated > maxRepeated {
		issues.Add("/from", fault.IssueTooLong, "This is too long to travel with each of %d messages.", n)
	}
	for i := range b.Messages.Message {
		b.Messages.Message[i].check(fault.Pointer("/messages/message", i), issues)
	}
	b.Messages.Message = inSequence(b.Messages.Message)
	strictjson.CheckObject(&b.Metadata, "", "/metadata", issues)
	for i, d := range b.ChannelData {
		if d.Key == nil {
			issues.Missing(fault.Pointer("/channelData", i)+"/key", "An item of channel data has a key.")
		}
	}
	b.actions = command.ParseActions(b.Actions, "/actions", issues)
}

// rfc3339 is stricter than package time, which takes an hour of one digit, a
// comma before the fraction, a fraction of any length and offsets of more than a
// day.
func rfc3339(s string) bool {
	if _, err := time.Parse(time.RFC3339, s); err != nil || len(s) > maxTimestamp || s[13] != ':' || strings.Contains(s, ",") {
		return false
	}
	zone := s[len(s)-5:] // hh:mm of the offset, unless the last letter is a Z
	return zone[4] == 'Z' || zone[:2] < "24" && zone[3:] < "60"
}

// inSequence sorts messages only if every one says where it belongs.
func inSequence(list []message) []message {
	for i := range list {
		if !strictjson.Present(list[i].Sequence) {
			return list
		}
	}
	slices.SortStableFunc(list, func(a, b message) int { return cmp.Compare(a.sequence, b.sequence) })
	return list
}

// HasIdentity tells whether the body carries something by which a repetition of
// it can be told from a second body that says the same.
func (b *Body) HasIdentity() bool {
	return b.Messages.Timestamp != nil ||
		slices.ContainsFunc(b.Messages.Message, func(m message) bool { return strictjson.Present(m.MessageID) })
}
