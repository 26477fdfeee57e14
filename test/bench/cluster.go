package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// storeOptions returns the options of a client. The URL has several hosts for a
// cluster.
func storeOptions(redisURL string) rueidis.ClientOption {
	return rueidis.ClientOption{InitAddress: strings.Split(strings.TrimPrefix(redisURL, "redis://"), ",")}
}

// startCluster returns a site with a Redis Cluster of three nodes and the same
// databases.
func (s *site) startCluster() (*site, error) {
	const nodes, slots = 3, 16384
	cluster := *s
	cluster.kv, cluster.redisProcesses = "cluster of 3", nil
	var addrs []string
	var firstBus string
	for i := range nodes {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		bus, err := freePort()
		if err != nil {
			return nil, err
		}
		dir, err := os.MkdirTemp(s.dir, "node")
		if err != nil {
			return nil, err
		}
		p, err := start(exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", dir,
			"--cluster-enabled", "yes", "--cluster-port", bus))
		if err != nil {
			return nil, err
		}
		s.stops = append(s.stops, p.stop)
		addrs, cluster.redisProcesses = append(addrs, "127.0.0.1:"+port), append(cluster.redisProcesses, p)
		commands := [][]string{
			{"CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i * slots / nodes), strconv.Itoa((i+1)*slots/nodes - 1)},
			{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)},
		}
		if i > 0 {
			commands = append(commands, []string{"CLUSTER", "MEET", "127.0.0.1", strings.TrimPrefix(addrs[0], "127.0.0.1:"), firstBus})
		} else {
			firstBus = bus
		}
		if err := awaitDial(addrs[i]); err != nil {
			return nil, err
		}
		for _, command := range commands {
			if _, err := onNode(addrs[i], command...); err != nil {
				return nil, err
			}
		}
	}
	cluster.redisURL = "redis://" + strings.Join(addrs, ",")
	for _, addr := range addrs {
		if err := awaitCluster(addr, nodes); err != nil {
			return nil, err
		}
	}
	return &cluster, nil
}

// onNode runs a command on one node.
func onNode(addr string, command ...string) (string, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true})
	if err != nil {
		return "", err
	}
	defer client.Close()
	return client.Do(context.Background(), client.B().Arbitrary(command...).Build()).ToString()
}

func awaitCluster(addr string, nodes int) error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(100 * time.Millisecond) {
		info, err := onNode(addr, "CLUSTER", "INFO")
		if err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", nodes)) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the cluster is not ready: %s: %w", info, err)
		}
	}
}
