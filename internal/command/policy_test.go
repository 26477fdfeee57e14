package command

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

// compile returns the policy of a gateway profile.
func compile(t testing.TB, profile string) *Policy {
	t.Helper()
	var p wire.GatewayProfile
	testkit.Must(t, json.Unmarshal([]byte(profile), &p))
	return NewPolicy(p, PlatformPolicy{})
}

// withHeaders returns the policy on a platform that lets profiles allow headers.
func (p *Policy) withHeaders(names string) *Policy {
	return NewPolicy(p.profile, PlatformPolicy{headers: strings.Fields(names)})
}

// transferPolicy returns a policy that allows transfers, with more members of its
// command policy.
func transferPolicy(t testing.TB, members string) *Policy {
	return compile(t, `{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true`+members+`}]}`)
}

func transfer(target string) *wire.Transfer {
	c := wire.NewCommand("transfer").(*wire.Transfer)
	c.Target = target
	return c
}

// Attackers try to transfer calls to premium numbers.
func TestTollFraudIsDenied(t *testing.T) {
	p := transferPolicy(t, `,"allowedTargets":["tel:+49*","sip:*@pbx.example"]`)
	for want, targets := range map[string][]string{
		"": {
			"+4930123", "tel:+49-30-123", "tel:+49301;ext=7", "tel:+49301;isub=7", "sip:100@pbx.example;user=phone", "sip:100@PBX.example",
			"sip:100@pbx.example:5061;transport=tls", "sip:100@pbx.example?X-Queue=sales",
		},
		TargetNotAllowed: {
			"+1900555", "001900555", "sip:+4930@evil.example", "sips:100@pbx.example", "sip:pbx.example", "sip:100@pbx.example.evil.example", "sip:1900%40evil.example@pbx.example",
			"sip:100%3Bmaddr=evil.example@pbx.example", "sip:100;phone-context=x@pbx.example", "sip:100;rn=+1900@pbx.example;user=phone", "sip:100;ext=1@pbx.example;ext=1",
			"tel:555;phone-context=+1900", "tel:555;phone-context=evil.example", "tel:+4930123;phone-context=evil.example", "sip:100?Route=x@pbx.example", "sip:a:b@pbx.example",
			"sip:pbx.example@evil.example", "sip:100@pbx.example@evil.example", "sip:100@evil.example?x=@pbx.example", "sip:100@pbx.example\r\nRoute: x",
		},
		ParameterNotAllowed: {
			"sip:100@pbx.example;ext=1", "tel:+49301;transport=tls", "tel:+49301;isub=1%3Btsp=evil.example", "sip:100@pbx.example;user=ip%3Fmaddr=evil",
			"sip:100@pbx.example;transport=udp%3Bmaddr=e", "sip:100@pbx.example;user=ip%40evil.example", "sip:100@pbx.example;maddr=evil.example", "sip:100@pbx.example;MADDR=evil.example",
			"sip:100@pbx.example;m%61ddr=evil.example", "sip:100@pbx.example;method=BYE", "tel:+4930123;tgrp=x;trunk-context=y", "tel:+4930123;rn=+1900555", "tel:+4930123;postd=pp1900555",
		},
		HeaderNotAllowed: {
			"sip:100@pbx.example?Route=sip:evil.example", "sip:100@pbx.example?ROUTE=sip:evil.example", "sip:100@pbx.example?%52oute=evil", "sip:100@pbx.example?Replaces=abc",
			"sip:100@pbx.example?X-A=1&Refer-To=evil", "sip:100@pbx.example?body=evil", "sip:100@pbx.example?Content-Type=text/plain", "sip:100@pbx.example?f=sip:boss",
		},
	} {
		for _, target := range targets {
			if got := p.Decide(Request{Command: transfer(target)}, wire.SourceBot, ""); got.Reason != want {
				t.Errorf("%q: reason %q, want %q", target, got.Reason, want)
			}
		}
	}
}

