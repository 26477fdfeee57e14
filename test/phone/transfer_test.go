package phone

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// transferWith lets the bot transfer the caller when 1 is pressed. The steps follow the
// INVITE of the caller.
func transferWith(t *testing.T, l *line, value string, steps ...string) (*sipp, *ear) {
	t.Helper()
	e := newEar(t)
	l.bot.answer("1", event("I will transfer you.", "transfer", value))
	s := l.callWith(e, append([]string{invite}, steps...)...)
	l.channel()
	e.press(t, "1")
	return s, e
}

// expect checks headers of a message.
func (m message) expect(t *testing.T, want map[string]string) {
	t.Helper()
	for name, value := range want {
		testkit.Equal(t, name, m.header(name), value)
	}
}

// done waits until the history says that a transfer is done.
func (l *line) awaitTransfer(method, state string) {
	l.t.Helper()
	l.awaitMessage(l.channel(), fmt.Sprintf(`"event":"transfer","method":%q,"state":%q`, method, state))
}

const headers = `"transferSipHeaders":[{"name":"X-Case","value":"4711"},{"name":"User-to-User","value":"56a3;encoding=hex"}],
	"transferReferredByURL":"sip:bot@example.com","transferSipQueryParams":{"X-Skill":"billing & tax"}`

// Requests to the caller end the call.
func TestTransferByRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method, value string
		steps         []string
		refer, bye    map[string]string // headers
		progress      string            // in the history
	}{
		"blind REFER": {"sip_refer", `"transferTarget":"sip:agent@pbx.example","transferReferOutcomeMode":"blind",` + headers, []string{receiveRefer, receiveBye}, map[string]string{
			"Refer-To": "<sip:agent@pbx.example?X-Skill=billing%20%26%20tax>", "Referred-By": "<sip:bot@example.com>", "Refer-Sub": "false", "Supported": "norefersub",
			"X-Case": "4711", "User-to-User": "56a3;encoding=hex", "bot-trace-transaction-id": transaction,
		}, map[string]string{"bot-trace-transaction-id": transaction}, ""},
		"REFER with outcome": {"sip_refer", `"transferTarget":"sip:agent@pbx.example","transferReferOutcomeMode":"notify","transferNotifications":true,"transferNotificationsHangupMS":100`,
			[]string{receiveRefer, notify("2", "100 Trying"), notify("3", "180 Ringing"), notify("4", "200 OK"), receiveBye},
			map[string]string{"Refer-To": "<sip:agent@pbx.example>", "Refer-Sub": ""}, nil, `"state":"progress","status":180`},
		"BYE": {"sip_bye", `"handoverReason":"to the queue","hangupSipHeaders":[{"name":"X-Queue","value":"7"}],"transferSipHeaders":[{"name":"X-Case","value":"4711"}]`, []string{receiveBye},
			nil, map[string]string{"X-Queue": "7", "X-Case": "4711", "Reason": `Q.850;cause=16;text="to the queue"`, "bot-trace-transaction-id": transaction}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t, nil)
			s, _ := transferWith(t, l, fmt.Sprintf(`{"transferMethod":%q,%s}`, c.method, c.value), c.steps...)
			s.wait()
			if c.refer != nil {
				s.one("REFER").expect(t, c.refer)
			}
			s.one("BYE").expect(t, c.bye)
			l.awaitMessage(l.channel(), c.progress)
			l.awaitTransfer(c.method, "done")
			l.awaitIdle()
		})
	}
}

// A caller whose transfer fails stays with the bot.
func TestFailedTransferReturnsToBot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		members        string
		target, caller []string // steps; nil: there is no target
		want           []string // in the history
	}{
		"REFER": {`"transferReferOutcomeMode":"notify"`, nil, []string{receiveRefer, notify("2", "486 Busy Here")}, []string{`"reason":"the target answered 486","state":"failed"`, "The transfer has failed."}},
		"busy target": {`"transferMethod":"sip_invite"`, []string{decline("486 Busy Here", ";tag=busy", empty)}, nil,
			[]string{`"state":"failed","status":486`}},
		"caller that rejects a direct transfer": {`"transferMethod":"sip_invite_reinvite_p2p"`, []string{answer, receiveBye}, []string{rejected}, []string{"caller and target cannot talk directly"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, host := newLine(t, nil), "pbx.example"
			l.bot.answer("2", event("Goodbye.", "hangup", `{}`))
			var target *sipp
			if c.target != nil {
				target = startSIPp(t, c.target, "-m", "1")
				host = fmt.Sprintf("127.0.0.1:%d", target.port)
			}
			s, e := transferWith(t, l, fmt.Sprintf(`{"transferTarget":"sip:agent@%s",%s}`, host, c.members), append(c.caller, receiveBye)...)
			l.awaitMessage(l.channel(), c.want...)
			if target != nil {
				target.wait()
			}
			e.press(t, "2")
			s.wait()
			l.awaitIdle()
		})
	}
}

