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
	s.one("SIP/2.0 200").expect(t, map[string]string{"bot-trace-transaction-id": transaction})
	testkit.Equal(t, "channel of the question", q.ChannelID, id)
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
	cancel := strings.Replace(request("CANCEL", "sip:bot@[remote_ip]:[remote_port]", "", "1", empty), "[branch]", "[branch-3]", 1)
	s := l.call(before, `<recv response="180"/>`, cancel, `<recv response="200"/>`, `<recv response="487"/>`)
	s.wait()
	l.awaitIdle()
}

func TestHoldAndResume(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	s := l.callWith(e, invite, cue, reinvite("2", "sendonly"), cue, reinvite("3", "sendrecv"), receiveBye)
	answered := func(times int) func() bool {
		return func() bool {
			return len(s.received("SIP/2.0 200 OK")) == times && len(s.logged("sent", "ACK ")) >= times
		}
	}
	testkit.Until(t, "audio", func() bool { return e.received() > 0 })
	s.cue(1)
	testkit.Until(t, "the call is on hold", answered(2))
	testkit.Until(t, "the audio stops", func() bool {
		before := e.received()
		time.Sleep(200 * time.Millisecond) // ten frames
		return e.received() == before
	})
	s.cue(1)
	testkit.Until(t, "the call is resumed", answered(3))
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

// An INVITE without SDP gets an offer. The ACK has the answer.
func TestInviteWithoutOffer(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	l.bot.answer("9", event("", "hangup", `{}`))
	offerless := request("INVITE", "sip:bot@[remote_ip]:[remote_port]", "", "1", empty)
	s := l.callWith(e, offerless, `<recv response="100" optional="true"/><recv response="180" optional="true"/><recv response="200" rrs="true"/>`, ack("1", sdp("8 96", "")), receiveBye)
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
	testkit.Must(t, err)
	defer conn.Close()
	options := fmt.Sprintf("OPTIONS sip:bot@%s SIP/2.0\r\nVia: SIP/2.0/UDP %s;rport;branch=z9hG4bKprobe\r\nFrom: <sip:p@h>;tag=p\r\nTo: <sip:bot@h>\r\nCall-ID: probe\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n",
		address, conn.LocalAddr())
	buffer := make([]byte, 2000)
	for _, attempt := range []struct {
		raw  string
		wait time.Duration
	}{{strings.NewReplacer("\n", "\r\n", "HERE", conn.LocalAddr().String()).Replace(datagram), 2 * time.Second}, {options, time.Minute}} {
		_, err := conn.Write([]byte(attempt.raw))
		testkit.Must(t, err, conn.SetReadDeadline(time.Now().Add(attempt.wait)))
		n, err := conn.Read(buffer)
		line, _, _ := strings.Cut(string(buffer[:n]), "\r\n")
		switch {
		case err == nil && !strings.Contains(string(buffer[:n]), "Call-ID: probe"):
			return line
		case err != nil && attempt.raw == options:
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
		testkit.Equal(t, c.name, exchange(t, l.address, raw), c.want)
	}
	l.call(invite, sendBye).wait() // the phone still works
	l.awaitIdle()
}

func TestFloodOfOptions(t *testing.T) {
	t.Parallel()
	l := newLine(t, nil)
	options := strings.Replace(request("OPTIONS", "sip:bot@[remote_ip]:[remote_port]", "", "1", empty), ` retrans="500"`, "", 1)
	flood := startSIPp(t, []string{options + `<recv response="200" rtd="true"/>`}, "-m", "3000", "-r", "1000", "-l", "2000", "-nr", l.address)
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
	testkit.Equal(t, "ended calls", strings.Count(l.output(), " state=ended "), 50)
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
	s.one("BYE").expect(t, map[string]string{"Reason": `Q.850;cause=102;text="no audio"`})
	l.awaitMessage(l.channel(), "media_timeout")
	l.awaitIdle()
}

func TestOutboundCall(t *testing.T) {
	t.Parallel()
	l := newLine(t, nil)
	target := startSIPp(t, []string{answer, receiveBye}, "-m", "1")
	resp, err := http.Post(l.control+"/calls", "application/json", strings.NewReader(fmt.Sprintf(`{"to":"sip:alice@127.0.0.1:%d"}`, target.port)))
	testkit.Must(t, err)
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
