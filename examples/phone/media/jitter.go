package media

const (
	ringBytes = 8192            // a power of two, so that timestamps can wrap
	delay     = 3 * FrameBytes  // 60 ms from arrival to playout
	maxAhead  = 20 * FrameBytes // 400 ms; then the sender's clock is too fast, or another one
)

// jitter puts A-law in the order of its timestamps and evens out its arrival. Lost audio
// is silence.
type jitter struct {
	ring      [ringBytes]byte // samples xor silence, by timestamp
	next, end uint32          // timestamps of the next frame, and after the newest packet
}

// put adds the audio of a packet. Late audio is dropped, unless it is the newest (the
// buffer has run empty) or its clock is another one: then playout starts again.
func (j *jitter) put(at uint32, alaw []byte) {
	ahead, newest := int32(at-j.next), int32(at-j.end) >= 0
	if ahead < 0 && ahead > -ringBytes && !newest {
		return
	}
	if ahead < 0 || ahead > maxAhead {
		*j = jitter{next: at - delay, end: at}
	}
	for i, sample := range alaw {
		j.ring[(at+uint32(i))%ringBytes] = sample ^ silence
	}
	if end := at + uint32(len(alaw)); int32(end-j.end) > 0 {
		j.end = end
	}
}

// pop returns the audio of the next 20 ms.
func (j *jitter) pop() []byte {
	frame := make([]byte, FrameBytes)
	for i := range frame {
		at := (j.next + uint32(i)) % ringBytes
		frame[i] = j.ring[at] ^ silence
		j.ring[at] = 0
	}
	j.next += FrameBytes
	return frame
}
