package media

import (
	"bytes"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/pion/rtp"
)

const offer = "v=0\r\no=a 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n" +
	"m=video 4002 RTP/AVP 31\r\nm=audio 4000 RTP/AVP 111 0 8 101\r\na=rtpmap:101 telephone-event/8000\r\na=sendonly\r\n"

func TestAnswerSelectsCodecAndRejectsOtherStreams(t *testing.T) {
	d, err := ParseSDP([]byte(offer))
	if err != nil || d.Codec != pcmu || d.Event != 101 || d.Direction != "sendonly" || d.Remote.String() != "192.0.2.1:4000" {
		t.Fatalf("%+v, %v", d, err)
	}
	answer := string(d.Answer(netip.MustParseAddrPort("192.0.2.2:5000")))
	for _, line := range []string{"m=video 0 RTP/AVP 31\r\n", "m=audio 5000 RTP/AVP 0 101\r\n", "a=recvonly\r\n", "c=IN IP4 192.0.2.2\r\n"} {
		if !strings.Contains(answer, line) {
			t.Errorf("the answer has no %q:\n%s", line, answer)
		}
	}
}

func TestInvalidSDPIsRejected(t *testing.T) {
	for name, body := range map[string]string{
		"empty": "", "text": "hello", "no stream": "v=0\r\nc=IN IP4 192.0.2.1\r\n", "no address": "v=0\r\nm=audio 4000 RTP/AVP 8\r\n",
		"host name": "v=0\r\nc=IN IP4 host\r\nm=audio 4000 RTP/AVP 8\r\n", "port": "v=0\r\nc=IN IP4 192.0.2.1\r\nm=audio 99999 RTP/AVP 8\r\n",
		"multicast": "v=0\r\nc=IN IP4 224.0.0.1\r\nm=audio 4000 RTP/AVP 8\r\n", "SRTP": "v=0\r\nc=IN IP4 192.0.2.1\r\nm=audio 4000 RTP/SAVP 8\r\n",
		"stream without format": "v=0\r\nm=audio 4000 RTP/AVP\r\n", "too long": "v=0\r\n" + strings.Repeat("a=x\r\n", maxSDP),
	} {
		if d, err := ParseSDP([]byte(body)); err == nil {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func FuzzParseSDP(f *testing.F) {
	f.Add([]byte(offer))
	f.Add([]byte("v=0\nm=audio 1 RTP/AVP 8\nc=IN IP6 ::1\na=rtpmap:8"))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := ParseSDP(body)
		if err != nil {
			return
		}
		if answered, err := ParseSDP(d.Answer(netip.MustParseAddrPort("192.0.2.2:5000"))); err != nil || answered.Codec != d.Codec || answered.Event != d.Event {
			t.Errorf("the answer to %q is not valid: %+v %v", body, answered, err)
		}
	})
}

// packet returns a packet whose audio is its number.
func packet(n uint32) *rtp.Packet {
	return &rtp.Packet{Header: rtp.Header{PayloadType: pcma, Timestamp: n * FrameBytes}, Payload: bytes.Repeat([]byte{byte(n & 0x7F)}, FrameBytes)}
}

func TestJitterBufferOrdersPackets(t *testing.T) {
	const lost = silence
	const last = math.MaxUint32 / FrameBytes // the timestamp of the next one has wrapped
	for name, c := range map[string]struct {
		arrive []uint32
		want   []byte
	}{
		"in order":   {[]uint32{1025, 1026, 1027, 1028}, []byte{1, 2, 3, 4}},
		"reordered":  {[]uint32{1026, 1025, 1028, 1027}, []byte{1, 2, 3, 4}},
		"duplicates": {[]uint32{1025, 1025, 1026, 1026}, []byte{1, 2}},
		"lost":       {[]uint32{1025, 1026, 1028, 1029}, []byte{1, 2, lost, 4, 5}},
		"wrapped":    {[]uint32{1025, last, last + 1}, []byte{last & 0x7F, (last + 1) & 0x7F}},
		"jump":       {[]uint32{1025, 1026, 5121, 5122}, []byte{1, 2}},
		"jump back":  {[]uint32{5121, 5122, 1025, 1026}, []byte{1, 2}},
	} {
		var j jitter
		for _, n := range c.arrive {
			j.put(n*FrameBytes, packet(n).Payload)
		}
		var got []byte
		for range 10 {
			got = append(got, j.pop()[0])
		}
		if got = bytes.Trim(got, string([]byte{silence})); !bytes.Equal(got, c.want) {
			t.Errorf("%s: %X, want %X", name, got, c.want)
		}
	}
}

// A packet that is late is dropped. If it is the newest, it is played after the delay.
func TestJitterBufferStartsAgain(t *testing.T) {
	var j jitter
	j.put(1000*FrameBytes, packet(1000).Payload)
	for range 10 {
		j.pop()
	}
	j.put(1001*FrameBytes, packet(1001).Payload)
	j.put(999*FrameBytes, packet(999).Payload)
	for n := range 4 {
		if got := j.pop()[0]; (got == 1001&0x7F) != (n == 3) {
			t.Errorf("frame %d is %X, want the newest after 60 ms", n, got)
		}
	}
}

func TestJitterBufferTakesOtherPacketLengths(t *testing.T) {
	var j jitter
	for n := range uint32(4) {
		j.put(100_000+n*240, bytes.Repeat([]byte{byte(n)}, 240)) // 30 ms
	}
	var got []byte
	for range 9 {
		got = append(got, j.pop()...)
	}
	want := slices.Concat(bytes.Repeat([]byte{0}, 240), bytes.Repeat([]byte{1}, 240), bytes.Repeat([]byte{2}, 240), bytes.Repeat([]byte{3}, 240))
	if !bytes.Equal(got[delay:], want) {
		t.Errorf("%X", got)
	}
}

// pair returns two streams that are connected to each other.
func pair(t *testing.T) (a, b *Stream) {
	t.Helper()
	list := make([]*Stream, 2)
	for i := range list {
		s, err := Listen(netip.MustParseAddr("127.0.0.1"), [2]uint16{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		list[i] = s
	}
	for i, s := range list {
		s.SetRemote(Description{Remote: list[1-i].Local(), Codec: []uint8{pcma, pcmu}[i], Event: 101, Direction: "sendrecv"}, netip.Addr{})
	}
	return list[0], list[1]
}

func TestDigitsArriveOnce(t *testing.T) {
	a, b := pair(t)
	if err := a.Press("12,#D"); err != nil {
		t.Fatal(err)
	}
	for len(a.Queue) > 0 {
		a.Tick(nil)
	}
	pressed := ""
	for !strings.HasSuffix(pressed, "D") {
		_, digits := b.Tick(nil)
		pressed += digits
	}
	if pressed != "12#D" {
		t.Errorf("%q, want 12#D", pressed)
	}
}

func TestPlaybackWaitsDuringHold(t *testing.T) {
	a, b := pair(t)
	held := Description{Remote: b.Local(), Direction: "sendonly"}
	a.SetRemote(held, netip.Addr{})
	a.Queue = Frames(make([]byte, FrameBytes))
	if a.Tick(nil); len(a.Queue) == 0 {
		t.Error("audio was played during hold")
	}
	held.Direction = "sendrecv"
	a.SetRemote(held, netip.Addr{})
	if a.Tick(nil); len(a.Queue) != 0 {
		t.Error("audio was not played after hold")
	}
}

func TestPacketsFromOthersAreDropped(t *testing.T) {
	s, err := Listen(netip.MustParseAddr("127.0.0.1"), [2]uint16{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.SetRemote(Description{Remote: netip.MustParseAddrPort("192.0.2.1:4000"), Direction: "sendrecv"}, netip.Addr{})
	s.accept(packet(1), netip.MustParseAddrPort("192.0.2.66:4000"))
	if s.buffer.end != 0 {
		t.Error("a packet from another address was taken")
	}
	s.accept(packet(1), netip.MustParseAddrPort("192.0.2.1:4002"))
	if s.buffer.end == 0 || s.peer.Port() != 4002 {
		t.Error("a packet from another port of the caller was dropped")
	}
}

func TestListenerFindsSpeech(t *testing.T) {
	var started int
	var said [][]byte
	var l Listener
	hear := func(frame []byte, n int) {
		for range n {
			start, utterance := l.Hear(frame)
			if start {
				started++
			}
			if utterance != nil {
				said = append(said, utterance)
			}
		}
	}
	loud := bytes.Repeat([]byte{0x2A, 0xAA}, FrameBytes/2)
	hear(Silence(FrameDuration), 50)
	hear(loud, 3) // a click
	hear(Silence(FrameDuration), 50)
	hear(loud, 50)
	hear(Silence(FrameDuration), 20) // a pause
	hear(loud, 50)
	hear(Silence(FrameDuration), 50)
	if started != 1 || len(said) != 1 {
		t.Fatalf("%d starts, %d utterances, want one", started, len(said))
	}
	if got, want := len(said[0]), 120*FrameBytes; got < want || got > want+2*margin*FrameBytes {
		t.Errorf("%d bytes, want %d and a margin", got, want)
	}
	if wav := WAV(said[0]); len(wav) != 44+2*len(said[0]) {
		t.Errorf("the WAV file has %d bytes", len(wav))
	}
}
