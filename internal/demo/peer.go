package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/pion/ice/v4"
	"github.com/pion/interceptor"
	"github.com/pion/logging"
	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"

	"telapi/callruntime/wire"
)

const (
	maxSDP        = 32 << 10 // bytes: the offer of a browser has about 5,000
	maxCandidates = 64       // of the page: a browser sends a few per network interface
	alawSilence   = 0xD5

	audioPayloadType = 8   // the static one of A-law, RFC 3551
	digitPayloadType = 101 // only used until the offer selects another one
	mimeDigit        = "audio/telephone-event"
)

// rtpDigits are the keys of RFC 4733, in the order of their codes.
const rtpDigits = "0123456789*#ABCD"

// newAPI prepares pion on the first call, so that a start of telapi without calls
// does not pay for it. Host candidates include the loopback address, so that a call on
// one machine needs no network. mDNS is off: a browser's candidate with a name is
// ignored, and its address is learned from its connectivity checks.
var newAPI = sync.OnceValues(func() (*webrtc.API, error) {
	var media webrtc.MediaEngine
	var settings webrtc.SettingEngine
	err := errors.Join(
		media.RegisterCodec(webrtc.RTPCodecParameters{RTPCodecCapability: audioCodec, PayloadType: audioPayloadType}, webrtc.RTPCodecTypeAudio),
		media.RegisterCodec(webrtc.RTPCodecParameters{
			RTPCodecCapability: webrtc.RTPCodecCapability{MimeType: mimeDigit, ClockRate: sampleRate}, PayloadType: digitPayloadType,
		}, webrtc.RTPCodecTypeAudio))
	settings.LoggerFactory = &logging.DefaultLoggerFactory{Writer: io.Discard}
	settings.SetIncludeLoopbackCandidate(true)
	settings.SetICEMulticastDNSMode(ice.MulticastDNSModeDisabled)
	settings.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4, webrtc.NetworkTypeUDP6}) // no TCP connections to addresses that a page names
	return webrtc.NewAPI(webrtc.WithMediaEngine(&media), webrtc.WithSettingEngine(settings), webrtc.WithInterceptorRegistry(&interceptor.Registry{})), err
})

var audioCodec = webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypePCMA, ClockRate: sampleRate}

// peerOptions configure a peer. Its functions are called by several goroutines.
type peerOptions struct {
	ICEServers []wire.ICEServer
	Candidate  func(init any) // of this side, as RTCIceCandidateInit; nil after the last one
	Audio      func(alaw []byte)
	Digit      func(digit string)
	Connected  func()
	Ended      func(lost bool) // if false, the page has closed the connection
}

// peer is the runtime's side of a WebRTC call.
type peer struct {
	peerOptions
	connection *webrtc.PeerConnection
	track      *webrtc.TrackLocalStaticRTP
	candidates int       // of the page
	sentAt     time.Time // when the last frame was sent, which had sequence and timestamp
	sequence   uint16
	timestamp  uint32
}

var _ leg = (*peer)(nil)

// answerOffer answers the page's offer. The caller sends the returned SDP to the page before
// any candidate, and closes the peer.
func answerOffer(offer string, o peerOptions) (p *peer, sdp string, err error) {
	description := webrtc.SessionDescription{Type: webrtc.SDPTypeOffer, SDP: offer}
	if err := checkOffer(description); err != nil {
		return nil, "", err
	}
	api, err := newAPI()
	if err != nil {
		return nil, "", fmt.Errorf("prepare WebRTC: %w", err)
	}
	var configuration webrtc.Configuration
	for _, s := range o.ICEServers {
		configuration.ICEServers = append(configuration.ICEServers, webrtc.ICEServer{URLs: s.URLs, Username: s.Username, Credential: s.Credential})
	}
	p = &peer{peerOptions: o, sentAt: time.Now(), sequence: uint16(rand.Uint32()), timestamp: rand.Uint32()} //nolint:gosec // the media is encrypted
	if p.connection, err = api.NewPeerConnection(configuration); err != nil {
		return nil, "", fmt.Errorf("invalid ICE servers: %w", err)
	}
	if sdp, err = p.answer(description); err != nil {
		p.Close()
		return nil, "", fmt.Errorf("invalid SDP: %w", err)
	}
	return p, sdp, nil
}

