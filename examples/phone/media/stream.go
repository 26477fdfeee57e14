// Package media carries the audio of a phone call: SDP, RTP with G.711 and a jitter
// buffer, telephone events and the detection of speech. Audio is A-law with 8 kHz
// everywhere but on the wire of a call that uses µ-law.
package media

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pion/rtp"
	"github.com/zaf/g711"
)

// A frame is the audio of one RTP packet.
const (
	FrameDuration = 20 * time.Millisecond
	FrameBytes    = SampleRate / 50
	SampleRate    = 8000 // one byte per sample

	maxPacket = 1500
	silence   = 0xD5
)

// Telephone events: RFC 4733.
const (
	keys         = "0123456789*#ABCD" // in the order of their codes
	pauses       = ",W"               // of one second, between digits
	maxDigits    = 64
	eventPackets = 8 // of a digit: 160 ms
	eventEnds    = 3 // how often the last packet is sent, because it must arrive
	eventGap     = 5 // silent frames after a digit: 100 ms
	eventVolume  = 10
	endBit       = 0x80
)

// Frame is what is sent in 20 ms: audio or a telephone event.
type Frame struct {
	payload []byte
	event   bool
	age     uint32 // samples since the start of the event, whose timestamp its packets have
}

// Silence returns silent audio.
func Silence(d time.Duration) []byte {
	return bytes.Repeat([]byte{silence}, int(d/FrameDuration)*FrameBytes)
}

// Frames returns the frames of A-law audio.
func Frames(alaw []byte) (frames []Frame) {
	for audio := range slices.Chunk(alaw, FrameBytes) {
		frames = append(frames, Frame{payload: slices.Concat(audio, Silence(FrameDuration)[len(audio):])})
	}
	return frames
}

// Stream is the RTP stream of one call leg. Its owner calls Tick every 20 ms. Only the
// owner uses Queue, Press and Tick; the rest is safe for concurrent use.
type Stream struct {
	Queue []Frame // what Tick sends next

	conn      *net.UDPConn
	receiving sync.WaitGroup

	mu       sync.Mutex
	remote   Description
	source   netip.Addr     // where the SIP messages of the other side come from
	peer     netip.AddrPort // the address of remote, or the one that packets come from
	buffer   jitter
	received time.Time // when the last packet arrived
	pressed  string    // digits that Tick has not returned
	event    uint32    // timestamp of the last telephone event
	released bool      // the event has ended
	header   rtp.Header
}

// Listen opens a UDP port of the range, or any if both ends are zero.
func Listen(host netip.Addr, ports [2]uint16) (*Stream, error) {
	var conn *net.UDPConn
	var err error
	for range 64 {
		port := ports[0] + uint16(rand.IntN(int(ports[1]-ports[0])+1))&^1 // RTP uses even ports
		if conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(host, port))); err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open RTP port: %w", err)
	}
	s := &Stream{conn: conn, received: time.Now(), event: rand.Uint32()}
	s.header = rtp.Header{Version: 2, SSRC: rand.Uint32(), SequenceNumber: uint16(rand.Uint32()), Timestamp: rand.Uint32()}
	s.receiving.Go(s.receive)
	return s, nil
}

// Close closes the port.
func (s *Stream) Close() {
	_ = s.conn.Close()
	s.receiving.Wait()
}

