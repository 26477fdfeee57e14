package app

import (
	"context"
	"fmt"

	"telapi/internal/redisstore"
)

// redisSettings lists the settings that a Redis server needs to keep channels. A tolerated
// value is a warning.
var redisSettings = []struct{ name, value, risk, tolerated, loss string }{
	{name: "maxmemory-policy", value: "noeviction", risk: "a full server deletes live channels instead of rejecting new ones"},
	{name: "appendonly", value: "yes", risk: "acknowledged data is lost when the server restarts"},
	{name: "appendfsync", value: "always", risk: "a machine crash loses all that the operating system has not written yet",
		tolerated: "everysec", loss: "a machine crash loses up to 2 s of acknowledged frames and callbacks. Set it to always to keep them"},
}

// redisNode checks the clock, the settings and the replicas of a Redis server.
func (d *diagnosis) redisNode(ctx context.Context, node redisstore.Node) {
	d.clock(ctx, "Redis at "+node.Name, node.Clock)
	for _, s := range redisSettings {
		switch value := node.Setting(ctx, s.name); value {
		case s.value:
			d.add(s.name, value+" on "+node.Name, nil)
		case "":
			d.add(s.name, "", warningf("not readable on %s: make sure that it is %s", node.Name, s.value))
		case s.tolerated:
			d.add(s.name, "", warningf("%s on %s: %s", value, node.Name, s.loss))
		default:
			d.add(s.name, "", fmt.Errorf("%s on %s: %s. Set it to %s", value, node.Name, s.risk, s.value))
		}
	}
	if node.Setting(ctx, "maxmemory") == "0" {
		d.add("maxmemory", "", warningf("no limit on %s: a full machine ends Redis instead of rejecting new data. Set it to half of the machine's memory", node.Name))
	}
	d.replicas(ctx, node)
}

// replicas checks how much data a failover loses.
func (d *diagnosis) replicas(ctx context.Context, node redisstore.Node) {
	const check = "min-replicas-to-write"
	replicas, isMaster := node.Replicas(ctx)
	switch {
	case !isMaster:
		return
	case replicas < d.cfg.KVMinReplicas:
		d.add(check, "", fmt.Errorf("%s has %d replicas, but KV_MIN_REPLICAS is %d: frames and callbacks are rejected. Add replicas, or lower KV_MIN_REPLICAS",
			node.Name, replicas, d.cfg.KVMinReplicas))
		return
	case replicas == 0:
		d.add(check, node.Name+" has no replicas", nil)
		return
	}
	switch value := node.Setting(ctx, check); {
	case value == "":
		d.add(check, "", warningf("not readable on %s: make sure that it is 1 or more", node.Name))
	case value == "0":
		d.add(check, "", warningf("0 on %s, which has %d replicas: a master that lost its replicas accepts writes that a failover discards. Set it to 1", node.Name, replicas))
	case d.cfg.KVMinReplicas == 0:
		d.add(check, "", warningf("%s on %s, but KV_MIN_REPLICAS is 0: a failover can discard frames and callbacks that were acknowledged a moment before. Set KV_MIN_REPLICAS to 1", value, node.Name))
	default:
		d.add(check, fmt.Sprintf("%s on %s; KV_MIN_REPLICAS is %d", value, node.Name, d.cfg.KVMinReplicas), nil)
	}
}
