package runtimeapi

import (
	"fmt"
	"testing"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/calls"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestWorkItemIsPushedBesideItsEntry(t *testing.T) {
	const members = `"kind":"frame","trace":{"traceId":"t"},"message":{"chat":{"text":"},"}}}`
	token, digest := auth.CallbackToken("a", "team", "s", "m", wire.ScopeItem)
	stored := fmt.Sprintf(`{"item":{"workItemId":"m","workItemKind":"llm","deadline":5,"digest":%q},%s`, digest[:8], members)
	item := fmt.Sprintf(`,"workItem":{"workItemId":"m","token":%q,"url":"https://x/api/v1/webhooks/llm/s/m?traceId=t","deadline":5}`, token)
	for name, test := range map[string]struct {
		secrets      auth.Secrets
		stored, item string
	}{
		"current secret":  {auth.Secrets{Current: "a"}, stored, item},
		"previous secret": {auth.Secrets{Current: "b", Previous: "a"}, stored, item},
		"other secret":    {auth.Secrets{Current: "b"}, stored, ""},
		"without an item": {auth.Secrets{Current: "a"}, "{" + members, ""},
	} {
		c, _ := newConn(t)
		c.service.Secrets, c.params.BaseURL = test.secrets, "https://x"
		push := c.newClaim("s", "secret").appendEntry([]byte(`{"entry":`), &calls.Channel{ID: "s", TeamID: "team"}, []byte(test.stored))
		testkit.Equal(t, name, string(push), `{"entry":{`+members+test.item+"}")
	}
}

func TestAwaitChatIsChecked(t *testing.T) {
	_, err := decode([]byte(`{"id":1,"op":"accept","awaitChat":{"kind":"cat","ttlMs":0,"x":1}}`), checkAccept)
	issues, _ := fault.From(err).Details.([]fault.Issue)
	var paths []string
	for _, issue := range issues {
		paths = append(paths, issue.Path)
	}
	testkit.Equal(t, "issues", fmt.Sprint(paths), "[/awaitChat/x /awaitChat/kind /awaitChat/ttlMs]")
	accept, err := decode([]byte(`{"id":1,"op":"accept","awaitChat":{}}`), checkAccept)
	testkit.Must(t, err)
	testkit.Equal(t, "defaults", fmt.Sprintf("%s %d", accept.AwaitChat.Kind, *accept.AwaitChat.TTLMs), "bot 300000")
}
