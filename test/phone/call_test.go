package phone

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"telapi/internal/app"
	"telapi/internal/redisstore"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestCallerHangsUp(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	l.bot.answer("1", text("Thank you."))
	s := l.callWith(e, invite, cue, sendBye)
	id := l.channel()
	e.press(t, "1")
	q := l.bot.awaitAsked("1")
	s.cue(1)
	s.wait()
	l.awaitIdle()
	l.awaitMessage(id, `"state":"ended"`, "caller_hangup")
	if got := s.one("SIP/2.0 200").header("bot-trace-transaction-id"); got != "7f0c1e52-6f0a-4a5e-9d5c-0f6f3f2f9a10" {
		t.Errorf("transaction ID %q, want that of the INVITE", got)
	}
	if q.ChannelID != id {
		t.Errorf("asked for channel %s, want %s", q.ChannelID, id)
	}
	if strings.Contains(l.output(), "123456789") {
		t.Error("the log contains the number of the caller")
	}
}

// Entries are committed during the call, not only at its end.
func TestEntriesAreCommitted(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	l.bot.answer("1", text("Thank you."))
	l.bot.answer("9", event("", "hangup", `{}`))
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	e.press(t, "1")
	l.awaitMessage(id, "Thank you.")
	testkit.Until(t, "the entries are committed", func() bool { c := l.info(id); return c.State == "open" && c.BacklogEntries == 0 })
	e.press(t, "9")
	s.wait()
	l.awaitIdle()
	if c := l.info(id); c.ID != "" {
		t.Errorf("the channel %+v is still listed, want all entries committed", c)
	}
}

// info returns the state of a channel, or nothing if it has ended and all entries are
// committed.
func (l *line) info(id string) redisstore.ChannelInfo {
	l.t.Helper()
	list, err := app.ListChannels(l.t.Context(), harness.Config(l.t, l.service), io.Discard)
	testkit.Must(l.t, err)
	for _, c := range list {
		if c.ID == id {
			return c
		}
	}
	return redisstore.ChannelInfo{}
}

// A caller cancels while the phone waits for the service.
func TestCallerCancels(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer service.Close()
	defer close(release)
	l := newLine(t, harness.Env{"TELAPI_URL": service.URL})
	before, _, _ := strings.Cut(invite, `<recv response="180"`)
	s := l.call(before, `<recv response="180"/>`, `<send retrans="500"><![CDATA[
CANCEL sip:bot@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch-3]
From: "Alice" <sip:+4930123456789@[local_ip]:[local_port]>;tag=[pid]SIPpTag[call_number]
To: <sip:bot@[remote_ip]:[remote_port]>
Call-ID: [call_id]
CSeq: 1 CANCEL
Max-Forwards: 70
Content-Length: 0

]]></send>`, `<recv response="200"/>`, `<recv response="487"/>`)
	s.wait()
	l.awaitIdle()
}

// reinvite returns the steps of a re-INVITE with another direction of the audio.
func reinvite(cseq, direction string) string {
	step, _, _ := strings.Cut(invite, "<recv")
	step = strings.NewReplacer("CSeq: 1 INVITE", "CSeq: "+cseq+" INVITE", "a=fmtp:96 0-15", "a="+direction,
		"INVITE sip:bot@[remote_ip]:[remote_port]", "INVITE [next_url]", "To: <sip:bot@[remote_ip]:[remote_port]>", "To: <sip:bot@[remote_ip]:[remote_port]>[peer_tag_param]").Replace(step)
	return step + `<recv response="100" optional="true"/><recv response="200"/>` + strings.ReplaceAll(ack, "CSeq: 1 ACK", "CSeq: "+cseq+" ACK")
}

func TestHoldAndResume(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	s := l.callWith(e, invite, reinvite("2", "sendonly"), pause(time.Second), reinvite("3", "sendrecv"), receiveBye)
	testkit.Until(t, "the call is resumed", func() bool { return len(s.received("SIP/2.0 200 OK")) == 3 })
	for i, want := range []string{"a=sendrecv", "a=recvonly", "a=sendrecv"} {
		if body := s.received("SIP/2.0 200 OK")[i].body; !strings.Contains(body, want) {
			t.Errorf("answer %d has the SDP %q, want %s", i, body, want)
		}
	}
	before := e.received()
	testkit.Until(t, "the audio goes on", func() bool { return e.received() > before })
	testkit.Must(t, l.process.Process.Signal(interrupt))
	s.wait()
}

func TestNoAudioDuringHold(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	s := l.callWith(e, invite, pause(3*time.Second), reinvite("2", "sendonly"), receiveBye)
	testkit.Until(t, "the call is on hold", func() bool { return len(s.received("SIP/2.0 200 OK")) == 2 })
	testkit.Until(t, "the audio stops", func() bool {
		before := e.received()
		time.Sleep(200 * time.Millisecond) // ten frames
		return e.received() == before
	})
	testkit.Must(t, l.process.Process.Signal(interrupt))
	s.wait()
}

