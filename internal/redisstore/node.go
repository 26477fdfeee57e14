package redisstore

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

// Node is one server of the store, for diagnosis.
type Node struct {
	Name   string
	client rueidis.Client
}

// Nodes returns the connected servers.
func (s *Store) Nodes() (nodes []Node) {
	if client := s.state.Load().client; client != nil {
		for name, node := range client.Nodes() {
			nodes = append(nodes, Node{name, node})
		}
	}
	return nodes
}

// Clock returns the node's time.
func (n Node) Clock(ctx context.Context) (time.Time, error) {
	parts, err := n.client.Do(ctx, n.client.B().Time().Build()).AsIntSlice()
	if err == nil && len(parts) != 2 {
		err = errUnexpectedReply
	}
	if err != nil {
		return time.Time{}, err
	}
	return time.Unix(parts[0], parts[1]*1000), nil
}

// Setting returns a value of the node's configuration. It is empty if the server
// does not reveal it, as hosted servers do.
func (n Node) Setting(ctx context.Context, name string) string {
	values, _ := n.client.Do(ctx, n.client.B().ConfigGet().Parameter(name).Build()).AsStrMap()
	return values[name]
}
