package runtimecontract

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/config"
	"telapi/internal/redisstore"
	"telapi/test/servers"
)

const aclPassword = "s3cret"

// contractPage returns the page that this package tests.
func contractPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "runtime-contract.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// aclRules returns the rules of the user in the page.
func aclRules(t *testing.T) []string {
	t.Helper()
	line := regexp.MustCompile(`(?m)^ACL SETUSER runtime (.*)$`).FindStringSubmatch(contractPage(t))
	if line == nil {
		t.Fatal("docs/runtime-contract.md has no ACL line")
	}
	return strings.Fields(strings.Replace(line[1], "PASSWORD", aclPassword, 1))
}

// startRestrictedRedis starts a server with the user of the page.
func startRestrictedRedis(t *testing.T) *servers.Redis {
	t.Helper()
	r := servers.StartRedis(t)
	r.MustDo(append([]string{"ACL", "SETUSER", "runtime"}, aclRules(t)...)...)
	return r
}

// The user in the page may run a whole conversation, in Go and with plain commands,
// and has no access to other keys and commands.
func TestRestrictedUser(t *testing.T) {
	t.Parallel()
	r := startRestrictedRedis(t)
	log := slog.New(slog.DiscardHandler)
	opts := redisstore.Options{RedisOptions: config.RedisOptions{Addrs: []string{r.Addr()}}, Logger: log}
	converse(t, opts, "runtime", aclPassword)

	store, err := callruntime.Locate("redis://runtime:"+aclPassword+"@"+r.Addr(), "")
	if err != nil {
		t.Fatal(err)
	}
	runtime, err := callruntime.New(callruntime.Options{Store: store, Name: "restricted"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runtime.Close)
	c, err := runtime.Open(t.Context(), callruntime.OpenOptions{ChannelID: "call-9", TeamID: "t-1", EndpointID: "e-1"})
	if err != nil {
		t.Fatal(err)
	}
	if held, err := runtime.Channels(t.Context()); err != nil || !slices.Equal(held, []string{"call-9"}) {
		t.Errorf("channels %v, %v; want call-9", held, err)
	}
	if _, err := c.Await(t.Context(), callruntime.AwaitOptions{}); err != nil {
		t.Error(err)
	}
	for version, compatible := range map[string]bool{"": true, "1": true, "2": true, "3": true, "0": false, "4": false, "two": false} {
		if version != "" {
			r.MustDo("SET", "telapi:scripts", version)
		} else {
			r.MustDo("DEL", "telapi:scripts")
		}
		if err := runtime.CheckVersion(t.Context()); compatible != (err == nil) || !compatible && !errors.Is(err, callruntime.ErrVersion) {
			t.Errorf("version %q: %v, want compatible: %v", version, err, compatible)
		}
	}
	for _, err := range []error{c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte("{}")}), c.End(t.Context(), "done"), c.Close(t.Context())} {
		if err != nil {
			t.Error(err)
		}
	}

	for _, refused := range []string{"GET other", "FLUSHALL", "KEYS *", "CONFIG GET dir", "XTRIM other MAXLEN 0"} {
		if got := dial(t, r.Addr(), "runtime", aclPassword).try(strings.Fields(refused)...); !strings.HasPrefix(got, "NOPERM") {
			t.Errorf("%s: %s, want NOPERM", refused, got)
		}
	}
}

// Commands that a conversation rarely needs are also in the line.
func TestACLListsCommandsOfScripts(t *testing.T) {
	rules := aclRules(t)
	call := regexp.MustCompile(`redis\.call\('([A-Z]+)'`)
	for _, script := range []string{"channel", "claim", "commit", "send", "send_fast", "await", "cancel", "items", "touch", "end", "drop_offers"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "callruntime", "lua", script+".lua"))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range call.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(rules, "+"+strings.ToLower(match[1])) {
				t.Errorf("%s.lua calls %s, which the ACL line does not allow", script, match[1])
			}
		}
	}
}

// The page has an entry of every kind, and the service could have written it.
func TestExampleEntries(t *testing.T) {
	kinds := map[wire.EntryKind]bool{}
	for line := range strings.SplitSeq(contractPage(t), "\n") {
		if !strings.HasPrefix(line, `{`) || !strings.Contains(line, `"kind":"`) || strings.Contains(line, "…") {
			continue
		}
		var entry wire.Entry
		if err := json.Unmarshal([]byte(line), &entry, json.RejectUnknownMembers(true)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		kinds[entry.Kind] = true
	}
	for _, kind := range []wire.EntryKind{wire.KindFrame, wire.KindSession, wire.KindBotMessage, wire.KindBotEvent, wire.KindBotOperation, wire.KindCommand,
		wire.KindCommandDenied, wire.KindMetadata, wire.KindChannelData, wire.KindNLUData, wire.KindLLMResult, wire.KindToolResult, wire.KindProviderError,
		wire.KindTimeout, wire.KindChannelEnded} {
		if !kinds[kind] {
			t.Errorf("no example of kind %s", kind)
		}
	}
}
