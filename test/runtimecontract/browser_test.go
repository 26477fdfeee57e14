package runtimecontract

import (
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/channel"
)

// browser remembers what reached it.
type browser struct {
	mu   sync.Mutex
	told []string
}

func (b *browser) note(s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = append(b.told, s)
}

func (b *browser) story() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.told, " ")
}

func (b *browser) Messages(_ channel.Cursor, list []channel.Message) {
	for _, m := range list {
		b.note(string(m.JSON))
	}
}
func (b *browser) Audio(json []byte)    { b.note("audio:" + string(json)) }
func (b *browser) Replaced(by string)   { b.note("replaced:" + by) }
func (b *browser) Closed(reason string) { b.note("closed:" + reason) }
func (b *browser) Gap()                 { b.note("gap") }

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}
