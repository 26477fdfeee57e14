package demo

import (
	"time"

	"telapi/callruntime/wire"
)

// silence is how the bot's is dealt with: comfort prompts, as often as they are
// configured, and giving up, which come by timers of their own.
type silence struct {
	since   time.Time // the bot was heard, or asked
	quiet   time.Time // the caller heard something, if that was later
	prompts int64     // played
}

// watchSilence sets the timers by what is configured now, reckoned from when
// the silence began: a changed setting holds at once.
func (c *call) watchSilence() {
	delete(c.timers, comfort)
	delete(c.timers, giveUp)
	if len(c.awaited) == 0 {
		return
	}
	delay := c.settings.delay
	if c.silence.prompts <= of(delay.BotNoInputRetries) {
		from := c.silence.since
		if c.silence.quiet.After(from) {
			from = c.silence.quiet
		}
		c.timers[comfort] = alarm{from.Add(ms(delay.BotNoInputTimeoutMs)), c.comfort}
	}
	c.timers[giveUp] = alarm{c.silence.since.Add(ms(delay.BotNoInputGiveUpTimeoutMs)), c.giveUp}
}

// comfort prompts the caller to bear with the bot. While something plays the
// caller is not left alone: the next one counts from its end.
func (c *call) comfort() {
	if len(c.queue) > 0 {
		return
	}
	c.silence.prompts++
	c.silence.quiet = c.now()
	delay := c.settings.delay
	if url := of(delay.BotNoInputURL); url != "" {
		c.hands.send(wire.TypeAction, map[string]string{"name": "play_audio", "url": url})
	} else {
		c.say(item{sentence: sentence{Text: of(delay.BotNoInputSpeech)}, comfort: true})
	}
	if len(c.queue) == 0 { // not spoken: it was heard already
		c.comforted()
	}
}

// comforted follows a comfort prompt.
func (c *call) comforted() {
	c.silence.quiet = c.now()
	if after := ms(c.settings.delay.ResumeRecognitionTimeoutMs); after > 0 && c.leaving == nil {
		c.after(recognition, after, c.resumeRecognition)
	}
	c.watchSilence()
}

// stopComfort makes way for the bot's answer, where that is configured.
func (c *call) stopComfort() {
	if of(c.settings.delay.AbortPlayOnBotMessage) && len(c.queue) > 0 && c.queue[0].comfort {
		c.hands.hush()
		c.played()
	}
	delete(c.timers, recognition)
}

func (c *call) resumeRecognition() {
	c.hands.send(wire.TypeStatus, status{Event: "recognition_resumed"})
	if text := of(c.settings.delay.ResumeRecognitionSpeech); text != "" {
		c.say(item{sentence: sentence{Text: text}, comfort: true})
	}
}

// giveUp is the failover: whatever the bot still owes is not awaited any more.
func (c *call) giveUp() {
	for _, q := range c.awaited {
		c.hands.cancel(q.itemID)
	}
	c.awaited = nil
	c.watchSilence()
	c.stopComfort()
	c.hands.send(wire.TypeStatus, status{Event: "bot_timeout"})
	c.hands.note("", EventTimer, "bot_timeout: the bot is not waited for any longer", nil)
	c.tell("The bot stays silent, so I stopped waiting. Try something else.")
}
