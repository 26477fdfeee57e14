package bot

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// LLMBody is a language model's checked callback body.
type LLMBody struct {
	content  *string
	commands []wire.Command
	failure  jsontext.Value
}

// assistant is a message of a language model. Its content is a string or a list
// of parts, of which those with text count.
type assistant struct {
	Content jsontext.Value `json:"content"`
}

// ParseLLM reads an assistant message: as content, as message.content, or in
// the shape of chat completions. Managed commands may come with it or alone.
func ParseLLM(data []byte) (*LLMBody, error) {
	b := new(LLMBody)
	var issues fault.Issues
	if onlyError(data) {
		var err error
		if b.failure, err = readFailure(data, &issues); err != nil {
			return nil, err
		}
		return b, issues.Err()
	}
	var doc struct {
		assistant
		Message assistant `json:"message"`
		Choices []struct {
			Message assistant `json:"message"`
		} `json:"choices"`
		Commands []jsontext.Value `json:"commands"`
	}
	if err := strictjson.Decode(data, &doc, "", &issues); err != nil {
		return nil, err
	}
	switch {
	case strictjson.Present(doc.Content):
		b.content = doc.read("/content", &issues)
	case strictjson.Present(doc.Message.Content):
		b.content = doc.Message.read("/message/content", &issues)
	case len(doc.Choices) > 0 && strictjson.Present(doc.Choices[0].Message.Content):
		b.content = doc.Choices[0].Message.read("/choices/0/message/content", &issues)
	case len(doc.Commands) == 0:
		issues.Missing("/content", "An assistant message has content.")
	}
	b.commands = command.ParseList(doc.Commands, "/commands", &issues)
	return b, issues.Err()
}

func (a assistant) read(path string, issues *fault.Issues) *string {
	var text string
	if a.Content.Kind() != '[' {
		_ = strictjson.Decode(a.Content, &text, path, issues) // well formed: it came out of a decoder
		return &text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = strictjson.Decode(a.Content, &parts, path, issues)
	var all strings.Builder
	for _, p := range parts {
		all.WriteString(p.Text)
	}
	text = all.String()
	return &text
}

// Entries implements Result: the message, then the commands.
func (b *LLMBody) Entries(base wire.Entry, policy *command.Policy) []wire.Entry {
	s := stream{base: base, policy: policy}
	if b.failure != nil {
		s.add(wire.KindProviderError).Error = b.failure
	}
	if b.content != nil {
		s.add(wire.KindLLMResult).Content = b.content
	}
	s.commands(b.commands)
	return s.entries
}
