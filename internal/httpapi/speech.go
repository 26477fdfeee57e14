package httpapi

import (
	"io"
	"net/http"
	"time"

	"telapi/internal/fault"
	"telapi/internal/speech"
)

// speak may take longer than a store is waited for: providers are slower.
func (s *Server) speak(x *exchange, _ *http.Request, body []byte) error {
	answer, err := s.deps.Speech.Synthesize(x.ctx, x.principal.TeamID, body)
	if err != nil {
		return err
	}
	return x.WriteJSON(http.StatusOK, answer)
}

// playSpeech passes audio on from the media service as it comes, with the
// client's ranges and conditions.
func (s *Server) playSpeech(x *exchange, r *http.Request) error {
	blob, err := s.deps.Speech.Open(x.ctx, x.principal.TeamID, r.PathValue("name"), speech.Conditions{
		Range: r.Header.Get("Range"), IfRange: r.Header.Get("If-Range"),
		IfMatch: r.Header.Get("If-Match"), IfNoneMatch: r.Header.Get("If-None-Match"),
		IfModifiedSince: r.Header.Get("If-Modified-Since"), IfUnmodifiedSince: r.Header.Get("If-Unmodified-Since"),
		Head: r.Method == http.MethodHead,
	})
	if err != nil {
		return err
	}
	defer blob.Body.Close()
	switch blob.Status {
	case http.StatusPreconditionFailed:
		return fault.New(fault.PreconditionFailed, "This audio is not the one that If-Match or If-Unmodified-Since asks for.")
	case http.StatusRequestedRangeNotSatisfiable:
		x.Header().Set("Content-Range", blob.Headers["Content-Range"])
		return fault.New(fault.RangeUnsatisfiable, "No part of this audio lies in the range asked for; Content-Range tells its length.")
	}
	for name, value := range blob.Headers {
		x.Header().Set(name, value)
	}
	x.WriteHeader(blob.Status)
	if _, err := io.Copy(patient{x}, blob.Body); err != nil {
		panic(http.ErrAbortHandler) // so that nobody takes a part for the whole
	}
	return nil
}

// patient gives a listener time for each piece, however long all of it takes.
type patient struct{ http.ResponseWriter }

func (p patient) Write(b []byte) (int, error) {
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTimeout))
	return p.ResponseWriter.Write(b)
}
