package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"

	"telapi/internal/calls"
	"telapi/internal/config"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// site is the environment of the benchmarks: the binary and the stores.
type site struct {
	binary   string
	kv       string // for output
	redisURL string // with several hosts for a cluster
	redis    []*testkit.Redis
	postgres *testkit.Postgres
}

// openSite builds the service and starts Redis and PostgreSQL.
func openSite() *site {
	s := &site{binary: filepath.Join(program.TempDir(), "telapi")}
	if out, err := exec.Command("go", "build", "-o", s.binary, "./cmd/telapi").CombinedOutput(); err != nil {
		check(fmt.Errorf("build: %w\n%s", err, out))
	}
	redis := testkit.StartRedis(program)
	s.kv, s.redisURL, s.redis = "Redis", redis.URL(), []*testkit.Redis{redis}
	s.postgres = testkit.StartPostgres(program, testkit.PostgresOptions{})
	return s
}

// withCluster returns a site with a Redis Cluster of three nodes and the same database server.
func (s *site) withCluster() *site {
	cluster := testkit.StartRedisCluster(program)
	return &site{binary: s.binary, kv: "cluster of 3", redisURL: cluster.URL(), redis: cluster.Nodes, postgres: s.postgres}
}

// storeOptions returns the options of a client with default options.
func (s *site) storeOptions() rueidis.ClientOption { return must(rueidis.ParseURL(s.redis[0].URL())) }

// directRuntime returns a runtime that uses the store itself.
func (s *site) directRuntime() *calls.Runtime {
	return must(calls.New(calls.Options{Store: kv.ClientOption(must(config.ParseRedisURL(s.redis[0].URL()))), Name: "direct"}))
}

// storePIDs returns the process IDs of Redis, and of PostgreSQL with its children.
func (s *site) storePIDs() (redis, postgres []int) {
	for _, node := range s.redis {
		redis = append(redis, int(infoField(node, "server", "process_id")))
	}
	ctx := context.Background()
	conn := must(pgx.Connect(ctx, s.postgres.URL()))
	defer func() { _ = conn.Close(ctx) }()
	var backend int
	check(conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend))
	return redis, pids(int(statField(backend, 1)))
}

// infoField returns a number of the output of INFO.
func infoField(node *testkit.Redis, section, name string) float64 {
	reply := node.MustDo("INFO", section)
	value := regexp.MustCompile(`(?m)^` + name + `:(\d+)`).FindStringSubmatch(must(reply.ToString()))
	if value == nil {
		check(fmt.Errorf("INFO %s has no %s", section, name))
	}
	return must(strconv.ParseFloat(value[1], 64))
}
