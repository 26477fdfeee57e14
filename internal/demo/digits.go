package demo

import (
	"strings"

	"telapi/callruntime/wire"
	"telapi/internal/timeline"
)

// digit is one key the caller pressed.
func (c *call) digit(digit string) {
	dtmf := c.settings.dtmf
	submits := is(dtmf.Enabled) && digit == text(dtmf.Terminator)
	if allowed := text(dtmf.DTMFDigits); !submits && allowed != "" && !strings.Contains(allowed, digit) {
		c.hands.note("", timeline.Frame, "digit "+digit+" is ignored", nil)
		return
	}
	if is(dtmf.BargeIn) && is(dtmf.BargeInOnDTMF) {
		c.interrupt()
	}
	if !is(dtmf.SendDTMF) {
		return
	}
	if submits {
		c.submit()
		return
	}
	c.digits += digit
	if most := value(dtmf.MaxDigits); !is(dtmf.Enabled) || most > 0 && int64(len(c.digits)) >= most {
		c.submit()
		return
	}
	if wait := ms(dtmf.InterDigitTimeoutMs); wait > 0 {
		c.timers.set(interDigit, wait)
	}
	if wait := ms(dtmf.TimeoutMs); wait > 0 && len(c.digits) == 1 {
		c.timers.set(allDigits, wait)
	}
}

// submit forwards what was collected to the bot, and shows the caller what was
// understood.
func (c *call) submit() {
	delete(c.timers.due, interDigit)
	delete(c.timers.due, allDigits)
	if c.digits == "" {
		return
	}
	digits := c.digits
	c.digits = ""
	c.hands.send(wire.TypeStatus, map[string]string{"event": "dtmf", "digits": digits})
	c.ask(question{DTMF: digits, Part: 1})
}
