package phone

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"telapi/test/testkit"
)

// The steps of a SIPp scenario. Each one is XML. A step that receives has the timeout of
// the whole run.
var (
	invite = request("INVITE", "sip:bot@[remote_ip]:[remote_port]", "", "1", "bot-trace-transaction-id: "+transaction+"\n"+sdp("CODEC 96", "a=fmtp:96 0-15")) +
		`<recv response="100" optional="true"/><recv response="180" optional="true"/><recv response="200" rrs="true"/>` + ack("1", empty)
	sendBye      = request("BYE", "[next_url]", "[peer_tag_param]", "9", empty) + `<recv response="200"/>`
	receiveBye   = `<recv request="BYE"/>` + respond("200 OK", "", empty)
	receiveRefer = `<recv request="REFER"/>` + respond("202 Accepted", "", empty)
	// answer is the other side: it answers a call.
	answer = `<recv request="INVITE"/>` + respond("180 Ringing", targetTag, empty) +
		strings.Replace(respond("200 OK", targetTag, sdp("8 101", "")), "<send>", `<send retrans="500">`, 1) + `<recv request="ACK"/>`
)

const (
	transaction = "7f0c1e52-6f0a-4a5e-9d5c-0f6f3f2f9a10"
	targetTag   = ";tag=[pid]Target[call_number]"
	// empty ends a message without a body.
	empty = "Content-Length: 0\n\n"
	// cue waits until the test calls cue of the scenario.
	cue = `<recv request="MESSAGE"/>`
)

// sdp returns the end of a message with a description of the audio. The last format is that of
// telephone events.
func sdp(formats, attribute string) string {
	return `Content-Type: application/sdp
Content-Length: [len]

v=0
o=alice 1 1 IN IP4 [local_ip]
s=-
c=IN IP4 [media_ip]
t=0 0
m=audio [media_port] RTP/AVP ` + formats + `
a=rtpmap:` + formats[strings.LastIndex(formats, " ")+1:] + ` telephone-event/8000
` + attribute + "\n"
}

// request sends a request of the caller. toParams follow the address of the phone.
func request(method, uri, toParams, cseq, rest string) string {
	return `<send retrans="500"><![CDATA[
` + method + ` ` + uri + ` SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: "Alice" <sip:+4930123456789@[local_ip]:[local_port]>;tag=[pid]SIPpTag[call_number]
To: <sip:bot@[remote_ip]:[remote_port]>` + toParams + `
Call-ID: [call_id]
CSeq: ` + cseq + ` ` + method + `
Contact: <sip:alice@[local_ip]:[local_port]>
Max-Forwards: 70
` + rest + `]]></send>`
}

// ack acknowledges the response to an INVITE. It is not repeated.
func ack(cseq, rest string) string {
	return strings.Replace(request("ACK", "[next_url]", "[peer_tag_param]", cseq, rest), ` retrans="500"`, "", 1)
}

// reinvite changes the direction of the audio.
func reinvite(cseq, direction string) string {
	return request("INVITE", "[next_url]", "[peer_tag_param]", cseq, sdp("CODEC 96", "a="+direction)) +
		`<recv response="100" optional="true"/><recv response="200"/>` + ack(cseq, empty)
}

// respond responds to the last request. toParams follow the address of the receiver.
func respond(status, toParams, rest string) string {
	return `<send><![CDATA[
SIP/2.0 ` + status + `
[last_Via:]
[last_From:]
[last_To:]` + toParams + `
[last_Call-ID:]
[last_CSeq:]
Contact: <sip:alice@[local_ip]:[local_port]>
` + rest + `]]></send>`
}

// decline rejects an INVITE.
func decline(status, toParams, rest string) string {
	return `<recv request="INVITE"/>` + respond(status, toParams, rest) + `<recv request="ACK"/>`
}

// notify reports the outcome of a REFER.
func notify(cseq, status string) string {
	return request("NOTIFY", "sip:bot@[remote_ip]:[remote_port]", "[peer_tag_param]", cseq, `Event: refer
Subscription-State: active;expires=60
Content-Type: message/sipfrag
Content-Length: [len]

SIP/2.0 `+status+`
`) + `<recv response="200"/>`
}

// press sends digits as telephone events.
func press(digits string) string {
	return `<nop><action><exec play_dtmf="` + digits + `"/></action></nop>`
}

func pause(d time.Duration) string {
	return fmt.Sprintf(`<pause milliseconds="%d"/>`, d.Milliseconds())
}

// sipp is a running scenario.
type sipp struct {
	t        *testing.T
	port     int
	messages string // file with all messages
	done     chan error
	out      *testkit.Buffer
}

// mediaPort returns an even port at which SIPp can receive audio. It also opens the next but one.
func mediaPort(t *testing.T) int {
	t.Helper()
	for {
		port := testkit.FreePort(t)
		if port%2 == 0 && free(port) && free(port+2) {
			return port
		}
	}
}

// free reports whether a UDP port can be opened.
func free(port int) bool {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err == nil {
		_ = conn.Close() // only a check
	}
	return err == nil
}

