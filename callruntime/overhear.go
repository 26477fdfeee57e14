package callruntime

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/kv"
)

// ObserveHistory is for onlookers, as Observe is, on the other direction: Receive
// returns what is sent to the channel's browser from a position of its history
// on, as entries of kind frame. It does not say that the channel has ended.
func (r *Runtime) ObserveHistory(channelID, from string) *Channel {
	c := newChannel(r, channelID)
	c.position = from
	c.list = func(ctx context.Context, from string) ([]Delivery, error) {
		return r.history(ctx, channelID, from, readCount+1)
	}
	c.follow(kv.BrowserTopic(channelID))
	return c
}

// History is to ObserveHistory what Entries is to Observe: what is kept of it now.
func (r *Runtime) History(ctx context.Context, channelID, from string, count int) ([]Delivery, error) {
	found, err := r.history(ctx, channelID, from, count)
	for i := range found {
		err = errors.Join(err, json.Unmarshal(found[i].JSON, &found[i].Entry))
	}
	return found, err
}

func (r *Runtime) history(ctx context.Context, channelID, from string, count int) ([]Delivery, error) {
	if from == "" {
		from = "-"
	}
	list, err := r.client.Do(ctx, r.client.B().Xrange().Key(kv.History(channelID)).Start(from).End("+").Count(int64(count)).Build()).AsXRange()
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
