package callruntime

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

// Overhear is for onlookers, as Observe is, on the other direction: Receive
// returns what is sent to the channel's browser, the history that is kept first,
// as entries of kind frame. It does not say that the channel has ended.
func (r *Runtime) Overhear(channelID string) *Channel {
	c := newChannel(r, channelID)
	c.list = func(ctx context.Context, from string) ([]Delivery, error) { return r.history(ctx, channelID, from) }
	c.member = r.topics.Join(wire.Downward(channelID), ear{c})
	return c
}

func (r *Runtime) history(ctx context.Context, channelID, from string) ([]Delivery, error) {
	if from == "" {
		from = "-"
	}
	list, err := r.client.Do(ctx, r.client.B().Xrange().Key(wire.HistoryKey(channelID)).Start(from).End("+").Count(readCount+1).Build()).AsXRange()
	if err != nil {
		return nil, err
	}
	found := make([]Delivery, 0, len(list))
	for _, message := range list {
		_, sent, _ := strings.Cut(message.ID, "-")
		at, err := strconv.ParseInt(sent, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read the history: %w", err)
		}
		found = append(found, Delivery{Position: message.ID, JSON: jsontext.Value(
			fmt.Sprintf(`{"kind":"frame","channelId":%q,"at":%d,"message":%s}`, channelID, at, message.FieldValues["message"]))})
	}
	return found, nil
}
