package runtimeapi

import (
	"context"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/test/testkit"
)

// receivedEntry returns a connection that has pushed an entry, whose position it returns. Its
// commits wait for other requests.
func receivedEntry(t *testing.T) (c *Conn, socket *countingSocket, cl *claim, position string) {
	t.Helper()
	c, socket, cl, ch := claimedSession(t)
	c.greeted, c.service.commitDelay = true, time.Hour
	c.mustAdd(t, cl, ch)
	cl.start()
	await(t, socket, `"event":"entry"`)
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return c, socket, cl, cl.known
}

// settledEntry is receivedEntry, but the connection starts no worker for pushes any more, so that
// a test can wait for its requests.
func settledEntry(t *testing.T) (c *Conn, socket *countingSocket, cl *claim, position string) {
	t.Helper()
	c, socket, cl, position = receivedEntry(t)
	testkit.Until(t, "no worker is running", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.workers > 0 {
			return false
		}
		c.workers = maxWorkers
		return true
	})
	return c, socket, cl, position
}

func await(t *testing.T, socket *countingSocket, text string) {
	t.Helper()
	testkit.Until(t, text, func() bool { return strings.Contains(socket.sent(), text) })
}

func (c *Conn) commitEntry(t *testing.T, position string) {
	t.Helper()
	c.Handle(t.Context(), []byte(`{"id":2,"op":"commit","channel":"s","position":"`+position+`"}`))
}

// committedPosition returns where another claim starts.
func committedPosition(t *testing.T, c *Conn, cl *claim) string {
	t.Helper()
	ch, err := c.calls.Attach(t.Context(), calls.Claim{Name: cl.attempt().Name, Token: "next"}, "s")
	testkit.Must(t, err)
	return ch.Committed
}

func TestCommitWaitsForNextRequest(t *testing.T) {
	for name, request := range map[string]string{
		"send":    `"op":"send","messages":[{"type":"chat","chat":{"text":"hello"}}]`,
		"await":   `"op":"await"`,
		"cancel":  `"op":"cancel","workItemId":"unknown"`,
		"release": `"op":"release"`,
	} {
		t.Run(name, func(t *testing.T) {
			c, socket, cl, position := settledEntry(t)
			c.commitEntry(t, position)
			c.commitEntry(t, position)
			c.running.Wait()
			if frames := socket.sent(); strings.Contains(frames, `"id":2`) {
				t.Fatalf("the commit did not wait: %s", frames)
			}
			c.Handle(t.Context(), []byte(`{"id":3,"channel":"s",`+request+`}`))
			await(t, socket, `"id":3`)
			c.running.Wait()
			if frames := socket.sent(); strings.Count(frames, `{"id":2,"ok":{}}`) != 2 {
				t.Errorf("replies: %s; want that of both commits", frames)
			}
			testkit.Equal(t, "committed", committedPosition(t, c, cl), position)
			if len(c.slots) > 0 || c.service.requestBytes.Used() > 0 {
				t.Errorf("%d slots and %d bytes are in use", len(c.slots), c.service.requestBytes.Used())
			}
		})
	}
}

func TestCommitDoesNotWaitForever(t *testing.T) {
	for name, act := range map[string]func(*Conn, *countingSocket, *claim, string){
		"no other request": func(c *Conn, _ *countingSocket, _ *claim, position string) {
			c.service.commitDelay = time.Millisecond
			c.commitEntry(t, position)
		},
		"half of the window is pushed": func(c *Conn, _ *countingSocket, cl *claim, position string) {
			cl.mu.Lock()
			for len(cl.pushed) < pushedEntries/2 {
				cl.pushed = append(cl.pushed, cl.pushed[0])
			}
			cl.mu.Unlock()
			c.commitEntry(t, position)
		},
		"last entry": func(c *Conn, socket *countingSocket, cl *claim, _ string) {
			testkit.Must(t, cl.current().End(t.Context(), "done"))
			await(t, socket, string(wire.KindChannelEnded))
			cl.mu.Lock()
			last := cl.known
			cl.mu.Unlock()
			c.commitEntry(t, last)
		},
		"invalid position": func(c *Conn, _ *countingSocket, _ *claim, _ string) { c.commitEntry(t, "9-9") },
	} {
		t.Run(name, func(t *testing.T) {
			c, socket, cl, position := receivedEntry(t)
			act(c, socket, cl, position)
			await(t, socket, `"id":2`)
		})
	}
}

// A commit that a script cannot do with another request is run alone.
func TestCommitOfOtherPositionDoesNotFailSend(t *testing.T) {
	c, socket, cl, position := settledEntry(t)
	c.commitEntry(t, position[:1]+"-1")
	c.Handle(t.Context(), []byte(`{"id":3,"channel":"s","op":"send","messages":[{"type":"chat","chat":{"text":"hello"}}]}`))
	await(t, socket, `"id":3`)
	c.running.Wait()
	if frames := socket.sent(); !strings.Contains(frames, `{"id":2,"error":{"code":"VALIDATION_ERROR"`) || !strings.Contains(frames, `{"id":3,"ok":`) {
		t.Errorf("replies: %s", frames)
	}
	testkit.Equal(t, "committed", committedPosition(t, c, cl), "")
}

func TestCommitThatWaitsIsDoneWhenConnectionEnds(t *testing.T) {
	c, _, cl, position := settledEntry(t)
	c.commitEntry(t, position)
	c.running.Wait()
	c.Close()
	testkit.Equal(t, "committed", committedPosition(t, c, cl), position)
}

// A session is not released while the runtime has to repeat a commit before that.
func TestReleaseFailsWithCommitBeforeIt(t *testing.T) {
	c, socket, cl, _ := settledEntry(t)
	failing := &request{Request: wire.Request{ID: 2, Op: wire.OpCommit, Channel: "s"}, deadline: time.Now().Add(testkit.Timeout), run: func(context.Context) (any, error) { return nil, calls.ErrUnavailable }}
	c.queues["s"] = &queue{commits: []*request{failing}}
	c.Handle(t.Context(), []byte(`{"id":3,"op":"release","channel":"s"}`))
	await(t, socket, `"id":3`)
	c.running.Wait()
	if frames := socket.sent(); strings.Count(frames, `"code":"SERVICE_UNAVAILABLE"`) != 2 {
		t.Errorf("replies: %s", frames)
	}
	testkit.Must(t, cl.current().Commit(t.Context(), "")) // still claimed
}

// A commit of a former claim that waits is not done with a request of the next claim.
func TestCommitOfFormerClaimHasNoEffect(t *testing.T) {
	of := func(claim, position string) *request {
		return &request{Request: wire.Request{Claim: claim}, position: position}
	}
	q := &queue{commits: []*request{of("former", "5-1"), of("next", "2-1"), of("", "3-1"), of("next", "1-1")}}
	testkit.Equal(t, "newest commit", q.newestCommit(&claim{secret: "next"}), "3-1")
	q.commits = q.commits[:1]
	testkit.Equal(t, "without a commit of the claim", q.newestCommit(&claim{secret: "next"}), "")
}

// A repeated commit that waits lets the requests after it run, and has no effect on them later.
func TestRepeatedCommitEndsFailureBeforeItWaits(t *testing.T) {
	c, _, cl, position := settledEntry(t)
	cl.failure = calls.ErrUnavailable
	c.Handle(t.Context(), []byte(`{"id":2,"op":"commit","channel":"s","retry":true,"position":"`+position+`"}`))
	c.running.Wait()
	if q := c.queues["s"]; cl.failure != nil || len(q.commits) != 1 || q.commits[0].Retry {
		t.Errorf("failure %v, waiting %+v", cl.failure, q)
	}
}
