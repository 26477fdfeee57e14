package team

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"telapi/callruntime/wire"
	"telapi/internal/audit"
	"telapi/internal/command"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/strictjson"
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

// Endpoint is a team's configuration for conversations. IDs sort by age.
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

// EndpointStore holds endpoints. Lookups of unknown endpoints fail with fault.NotFound. It
// writes audit entries in the transaction of the change.
type EndpointStore interface {
	// CreateEndpoint adds an endpoint. It returns fault.Validation if the team has
	// MaxEndpoints endpoints already, even if others are created at the same time.
	CreateEndpoint(ctx context.Context, e Endpoint, entries ...audit.Entry) error
	Endpoint(ctx context.Context, id string) (Endpoint, error)
	// Endpoints returns a page of the teams' endpoints, oldest first.
	Endpoints(ctx context.Context, teams page.Teams, q page.Query) ([]Endpoint, error)
	// UpdateEndpoint applies change to an endpoint and stores it, unless change
	// fails. ID, team and CreatedAt cannot be changed. Concurrent updates are
	// applied one after the other.
	UpdateEndpoint(ctx context.Context, id string, change func(*Endpoint) ([]audit.Entry, error)) (Endpoint, error)
	// DeleteEndpoint deletes an endpoint and revokes its sessions, unless check
	// fails.
	DeleteEndpoint(ctx context.Context, id string, check func(Endpoint) ([]audit.Entry, error)) error
}

// MaxEndpoints is the maximum number of endpoints of a team.
const MaxEndpoints = 1000

const (
	endpointIDPrefix = "ep_"
	maxEndpointName  = 120 // characters
	maxOrigins       = 100
	maxOrigin        = 300 // characters
)

// ValidEndpointID reports whether the ID of an endpoint has the right form.
var ValidEndpointID = page.UUID(endpointIDPrefix)

// ParseProfile parses a gateway profile. The error lists every issue. Unknown
// members are kept.
func ParseProfile(data []byte) (p wire.GatewayProfile, err error) {
	var issues fault.Issues
	if err := strictjson.Decode(data, &p, "", &issues); err != nil {
		return p, err
	}
	command.CheckProfile(p, "", &issues)
	return p, issues.Err()
}

// Check normalizes what can be set of an endpoint and records every issue.
func (e *Endpoint) Check(issues *fault.Issues) {
	e.Name = strings.TrimSpace(e.Name)
	if e.Name == "" {
		issues.Missing("/name", "name is required.")
	}
	issues.CheckName("/name", e.Name, maxEndpointName)
	e.Modes = normalizeModes(e.Modes, issues)
	e.Origins = normalizeOrigins(e.Origins, issues)
	command.CheckProfile(e.Profile, "/gatewayProfile", issues)
}

func normalizeModes(modes []Mode, issues *fault.Issues) []Mode {
	if len(modes) == 0 {
		issues.Missing("/modes", "modes needs at least one of webrtc, audio and chat.")
	}
	for i, m := range modes {
		fault.CheckOneOf(issues, fault.Pointer("/modes", i), m, Modes)
	}
	return slices.DeleteFunc(slices.Clone(Modes), func(m Mode) bool { return !slices.Contains(modes, m) })
}

// normalizeOrigins returns origins as browsers send them, without duplicates.
func normalizeOrigins(origins []string, issues *fault.Issues) []string {
	if len(origins) > maxOrigins {
		issues.Add("/origins", fault.IssueTooMany, "origins must have at most %d items.", maxOrigins)
		return nil
	}
	var normalized []string
	for i, s := range origins {
		path := fault.Pointer("/origins", i)
		if issues.Has(path) {
			continue
		}
		if utf8.RuneCountInString(s) > maxOrigin {
			issues.Add(path, fault.IssueTooLong, "Must have at most %d characters.", maxOrigin)
			continue
		}
		normal, ok := config.NormalizeOrigin(s)
		if !ok {
			issues.Add(path, fault.IssueValue, "An origin must be a scheme and a host, such as https://shop.example or http://localhost:8080.")
			continue
		}
		if !slices.Contains(normalized, normal) {
			normalized = append(normalized, normal)
		}
	}
	return normalized
}