// An INVITE without SDP gets an offer. The ACK has the answer.
func TestInviteWithoutOffer(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	l.bot.answer("9", event("", "hangup", `{}`))
	before, sdp, _ := strings.Cut(invite, "Content-Type: application/sdp")
	sdp, _, _ = strings.Cut(sdp, "]]>")
	answered := strings.Replace(ack, "Content-Length: 0\n\n", "Content-Type: application/sdp"+strings.TrimSuffix(sdp, "\n")+"\n", 1)
	s := l.callWith(e, before+"Content-Length: 0\n\n]]></send>", `<recv response="100" optional="true"/><recv response="180" optional="true"/><recv response="200" rrs="true"/>`, answered, receiveBye)
	e.press(t, "9") // waits for audio
	s.wait()
	if body := s.one("SIP/2.0 200").body; !strings.Contains(body, "RTP/AVP 8 0 101") {
		t.Errorf("the offer is %q, want G.711 and telephone events", body)
	}
	l.awaitIdle()
}

func TestMuLaw(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	s := l.callWith(e, strings.ReplaceAll(invite, "CODEC", "0 8"), cue, sendBye)
	testkit.Until(t, "audio", func() bool { return e.received() > 0 })
	s.cue(1)
	s.wait()
	if body := s.one("SIP/2.0 200").body; !strings.Contains(body, "RTP/AVP 0 96") || !strings.Contains(body, "PCMU/8000") {
		t.Errorf("the answer is %q, want the first codec of the offer", body)
	}
	if e.mu.Lock(); e.mulaw == 0 || e.mulaw != e.frames {
		t.Errorf("%d of %d frames have µ-law, want all", e.mulaw, e.frames)
	}
	e.mu.Unlock()
}

// exchange sends a datagram and returns the first line of the response, or "" if there is
// none while a later OPTIONS is answered.
func exchange(t *testing.T, address, datagram string) string {
	t.Helper()
	conn, err := net.Dial("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	options := fmt.Sprintf("OPTIONS sip:bot@%s SIP/2.0\r\nVia: SIP/2.0/UDP %s;rport;branch=z9hG4bKprobe\r\nFrom: <sip:p@h>;tag=p\r\nTo: <sip:bot@h>\r\nCall-ID: probe\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n",
		address, conn.LocalAddr())
	for _, raw := range []string{strings.ReplaceAll(strings.ReplaceAll(datagram, "\n", "\r\n"), "HERE", conn.LocalAddr().String()), options} {
		if _, err := conn.Write([]byte(raw)); err != nil {
			t.Fatal(err)
		}
		if raw != options {
			_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		} else {
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		}
		buffer := make([]byte, 2000)
		n, err := conn.Read(buffer)
		if line, _, _ := strings.Cut(string(buffer[:n]), "\r\n"); err == nil && !strings.Contains(string(buffer[:n]), "Call-ID: probe") {
			return line
		}
		if raw == options && err != nil {
			t.Fatalf("no response to OPTIONS: %v", err)
		}
	}
	return ""
}

func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	l := newLine(t, nil)
	head := "INVITE sip:bot@h SIP/2.0\nVia: SIP/2.0/UDP HERE;rport;branch=z9hG4bK%d\nMax-Forwards: 70\n"
	dialog := "From: <sip:a@h>;tag=a\nTo: <sip:bot@h>\nCall-ID: c%d\nCSeq: 1 INVITE\n"
	contact, sdp := "Contact: <sip:a@HERE>\n", "v=0\no=a 1 1 IN IP4 127.0.0.1\ns=-\nc=IN IP4 127.0.0.1\nt=0 0\n"
	with := func(more, body string) string {
		return more + fmt.Sprintf("Content-Type: application/sdp\nContent-Length: %d\n\n%s", len(strings.ReplaceAll(body, "\n", "\r\n")), body)
	}
	for n, c := range []struct{ name, rest, want string }{
		{"garbage", "\x00\x01\x02 no SIP", ""},
		{"no Contact", head + dialog + "Content-Length: 0\n\n", "SIP/2.0 400 Bad Request"},
		{"no tag", head + strings.Replace(dialog, ";tag=a", "", 1) + contact + "Content-Length: 0\n\n", "SIP/2.0 400 Bad Request"},
		{"SDP without streams", head + dialog + with(contact, sdp), "SIP/2.0 488 Not Acceptable Here"},
		{"SDP without codec", head + dialog + with(contact, sdp+"m=audio 4000 RTP/AVP 111\n"), "SIP/2.0 488 Not Acceptable Here"},
		{"host name in SDP", head + dialog + with(contact, strings.Replace(sdp, "c=IN IP4 127.0.0.1", "c=IN IP4 internal", 1)+"m=audio 4000 RTP/AVP 8\n"), "SIP/2.0 488 Not Acceptable Here"},
		{"text as SDP", head + dialog + with(contact, "hello\n"), "SIP/2.0 488 Not Acceptable Here"},
		{"extension", head + dialog + contact + "Require: 100rel\nContent-Length: 0\n\n", "SIP/2.0 420 Bad Extension"},
		{"unknown dialog", head + strings.Replace(dialog, "To: <sip:bot@h>", "To: <sip:bot@h>;tag=x", 1) + contact + "Content-Length: 0\n\n", "SIP/2.0 481 Call/Transaction Does Not Exist"},
		{"REGISTER", strings.ReplaceAll(head+dialog, "INVITE", "REGISTER") + contact + "Content-Length: 0\n\n", "SIP/2.0 405 Method Not Allowed"},
	} {
		raw := strings.ReplaceAll(strings.ReplaceAll(c.rest, "z9hG4bK%d", fmt.Sprintf("z9hG4bK%d", n)), "c%d", fmt.Sprintf("c%d", n))
		if got := exchange(t, l.address, raw); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	l.call(invite, sendBye).wait() // the phone still works
	l.awaitIdle()
}

