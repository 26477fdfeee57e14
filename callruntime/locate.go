package callruntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"
)

// Locate finds the service's store as the service itself does: by its
// REDIS_URL, which may name several nodes of a cluster, or, without one, by what
// a server with the embedded engine left in its DATA_DIR on the same machine.
func Locate(redisURL, dataDir string) (rueidis.ClientOption, error) {
	if redisURL != "" {
		return parse(redisURL)
	}
	file := filepath.Join(dataDir, "embedded-kv.json")
	content, err := os.ReadFile(file)
	if err != nil {
		return rueidis.ClientOption{}, fmt.Errorf("find the embedded store: %w", err)
	}
	var record struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal(content, &record); err != nil {
		return rueidis.ClientOption{}, fmt.Errorf("%s is damaged", file)
	}
	opts, err := parse(record.URL)
	opts.ForceSingleClient, opts.AlwaysRESP2 = true, true // all that the engine can do
	return opts, err
}

// parse keeps the URL, which holds the password, out of its error.
func parse(redisURL string) (rueidis.ClientOption, error) {
	scheme, rest, _ := strings.Cut(redisURL, "://")
	user := ""
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, rest = rest[:at+1], rest[at+1:]
	}
	hosts, tail := rest, ""
	if end := strings.IndexAny(rest, "/?"); end >= 0 {
		hosts, tail = rest[:end], rest[end:]
	}
	first, others, _ := strings.Cut(hosts, ",")
	opts, err := rueidis.ParseURL(scheme + "://" + user + first + tail)
	for node := range strings.SplitSeq(others, ",") {
		if node != "" && err == nil {
			var another rueidis.ClientOption
			another, err = rueidis.ParseURL("redis://" + node)
			opts.InitAddress = append(opts.InitAddress, another.InitAddress...)
		}
	}
	if err != nil {
		return opts, errors.New("the store's URL is not of the form redis://[user:password@]host:port[,host:port…][/database]")
	}
	if opts.TLSConfig != nil {
		opts.TLSConfig.ServerName = "" // each node by its own name
	}
	return opts, nil
}
