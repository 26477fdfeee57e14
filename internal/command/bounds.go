package command

import (
	"fmt"
	"regexp"
	"unicode/utf8"

	"telapi/internal/fault"
)

// Bounds restrict the value of a field, in the terms of JSON Schema.
type Bounds struct {
	Minimum          *float64       `json:"minimum,omitzero"`
	ExclusiveMinimum *float64       `json:"exclusiveMinimum,omitzero"`
	Maximum          *float64       `json:"maximum,omitzero"`
	MaxLength        *int           `json:"maxLength,omitzero"` // in code points
	Pattern          *regexp.Regexp `json:"pattern,omitzero"`
	allowed          string         // the characters of Pattern, in words
}

const (
	maxDelayMs      = 600_000
	maxSpeakingRate = 10
	maxSentDigits   = 128
)

// fieldBounds has the bounds of the commands' fields by name. Session parameters have those of
// the fields that they set.
var fieldBounds = map[string]Bounds{
	"target":                        {MaxLength: new(maxTarget)},
	"delayBotDisconnectMs":          between(0, maxDelayMs),
	"transferNotificationsHangupMS": between(0, 10_000),
	"rate":                          {ExclusiveMinimum: new(0.0), Maximum: new(float64(maxSpeakingRate))},
	"digits":                        {MaxLength: new(maxSentDigits), Pattern: regexp.MustCompile(`^[0-9A-Da-d*#,wW]*$`), allowed: "0-9, A-D, *, #, and the pauses , and w"},
	"bargeInMinWordCount":           {Minimum: new(0.0)},
	"dtmfDigits":                    {Pattern: dtmfSymbols, allowed: "0-9, A-D, * and #"},
	"maxDigits":                     {Minimum: new(0.0)},
	"timeoutMs":                     between(0, maxDelayMs),
	"interDigitTimeoutMs":           {Minimum: new(0.0)},
	"terminator":                    {MaxLength: new(1), Pattern: dtmfSymbols, allowed: "0-9, A-D, * and #"},
	"config.connectionTimeoutMs":    between(10, 600_000),
	"config.retries":                between(0, 10),
	"botNoInputGiveUpTimeoutMs":     between(1000, 120_000),
	"botNoInputTimeoutMs":           between(500, 60_000),
	"botNoInputSpeech":              {MaxLength: new(500)},
	"botNoInputRetries":             between(0, 10),
	"resumeRecognitionTimeoutMs":    between(1000, 60_000),
	"resumeRecognitionSpeech":       {MaxLength: new(500)},
}

var dtmfSymbols = regexp.MustCompile(`^[0-9A-Da-d*#]*$`)

func between(lowest, highest float64) Bounds { return Bounds{Minimum: &lowest, Maximum: &highest} }

// check adds an issue if a value, an int64, a float64 or a string, is out of bounds.
// A value of the wrong type has an issue already.
func (b Bounds) check(value any, name, path string, issues *fault.Issues) {
	var n float64
	var text string
	switch value := value.(type) {
	case int64:
		n = float64(value)
	case float64:
		n = value
	case string:
		text = value
	}
	code, problem := "", ""
	switch {
	case b.Minimum != nil && n < *b.Minimum:
		code, problem = fault.IssueTooSmall, fmt.Sprintf("be at least %.0f", *b.Minimum)
	case b.ExclusiveMinimum != nil && n <= *b.ExclusiveMinimum:
		code, problem = fault.IssueTooSmall, fmt.Sprintf("be greater than %.0f", *b.ExclusiveMinimum)
	case b.Maximum != nil && n > *b.Maximum:
		code, problem = fault.IssueTooLarge, fmt.Sprintf("be at most %.0f", *b.Maximum)
	case b.MaxLength != nil && utf8.RuneCountInString(text) > *b.MaxLength:
		code, problem = fault.IssueTooLong, fmt.Sprintf("have at most %d characters", *b.MaxLength)
	case b.Pattern != nil && !b.Pattern.MatchString(text):
		code, problem = fault.IssueForbidden, "contain only "+b.allowed
	}
	if code != "" && !issues.Has(path) {
		issues.Add(path, code, "%s must %s.", name, problem)
	}
}
