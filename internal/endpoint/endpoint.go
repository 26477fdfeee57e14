// Package endpoint manages endpoints: a team's configured entries into a flow.
package endpoint

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
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
	// after the ID in after. An empty teamID lists the endpoints of all teams.
	Endpoints(ctx context.Context, teamID, after string, limit int) ([]Endpoint, error)
	// UpdateEndpoint applies change to an endpoint and stores it, unless change
	// fails. ID, team and CreatedAt cannot be changed. Concurrent updates are
	// applied one after the other.
	UpdateEndpoint(ctx context.Context, id string, change func(*Endpoint) error) (Endpoint, error)
}

const (
	idPrefix   = "ep_"
	maxName    = 120 // characters
	maxOrigins = 100
)

var idPattern = regexp.MustCompile(`^` + idPrefix + `[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

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

// Validate normalizes and checks an endpoint. The error lists every issue.
func (e *Endpoint) Validate() error {
	var issues fault.Issues
	e.Name = strings.TrimSpace(e.Name)
	issues.Check(e.Name != "", "/name", fault.IssueRequired, "name is required.")
	issues.CheckName("/name", e.Name, maxName)
	issues.Check(e.TeamID != "", "/teamId", fault.IssueRequired, "teamId is required.")
	e.Modes = normalizeModes(e.Modes, &issues)
	e.Origins = normalizeOrigins(e.Origins, &issues)
	command.CheckProfile(e.Profile, "/gatewayProfile", &issues)
	return issues.Err()
}

func normalizeModes(modes []Mode, issues *fault.Issues) []Mode {
	issues.Check(len(modes) > 0, "/modes", fault.IssueRequired, "modes needs at least one of webrtc, audio and chat.")
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
		origin, ok := normalizeOrigin(s)
		if !ok {
			issues.Add(fault.Pointer("/origins", i), fault.IssueValue, "An origin must be a scheme and a host, such as https://shop.example or http://localhost:8080.")
			continue
		}
		if !slices.Contains(normalized, origin) {
			normalized = append(normalized, origin)
		}
	}
	return normalized
}

func normalizeOrigin(s string) (string, bool) {
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" {
		return "", false
	}
	if strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery || strings.ContainsAny(u.Host, "* ") {
		return "", false
	}
	host := strings.ToLower(u.Host)
	if port := u.Port(); port == "" || u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80" {
		host = strings.TrimSuffix(host, ":"+port)
	}
	return u.Scheme + "://" + host, true
}

const (
	defaultPageSize = 50
	maxPageSize     = 200
)

// View is an endpoint in a team's list.
type View struct {
	ID             string              `json:"id"`
	Name           string              `json:"name"`
	Enabled        bool                `json:"enabled"`
	Modes          []Mode              `json:"modes"`
	Capabilities   Summary             `json:"capabilities"`
	GatewayProfile wire.GatewayProfile `json:"gatewayProfile"`
}

// Page is one page of a team's list. NextCursor is nil on the last page.
type Page struct {
	Data       []View  `json:"data"`
	NextCursor *string `json:"nextCursor"`
}

// Service manages endpoints. ListPage and Capabilities need Deployment, Create and
// Update need Now.
type Service struct {
	Store      Store
	Deployment Deployment
	Now        func() time.Time
}

// Create stores a new endpoint with a new ID and enables it.
func (s *Service) Create(ctx context.Context, e Endpoint) (Endpoint, error) {
	id := uuid.Must(uuid.NewV7()) // IDs sort by age
	e.ID, e.Enabled, e.CreatedAt = idPrefix+id.String(), true, s.Now()
	if err := s.prepare(&e); err != nil {
		return Endpoint{}, err
	}
	if err := s.Store.CreateEndpoint(ctx, e); err != nil {
		return Endpoint{}, fmt.Errorf("create endpoint: %w", err)
	}
	return e, nil
}

// Update applies change to an endpoint. Concurrent updates are applied one
// after the other.
func (s *Service) Update(ctx context.Context, id string, change func(*Endpoint)) (Endpoint, error) {
	return s.Store.UpdateEndpoint(ctx, id, func(e *Endpoint) error {
		change(e)
		return s.prepare(e)
	})
}

func (s *Service) prepare(e *Endpoint) error {
	e.UpdatedAt = s.Now()
	return e.Validate()
}

// Get returns a team's endpoint. An endpoint of another team is not found: a
// team cannot learn which IDs others have.
func (s *Service) Get(ctx context.Context, teamID, id string) (Endpoint, error) {
	e, err := s.Store.Endpoint(ctx, id)
	if fault.Is(err, fault.NotFound) || err == nil && e.TeamID != teamID {
		return Endpoint{}, fault.New(fault.NotFound, "Endpoint not found.")
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("get endpoint: %w", err)
	}
	return e, nil
}

// Capabilities returns the JSON document about one of a team's endpoints.
func (s *Service) Capabilities(ctx context.Context, teamID, id string) ([]byte, error) {
	e, err := s.Get(ctx, teamID, id)
	if err != nil {
		return nil, err
	}
	return s.Deployment.endpointCapabilities(e)
}

// ListPage returns one page of a team's endpoints, oldest first. It reads the
// query parameters cursor and limit.
func (s *Service) ListPage(ctx context.Context, teamID string, params map[string][]string) (Page, error) {
	after, limit, err := parsePage(params)
	if err != nil {
		return Page{}, err
	}
	// One endpoint more than the limit shows whether there is a next page.
	found, err := s.Store.Endpoints(ctx, teamID, after, limit+1)
	if err != nil {
		return Page{}, fmt.Errorf("list endpoints: %w", err)
	}
	var page Page
	if len(found) > limit {
		found = found[:limit]
		page.NextCursor = &found[limit-1].ID
	}
	page.Data = make([]View, len(found))
	for i, e := range found {
		page.Data[i] = View{e.ID, e.Name, e.Enabled, e.Modes, s.Deployment.summary(e), e.Profile}
	}
	return page, nil
}

// List returns all endpoints of a team, or of all teams if teamID is empty.
func (s *Service) List(ctx context.Context, teamID string) ([]Endpoint, error) {
	all, err := s.Store.Endpoints(ctx, teamID, "", math.MaxInt32)
	if err != nil {
		return nil, fmt.Errorf("list endpoints: %w", err)
	}
	return all, nil
}

func parsePage(params map[string][]string) (after string, limit int, err error) {
	var issues fault.Issues
	limit = defaultPageSize
	if s, _ := issues.QueryValue(params, "limit"); s != "" {
		if limit, err = strconv.Atoi(s); err != nil || limit < 1 || limit > maxPageSize {
			issues.Add("/query/limit", fault.IssueValue, "limit must be a number from 1 to %d.", maxPageSize)
		}
	}
	after, _ = issues.QueryValue(params, "cursor")
	issues.Check(after == "" || idPattern.MatchString(after), "/query/cursor", fault.IssueValue, "cursor must be the nextCursor of the previous page.")
	return after, limit, issues.Err()
}
