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

// Receipt is an entry of the account under an id by which it is counted once.
type Receipt struct {
	ID string
	Entry
}

// readReceipt reads a report from the stream. Its error is for whoever looks
// into what was refused.
func readReceipt(report []byte, now time.Time) (Receipt, error) {
	var r wire.SpeechReport
	if err := json.Unmarshal(report, &r); err != nil {
		return Receipt{}, fmt.Errorf("not a report: %w", err)
	}
	id, err := uuid.Parse(r.ID)
	at := time.UnixMilli(r.At).UTC()
	switch {
	case err != nil:
		return Receipt{}, errors.New("id is no uuid")
	case r.TeamID == "":
		return Receipt{}, errors.New("teamId is missing")
	case r.Characters < 1 || r.Characters > maxCharacters:
		return Receipt{}, fmt.Errorf("characters must be 1 to %d", maxCharacters)
	case now.Sub(at) > countable:
		return Receipt{}, fmt.Errorf("at lies more than %d days back", countable/(24*time.Hour))
	case at.Sub(now) > clockSkew:
		return Receipt{}, errors.New("at lies in the future")
	}
	for _, name := range []string{r.TeamID, r.EndpointID, r.Provider, r.Voice, r.Model} {
		if utf8.RuneCountInString(name) > maxName || strings.ContainsRune(name, 0) {
			return Receipt{}, fmt.Errorf("a name is longer than %d characters, or contains NUL", maxName)
		}
	}
	counts := Counts{Characters: r.Characters, Requests: 1}
	if r.Cached {
		counts.Cached = r.Characters
	}
	return Receipt{id.String(), Entry{r.TeamID, r.EndpointID, r.Provider, r.Voice, r.Model, at, counts}}, nil
}

// report is the receipt of one request as it travels on the stream.
func (r Receipt) report() ([]byte, error) {
	return json.Marshal(wire.SpeechReport{
		ID: r.ID, TeamID: r.TeamID, EndpointID: r.EndpointID, Provider: r.Provider, Voice: r.Voice, Model: r.Model,
		Characters: r.Characters, Cached: r.Cached > 0, At: r.Day.UnixMilli(),
	})
}
