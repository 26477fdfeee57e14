package demo_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/demo"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func ignoreAll() demo.PeerOptions {
	return demo.PeerOptions{Candidate: func(any) {}, Audio: func([]byte) {}, Digit: func(string) {}, Connected: func() {}, Ended: func(bool) {}}
}

func TestAnswerSelectsALawAndDigits(t *testing.T) {
	p, sdp, err := demo.AnswerOffer(harness.Offer(t), ignoreAll())
	testkit.Must(t, err)
	defer p.Close()
	testkit.Contains(t, "answer", sdp, "a=rtpmap:8 PCMA/8000", "a=rtpmap:126 telephone-event/8000", "a=sendrecv")
	if strings.Contains(sdp, "opus") || strings.Count(sdp, "a=rtpmap") != 2 {
		t.Errorf("the answer has other codecs: %s", sdp)
	}
}

func TestAnswerRejectsInvalidOffers(t *testing.T) {
	valid := harness.Offer(t)
	for name, tt := range map[string]struct{ sdp, want string }{
		"empty":            {"", "no audio with A-law"},
		"text":             {"hello", "invalid SDP"},
		"too long":         {valid + strings.Repeat("a=x\r\n", 8<<10), "more than 32768"},
		"no audio":         {strings.ReplaceAll(valid, "m=audio", "m=video"), "no audio with A-law"},
		"no A-law":         {strings.ReplaceAll(valid, " 8 ", " "), "no audio with A-law"},
		"no ICE":           {strings.ReplaceAll(valid, "a=ice-ufrag", "a=x"), "invalid SDP"},
		"no fingerprint":   {strings.ReplaceAll(valid, "a=fingerprint", "a=x"), "invalid SDP"},
		"half an offer":    {valid[:len(valid)/2], ""},
		"without mid":      {strings.ReplaceAll(valid, "a=mid", "a=x"), ""},
		"invalid rtpmap":   {strings.ReplaceAll(valid, "PCMA/8000", "PCMA/x"), ""},
		"invalid encoding": {strings.ReplaceAll(valid, "a=", "\xff="), "invalid SDP"},
	} {
		p, _, err := demo.AnswerOffer(tt.sdp, ignoreAll())
		if err == nil {
			p.Close()
		}
		if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		}
		if err != nil && strings.ContainsAny(err.Error(), "\r\n") {
			t.Errorf("%s: the error has several lines: %q", name, err)
		}
	}
}

func TestAnswerRejectsInvalidICEServers(t *testing.T) {
	o := ignoreAll()
	o.ICEServers = []wire.ICEServer{{URLs: []string{"http://turn.example"}}}
	if _, _, err := demo.AnswerOffer(harness.Offer(t), o); err == nil || !strings.Contains(err.Error(), "invalid ICE servers") {
		t.Errorf("error %v, want \"invalid ICE servers\"", err)
	}
}

func TestCandidatesAreCheckedAndLimited(t *testing.T) {
	p, _, err := demo.AnswerOffer(harness.Offer(t), ignoreAll())
	testkit.Must(t, err)
	defer p.Close()
	const host = `{"candidate":"candidate:1 1 UDP 2122252543 127.0.0.1 50000 typ host","sdpMid":"0","sdpMLineIndex":0}`
	for raw, valid := range map[string]bool{
		`null`: true, `{"candidate":""}`: true, host: true,
		`{"candidate":"candidate:1 1 UDP 2122252543 0a1b2c3d.local 50000 typ host","sdpMid":"0"}`: true, // mDNS: ignored
		`{"candidate":"hello"}`: false, `[]`: false, `"x"`: false, `{"candidate":7}`: false, ``: false,
	} {
		if err := p.AddCandidate(jsontext.Value(raw)); (err == nil) != valid {
			t.Errorf("candidate %s: error %v, want valid: %v", raw, err, valid)
		}
	}
	for range 64 {
		err = p.AddCandidate(jsontext.Value(host))
	}
	if err == nil || !strings.Contains(err.Error(), "more than 64") {
		t.Errorf("error %v, want a limit of 64 candidates", err)
	}
}

func FuzzAnswer(f *testing.F) {
	valid := harness.Offer(f)
	f.Add(valid)
	f.Add(strings.ReplaceAll(valid, "\r\n", "\n"))
	f.Add("v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\nm=audio 9 RTP/AVP 8\r\n")
	f.Fuzz(func(_ *testing.T, sdp string) {
		if p, _, err := demo.AnswerOffer(sdp, ignoreAll()); err == nil {
			p.Close()
		}
	})
}