func TestHeadersNeedPermissionByProfileAndPlatform(t *testing.T) {
	const names = "Route Refer-To CONTACT To From Via Replaces Call-ID CSeq Content-Type maddr y Diversion"
	profile := transferPolicy(t, `,"allowedTargets":["*"],"allowedHeaders":["`+strings.Join(strings.Fields(names), `","`)+`"]`)
	strict := transferPolicy(t, `,"allowedTargets":["*"]`)
	both := profile.withHeaders(names)
	places := map[string]func(*wire.Transfer, wire.NameValue){
		"transferSipHeaders":     func(c *wire.Transfer, h wire.NameValue) { c.TransferSIPHeaders = []wire.NameValue{h} },
		"hangupSipHeaders":       func(c *wire.Transfer, h wire.NameValue) { c.HangupSIPHeaders = []wire.NameValue{h} },
		"transferSipQueryParams": func(c *wire.Transfer, h wire.NameValue) { c.TransferSIPQueryParams.List = []wire.NameValue{h} },
		"sipQueryParams":         func(c *wire.Transfer, h wire.NameValue) { c.SIPQueryParams.List = []wire.NameValue{h} },
		"target":                 func(c *wire.Transfer, h wire.NameValue) { c.Target = "sip:a@b?" + h.Name + "=x" },
	}
	for place, put := range places {
		decide := func(p *Policy, name string) string {
			c := transfer("+49301")
			put(c, wire.NameValue{Name: name, Value: "x"})
			return p.Decide(Request{Command: c}, wire.SourceBot, "").Reason
		}
		for name := range strings.FieldsSeq("Route route ROUTE Record-Route Refer-To r Contact m To t From f Via v Replaces Call-ID i CSeq Content-Type content-disposition Content-X c " +
			"P-Asserted-Identity Remote-Party-ID maddr y s e l History-Info P-Charge-Info P-Served-User Accept-Contact Request-Disposition Proxy-Require Require Diversion Referred-By b body method X x_a Xa Subject1 bot-trace-transaction-id") {
			for scope, p := range map[string]*Policy{"no one": strict, "the platform": strict.withHeaders(names + " " + name)} {
				testkit.Equal(t, fmt.Sprintf("%s %s, allowed by %s: reason", place, name, scope), decide(p, name), HeaderNotAllowed)
			}
		}
		for name := range strings.FieldsSeq("X-Queue x-queue User-to-User USER-TO-USER Subject Reason X-Route") {
			testkit.Equal(t, fmt.Sprintf("%s %s: reason", place, name), decide(strict, name), "")
		}
		for name := range strings.FieldsSeq("Route refer-to Contact to FROM via REPLACES call-id cseq content-type Y diversion") {
			testkit.Equal(t, fmt.Sprintf("%s %s, allowed by the profile alone: reason", place, name), decide(profile, name), HeaderNotAllowed)
			testkit.Equal(t, fmt.Sprintf("%s %s, allowed by profile and platform: reason", place, name), decide(both, name), "")
		}
		if place != "target" { // which has no escapes after parsing
			for name := range strings.FieldsSeq("%52oute %2552oute X-%41 X-(") {
				testkit.Equal(t, fmt.Sprintf("%s %s: reason", place, name), decide(both, name), HeaderNotAllowed)
			}
		}
	}
	for policy, want := range map[string]string{"": HeaderNotAllowed, `,"allowedHeaders":["Route"]`: ""} {
		p := compile(t, `{"commandSources":["bot"],"commandPolicies":[{"type":"hangup","enabled":true`+policy+`}]}`).withHeaders("Route")
		c := wire.NewCommand("hangup").(*wire.Hangup)
		c.Type, c.HangupSIPHeaders = "hangup", []wire.NameValue{{Name: "route", Value: "x"}}
		testkit.Equal(t, fmt.Sprintf("header Route of a hangup with policy %q: reason", policy), p.Decide(Request{Command: c}, wire.SourceBot, "").Reason, want)
	}
}

// A URI parameter such as maddr sends the call to another host than the one that
// the patterns match.
func TestURIParametersNeedPermissionByProfileAndPlatform(t *testing.T) {
	const target = "sip:1@pbx.example;maddr=203.0.113.9"
	var allowing wire.GatewayProfile
	testkit.Must(t, json.Unmarshal([]byte(`{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true,"allowedTargets":["*"],"allowedHeaders":["maddr"]}]}`), &allowing))
	configured := wire.GatewayProfile{CommandSources: allowing.CommandSources, CommandPolicies: []wire.CommandPolicy{{Type: "transfer", Enabled: true}},
		Actions: wire.Actions{Transfer: &wire.TransferDefaults{Target: target}}}
	for name, profile := range map[string]wire.GatewayProfile{"allowed by the profile": allowing, "configured": configured} {
		for headers, want := range map[string]string{"": ParameterNotAllowed, "Route": ParameterNotAllowed, "MADDR": ""} {
			platform, err := NewPlatformPolicy(nil, []string{"sip:*@pbx.example"}, strings.Fields(headers))
			testkit.Must(t, err)
			testkit.Equal(t, fmt.Sprintf("%s, platform allows %q: reason", name, headers), NewPolicy(profile, platform).Decide(Request{Command: transfer(target)}, "bot", "").Reason, want)
		}
	}
	strict := transferPolicy(t, `,"allowedTargets":["*"]`).withHeaders("maddr")
	testkit.Equal(t, "allowed by the platform alone: reason", strict.Decide(Request{Command: transfer(target)}, "bot", "").Reason, ParameterNotAllowed)
}

