package e2e

import (
	"fmt"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// Metrics count frames, replays, recoveries and closes. Audio frames are not rate
// limited.
func TestSocketMetrics(t *testing.T) {
	svc := startService(t, harness.Env{})
	b, token, ch := svc.conversation(t)
	const audio = 200 // more than the limit of other frames
	for n := range audio {
		b.Send("audio", "audio", fmt.Sprintf(`{"n":%d}`, n))
	}
	b.Expect(`"event":"ack"`, b.Chat("and a word"))
	testkit.Must(t, ch.SendAudio(t.Context(), []byte(`{"n":1}`)))
	b.Expect(`"type":"audio"`, `{"n":1}`)
	cursor := sendNumbered(t, b, ch, 1, 1)[0]

	b.Cut()
	testkit.Until(t, "only the runtime's socket is left", func() bool { return hasMetric(t, svc.Instance, "\ntelapi_sockets 1\n") })
	harness.SendChat(t, ch, `{"n":2}`)
	harness.SendChat(t, ch, `{"n":3}`)
	b = harness.Connect(t, svc.Instance, b.Session, token, "?streamId="+cursor)
	b.Expect(`"event":"ready"`)
	b.Expect(`{"n":2}`)
	b.Expect(`{"n":3}`)
	b.Expect(`"recovered":true`)
	b = harness.Connect(t, svc.Instance, b.Session, token, "?streamId=garbage")
	b.Expect(`"event":"ready"`)
	b.Expect(`"recovered":false`)

	for _, line := range []string{
		fmt.Sprintf(`telapi_frames_total{direction="to_ari",type="audio"} %d`, audio),
		`telapi_frames_total{direction="to_ari",type="chat"} 1`,
		`telapi_frames_total{direction="to_browser",type="chat"} 3`,
		`telapi_frame_ack_seconds_count 1`,
		`telapi_messages_replayed_total 2`,
		`telapi_recoveries_total{outcome="recovered"} 1`,
		`telapi_recoveries_total{outcome="failed"} 1`,
		`telapi_sockets_closed_total{code="4502"} 1`,
		"\ntelapi_sockets 2\n", // with that of the runtime
	} {
		testkit.Until(t, line, func() bool { return hasMetric(t, svc.Instance, line) })
	}
}
