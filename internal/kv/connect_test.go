package kv

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/test/testkit"
)

func TestErrorCodes(t *testing.T) {
	r := testkit.StartRedis(t)
	reply := func(command ...string) error { _, err := r.Do(command...); return err }
	readOnly := func() error {
		r.MustDo("REPLICAOF", "127.0.0.1", "1")
		return fmt.Errorf("operation: %w", reply("SET", "a", "b"))
	}
	for name, c := range map[string]struct {
		err       error
		code      string
		temporary bool
	}{
		"wrong type":        {reply("EVAL", "redis.call('SET', 'k', 1) redis.call('SADD', 'k', 1)", "0"), "WRONGTYPE", false},
		"missing value":     {rueidis.Nil, "", false},
		"canceled":          {context.Canceled, "", false},
		"success":           {nil, "", false},
		"read-only, nested": {readOnly(), "READONLY", true},
	} {
		if got := ErrorCode(c.err); got != c.code || IsTemporary(c.err) != c.temporary {
			t.Errorf("%s: %v has code %q, temporary %t", name, c.err, got, IsTemporary(c.err))
		}
	}
}

// fakeClient is a client of a cluster with the given nodes.
type fakeClient struct {
	rueidis.Client
	nodes []string
}

func (c fakeClient) Nodes() map[string]rueidis.Client {
	nodes := map[string]rueidis.Client{}
	for _, address := range c.nodes {
		nodes[address] = fakeClient{}
	}
	return nodes
}

func TestLinkFailsIfFewerThanHalfOfBeaconsArrive(t *testing.T) {
	for _, c := range []struct {
		published, arrived int
		failed             bool
	}{
		{0, 0, true}, {1, 0, true}, {1, 1, false}, {2, 1, false}, {3, 1, true}, {3, 2, false}, {4, 2, false},
		{0, 1, false}, // the reply to PUBLISH was lost
	} {
		t.Run(fmt.Sprintf("%d of %d", c.arrived, c.published), func(t *testing.T) {
			b := newBeacons(fakeClient{})
			for i := range 2 * beaconRounds {
				if err := b.next(); err != nil {
					t.Fatalf("failed after %d intervals: %v", i, err)
				}
				r := b.rounds[len(b.rounds)-1]
				r.published, r.arrived["n0"] = 1, true
			}
			failedAfter := 0
			for i := 1; i < 3*beaconRounds && failedAfter == 0; i++ {
				if err := b.next(); err != nil {
					failedAfter = i
					break
				}
				b.rounds[len(b.rounds)-1].published = c.published
				for n := range c.arrived {
					for range 2 { // PUBLISH may be retried
						b.receive(fmt.Sprintf("%d n%d", b.number, n))
					}
				}
			}
			if want := beaconRounds + 1; c.failed && failedAfter != want || !c.failed && failedAfter != 0 {
				t.Errorf("failed after %d intervals, want %d: %t", failedAfter, want, c.failed)
			}
		})
	}
}

func TestNextLinkUsesAnotherNode(t *testing.T) {
	h := NewTopics()
	for range 20 {
		h.avoid = "b"
		if _, address := h.choose(fakeClient{nodes: []string{"a", "b"}}); address != "a" {
			t.Fatalf("chose %q", address)
		}
	}
	h.avoid = "b"
	if _, address := h.choose(fakeClient{nodes: []string{"b"}}); address != "b" {
		t.Errorf("chose %q of one node", address)
	}
	if node, address := h.choose(fakeClient{}); node == nil || address != "" {
		t.Errorf("without nodes: chose %q", address)
	}
}

// A script that has to wait for others stops waiting at its deadline.
func TestWaitForOthersEndsWithContext(t *testing.T) {
	script := ReplicatedScripts(1, "frame")["frame"]
	for range maxWaiting {
		script.waiting <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	testkit.WantError(t, "Exec", script.Exec(ctx, nil, "channel", nil).Error(), context.DeadlineExceeded)
}
