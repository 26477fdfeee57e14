package callback

import (
	"bytes"
	"cmp"
	"fmt"
	"mime"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Media types of streamed answers.
const (
	NDJSON      = "application/x-ndjson"
	EventStream = "text/event-stream" // of servers that are compatible with OpenAI's
)

// Limits of a streamed answer.
const (
	MaxStreamBytes = 1 << 20
	MaxParts       = 1000
)

// bareEnd is the last line of most streams of NDJSON. "[DONE]" of an event stream has the same
// effect.
const bareEnd = `{"done":true}`

// MediaType returns the media type of a Content-Type in UTF-8, or "".
func MediaType(contentType string) string {
	mediaType, params, err := mime.ParseMediaType(contentType)
	charset, given := params["charset"]
	if err != nil || given && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "utf8") {
		return ""
	}
	return mediaType
}

// streamDecoder decodes an answer that arrives bit by bit. It is not safe for concurrent use.
type streamDecoder struct {
	kind      wire.WorkItemKind
	channelID string
	mediaType string
	perDelta  bool // each delta is a part; the text is not cut into sentences

	splitter Splitter
	line     []byte // the start of a line that is not complete
	event    []byte // data of an event that is not complete
	isBody   bool   // event is the whole body, a JSON object: the error of a model
	lines    int
	bytes    int
	parts    int
	text     []byte // so far
	lastLine []byte // as JSON; nil before it
	result   Result // of the last line and the whole text
}

// Done reports whether the last line has arrived.
func (s *streamDecoder) Done() bool { return s.lastLine != nil }

// Size returns the memory that the stream needs for its text.
func (s *streamDecoder) Size() int64 {
	return int64(cap(s.line) + cap(s.event) + cap(s.text) + cap(s.splitter.buf))
}

// Part returns the entry of a part. The first part is number 1.
func (s *streamDecoder) Part(base wire.Entry, number int, text string) wire.Entry {
	base.Kind, base.Text, base.Part = wire.KindLLMPart, text, number
	if s.kind == wire.BotItem {
		base.Kind, base.Form = wire.KindBotMessage, wire.FormMarkdown
		if s.perDelta {
			base.Form = wire.FormPlain
		}
	}
	return base
}

// Write decodes further bytes and returns the parts that are complete with them. What
// follows the last line is ignored.
func (s *streamDecoder) Write(data []byte) (parts []string, err error) {
	if s.bytes += len(data); s.bytes > MaxStreamBytes {
		return nil, fault.New(fault.PayloadTooLarge, "The stream is too long: the limit is %d bytes.", MaxStreamBytes)
	}
	for !s.Done() {
		line, rest, complete := bytes.Cut(data, []byte("\n"))
		data = rest
		if !complete {
			s.line = append(s.line, line...)
			break
		}
		if len(s.line) > 0 {
			line = append(s.line, line...)
			s.line = line[:0] // keeps the memory, which the next unfinished line overwrites
		}
		added, err := s.addLine(line)
		parts = append(parts, added...)
		if err != nil {
			return parts, err
		}
	}
	return parts, nil
}

// Close decodes a last line without line break. It returns an error if the stream is
// incomplete.
func (s *streamDecoder) Close() (parts []string, err error) {
	if len(s.line) > 0 {
		parts, err = s.addLine(s.line)
	}
	if err == nil && len(s.event) > 0 {
		var added []string
		added, err = s.addChunk(s.event)
		parts = append(parts, added...)
	}
	if err != nil || s.Done() {
		return parts, err
	}
	want := bareEnd
	if s.mediaType == EventStream {
		want = "data: [DONE]"
	}
	return parts, fault.New(fault.MalformedJSON, "The stream is incomplete: it ended without its last line, %s. Send the whole stream again.", want)
}

// addLine decodes one line, without its line break.
func (s *streamDecoder) addLine(line []byte) (parts []string, err error) {
	if s.lines++; s.lines == 1 {
		line = strictjson.TrimBOM(line)
	}
	if s.mediaType == EventStream {
		parts, err = s.addEventLine(bytes.TrimSuffix(line, []byte("\r")))
	} else if line = bytes.TrimSpace(line); len(line) > 0 {
		parts, err = s.addObject(line)
	}
	if err != nil {
		problem := *fault.From(err)
		problem.Message = fmt.Sprintf("Line %d of the stream: %s", s.lines, problem.Message)
		return parts, &problem
	}
	return parts, nil
}

// addObject decodes a line of NDJSON: a piece of the text, or the last line, which is a body
// that may have the last piece too.
func (s *streamDecoder) addObject(data []byte) (parts []string, err error) {
	if isErrorEnvelope(data, "done") {
		r, err := parseError(data, s.channelID)
		if err != nil {
			return nil, err
		}
		return s.finish(r, data)
	}
	var line struct {
		Delta *string `json:"delta"`
		Done  bool    `json:"done"`
	}
	var issues fault.Issues
	if err := strictjson.Decode(data, &line, "", &issues); err != nil {
		return nil, err
	}
	if !line.Done {
		if line.Delta == nil && len(issues.List()) == 0 {
			issues.Missing("/delta", `Send {"delta":"…"}, and {"done":true} at the end.`)
		}
		if err := issues.Err(); err != nil {
			return nil, err
		}
		return s.addText(*line.Delta)
	}
	var r Result
	if s.kind == wire.BotItem {
		r, err = parseBot(data, s.channelID, true, &issues)
	} else {
		r, err = parseLLM(data, true, &issues)
	}
	if err == nil && line.Delta != nil {
		parts, err = s.addText(*line.Delta)
	}
	if err != nil {
		return nil, err
	}
	rest, err := s.finish(r, data)
	return append(parts, rest...), err
}

