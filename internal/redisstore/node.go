package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
)

// Node is one server of the store, for whoever examines it.
type Node struct {
	Name   string
	client rueidis.Client
}

// Nodes are the servers that are connected.
func (s *Store) Nodes() (all []Node) {
	if client := s.state.Load().client; client != nil {
		for name, node := range client.Nodes() {
			all = append(all, Node{name, node})
		}
	}
	return all
}

// Clock is the time by the node's own clock.
func (n Node) Clock(ctx context.Context) (time.Time, error) {
	parts, err := n.client.Do(ctx, n.client.B().Time().Build()).AsIntSlice()
	if err == nil && len(parts) != 2 {
		err = errors.New("TIME has two parts")
	}
	if err != nil {
		return time.Time{}, err
	}
	return time.Unix(parts[0], parts[1]*1000), nil
}

// Setting is a value of the node's configuration; empty where it is not told,
// as hosted servers do.
func (n Node) Setting(ctx context.Context, name string) string {
	values, _ := n.client.Do(ctx, n.client.B().ConfigGet().Parameter(name).Build()).AsStrMap()
	return values[name]
}
