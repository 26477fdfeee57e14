package command

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestTargetsAreNormalized(t *testing.T) {
	for in, want := range map[string]Target{
		"+4930123":                                 {Scheme: "tel", User: "+4930123"},
		"+49 (30) 12-34.5":                         {Scheme: "tel", User: "+493012345"},
		"0049301":                                  {Scheme: "tel", User: "0049301"},
		"*31#0301":                                 {Scheme: "tel", User: "*31#0301"},
		"TEL:+49-30-1":                             {Scheme: "tel", User: "+49301"},
		"tel:+49301;ext=5":                         {Scheme: "tel", User: "+49301", Params: []wire.NameValue{{Name: "ext", Value: "5"}}},
		"sip:Bob@PBX.Example":                      {Scheme: "sip", User: "Bob", Host: "pbx.example"},
		"SIPS:bob@pbx.example.:5061":               {Scheme: "sips", User: "bob", Host: "pbx.example", Port: "5061"},
		"sip:%62ob@pbx.example":                    {Scheme: "sip", User: "bob", Host: "pbx.example"},
		"sip:a%40b@pbx.example":                    {Scheme: "sip", User: "a%40b", Host: "pbx.example"},
		"sip:a%20b%2fc@pbx.example":                {Scheme: "sip", User: "a%20b%2Fc", Host: "pbx.example"},
		"sip:a?b#c@pbx.example":                    {Scheme: "sip", User: "a%3Fb%23c", Host: "pbx.example"},
		"tel:7042;Phone-Context=PBX.Example.":      {Scheme: "tel", User: "7042", Params: []wire.NameValue{{Name: "phone-context", Value: "pbx.example"}}},
		"tel:863-1a#;ext=1-2;phone-context=+1-914": {Scheme: "tel", User: "8631A#", Params: []wire.NameValue{{Name: "ext", Value: "12"}, {Name: "phone-context", Value: "+1914"}}},
		"sip:bob@10.0.0.1":                         {Scheme: "sip", User: "bob", Host: "10.0.0.1"},
		"sip:bob@[2001:DB8:0::1]:5060":             {Scheme: "sip", User: "bob", Host: "[2001:db8::1]", Port: "5060"},
		"tel:" + strings.Repeat("4", maxTarget-4):  {Scheme: "tel", User: strings.Repeat("4", maxTarget-4)},
		"sip:pbx.example":                          {Scheme: "sip", Host: "pbx.example"},
		"sip:b@h;Transport=TLS?X-A=%31":            {Scheme: "sip", User: "b", Host: "h", Params: []wire.NameValue{{Name: "transport", Value: "TLS"}}, Headers: []wire.NameValue{{Name: "X-A", Value: "1"}}},
	} {
		if got, err := ParseTarget(in); err != nil || !got.equal(want) {
			t.Errorf("%s: %+v, %v; want %+v", in, got, err, want)
		}
		if again, err := ParseTarget(want.String()); err != nil || !again.equal(want) {
			t.Errorf("%s, written as %s, is parsed as %+v, %v; want %+v", in, want, again, err, want)
		}
	}
}

// The examples are those of RFC 3261 and RFC 3966.
func TestTargetsOfStandardsAreUnchanged(t *testing.T) {
	for _, s := range []string{
		"sip:alice@atlanta.com", "sips:1212@gateway.com", "sip:alice@192.0.2.4", "sip:alice;day=tuesday@atlanta.com", "sip:alice;x=a%3Bb;;@atlanta.com",
		"sip:atlanta.com;method=REGISTER?to=alice%40atlanta.com", "sips:alice@atlanta.com?subject=project%20x&priority=urgent",
		"sip:carol@chicago.com;newparam=5;security=on", "sip:alice%20smith@atlanta.com", "sip:+1-212-555-1212@gateway.com;user=phone", "sip:1_a.b~(c!d)&e'f+g$/h,i=j*@example.com",
		"sip:0AZaz9@atlanta.com;lr?x=%5E%7B",
		"tel:+12015550123", "tel:7042;phone-context=example.com", "tel:8631234;phone-context=+1914555", "tel:+4930123;ext=7;isub=a/b",
	} {
		if got, err := ParseTarget(s); err != nil || got.String() != s {
			t.Errorf("%s: %s, %v; want it unchanged", s, got, err)
		}
	}
}

