package bot

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// message is one message of a bot. Numbers stay raw, so that long IDs are not
// rounded.
type message struct {
	MessageID jsontext.Value `json:"messageId"`
	RelatesTo jsontext.Value `json:"relatesTo"`
	Sequence  jsontext.Value `json:"sequence"`
	Content   *content       `json:"content"`

	sequence float64
	commands []wire.Command
}

type content struct {
	TextMessage struct {
		TextPlain    string `json:"textPlain"`
		TextHTML     string `json:"textHtml"`
		TextMarkdown string `json:"textMarkdown"`
	} `json:"textMessage"`
	VoiceMessage   string         `json:"voiceMessage"`
	ActivityParams jsontext.Value `json:"activityParams"`
	Event          struct {
		Typing          *typing               `json:"typing"`
		Pause           jsontext.Value        `json:"pause"`
		MessageRead     *string               `json:"messageRead"`
		NoInputExpected *bool                 `json:"noInputExpected"`
		Custom          *command.ControlEvent `json:"custom"`
	} `json:"event"`

	disableTTSCache bool
}

type typing struct {
	Enable   *bool          `json:"enable"`
	Duration jsontext.Value `json:"duration,omitzero"`
}

func (m *message) check(path string, issues *fault.Issues) {
	checkNumber(&m.MessageID, path, "/messageId", issues)
	checkNumber(&m.RelatesTo, path, "/relatesTo", issues)
	m.sequence = checkNumber(&m.Sequence, path, "/sequence", issues)
	if m.Content == nil {
		issues.Missing(path+"/content", "content is required.")
		return
	}
	c, path := m.Content, path+"/content"
	c.checkActivityParams(path, issues)
	if t := c.Event.Typing; t != nil {
		if t.Enable == nil {
			issues.Missing(path+"/event/typing/enable", "enable is required.")
		}
		checkNumber(&t.Duration, path, "/event/typing/duration", issues)
	}
	checkNumber(&c.Event.Pause, path, "/event/pause", issues)
	if c.Event.Custom != nil {
		m.commands = c.Event.Custom.Commands(path+"/event/custom", issues)
	}
}

func (c *content) checkActivityParams(path string, issues *fault.Issues) {
	strictjson.CheckObject(&c.ActivityParams, path, "/activityParams", issues)
	if c.ActivityParams.Kind() != '{' {
		return
	}
	var known struct {
		DisableTTSCache bool `json:"disableTtsCache"`
	}
	if err := strictjson.Decode(c.ActivityParams, &known, path+"/activityParams", issues); err == nil {
		c.disableTTSCache = known.DisableTTSCache
	}
}

// checkNumber returns the value of a number, or 0 if it is absent. It replaces
// null with nil.
func checkNumber(raw *jsontext.Value, path, field string, issues *fault.Issues) float64 {
	if !strictjson.Present(*raw) {
		*raw = nil
		return 0
	}
	f, ok := strictjson.Number(*raw)
	if !ok {
		issues.Add(path+field, fault.IssueType, "Must be a number in the range of a 64-bit float.")
	}
	return f
}

// text returns the text of the message and the form it was written in. The
// first form that is not blank wins.
func (c *content) text() (text, form string) {
	for _, f := range []struct {
		form, source string
		toText       func(string) string
	}{
		{wire.FormPlain, c.TextMessage.TextPlain, strings.TrimSpace},
		{wire.FormHTML, c.TextMessage.TextHTML, htmlToText},
		{wire.FormMarkdown, c.TextMessage.TextMarkdown, markdownToText},
		{wire.FormVoice, c.VoiceMessage, strings.TrimSpace},
	} {
		if f.source == "" {
			continue
		}
		if text := f.toText(f.source); text != "" {
			return text, f.form
		}
	}
	return "", ""
}
