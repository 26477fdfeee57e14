package callback_test

import (
	"fmt"
	"strings"
	"testing"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/fault"
)

func TestReceiptCountsMessages(t *testing.T) {
	f := newFixture(t, options{profile: profileJSON})
	for _, tt := range []struct {
		kind wire.WorkItemKind
		body string
		want int
	}{
		{wire.BotItem, helloBody, 1},
		{wire.BotItem, hangupBody, 0},
		{wire.LLMItem, `{"content":"Hello"}`, 1},
		{wire.ToolItem, `{"result":{"a":1}}`, 1},
	} {
		if got := f.accept(f.request(tt.kind, tt.body)).Messages; got != tt.want {
			t.Errorf("%s %s: %d messages, want %d", tt.kind, tt.body, got, tt.want)
		}
	}
}

func TestReceiptListsAtMost100IgnoredMembersOfCommands(t *testing.T) {
	f := newFixture(t, options{profile: profileJSON})
	var members strings.Builder
	for i := range 60 {
		fmt.Fprintf(&members, `,"x%d":1`, i)
	}
	action := `{"type":"hangup"` + members.String() + `}`
	receipt := f.accept(f.request(wire.BotItem, `{"conversation":{"identifier":{"id":"call-1"}},"actions":[`+action+`,`+action+`]}`))
	if n := []int{len(receipt.Commands[0].Ignored), len(receipt.Commands[1].Ignored)}; n[0] != 60 || n[1] != 40 {
		t.Errorf("%d ignored members are listed, want 60 and 40", n)
	}
}

// A callback that was not parked must not use up the team's share.
func TestRoutedCallbackTakesNoShare(t *testing.T) {
	f := newFixture(t, options{profile: profileJSON})
	f.accept(f.request(wire.BotItem, helloBody))
	f.store.deliver = func(func() (callback.DeliverResult, error)) (callback.DeliverResult, error) {
		return callback.DeliverResult{}, errStoreDown
	}
	if _, err := f.service.Accept(t.Context(), f.request(wire.BotItem, helloBody)); !fault.Is(err, fault.ServiceUnavailable) {
		t.Fatalf("error %v, want %s", err, fault.ServiceUnavailable)
	}
	if err := f.service.TakeParked("team", f.service.ParkedShare()); err != nil {
		t.Errorf("the share is not free: %v", err)
	}
}

func TestDryRunReportsPathsInBody(t *testing.T) {
	f := newFixture(t, options{profile: profileJSON})
	if _, err := f.service.Try(wire.BotItem, []byte(`{`), wire.GatewayProfile{}); !fault.Is(err, fault.MalformedJSON) {
		t.Errorf("error %v, want %s", err, fault.MalformedJSON)
	}
	report, err := f.service.Try(wire.BotItem, []byte(strings.TrimSuffix(helloBody, "}")+`,"colour":1}`), wire.GatewayProfile{})
	if err != nil || len(report.Entries) != 1 || report.Entries[0].ChannelID != channelID || len(report.Warnings) != 1 || report.Warnings[0].Path != "/body/colour" {
		t.Errorf("report %+v, error %v, want an entry of %s and a warning at /body/colour", report, err, channelID)
	}
}
