// Package voice handles the audio of the demo's calls. It detects and records the
// caller's speech, plays audio in real time, and answers WebRTC calls. All audio is
// A-law with 8 kHz.
package voice

import (
	"context"
	"time"

	"telapi/internal/background"
)

// Audio is sent and analysed in frames.
const (
	SampleRate    = 8000
	FrameDuration = 20 * time.Millisecond
	FrameBytes    = 160
)

// Leg carries audio to the caller, as frames of the session or over WebRTC.
type Leg interface {
	// WriteFrame sends the next frame of an utterance. sequence counts from 0. The last
	// frame may be shorter than the others.
	WriteFrame(ctx context.Context, sequence int, alaw []byte, last bool) error
}

// Duration returns the length of A-law audio, in whole frames.
func Duration(alaw []byte) time.Duration { return time.Duration(frames(alaw)) * FrameDuration }

func frames(alaw []byte) int { return (len(alaw) + FrameBytes - 1) / FrameBytes }

// Play sends audio in real time, until its end or that of ctx. Each frame has its
// time relative to the start, so that delays do not add up.
func Play(ctx context.Context, leg Leg, alaw []byte) error {
	start := time.Now()
	for n := 0; n < frames(alaw) && ctx.Err() == nil; n++ {
		rest := alaw[n*FrameBytes:]
		frame := rest[:min(FrameBytes, len(rest))]
		if err := leg.WriteFrame(ctx, n, frame, len(frame) == len(rest)); err != nil {
			return err
		}
		_ = background.Sleep(ctx, time.Until(start.Add(time.Duration(n+1)*FrameDuration)))
	}
	return nil
}
