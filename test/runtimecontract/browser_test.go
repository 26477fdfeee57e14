package runtimecontract

import (
	"strings"
	"sync"

	"telapi/internal/channel"
)

// browser records the calls of its methods.
type browser struct {
	mu   sync.Mutex
	made []string
}

func (b *browser) record(s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made = append(b.made, s)
}

func (b *browser) calls() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.made, " ")
}

func (b *browser) Messages(_ channel.Cursor, list []channel.Message) {
	for _, m := range list {
		b.record(string(m.JSON))
	}
}
func (b *browser) Audio(json []byte)    { b.record("audio:" + string(json)) }
func (b *browser) Replaced(by string)   { b.record("replaced:" + by) }
func (b *browser) Closed(reason string) { b.record("closed:" + reason) }
func (b *browser) Gap()                 { b.record("gap") }
