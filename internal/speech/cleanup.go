package speech

import "time"

// Stored is a blob as the media service lists it.
type Stored struct {
	Path       string    `json:"path"`
	Bytes      int64     `json:"bytes"`
	ModifiedAt time.Time `json:"modifiedAt"`
}
