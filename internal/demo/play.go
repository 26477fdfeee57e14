package demo

import (
	"context"
	"time"

	"telapi/internal/background"
)

// Audio is A-law with 8 kHz. It is sent and analysed in frames.
const (
	sampleRate    = 8000
	frameDuration = 20 * time.Millisecond
	frameBytes    = 160
)

// leg carries audio to the caller, as frames of the session or over WebRTC.
type leg interface {
	// writeFrame sends the next frame of an utterance. sequence counts from 0. The last
	// frame may be shorter than the others.
	writeFrame(ctx context.Context, sequence int, alaw []byte, last bool) error
}

// soundLength returns the length of A-law audio, in whole frames.
func soundLength(alaw []byte) time.Duration { return time.Duration(frameCount(alaw)) * frameDuration }

func frameCount(alaw []byte) int { return (len(alaw) + frameBytes - 1) / frameBytes }

// play sends audio in real time, until its end or that of ctx. Each frame has its
// time relative to the start, so that delays do not add up.
func play(ctx context.Context, leg leg, alaw []byte) error {
	start := time.Now()
	for n := 0; n < frameCount(alaw) && ctx.Err() == nil; n++ {
		rest := alaw[n*frameBytes:]
		frame := rest[:min(frameBytes, len(rest))]
		if err := leg.writeFrame(ctx, n, frame, len(frame) == len(rest)); err != nil {
			return err
		}
		_ = background.Sleep(ctx, time.Until(start.Add(time.Duration(n+1)*frameDuration)))
	}
	return nil
}
