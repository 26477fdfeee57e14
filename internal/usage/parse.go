package usage

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
)

// A report is accepted up to maxAge, and its ID is stored for longer. A repeated
// report is therefore either known or too old, and is never counted twice.
const (
	maxAge      = 7 * 24 * time.Hour
	idRetention = maxAge + 2*24*time.Hour
	maxAhead    = time.Hour // tolerance for a runtime's clock
)

const (
	maxCharacters = 10_000_000
	maxName       = 256 // code points of a team, endpoint, provider, voice or model
)

// parseReport parses and validates a report from the stream.
func parseReport(raw []byte, now time.Time) (r wire.SpeechReport, err error) {
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("invalid report: %w", err)
	}
	id, err := uuid.Parse(r.ID)
	r.ID = id.String() // in lower case
	switch at := time.UnixMilli(r.At); {
	case err != nil:
		return r, errors.New("id is not a UUID")
	case r.TeamID == "":
		return r, errors.New("teamId is missing")
	case r.Characters < 1 || r.Characters > maxCharacters:
		return r, fmt.Errorf("characters must be 1 to %d", maxCharacters)
	case now.Sub(at) > maxAge:
		return r, fmt.Errorf("at is more than %d days ago", maxAge/(24*time.Hour))
	case at.Sub(now) > maxAhead:
		return r, errors.New("at is in the future")
	}
	for _, name := range []string{r.TeamID, r.EndpointID, r.Provider, r.Voice, r.Model} {
		if utf8.RuneCountInString(name) > maxName || strings.ContainsRune(name, 0) {
			return r, fmt.Errorf("a name is longer than %d characters or contains NUL", maxName)
		}
	}
	return r, nil
}
