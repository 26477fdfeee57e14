package demo

import (
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
)

const (
	playbackStartTimeout = 30 * time.Second // includes the synthesis of speech
	playbackGrace        = 30 * time.Second // added to the length of an item: a busy machine plays slowly
)

// item is an element of the playback queue: speech, a pause or a command.
type item struct {
	speechRequest
	recording []byte // A-law that is played instead of the text
	voice     bool   // also spoken in chat mode
	comfort   bool   // a comfort prompt
	pause     time.Duration
	execute   func() // of a command
	repeats   string // the ID of the utterance in recording
	messageID string // of the text in the conversation, if it has one
	answer    answerPart
}

// speechRequest is the body of a request for speech. enqueue sets the provider, voice
// and speed to the current settings.
type speechRequest struct {
	Text         string  `json:"text"`
	DisableCache bool    `json:"disableCache,omitzero"`
	Provider     string  `json:"provider,omitzero"`
	Voice        string  `json:"voice,omitzero"`
	Speed        float64 `json:"speed,omitzero"`
	Encoding     string  `json:"encoding"`
	EndpointID   string  `json:"endpointId"` // for usage reports
}

func (c *call) enqueue(i item) {
	i.Provider, i.Voice, i.Speed = c.settings.Provider, c.settings.Voice, c.settings.Rate
	c.queue = append(c.queue, i)
	if len(c.queue) == 1 {
		c.startNext()
	}
}

// startNext starts the first item of the queue, unless the caller speaks. If the queue
// is empty and the call is ending, it ends the call.
func (c *call) startNext() {
	if _, busy := c.timers[playback]; busy || c.ended {
		return
	}
	for len(c.queue) > 0 {
		first := c.queue[0]
		if first.execute == nil {
			if c.speaking {
				return
			}
			c.after(playback, playbackStartTimeout, c.skipItem)
			c.effects.play(first)
			return
		}
		c.queue = c.queue[1:]
		first.execute()
	}
	if end := c.ending; end != nil {
		c.ending = func() {} // only once
		c.effects.publish(EventSpeech, "playback finished")
		end()
	}
}

// playing is called when the first item of the queue starts, with its length.
func (c *call) playing(length time.Duration) { c.after(playback, length+playbackGrace, c.skipItem) }

// skipItem skips an item that takes too long.
func (c *call) skipItem() {
	c.effects.stopPlayback()
	c.played()
}

// played is called when the first item of the queue has ended.
func (c *call) played() {
	delete(c.timers, playback)
	first := c.queue[0]
	c.queue = c.queue[1:]
	c.silence.playedUntil = c.now()
	if first.comfort {
		c.comfortPlayed()
	} else {
		c.resetSilenceTimers()
	}
	c.startNext()
}

// interrupt stops playback and removes speech and pauses from the queue. Commands
// stay in the queue. An answer that still streams is cancelled.
func (c *call) interrupt() {
	c.cancelStream()
	if len(c.queue) == 0 {
		return
	}
	c.effects.stopPlayback()
	c.effects.send(wire.TypeControl, map[string]string{"command": "stop_playback"})
	delete(c.timers, playback)
	c.queue = slices.DeleteFunc(c.queue, func(i item) bool { return i.execute == nil })
	c.silence.playedUntil = c.now()
	c.resetSilenceTimers()
	c.startNext()
}

// silence is the state of a call that waits for the bot. Comfort prompts and the
// timeout have independent timers.
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
	s := c.settings
	if c.silence.prompts <= s.BotNoInputRetries {
		from := c.silence.since
		if c.silence.playedUntil.After(from) {
			from = c.silence.playedUntil
		}
		c.timers[comfort] = deadline{from.Add(ms(s.BotNoInputTimeoutMs)), c.playComfort}
	}
	c.timers[botTimeout] = deadline{c.silence.since.Add(ms(s.BotNoInputGiveUpTimeoutMs)), c.botTimedOut}
}

// playComfort plays a comfort prompt. During other playback it does nothing: the end
// of playback restarts the timer.
func (c *call) playComfort() {
	if len(c.queue) > 0 {
		return
	}
	c.silence.prompts++
	c.silence.playedUntil = c.now()
	s := c.settings
	if url := s.BotNoInputURL; url != "" {
		c.effects.send(wire.TypeAction, map[string]string{"name": "play_audio", "url": url})
	} else {
		c.say(item{speechRequest: speechRequest{Text: s.BotNoInputSpeech}, comfort: true})
	}
	if len(c.queue) == 0 { // not spoken
		c.comfortPlayed()
	}
}