// Local returns the address for SDP.
func (s *Stream) Local() netip.AddrPort { return s.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// SetRemote sets where audio goes and how it is encoded, and the address from which the
// other side's SIP messages come.
func (s *Stream) SetRemote(d Description, source netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remote, s.source, s.peer, s.received = d, source, d.Remote, time.Now()
}

// Remote returns what SetRemote has set.
func (s *Stream) Remote() Description {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remote
}

// Press queues digits and pauses, if the other side supports them.
func (s *Stream) Press(digits string) error {
	if len(digits) > maxDigits || strings.Trim(strings.ToUpper(digits), keys+pauses) != "" {
		return fmt.Errorf("invalid digits: use up to %d of %s, and , or w for a pause", maxDigits, keys)
	}
	if s.Remote().Event == 0 {
		return errors.New("the other side does not support telephone events")
	}
	for _, digit := range []byte(strings.ToUpper(digits)) {
		code := strings.IndexByte(keys, digit)
		if code < 0 {
			s.Queue = append(s.Queue, Frames(Silence(time.Second))...)
			continue
		}
		for n := range eventPackets + eventEnds - 1 {
			flags := byte(eventVolume)
			if n >= eventPackets-1 {
				flags |= endBit
			}
			length := min(n+1, eventPackets) * FrameBytes
			event := binary.BigEndian.AppendUint16([]byte{byte(code), flags}, uint16(length))
			s.Queue = append(s.Queue, Frame{payload: event, event: true, age: uint32(n) * FrameBytes})
		}
		s.Queue = append(s.Queue, Frames(Silence(eventGap*FrameDuration))...)
	}
	return nil
}

// Quiet returns for how long no packet has arrived, or zero if the other side does not
// have to send any.
func (s *Stream) Quiet() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remote.Direction != "sendrecv" {
		return 0
	}
	return time.Since(s.received)
}

// Tick handles 20 ms in both directions: it sends the next queued frame, or else audio of
// another leg, or silence if that is nil. It returns the audio that was heard and the
// digits that were pressed. While the other side does not listen, the queue waits, and
// what that side plays is not heard.
func (s *Stream) Tick(relayed []byte) (heard []byte, digits string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	digits, s.pressed = s.pressed, ""
	heard = s.buffer.pop()
	if s.remote.hears() {
		next := Frame{payload: relayed}
		if len(s.Queue) > 0 {
			next, s.Queue = s.Queue[0], s.Queue[1:]
		} else if relayed == nil {
			next.payload = Silence(FrameDuration)
		}
		s.send(next)
	} else {
		heard = Silence(FrameDuration)
	}
	s.header.Timestamp += FrameBytes
	return heard, digits
}

func (s *Stream) send(f Frame) {
	packet := rtp.Packet{Header: s.header, Payload: f.payload}
	packet.PayloadType = s.remote.Codec
	switch {
	case f.event:
		packet.PayloadType, packet.Marker = s.remote.Event, f.age == 0
		packet.Timestamp -= f.age
	case s.remote.Codec == pcmu:
		packet.Payload = g711.Alaw2Ulaw(f.payload)
	}
	if raw, err := packet.Marshal(); err == nil {
		_, _ = s.conn.WriteToUDPAddrPort(raw, s.peer) // an error is a lost packet
	}
	s.header.SequenceNumber++
}

// receive reads packets until the port is closed.
func (s *Stream) receive() {
	buffer := make([]byte, maxPacket)
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var p rtp.Packet
		if err == nil && p.Unmarshal(buffer[:n]) == nil && p.Version == 2 {
			s.accept(&p, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
		}
	}
}

// accept takes one packet. Packets from other addresses than those of the SDP and of the
// SIP messages are dropped, so that nobody else can speak in the call.
func (s *Stream) accept(p *rtp.Packet, from netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from.Addr() != s.remote.Remote.Addr() && from.Addr() != s.source {
		return
	}
	s.received, s.peer = time.Now(), from
	switch p.PayloadType {
	case pcma:
		s.buffer.put(p.Timestamp, p.Payload)
	case pcmu:
		s.buffer.put(p.Timestamp, g711.Ulaw2Alaw(p.Payload))
	case s.remote.Event:
		if len(p.Payload) < 4 || int(p.Payload[0]) >= len(keys) || len(s.pressed) >= maxDigits {
			return
		}
		end := p.Payload[1]&endBit != 0
		if p.Timestamp != s.event || s.released && !end { // some callers begin every event with the same timestamp
			s.pressed += string(keys[p.Payload[0]])
		}
		s.event, s.released = p.Timestamp, end
	}
}
