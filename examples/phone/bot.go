package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime/wire"

	"example.com/phone/media"
)

const maxDigits = 64 // that are collected

// pressed handles one key of the caller. Enabled collects keys; otherwise each is submitted.
func (c *call) pressed(digit string) {
	s := c.settings
	submits := s.Enabled && digit == s.Terminator
	switch {
	case c.confirm != nil:
		c.confirm(digit == "1")
		return
	case c.leaving() || !submits && s.DTMFDigits != "" && !strings.Contains(s.DTMFDigits, digit):
		return
	}
	c.status(map[string]any{"event": "dtmf", "digit": digit})
	if s.BargeIn && s.BargeInOnDTMF {
		c.interrupt("dtmf")
	}
	if !s.SendDTMF {
		return
	}
	if !submits {
		c.digits += digit
	}
	if submits || !s.Enabled || s.MaxDigits > 0 && int64(len(c.digits)) >= s.MaxDigits || len(c.digits) >= maxDigits {
		c.submit()
		return
	}
	if s.InterDigitTimeoutMs > 0 {
		c.after("next digit", ms(s.InterDigitTimeoutMs), c.submit)
	}
	if s.TimeoutMs > 0 && len(c.digits) == 1 {
		c.after("all digits", ms(s.TimeoutMs), c.submit)
	}
}

// submit sends the collected digits to the bot.
func (c *call) submit() {
	delete(c.timers, "next digit")
	delete(c.timers, "all digits")
	if digits := c.digits; digits != "" {
		c.digits = ""
		c.status(map[string]any{"event": "dtmf", "digits": digits})
		c.ask("dtmf", digits, 1)
	}
}

// hear takes 20 ms of the caller's audio.
func (c *call) hear(frame []byte) {
	if c.muted || c.leaving() {
		c.listener.Reset()
		return
	}
	started, said := c.listener.Hear(frame)
	if started {
		c.speaking = true
		if c.settings.BargeIn && c.settings.BargeInMinWordCount <= 1 {
			c.interrupt("speech")
		}
	}
	if said != nil {
		c.speaking = false
		c.said(said)
	}
}

// said handles what the caller said. Without a recognizer it is repeated.
func (c *call) said(alaw []byte) {
	seconds := float64(len(alaw)) / media.SampleRate
	c.status(map[string]any{"event": "speech", "ms": int(1000 * seconds)})
	if c.phone.config.STTURL == "" {
		c.say(&item{text: fmt.Sprintf("I heard %.1f seconds. Listen:", seconds), frames: media.Frames(alaw)})
		return
	}
	limits, input := c.settings.STT, c.input
	c.later(c.questions, func() {
		text, err := c.phone.recognize(c.ctx, alaw, limits)
		c.post(func() {
			switch {
			case err != nil:
				c.log.Warn("speech recognition failed", "error", err)
				c.status(map[string]any{"event": "recognition", "state": "failed"})
			case text != "" && input == c.input: // not cleared meanwhile
				c.recognized(text)
			}
		})
	})
}

func (c *call) recognized(text string) {
	c.show(wire.TypeChat, map[string]any{"text": text, "from": "caller", "spoken": true})
	if c.settings.BargeIn && int64(len(strings.Fields(text))) >= c.settings.BargeInMinWordCount {
		c.interrupt("speech")
	}
	c.ask("text", text, 1)
}

// setVoiceInput turns recognition on or off, and drops what was not recognized yet.
func (c *call) setVoiceInput(cmd *wire.SetVoiceInput) {
	if cmd.Enabled != nil {
		c.muted = !*cmd.Enabled
	}
	if c.muted || valueOf(cmd.ClearBuffer) {
		c.listener.Reset()
		c.speaking = false
		c.input++
	}
}

