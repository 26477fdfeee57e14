package redisconn

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

const (
	// sampleAge is how long a sample is preferred to less precise ones.
	sampleAge = 30 * time.Second
	// maxDrift is by how much two clocks may drift apart within sampleAge. A
	// larger difference means that a clock was set.
	maxDrift = 20 * time.Millisecond
)

// started is the local time that estimates refer to. It has a monotonic clock
// reading, so that setting the local clock has no effect.
var started = time.Now()

// Clock estimates the time of the store's servers, so that scripts can be given
// deadlines. Its methods are safe for concurrent use.
type Clock struct {
	mu      sync.Mutex
	samples map[string]sample // by node

	bounds atomic.Pointer[bounds] // nil before the first sample
}

// sample is one comparison of a server's clock with the local one.
type sample struct {
	origin    time.Duration // the server's Unix time at started
	precision time.Duration // half of the round trip
	at        time.Time
}

// bounds are the origins of the nodes that are behind and ahead most. A sample is
// imprecise if the process, or the server, had to wait for the CPU. Therefore behind is
// the latest possible origin, and ahead the earliest.
type bounds struct{ behind, ahead time.Duration }

// Measure compares the clocks of all nodes with the local one. It keeps the
// estimate for a node that does not answer and forgets nodes that have left.
func (c *Clock) Measure(ctx context.Context, client rueidis.Client) {
	nodes := client.Nodes()
	var measuring sync.WaitGroup
	var mu sync.Mutex
	newer := make(map[string]sample, len(nodes))
	for name, node := range nodes {
		measuring.Go(func() {
			if s, err := measureNode(ctx, node); err == nil {
				mu.Lock()
				defer mu.Unlock()
				newer[name] = s
			}
		})
	}
	measuring.Wait()

	c.mu.Lock()
	defer c.mu.Unlock()
	samples := make(map[string]sample, len(nodes))
	var b *bounds
	for name := range nodes {
		s, answered := newer[name]
		if old, known := c.samples[name]; known && (!answered || old.better(s)) {
			s = old
		} else if !answered {
			continue
		}
		samples[name] = s
		latest, earliest := s.origin+s.precision, s.origin-s.precision
		if b == nil {
			b = &bounds{latest, earliest}
		}
		b.behind, b.ahead = min(b.behind, latest), max(b.ahead, earliest)
	}
	c.samples = samples
	if b != nil {
		c.bounds.Store(b)
	}
}

func measureNode(ctx context.Context, node rueidis.Client) (sample, error) {
	start := time.Now()
	parts, err := node.Do(ctx, node.B().Time().Build()).AsIntSlice()
	if err != nil {
		return sample{}, err
	}
	precision := time.Since(start) / 2
	unix := time.Duration(parts[0])*time.Second + time.Duration(parts[1])*time.Microsecond
	return sample{unix - start.Add(precision).Sub(started), precision, start}, nil
}

// better reports whether s is preferred to a newer sample of the same node.
func (s sample) better(newer sample) bool {
	difference := (s.origin - newer.origin).Abs()
	return s.precision < newer.precision && newer.at.Sub(s.at) < sampleAge && difference < s.precision+newer.precision+maxDrift
}

// Deadline returns a local time in the clock of the node that is ahead most, as
// the last argument of a channel script. It is empty before the first Measure. On that
// node it is never later than the local time, so that a script has no effect after its
// caller has timed out.
func (c *Clock) Deadline(at time.Time) string {
	if b := c.bounds.Load(); b != nil {
		return unixMillis(at.Sub(started) + b.ahead)
	}
	return ""
}

// Now returns the time of the node that is behind most, as the time at which a
// connection or a claim is requested. It is empty before the first Measure. It is never
// earlier than that node's time, so that the request is not mistaken for an older one.
func (c *Clock) Now() string {
	if b := c.bounds.Load(); b != nil {
		return unixMillis(time.Since(started) + b.behind)
	}
	return ""
}

func unixMillis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
