package kv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/internal/config"
)

// TopologyInterval is how often clients of a cluster read its topology. They also do
// after an error, but a node that has left the cluster may still answer.
const TopologyInterval = 5 * time.Second

// ClientOption returns the client options for a server or cluster.
func ClientOption(o config.RedisOptions) rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress:       o.Addrs,
		Username:          o.Username,
		Password:          o.Password.Reveal(),
		SelectDB:          o.DB,
		TLSConfig:         o.TLS,
		DisableCache:      true,
		PipelineMultiplex: -1, // one connection: concurrent commands share its reads and writes
		// By default, each buffer of every connection has 512 KiB.
		ReadBufferEachConn:  64 << 10,
		WriteBufferEachConn: 64 << 10,
		ForceSingleClient:   o.Embedded,
		AlwaysRESP2:         o.Embedded, // its RESP3 cannot mix subscriptions with commands
		ClusterOption:       rueidis.ClusterOption{ShardsRefreshInterval: TopologyInterval},
	}
}

// RetryDelay adapts a delay function to the client's options. It pins the
// command: the writer of the lost connection may still read it while the client,
// done with the retry, would reuse its memory.
func RetryDelay(delay func(attempts int) time.Duration) func(int, rueidis.Completed, error) time.Duration {
	return func(attempts int, cmd rueidis.Completed, _ error) time.Duration {
		cmd.Pin()
		return delay(attempts)
	}
}

// ErrorCode returns the first word of a Redis error reply, such as READONLY. It
// is empty for other errors and nil.
func ErrorCode(err error) string {
	if reply, ok := errors.AsType[*rueidis.RedisError](err); ok && !rueidis.IsRedisNil(reply) {
		code, _, _ := strings.Cut(reply.Error(), " ")
		return code
	}
	return ""
}

// temporaryCodes are the error codes of a server or cluster that starts, fails
// over, moves slots, or lacks memory, disk space or replicas, and of a script that
// arrives after its deadline.
var temporaryCodes = []string{
	"BUSY", "CLOCK", "CLUSTERDOWN", "LATE", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN", "UNBLOCKED",
}

// IsTemporary reports whether err is the reply of a server that is temporarily
// unavailable. The command had no effect. It is false for errors that are not
// replies: then the effect is unknown.
func IsTemporary(err error) bool { return slices.Contains(temporaryCodes, ErrorCode(err)) }

// IsFull reports whether err is the reply of a server that has no memory left (noeviction),
// or of the embedded engine at its limit. The command or script had no effect. Commands that
// remove data work.
func IsFull(err error) bool { return ErrorCode(err) == "OOM" }

// PublishAudio publishes an audio frame on a channel's topic. It goes through the
// node that holds the channel's slot, so that a cluster keeps the order.
func PublishAudio(ctx context.Context, c rueidis.Client, topic, message string) error {
	return c.Do(ctx, c.B().Arbitrary("PUBLISH").Keys(topic).Args(string(NoticeAudio)+message).Build()).Error()
}

// EmbeddedFile is the file in DATA_DIR that describes a running embedded engine.
const EmbeddedFile = "embedded-kv.json"

// EmbeddedRecord is the content of EmbeddedFile.
type EmbeddedRecord struct {
	URL string `json:"url"` // redis://:password@127.0.0.1:port
	PID int    `json:"pid"`
}

// FindEmbedded reads how to connect to the embedded engine of a data directory.
// Without a record the error wraps fs.ErrNotExist.
func FindEmbedded(dataDir string) (o config.RedisOptions, record EmbeddedRecord, err error) {
	file := filepath.Join(dataDir, EmbeddedFile)
	content, err := os.ReadFile(file)
	if err != nil {
		return o, record, fmt.Errorf("find the embedded store: %w", err)
	}
	if err = json.Unmarshal(content, &record); err == nil {
		o, err = config.ParseRedisURL(record.URL)
	}
	if err != nil {
		return o, record, errors.New(file + " is damaged; delete it and restart the server")
	}
	o.Embedded = true
	return o, record, nil
}

// Group is a consumer of a stream's consumer group. It is safe for concurrent use.
type Group struct {
	Stream, Name, Consumer string
	// MinIdle is how long a delivered entry stays unacknowledged before another
	// read delivers it again.
	MinIdle time.Duration

	mu      sync.Mutex
	checked time.Time // when there were no abandoned entries
}

// Read returns entries that were abandoned by a consumer, else new ones. It waits
// for up to block if there are none, and looks for abandoned entries again after that
// time. The group is created if it does not exist and starts with the oldest entry; that
// call returns nothing.
func (g *Group) Read(ctx context.Context, c rueidis.Client, limit int, block time.Duration) (entries []rueidis.XRangeEntry, err error) {
	if !g.checkedWithin(block) {
		entries, err = g.abandoned(ctx, c, limit)
	}
	if err == nil && len(entries) == 0 {
		entries, err = g.fresh(ctx, c, limit, block)
	}
	if ErrorCode(err) == "NOGROUP" {
		return nil, g.create(ctx, c)
	}
	return entries, err
}

func (g *Group) checkedWithin(interval time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.checked) < interval
}

func (g *Group) abandoned(ctx context.Context, c rueidis.Client, limit int) ([]rueidis.XRangeEntry, error) {
	reply, err := c.Do(ctx, c.B().Xautoclaim().Key(g.Stream).Group(g.Name).Consumer(g.Consumer).
		MinIdleTime(strconv.FormatInt(g.MinIdle.Milliseconds(), 10)).Start("0-0").Count(int64(limit)).Build().ToRetryable()).ToArray()
	if err != nil || len(reply) < 2 {
		return nil, err
	}
	entries, err := reply[1].AsXRange()
	if err == nil && len(entries) == 0 {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.checked = time.Now()
	}
	return entries, err
}

func (g *Group) fresh(ctx context.Context, c rueidis.Client, limit int, block time.Duration) ([]rueidis.XRangeEntry, error) {
	read := c.B().Xreadgroup().Group(g.Name, g.Consumer).Count(int64(limit))
	var command rueidis.Completed
	if block > 0 {
		command = read.Block(block.Milliseconds()).Streams().Key(g.Stream).Id(">").Build()
	} else {
		command = read.Streams().Key(g.Stream).Id(">").Build()
	}
	streams, err := c.Do(ctx, command).AsXRead()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return streams[g.Stream], err
}

func (g *Group) create(ctx context.Context, c rueidis.Client) error {
	err := c.Do(ctx, c.B().XgroupCreate().Key(g.Stream).Group(g.Name).Id("0").Mkstream().Build().ToRetryable()).Error()
	if ErrorCode(err) == "BUSYGROUP" {
		return nil // another consumer was faster
	}
	return err
}
