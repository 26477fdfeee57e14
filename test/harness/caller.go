package harness

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"

	"telapi/test/testkit"
)

// A-law with 8 kHz in packets of 20 ms.
const (
	packetBytes = 160
	packetTime  = 20 * time.Millisecond
)

// Caller is the WebRTC side of a page with a microphone.
type Caller struct {
	t          testing.TB
	Connection *webrtc.PeerConnection
	microphone microphone

	mu    sync.Mutex
	heard []byte
}

// NewCaller returns a caller that is not connected. The test closes it at its end.
func NewCaller(t testing.TB) *Caller {
	t.Helper()
	var settings webrtc.SettingEngine
	settings.SetIncludeLoopbackCandidate(true)
	media := &webrtc.MediaEngine{}
	if err := media.RegisterDefaultCodecs(); err != nil {
		t.Fatal(err)
	}
	digits := webrtc.RTPCodecCapability{MimeType: "audio/telephone-event", ClockRate: 8000}
	if err := media.RegisterCodec(webrtc.RTPCodecParameters{RTPCodecCapability: digits, PayloadType: 126}, webrtc.RTPCodecTypeAudio); err != nil {
		t.Fatal(err)
	}
	connection, err := webrtc.NewAPI(webrtc.WithSettingEngine(settings), webrtc.WithMediaEngine(media)).NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	c := &Caller{t: t, Connection: connection}
	t.Cleanup(c.Close)
	if _, err := connection.AddTrack(&c.microphone); err != nil {
		t.Fatal(err)
	}
	connection.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			packet, _, err := track.ReadRTP()
			if err != nil {
				return
			}
			c.mu.Lock()
			c.heard = append(c.heard, packet.Payload...)
			c.mu.Unlock()
		}
	})
	return c
}

// Close ends the connection and waits for its goroutines.
func (c *Caller) Close() { _ = c.Connection.GracefulClose() }

// Offer returns the SDP of an offer. candidate is called with each candidate.
func (c *Caller) Offer(candidate func(init string)) string {
	c.t.Helper()
	c.Connection.OnICECandidate(func(found *webrtc.ICECandidate) {
		if found == nil {
			candidate("null")
			return
		}
		raw, _ := json.Marshal(found.ToJSON())
		candidate(string(raw))
	})
	offer, err := c.Connection.CreateOffer(nil)
	if err == nil {
		err = c.Connection.SetLocalDescription(offer)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return offer.SDP
}

// Signal handles a control message of the runtime.
func (c *Caller) Signal(control []byte) {
	c.t.Helper()
	var s struct {
		Command, SDP string
		Candidate    *webrtc.ICECandidateInit
	}
	err := json.Unmarshal(control, &s)
	switch {
	case err != nil:
	case s.Command == "webrtc_answer":
		err = c.Connection.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: s.SDP})
	case s.Command == "webrtc_candidate" && s.Candidate != nil:
		err = c.Connection.AddICECandidate(*s.Candidate)
	}
	if err != nil {
		c.t.Errorf("control %s: %v", control, err)
	}
}

// WaitConnected waits until the media is connected.
func (c *Caller) WaitConnected() {
	c.t.Helper()
	testkit.Until(c.t, "the call is connected", func() bool { return c.Connection.ConnectionState() == webrtc.PeerConnectionStateConnected })
}

// Say sends A-law in real time.
func (c *Caller) Say(alaw []byte) {
	start, n := time.Now(), 0
	for packet := range slices.Chunk(alaw, packetBytes) {
		c.microphone.write(c.microphone.audio, packet)
		n++
		time.Sleep(time.Until(start.Add(time.Duration(n) * packetTime)))
	}
}

// Press sends a key as a telephone event of 100 ms, as RFC 4733 describes.
func (c *Caller) Press(digit string) {
	code := byte(strings.Index("0123456789*#ABCD", digit))
	m := &c.microphone
	at := m.timestamp
	for n := range 7 { // the end of the event is sent three times
		duration, end := min(uint16(n+1), 5)*packetBytes, byte(0)
		if n >= 4 {
			end = 0x80
		}
		m.timestamp = at
		m.write(m.digits, binary.BigEndian.AppendUint16([]byte{code, end | 10}, duration))
	}
	m.timestamp = at + 5*packetBytes
}

// Heard returns the A-law that arrived since the last call of Heard.
func (c *Caller) Heard() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	heard := c.heard
	c.heard = nil
	return heard
}

// microphone is a track that sends audio and telephone events with one SSRC, as
// browsers do.
type microphone struct {
	stream        webrtc.TrackLocalWriter
	ssrc          uint32
	audio, digits uint8 // payload types
	sequence      uint16
	timestamp     uint32
}

func (m *microphone) write(payloadType uint8, payload []byte) {
	m.sequence++
	header := rtp.Header{Version: 2, PayloadType: payloadType, SSRC: m.ssrc, SequenceNumber: m.sequence, Timestamp: m.timestamp}
	_, _ = m.stream.WriteRTP(&header, payload) // a lost packet is like one that the network lost
	m.timestamp += packetBytes
}

// Bind implements webrtc.TrackLocal.
func (m *microphone) Bind(ctx webrtc.TrackLocalContext) (webrtc.RTPCodecParameters, error) {
	m.stream, m.ssrc = ctx.WriteStream(), uint32(ctx.SSRC())
	var audio webrtc.RTPCodecParameters
	for _, codec := range ctx.CodecParameters() {
		switch codec.MimeType {
		case webrtc.MimeTypePCMA:
			audio, m.audio = codec, uint8(codec.PayloadType)
		case "audio/telephone-event":
			m.digits = uint8(codec.PayloadType)
		}
	}
	return audio, nil
}

func (*microphone) Unbind(webrtc.TrackLocalContext) error { return nil }
func (*microphone) ID() string                            { return "microphone" }
func (*microphone) RID() string                           { return "" }
func (*microphone) StreamID() string                      { return "page" }
func (*microphone) Kind() webrtc.RTPCodecType             { return webrtc.RTPCodecTypeAudio }