// A number goes to the trunk of the routing pool.
func TestTransferToNumber(t *testing.T) {
	t.Parallel()
	l := newLine(t, harness.Env{"PHONE_TRUNKS": "sip:192.0.2.9:5070,eu=sip:192.0.2.10"})
	l.bot.answer("2", event("Again.", "transfer", `{"transferTarget":"+4930123","transferRoutingPool":"mars"}`))
	l.bot.answer("3", event("Again.", "transfer", `{"transferTarget":"tel:+4930123456","transferRoutingPool":"eu"}`))
	e := newEar(t)
	s := l.callWith(e, invite, receiveRefer, receiveBye)
	l.channel()
	e.press(t, "2")
	l.awaitMessage(l.channel(), `no trunk for the routing pool \"mars\"`)
	e.press(t, "3")
	s.wait()
	s.one("REFER").expect(t, map[string]string{"Refer-To": "<sip:+4930123456@192.0.2.10;user=phone>"})
	l.awaitIdle()
	if strings.Contains(l.output(), "4930123456") || strings.Contains(l.history(l.channel()), "4930123456") {
		t.Error("a number is not masked")
	}
}

func TestTransferByReferWithReplaces(t *testing.T) {
	t.Parallel()
	l := newLine(t, nil)
	target := startSIPp(t, []string{answer, receiveBye}, "-m", "1")
	s, _ := transferWith(t, l, fmt.Sprintf(`{"transferTarget":"sip:agent@127.0.0.1:%d","transferMethod":"sip_refer_replace","transferReferOutcomeMode":"notify",%s}`, target.port, headers),
		receiveRefer, notify("2", "200 OK"), receiveBye)
	s.wait()
	target.wait()
	consultation := target.one("INVITE")
	consultation.expect(t, map[string]string{"X-Case": "4711", "Referred-By": "<sip:bot@example.com>", "bot-trace-transaction-id": transaction})
	to, _, _ := strings.Cut(strings.SplitAfter(target.one("ACK").header("To"), "tag=")[1], ";")
	_, from, _ := strings.Cut(consultation.header("From"), "tag=")
	replaces := url.QueryEscape(consultation.header("Call-ID") + ";to-tag=" + to + ";from-tag=" + from)
	s.one("REFER").expect(t, map[string]string{
		"Refer-To": fmt.Sprintf("<sip:agent@127.0.0.1:%d?X-Skill=billing%%20%%26%%20tax&Replaces=%s>", target.port, replaces), "X-Case": "4711",
	})
	l.awaitIdle()
}

// sip_invite and sip_invite_bridge connect both sides through the phone.
func TestTransferByInvite(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"sip_invite", "sip_invite_bridge"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			l, far := newLine(t, nil), newEar(t)
			target := startSIPp(t, []string{far.use(answer), receiveBye}, "-m", "1")
			s, near := transferWith(t, l, fmt.Sprintf(`{"transferTarget":"sip:agent@127.0.0.1:%d","transferMethod":%q,%s}`, target.port, method, headers), cue, sendBye)
			l.awaitTransfer(method, "done")
			target.one("INVITE").expect(t, map[string]string{
				"X-Case": "4711", "User-to-User": "56a3;encoding=hex", "X-Skill": "billing & tax", "Referred-By": "<sip:bot@example.com>", "bot-trace-transaction-id": transaction,
			})
			near.speak(t, time.Second)
			testkit.Until(t, "the target hears the caller", func() bool { _, audio := far.heard(); return len(audio) > 4000 })
			if strings.Contains(l.history(l.channel()), `"state":"ended"`) {
				t.Error("the call has ended")
			}
			s.cue(1)
			s.wait()
			target.wait() // the BYE reaches the target at its contact
			if want := fmt.Sprintf("BYE sip:alice@127.0.0.1:%d SIP/2.0", target.port); target.one("BYE").line != want {
				t.Errorf("%q, want %q", target.one("BYE").line, want)
			}
			l.awaitIdle()
		})
	}
}