func TestForwardedTargetIsCanonical(t *testing.T) {
	p := transferPolicy(t, `,"allowedTargets":["*"]`)
	for in, want := range map[string]string{
		"+49 (30) 12-34":                    "tel:+49301234",
		"TEL:+49-30-1":                      "tel:+49301",
		"SIP:B%6Fb@PBX.example.:5061":       "sip:Bob@pbx.example:5061",
		"sip:a%40b@h;Transport=TLS?X-A=%31": "sip:a%40b@h;transport=TLS?X-A=1",
	} {
		testkit.Equal(t, fmt.Sprintf("%s is forwarded as", in), p.Decide(Request{Command: transfer(in)}, "bot", "").Command.(*wire.Transfer).Target, want)
	}
}

func TestCommandsAreDeniedByDefault(t *testing.T) {
	for _, spec := range Catalogue {
		c := wire.NewCommand(spec.Type)
		for _, f := range spec.Fields {
			if f.Required {
				fill(f.create(c))
			}
		}
		if tr, ok := c.(*wire.Transfer); ok {
			tr.Target = "+491"
		}
		policies := `"commandPolicies":[{"type":"` + spec.Type + `","enabled":true,"allowedTargets":["*"]}],"speech":{"stt":["s"],"tts":["s"]}`
		for name, tt := range map[string]struct{ profile, source, want string }{
			"empty profile":      {`{}`, "bot", SourceNotAllowed},
			"no sources":         {`{` + policies + `}`, "bot", SourceNotAllowed},
			"another source":     {`{"commandSources":["bot"],` + policies + `}`, "external_llm", SourceNotAllowed},
			"no policies":        {`{"commandSources":["bot"]}`, "bot", TypeNotAllowed},
			"another type":       {`{"commandSources":["bot"],"commandPolicies":[{"type":"x","enabled":true}]}`, "bot", TypeNotAllowed},
			"enabled missing":    {`{"commandSources":["bot"],"commandPolicies":[{"type":"` + spec.Type + `"}]}`, "bot", TypeDisabled},
			"one of two enabled": {`{"commandSources":["bot"],"commandPolicies":[{"type":"` + spec.Type + `","enabled":true},{"type":"` + spec.Type + `"}]}`, "bot", TypeDisabled},
			"allowed":            {`{"commandSources":["bot"],` + policies + `}`, "bot", ""},
		} {
			d := compile(t, tt.profile).Decide(Request{Command: c}, tt.source, "")
			testkit.Equal(t, fmt.Sprintf("%s with %s: reason", spec.Type, name), d.Reason, tt.want)
			if tt.want == "" && d.Apply != spec.Apply {
				t.Errorf("%s applies %q, want %q", spec.Type, d.Apply, spec.Apply)
			}
			testkit.Equal(t, fmt.Sprintf("%s has source", spec.Type), d.Command.Common().Source, tt.source)
		}
		platform, err := NewPlatformPolicy([]string{spec.Type}, nil, nil)
		testkit.Must(t, err)
		var profile wire.GatewayProfile
		testkit.Must(t, json.Unmarshal([]byte(`{"commandSources":["bot"],`+policies+`}`), &profile))
		if d := NewPolicy(profile, platform).Decide(Request{Command: c}, "bot", ""); d.Reason != PlatformDisabled {
			t.Errorf("%s, disabled by the platform: reason %q, want %q", spec.Type, d.Reason, PlatformDisabled)
		}
	}
}