// startSIPp runs a scenario for one call. Options are those of sipp.
func startSIPp(t *testing.T, steps []string, options ...string) *sipp {
	t.Helper()
	path, err := exec.LookPath("sipp")
	if err != nil {
		t.Fatal("sipp is missing: install the package sip-tester")
	}
	dir := t.TempDir()
	s := &sipp{t: t, port: testkit.FreePort(t), messages: filepath.Join(dir, "messages"), done: make(chan error, 1), out: &testkit.Buffer{}}
	scenario := `<?xml version="1.0" encoding="ISO-8859-1" ?><!DOCTYPE scenario SYSTEM "sipp.dtd"><scenario name="test">` +
		strings.ReplaceAll(strings.Join(steps, "\n"), "CODEC", "8") + `</scenario>`
	file := filepath.Join(dir, "scenario.xml")
	testkit.Must(t, os.WriteFile(file, []byte(scenario), 0o600))
	cmd := exec.Command(path, append([]string{
		"-sf", file, "-i", "127.0.0.1", "-p", fmt.Sprint(s.port), "-mp", fmt.Sprint(mediaPort(t)), "-nostdin", "-timeout", "120s", "-timeout_error",
		"-trace_msg", "-message_file", s.messages, "-trace_err", "-error_file", filepath.Join(dir, "errors"),
	}, options...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, s.out, s.out
	testkit.Must(t, cmd.Start())
	go func() { s.done <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if t.Failed() {
			errors, _ := os.ReadFile(filepath.Join(dir, "errors"))
			t.Logf("messages of SIPp:\n%s\nerrors:\n%s", s.log(), errors)
		}
	})
	return s
}

// call calls the phone once.
func (l *line) call(steps ...string) *sipp {
	l.t.Helper()
	return startSIPp(l.t, steps, "-m", "1", l.address)
}

// callWith calls the phone once. The audio goes to the ear.
func (l *line) callWith(e *ear, steps ...string) *sipp {
	l.t.Helper()
	for i := range steps {
		steps[i] = e.use(steps[i])
	}
	return l.call(steps...)
}

// wait waits until the scenario has succeeded.
func (s *sipp) wait() {
	s.t.Helper()
	select {
	case err := <-s.done:
		if err != nil {
			s.t.Fatalf("SIPp: %v", err)
		}
	case <-time.After(3 * time.Minute):
		s.t.Fatal("SIPp does not end")
	}
}

// cue waits for a number of calls of the scenario and lets them continue after the step cue.
// They must be at that step, or their ACK the last step before it.
func (s *sipp) cue(calls int) {
	s.t.Helper()
	answers := map[string]message{} // by call
	testkit.Until(s.t, "the calls are answered", func() bool {
		for _, m := range s.received("SIP/2.0 200") {
			answers[m.header("Call-ID")] = m
		}
		return len(answers) == calls && len(s.logged("sent", "ACK ")) >= calls
	})
	conn, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", s.port))
	testkit.Must(s.t, err)
	defer conn.Close()
	for id, m := range answers { // as if from the phone, whose tag the next request needs
		_, err := fmt.Fprintf(conn, "MESSAGE sip:alice@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP %s;branch=z9hG4bKcue\r\nFrom: %s\r\nTo: %s\r\nCall-ID: %s\r\nCSeq: 1 MESSAGE\r\nContent-Length: 0\r\n\r\n",
			conn.LocalAddr(), m.header("To"), m.header("From"), id)
		testkit.Must(s.t, err)
	}
}

func (s *sipp) log() string {
	raw, _ := os.ReadFile(s.messages)
	return string(raw)
}

// message is a SIP message.
type message struct {
	line    string
	headers map[string][]string // by name in lower case
	body    string
}

func (m message) header(name string) string {
	return strings.Join(m.headers[strings.ToLower(name)], ", ")
}

// received returns the messages that SIPp has received, which start with a text.
func (s *sipp) received(start string) []message { return s.logged("received", start) }

// logged returns the messages in one direction that start with a text.
func (s *sipp) logged(direction, start string) (found []message) {
	for _, block := range strings.Split(s.log(), "-----------------------------------------------") {
		head, raw, ok := strings.Cut(block, ":\n\n")
		if !ok || !strings.Contains(head, direction) || !strings.HasPrefix(raw, start) {
			continue
		}
		top, body, _ := strings.Cut(strings.ReplaceAll(raw, "\r\n", "\n"), "\n\n")
		lines := strings.Split(top, "\n")
		m := message{line: lines[0], headers: map[string][]string{}, body: body}
		for _, line := range lines[1:] {
			name, value, _ := strings.Cut(line, ":")
			name = strings.ToLower(strings.TrimSpace(name))
			m.headers[name] = append(m.headers[name], strings.TrimSpace(value))
		}
		found = append(found, m)
	}
	return found
}

// one returns the only message that starts with a text. Repetitions count once.
func (s *sipp) one(start string) message {
	s.t.Helper()
	found := s.received(start)
	if len(found) == 0 {
		s.t.Fatalf("no %s was received", start)
	}
	return found[0]
}
