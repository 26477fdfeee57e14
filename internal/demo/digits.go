package demo

import (
	"strings"

	"telapi/callruntime/wire"
)

// handleDigit handles one key that the caller pressed.
func (c *call) handleDigit(digit string) {
	dtmf := c.settings.dtmf
	submits := valueOf(dtmf.Enabled) && digit == valueOf(dtmf.Terminator)
	if allowed := valueOf(dtmf.DTMFDigits); !submits && allowed != "" && !strings.Contains(allowed, digit) {
		c.effects.publish("", EventFrame, "digit "+digit+" ignored", nil)
		return
	}
	if valueOf(dtmf.BargeIn) && valueOf(dtmf.BargeInOnDTMF) {
		c.interrupt()
	}
	if !valueOf(dtmf.SendDTMF) {
		return
	}
	if submits {
		c.submit()
		return
	}
	c.digits += digit
	if limit := valueOf(dtmf.MaxDigits); !valueOf(dtmf.Enabled) || limit > 0 && int64(len(c.digits)) >= limit {
		c.submit()
		return
	}
	if wait := ms(dtmf.InterDigitTimeoutMs); wait > 0 {
		c.after(interDigit, wait, c.submit)
	}
	if wait := ms(dtmf.TimeoutMs); wait > 0 && len(c.digits) == 1 {
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
