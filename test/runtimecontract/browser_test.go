package runtimecontract

import (
	"strings"
	"sync"

	"telapi/internal/channel"
)

// recorder records calls.
type recorder struct {
	mu       sync.Mutex
	recorded []string
}

func (r *recorder) record(call string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recorded = append(r.recorded, call)
}

// calls returns the recorded calls, separated by spaces.
func (r *recorder) calls() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.recorded, " ")
}

// browser is a channel.Subscriber that records the calls of its methods.
type browser struct{ recorder }

func (b *browser) Messages(_ channel.Cursor, list []channel.Message) {
	for _, m := range list {
		b.record(string(m.JSON))
	}
}
func (b *browser) Audio(json []byte)    { b.record("audio:" + string(json)) }
func (b *browser) Replaced(by string)   { b.record("replaced:" + by) }
func (b *browser) Closed(reason string) { b.record("closed:" + reason) }
func (b *browser) Gap()                 { b.record("gap") }
