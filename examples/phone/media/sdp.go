package media

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pion/sdp/v3"
)

// The static payload types of RFC 3551, and the dynamic one that an offer of this program
// uses for telephone events.
const (
	pcmu         = 0
	pcma         = 8
	offeredEvent = 101
	maxSDP       = 16 << 10 // bytes
)

// reversed has the direction that answers another one.
var reversed = map[string]string{"sendrecv": "sendrecv", "sendonly": "recvonly", "recvonly": "sendonly", "inactive": "inactive"}

// Description is the audio stream of an SDP body.
type Description struct {
	Remote    netip.AddrPort // where the side receives audio
	Codec     uint8          // pcma or pcmu, the first one of the list
	Event     uint8          // payload type of telephone events; 0: not supported
	Direction string         // seen from the side that wrote the body

	streams []*sdp.MediaDescription // an answer needs as many
	audio   int                     // index of the audio in streams
}

var errNotAcceptable = errors.New("no audio stream with G.711 over RTP/AVP at an IP address")

// ParseSDP reads an offer or an answer.
func ParseSDP(body []byte) (d Description, err error) {
	var session sdp.SessionDescription
	if len(body) > maxSDP {
		return d, fmt.Errorf("SDP with %d bytes is too long", len(body))
	}
	if err := session.Unmarshal(body); err != nil {
		return d, fmt.Errorf("invalid SDP: %w", err)
	}
	d = Description{streams: session.MediaDescriptions, Direction: "sendrecv"}
	d.audio = slices.IndexFunc(d.streams, func(m *sdp.MediaDescription) bool {
		name := m.MediaName
		return name.Media == "audio" && name.Port.Value > 0 && strings.Join(name.Protos, "/") == "RTP/AVP"
	})
	if d.audio < 0 {
		return d, errNotAcceptable
	}
	stream, connection := d.streams[d.audio], session.ConnectionInformation
	if stream.ConnectionInformation != nil {
		connection = stream.ConnectionInformation
	}
	formats := stream.MediaName.Formats
	first := slices.IndexFunc(formats, func(f string) bool { return f == "0" || f == "8" })
	if first < 0 || connection == nil || connection.Address == nil {
		return d, errNotAcceptable
	}
	if formats[first] == "8" {
		d.Codec = pcma
	}
	for _, a := range slices.Concat(session.Attributes, stream.Attributes) {
		if _, ok := reversed[a.Key]; ok {
			d.Direction = a.Key
		}
	}
	if event, _ := session.GetPayloadTypeForCodec(sdp.Codec{Name: "telephone-event", ClockRate: 8000}); event >= 96 && event < 128 {
		d.Event = event
	}
	address, err := netip.ParseAddr(connection.Address.Address)
	port := stream.MediaName.Port.Value
	if err != nil || address.IsMulticast() || port > 65535 {
		return d, errNotAcceptable
	}
	if address.IsUnspecified() { // the old way to put a call on hold
		d.Direction = "sendonly"
	}
	d.Remote = netip.AddrPortFrom(address.Unmap(), uint16(port))
	return d, nil
}

// hears reports whether the side that wrote d listens.
func (d Description) hears() bool { return d.Direction == "sendrecv" || d.Direction == "recvonly" }

// Offer returns an SDP offer of G.711 and telephone events.
func Offer(local netip.AddrPort) []byte {
	return []byte(head(local) + stream(local, "sendrecv", offeredEvent, pcma, pcmu))
}

// Reoffer returns an offer for another side: to exchange audio directly with the side that
// wrote d.
func (d Description) Reoffer() []byte {
	return []byte(head(d.Remote) + stream(d.Remote, d.Direction, d.Event, d.Codec))
}

// Answer returns the answer to an offer. It rejects all streams but the audio.
func (d Description) Answer(local netip.AddrPort) []byte {
	body := head(local)
	for i, m := range d.streams {
		if i == d.audio {
			body += stream(local, reversed[d.Direction], d.Event, d.Codec)
			continue
		}
		rejected := m.MediaName
		rejected.Port = sdp.RangedPort{}
		body += "m=" + rejected.String() + "\r\n"
	}
	return []byte(body)
}

// head returns the lines before the streams. The origin of a dialog is always the same;
// its version grows.
func head(at netip.AddrPort) string {
	family := "IP4"
	if at.Addr().Is6() {
		family = "IP6"
	}
	return fmt.Sprintf("v=0\r\no=phone 1 %d IN IP4 127.0.0.1\r\ns=-\r\nc=IN %s %s\r\nt=0 0\r\n", time.Now().UnixMilli(), family, at.Addr())
}

// stream returns an audio stream.
func stream(at netip.AddrPort, direction string, event uint8, codecs ...uint8) string {
	line, attributes := fmt.Sprintf("m=audio %d RTP/AVP", at.Port()), ""
	add := func(format uint8, encoding string) {
		line += fmt.Sprintf(" %d", format)
		attributes += fmt.Sprintf("a=rtpmap:%d %s/8000\r\n", format, encoding)
	}
	for _, codec := range codecs {
		add(codec, map[uint8]string{pcma: "PCMA", pcmu: "PCMU"}[codec])
	}
	if event != 0 {
		add(event, "telephone-event")
	}
	return line + "\r\n" + attributes + "a=ptime:20\r\na=" + direction + "\r\n"
}
