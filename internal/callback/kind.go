package callback

import (
	"fmt"

	"telapi/callruntime/wire"
	"telapi/internal/bot"
)

// Kinds lists them all.
var Kinds = []Kind{Bot, LLM, Tool}

// Source is what commands of this kind of callback are permitted as.
func (k Kind) Source() string {
	switch k {
	case LLM:
		return wire.SourceLLM
	case Tool:
		return wire.SourceTool
	default:
		return wire.SourceBot
	}
}

// Parse reads a body of this kind and reports everything wrong with it.
func (k Kind) Parse(body []byte, channelID string) (bot.Result, error) {
	var result bot.Result
	var err error
	switch k {
	case Bot:
		result, err = bot.Parse(body, channelID)
	case LLM:
		result, err = bot.ParseLLM(body)
	case Tool:
		result, err = bot.ParseTool(body)
	default:
		err = fmt.Errorf("there is no callback of kind %q", k)
	}
	if err != nil {
		return nil, err
	}
	return result, nil
}
