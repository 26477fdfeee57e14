package app

import (
	"fmt"

	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/internal/config"
)

// OpenRuntime gives an operator the call runtime's access to the store this
// configuration points at.
func OpenRuntime(cfg config.Config) (*callruntime.Runtime, error) {
	store, err := runtimeStore(cfg)
	if err != nil {
		return nil, err
	}
	return callruntime.New(callruntime.Options{Name: "telapi-operator", Store: store})
}

func runtimeStore(cfg config.Config) (rueidis.ClientOption, error) {
	if cfg.RedisURL == "" {
		store, err := callruntime.Locate("", cfg.DataDir)
		if err != nil {
			return store, fmt.Errorf("no server runs on the embedded stores of %s: start one with telapi dev or telapi serve, or set REDIS_URL", cfg.DataDir)
		}
		return store, nil
	}
	r, err := cfg.Redis()
	return rueidis.ClientOption{InitAddress: r.Addrs, Username: r.Username, Password: r.Password.Reveal(), SelectDB: r.DB, TLSConfig: r.TLS}, err
}
