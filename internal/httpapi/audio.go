package httpapi

import (
	"net/http"
	"time"

	"telapi/internal/ratelimit"
)

const (
	// audioBudget is the memory for the audio in responses that are being sent.
	audioBudget = 48 << 20
	// A response with audio must be read within audioGrace plus the time that it needs
	// at minAudioRate.
	audioGrace   = 5 * time.Second
	minAudioRate = 128 << 10 // bytes per second
)

// respondWithAudio sends a response that contains audio of the given length, if the
// budget permits, and disconnects a client that reads it too slowly.
func (x *exchange) respondWithAudio(audio *ratelimit.Budget, length int, response any) error {
	withCopies := 4 * int64(length)        // the audio, its base64 and the response
	size := min(withCopies, audio.Share()) // a team's only response always fits
	if err := audio.Take(x.holder, size); err != nil {
		return err
	}
	defer audio.Return(x.holder, size)
	allowed := audioGrace + time.Duration(length)*time.Second/minAudioRate
	_ = http.NewResponseController(x).SetWriteDeadline(time.Now().Add(allowed))
	return x.WriteJSON(http.StatusOK, response)
}
