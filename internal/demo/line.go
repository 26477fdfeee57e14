package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/sleep"
)

const (
	frameLength = 20 * time.Millisecond
	frameBytes  = 160 // of A-law at 8 kHz
	// itemTTL outlives every give-up timer that can be configured.
	itemTTL = 3 * time.Minute
)

// line is a call's hands on a claimed channel.
type line struct {
	*ledger
	outside outside
	ctx     context.Context // of the call
	ch      *callruntime.Channel
	hub     *Hub
	stop    context.CancelFunc // of what plays
}

// id names something that is done on behalf of an entry. A runtime that takes
// over and deals with the entry again names it the same, so that it is done once.
func (l *line) id() string {
	if l.entry == "" {
		return uuid.NewString()
	}
	l.did++
	return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, l.ch.ID, " ", l.entry, " ", l.did)).String()
}

func (l *line) send(t wire.MessageType, payload any) {
	raw, err := json.Marshal(payload, json.Deterministic(true))
	if err != nil {
		l.fail(fmt.Errorf("encode a %s: %w", t, err))
		return
	}
	m := wire.ChannelMessage{Type: t, MessageID: l.id()}
	place, _ := m.Payload()
	*place = raw
	l.check(l.ch.Send(l.ctx, m))
}

// check notes a failure. What was attempted on a channel that has ended
// meanwhile was in vain, and nobody waits for it.
func (l *line) check(err error) {
	if err != nil && !errors.Is(err, callruntime.ErrEnded) && !errors.Is(err, callruntime.ErrWorkItemNotFound) {
		l.fail(err)
	}
}

func (l *line) ask(q question) string {
	id := l.id()
	item, err := l.ch.Await(l.ctx, callruntime.AwaitOptions{WorkItemID: id, TTL: itemTTL})
	if errors.Is(err, callruntime.ErrWorkItemExists) {
		// Asked by a runtime that did not live to commit it. The token is lost
		// with it, so the bot is asked again, unless it has answered.
		if err = l.ch.Cancel(l.ctx, id); errors.Is(err, callruntime.ErrWorkItemNotFound) {
			return id
		}
		if err == nil {
			item, err = l.ch.Await(l.ctx, callruntime.AwaitOptions{TTL: itemTTL})
		}
	}
	if err != nil {
		l.check(err)
		return id
	}
	l.note(LaneBot, EventHTTP, fmt.Sprintf("asks the bot, part %d", q.Part), struct {
		question
		WorkItemID string `json:"workItemId"`
	}{q, item.ID})
	q.itemID = item.ID
	go func() {
		parts, err := l.outside.ask(l.ctx, l.ch, q, item)
		if err != nil {
			l.note("", EventHTTP, "the bot cannot be reached", map[string]string{"error": err.Error()})
			l.report(func(c *call) { c.unreachable(item.ID) })
			return
		}
		l.hub.Publish(l.ch.ID, LaneBot, LaneRuntime, EventHTTP, "202, the answer will follow", map[string]int{"parts": parts})
		l.report(func(c *call) { c.accepted(q, parts) })
	}()
	return item.ID
}

func (l *line) cancel(workItemID string) { l.check(l.ch.Cancel(l.ctx, workItemID)) }

func (l *line) end(reason string) { l.check(l.ch.End(l.ctx, reason)) }

func (l *line) note(to Lane, kind EventKind, title string, data any) {
	l.hub.Publish(l.ch.ID, LaneRuntime, to, kind, title, data)
}

// report has the loop tell the call.
func (l *line) report(what func(*call)) {
	select {
	case l.reports <- what:
	case <-l.ctx.Done():
	}
}

func (l *line) hush() {
	if l.stop != nil {
		l.stop()
	}
	l.note("", EventSpeech, "playback is stopped", nil)
}

// play plays in the background. What it reports counts until it is hushed.
func (l *line) play(i item) {
	ctx, stop := context.WithCancel(l.ctx)
	l.stop = stop
	report := func(what func(*call)) {
		l.report(func(c *call) {
			if ctx.Err() == nil {
				what(c)
			}
		})
	}
	go func() {
		length, err := l.perform(ctx, i, func(length time.Duration) { report(func(c *call) { c.playing(length) }) })
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			l.note("", EventSpeech, "speech is not to be had", map[string]string{"error": err.Error()})
		default:
			l.note("", EventSpeech, "played", map[string]int64{"ms": length.Milliseconds()})
		}
		report(func(c *call) { stop(); c.played() })
	}()
}

// audioFrame is the payload of an audio message.
type audioFrame struct {
	Encoding   string `json:"encoding"`
	SampleRate int    `json:"sampleRate"`
	Sequence   int    `json:"sequence"`
	Data       []byte `json:"data"`
	Last       bool   `json:"last,omitzero"`
}

// perform plays one item at the pace at which it is heard.
func (l *line) perform(ctx context.Context, i item, begin func(time.Duration)) (time.Duration, error) {
	if i.pause > 0 {
		begin(i.pause)
		_ = sleep.For(ctx, i.pause)
		return i.pause, nil
	}
	u, err := l.outside.speak(ctx, i.sentence)
	if err != nil {
		return 0, err
	}
	source := map[bool]string{true: "from the media cache", false: "made"}[u.Cached]
	l.hub.Publish(l.ch.ID, LaneService, LaneRuntime, EventSpeech, "speech "+source,
		map[string]any{"text": i.Text, "hash": u.Hash, "cached": u.Cached, "characters": u.Characters, "url": u.URL})
	frames := (len(u.Audio) + frameBytes - 1) / frameBytes
	length := time.Duration(frames) * frameLength
	l.note(LaneBrowser, EventSpeech, "plays: "+i.Text, map[string]int64{"ms": length.Milliseconds()})
	begin(length)
	start := time.Now()
	for n := 0; n < frames && ctx.Err() == nil; n++ {
		raw, err := json.Marshal(audioFrame{"alaw", 8000, n, u.Audio[n*frameBytes : min((n+1)*frameBytes, len(u.Audio))], n == frames-1})
		if err == nil {
			err = l.ch.SendAudio(ctx, raw)
		}
		if err != nil {
			return length, err
		}
		_ = sleep.For(ctx, time.Until(start.Add(time.Duration(n+1)*frameLength)))
	}
	return length, nil
}