func TestFloodOfOptions(t *testing.T) {
	t.Parallel()
	l := newLine(t, nil)
	flood := startSIPp(t, []string{`<send><![CDATA[
OPTIONS sip:bot@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:flood@[local_ip]:[local_port]>;tag=[call_number]
To: <sip:bot@[remote_ip]:[remote_port]>
Call-ID: [call_id]
CSeq: 1 OPTIONS
Max-Forwards: 70
Content-Length: 0

]]></send><recv response="200" rtd="true"/>`}, "-m", "3000", "-r", "1000", "-l", "2000", "-nr", l.address)
	s := l.call(invite, pause(500*time.Millisecond), sendBye)
	s.wait()
	select { // a lost datagram fails the scenario: this is no failure of the phone
	case <-flood.done:
	case <-time.After(3 * time.Minute):
		t.Fatal("the flood does not end")
	}
	if got := len(flood.received("SIP/2.0 200 OK")); got < 1000 {
		t.Errorf("%d responses, want most of 3000", got)
	}
	l.call(invite, sendBye).wait()
	l.awaitIdle()
}

func TestFiftyCallsAtOnce(t *testing.T) {
	t.Parallel()
	l := newLine(t, nil)
	l.bot.answer("*", event("Goodbye.", "hangup", `{}`))
	before := l.files()
	s := startSIPp(t, []string{invite, cue, press("7"), receiveBye}, "-m", "50", "-l", "50", "-r", "50", l.address)
	testkit.Until(t, "the phone has 50 calls", func() bool { return l.calls() == 50 })
	s.cue(50)
	s.wait()
	l.awaitIdle()
	if got := strings.Count(l.output(), " state=ended "); got != 50 {
		t.Errorf("%d calls have ended, want 50", got)
	}
	if bad := strings.Count(l.output(), "level=WARN"); bad > 0 {
		t.Errorf("%d warnings", bad)
	}
	testkit.Until(t, "the RTP ports are closed", func() bool { return l.files() < before+10 })
}

// files returns the number of files and sockets that the phone has open.
func (l *line) files() int {
	l.t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", l.process.Process.Pid))
	testkit.Must(l.t, err)
	return len(open)
}

func TestTooManyCalls(t *testing.T) {
	t.Parallel()
	l := newLine(t, harness.Env{"PHONE_MAX_CALLS": "1"})
	first := l.call(invite, receiveBye)
	l.channel()
	before, _, _ := strings.Cut(invite, "<recv")
	l.call(before, `<recv response="503"/>`).wait()
	testkit.Must(t, l.process.Process.Signal(interrupt))
	first.wait()
	if reason := first.one("BYE").header("Reason"); !strings.Contains(reason, "shutdown") {
		t.Errorf("Reason %q, want shutdown", reason)
	}
}

func TestVanishedCaller(t *testing.T) {
	t.Parallel()
	l := newLine(t, harness.Env{"PHONE_MEDIA_TIMEOUT": "1s"})
	s := l.call(invite, receiveBye) // SIPp sends no audio
	s.wait()
	if reason := s.one("BYE").header("Reason"); reason != `Q.850;cause=102;text="no audio"` {
		t.Errorf("Reason %q", reason)
	}
	l.awaitMessage(l.channel(), "media_timeout")
	l.awaitIdle()
}

func TestOutboundCall(t *testing.T) {
	t.Parallel()
	l := newLine(t, nil)
	target := startSIPp(t, []string{answer, receiveBye}, "-m", "1")
	resp, err := http.Post(l.control+"/calls", "application/json", strings.NewReader(fmt.Sprintf(`{"to":"sip:alice@127.0.0.1:%d"}`, target.port)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var placed struct{ Channel string }
	if err := json.NewDecoder(resp.Body).Decode(&placed); err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("%d %v", resp.StatusCode, err)
	}
	l.awaitMessage(placed.Channel, "I repeat what you say")
	if got := target.one("INVITE").header("bot-trace-transaction-id"); len(got) != 36 {
		t.Errorf("transaction ID %q, want a UUID", got)
	}
	testkit.Must(t, l.process.Process.Signal(interrupt))
	target.wait()
}
