package demo

import (
	"strings"

	"telapi/callruntime/wire"
)

// digit is one key the caller pressed.
func (c *call) digit(digit string) {
	dtmf := c.settings.dtmf
	submits := of(dtmf.Enabled) && digit == of(dtmf.Terminator)
	if allowed := of(dtmf.DTMFDigits); !submits && allowed != "" && !strings.Contains(allowed, digit) {
		c.hands.note("", EventFrame, "digit "+digit+" is ignored", nil)
		return
	}
	if of(dtmf.BargeIn) && of(dtmf.BargeInOnDTMF) {
		c.interrupt()
	}
	if !of(dtmf.SendDTMF) {
		return
	}
	if submits {
		c.submit()
		return
	}
	c.digits += digit
	if most := of(dtmf.MaxDigits); !of(dtmf.Enabled) || most > 0 && int64(len(c.digits)) >= most {
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

// submit forwards what was collected to the bot, and shows the caller what was
// understood.
func (c *call) submit() {
	delete(c.timers, interDigit)
	delete(c.timers, allDigits)
	if c.digits == "" {
		return
	}
	digits := c.digits
	c.digits = ""
	c.hands.send(wire.TypeStatus, map[string]string{"event": "dtmf", "digits": digits})
	c.ask(question{DTMF: digits, Part: 1})
}
