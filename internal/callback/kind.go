package callback

import (
	"fmt"

	"telapi/callruntime/wire"
	"telapi/internal/bot"
)

// Parse decodes a callback body of the given kind. Its error lists every problem
// of the body.
func Parse(kind wire.WorkItemKind, body []byte, channelID string) (bot.Result, error) {
	var result bot.Result
	var err error
	switch kind {
	case wire.BotItem:
		result, err = bot.Parse(body, channelID)
	case wire.LLMItem:
		result, err = bot.ParseLLM(body)
	case wire.ToolItem:
		result, err = bot.ParseTool(body)
	default:
		err = fmt.Errorf("unknown callback kind %q", kind)
	}
	if err != nil {
		return nil, err
	}
	return result, nil
}
