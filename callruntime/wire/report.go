package wire

const (
	// ReportsStream holds what was spoken and is not counted yet: the field
	// report, one SpeechReport.
	ReportsStream = "telapi:usage"
	// RefusedReports holds what could not be counted: the fields report and
	// reason.
	RefusedReports = "telapi:usage:refused"
)

// SpeechReport says that a text was spoken. Each is counted once, however often
// it is sent.
type SpeechReport struct {
	ID         string `json:"id"` // a uuid
	TeamID     string `json:"teamId"`
	EndpointID string `json:"endpointId,omitzero"`
	Provider   string `json:"provider,omitzero"`
	Voice      string `json:"voice,omitzero"`
	Model      string `json:"model,omitzero"`
	Characters int64  `json:"characters"`      // Unicode code points of the text
	Cached     bool   `json:"cached,omitzero"` // it came from a cache, and no provider was asked
	At         int64  `json:"at"`              // Unix milliseconds
}
