package bot

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// assistantMessage is a message of a language model. Its content is a string or
// an array of parts.
type assistantMessage struct {
	Content jsontext.Value `json:"content"`
}

// parseLLM decodes the body of a language model: an assistant message as
// content, as message.content or in the chat completions format, managed
// commands, or both.
func parseLLM(data []byte) (Result, error) {
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
		return Result{}, err
	}
	var r Result
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
	return r, issues.Err()
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

// parseTool decodes the body of a tool, which may be any JSON value. A tool sends
// no commands.
func parseTool(data []byte) (Result, error) {
	var issues fault.Issues // stays empty: every JSON value is a result
	var result jsontext.Value
	if err := strictjson.Decode(data, &result, "", &issues); err != nil {
		return Result{}, err
	}
	return Result{tool: result}, nil
}

// isErrorEnvelope reports whether data is an object with "error" as its only
// member. For most bodies the first letter of the first name decides.
func isErrorEnvelope(data []byte) bool {
	if name := bytes.TrimLeft(data, "{ \t\r\n"); len(name) < 2 || name[1] != 'e' && name[1] != '\\' {
		return false
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(data))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return false
	}
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '"' || t.String() != "error" {
		return false
	}
	return dec.SkipValue() == nil && dec.PeekKind() == '}'
}

// parseError decodes an error envelope, which has to have a code and a message.
func parseError(data []byte) (Result, error) {
	var issues fault.Issues
	var envelope struct {
		Error jsontext.Value `json:"error"`
	}
	if err := strictjson.Decode(data, &envelope, "", &issues); err != nil {
		return Result{}, err
	}
	var known struct {
		Code    *string `json:"code"`
		Message *string `json:"message"`
	}
	if err := strictjson.Decode(envelope.Error, &known, "/error", &issues); err != nil {
		return Result{}, err
	}
	if known.Code == nil {
		issues.Missing("/error/code", "code is required.")
	}
	if known.Message == nil {
		issues.Missing("/error/message", "message is required.")
	}
	return Result{failure: envelope.Error}, issues.Err()
}