func TestPasswordInTargetIsRejectedWithoutQuotingIt(t *testing.T) {
	for _, s := range []string{"sip:alice:hunter2@atlanta.com", "sips:a:@h", "sip::hunter2@h", "sip:a:hunter2@b@h"} {
		var issues fault.Issues
		ParseActions(fmt.Appendf(nil, `{"type":"transfer","target":%q}`, s), "", &issues)
		if got := fmt.Sprint(issues.List()); !strings.Contains(got, "/target") || !strings.Contains(got, "passwords are not accepted") || strings.Contains(got, "hunter2") {
			t.Errorf("%s: issues %s, want one at /target about passwords, without the password", s, got)
		}
	}
}

func TestAmbiguousTargetsAreInvalid(t *testing.T) {
	for _, in := range []string{
		"", " ", "+", "*", "tel:", "tel:+", "sip:", "sips:", "bob", "bob@pbx.example", "http://x", "mailto:a@b", "javascript:1", "h323:a@b", "sip", "sip:@", "sip:a@",
		"+49\r\n", "tel:+49\n", "sip:a\r\nb@h", "sip:a%0d%0ab@h", "sip:a%00@h", "sip:a@h?X=%0d", "sip:a@h;x=%0A", // line breaks, escaped or not
		"+٤٩٣٠", "tel:+４９", "sip:%EF%BC%94@h", "sip:ü@h", "sip:a@hö.example", // not ASCII
		"sip:a:secret@h", "sip::@h", "sip:@h", "sip:a@evil.example@pbx.example", "sip:pbx.example@a@b", // user-info
		"sip:a@h?Route=<sip:x@y>", "sip:a@h;x=a@b", // a second @
		"sip:a%2540b@h", "sip:a%25@h", "sip:a%7F@h", "sip:a%4@h", "sip:a%zz@h", "sip:a%@h", // double and invalid escapes
		"sip:a@h%2eevil", "sip:a@127.1", "sip:a@0x7f000001", "sip:a@2130706433", "sip:a@010.0.0.1", "sip:a@1.2.3.4.5", "sip:a@-h", "sip:a@h..", "sip:a@.h", "sip:a@h_é",
		"sip:a@[::1", "sip:a@[::1]x", "sip:a@[fe80::1%eth0]", "sip:a@[1.2.3.4]", "sip:a@::1", "sip:a@[::1]:",
		"sip:a@h:", "sip:a@h:0", "sip:a@h:65536", "sip:a@h:5o60", "sip:a@h:+5060", "sip:a@h:05060",
		"sip:a@h;", "sip:a@h;=1", "sip:a@h?", "sip:a@h?=1", "sip:a@h?a b=1", "sip:a b@h", "sip: a@h", " sip:a@h", "sip:a@h ",
		"<sip:a@h>", "sip:<a>@h", `"Bob" <sip:a@h>`, "sip:a@h,sip:b@i", "sip:a\\@h", "tel:+49?x=1", "tel:+4*9", "tel:+49@h", "tel:1;", "tel:%2B49", "49x", "x49", "4+9",
		"tel:+4930;phone-context=pbx.example", "tel:1;phone-context", "tel:1;phone-context=0", "tel:1;phone-context=1.2.3.4", "tel:1;phone-context=a;PHONE-context=b", "1;phone-context=a", "tel:1a", "tel:1 2", "tel:1;ext=a", "sip:a@h;x=1;X=2",
		"+" + strings.Repeat("4", maxTarget),
		"sip:" + strings.Repeat("a", 64) + "@" + strings.Repeat("h", 64), "sip:a@" + strings.Repeat("h.", 130) + "h",
	} {
		if got, err := ParseTarget(in); err == nil {
			t.Errorf("%q parsed as %+v, want an error", in, got)
		}
	}
}

