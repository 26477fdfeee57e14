package command

import (
	"math"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Param is a member of sessionParams, the object with which a bot configures the
// call. The runtime receives its value as a field of a command.
type Param struct {
	Name        string
	Type        string // boolean, integer or string
	Min, Max    int64  // of an integer, or of a string's length in code points
	Command     string
	Field       string
	Description string

	field Field
}

const unbounded = math.MaxInt64

// param returns a parameter with the type of the command's field. It panics if
// the field does not exist.
func param(name, command, field, description string, bounds ...int64) Param {
	f := specs[command].field(field)
	p := Param{Name: name, Type: f.Type, Max: unbounded, Command: command, Field: field, Description: description, field: f}
	if bounds != nil {
		p.Min, p.Max = bounds[0], bounds[1]
	}
	return p
}

// The commands that contain session parameters.
const (
	dtmf  = "update_dtmf_config"
	delay = "update_bot_delay_config"
	stt   = "update_stt_config"
	tts   = "update_tts_config"
)

// SessionParams lists all session parameters. It determines how they are validated
// and mapped to commands, the limits of the same fields in managed commands, and the
// published schema. Of two parameters for the same field, the first one is used.
var SessionParams = []Param{
	param("sendDTMF", dtmf, "sendDTMF", "Forward the caller's DTMF digits to the bot."),
	param("bargeInOnDTMF", dtmf, "bargeInOnDTMF", "DTMF may interrupt the bot's playback if bargeIn is on as well."),
	param("bargeIn", dtmf, "bargeIn", "The caller may interrupt the bot's playback."),
	param("bargeInMinWordCount", dtmf, "bargeInMinWordCount", "Number of words that count as barge-in."),
	param("dtmfCollect", dtmf, "enabled", "Collect several digits before they are forwarded."),
	param("dtmfDigits", dtmf, "dtmfDigits", "DTMF symbols to accept; others are ignored."),
	param("dtmfCollectInterDigitTimeoutMS", dtmf, "interDigitTimeoutMs", "Time to wait for the next digit, in ms."),
	param("dtmfCollectMaxDigits", dtmf, "maxDigits", "Number of digits after which they are forwarded; 0 for no limit."),
	param("dtmfCollectSubmitDigit", dtmf, "terminator", "Digit that ends the collection; empty for none.", 0, 1),
	param("sttProvider", stt, "config.provider", "Speech recognizer; has to be in the configured chain."),
	param("sttConnectionTimeoutMS", stt, "config.connectionTimeoutMs", "Timeout for the speech recognizer, in ms.", 10, 600000),
	param("sttRetries", stt, "config.retries", "Retries with the same speech recognizer before the next one is used.", 0, 10),
	param("ttsProvider", tts, "config.provider", "Speech synthesizer; has to be in the configured chain."),
	param("ttsConnectionTimeoutMS", tts, "config.connectionTimeoutMs", "Timeout for the speech synthesizer, in ms.", 10, 600000),
	param("ttsRetries", tts, "config.retries", "Retries with the same speech synthesizer before the next one is used.", 0, 10),
	param("botNoInputGiveUpTimeoutMS", delay, "botNoInputGiveUpTimeoutMs", "Silence of the bot, in ms, after which the call fails over.", 1000, 120000),
	param("botNoInputGiveUpTimeoutMs", delay, "botNoInputGiveUpTimeoutMs", "Alias of botNoInputGiveUpTimeoutMS.", 1000, 120000),
	param("botNoInputTimeoutMs", delay, "botNoInputTimeoutMs", "Silence of the bot, in ms, before the comfort prompt.", 500, 60000),
	param("botNoInputSpeech", delay, "botNoInputSpeech", "Text of the comfort prompt.", 0, 500),
	param("botNoInputUrl", delay, "botNoInputUrl", "Audio of the comfort prompt, instead of its text."),
	param("botNoInputRetries", delay, "botNoInputRetries", "Number of times the comfort prompt is repeated.", 0, 10),
	param("abortPlayOnBotMessage", delay, "abortPlayOnBotMessage", "Stop the comfort prompt when the bot answers."),
	param("resumeRecognitionTimeoutMs", delay, "resumeRecognitionTimeoutMs", "Time after the comfort prompt, in ms, before recognition resumes.", 1000, 60000),
	param("resumeRecognitionSpeech", delay, "resumeRecognitionSpeech", "Text spoken when recognition resumes.", 0, 500),
}

// SessionParamsSchema returns a JSON Schema of sessionParams.
func SessionParamsSchema() map[string]any {
	properties := map[string]any{}
	for _, p := range SessionParams {
		s := map[string]any{"type": p.Type, "description": p.Description, "x-command": p.Command, "x-field": p.Field}
		if p.Type == "integer" {
			s["minimum"] = p.Min
		}
		if p.Max != unbounded {
			s[map[string]string{"integer": "maximum", "string": "maxLength"}[p.Type]] = p.Max
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

// check adds an issue if the value is out of range.
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
		if int64(utf8.RuneCountInString(value)) > p.Max {
			v.add("/"+field, fault.IssueTooLong, "%s must have at most %d characters.", p.Name, p.Max)
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
	values := make(paramValues, len(SessionParams))
	for name, raw := range strictjson.Members(raw) {
		i := slices.IndexFunc(SessionParams, func(p Param) bool { return p.Name == name })
		if i < 0 {
			v.issues.Add(fault.Pointer(v.path, name), fault.IssueUnknown, "Unknown session parameter.")
			continue
		}
		p := &SessionParams[i]
		value, ok := p.parse(raw)
		if !ok {
			v.add("/"+name, fault.IssueType, "%s must be of type %s.", name, p.Type)
			continue
		}
		p.check(value, name, v)
		values[i] = value
	}
	return values
}

// commands returns the commands that contain the values.
func (values paramValues) commands() []Request {
	var list []Request
	for _, commandType := range []string{dtmf, delay, stt, tts} {
		var c wire.Command
		for i, value := range values {
			p := &SessionParams[i]
			if value == nil || p.Command != commandType {
				continue
			}
			if c == nil {
				c = wire.NewCommand(commandType)
				list = append(list, Request{Command: c})
			}
			if field := p.field.create(c); field.IsNil() {
				pointer := reflect.New(field.Type().Elem())
				pointer.Elem().Set(reflect.ValueOf(value))
				field.Set(pointer)
			}
		}
	}
	return list
}
