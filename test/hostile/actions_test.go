package hostile

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// A page that sends browser actions cannot fill the database: a session may store
// 16 MiB. The rate is higher than by default, so that the attack takes seconds.
func TestBrowserActionsDoNotFillTheDatabase(t *testing.T) {
	var members strings.Builder // names are stored, values are redacted
	for n := range 250 {
		fmt.Fprintf(&members, `,"a-member-with-a-name-of-some-length-%03d":0`, n)
	}
	action := "{" + members.String()[1:] + "}"
	onAllStores(t, harness.Env{"SESSION_MAX_FRAMES_PER_SECOND": "10000"}, func(a *target) { attackWithActions(a, action) })
}

func attackWithActions(a *target, action string) {
	a.startRuntime()
	a.attack(growth{log: 1 << 20, redis: 64 << 20, database: 40 << 20}, func() {
		b := a.connect()
		// About 1,300 actions of 13 KB each, after redaction, reach the limit. While the
		// database is slow, more of them are dropped because the queue is full.
		testkit.Until(a, "actions in excess are counted", func() bool {
			const sent, window = 400, 16
			for n := range sent + window {
				if n < sent {
					b.Send("browser_action", "browserAction", action)
				}
				if n >= window {
					b.Next()
				}
			}
			_, metrics := a.instance.Call(a.T, "GET", "/metrics")
			return regexp.MustCompile(`(?m)^telapi_browser_actions_dropped_total{reason="session_limit"} [1-9]`).MatchString(metrics)
		})
	})
}
