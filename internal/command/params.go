package command

import (
	"math"
	"reflect"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Param is a key of sessionParams. Its value is sent to the runtime in a field of
// a command.
type Param struct {
	Name        string
	Type        string // boolean, integer or string
	Min, Max    int64  // of an integer
	MaxLength   int    // of a string in code points; negative if unlimited
	Command     string
	Field       string
	Description string

	field Field
}

const (
	unbounded = math.MaxInt64
	anyLength = -1
)

func boolean(name, command, field, description string) Param {
	return newParam(Param{Name: name, Type: "boolean"}, command, field, description)
}

func integer(name string, lowest, highest int64, command, field, description string) Param {
	return newParam(Param{Name: name, Type: "integer", Min: lowest, Max: highest}, command, field, description)
}

func text(name string, maxLength int, command, field, description string) Param {
	return newParam(Param{Name: name, Type: "string", MaxLength: maxLength}, command, field, description)
}

// newParam panics if the command has no such field.
func newParam(p Param, command, field, description string) Param {
	p.Command, p.Field, p.Description, p.field = command, field, description, specs[command].field(field)
	return p
}

const (
	dtmf  = "update_dtmf_config"
	delay = "update_bot_delay_config"
	stt   = "update_stt_config"
	tts   = "update_tts_config"
)

// SessionParams lists all session parameters. It is the source of validation,
// of the mapping to commands, of the limits of the same fields in managed
// commands and of the published schema. If two keys map to one field, the first
// one wins.
var SessionParams = []Param{
	boolean("sendDTMF", dtmf, "sendDTMF", "Forward the caller's DTMF digits to the bot."),
	boolean("bargeInOnDTMF", dtmf, "bargeInOnDTMF", "DTMF may interrupt the bot's playback if bargeIn is on as well."),
	boolean("bargeIn", dtmf, "bargeIn", "The caller may interrupt the bot's playback."),
	integer("bargeInMinWordCount", 0, unbounded, dtmf, "bargeInMinWordCount", "Number of words that count as barge-in."),
	boolean("dtmfCollect", dtmf, "enabled", "Collect several digits before they are forwarded."),
	text("dtmfDigits", anyLength, dtmf, "dtmfDigits", "DTMF symbols to accept; others are ignored."),
	integer("dtmfCollectInterDigitTimeoutMS", 0, unbounded, dtmf, "interDigitTimeoutMs", "Time to wait for the next digit, in ms."),
	integer("dtmfCollectMaxDigits", 0, unbounded, dtmf, "maxDigits", "Number of digits after which they are forwarded; 0 for no limit."),
	text("dtmfCollectSubmitDigit", 1, dtmf, "terminator", "Digit that ends the collection; empty for none."),
	text("sttProvider", anyLength, stt, "config.provider", "Speech recognizer; has to be in the configured chain."),
	integer("sttConnectionTimeoutMS", 10, 600000, stt, "config.connectionTimeoutMs", "Timeout for the speech recognizer, in ms."),
	integer("sttRetries", 0, 10, stt, "config.retries", "Retries with the same speech recognizer before the next one is used."),
	text("ttsProvider", anyLength, tts, "config.provider", "Speech synthesizer; has to be in the configured chain."),
	integer("ttsConnectionTimeoutMS", 10, 600000, tts, "config.connectionTimeoutMs", "Timeout for the speech synthesizer, in ms."),
	integer("ttsRetries", 0, 10, tts, "config.retries", "Retries with the same speech synthesizer before the next one is used."),
	integer("botNoInputGiveUpTimeoutMS", 1000, 120000, delay, "botNoInputGiveUpTimeoutMs", "Silence of the bot, in ms, after which the call fails over."),
	integer("botNoInputGiveUpTimeoutMs", 1000, 120000, delay, "botNoInputGiveUpTimeoutMs", "Alias of botNoInputGiveUpTimeoutMS."),
	integer("botNoInputTimeoutMs", 500, 60000, delay, "botNoInputTimeoutMs", "Silence of the bot, in ms, before the comfort prompt."),
	text("botNoInputSpeech", 500, delay, "botNoInputSpeech", "Text of the comfort prompt."),
	text("botNoInputUrl", anyLength, delay, "botNoInputUrl", "Audio of the comfort prompt, instead of its text."),
	integer("botNoInputRetries", 0, 10, delay, "botNoInputRetries", "Number of times the comfort prompt is repeated."),
	boolean("abortPlayOnBotMessage", delay, "abortPlayOnBotMessage", "Stop the comfort prompt when the bot answers."),
	integer("resumeRecognitionTimeoutMs", 1000, 60000, delay, "resumeRecognitionTimeoutMs", "Time after the comfort prompt, in ms, before recognition resumes."),
	text("resumeRecognitionSpeech", 500, delay, "resumeRecognitionSpeech", "Text spoken when recognition resumes."),
}

// paramsByCommand has the parameters that are fields of a command.
var paramsByCommand = func() map[string][]*Param {
	m := map[string][]*Param{}
	for i := range SessionParams {
		p := &SessionParams[i]
		m[p.Command] = append(m[p.Command], p)
	}
	return m
}()

var paramIndex = func() map[string]int {
	m := make(map[string]int, len(SessionParams))
	for i := range SessionParams {
		m[SessionParams[i].Name] = i
	}
	return m
}()

// SessionParamsSchema returns a JSON Schema of sessionParams.
func SessionParamsSchema() map[string]any {
	properties := map[string]any{}
	for _, p := range SessionParams {
		s := map[string]any{"type": p.Type, "description": p.Description, "x-command": p.Command, "x-field": p.Field}
		if p.Type == "integer" {
			s["minimum"] = p.Min
			if p.Max != unbounded {
				s["maximum"] = p.Max
			}
		}
		if p.Type == "string" && p.MaxLength != anyLength {
			s["maxLength"] = p.MaxLength
		}
		properties[p.Name] = s
	}
	return map[string]any{
		"$schema":              "https://json-schema.org/draft/2020-12/schema",
		"type":                 "object",
		"additionalProperties": false,
		"properties":           properties,
	}
}

// parse returns the value as bool, int64 or string.
func (p *Param) parse(raw jsontext.Value) (value any, ok bool) {
	switch kind := raw.Kind(); p.Type {
	case "boolean":
		return kind == 't', kind == 't' || kind == 'f'
	case "integer":
		return strictjson.Integer(raw)
	default:
		return stringOf(raw), kind == '"'
	}
}

// check records a value that is out of range.
func (p *Param) check(value any, field string, v validator) {
	switch value := value.(type) {
	case int64:
		switch {
		case value < p.Min:
			v.add("/"+field, fault.IssueTooSmall, "%s must be at least %d.", p.Name, p.Min)
		case value > p.Max:
			v.add("/"+field, fault.IssueTooLarge, "%s must be at most %d.", p.Name, p.Max)
		}
	case string:
		if p.MaxLength != anyLength && utf8.RuneCountInString(value) > p.MaxLength {
			v.add("/"+field, fault.IssueTooLong, "%s must have at most %d characters.", p.Name, p.MaxLength)
		}
	}
}

// paramValues are the values of sessionParams in the order of SessionParams, nil
// for absent ones.
type paramValues []any

// parseParams decodes and checks sessionParams.
func parseParams(raw jsontext.Value, v validator) paramValues {
	if raw.Kind() != '{' {
		return nil
	}
	d := paramsDecoder{make(paramValues, len(SessionParams)), v}
	_ = json.Unmarshal(raw, &d, jsontext.AllowDuplicateNames(true)) // cannot fail: raw is a decoded object
	return d.values
}

type paramsDecoder struct {
	values paramValues
	validator
}

// UnmarshalJSONFrom decodes the members in their order, so that issues have the
// same order.
func (d *paramsDecoder) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		key := name.String()
		raw, err := dec.ReadValue()
		if err != nil {
			return err
		}
		i, known := paramIndex[key]
		if !known {
			d.issues.Add(fault.Pointer(d.path, key), fault.IssueUnknown, "Unknown session parameter.")
			continue
		}
		p := &SessionParams[i]
		value, ok := p.parse(raw)
		if !ok {
			d.add("/"+p.Name, fault.IssueType, "%s must be of type %s.", p.Name, p.Type)
			continue
		}
		p.check(value, p.Name, d.validator)
		d.values[i] = value
	}
	_, err := dec.ReadToken()
	return err
}

// commands returns the commands that carry the values.
func (values paramValues) commands() []wire.Command {
	var list []wire.Command
	for _, commandType := range []string{dtmf, delay, stt, tts} {
		var c wire.Command
		for i, value := range values {
			p := &SessionParams[i]
			if value == nil || p.Command != commandType {
				continue
			}
			if c == nil {
				c = wire.NewCommand(commandType)
				list = append(list, c)
			}
			if field := p.field.of(c); field.IsNil() {
				to := reflect.New(field.Type().Elem())
				to.Elem().Set(reflect.ValueOf(value))
				field.Set(to)
			}
		}
	}
	return list
}
