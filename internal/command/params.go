package command

import (
	"math"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Param is one key of sessionParams: what it may be, what it means, and the
// field of the command that carries it to the call.
type Param struct {
	Name     string
	Type     string // boolean, integer or string
	Min, Max int64  // of an integer
	// MaxLength of a string in code points; negative: any.
	MaxLength int
	Command   string
	Field     string
	Meaning   string
}

const (
	unbounded = math.MaxInt64
	anyLength = -1
)

func boolean(name, command, field, meaning string) Param {
	return Param{Name: name, Type: "boolean", Command: command, Field: field, Meaning: meaning}
}

func integer(name string, lowest, highest int64, command, field, meaning string) Param {
	return Param{Name: name, Type: "integer", Min: lowest, Max: highest, Command: command, Field: field, Meaning: meaning}
}

func text(name string, maxLength int, command, field, meaning string) Param {
	return Param{Name: name, Type: "string", MaxLength: maxLength, Command: command, Field: field, Meaning: meaning}
}

const (
	dtmf  = "update_dtmf_config"
	delay = "update_bot_delay_config"
	stt   = "update_stt_config"
	tts   = "update_tts_config"
)

// SessionParams is the one table of sessionParams. Validation, mapping to
// commands, bounds of the same fields in managed commands and the published
// schema all come from it. Where two keys fill one field, the first one wins.
var SessionParams = []Param{
	boolean("sendDTMF", dtmf, "sendDTMF", "Forward the caller's DTMF digits to the bot."),
	boolean("bargeInOnDTMF", dtmf, "bargeInOnDTMF", "DTMF may interrupt the bot's playback, if bargeIn is on as well."),
	boolean("bargeIn", dtmf, "bargeIn", "The caller may interrupt the bot's playback."),
	integer("bargeInMinWordCount", 0, unbounded, dtmf, "bargeInMinWordCount", "Words the caller has to say before they count as barge-in."),
	boolean("dtmfCollect", dtmf, "enabled", "Collect several digits before they are forwarded."),
	text("dtmfDigits", anyLength, dtmf, "dtmfDigits", "DTMF symbols that count; others are ignored."),
	integer("dtmfCollectInterDigitTimeoutMS", 0, unbounded, dtmf, "interDigitTimeoutMs", "How long to wait for another digit, in ms."),
	integer("dtmfCollectMaxDigits", 0, unbounded, dtmf, "maxDigits", "Digits after which they are forwarded; 0: no such number."),
	text("dtmfCollectSubmitDigit", 1, dtmf, "terminator", "The digit that submits; empty: none does."),
	text("sttProvider", anyLength, stt, "config.provider", "A speech recogniser of the configured chain."),
	integer("sttConnectionTimeoutMS", 10, 600000, stt, "config.connectionTimeoutMs", "Longest wait for the speech recogniser, in ms."),
	integer("sttRetries", 0, 10, stt, "config.retries", "Retries with the same speech recogniser before the next one."),
	text("ttsProvider", anyLength, tts, "config.provider", "A speech synthesiser of the configured chain."),
	integer("ttsConnectionTimeoutMS", 10, 600000, tts, "config.connectionTimeoutMs", "Longest wait for the speech synthesiser, in ms."),
	integer("ttsRetries", 0, 10, tts, "config.retries", "Retries with the same speech synthesiser before the next one."),
	integer("botNoInputGiveUpTimeoutMS", 1000, 120000, delay, "botNoInputGiveUpTimeoutMs", "Silence of the bot, in ms, after which the call fails over."),
	integer("botNoInputGiveUpTimeoutMs", 1000, 120000, delay, "botNoInputGiveUpTimeoutMs", "Another spelling of botNoInputGiveUpTimeoutMS."),
	integer("botNoInputTimeoutMs", 500, 60000, delay, "botNoInputTimeoutMs", "Silence of the bot, in ms, before the comfort prompt."),
	text("botNoInputSpeech", 500, delay, "botNoInputSpeech", "Text of the comfort prompt."),
	text("botNoInputUrl", anyLength, delay, "botNoInputUrl", "Audio of the comfort prompt, instead of its text."),
	integer("botNoInputRetries", 0, 10, delay, "botNoInputRetries", "How often the comfort prompt is repeated."),
	boolean("abortPlayOnBotMessage", delay, "abortPlayOnBotMessage", "Stop the comfort prompt when the bot answers."),
	integer("resumeRecognitionTimeoutMs", 1000, 60000, delay, "resumeRecognitionTimeoutMs", "Time after the comfort prompt, in ms, before recognition resumes."),
	text("resumeRecognitionSpeech", 500, delay, "resumeRecognitionSpeech", "Text spoken when recognition resumes."),
}

var paramIndex = func() map[string]int {
	m := make(map[string]int, len(SessionParams))
	for i, p := range SessionParams {
		m[p.Name] = i
	}
	return m
}()

// SessionParamsSchema is the table as a JSON Schema.
func SessionParamsSchema() map[string]any {
	properties := map[string]any{}
	for _, p := range SessionParams {
		s := map[string]any{"type": p.Type, "description": p.Meaning, "x-command": p.Command, "x-field": p.Field}
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

// read checks one value of the sessionParams at path and returns it as the bool,
// int64 or string it is, or nil with what is wrong noted.
func (p *Param) read(raw jsontext.Value, path string, issues *fault.Issues) any {
	switch p.Type {
	case "boolean":
		if k := raw.Kind(); k == 't' || k == 'f' {
			return k == 't'
		}
	case "integer":
		if n, ok := strictjson.Integer(raw); ok {
			return p.checkInteger(n, path, p.Name, issues)
		}
	case "string":
		var s string
		if raw.Kind() == '"' && json.Unmarshal(raw, &s) == nil {
			return p.checkString(s, path, p.Name, issues)
		}
	}
	issues.Add(path+"/"+p.Name, fault.IssueType, "%s must be of type %s.", p.Name, p.Type)
	return nil
}

func (p *Param) checkInteger(n int64, path, field string, issues *fault.Issues) any {
	switch {
	case n < p.Min:
		issues.Add(path+"/"+field, fault.IssueTooSmall, "%s must be at least %d.", p.Name, p.Min)
	case n > p.Max:
		issues.Add(path+"/"+field, fault.IssueTooLarge, "%s must be at most %d.", p.Name, p.Max)
	}
	return n
}

func (p *Param) checkString(s, path, field string, issues *fault.Issues) any {
	if p.MaxLength != anyLength && utf8.RuneCountInString(s) > p.MaxLength {
		issues.Add(path+"/"+field, fault.IssueTooLong, "%s has at most %d characters.", p.Name, p.MaxLength)
	}
	return s
}