// ask asks the bot, one question after the other: the order of the work items is the order
// of the answers. The question has the form that docs/providers.md suggests; the member is
// text or dtmf. The bot may say that the answer has more parts, which are asked for.
func (c *call) ask(member, value string, part int) {
	if c.leaving() {
		return
	}
	id := uuid.NewString()
	question := map[string]any{
		"kind": wire.BotItem, "channelId": c.channel.ID, "workItemId": id, member: value, "part": part, "context": maps.Clone(c.context),
	}
	asked := c.later(c.questions, func() {
		parts, err := c.sendQuestion(id, question)
		c.post(func() {
			switch {
			case err != nil:
				c.log.Warn("bot not reached", "error", err)
				c.answered(id, true)
				c.say(&item{text: "The bot is not reachable. Please try again."})
			case part < parts:
				c.ask(member, value, part+1)
			}
		})
	})
	if !asked {
		return
	}
	if len(c.pending) == 0 {
		c.awaitBot()
	}
	c.pending = append(c.pending, id)
}

// sendQuestion registers a work item and posts the question. It returns the number of
// parts of the answer.
func (c *call) sendQuestion(id string, question map[string]any) (int, error) {
	work, err := c.channel.Await(c.ctx, wire.Await{
		WorkItemID: id, Trace: wire.Trace{CallID: c.channel.CallID, TransactionID: c.channel.TransactionID},
	})
	if err != nil {
		return 0, err
	}
	question["callback"] = map[string]any{"url": work.URL, "token": work.Token, "expiresAt": time.UnixMilli(work.Deadline)}
	accepted := struct {
		Parts int `json:"parts"`
	}{1}
	err = c.phone.doJSON(c.ctx, request{url: c.phone.config.BotURL, limits: limits{Retries: 1}}, question, &accepted)
	if err != nil {
		_ = c.channel.Cancel(c.ctx, id) // otherwise it times out
	}
	return accepted.Parts, err
}

// answered notes that a part of an answer arrived. The last one settles the work item.
func (c *call) answered(itemID string, last bool) {
	at := slices.Index(c.pending, itemID)
	if at < 0 {
		return
	}
	if last {
		c.pending = slices.Delete(c.pending, at, at+1)
	}
	c.awaitBot()
	delete(c.timers, "recognition")
	if c.settings.AbortPlayOnBotMessage && len(c.queue) > 0 && c.queue[0].comfort {
		c.stopFirst()
		c.queue = c.queue[1:]
	}
}

// awaitBot starts the time in which the bot must answer.
func (c *call) awaitBot() {
	c.prompts = 0
	c.after("comfort", ms(c.settings.BotNoInputTimeoutMs), c.comfort)
	c.after("give up", ms(c.settings.BotNoInputGiveUpTimeoutMs), c.giveUp)
}

// comfort plays a comfort prompt, unless something else is played: that restarts the time.
func (c *call) comfort() {
	s := c.settings
	if len(c.pending) == 0 || len(c.queue) > 0 || c.prompts > s.BotNoInputRetries {
		return
	}
	c.prompts++
	c.status(map[string]any{"event": "comfort_prompt", "number": c.prompts})
	if s.BotNoInputURL != "" {
		c.enqueue(&item{address: s.BotNoInputURL, comfort: true})
	} else {
		c.say(&item{text: s.BotNoInputSpeech, comfort: true})
	}
}

// giveUp cancels the questions that the bot has not answered. The call goes to the
// failover target, or it ends.
func (c *call) giveUp() {
	if len(c.pending) == 0 {
		return
	}
	for _, id := range c.pending {
		c.tasks.Go(func() { _ = c.channel.Cancel(c.ctx, id) }) // otherwise it times out
	}
	c.status(map[string]any{"event": "bot_timeout"})
	c.say(&item{text: "The bot does not answer. Please call again later."})
	if target := c.phone.config.Failover; target != "" {
		c.transfer(&wire.Transfer{CommonFields: wire.CommonFields{Type: "transfer"}, Target: target})
	} else {
		c.endAfterPlayback(func() { c.end("bot_timeout", reasonHeader("bot_timeout", 41)) })
	}
	c.pending = nil
}
