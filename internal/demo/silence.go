package demo

import (
	"time"

	"telapi/callruntime/wire"
)

// silence is the state of the wait for the bot, which has independent timers for
// comfort prompts and for the timeout.
type silence struct {
	since       time.Time // the last question or answer
	playedUntil time.Time // the end of the last playback
	prompts     int64     // number of comfort prompts played
}

// resetSilenceTimers sets the timers relative to the start of the silence, so that
// changed settings apply immediately.
func (c *call) resetSilenceTimers() {
	delete(c.timers, comfort)
	delete(c.timers, botTimeout)
	if len(c.pending) == 0 {
		return
	}
	delay := c.settings.delay
	if c.silence.prompts <= valueOf(delay.BotNoInputRetries) {
		from := c.silence.since
		if c.silence.playedUntil.After(from) {
			from = c.silence.playedUntil
		}
		c.timers[comfort] = deadline{from.Add(ms(delay.BotNoInputTimeoutMs)), c.playComfort}
	}
	c.timers[botTimeout] = deadline{c.silence.since.Add(ms(delay.BotNoInputGiveUpTimeoutMs)), c.botTimedOut}
}

// playComfort plays a comfort prompt. During other playback it does nothing: the end
// of playback restarts the timer.
func (c *call) playComfort() {
	if len(c.queue) > 0 {
		return
	}
	c.silence.prompts++
	c.silence.playedUntil = c.now()
	delay := c.settings.delay
	if url := valueOf(delay.BotNoInputURL); url != "" {
		c.effects.send(wire.TypeAction, map[string]string{"name": "play_audio", "url": url})
	} else {
		c.say(item{speechRequest: speechRequest{Text: valueOf(delay.BotNoInputSpeech)}, comfort: true})
	}
	if len(c.queue) == 0 { // not spoken
		c.comfortPlayed()
	}
}

// comfortPlayed follows a comfort prompt.
func (c *call) comfortPlayed() {
	c.silence.playedUntil = c.now()
	if after := ms(c.settings.delay.ResumeRecognitionTimeoutMs); after > 0 && c.ending == nil {
		c.after(recognition, after, c.resumeRecognition)
	}
	c.resetSilenceTimers()
}

// stopComfort stops a comfort prompt for the bot's answer, if so configured.
func (c *call) stopComfort() {
	if valueOf(c.settings.delay.AbortPlayOnBotMessage) && len(c.queue) > 0 && c.queue[0].comfort {
		c.effects.stopPlayback()
		c.played()
	}
	delete(c.timers, recognition)
}

func (c *call) resumeRecognition() {
	c.effects.send(wire.TypeStatus, status{Event: "recognition_resumed"})
	if text := valueOf(c.settings.delay.ResumeRecognitionSpeech); text != "" {
		c.say(item{speechRequest: speechRequest{Text: text}, comfort: true})
	}
}

// botTimedOut cancels all pending questions.
func (c *call) botTimedOut() {
	for _, q := range c.pending {
		c.effects.cancel(q.itemID)
	}
	c.pending = nil
	c.resetSilenceTimers()
	c.stopComfort()
	c.effects.send(wire.TypeStatus, status{Event: "bot_timeout"})
	c.effects.publish("", EventTimer, "bot_timeout: pending questions cancelled", nil)
	c.notify("The bot did not answer in time. Try something else.")
}
