package hostile

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"telapi/internal/auth"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// A team's manager stores and sends as much as it may, and keeps everything in progress.
// Another team still gets through.
func TestTeamManagerLeavesRoomForOtherTeams(t *testing.T) {
	onAllStores(t, harness.Env{"PLAYGROUND_ENABLED": "true", "SESSION_MAX_CONNECTIONS": "40"}, func(a *target) {
		key := a.managerKey()
		a.attack(growth{log: 1 << 20, redis: 32 << 20, database: 32 << 20}, func() {
			stored := a.storeMaximum(key)
			stored.expect(a.T, 200, 201, 400, 403, 409, 422, 429)
			id, _ := a.session()
			var sockets, feeds statuses
			for range 20 {
				_, token := a.session()
				_, resp, _ := harness.Dial(a.T, a.instance, token, "")
				sockets.add(resp.StatusCode)
			}
			inParallel(20, func(int) { feeds.add(a.request("GET", "/playground/feed?sessionId="+id, key, "")) })
			bodies := a.unfinishedBodies(key)
			for what, got := range map[string]struct{ counts, want map[int]int }{
				"sockets": {sockets.counts, map[int]int{101: 10, 429: 10}},
				"feeds":   {feeds.counts, map[int]int{200: 8, 429: 12}},
			} {
				if fmt.Sprint(got.counts) != fmt.Sprint(got.want) {
					a.Errorf("%s of the attackers: answers by status %v, want %v", what, got.counts, got.want)
				}
			}
			if bodies == 0 {
				a.Error("no body of the attackers was rejected; want them to use up their share")
			}
			a.workAsOtherTeam()
		})
	})
}

// managerKey returns a key with which the attackers can manage their team.
func (a *target) managerKey() string {
	a.Helper()
	body := fmt.Sprintf(`{"name":"manager","scopes":[%q,%q,%q]}`, auth.ManageTeam, auth.ReadTeamApps, auth.CreateCallToken)
	resp, answer := a.instance.Post(a.T, "/api/v1/admin/teams/"+a.tenant.Team.ID+"/keys", body, "X-API-Key", a.tenant.Key)
	_, key, found := strings.Cut(answer, `"key":"`)
	key, _, _ = strings.Cut(key, `"`)
	if resp.StatusCode != http.StatusCreated || !found {
		a.Fatalf("create a key: %d %s", resp.StatusCode, answer)
	}
	return key
}

// storeMaximum creates keys and endpoints, and checks callbacks, with large profiles.
func (a *target) storeMaximum(key string) *statuses {
	team := "/api/v1/admin/teams/" + a.tenant.Team.ID
	patterns := strings.Repeat(`"tel:+`+strings.Repeat("1", 100)+`*",`, 199) + `"tel:+49*"`
	profile := fmt.Sprintf(`{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true,"allowedTargets":[%s]}]}`, patterns)
	lint := fmt.Sprintf(`{"kind":"bot","profile":%s,"body":{"conversation":{"identifier":{"id":"c"}},"messages":{"message":[%s{"content":{}}]}}}`,
		profile, strings.Repeat(`{"content":{"textMessage":{"textPlain":"`+strings.Repeat("a", 1_900)+`"}}},`, 450))
	var got statuses
	inParallel(60, func(i int) {
		switch i % 3 {
		case 0:
			got.add(a.request("POST", team+"/keys", key, fmt.Sprintf(`{"name":"key %d","scopes":[%q]}`, i, auth.ReadTeamApps)))
		case 1:
			got.add(a.request("POST", team+"/endpoints", key, fmt.Sprintf(`{"name":"endpoint %d","modes":["chat"],"gatewayProfile":%s}`, i, profile)))
		case 2:
			got.add(a.request("POST", "/api/v1/admin/callbacks/lint", key, lint))
		}
	})
	return &got
}

// unfinishedBodies sends bodies without their last byte, and returns how many were
// rejected because of the team's share.
func (a *target) unfinishedBodies(key string) (rejected int) {
	const bodies, size = 40, 900 << 10
	results := make(chan bool, bodies)
	for range bodies {
		conn := a.dial()
		go func() {
			_, _ = fmt.Fprintf(conn, "POST /api/v1/admin/callbacks/lint HTTP/1.1\r\nHost: a\r\nX-API-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", key, size)
			go func() { _, _ = io.WriteString(conn, strings.Repeat("[", size-1)) }() // fails if the server has rejected the body
			line, _ := bufio.NewReader(conn).ReadString('\n')
			results <- strings.Contains(line, "429")
		}()
	}
	deadline := time.After(testkit.Timeout)
	for rejected < bodies/2 {
		select {
		case tooMany := <-results:
			if tooMany {
				rejected++
			}
		case <-deadline:
			return rejected
		}
	}
	return rejected
}

// workAsOtherTeam does what the attackers do, once.
func (a *target) workAsOtherTeam() {
	a.Helper()
	b, _ := a.other.Connect(a.T, a.instance)
	b.Expect(`"event":"ack"`, b.Chat("hello"))
	if status := a.request("GET", "/playground/feed?sessionId="+b.Session, a.other.Key, ""); status != http.StatusOK {
		a.Errorf("feed of another team: %d, want 200", status)
	}
	large := fmt.Sprintf(`{"kind":"llm","body":{"content":%q}}`, strings.Repeat("a", 500<<10))
	if status := a.request("POST", "/api/v1/admin/callbacks/lint", a.other.Key, large); status != http.StatusOK {
		a.Errorf("large body of another team: %d, want 200", status)
	}
}
