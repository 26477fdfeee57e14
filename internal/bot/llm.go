package bot

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// llmResult is the body of a language model.
type llmResult struct {
	content  *string // nil if there are only commands
	commands []wire.Command
}

// assistantMessage is a message of a language model. Its content is a string or
// an array of parts.
type assistantMessage struct {
	Content jsontext.Value `json:"content"`
}

// parseLLM decodes the body of a language model: an assistant message as
// content, as message.content or in the chat completions format, managed
// commands, or both.
func parseLLM(data []byte) (Result, error) {
	if isErrorEnvelope(data) {
		return parseError(data)
	}
	var issues fault.Issues
	var doc struct {
		assistantMessage
		Message assistantMessage `json:"message"`
		Choices []struct {
			Message assistantMessage `json:"message"`
		} `json:"choices"`
		Commands []jsontext.Value `json:"commands"`
	}
	if err := strictjson.Decode(data, &doc, "", &issues); err != nil {
		return nil, err
	}
	var r llmResult
	switch {
	case strictjson.Present(doc.Content):
		r.content = doc.text("/content", &issues)
	case strictjson.Present(doc.Message.Content):
		r.content = doc.Message.text("/message/content", &issues)
	case len(doc.Choices) > 0 && strictjson.Present(doc.Choices[0].Message.Content):
		r.content = doc.Choices[0].Message.text("/choices/0/message/content", &issues)
	case len(doc.Commands) == 0:
		issues.Missing("/content", "Send content, message.content, choices or commands.")
	}
	r.commands = command.ParseList(doc.Commands, "/commands", &issues)
	return &r, issues.Err()
}

// text joins the text of all parts.
func (m assistantMessage) text(path string, issues *fault.Issues) *string {
	var text string
	if m.Content.Kind() != '[' {
		_ = strictjson.Decode(m.Content, &text, path, issues) // cannot fail: the value is already decoded
		return &text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = strictjson.Decode(m.Content, &parts, path, issues)
	var all strings.Builder
	for _, p := range parts {
		all.WriteString(p.Text)
	}
	text = all.String()
	return &text
}

// Entries implements Result: the message, then the commands.
func (r *llmResult) Entries(base wire.Entry, policy *command.Policy) []wire.Entry {
	b := entryBuilder{base: base, policy: policy}
	if r.content != nil {
		b.add(wire.KindLLMResult).Content = r.content
	}
	b.addCommands(r.commands)
	return b.entries
}

// HasIdentity implements Result.
func (*llmResult) HasIdentity() bool { return false }
