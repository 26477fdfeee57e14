package redisstore

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/kv"
)

// scanCount is the number of keys that one SCAN checks: it bounds how long the
// server is blocked.
const scanCount = 1000

// ChannelInfo describes a channel for operators.
type ChannelInfo struct {
	ID             string      `json:"id"`
	TeamID         string      `json:"teamId"`
	EndpointID     string      `json:"endpointId"`
	Mode           string      `json:"mode,omitzero"`
	State          string      `json:"state"` // open, or ended with entries that the runtime has not committed
	Claim          ClaimStatus `json:"claim"`
	Runtime        string      `json:"runtime,omitzero"` // name of the runtime that has, or had, the claim
	Browser        bool        `json:"browser"`          // a browser is connected
	OpenedAt       time.Time   `json:"openedAt"`
	LastActivity   time.Time   `json:"lastActivity"` // time of the newest entry or message
	UnclaimedSince time.Time   `json:"unclaimedSince,omitzero"`
	BacklogEntries int64       `json:"backlogEntries"` // that the runtime has not committed
	BacklogBytes   int64       `json:"backlogBytes"`
}

// Waiting reports whether a browser waits for a runtime.
func (c ChannelInfo) Waiting() bool { return c.Browser && c.State == "open" && c.Claim != ClaimHeld }

// ClaimStatus is the status of a channel's claim.
type ClaimStatus string

// The statuses of a claim.
const (
	ClaimHeld    ClaimStatus = "claimed"
	ClaimExpired ClaimStatus = "expired" // the runtime did not renew it
	ClaimNone    ClaimStatus = "none"    // never claimed, or released
)

// List returns the live channels in no particular order. It scans the keys of every
// node in steps of scanCount and may miss channels that are opened meanwhile.
func (s *Store) List(ctx context.Context) iter.Seq2[ChannelInfo, error] {
	return func(yield func(ChannelInfo, error) bool) {
		listed := map[string]bool{} // SCAN may return a key repeatedly, and replicas return it too
		for _, node := range s.Nodes() {
			for cursor := uint64(0); ; {
				page, err := node.scan(ctx, cursor)
				var ids []string
				for _, key := range page.Elements {
					if id, _ := kv.SplitChannelKey(key); !listed[id] {
						listed[id] = true
						ids = append(ids, id)
					}
				}
				var channels []ChannelInfo
				if err == nil {
					channels, err = s.describe(ctx, ids)
				}
				if err != nil {
					yield(ChannelInfo{}, fmt.Errorf("list channels of %s: %w", node.Name, err))
					return
				}
				for _, c := range channels {
					if !yield(c, nil) {
						return
					}
				}
				if cursor = page.Cursor; cursor == 0 {
					break
				}
			}
		}
	}
}

// Channel returns a live channel. An unknown one has the zero value.
func (s *Store) Channel(ctx context.Context, id string) (ChannelInfo, error) {
	found, err := s.describe(ctx, []string{id})
	if err != nil || len(found) == 0 {
		return ChannelInfo{}, err
	}
	return found[0], nil
}

// scan returns a page of the keys of channels on the node.
func (n Node) scan(ctx context.Context, cursor uint64) (rueidis.ScanEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return n.client.Do(ctx, n.client.B().Scan().Cursor(cursor).Match(kv.MetaKey("*")).Count(scanCount).Build()).AsScanEntry()
}

// listedFields are the fields of a channel that ChannelInfo describes.
var listedFields = []string{
	"state", "team", "endpoint", "mode", "claimedBy", "claimUntil", "owner", "ownerUntil", "openedAt", "inLast", "outLast", "flow",
}

// describe reads the channels and leaves out those that are not live.
func (s *Store) describe(ctx context.Context, ids []string) (found []ChannelInfo, err error) {
	now := parseMillis(s.clock.At("", time.Now())) // on the node that is ahead most
	err = s.readFields(ctx, "read channels", ids, listedFields, func(id string, values []string) {
		fields := make(map[string]string, len(values))
		for i, name := range listedFields {
			fields[name] = values[i]
		}
		if c := newChannelInfo(id, fields, now); c.State == "open" || c.BacklogEntries > 0 {
			found = append(found, c)
		}
	})
	return found, err
}

// newChannelInfo describes a channel at a time of the store's clock.
func newChannelInfo(id string, fields map[string]string, now int64) ChannelInfo {
	var flow [9]int64 // see loadChannel in channel.lua
	for i, number := range strings.Fields(fields["flow"]) {
		if i < len(flow) { // a newer version may have more
			flow[i] = parseMillis(number)
		}
	}
	entries, bytes, committed, committedBytes := flow[3], flow[4], flow[5], flow[6]
	_, entryAt, _ := strings.Cut(fields["inLast"], "-")
	_, messageAt, _ := strings.Cut(fields["outLast"], "-")
	openedAt, claimUntil := parseMillis(fields["openedAt"]), parseMillis(fields["claimUntil"])
	c := ChannelInfo{
		ID: id, TeamID: fields["team"], EndpointID: fields["endpoint"], Mode: fields["mode"], State: fields["state"],
		Claim: ClaimNone, Runtime: runtimeName(fields["claimedBy"]),
		Browser:        fields["owner"] != "" && parseMillis(fields["ownerUntil"]) > now,
		OpenedAt:       time.UnixMilli(openedAt),
		LastActivity:   time.UnixMilli(max(openedAt, parseMillis(entryAt), parseMillis(messageAt))),
		BacklogEntries: entries - committed, BacklogBytes: bytes - committedBytes,
	}
	if c.Runtime != "" {
		c.Claim = ClaimExpired
	}
	if claimUntil > now {
		c.Claim = ClaimHeld
	} else {
		c.UnclaimedSince = time.UnixMilli(max(openedAt, claimUntil))
	}
	return c
}

// runtimeName returns the name of the runtime in the name of a claim, without the secret
// that follows it.
func runtimeName(claim string) string {
	if i := strings.LastIndexByte(claim, '/'); i >= 0 {
		return claim[:i]
	}
	return claim
}