func TestPlatformRestrictsTargets(t *testing.T) {
	profile := wire.GatewayProfile{
		CommandSources:  []string{"bot"},
		CommandPolicies: []wire.CommandPolicy{{Type: "transfer", Enabled: true, AllowedTargets: []string{"*"}}},
		Actions:         wire.Actions{Transfer: &wire.TransferDefaults{Target: "sip:desk@pbx.example"}},
	}
	platform, err := NewPlatformPolicy(nil, []string{"tel:+49*"}, nil)
	testkit.Must(t, err)
	p := NewPolicy(profile, platform)
	for target, want := range map[string]string{"+4930": "", "+1900": TargetNotAllowed, "sip:desk@pbx.example": TargetNotAllowed, "": TargetNotAllowed} {
		testkit.Equal(t, fmt.Sprintf("%q: reason", target), p.Decide(Request{Command: transfer(target)}, "bot", "").Reason, want)
	}
	bye := transfer("")
	bye.TransferMethod = sipBye
	if got := p.Decide(Request{Command: bye}, "bot", ""); got.Reason != "" || got.Command.(*wire.Transfer).Target != "" {
		t.Errorf("sip_bye without a target: reason %q, want none and no target", got.Reason)
	}
	if _, err := NewPlatformPolicy([]string{"fly"}, []string{"tel:+49*", "invalid"}, []string{"a b"}); !fault.Is(err, fault.Validation) {
		t.Errorf("invalid platform policy: %v, want %s", err, fault.Validation)
	}
	broken, _ := NewPlatformPolicy(nil, []string{"invalid"}, nil)
	testkit.Equal(t, "invalid target pattern: reason", NewPolicy(profile, broken).Decide(Request{Command: transfer("+49")}, "bot", "").Reason, TargetNotAllowed)
}

func TestDefaultsFillOnlyMissingFields(t *testing.T) {
	p := compile(t, `{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true},{"type":"hangup","enabled":true}],
		"actions":{"hangup":{"reason":"r","waitForSilence":true,"delayBotDisconnectMs":5},"transfer":{"target":"tel:+49-1","message":"m","canConfirm":true}}}`)
	no, ms := false, int64(9)
	complete := &wire.Hangup{CommonFields: wire.CommonFields{Type: "hangup"}, Reason: "given", WaitForSilence: &no, DelayBotDisconnectMs: &ms}
	got := p.Decide(Request{Command: complete}, "bot", "").Command.(*wire.Hangup)
	if got.Reason != "given" || *got.WaitForSilence || *got.DelayBotDisconnectMs != 9 {
		t.Errorf("a default replaced a field of the command: %+v", got)
	}
	got = p.Decide(Request{Command: wire.NewCommand("hangup")}, "bot", "").Command.(*wire.Hangup)
	if got.Reason != "r" || got.WaitForSilence == nil || !*got.WaitForSilence || got.DelayBotDisconnectMs == nil || *got.DelayBotDisconnectMs != 5 {
		t.Errorf("defaults are missing: %+v", got)
	}
	filled := p.Decide(Request{Command: transfer("")}, "bot", "").Command.(*wire.Transfer)
	if filled.Target != "tel:+491" || filled.Message != "m" || !*filled.CanConfirm {
		t.Errorf("defaults are missing: %+v", filled)
	}
	if d := p.Decide(Request{Command: transfer("+491")}, "bot", ""); d.Reason != "" {
		t.Errorf("configured target in another notation: reason %q, want none", d.Reason)
	}
	if d := p.Decide(Request{Command: transfer("+492")}, "bot", ""); d.Reason != TargetNotAllowed {
		t.Errorf("other target: reason %q, want %q", d.Reason, TargetNotAllowed)
	}
}

// Without allowedTargets, only the configured target is allowed.
func TestConfiguredTargetMustMatchExactly(t *testing.T) {
	p := compile(t, `{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true}],
		"actions":{"transfer":{"target":"sip:desk@pbx.example:5070;transport=tls?Route=sip:edge.example"}}}`).withHeaders("Route")
	for target, want := range map[string]string{
		"": "",
		"sip:desk@pbx.example:5070;transport=tls?Route=sip:edge.example":                    "",
		"SIP:d%65sk@PBX.example.:5070;Transport=tls?Route=sip:edge.example":                 "",
		"sips:desk@pbx.example:5070;transport=tls?Route=sip:edge.example":                   TargetNotAllowed,
		"sip:boss@pbx.example:5070;transport=tls?Route=sip:edge.example":                    TargetNotAllowed,
		"sip:desk@evil.example:5070;transport=tls?Route=sip:edge.example":                   TargetNotAllowed,
		"sip:desk@pbx.example:5071;transport=tls?Route=sip:edge.example":                    TargetNotAllowed,
		"sip:desk@pbx.example;transport=tls?Route=sip:edge.example":                         TargetNotAllowed,
		"sip:desk@pbx.example:5070;transport=tls;maddr=evil.example?Route=sip:edge.example": TargetNotAllowed,
		"sip:desk@pbx.example:5070;transport=tls?Route=sip:evil.example":                    TargetNotAllowed,
	} {
		testkit.Equal(t, fmt.Sprintf("%q: reason", target), p.Decide(Request{Command: transfer(target)}, wire.SourceBot, "").Reason, want)
	}
}

