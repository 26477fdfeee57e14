package redisstore

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
	"telapi/internal/session"
)

// privacy removes texts from a dump before it is saved as a snapshot. Browser actions keep their
// texts if keepText, which is ENABLE_PII_LOGGING. Ended channels lose their history and the
// content of their entries, even of those that the runtime reads only after a restart.
type privacy struct{ keepText bool }

// redact returns the commands of a dump without the texts that a snapshot must not have. Of an
// XADD, c[2] is the ID and c[4] the value of the field that can have texts.
func (p privacy) redact(commands [][]string) (redacted [][]string) {
	ended := map[string]bool{} // by channel
	for _, c := range commands {
		if id, name := kv.SplitChannelKey(c[1]); name == "meta" && c[0] == "HSET" {
			for pair := range slices.Chunk(c[2:], 2) {
				ended[id] = ended[id] || slices.Equal(pair, []string{"state", "ended"})
			}
		}
	}
	for _, c := range commands {
		id, name := kv.SplitChannelKey(c[1])
		switch {
		case c[0] == "HSET" && name == "meta" && ended[id]:
			c = withoutOffer(c)
		case c[0] == "XADD" && c[1] == kv.OffersStream:
			c[4] = redactOffer(c[4], ended)
		case c[0] == "XADD" && name == "in":
			c[4] = p.redactEntry(c[4], ended[id])
		case c[0] == "XADD" && name == "out" && ended[id]: // keep only the stream's last ID
			redacted = append(redacted, []string{"XADD", c[1], c[2], "deleted", ""})
			c = []string{"XDEL", c[1], c[2]}
		}
		redacted = append(redacted, c)
	}
	return redacted
}

// withoutOffer returns the command that creates an ended channel's metadata without its offer
// and gateway profile.
func withoutOffer(hset []string) []string {
	kept := hset[:2:2]
	for pair := range slices.Chunk(hset[2:], 2) {
		if pair[0] != "offer" && pair[0] != "profile" {
			kept = append(kept, pair...)
		}
	}
	return kept
}

// redactOffer returns an offer without the personal data of an ended session.
func redactOffer(text string, ended map[string]bool) string {
	var offer wire.Offer
	if json.Unmarshal([]byte(text), &offer) != nil || !ended[offer.SessionID] {
		return text
	}
	offer.Identity, offer.Metadata, offer.ICEServers = nil, nil, nil
	return encodeEntry(offer, len(text))
}

// redactEntry returns an entry of a runtime stream. It has the same length if that is
// possible, because scripts count the bytes of entries.
func (p privacy) redactEntry(text string, ended bool) string {
	if !ended && (p.keepText || !strings.Contains(text, `"browserAction"`)) {
		return text
	}
	var e wire.Entry
	_ = json.Unmarshal([]byte(text), &e) // an invalid entry loses what cannot be decoded
	if ended {
		e = wire.Entry{
			Kind: e.Kind, ChannelID: e.ChannelID, At: e.At, Trace: e.Trace, Source: e.Source, CallbackID: e.CallbackID, WorkItemID: e.WorkItemID,
			Message: e.Message, Event: e.Event, Recovered: e.Recovered, Reason: e.Reason, WorkItemKind: e.WorkItemKind,
		}
	}
	if e.Message != nil {
		if payload, _ := e.Message.Payload(); payload != nil && (ended || e.Message.Type == wire.TypeBrowserAction) {
			action, err := session.RedactText(*payload)
			if *payload = action; err != nil {
				*payload = jsontext.Value("{}")
			}
		}
	}
	return encodeEntry(e, len(text))
}

// encodeEntry returns a JSON object that is padded with blanks to a length.
func encodeEntry(value any, length int) string {
	encoded, err := json.Marshal(value)
	if err != nil {
		encoded = []byte("{}")
	}
	end := len(encoded) - 1
	return string(encoded[:end]) + strings.Repeat(" ", max(0, length-len(encoded))) + string(encoded[end:])
}
