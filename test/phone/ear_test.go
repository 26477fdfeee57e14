package phone

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/test/testkit"
)

// ear is the RTP port of a caller. It records what it hears and can speak.
type ear struct {
	conn *net.UDPConn

	stamp    uint32
	sequence uint16

	mu     sync.Mutex
	phone  *net.UDPAddr
	audio  []byte // A-law or µ-law, without silence
	frames int
	mulaw  int // frames with µ-law
	digits string
	events map[uint32]bool // by timestamp
	ends   int             // packets with the end of a digit
}

const silent = 0xD5 // A-law

func newEar(t *testing.T) *ear {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	testkit.Must(t, err)
	e := &ear{conn: conn, events: map[uint32]bool{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.listen()
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return e
}

func (e *ear) listen() {
	buffer := make([]byte, 1500)
	for {
		n, from, err := e.conn.ReadFromUDP(buffer)
		if err != nil {
			return
		}
		e.take(buffer[:n], from)
	}
}

func (e *ear) take(packet []byte, from *net.UDPAddr) {
	if len(packet) < 16 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.phone = from
	payload, stamp := packet[12:], binary.BigEndian.Uint32(packet[4:])
	switch packet[1] & 0x7F {
	case 0, 8:
		e.frames++
		if packet[1]&0x7F == 0 {
			e.mulaw++
		}
		if !bytes.Equal(payload, bytes.Repeat([]byte{silent}, len(payload))) {
			e.audio = append(e.audio, payload...)
		}
	case 96:
		if !e.events[stamp] {
			e.events[stamp] = true
			e.digits += string("0123456789*#ABCD"[payload[0]])
		}
		if payload[1]&0x80 != 0 {
			e.ends++
		}
	}
}

// heard returns the digits and the audio up to now.
func (e *ear) heard() (digits string, audio []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.digits, bytes.Clone(e.audio)
}

// received returns the number of frames.
func (e *ear) received() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.frames
}

// use returns a step with the port of the ear instead of SIPp's.
func (e *ear) use(step string) string {
	return strings.ReplaceAll(step, "[media_port]", fmt.Sprint(e.conn.LocalAddr().(*net.UDPAddr).Port))
}

// send sends an RTP packet. It waits for the first packet of the phone, to know where to.
func (e *ear) send(t *testing.T, payloadType byte, stamp uint32, payload []byte) {
	t.Helper()
	var to *net.UDPAddr
	testkit.Until(t, "the phone sends audio", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		to = e.phone
		e.sequence++
		return to != nil
	})
	packet := append([]byte{0x80, payloadType}, byte(e.sequence>>8), byte(e.sequence))
	packet = binary.BigEndian.AppendUint32(packet, stamp)
	packet = binary.BigEndian.AppendUint32(packet, 4711)
	if _, err := e.conn.WriteToUDP(append(packet, payload...), to); err != nil {
		t.Error(err)
	}
}

// press presses keys.
func (e *ear) press(t *testing.T, keys string) {
	t.Helper()
	for _, key := range keys {
		e.stamp += 8000
		code := byte(strings.IndexRune("0123456789*#ABCD", key))
		for _, flags := range []byte{10, 10, 0x8A, 0x8A, 0x8A} {
			e.send(t, 96, e.stamp, []byte{code, flags, 0, 160})
		}
	}
}

// speak sends a loud tone, followed by a second of silence.
func (e *ear) speak(t *testing.T, length time.Duration) {
	t.Helper()
	loud, quiet := bytes.Repeat([]byte{0x2A, 0xAA}, 80), bytes.Repeat([]byte{silent}, 160)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := range int((length + time.Second) / (20 * time.Millisecond)) {
		frame := loud
		if time.Duration(n)*20*time.Millisecond >= length {
			frame = quiet
		}
		e.stamp += 160
		e.send(t, 8, e.stamp, frame)
		<-tick.C // the pace of a microphone
	}
}