func TestTransactionIDIsAddedToSIPHeaders(t *testing.T) {
	p := compile(t, `{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true,"allowedTargets":["*"]},{"type":"hangup","enabled":true}]}`)
	full := slices.Repeat([]wire.NameValue{{Name: "X-A", Value: "1"}}, MaxSIPHeaders)
	transferCommand := transfer("+491")
	transferCommand.TransferSIPHeaders = full
	hangup := &wire.Hangup{CommonFields: wire.CommonFields{Type: "hangup"}}
	hangup.HangupSIPHeaders = full
	for range 2 { // Decide does not modify the command
		for name, got := range map[string][]wire.NameValue{
			"transfer": p.Decide(Request{Command: transferCommand}, "bot", "tx").Command.(*wire.Transfer).TransferSIPHeaders,
			"hangup":   p.Decide(Request{Command: hangup}, "bot", "tx").Command.(*wire.Hangup).HangupSIPHeaders,
		} {
			if len(got) != MaxSIPHeaders+1 || got[MaxSIPHeaders] != (wire.NameValue{Name: "bot-trace-transaction-id", Value: "tx"}) {
				t.Errorf("%s: %d headers, the last %v; want %d and the transaction ID", name, len(got), got[len(got)-1], MaxSIPHeaders+1)
			}
		}
	}
	allowed := transferPolicy(t, `,"allowedTargets":["*"],"allowedHeaders":["bot-trace-transaction-id"]`).withHeaders(wire.TransactionHeader)
	transferCommand.TransferSIPHeaders = []wire.NameValue{{Name: "Bot-Trace-Transaction-Id", Value: "forged"}}
	if got := allowed.Decide(Request{Command: transferCommand}, "bot", "tx").Command.(*wire.Transfer).TransferSIPHeaders; len(got) != 1 || got[0].Value != "tx" {
		t.Errorf("headers with a forged transaction ID: %v, want only the actual one", got)
	}
	if got := p.Decide(Request{Command: transfer("+491")}, "bot", "").Command.(*wire.Transfer).TransferSIPHeaders; got != nil {
		t.Errorf("headers without a transaction: %v, want none", got)
	}
}

func TestSessionParamsOfTransferCreateNoCommands(t *testing.T) {
	var issues fault.Issues
	var e ControlEvent
	testkit.Must(t, json.Unmarshal([]byte(`{"name":"transfer","value":{"sessionParams":{"sttProvider":"x","sttRetries":99}}}`), &e))
	got, _ := e.Parse("", &issues)
	if len(got) != 1 || got[0].Common().Type != "transfer" {
		t.Errorf("commands %v, want only the transfer", got)
	}
	if len(issues.List()) != 1 {
		t.Errorf("issues %v, want one for sttRetries", issues.List())
	}
}

func TestSymbolsInSessionParamsAreNotRestricted(t *testing.T) {
	var issues fault.Issues
	var e ControlEvent
	testkit.Must(t, json.Unmarshal([]byte(`{"name":"config","value":{"sessionParams":{"dtmfDigits":"0-9","dtmfCollectSubmitDigit":"x"}}}`), &e))
	if got, _ := e.Parse("", &issues); len(got) != 1 || issues.Err() != nil {
		t.Errorf("commands %v, %v; want one and no issue", got, issues.Err())
	}
}

func TestNullCountsAsMissingField(t *testing.T) {
	p := compile(t, `{"commandSources":["bot"],"commandPolicies":[{"type":"play_audio","enabled":true},{"type":"emit_event","enabled":true}]}`)
	var issues fault.Issues
	requests := ParseActions(jsontext.Value(`[{"type":"play_audio","media":null},{"type":"emit_event","event":"e","payload":null}]`), "", &issues)
	testkit.Must(t, issues.Err())
	if d := p.Decide(requests[0], "bot", ""); d.Reason != FieldMissing {
		t.Errorf("media null: reason %q, want %q", d.Reason, FieldMissing)
	}
	if payload := requests[1].Command.(*wire.EmitEvent).Payload; payload != nil {
		t.Errorf("payload %s, want none", payload)
	}
}