func TestPatternMatches(t *testing.T) {
	for pattern, targets := range map[string]struct{ matching, others []string }{
		"*":                               {[]string{"+1900", "tel:1", "sip:a@evil.example", "sips:evil.example"}, nil},
		"tel:+49*":                        {[]string{"+4930", "tel:+49", "TEL:+49-1", "+49 1"}, []string{"+1900", "0049", "+4", "49", "sip:+4930@pbx.example", "sip:tel:+49@x"}},
		"+49*":                            {[]string{"tel:+4930"}, []string{"+50"}},
		"110":                             {[]string{"110", "tel:1-1-0"}, []string{"1100", "0110"}},
		"tel:+49*00":                      {[]string{"+4900", "+49100"}, []string{"+49001"}},
		"sip:*@pbx.example":               {[]string{"sip:a@pbx.example", "SIP:a@PBX.EXAMPLE.", "sip:a@pbx.example:5070"}, []string{"sips:a@pbx.example", "sip:a@evil.pbx.example", "sip:a@pbx.example.evil", "sip:pbx.example", "sip:a%40evil.example@pbx.example", "sip:a%3Bmaddr=x@pbx.example", "sip:a%3Fx@pbx.example", "sip:a;x=y@pbx.example", "sip:a@evil.example;phone-context=pbx.example", "sip:a?x@pbx.example", "tel:+49", "sip:a@pbxxexample", "sip:a&b@pbx.example", "sip:a%26b@pbx.example", "sip:a,b@pbx.example", "sip:a%2Cb@pbx.example"}},
		"sip:a&*,*@pbx.example":           {[]string{"sip:a&b,c@pbx.example", "sip:a%26,@pbx.example"}, []string{"sip:a&b&c,d@pbx.example", "sip:a&b,c,d@pbx.example", "sip:ab,c@pbx.example"}},
		"sip:100*@pbx.example":            {[]string{"sip:1001@pbx.example", "sip:100@pbx.example"}, []string{"sip:200@pbx.example", "sip:100%40evil.example@pbx.example"}},
		"sip:*@*.pbx.example":             {[]string{"sip:a@x.pbx.example", "sip:a@x.y.pbx.example"}, []string{"sip:a@pbx.example", "sip:a@pbx.example.evil"}},
		"sip:bob@10.0.0.1:5070":           {[]string{"sip:bob@10.0.0.1:5070"}, []string{"sip:bob@10.0.0.1", "sip:bob@10.0.0.1:5060", "sip:Bob@10.0.0.1:5070"}},
		"sip:*@[2001:DB8::1]":             {[]string{"sip:a@[2001:db8:0:0::1]"}, []string{"sip:a@[2001:db8::2]"}},
		"sip:*;day=*@pbx.example":         {[]string{"sip:a;day=tuesday@pbx.example", "sip:;day=@pbx.example"}, []string{"sip:a@pbx.example", "sip:a;day=b;c=d@pbx.example", "sip:a;rn=1;day=b@pbx.example", "sip:a%3Bday=b@pbx.example", "sip:a;day=b%3Bc@pbx.example", "sip:a;day=b%40c@pbx.example"}},
		"sip:a#*/b@pbx.example":           {[]string{"sip:a#/b@pbx.example", "sip:a%23%20%2Fx/b@pbx.example"}, []string{"sip:a#/bc@pbx.example"}},
		"tel:7*":                          {[]string{"tel:7042", "tel:7042;ext=1"}, []string{"tel:7042;phone-context=+1900", "tel:7042;phone-context=evil.example", "tel:7042;ext=1;phone-context=+1900"}},
		"tel:7*;phone-context=*":          {[]string{"tel:7042;phone-context=+49"}, []string{"tel:7042"}},
		"tel:7*;phone-context=+49*30":     {[]string{"tel:7042;phone-context=+49-30", "tel:7;phone-context=+49130;ext=1"}, []string{"tel:7042", "tel:7042;phone-context=+4930x", "tel:7042;phone-context=+1", "tel:8;phone-context=+4930"}},
		"7*;Phone-Context=*.PBX.example.": {[]string{"tel:70;phone-context=a.pbx.example"}, []string{"tel:70;phone-context=pbx.example", "tel:70;phone-context=a.pbx.example.evil"}},
		"sip:*":                           {[]string{"sip:pattern.example"}, []string{"sip:a@pattern.example"}},
		"sips:desk@pbx.example.":          {[]string{"sips:desk@pbx.example"}, []string{"sip:desk@pbx.example"}},
	} {
		p, err := ParsePattern(pattern)
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		for want, list := range map[bool][]string{true: targets.matching, false: targets.others} {
			for _, s := range list {
				target, err := ParseTarget(s)
				if err == nil && p.Matches(target) != want || err != nil && want {
					t.Errorf("%s matches %s: %v, want %v (%v)", pattern, s, !want, want, err)
				}
			}
		}
	}
}

