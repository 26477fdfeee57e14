package demo

import (
	"time"
)

// timer names something that happens by itself. Each runs on its own.
type timer string

const (
	comfort      timer = "comfort prompt"
	giveUp       timer = "give up on the bot"
	recognition  timer = "recognition resumes"
	interDigit   timer = "next digit"
	allDigits    timer = "all digits"
	playback     timer = "playback is stuck"
	disconnect   timer = "disconnect"
	confirmation timer = "confirmation"
)

// confirmLimit is how long the caller may think about a confirmation.
const confirmLimit = 30 * time.Second

// alarm is what happens then.
type alarm struct {
	at   time.Time
	ring func()
}

func (c *call) after(name timer, d time.Duration, ring func()) {
	c.timers[name] = alarm{c.now().Add(d), ring}
}

// due is the timer that is due first; empty: none is set.
func (c *call) due() (first timer, at time.Time) {
	for name, a := range c.timers {
		if first == "" || a.at.Before(at) || a.at.Equal(at) && name < first {
			first, at = name, a.at
		}
	}
	return first, at
}

// tick lets happen what is due.
func (c *call) tick() {
	for {
		name, at := c.due()
		if name == "" || at.After(c.now()) {
			return
		}
		ring := c.timers[name].ring
		delete(c.timers, name)
		c.hands.note("", EventTimer, "time: "+string(name), nil)
		ring()
	}
}
