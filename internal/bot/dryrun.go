package bot

import (
	"cmp"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/strictjson"
)

// DryRun describes the effects that a callback would have.
type DryRun struct {
	Entries   []wire.Entry
	Decisions []command.Decision
	Warnings  []strictjson.Warning // members of the body that have no effect
}

// Try decodes a callback body and decides on its commands without delivering it. An
// empty channelID stands for the one in the body. The error is that of Parse.
func Try(kind wire.WorkItemKind, body []byte, channelID string, policy *command.Policy, now time.Time) (DryRun, error) {
	channelID = cmp.Or(channelID, bodyChannelID(body))
	result, err := Parse(kind, body, channelID)
	if err != nil {
		return DryRun{}, err
	}
	entries, decisions := result.Entries(wire.Entry{ChannelID: channelID, At: now.UnixMilli(), Source: kind.Source()}, policy)
	return DryRun{entries, decisions, result.lint(body)}, nil
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
