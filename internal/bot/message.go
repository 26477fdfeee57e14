package bot

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// message is one response of a bot. Numbers stay as they were written, so that
// a long id is not rounded on its way.
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
	number(&m.MessageID, path, "/messageId", issues)
	number(&m.RelatesTo, path, "/relatesTo", issues)
	m.sequence = number(&m.Sequence, path, "/sequence", issues)
	if m.Content == nil {
		issues.Missing(path+"/content", "A message has content.")
		return
	}
	c, path := m.Content, path+"/content"
	c.checkActivity(path, issues)
	if t := c.Event.Typing; t != nil {
		if t.Enable == nil {
			issues.Missing(path+"/event/typing/enable", "typing says whether to enable it.")
		}
		number(&t.Duration, path, "/event/typing/duration", issues)
	}
	number(&c.Event.Pause, path, "/event/pause", issues)
	if c.Event.Custom != nil {
		m.commands = c.Event.Custom.Commands(path+"/event/custom", issues)
	}
}

func (c *content) checkActivity(path string, issues *fault.Issues) {
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

// number wants a number that a float64 can hold; a null is the same as nothing.
func number(raw *jsontext.Value, path, field string, issues *fault.Issues) float64 {
	if !strictjson.Present(*raw) {
		*raw = nil
		return 0
	}
	f, ok := strictjson.Number(*raw)
	if !ok {
		issues.Add(path+field, fault.IssueType, "This must be a number, and one that is not absurdly large.")
	}
	return f
}

// text is what the message says, and the form it was written in. The first form
// that says anything wins.
func (c *content) text() (text, form string) {
	for _, f := range []struct {
		name, written string
		read          func(string) string
	}{
		{wire.FormPlain, c.TextMessage.TextPlain, strings.TrimSpace},
		{wire.FormHTML, c.TextMessage.TextHTML, fromHTML},
		{wire.FormMarkdown, c.TextMessage.TextMarkdown, fromMarkdown},
		{wire.FormVoice, c.VoiceMessage, strings.TrimSpace},
	} {
		if f.written == "" {
			continue
		}
		if text := f.read(f.written); text != "" {
			return text, f.name
		}
	}
	return "", ""
}
