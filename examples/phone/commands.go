package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/emiago/sipgo/sip"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

const (
	confirmTimeout = 30 * time.Second
	maxContext     = 64 // variables of set_context
)

// settings are the parameters of a call. Their names are those of the members of commands.
type settings struct {
	// update_dtmf_config
	Enabled, SendDTMF, BargeIn, BargeInOnDTMF                      bool
	BargeInMinWordCount, MaxDigits, TimeoutMs, InterDigitTimeoutMs int64
	DTMFDigits, Terminator                                         string
	// update_bot_delay_config
	BotNoInputTimeoutMs, BotNoInputRetries, BotNoInputGiveUpTimeoutMs, ResumeRecognitionTimeoutMs int64
	BotNoInputSpeech, BotNoInputURL, ResumeRecognitionSpeech                                      string
	AbortPlayOnBotMessage                                                                         bool
	// set_tts_voice, set_tts_speaking_rate, update_stt_config and update_tts_config
	Voice    string
	Rate     float64
	STT, TTS limits
}

// limits are the parameters of requests to a speech service.
type limits struct {
	Provider                     string
	ConnectionTimeoutMs, Retries int64
}

var defaultSettings = settings{
	SendDTMF: true, BargeIn: true, BotNoInputTimeoutMs: 5_000, BotNoInputSpeech: "One moment, please.", BotNoInputRetries: 1,
	BotNoInputGiveUpTimeoutMs: 30_000, AbortPlayOnBotMessage: true,
}

// update sets what a command changes. An absent member keeps its value.
func update(settings, change any) error {
	raw, err := json.Marshal(change)
	return errors.Join(err, json.Unmarshal(raw, settings, json.MatchCaseInsensitiveNames(true)))
}

// command executes an allowed command when its turn comes, and after the caller's
// confirmation if the policy requires it.
func (c *call) command(e wire.Entry) {
	head := e.Command.Common()
	if head.RequireConfirmation {
		c.confirm = func(yes bool) {
			c.confirm, head.RequireConfirmation = nil, false
			delete(c.timers, "confirmation")
			if yes {
				c.command(e)
			} else {
				c.commandResult(head, errors.New("not confirmed"))
			}
		}
		c.after("confirmation", confirmTimeout, func() { c.confirm(false) })
		c.say(&item{text: "Press 1 to confirm, or another key to cancel."})
		return
	}
	execute := func() { c.commandResult(head, c.apply(e.Command.Command)) }
	switch cmd := e.Command.Command.(type) {
	case *wire.Hangup:
		c.endAfterPlayback(func() {
			c.after("disconnect", ms(valueOf(cmd.DelayBotDisconnectMs)), func() {
				c.commandResult(head, nil)
				c.end("hangup", c.sipHeaders(cmd.HangupSIPHeaders, reasonHeader(cmd.Reason, 16))...)
			})
		})
	case *wire.Transfer:
		c.transfer(cmd)
	default:
		if e.Apply == wire.ApplyInOrder {
			c.enqueue(&item{execute: execute})
		} else {
			execute()
		}
	}
}

// apply executes a command that does not end the call.
func (c *call) apply(command wire.Command) error {
	switch cmd := command.(type) {
	case *wire.UpdateDTMFConfig, *wire.UpdateBotDelayConfig, *wire.SetTTSVoice:
		err := update(&c.settings, cmd)
		if !c.settings.Enabled { // digits are not collected any more
			c.submit()
		}
		return err
	case *wire.UpdateSTTConfig:
		return update(&c.settings.STT, cmd.Config)
	case *wire.UpdateTTSConfig:
		return update(&c.settings.TTS, cmd.Config)
	case *wire.SetTTSSpeakingRate:
		c.settings.Rate = max(0.25, min(valueOf(cmd.Rate), 4)) // what telapi's speech takes
	case *wire.SetBargeIn:
		c.settings.BargeIn = valueOf(cmd.Enabled)
	case *wire.SetVoiceInput:
		c.setVoiceInput(cmd)
	case *wire.SendDTMF:
		return c.leg.audio.Press(cmd.Digits)
	case *wire.PlayAudio:
		c.queue = slices.Insert(c.queue, 0, &item{address: audioAddress(cmd.Media)}) // at the front: play has just removed the item of this command
	case *wire.SetContext:
		var values map[string]jsontext.Value
		if err := json.Unmarshal(cmd.Values, &values); err != nil || len(values)+len(c.context) > maxContext {
			return fmt.Errorf("invalid values: use an object, and at most %d variables", maxContext)
		}
		maps.Copy(c.context, values)
	case *wire.EmitEvent:
		c.show(wire.TypeAction, map[string]any{"name": "event", "event": cmd.Event, "payload": cmd.Payload})
	default:
		return errors.New("unknown command")
	}
	return nil
}

// audioAddress returns the address in the media of play_audio: a text, or an object with
// the member url or hash.
func audioAddress(raw jsontext.Value) string {
	var media struct {
		URL  string `json:"url"`
		Hash string `json:"hash"`
	}
	if json.Unmarshal(raw, &media.URL) != nil && json.Unmarshal(raw, &media) == nil && media.URL == "" {
		return speechPath + "/" + media.Hash + ".alaw"
	}
	return media.URL
}

// commandResult reports what became of a command.
func (c *call) commandResult(head *wire.CommonFields, err error) {
	result := map[string]any{"event": "command", "type": head.Type, "result": "done"}
	if head.CommandID != "" {
		result["commandId"] = head.CommandID
	}
	if err != nil {
		result["result"], result["reason"] = "failed", err.Error()
	}
	c.status(result)
}

// endAfterPlayback calls end when the queue is empty. The bot is not asked any more.
func (c *call) endAfterPlayback(end func()) {
	if c.ending == nil {
		c.ending = end
		c.pending, c.digits, c.speaking = nil, "", false
		clear(c.timers)
	}
}

// sipHeaders returns the headers of a command, and others unless it has them: the
// transaction ID always.
func (c *call) sipHeaders(list []wire.NameValue, others ...sip.Header) (headers []sip.Header) {
	for _, h := range list {
		headers = append(headers, sip.NewHeader(h.Name, h.Value))
	}
	for _, other := range append(others, sip.NewHeader(wire.TransactionHeader, c.channel.TransactionID)) {
		if !slices.ContainsFunc(headers, func(h sip.Header) bool { return strings.EqualFold(h.Name(), other.Name()) }) {
			headers = append(headers, other)
		}
	}
	return headers
}

// reasonHeader returns a Reason (RFC 3326) with a cause of Q.850: 16 for a normal end, 31 for
// an unspecified one, 41 for a temporary failure, 102 for a timeout.
func reasonHeader(text string, cause int) sip.Header {
	value := fmt.Sprintf("Q.850;cause=%d", cause)
	if text != "" {
		value += `;text="` + strings.NewReplacer(`"`, "", `\`, "", "\r", "", "\n", "").Replace(text) + `"`
	}
	return sip.NewHeader("Reason", value)
}

// valueOf returns the zero value for nil.
func valueOf[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