var (
	// reinvited accepts a re-INVITE, and rejected does not.
	reinvited = `<recv request="INVITE"/>` + respond("200 OK", "", sdp("8 96", "")) + `<recv request="ACK"/>`
	rejected  = decline("488 Not Acceptable Here", "", empty)
)

// The audio of a direct transfer does not pass through the phone.
func TestTransferDirectly(t *testing.T) {
	t.Parallel()
	l, far := newLine(t, nil), newEar(t)
	target := startSIPp(t, []string{far.use(answer), receiveBye}, "-m", "1")
	s, near := transferWith(t, l, fmt.Sprintf(`{"transferTarget":"sip:agent@127.0.0.1:%d","transferMethod":"sip_invite_reinvite_p2p"}`, target.port), reinvited, cue, sendBye)
	l.awaitTransfer("sip_invite_reinvite_p2p", "done")
	if body := target.one("INVITE").body; !strings.Contains(body, near.use("m=audio [media_port] RTP/AVP 8 96")) {
		t.Errorf("the target is offered %q, want the caller's stream", body)
	}
	if body := s.one("INVITE").body; !strings.Contains(body, far.use("m=audio [media_port] RTP/AVP 8 101")) {
		t.Errorf("the caller is offered %q, want the target's stream", body)
	}
	s.cue(1)
	s.wait()
	target.wait()
	l.awaitIdle()
}

// A caller that answers the re-INVITE with another port is offered to the target again. If
// the target rejects, the caller returns to the bot.
func TestDirectTransferToAnotherPort(t *testing.T) {
	t.Parallel()
	for name, accepted := range map[string]bool{"accepted": true, "rejected": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, moved, far := newLine(t, nil), newEar(t), newEar(t)
			l.bot.answer("2", event("Goodbye.", "hangup", `{}`))
			again, then := reinvited, []string{moved.use(reinvited), cue, sendBye}
			if !accepted {
				again, then = rejected, []string{moved.use(reinvited), reinvited, receiveBye}
			}
			target := startSIPp(t, []string{far.use(answer), far.use(again), receiveBye}, "-m", "1")
			s, near := transferWith(t, l, fmt.Sprintf(`{"transferTarget":"sip:agent@127.0.0.1:%d","transferMethod":"sip_invite_reinvite_p2p"}`, target.port), then...)
			if accepted {
				l.awaitTransfer("sip_invite_reinvite_p2p", "done")
				s.cue(1)
			} else {
				l.awaitMessage(l.channel(), "caller and target cannot talk directly")
				near.press(t, "2")
			}
			s.wait()
			target.wait()
			invites := target.received("INVITE")
			if body := invites[len(invites)-1].body; !strings.Contains(body, moved.use("m=audio [media_port] RTP/AVP 8 96")) {
				t.Errorf("the target is offered %q, want the caller's new stream", body)
			}
			l.awaitIdle()
		})
	}
}

// A trunk that asks for credentials gets them.
func TestTransferToTrunkWithPassword(t *testing.T) {
	t.Parallel()
	challenge := decline("407 Proxy Authentication Required", ";tag=challenge", `Proxy-Authenticate: Digest realm="trunk", nonce="4711", algorithm=MD5`+"\n"+empty)
	target := startSIPp(t, []string{challenge, answer, receiveBye}, "-m", "1")
	l := newLine(t, harness.Env{
		"PHONE_TRUNKS": fmt.Sprintf("sip:127.0.0.1:%d", target.port), "PHONE_TRUNK_USER": "alice", "PHONE_TRUNK_PASSWORD": "secret",
	})
	s, _ := transferWith(t, l, `{"transferTarget":"+4930123456","transferMethod":"sip_invite"}`, receiveBye)
	l.awaitTransfer("sip_invite", "done")
	invites := target.received("INVITE")
	last := invites[len(invites)-1]
	if got := last.header("Proxy-Authorization"); !strings.Contains(got, `username="alice"`) || !strings.Contains(got, `nonce="4711"`) {
		t.Errorf("Proxy-Authorization %q", got)
	}
	if want := fmt.Sprintf("INVITE sip:+4930123456@127.0.0.1:%d;user=phone SIP/2.0", target.port); last.line != want {
		t.Errorf("%q, want %q", last.line, want)
	}
	testkit.Must(t, l.process.Process.Signal(interrupt))
	s.wait()
	target.wait()
}
