// Package endpoint manages endpoints: a team's configured entries into a flow.
package endpoint

import (
	"context"
	"time"

	"telapi/callruntime/wire"
)

// Mode is the kind of session that an endpoint supports.
type Mode string

// Modes of a session.
const (
	WebRTC Mode = "webrtc"
	Audio  Mode = "audio"
	Chat   Mode = "chat"
)

// Modes lists all modes in canonical order.
var Modes = []Mode{WebRTC, Audio, Chat}

// Endpoint is one configured entry into a flow. IDs sort by age.
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

// Store holds endpoints. Lookups of unknown endpoints fail with fault.NotFound.
type Store interface {
	CreateEndpoint(ctx context.Context, e Endpoint) error
	Endpoint(ctx context.Context, id string) (Endpoint, error)
	// Endpoints lists up to limit endpoints of a team in order of ID, starting
	// after an ID. An empty teamID lists the endpoints of all teams.
	Endpoints(ctx context.Context, teamID, after string, limit int) ([]Endpoint, error)
	// UpdateEndpoint applies change to an endpoint and stores it, unless change
	// fails. ID, team and CreatedAt cannot be changed. Concurrent updates are
	// applied one after the other.
	UpdateEndpoint(ctx context.Context, id string, change func(*Endpoint) error) (Endpoint, error)
}