// checkOffer returns an error that tells the page's author what is wrong.
func checkOffer(offer webrtc.SessionDescription) error {
	if len(offer.SDP) > maxSDP {
		return fmt.Errorf("the SDP has %d bytes, more than %d", len(offer.SDP), maxSDP)
	}
	parsed, err := offer.Unmarshal()
	if err != nil {
		return fmt.Errorf("invalid SDP: %w", err)
	}
	for _, m := range parsed.MediaDescriptions {
		if m.MediaName.Media == "audio" && slices.Contains(m.MediaName.Formats, strconv.Itoa(audioPayloadType)) {
			return nil
		}
	}
	return errors.New("the SDP has no audio with A-law: offer PCMA, payload type 8")
}

func (p *peer) answer(offer webrtc.SessionDescription) (sdp string, err error) {
	if p.track, err = webrtc.NewTrackLocalStaticRTP(audioCodec, "audio", "telapi"); err != nil {
		return "", err
	}
	if _, err = p.connection.AddTrack(p.track); err != nil {
		return "", err
	}
	p.connection.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) { p.receive(track) })
	p.connection.OnConnectionStateChange(p.stateChanged)
	p.connection.OnICECandidate(func(c *webrtc.ICECandidate) {
		if c == nil {
			p.Candidate(nil)
		} else {
			p.Candidate(c.ToJSON())
		}
	})
	if err := p.connection.SetRemoteDescription(offer); err != nil {
		return "", err
	}
	answer, err := p.connection.CreateAnswer(nil)
	if err == nil {
		err = p.connection.SetLocalDescription(answer)
	}
	return answer.SDP, err
}

func (p *peer) stateChanged(s webrtc.PeerConnectionState) {
	switch s {
	case webrtc.PeerConnectionStateConnected:
		p.Connected()
	case webrtc.PeerConnectionStateFailed:
		p.Ended(true)
	case webrtc.PeerConnectionStateClosed:
		p.Ended(false)
	}
}

// AddCandidate handles a candidate of the page: an RTCIceCandidateInit, or null after
// the last one.
func (p *peer) AddCandidate(raw jsontext.Value) error {
	if p.candidates++; p.candidates > maxCandidates {
		return fmt.Errorf("more than %d candidates", maxCandidates)
	}
	var init *webrtc.ICECandidateInit
	if err := json.Unmarshal(raw, &init); err != nil {
		return errors.New("candidate is not an RTCIceCandidateInit")
	}
	if init == nil || init.Candidate == "" {
		return nil
	}
	return p.connection.AddICECandidate(*init)
}

// receive passes the audio and digits of the page on until the connection is closed.
// A digit is repeated in several packets with the same timestamp.
func (p *peer) receive(track *webrtc.TrackRemote) {
	var lastDigit *uint32 // timestamp
	for {
		packet, _, err := track.ReadRTP()
		if err != nil {
			return
		}
		switch track.Codec().MimeType {
		case webrtc.MimeTypePCMA:
			p.Audio(packet.Payload)
		case mimeDigit:
			if len(packet.Payload) < 4 || int(packet.Payload[0]) >= len(rtpDigits) || lastDigit != nil && *lastDigit == packet.Timestamp {
				continue
			}
			lastDigit = &packet.Timestamp
			p.Digit(rtpDigits[packet.Payload[0]:][:1])
		}
	}
}

// writeFrame implements leg. Between utterances nothing is sent, but the timestamps go
// on, so that the browser plays each utterance at its time.
func (p *peer) writeFrame(_ context.Context, sequence int, alaw []byte, _ bool) error {
	p.sequence++
	p.timestamp += frameBytes
	if sequence == 0 {
		p.timestamp += uint32(time.Since(p.sentAt)/frameDuration) * frameBytes //nolint:gosec // timestamps wrap around
	}
	p.sentAt = time.Now()
	payload := slices.Concat(alaw, slices.Repeat([]byte{alawSilence}, frameBytes-len(alaw)))
	header := rtp.Header{Version: 2, Marker: sequence == 0, SequenceNumber: p.sequence, Timestamp: p.timestamp}
	if err := p.track.WriteRTP(&rtp.Packet{Header: header, Payload: payload}); err != nil {
		return fmt.Errorf("send audio: %w", err)
	}
	return nil
}

// Close ends the connection and waits for its goroutines. Its functions must not wait
// for the caller of Close.
func (p *peer) Close() { _ = p.connection.GracefulClose() }