// addEventLine decodes a line of an event stream. An empty line ends an event; other fields
// than data, and comments, have no effect.
func (s *streamDecoder) addEventLine(line []byte) (parts []string, err error) {
	switch {
	case s.isBody || s.lines == 1 && bytes.HasPrefix(line, []byte("{")):
		s.isBody = true
		s.event = append(append(s.event, line...), '\n')
		return nil, nil
	case len(line) == 0 && len(s.event) > 0:
		parts, err = s.addChunk(s.event)
		s.event = s.event[:0]
		return parts, err
	}
	data, found := bytes.CutPrefix(line, []byte("data:"))
	if !found {
		return nil, nil
	}
	data = bytes.TrimPrefix(data, []byte(" "))
	if len(s.event) == 0 && string(bytes.TrimSpace(data)) == "[DONE]" {
		var r Result
		if s.kind == wire.BotItem {
			r.bot = new(botBody)
		}
		return s.finish(r, []byte(bareEnd))
	}
	if len(s.event) > 0 {
		s.event = append(s.event, '\n')
	}
	s.event = append(s.event, data...)
	return nil, nil
}

// modelError is the error with which a model ends a stream.
type modelError struct {
	Code    jsontext.Value `json:"code"`
	Type    string         `json:"type"`
	Message string         `json:"message"`
}

// addChunk decodes an event: a chunk of a chat completion, or the error of a model. A body that is
// not an event stream must be an error.
func (s *streamDecoder) addChunk(event []byte) (parts []string, err error) {
	var chunk struct {
		Choices []struct {
			Index int64            `json:"index"`
			Delta assistantMessage `json:"delta"`
		} `json:"choices"`
		Error *modelError `json:"error"`
	}
	var issues fault.Issues
	if err := strictjson.Decode(event, &chunk, "", &issues); err != nil {
		return nil, err
	}
	if s.isBody && chunk.Error == nil || chunk.Error != nil && chunk.Error.Message == "" {
		issues.Missing("/error/message", "message is required.")
	}
	if err := issues.Err(); err != nil {
		return nil, err
	}
	if chunk.Error != nil {
		return s.finishWithError(*chunk.Error)
	}
	var r Result
	for i, choice := range chunk.Choices {
		if choice.Index == 0 {
			r.setContent(choice.Delta.Content, fault.Pointer("/choices", i)+"/delta/content", &issues)
		}
	}
	if err := issues.Err(); err != nil || r.llmContent == nil {
		return nil, err
	}
	return s.addText(*r.llmContent)
}

// finishWithError ends the answer as if the last line were an error envelope.
func (s *streamDecoder) finishWithError(e modelError) (parts []string, err error) {
	var code string
	switch e.Code.Kind() {
	case '"':
		_ = json.Unmarshal(e.Code, &code) // cannot fail: the string was decoded before
	case '0':
		code = string(e.Code)
	}
	members := map[string]string{"code": cmp.Or(code, e.Type, "model_error"), "message": e.Message}
	problem, _ := json.Marshal(members, json.Deterministic(true)) // cannot fail either
	return s.finish(Result{failure: &errorEnvelope{Error: problem}, allKnown: true}, []byte(`{"done":true,"error":`+string(problem)+`}`))
}

// addText adds a piece of the text.
func (s *streamDecoder) addText(delta string) (parts []string, err error) {
	s.text = append(s.text, delta...)
	switch {
	case !s.perDelta:
		parts = s.splitter.add(delta, MaxParts+1-s.parts) // one too many
	case delta != "":
		parts = []string{delta}
	}
	return parts, s.count(parts)
}

func (s *streamDecoder) count(parts []string) error {
	if s.parts += len(parts); s.parts > MaxParts {
		return fault.New(fault.PayloadTooLarge, "The answer has too many parts: the limit is %d.", MaxParts)
	}
	return nil
}

// finish ends the answer with the result of its last line. A text in it must be the streamed one.
func (s *streamDecoder) finish(r Result, line []byte) (parts []string, err error) {
	parts = s.splitter.split(true, MaxParts+1-s.parts) // nothing if each delta is a part
	if err := s.count(parts); err != nil {
		return nil, err
	}
	text := string(s.text)
	switch {
	case r.failure != nil: // has no text
	case r.bot != nil:
		err = r.bot.checkStreamed(text)
	case r.llmContent != nil && !sameText(*r.llmContent, text):
		err = differentText("/content")
	default:
		r.llmContent = &text
	}
	if err != nil {
		return parts, err
	}
	r.streamed, r.parts = true, s.parts
	s.result, s.lastLine = r, bytes.Clone(line)
	return parts, nil
}

// checkStreamed reports texts in the last line that differ from the streamed one.
func (d *botBody) checkStreamed(streamed string) error {
	var texts []string
	for _, m := range d.Messages.Message {
		for _, f := range m.Content.forms() {
			if strings.TrimSpace(f.source) != "" {
				texts = append(texts, f.source)
				break
			}
		}
	}
	if len(texts) > 0 && !sameText(strings.Join(texts, " "), streamed) {
		return differentText("/messages/message")
	}
	return nil
}

// sameText reports whether two texts differ in white space only.
func sameText(a, b string) bool {
	return strings.Join(strings.Fields(a), " ") == strings.Join(strings.Fields(b), " ")
}

func differentText(path string) error {
	var issues fault.Issues
	issues.Add(path, fault.IssueValue, "The text differs from the one that was streamed. Send the same text, or none.")
	return issues.Err()
}
