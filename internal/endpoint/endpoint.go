// Package endpoint owns a team's configured entries into a flow, and what each
// of them can do.
package endpoint

import (
	"context"
	"time"

	"telapi/callruntime/wire"
)

// Mode is a way a browser may use an endpoint.
type Mode string

// The modes of a session.
const (
	WebRTC Mode = "webrtc"
	Audio  Mode = "audio"
	Chat   Mode = "chat"
)

// Modes lists them all.
var Modes = []Mode{WebRTC, Audio, Chat}

// Endpoint is one configured entry. Ids sort by age.
type Endpoint struct {
	ID        string              `json:"id"`
	TeamID    string              `json:"teamId"`
	Name      string              `json:"name"`
	Enabled   bool                `json:"enabled"`
	Modes     []Mode              `json:"modes"`
	Origins   []string            `json:"origins"` // allowed Origin values of /ws/session
	Profile   wire.GatewayProfile `json:"gatewayProfile"`
	CreatedAt time.Time           `json:"createdAt"`
	UpdatedAt time.Time           `json:"updatedAt"`
}

// Store keeps endpoints. Lookups of what is not there fail with fault.NotFound.
type Store interface {
	CreateEndpoint(ctx context.Context, e Endpoint) error
	Endpoint(ctx context.Context, id string) (Endpoint, error)
	// Endpoints lists a team's endpoints with ids greater than after, in
	// order of id, limit at the most. An empty teamID lists everybody's.
	Endpoints(ctx context.Context, teamID, after string, limit int) ([]Endpoint, error)
	// UpdateEndpoint makes a change to anything but id, team and age, on top of
	// every other: of two at once, one is made after the other. A change that
	// fails changes nothing.
	UpdateEndpoint(ctx context.Context, id string, change func(*Endpoint) error) (Endpoint, error)
}
