package kv

import (
	"context"
	"maps"
	"math"
	"net"
	"slices"
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

	estimate atomic.Pointer[estimate] // nil before the first sample
}

// estimate is what Measure has found. It is immutable.
type estimate struct {
	nodes map[string]sample
	all   bounds      // of all nodes
	slots []slotRange // nil without a cluster, or if they are not known
}

// slotRange is a part of a cluster's slots and the node that has them.
type slotRange struct {
	first, last int64
	node        string
}

// sample is one comparison of a server's clock with the local one.
type sample struct {
	origin    time.Duration // the server's Unix time at started
	precision time.Duration // half of the round trip
	at        time.Time
}

// bounds limit the origins of some nodes. Each origin has a lower and an upper limit, because its
// sample is imprecise.
type bounds struct {
	earliest time.Duration // lowest lower limit: no origin is less
	ahead    time.Duration // highest lower limit: at least one origin is not less
	latest   time.Duration // highest upper limit: no origin is greater
}

// Measure compares the clocks of all nodes with the local one. It keeps the
// estimate for a node that does not answer and forgets nodes that have left. It reports
// whether any clock is known.
func (c *Clock) Measure(ctx context.Context, client rueidis.Client) bool {
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
	slots := readSlots(ctx, client)
	measuring.Wait()

	c.mu.Lock()
	defer c.mu.Unlock()
	samples := make(map[string]sample, len(nodes))
	for name := range nodes {
		s, answered := newer[name]
		if old, known := c.samples[name]; known && (!answered || old.better(s)) {
			samples[name] = old
		} else if answered {
			samples[name] = s
		}
	}
	if c.samples = samples; len(samples) > 0 {
		c.estimate.Store(newEstimate(samples, slots))
	}
	return c.estimate.Load() != nil
}

func newEstimate(nodes map[string]sample, slots []slotRange) *estimate {
	return &estimate{nodes, boundsOf(slices.Collect(maps.Values(nodes))...), slots}
}

// readSlots returns which node of a cluster has which slots. It returns nil if that is not
// known.
func readSlots(ctx context.Context, client rueidis.Client) (slots []slotRange) {
	if client.Mode() != rueidis.ClientModeCluster {
		return nil
	}
	ranges, _ := client.Do(ctx, client.B().ClusterSlots().Build()).ToArray()
	for _, r := range ranges {
		parts, _ := r.ToArray() // first slot, last slot, master, replicas
		if len(parts) < 3 {
			return nil
		}
		master, _ := parts[2].ToArray() // host, port …
		if len(master) < 2 {
			return nil
		}
		first, _ := parts[0].ToInt64()
		last, _ := parts[1].ToInt64()
		host, _ := master[0].ToString()
		port, _ := master[1].ToInt64()
		slots = append(slots, slotRange{first, last, net.JoinHostPort(host, strconv.FormatInt(port, 10))})
	}
	return slots
}

// nodeBounds returns the bounds of the node that has a channel, or of all nodes if it is not
// known. measured is false before the first Measure.
func (c *Clock) nodeBounds(channelID string) (b bounds, measured bool) {
	e := c.estimate.Load()
	if e == nil {
		return bounds{}, false
	}
	if len(e.slots) > 0 && channelID != "" {
		slot := slotOf(channelID)
		for _, r := range e.slots {
			if node, known := e.nodes[r.node]; known && r.first <= slot && slot <= r.last {
				return boundsOf(node), true
			}
		}
	}
	return e.all, true
}

// slotOf returns the slot of a cluster for keys with the given hash tag: its CRC-16 (XMODEM).
func slotOf(tag string) int64 {
	var crc uint16
	for _, b := range []byte(tag) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return int64(crc % 16384)
}

func boundsOf(samples ...sample) bounds {
	b := bounds{math.MaxInt64, math.MinInt64, math.MinInt64}
	for _, s := range samples {
		latest, earliest := s.origin+s.precision, s.origin-s.precision
		b.earliest, b.ahead, b.latest = min(b.earliest, earliest), max(b.ahead, earliest), max(b.latest, latest)
	}
	return b
}

// ServerTime returns the time of a server.
func ServerTime(ctx context.Context, node rueidis.Client) (time.Time, error) {
	parts, err := node.Do(ctx, node.B().Time().Build()).AsIntSlice()
	if err != nil {
		return time.Time{}, err
	}
	return time.Unix(parts[0], parts[1]*1000), nil
}

func measureNode(ctx context.Context, node rueidis.Client) (sample, error) {
	start := time.Now()
	at, err := ServerTime(ctx, node)
	precision := time.Since(start) / 2
	return sample{time.Duration(at.UnixNano()) - start.Add(precision).Sub(started), precision, start}, err
}

// better reports whether s is preferred to a newer sample of the same node.
func (s sample) better(newer sample) bool {
	difference := (s.origin - newer.origin).Abs()
	return s.precision < newer.precision && newer.at.Sub(s.at) < sampleAge && difference < s.precision+newer.precision+maxDrift
}

// Window returns the last argument of a channel's script: two times of the store between which
// the script may run, or nothing before the first Measure. Before the first time it would fail
// with CLOCK: the store's clock was set back since it was measured. After the second it fails
// with LATE: its caller has timed out. The second is not later than until for the channel's node
// or, if that is not known, for the node that is ahead most.
func (c *Clock) Window(channelID string, until time.Time) string {
	if b, measured := c.nodeBounds(channelID); measured {
		return Millis(time.Since(started)+b.earliest-maxDrift) + " " + Millis(until.Sub(started)+b.ahead)
	}
	return ""
}

// At returns the local time at as a time of the store, or nothing before the first Measure. It
// is never earlier than the time of the channel's node, or of any node if channelID is empty, so
// that the request of a connection or a claim is not mistaken for an older one.
func (c *Clock) At(channelID string, at time.Time) string {
	if b, measured := c.nodeBounds(channelID); measured {
		return Millis(at.Sub(started) + b.latest)
	}
	return ""
}

// AtEarliest is At, but is never later than the time of the channel's node, or of any node.
func (c *Clock) AtEarliest(channelID string, at time.Time) string {
	if b, measured := c.nodeBounds(channelID); measured {
		return Millis(at.Sub(started) + b.earliest)
	}
	return ""
}

// Forget makes the next Measure replace its estimates, because a script has shown that they
// are wrong. They are used until then.
func (c *Clock) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples = nil
}
