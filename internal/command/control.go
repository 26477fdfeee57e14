package command

import (
	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// ControlEvent is a control event that a bot sends among its messages.
type ControlEvent struct {
	Name  string `json:"name"`
	Value struct {
		TransferTarget *string `json:"transferTarget"`
		Target         *string `json:"target"`
		HangupReason   string  `json:"hangupReason"`
		wire.CallControl
	} `json:"value"`
}

// Commands checks the event and returns what it asks of the call. Every field
// is checked, whichever event it belongs to.
func (e *ControlEvent) Commands(path string, issues *fault.Issues) []wire.Command {
	v := &e.Value
	at := path + "/value"
	target := ""
	for _, given := range []struct {
		name  string
		value *string
	}{{"/target", v.Target}, {"/transferTarget", v.TransferTarget}} {
		if given.value != nil {
			checkTarget(*given.value, at, given.name, issues)
			target = *given.value // the last one wins: transferTarget
		}
	}
	checkLine(v.HangupReason, at, "/hangupReason", issues)
	params := checkCallControl(&v.CallControl, at, issues)

	switch e.Name {
	case "hangup":
		return []wire.Command{&wire.Hangup{Header: wire.Header{Type: "hangup"}, Reason: v.HangupReason, CallControl: v.CallControl}}
	case "transfer", "handover":
		return []wire.Command{&wire.Transfer{Header: wire.Header{Type: "transfer"}, Target: target, HangupReason: v.HangupReason, CallControl: v.CallControl}}
	case "config":
		return params.commands()
	case "":
		issues.Missing(path+"/name", "A control event has a name: hangup, transfer, handover or config.")
	default:
		issues.Add(path+"/name", fault.IssueValue, "A control event is one of hangup, transfer, handover and config.")
	}
	return nil
}