func TestInvalidPatternsAreRejected(t *testing.T) {
	for _, s := range []string{
		"", " ", "tel:", "sip:", "http:*", "*@pbx.example", "sip:*@", "sip:@x", "sip:a@b@c", "sip:*@x;y=z", "sip:*@x?y", "sip:%61@x", "sip:a:b@x", "sip:*@x:*", "sip:*@x:0", "sip:*@[::*]", "sip: *@x", "*:*", "tel:+49x", "bob", "sip:*@x y", "sip:*@-x", "tel:+49*\n",
		"sip:a\tb@x", "tel:1*;ext=a", "tel:1*;ext=2", "tel:1*;phone-context=", "tel:1*;phone-context", "tel:+1*;phone-context=a", "tel:1;phone-context=a;x=y", "tel:1;phone-context=a;phone-context=b", "tel:1;phone-context=+a", "sip:a;b=c", "sip:a b@x", "sip:a?b@x", "sip:" + strings.Repeat("*", maxPattern),
	} {
		if _, err := ParsePattern(s); err == nil {
			t.Errorf("accepted invalid pattern %q", s)
		}
	}
}

// Regular expressions took too long for patterns with many wildcards.
func TestGlobMatchesLikeRegularExpressions(t *testing.T) {
	const alphabet = "ab*;@?&,"
	random := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		b := make([]byte, random.IntN(n))
		for i := range b {
			b[i] = alphabet[random.IntN(random.IntN(len(alphabet))+1)] // mostly the first ones
		}
		return string(b)
	}
	matches := 0
	for range 20_000 {
		pattern, text := word(8), word(10)
		want := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, "[^@;?&,]*") + "$").MatchString(text)
		if want {
			matches++
		}
		if got := glob(pattern, text); got != want {
			t.Fatalf("%q matches %q: %v, want %v", pattern, text, got, want)
		}
	}
	if matches < 500 {
		t.Errorf("%d patterns matched, want more for a useful comparison", matches)
	}
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"tel:+49-1;ext=2", "sip:a%40b@h:1;c=d?e=f&g", "sips:[::1]", "+49 (1)", "sip:*@h"} {
		f.Add(s)
	}
	pattern, _ := ParsePattern("sip:*@pbx.example")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := ParsePattern(s); err == nil {
			p.Matches(Target{Scheme: "sip", User: s, Host: s, plainUser: s})
		}
		target, err := ParseTarget(s)
		if err != nil {
			return
		}
		if again, err := ParseTarget(target.String()); len(target.String()) <= maxTarget && (err != nil || !again.equal(target)) {
			t.Errorf("%q, parsed as %+v, is written as %q: %v", s, target, target, err)
		}
		if strings.ContainsAny(s, "\r\n\x00") {
			t.Errorf("accepted %q with a control character", s)
		}
		if pattern.Matches(target) && (target.Host != "pbx.example" || strings.ContainsAny(target.plainUser, "@;?&,")) {
			t.Errorf("%q, parsed as %+v, matches sip:*@pbx.example", s, target)
		}
	})
}

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

