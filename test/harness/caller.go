package harness

import (
	"encoding/json"
	"testing"

	"telapi/test/testkit"

	"github.com/pion/webrtc/v4"
)

// Caller is the WebRTC side of a page.
type Caller struct {
	t          testing.TB
	connection *webrtc.PeerConnection
}

// NewCaller returns a caller that is not connected. The test closes it at its end.
func NewCaller(t testing.TB) *Caller {
	t.Helper()
	media := &webrtc.MediaEngine{}
	testkit.Must(t, media.RegisterDefaultCodecs())
	digits := webrtc.RTPCodecCapability{MimeType: "audio/telephone-event", ClockRate: 8000}
	testkit.Must(t, media.RegisterCodec(webrtc.RTPCodecParameters{RTPCodecCapability: digits, PayloadType: 126}, webrtc.RTPCodecTypeAudio))
	connection, err := webrtc.NewAPI(webrtc.WithMediaEngine(media)).NewPeerConnection(webrtc.Configuration{})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = connection.GracefulClose() })
	if _, err := connection.AddTransceiverFromKind(webrtc.RTPCodecTypeAudio); err != nil {
		t.Fatal(err)
	}
	return &Caller{t, connection}
}

// Offer returns the SDP of an offer. candidate is called with each candidate.
func (c *Caller) Offer(candidate func(init string)) string {
	c.t.Helper()
	c.connection.OnICECandidate(func(found *webrtc.ICECandidate) {
		if found == nil {
			candidate("null")
			return
		}
		raw, _ := json.Marshal(found.ToJSON())
		candidate(string(raw))
	})
	offer, err := c.connection.CreateOffer(nil)
	if err == nil {
		err = c.connection.SetLocalDescription(offer)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return offer.SDP
}