func (c *call) comfortPlayed() {
	c.silence.playedUntil = c.now()
	if delay := ms(c.settings.ResumeRecognitionTimeoutMs); delay > 0 && c.ending == nil {
		c.after(recognition, delay, c.resumeRecognition)
	}
	c.resetSilenceTimers()
}

// stopComfort stops a comfort prompt because the bot has answered, if the settings
// say so.
func (c *call) stopComfort() {
	if c.settings.AbortPlayOnBotMessage && len(c.queue) > 0 && c.queue[0].comfort {
		c.effects.stopPlayback()
		c.played()
	}
	delete(c.timers, recognition)
}

func (c *call) resumeRecognition() {
	c.effects.send(wire.TypeStatus, status{Event: "recognition_resumed"})
	if text := c.settings.ResumeRecognitionSpeech; text != "" {
		c.say(item{speechRequest: speechRequest{Text: text}, comfort: true})
	}
}

func (c *call) botTimedOut() {
	for _, itemID := range c.pending {
		c.effects.cancel(itemID)
	}
	c.pending = nil
	c.resetSilenceTimers()
	c.stopComfort()
	c.effects.send(wire.TypeStatus, status{Event: "bot_timeout"})
	c.effects.publish(EventTimer, "bot_timeout: pending questions cancelled")
	c.notify("The bot did not answer in time. Try something else.")
}

func (c *call) handleDigit(digit string) {
	s := c.settings
	submits := s.Enabled && digit == s.Terminator
	if allowed := s.DTMFDigits; !submits && allowed != "" && !strings.Contains(allowed, digit) {
		c.effects.publish(EventFrame, "digit "+digit+" ignored")
		return
	}
	if s.BargeIn && s.BargeInOnDTMF {
		c.interrupt()
	}
	if !s.SendDTMF {
		return
	}
	if submits {
		c.submit()
		return
	}
	c.digits += digit
	if limit := s.MaxDigits; !s.Enabled || limit > 0 && int64(len(c.digits)) >= limit {
		c.submit()
		return
	}
	if wait := ms(s.InterDigitTimeoutMs); wait > 0 {
		c.after(interDigit, wait, c.submit)
	}
	if wait := ms(s.TimeoutMs); wait > 0 && len(c.digits) == 1 {
		c.after(allDigits, wait, c.submit)
	}
}

// submit sends the collected digits to the bot and shows them to the caller.
func (c *call) submit() {
	delete(c.timers, interDigit)
	delete(c.timers, allDigits)
	if c.digits == "" {
		return
	}
	digits := c.digits
	c.digits = ""
	c.effects.send(wire.TypeStatus, map[string]string{"event": "dtmf", "digits": digits})
	c.ask(question{DTMF: digits, Part: 1})
}

// settings are the parameters of a call. Their names are those of the members of commands.
type settings struct {
	changed bool
	// update_dtmf_config and set_barge_in
	Enabled, SendDTMF, BargeIn, BargeInOnDTMF                      bool
	BargeInMinWordCount, MaxDigits, TimeoutMs, InterDigitTimeoutMs int64
	DTMFDigits, Terminator                                         string
	// update_bot_delay_config
	BotNoInputTimeoutMs, BotNoInputRetries, BotNoInputGiveUpTimeoutMs, ResumeRecognitionTimeoutMs int64
	BotNoInputSpeech, BotNoInputURL, ResumeRecognitionSpeech                                      string
	AbortPlayOnBotMessage                                                                         bool
	// update_tts_config, set_tts_voice and set_tts_speaking_rate
	Provider, Voice string
	Rate            float64
}

var defaultSettings = settings{
	SendDTMF: true, BargeIn: true, BotNoInputTimeoutMs: 5_000, BotNoInputSpeech: "One moment, please.", BotNoInputRetries: 1,
	BotNoInputGiveUpTimeoutMs: 30_000, AbortPlayOnBotMessage: true,
}

// update applies a command. Commands that only matter for phone calls are ignored.
func (s *settings) update(command wire.Command) {
	s.changed = true
	switch cmd := command.(type) {
	case *wire.UpdateDTMFConfig, *wire.UpdateBotDelayConfig, *wire.SetTTSVoice, *wire.SetTTSSpeakingRate:
		if raw, err := json.Marshal(cmd); err == nil { // an absent member keeps its value
			_ = json.Unmarshal(raw, s, json.MatchCaseInsensitiveNames(true)) // cannot fail: the types are equal
		}
	case *wire.UpdateTTSConfig:
		if cmd.Config != nil && cmd.Config.Provider != nil {
			s.Provider = *cmd.Config.Provider
		}
	case *wire.SetBargeIn:
		s.BargeIn = valueOf(cmd.Enabled)
	}
}

// valueOf returns the zero value for nil.
func valueOf[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
