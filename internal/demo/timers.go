package demo

import (
	"time"

	"telapi/internal/timeline"
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

// timers are when each of them is due.
type timers struct {
	now func() time.Time
	due map[timer]time.Time
}

func (t timers) set(name timer, after time.Duration) { t.due[name] = t.now().Add(after) }
func (t timers) clear()                              { clear(t.due) }

// first is the one that is due first; false: none is set.
func (t timers) first() (name timer, at time.Time, ok bool) {
	for n, when := range t.due {
		if !ok || when.Before(at) || when.Equal(at) && n < name {
			name, at, ok = n, when, true
		}
	}
	return name, at, ok
}

// tick lets happen what is due.
func (c *call) tick() {
	for {
		name, at, ok := c.timers.first()
		if !ok || at.After(c.now()) {
			return
		}
		delete(c.timers.due, name)
		c.hands.note("", timeline.Timer, "time: "+string(name), nil)
		switch name {
		case comfort:
			c.comfort()
		case giveUp:
			c.giveUp()
		case recognition:
			c.resumeRecognition()
		case interDigit, allDigits:
			c.submit()
		case playback:
			c.hands.hush()
			c.played()
		case confirmation:
			c.confirmed(false)
		case disconnect:
			c.over("hangup")
		}
	}
}
