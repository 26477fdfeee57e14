package command

import (
	"slices"
	"testing"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

func TestOnlyPoliciesSetConfirmationAndSilence(t *testing.T) {
	for _, tt := range []struct {
		policies        string
		confirm, silent bool
	}{
		{`{"type":"hangup","enabled":true}`, false, false},
		{`{"type":"hangup","enabled":true,"requireConfirmation":true}`, true, false},
		{`{"type":"hangup","enabled":true,"waitForSilence":true}`, false, true},
		{`{"type":"hangup","enabled":true,"requireConfirmation":true,"waitForSilence":true},{"type":"hangup","enabled":true}`, true, true},
	} {
		p := compile(t, `{"commandSources":["bot"],"commandPolicies":[`+tt.policies+`]}`)
		c := wire.NewCommand("hangup").(*wire.Hangup)
		c.CommonFields.RequireConfirmation, c.CommonFields.WaitForSilence, c.WaitForSilence = true, true, new(bool)
		got := p.Decide(Request{Command: c}, "bot", "").Command.(*wire.Hangup)
		if got.RequireConfirmation != tt.confirm || got.CommonFields.WaitForSilence != tt.silent || *got.WaitForSilence != tt.silent {
			t.Errorf("%s: confirmation %t, silence %t and %t", tt.policies, got.RequireConfirmation, got.CommonFields.WaitForSilence, *got.WaitForSilence)
		}
	}
}

func TestDefaultsOfHangup(t *testing.T) {
	p := compile(t, `{"commandSources":["bot"],"commandPolicies":[{"type":"hangup","enabled":true}],
		"actions":{"hangup":{"reason":"r","waitForSilence":true,"delayBotDisconnectMs":5}}}`)
	got := p.Decide(Request{Command: wire.NewCommand("hangup")}, "bot", "").Command.(*wire.Hangup)
	if got.Reason != "r" || got.WaitForSilence == nil || !*got.WaitForSilence || got.DelayBotDisconnectMs == nil || *got.DelayBotDisconnectMs != 5 {
		t.Errorf("defaults are missing: %+v", got)
	}
}

// A misspelled target must not become a transfer to the default one.
func TestMisspelledTargetIsMissing(t *testing.T) {
	p := compile(t, `{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true},{"type":"hangup","enabled":true}],"actions":{"transfer":{"target":"+491"}}}`)
	bye := transfer("")
	bye.TransferMethod = SIPBye
	for _, tt := range []struct {
		name       string
		command    wire.Command
		misspelled bool
		want       string
	}{
		{"default", transfer(""), false, ""},
		{"misspelled", transfer(""), true, TargetMissing},
		{"given as well", transfer("+491"), true, ""},
		{"sip_bye needs none", bye, true, ""},
		{"another command", wire.NewCommand("hangup"), true, ""},
	} {
		if got := p.Decide(Request{Command: tt.command, misspelledTarget: tt.misspelled}, "bot", "").Reason; got != tt.want {
			t.Errorf("%s: reason %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := transferPolicy(t, `,"allowedTargets":["*"]`).Decide(Request{Command: transfer("")}, "bot", "").Reason; got != TargetMissing {
		t.Errorf("without a default: reason %q, want %q", got, TargetMissing)
	}
}

func TestRoutingPoolIsForPhoneNumbers(t *testing.T) {
	p := transferPolicy(t, `,"allowedTargets":["*"]`)
	for target, want := range map[string]string{"+491": "pool", "sip:a@pbx.example": ""} {
		c := transfer(target)
		c.TransferRoutingPool = "pool"
		if got := p.Decide(Request{Command: c}, "bot", "").Command.(*wire.Transfer).TransferRoutingPool; got != want {
			t.Errorf("%s: pool %q, want %q", target, got, want)
		}
	}
}

func TestSpeechProviderMustBeInChain(t *testing.T) {
	p := compile(t, `{"commandSources":["bot"],"commandPolicies":[{"type":"update_stt_config","enabled":true},{"type":"update_tts_config","enabled":true}],"speech":{"stt":["s"],"tts":["t"]}}`)
	for _, tt := range []struct {
		kind, provider, want string
	}{
		{"update_stt_config", "s", ""}, {"update_stt_config", "t", ProviderNotInChain}, {"update_stt_config", "", ""},
		{"update_tts_config", "t", ""}, {"update_tts_config", "s", ProviderNotInChain},
	} {
		config := &wire.SpeechConfig{Retries: new(int64(2))}
		if tt.provider != "" {
			config.Provider = &tt.provider
		}
		c := wire.NewCommand(tt.kind)
		switch c := c.(type) {
		case *wire.UpdateSTTConfig:
			c.Config = config
		case *wire.UpdateTTSConfig:
			c.Config = config
		}
		d := p.Decide(Request{Command: c, Ignored: []string{"x"}}, "bot", "")
		ignored := []string{"x"}
		if tt.want != "" {
			ignored = append(ignored, "config.provider", "config.retries")
		}
		if d.Reason != tt.want || !slices.Equal(d.Ignored, ignored) {
			t.Errorf("%s to %q: reason %q, ignored %q; want %q and %q", tt.kind, tt.provider, d.Reason, d.Ignored, tt.want, ignored)
		}
	}
	if d := p.Decide(Request{Command: wire.NewCommand("update_stt_config")}, "bot", ""); d.Reason != FieldMissing {
		t.Errorf("without config: reason %q, want %q", d.Reason, FieldMissing)
	}
}

func TestUnknownCommandIsDenied(t *testing.T) {
	c := wire.NewCommand("hangup")
	c.Common().Type = "fly"
	p := compile(t, `{"commandSources":["bot"],"commandPolicies":[{"type":"fly","enabled":true}]}`)
	if got := p.Decide(Request{Command: c}, "bot", "").Reason; got != UnknownAction {
		t.Errorf("reason %q, want %q", got, UnknownAction)
	}
}

func TestPlatformPolicyReportsEveryValue(t *testing.T) {
	for want, lists := range map[string][3][]string{
		"":            {{"hangup"}, {"tel:+49*"}, {"X-A"}},
		"/disabled/1": {{"hangup", "fly"}, nil, nil},
		"/targets/0":  {nil, []string{"invalid"}, nil},
		"/headers/1":  {nil, nil, []string{"X-A", "a b"}},
	} {
		_, err := NewPlatformPolicy(lists[0], lists[1], lists[2])
		got := ""
		if issues, _ := fault.From(err).Details.([]fault.Issue); err != nil && len(issues) == 1 {
			got = issues[0].Path
		}
		if got != want {
			t.Errorf("%q: error %v, want an issue at %q", lists, err, want)
		}
	}
	// Without targets, the platform restricts none.
	platform, err := NewPlatformPolicy(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := NewPolicy(transferPolicy(t, `,"allowedTargets":["*"]`).profile, platform)
	if got := p.Decide(Request{Command: transfer("+1900")}, "bot", "").Reason; got != "" {
		t.Errorf("reason %q, want none", got)
	}
}
