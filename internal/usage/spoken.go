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

// A report is counted within countable of the moment it speaks of, and its id is
// remembered for longer than that. So one that comes again is either known or too
// old, and never counted twice.
const (
	countable  = 7 * 24 * time.Hour
	remembered = countable + 2*24*time.Hour
	clockSkew  = time.Hour // by which a runtime's clock may be ahead
)

// What a report may say.
const (
	maxCharacters = 10_000_000
	maxName       = 256 // code points of a team, endpoint, provider, voice or model
)

// readReport reads a report from the stream. Its error is for whoever looks
// into what was refused.
func readReport(report []byte, now time.Time) (r wire.SpeechReport, err error) {
	if err := json.Unmarshal(report, &r); err != nil {
		return r, fmt.Errorf("not a report: %w", err)
	}
	id, err := uuid.Parse(r.ID)
	r.ID = id.String() // the same in capitals is the same
	switch at := time.UnixMilli(r.At); {
	case err != nil:
		return r, errors.New("id is no uuid")
	case r.TeamID == "":
		return r, errors.New("teamId is missing")
	case r.Characters < 1 || r.Characters > maxCharacters:
		return r, fmt.Errorf("characters must be 1 to %d", maxCharacters)
	case now.Sub(at) > countable:
		return r, fmt.Errorf("at lies more than %d days back", countable/(24*time.Hour))
	case at.Sub(now) > clockSkew:
		return r, errors.New("at lies in the future")
	}
	for _, name := range []string{r.TeamID, r.EndpointID, r.Provider, r.Voice, r.Model} {
		if utf8.RuneCountInString(name) > maxName || strings.ContainsRune(name, 0) {
			return r, fmt.Errorf("a name is longer than %d characters, or contains NUL", maxName)
		}
	}
	return r, nil
}
