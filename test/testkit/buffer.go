package testkit

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// Buffer collects text. It is safe for concurrent use.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Has reports whether the buffer contains a text.
func (b *Buffer) Has(text string) bool { return strings.Contains(b.String(), text) }

// Count returns how often the buffer contains a text.
func (b *Buffer) Count(text string) int { return strings.Count(b.String(), text) }

// Lines returns the lines of the buffer.
func (b *Buffer) Lines() []string { return strings.Split(strings.TrimSpace(b.String()), "\n") }

// Logger returns a logger that writes to the buffer in slog's text format.
func (b *Buffer) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }
