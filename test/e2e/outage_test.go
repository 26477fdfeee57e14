package e2e

import (
	"testing"

	"telapi/test/harness"
)

// Redis comes back without its data. Browsers are notified that history is lost,
// and the session continues in a new epoch of its channel.
func TestRedisRestartsEmpty(t *testing.T) {
	t.Parallel()
	env, redis := harness.RealStores(t)
	svc := startService(t, env)
	b, token, ch := svc.conversation(t)
	cursor := sendNumbered(t, b, ch, 1, 3)[2]
	redis.Kill()
	redis.Start()
	if code := b.CloseCode(); code < 4000 || code >= 4500 {
		t.Errorf("close code %d, want one that allows reconnecting", code)
	}
	b = harness.Reconnect(t, svc.Instance, b.Session, token, "?streamId="+cursor)
	cursor = b.Expect(`"event":"ready"`, `"resumed":false`).ReadyStreamID()
	b.Expect(`{"recovered":false,"count":0}`)
	checkConversation(t, b, svc.afterLoss(t, ch))
	b.Cut()
	b = harness.Connect(t, svc.Instance, b.Session, token, "?streamId="+cursor)
	b.Expect(`"event":"ready"`, `"resumed":true`)
	b.Expect("here too")
	b.Expect(`{"recovered":true,"count":1}`)
}
