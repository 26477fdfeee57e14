package simulation

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"telapi/internal/channel"
	"telapi/internal/lua"
)

// Mutation takes a fix out, to show that the simulator finds the fault that it
// prevents. Production code has no switch for this: the store runs changed
// scripts, and the simulator undoes what fixed Go code does.
type Mutation struct {
	// Edits change the text of every script that contains them. The store runs
	// it in place of the text that a client asked for.
	Edits []Edit
	// KeepUnknownItems drops the cancellation of a work item whose Await failed.
	KeepUnknownItems bool
	// ForgetRepeatedActions drops browser actions of frames that were sent again.
	ForgetRepeatedActions bool
}

// Edit replaces a snippet of the scripts.
type Edit struct{ Old, New string }

// scripts holds the changed scripts.
type scripts struct {
	edits []Edit
	mu    sync.Mutex
	texts map[string]string // by name; empty if no edit applies
}

// apply returns the name of the channel script that a command runs, or "", and
// the command with the changed text.
func (s *scripts) apply(args []string) (name string, changed []string) {
	var sha string
	switch strings.ToUpper(args[0]) {
	case "EVALSHA":
		sha = args[1]
	case "EVAL":
		sha = digest(args[1])
	default:
		return "", args
	}
	name = scriptNames[sha]
	if name == "" || len(s.edits) == 0 {
		return name, args
	}
	text := s.text(name)
	if text == "" {
		return name, args
	}
	changed = slices.Clone(args)
	changed[0], changed[1] = "EVAL", text
	return name, changed
}

func (s *scripts) text(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.texts == nil {
		s.texts = map[string]string{}
	}
	text, known := s.texts[name]
	if !known {
		original := lua.Channel(name)
		text = original
		for _, e := range s.edits {
			text = strings.ReplaceAll(text, e.Old, e.New)
		}
		if text == original {
			text = ""
		}
		s.texts[name] = text
	}
	return text
}

// check fails if an edit applies to no script: then the fix is not taken out any
// more, and the edit has to follow the scripts.
func (m Mutation) check() error {
	for _, e := range m.Edits {
		found := false
		for _, name := range scriptNames {
			found = found || strings.Contains(lua.Channel(name), e.Old)
		}
		if !found {
			return fmt.Errorf("no script contains %q", e.Old)
		}
	}
	return nil
}

// droppingSessions drops browser actions of frames that were sent again.
type droppingSessions struct {
	channel.Sessions
	audit *audit
}

func (f droppingSessions) AddAction(sessionID, messageID string, at time.Time, browserAction []byte) {
	if !f.audit.repeated(messageID) {
		f.Sessions.AddAction(sessionID, messageID, at, browserAction)
	}
}
