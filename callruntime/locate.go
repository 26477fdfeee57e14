package callruntime

import (
	"fmt"

	"github.com/redis/rueidis"

	"telapi/internal/config"
	"telapi/internal/redisconn"
)

// Locate returns how to connect to the service's key-value store. redisURL has
// the form of REDIS_URL and may name several nodes of a cluster. If it is empty,
// Locate finds the embedded store that a server on the same machine runs in
// dataDir.
func Locate(redisURL, dataDir string) (rueidis.ClientOption, error) {
	if redisURL == "" {
		found, _, err := redisconn.FindEmbedded(dataDir)
		return redisconn.ClientOption(found), err
	}
	o, err := config.ParseRedisURL(redisURL)
	if err != nil {
		return rueidis.ClientOption{}, fmt.Errorf("parse the store's URL: %w", err)
	}
	return redisconn.ClientOption(o), nil
}
