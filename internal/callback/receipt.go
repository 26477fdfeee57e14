package callback

import "telapi/callruntime/wire"

// Receipt is the answer to an accepted callback. Status and RequestID belong to
// one answer and are empty in the receipt that the store keeps for duplicates.
type Receipt struct {
	Status     string            `json:"status,omitzero"` // accepted or parked
	CallbackID string            `json:"callbackId"`
	Messages   int               `json:"messages"`
	Commands   []CommandDecision `json:"commands"`
	RequestID  string            `json:"requestId,omitzero"`
}

// CommandDecision reports whether a command was allowed.
type CommandDecision struct {
	CommandID string `json:"commandId,omitzero"`
	Type      string `json:"type"`
	Decision  string `json:"decision"` // allowed or denied
	Reason    string `json:"reason,omitzero"`
}

// newReceipt counts the messages and lists the commands in entries.
func newReceipt(callbackID string, entries []wire.Entry) Receipt {
	r := Receipt{CallbackID: callbackID, Commands: []CommandDecision{}}
	for i := range entries {
		e := &entries[i]
		decision := "allowed"
		switch e.Kind {
		case wire.KindBotMessage, wire.KindLLMResult, wire.KindToolResult:
			r.Messages++
			continue
		case wire.KindCommand:
		case wire.KindCommandDenied:
			decision = "denied"
		default:
			continue
		}
		head := e.Command.Head()
		r.Commands = append(r.Commands, CommandDecision{head.CommandID, head.Type, decision, e.Reason})
	}
	return r
}