// A misspelled target must not become a transfer to the default one.
func TestMisspelledTargetIsMissing(t *testing.T) {
	p := compile(t, `{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true},{"type":"hangup","enabled":true}],"actions":{"transfer":{"target":"+491"}}}`)
	bye := transfer("")
	bye.TransferMethod = sipBye
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
		testkit.Equal(t, fmt.Sprintf("%s: reason", tt.name), p.Decide(Request{Command: tt.command, misspelledTarget: tt.misspelled}, "bot", "").Reason, tt.want)
	}
	testkit.Equal(t, "without a default: reason", transferPolicy(t, `,"allowedTargets":["*"]`).Decide(Request{Command: transfer("")}, "bot", "").Reason, TargetMissing)
}

func TestMisspelledTargetIsRecognized(t *testing.T) {
	for members, want := range map[string]bool{
		`"to":"Anna"`:               true,
		`"phone_number":"Anna"`:     true,
		`"transferTo":"Anna"`:       true,
		`"newTarget":"Anna"`:        true,
		`"finalDestination":"Anna"`: true,
		`"note":"tel:+4930"`:        true,
		`"options":{"to":"Anna"}`:   true,
		`"to":"Anna","note":"Anna"`: true,
		`"a":{"to":"Anna","b":"c"}`: true,
		`"to":null`:                 false,
		`"note":"4930123"`:          false, // perhaps another number
		`"note":"Anna: call + ask"`: false,
		`"options":{"note":"Anna"}`: false,
	} {
		var issues fault.Issues
		requests := ParseActions(jsontext.Value(`{"type":"transfer",`+members+`}`), "", &issues)
		testkit.NoError(t, members, issues.Err())
		testkit.Equal(t, members, requests[0].misspelledTarget, want)
	}
}

func TestRoutingPoolIsForPhoneNumbers(t *testing.T) {
	p := transferPolicy(t, `,"allowedTargets":["*"]`)
	for target, want := range map[string]string{"+491": "pool", "sip:a@pbx.example": ""} {
		c := transfer(target)
		c.TransferRoutingPool = "pool"
		testkit.Equal(t, fmt.Sprintf("%s: pool", target), p.Decide(Request{Command: c}, "bot", "").Command.(*wire.Transfer).TransferRoutingPool, want)
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

func TestPlatformPolicyReportsEveryValue(t *testing.T) {
	for want, lists := range map[string][3][]string{
		"":            {{"hangup"}, {"tel:+49*"}, {"X-A"}},
		"/disabled/1": {{"hangup", "fly"}, nil, nil},
		"/targets/0":  {nil, []string{"invalid"}, nil},
		"/headers/1":  {nil, nil, []string{"X-A", "a b"}},
	} {
		_, err := NewPlatformPolicy(lists[0], lists[1], lists[2])
		testkit.Equal(t, fmt.Sprintf("%q: issues at", lists), strings.Join(testkit.IssuePaths(err), " "), want)
	}
	// Without targets, the platform restricts none.
	platform, err := NewPlatformPolicy(nil, nil, nil)
	testkit.Must(t, err)
	p := NewPolicy(transferPolicy(t, `,"allowedTargets":["*"]`).profile, platform)
	testkit.Equal(t, "reason", p.Decide(Request{Command: transfer("+1900")}, "bot", "").Reason, "")
}
