package harness

import (
	"testing"

	"github.com/pion/webrtc/v4"

	"telapi/test/testkit"
)

// Offer returns the SDP with which a page offers audio and digits.
func Offer(t testing.TB) string {
	t.Helper()
	media := &webrtc.MediaEngine{}
	testkit.Must(t, media.RegisterDefaultCodecs())
	digits := webrtc.RTPCodecCapability{MimeType: "audio/telephone-event", ClockRate: 8000}
	testkit.Must(t, media.RegisterCodec(webrtc.RTPCodecParameters{RTPCodecCapability: digits, PayloadType: 126}, webrtc.RTPCodecTypeAudio))
	connection, err := webrtc.NewAPI(webrtc.WithMediaEngine(media)).NewPeerConnection(webrtc.Configuration{})
	testkit.Must(t, err)
	defer func() { _ = connection.GracefulClose() }()
	_, err = connection.AddTransceiverFromKind(webrtc.RTPCodecTypeAudio)
	testkit.Must(t, err)
	offer, err := connection.CreateOffer(nil)
	testkit.Must(t, err)
	return offer.SDP
}
