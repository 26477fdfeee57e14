package kv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/internal/config"
)

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
		AlwaysRESP2:         o.Embedded, // the engine's RESP3 cannot mix subscriptions with commands
		// Clients also read a cluster's topology after an error, but a node that has left the
		// cluster may still answer.
		ClusterOption: rueidis.ClusterOption{ShardsRefreshInterval: 5 * time.Second},
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
