package callruntime

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
)

// What is sent together at the most.
const (
	togetherMessages = 64
	togetherBytes    = 512 << 10
)

// outbox sends a channel's messages in their order. While some are under way
// others gather, and go together when those are there.
type outbox struct {
	channel *Channel

	mu      sync.Mutex
	waiting []*outgoing
	sending bool
	newest  string // message that the store has told of, by its id; of the one that sends
}

// outgoing is a message on its way to the browser.
type outgoing struct {
	encoded
	ctx    context.Context //nolint:containedctx // of the call that waits for it
	letter byte            // as send.lua takes it
	done   chan struct{}
	err    error // set before done is closed
}

func (o *outgoing) wait() error {
	select {
	case <-o.done:
		return o.err
	case <-o.ctx.Done():
		return fmt.Errorf("send: %w", o.ctx.Err())
	}
}

func (b *outbox) add(o *outgoing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, o)
	if !b.sending {
		b.sending = true
		go b.send()
	}
}

// send ends when nothing waits any more.
func (b *outbox) send() {
	for {
		together := b.next()
		if together == nil {
			return
		}
		err := b.channel.send(together)
		for i, o := range together {
			if o.err = err(i); o.err != nil {
				o.err = fmt.Errorf("send: %w", o.err)
			}
			close(o.done)
		}
	}
}

// next takes what is sent next, but for what nobody waits for any more.
func (b *outbox) next() (together []*outgoing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, bytes := 0, 0
	for n < len(b.waiting) && len(together) < togetherMessages && bytes < togetherBytes {
		if o := b.waiting[n]; o.ctx.Err() == nil {
			together = append(together, o)
			bytes += len(o.json)
		}
		n++
	}
	if b.waiting = b.waiting[n:]; len(b.waiting) == 0 {
		b.waiting = nil
	}
	b.sending = together != nil
	return together
}

// whileAwaited ends when nobody waits for any of the messages any more.
func whileAwaited(together []*outgoing) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var left atomic.Int64
	left.Store(int64(len(together)))
	stops := make([]func() bool, len(together))
	for i, o := range together {
		stops[i] = context.AfterFunc(o.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// send runs send.lua, as long as anybody waits for it, and tells of each message
// what became of it.
func (c *Channel) send(together []*outgoing) func(i int) error {
	ctx, done := whileAwaited(together)
	defer done()
	letters, names, args := make([]byte, len(together)), make([]string, len(together)), make([]string, 4, 4+len(together))
	named := false
	for i, o := range together {
		letters[i], names[i], args = o.letter, cmp.Or(o.name, "-"), append(args, o.json)
		named = named || o.name != ""
	}
	args[0], args[1], args[2] = c.token, string(letters), c.outbox.newest
	if named {
		args[3] = strings.Join(names, " ")
	}
	words, err := c.run(ctx, c.runtime.send, args...).AsStrSlice()
	if err == nil && len(words) > len(together) {
		c.outbox.newest, words = words[0], words[1:]
	}
	return func(i int) error {
		if err != nil {
			return err
		}
		return refusals[words[min(i, len(words)-1)]]
	}
}
