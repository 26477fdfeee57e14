package simulation

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"telapi/internal/kv"
)

// smallLimits replace limits of the scripts, so that what a conversation of hours does
// happens within seconds: IDs are forgotten, the history and the runtime stream are trimmed,
// and the history is read in several pages.
var smallLimits = []string{
	"MAX_SEEN", "64",
	"MAX_SENT", "64",
	"TRIM_INTERVAL", "8",
	"PAGE_BYTES", "2048",
	"PAGE_ITEMS", "3",
	"KEPT_BYTES", "8192",
	"KEPT_ENTRIES", "20",
}

// smallOutbox is how many frames a page repeats in a world with small limits: fewer than the
// IDs that are remembered. A message history has smallHistory messages.
const smallOutbox, smallHistory = 24, 48

// scripts holds the scripts with small limits, by name.
var scripts sync.Map

// channelKeys is how many keys a channel script has. No other script has as many.
var channelKeys = len(kv.ChannelKeys(""))

// scriptOf returns the name of the channel script that a command runs, or "", and the
// command that runs it with small limits if the world has them.
func (w *world) scriptOf(args []string) (name string, changed []string) {
	switch strings.ToUpper(args[0]) {
	case "EVALSHA":
		name = scriptNames[args[1]]
	case "EVAL":
		name = scriptNames[digest(args[1])]
	}
	if name == "" || args[2] != strconv.Itoa(channelKeys) { // no script, or one without the keys of a channel
		return "", args
	}
	if !w.small {
		return name, args
	}
	text, known := scripts.Load(name)
	if !known {
		text = kv.Script(name, smallLimits...)
		scripts.Store(name, text)
	}
	changed = slices.Clone(args)
	changed[0], changed[1] = "EVAL", text.(string)
	return name, changed
}

// removal is when entries were removed from a runtime stream.
type removal struct {
	at    time.Time
	first int // number of the first entry that is left
}

// noteRemoval records which entries of a channel are left. The caller holds mu.
func (s *store) noteRemoval(channelID string) {
	items, err := s.engine.Stream(kv.RuntimeStreamKey(channelID))
	if err == nil && len(items) > 0 {
		s.removals[channelID] = append(s.removals[channelID], removal{time.Now(), number(items[0].ID)})
	}
}

// checkDelay is how long after a connection has ended its newest frame is checked, and some time.
const checkDelay = 25 * time.Second

// isForgotten reports whether a lost frame's number was soon removed again, with another
// entry. Nobody notices its loss then. With the real limits, 1,000 entries or 1 MiB would have
// to follow and be committed before its connection checks it.
func (r *channelRecord) isForgotten(f *frameRecord, lost time.Time) bool {
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	entry := 0
	for _, x := range r.ledger.losses {
		for _, c := range x.commands {
			if c.channel == r.id && c.script == "frame" && slices.Contains(c.args, f.id) && len(c.reply) > 0 {
				entry = number(c.reply[0])
			}
		}
	}
	s := r.ledger.world.store
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.removals[r.id], func(x removal) bool { return x.first > entry && x.at.After(lost) && x.at.Before(lost.Add(checkDelay)) })
}

// isMessageForgotten is isForgotten for a message: as many followed as a small history has.
func (r *channelRecord) isMessageForgotten(lost time.Time) bool {
	followed := 0
	for _, m := range r.sends {
		if m.started.After(lost) && m.started.Before(lost.Add(checkDelay)) {
			followed++
		}
	}
	return r.ledger.world.small && followed >= smallHistory
}

// hasSent reports whether a message was sent after a time, and not lost.
func (s *store) hasSent(channelID, text string, after time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.log, func(c command) bool {
		return c.channel == channelID && c.script == "send" && c.at.After(after) && slices.Contains(c.reply, "sent") && slices.ContainsFunc(c.args, func(a string) bool { return strings.Contains(a, `"`+text+`"`) })
	})
}
