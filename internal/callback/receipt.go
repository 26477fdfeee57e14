package callback

import (
	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/strictjson"
)

// Receipt is the answer to an accepted callback. The store keeps a copy for
// duplicates, without Status, WaitsFor and RequestID.
type Receipt struct {
	Status string `json:"status,omitzero"` // accepted or parked
	// WaitsFor is the first of the work items for which a parked callback waits.
	WaitsFor   *AwaitedItem      `json:"waitsFor,omitzero"`
	CallbackID string            `json:"callbackId"`
	Messages   int               `json:"messages"`
	Parts      int               `json:"parts,omitzero"` // of a streamed answer
	Commands   []CommandDecision `json:"commands"`
	Ignored    []string          `json:"ignored,omitempty"` // JSON Pointers of members without effect, except those of commands
	RequestID  string            `json:"requestId,omitzero"`
}

// setStatus sets what the stored copy does not have. waitsFor is nil unless the callback is
// parked.
func (r *Receipt) setStatus(waitsFor *AwaitedItem) {
	r.Status, r.WaitsFor = "accepted", waitsFor
	if waitsFor != nil {
		r.Status = "parked"
	}
}

// CommandDecision reports whether a command was allowed.
type CommandDecision struct {
	CommandID string   `json:"commandId,omitzero"`
	Type      string   `json:"type"`
	Decision  string   `json:"decision"` // allowed or denied
	Reason    string   `json:"reason,omitzero"`
	Ignored   []string `json:"ignored,omitempty"` // members without effect
}

// maxIgnored bounds the ignored members that a receipt lists, over all commands.
const maxIgnored = 100

// newReceipt returns the stored form of a receipt. base is what the entries have in common.
func newReceipt(base wire.Entry, result Result, entries []wire.Entry, decisions []command.Decision, body []byte) Receipt {
	r := Receipt{CallbackID: base.CallbackID, Parts: result.parts, Commands: reportDecisions(decisions)}
	for _, w := range result.lintOutsideCommands(body) {
		r.Ignored = append(r.Ignored, w.Path)
	}
	for i := range entries {
		switch entries[i].Kind {
		case wire.KindBotMessage, wire.KindLLMResult, wire.KindToolResult:
			r.Messages++
		}
	}
	if base.Source == wire.BotItem.Source() { // each part is a message
		r.Messages += result.parts
	}
	return r
}

func reportDecisions(decisions []command.Decision) []CommandDecision {
	report := make([]CommandDecision, len(decisions))
	left := maxIgnored
	for i, d := range decisions {
		common, decision := d.Command.Common(), "allowed"
		if d.Reason != "" {
			decision = "denied"
		}
		report[i] = CommandDecision{CommandID: common.CommandID, Type: common.Type, Decision: decision, Reason: d.Reason}
		for _, name := range d.Ignored[:min(len(d.Ignored), left)] {
			report[i].Ignored = append(report[i].Ignored, strictjson.Shorten(name))
			left--
		}
	}
	return report
}
