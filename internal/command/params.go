package command

import (
	"reflect"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Param is a member of sessionParams, the object with which a bot configures the
// call. The runtime receives its value as a field of a command.
type Param struct {
	Name        string
	Command     string
	Description string

	field Field // of the command; its type is boolean, integer or string
}

// param returns a parameter with the type and the bounds of the command's field, but not
// its pattern. It panics if the field does not exist.
func param(name, command, field, description string) Param {
	f := specs[command].field(field)
	f.Pattern = nil // the interface document bounds only lengths and numbers of session parameters
	return Param{name, command, description, f}
}

// The commands that contain session parameters.
const (
	dtmf  = "update_dtmf_config"
	delay = "update_bot_delay_config"
	stt   = "update_stt_config"
	tts   = "update_tts_config"
)

// SessionParams lists all session parameters. It determines how they are validated
// and mapped to commands, and the published schema. Of two parameters for the same
// field, the first one is used.
var SessionParams = []Param{
	param("sendDTMF", dtmf, "sendDTMF", "Forward the caller's DTMF digits to the bot."),
	param("bargeInOnDTMF", dtmf, "bargeInOnDTMF", "DTMF may interrupt the bot's playback if bargeIn is on as well."),
	param("bargeIn", dtmf, "bargeIn", "The caller may interrupt the bot's playback."),
	param("bargeInMinWordCount", dtmf, "bargeInMinWordCount", "Number of words that count as barge-in."),
	param("dtmfCollect", dtmf, "enabled", "Collect several digits before they are forwarded."),
	param("dtmfDigits", dtmf, "dtmfDigits", "DTMF symbols to accept; others are ignored."),
	param("dtmfCollectInterDigitTimeoutMS", dtmf, "interDigitTimeoutMs", "Time to wait for the next digit, in ms."),
	param("dtmfCollectMaxDigits", dtmf, "maxDigits", "Number of digits after which they are forwarded; 0 for no limit."),
	param("dtmfCollectSubmitDigit", dtmf, "terminator", "Digit that ends the collection; empty for none."),
	param("sttProvider", stt, "config.provider", "Speech recognizer; has to be in the configured chain."),
	param("sttConnectionTimeoutMS", stt, "config.connectionTimeoutMs", "Timeout for the speech recognizer, in ms."),
	param("sttRetries", stt, "config.retries", "Retries with the same speech recognizer before the next one is used."),
	param("ttsProvider", tts, "config.provider", "Speech synthesizer; has to be in the configured chain."),
	param("ttsConnectionTimeoutMS", tts, "config.connectionTimeoutMs", "Timeout for the speech synthesizer, in ms."),
	param("ttsRetries", tts, "config.retries", "Retries with the same speech synthesizer before the next one is used."),
	param("botNoInputGiveUpTimeoutMS", delay, "botNoInputGiveUpTimeoutMs", "Silence of the bot, in ms, after which the call fails over."),
	param("botNoInputGiveUpTimeoutMs", delay, "botNoInputGiveUpTimeoutMs", "Alias of botNoInputGiveUpTimeoutMS."),
	param("botNoInputTimeoutMs", delay, "botNoInputTimeoutMs", "Silence of the bot, in ms, before the comfort prompt."),
	param("botNoInputSpeech", delay, "botNoInputSpeech", "Text of the comfort prompt."),
	param("botNoInputUrl", delay, "botNoInputUrl", "Audio of the comfort prompt, instead of its text."),
	param("botNoInputRetries", delay, "botNoInputRetries", "Number of times the comfort prompt is repeated."),
	param("abortPlayOnBotMessage", delay, "abortPlayOnBotMessage", "Stop the comfort prompt when the bot answers."),
	param("resumeRecognitionTimeoutMs", delay, "resumeRecognitionTimeoutMs", "Time after the comfort prompt, in ms, before recognition resumes."),
	param("resumeRecognitionSpeech", delay, "resumeRecognitionSpeech", "Text spoken when recognition resumes."),
}

// paramSchema is the JSON Schema of a session parameter.
type paramSchema struct {
	Type        string `json:"type"`
	Description string `json:"description"`
	Command     string `json:"x-command"`
	Field       string `json:"x-field"`
	Bounds
}

// SessionParamsSchema returns a JSON Schema of sessionParams.
func SessionParamsSchema() map[string]any {
	properties := map[string]any{}
	for _, p := range SessionParams {
		properties[p.Name] = paramSchema{p.field.Type, p.Description, p.Command, p.field.Name, p.field.Bounds}
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
	switch kind := raw.Kind(); p.field.Type {
	case "boolean":
		return kind == 't', kind == 't' || kind == 'f'
	case "integer":
		return strictjson.Integer(raw)
	default:
		return stringOf(raw), kind == '"'
	}
}

// paramValues are the values of sessionParams in the order of SessionParams, nil
// for absent ones.
type paramValues []any

// parseParams decodes and checks sessionParams.
func parseParams(raw jsontext.Value, v validator) paramValues {
	values := make(paramValues, len(SessionParams))
	for name, raw := range strictjson.Members(raw) {
		i := slices.IndexFunc(SessionParams, func(p Param) bool { return p.Name == name })
		if i < 0 {
			v.issues.Add(fault.Pointer(v.path, name), fault.IssueUnknown, "Unknown session parameter. SessionParams in the API description lists all of them.")
			continue
		}
		p := &SessionParams[i]
		value, ok := p.parse(raw)
		if !ok {
			v.add("/"+name, fault.IssueType, "%s must be of type %s.", name, p.field.Type)
			continue
		}
		p.field.check(value, name, v.path+"/"+name, v.issues)
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
