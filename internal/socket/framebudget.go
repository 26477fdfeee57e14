package socket

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"telapi/internal/channel"
)

// allFramesFactor is how many frames of any kind, audio and fragments included, a
// client may send for each frame that is not audio.
const allFramesFactor = 10

// errFlood is the error of a read from a client that has exceeded its budget.
var errFlood = errors.New("frame budget exceeded")

// frameBudget limits the frames and bytes that a client may send over its WebSocket.
// It reads the frame headers in the received bytes, because the WebSocket library
// handles control frames and fragments without notice.
type frameBudget struct {
	frames *rate.Limiter // of any kind
	bytes  *rate.Limiter
	// allowFrame counts a frame that is not audio. It is called for control frames and empty
	// fragments, because bytes do not limit them. The channel itself counts messages.
	allowFrame func() bool

	header   [10]byte // of the current frame, without the masking key
	received int      // bytes of header
	rest     uint64   // bytes of the current frame that follow the header
}

func newFrameBudget(l *channel.ConnectionLimits, allowFrame func() bool) *frameBudget {
	perSecond := func(n int) *rate.Limiter { return rate.NewLimiter(rate.Limit(n), n) }
	return &frameBudget{
		frames:     perSecond(allFramesFactor * l.FramesPerSecond),
		bytes:      perSecond(l.FramesPerSecond*int(l.FrameBytes) + l.AudioBytesPerSecond),
		allowFrame: allowFrame,
	}
}

// allow counts received bytes. It returns false if they exceed the budget.
func (f *frameBudget) allow(b []byte) bool {
	now := time.Now()
	if !f.bytes.AllowN(now, len(b)) {
		return false
	}
	for len(b) > 0 {
		if f.rest > 0 {
			n := min(f.rest, uint64(len(b)))
			b, f.rest = b[n:], f.rest-n
			continue
		}
		f.header[f.received] = b[0]
		b, f.received = b[1:], f.received+1
		length, complete := f.payloadLength()
		if !complete {
			continue
		}
		f.received, f.rest = 0, length
		if f.header[1]&0x80 != 0 {
			f.rest += 4 // masking key
		}
		if !f.frames.AllowN(now, 1) || f.isEmptyOrControl(length) && !f.allowFrame() {
			return false
		}
	}
	return true
}

// payloadLength returns the length of the current frame's payload. complete is false
// until the whole header is received.
func (f *frameBudget) payloadLength() (length uint64, complete bool) {
	switch short := f.header[1] & 0x7f; {
	case f.received < 2:
		return 0, false
	case short == 126:
		return uint64(binary.BigEndian.Uint16(f.header[2:])), f.received == 4
	case short == 127:
		return binary.BigEndian.Uint64(f.header[2:]), f.received == 10
	default:
		return uint64(short), true
	}
}

// isEmptyOrControl reports whether the current frame is a control frame or an empty
// fragment of a message.
func (f *frameBudget) isEmptyOrControl(length uint64) bool {
	final, opcode := f.header[0]&0x80 != 0, f.header[0]&0x0f
	return opcode >= 8 || length == 0 && (opcode == 0 || !final)
}
