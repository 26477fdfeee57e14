package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/speech"
)

const (
	// audioBudget is the memory for the audio in responses that are being sent.
	audioBudget = 48 << 20
	// A response with audio must be read within audioGrace plus the time that it needs
	// at minAudioRate.
	audioGrace   = 5 * time.Second
	minAudioRate = 128 << 10 // bytes per second
)

// MediaReader reads blobs of the media service. The response is streamed, with
// status 200, 206, 304, 412 or 416; the caller closes its body.
type MediaReader interface {
	Fetch(ctx context.Context, method, path string, header http.Header) (*http.Response, error)
}

func (s *Server) listSpeechProviders(x *exchange, _ *http.Request) error {
	return x.WriteJSON(http.StatusOK, map[string][]speech.ProviderInfo{"providers": s.deps.Speech.ListProviders()})
}

// synthesize uses the context without the handler timeout, which is too short for
// speech providers.
func (s *Server) synthesize(x *exchange, _ *http.Request, body []byte) error {
	response, err := s.deps.Speech.Synthesize(x.ctx, x.principal.TeamID, body)
	if err == nil && len(response.Audio) > 0 {
		return x.respondWithAudio(s.audio, len(response.Audio), response)
	}
	return x.respond(http.StatusOK, response, err)
}

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

// Header fields that playSpeech forwards to the media service and back.
var (
	audioRequestHeaders  = []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"}
	audioResponseHeaders = []string{"Content-Length", "Content-Range", "Content-Type", "ETag", "Last-Modified", "Accept-Ranges", "Cache-Control"}
)

func (s *Server) playSpeech(x *exchange, r *http.Request) error {
	if err := s.speechStreams.Take(x.holder, 1); err != nil {
		return err
	}
	defer s.speechStreams.Return(x.holder, 1)
	audio, err := s.deps.Speech.Open(x.ctx, x.principal.TeamID, r.PathValue("name"))
	if err != nil {
		return err
	}
	header := http.Header{}
	copyHeader(header, r.Header, audioRequestHeaders)
	resp, err := s.deps.Media.Fetch(x.ctx, r.Method, audio.Path, header)
	if err != nil {
		return audio.Failed(x.ctx, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusPreconditionFailed:
		return fault.New(fault.PreconditionFailed, "The audio does not match If-Match or If-Unmodified-Since.")
	case http.StatusRequestedRangeNotSatisfiable:
		copyHeader(x.Header(), resp.Header, []string{"Content-Range"})
		return fault.New(fault.RangeUnsatisfiable, "The requested range is outside the audio. See Content-Range for its length.")
	}
	copyHeader(x.Header(), resp.Header, audioResponseHeaders)
	if !audio.ExpiresAt.IsZero() { // the media service does not know the expiry
		x.Header().Set("Cache-Control", cacheUntil(audio.ExpiresAt, s.deps.Now()))
	}
	x.WriteHeader(resp.StatusCode)
	var body io.Reader = resp.Body
	if resp.StatusCode == http.StatusOK && r.Method != http.MethodHead {
		body = audio.Verify(x.ctx, body, resp.Header.Get("ETag"))
	}
	if _, err := io.Copy(deadlineWriter{x}, body); err != nil {
		panic(http.ErrAbortHandler) // aborts the connection, so that the client notices the truncation
	}
	return nil
}

func copyHeader(to, from http.Header, names []string) {
	for _, name := range names {
		if value := from.Get(name); value != "" {
			to.Set(name, value)
		}
	}
}

func cacheUntil(expires, now time.Time) string {
	return fmt.Sprintf("private, max-age=%d", max(0, int64(expires.Sub(now).Seconds())))
}

// deadlineWriter applies streamWriteTimeout to each write, not to the whole response.
type deadlineWriter struct{ http.ResponseWriter }

func (w deadlineWriter) Write(b []byte) (int, error) {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(streamWriteTimeout))
	return w.ResponseWriter.Write(b)
}
