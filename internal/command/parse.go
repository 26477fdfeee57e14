package command

import (
	"cmp"
	"reflect"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// MaxCommands is the maximum number of managed commands in one body. The entry of
// a denied command can be a hundred times longer than the command.
const MaxCommands = 100

// Request is a command as a provider sent it.
type Request struct {
	wire.Command
	// Ignored lists the members without effect: unknown ones, and one whose alias is
	// given too.
	Ignored []string

	// misspelledTarget reports whether an ignored member of a transfer looks like
	// its target. Such a call must not be transferred to the default target.
	misspelledTarget bool
}

// ParseActions decodes the actions of a body: one managed command or an array.
func ParseActions(raw jsontext.Value, path string, issues *fault.Issues) []Request {
	switch raw.Kind() {
	case jsontext.KindInvalid, 'n':
		return nil
	case '[':
		var items []jsontext.Value
		for i, item := range strictjson.Elements(raw) {
			if items = append(items, item.Clone()); i == MaxCommands {
				break // one too many
			}
		}
		return ParseList(items, path, issues)
	default:
		return []Request{parseCommand(raw, path, issues)}
	}
}

// ParseList decodes managed commands.
func ParseList(items []jsontext.Value, path string, issues *fault.Issues) []Request {
	if len(items) > MaxCommands {
		issues.Add(path, fault.IssueTooMany, "At most %d commands are allowed. Send fewer.", MaxCommands)
		return nil
	}
	requests := make([]Request, len(items))
	for i, raw := range items {
		requests[i] = parseCommand(raw, fault.Pointer(path, i), issues)
	}
	return requests
}

// parseCommand decodes a managed command. A command of an unknown type becomes
// an OtherCommand, which every policy denies. It is not an issue, because an issue
// would reject the messages in the same body too.
func parseCommand(raw jsontext.Value, path string, issues *fault.Issues) Request {
	var head struct {
		Type      jsontext.Value `json:"type"`
		CommandID jsontext.Value `json:"commandId"`
	}
	if raw.Kind() == '{' {
		_ = json.Unmarshal(raw, &head) // cannot fail: raw is a decoded object
	}
	commandType := stringOf(head.Type)
	c := wire.NewCommand(commandType)
	if c == nil {
		return Request{Command: &wire.OtherCommand{CommonFields: wire.CommonFields{Type: cmp.Or(commandType, "unknown"), CommandID: stringOf(head.CommandID)}}}
	}
	_ = strictjson.Decode(raw, c, path, issues) // an error is also in issues: raw is a decoded value
	v, spec := validator{path, issues}, specs[commandType]
	v.command(c, spec)
	r := Request{Command: c, misspelledTarget: v.checkMembers(raw, spec.members), Ignored: ignoredMembers(raw, spec.members, commandType)}
	switch c := c.(type) { // read the aliases
	case *wire.Hangup:
		var alias struct {
			Reason string `json:"hangupReason"`
		}
		_ = strictjson.Decode(raw, &alias, path, issues) // cannot fail: raw is a decoded object
		v.singleLine(alias.Reason, "/hangupReason")
		c.Reason = cmp.Or(alias.Reason, c.Reason)
		v.totalLength(&c.CallControl, "", "") // a hangup has no target
	case *wire.Transfer:
		var alias struct {
			Target string `json:"transferTarget"`
		}
		_ = strictjson.Decode(raw, &alias, path, issues)
		v.target(alias.Target, "/transferTarget")
		field := "/target"
		if alias.Target != "" {
			c.Target, field = alias.Target, "/transferTarget"
		}
		v.totalLength(&c.CallControl, c.Target, field)
	}
	return r
}

// notEmpty are the names of members whose value must not be "".
var notEmpty = nameSet("target transferTarget transferMethod transferReferOutcomeMode botOperationResult")

// checkMembers adds an issue for each empty string that is not allowed. It reports whether an
// unknown member looks like the target of a transfer, or has a member that does.
func (v validator) checkMembers(raw jsontext.Value, known map[string]bool) (misspelledTarget bool) {
	for name, value := range strictjson.Members(raw) {
		switch {
		case !known[name]:
			misspelledTarget = misspelledTarget || looksLikeTarget(name, value)
			for name, value := range strictjson.Members(value) {
				misspelledTarget = misspelledTarget || looksLikeTarget(name, value)
			}
		case notEmpty[name] && value.Kind() == '"' && stringOf(value) == "":
			v.add("/"+name, fault.IssueValue, "Must not be empty.")
		}
	}
	return misspelledTarget
}

// ignoredMembers returns the names of the members that have no effect: those that are not in used,
// and the one whose alias is given too.
func ignoredMembers(raw jsontext.Value, used map[string]bool, commandType string) (names []string) {
	alias := aliases[commandType]
	hasAlias, hasReplaced := false, false
	for name, value := range strictjson.Members(raw) {
		switch {
		case !used[name]:
			names = append(names, name)
		case name == alias.name:
			hasAlias = stringOf(value) != ""
		case name == alias.replaces:
			hasReplaced = value.Kind() != 'n'
		}
	}
	if hasAlias && hasReplaced {
		names = append(names, alias.replaces)
	}
	return names
}

// targetNames are words for a target, in lower case and without separators.
var targetNames = nameSet("to dest number phone phonenumber msisdn uri url sip tel address callee recipient extension")

func looksLikeTarget(name string, value jsontext.Value) bool {
	if value.Kind() == 'n' {
		return false
	}
	word := strings.TrimPrefix(strings.Map(func(r rune) rune {
		if !unicode.IsLetter(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, name), "transfer")
	if targetNames[word] || strings.Contains(word, "target") || strings.Contains(word, "destination") {
		return true
	}
	text := stringOf(value)
	_, err := ParseTarget(text)
	return err == nil && strings.ContainsAny(text, ":+") // a number without scheme and + may be anything
}

// stringOf returns the value of a JSON string, or "" for another type.
func stringOf(raw jsontext.Value) (s string) {
	if raw.Kind() == '"' {
		_ = json.Unmarshal(raw, &s) // cannot fail: raw is a decoded string
	}
	return s
}

// ControlEvent is a control event in the message of a bot.
type ControlEvent struct {
	Name  string         `json:"name"`
	Value jsontext.Value `json:"value"`
}

// eventValue holds the members of a control event's value.
type eventValue struct {
	TransferTarget string `json:"transferTarget"`
	Target         string `json:"target"`
	HangupReason   string `json:"hangupReason"`
	wire.CallControl
}

var eventMembers = memberNames(reflect.TypeFor[eventValue]())

// usedMembers has the names of the members that each control event uses. Parse validates all
// eventMembers, although those that the event does not use have no effect.
var usedMembers = map[string]map[string]bool{
	"hangup": memberNames(reflect.TypeFor[struct {
		HangupReason string `json:"hangupReason"`
		wire.CallControl
	}]()),
	"transfer": eventMembers,
	"handover": eventMembers,
	"config":   nameSet("sessionParams botOperationResult botOperationData"),
}

// Operation is the result of a bot's own operation, reported in a control event.
type Operation struct {
	Result string
	Data   jsontext.Value
}

// Parse validates the event and converts it to commands. The operation is nil if
// the event has none.
func (e *ControlEvent) Parse(path string, issues *fault.Issues) ([]Request, *Operation) {
	v := validator{path + "/value", issues}
	var value eventValue
	_ = strictjson.Decode(e.Value, &value, v.path, issues) // fails only if there is no value: a value was decoded before
	misspelledTarget := v.checkMembers(e.Value, eventMembers)
	v.target(value.Target, "/target")
	v.target(value.TransferTarget, "/transferTarget")
	v.singleLine(value.HangupReason, "/hangupReason")
	if ms := value.TransferNotificationsHangupMS; ms != nil { // the only number in eventValue
		const name = "transferNotificationsHangupMS"
		fieldBounds[name].check(*ms, name, v.path+"/"+name, issues)
	}
	params := v.callControl(&value.CallControl)
	target, field := value.Target, "/target"
	if value.TransferTarget != "" { // takes precedence
		target, field = value.TransferTarget, "/transferTarget"
	}
	v.totalLength(&value.CallControl, target, field)
	var operation *Operation
	if value.BotOperationResult != "" || value.BotOperationData != nil {
		operation = &Operation{value.BotOperationResult, value.BotOperationData}
	}
	request := func(c wire.Command) []Request {
		return []Request{{c, ignoredMembers(e.Value, usedMembers[e.Name], e.Name), misspelledTarget}}
	}

	switch e.Name {
	case "hangup":
		return request(&wire.Hangup{CommonFields: wire.CommonFields{Type: "hangup"}, Reason: value.HangupReason, CallControl: value.CallControl}), operation
	case "transfer", "handover":
		return request(&wire.Transfer{CommonFields: wire.CommonFields{Type: "transfer"}, Target: target, HangupReason: value.HangupReason, CallControl: value.CallControl}), operation
	case "config":
		return params.commands(), operation
	case "":
		issues.Missing(path+"/name", "Must be hangup, transfer, handover or config.")
	default:
		issues.Add(path+"/name", fault.IssueValue, "Must be hangup, transfer, handover or config.")
	}
	return nil, nil
}
