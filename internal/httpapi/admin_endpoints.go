package httpapi

import (
	"context"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/strictjson"
	"telapi/internal/team"
)

// endpointBody is the body of requests that create or replace an endpoint. The last
// members cannot be changed; they are accepted, so that a client can send what it
// received.
type endpointBody struct {
	Name    string         `json:"name"`
	Enabled *bool          `json:"enabled"` // nil: true
	Modes   []team.Mode    `json:"modes"`
	Origins []string       `json:"origins"`
	Profile jsontext.Value `json:"gatewayProfile"`

	ID           jsontext.Value `json:"id"`
	Capabilities jsontext.Value `json:"capabilities"`
	Warnings     jsontext.Value `json:"warnings"`
}

// decodeEndpoint decodes and validates everything that can be set. It warns about
// members of the profile that have no effect.
func decodeEndpoint(body []byte) (e team.Endpoint, warnings []strictjson.Warning, err error) {
	const profilePath = "/gatewayProfile"
	var issues fault.Issues
	in, err := decodeBody[endpointBody](body, &issues)
	if err != nil {
		return e, nil, err
	}
	e = team.Endpoint{Name: in.Name, Enabled: in.Enabled == nil || *in.Enabled, Modes: in.Modes, Origins: in.Origins}
	if strictjson.Present(in.Profile) {
		if err := strictjson.Decode(in.Profile, &e.Profile, profilePath, &issues); err != nil {
			return e, nil, err
		}
		warnings = command.LintProfile(in.Profile, profilePath)
	}
	e.Check(&issues)
	return e, warnings, issues.Err()
}

func (s *Server) listTeamEndpoints(x *exchange, r *http.Request) error {
	id := r.PathValue("id")
	if err := s.findTeam(x, r, id); err != nil {
		return err
	}
	return respondEndpoints(s, x, r, id, s.deps.Endpoints.Deployment.AdminView)
}

// respondEndpoints sends one page of a team's endpoints.
func respondEndpoints[V any](s *Server, x *exchange, r *http.Request, teamID string, view func(team.Endpoint) V) error {
	return respondPage(x, team.ValidEndpointID, func(q page.Query) ([]team.Endpoint, error) {
		return s.deps.Admin.Endpoints.Store.Endpoints(r.Context(), page.OfTeam(teamID), q)
	}, func(e team.Endpoint) string { return e.ID }, view)
}

func (s *Server) createEndpoint(x *exchange, r *http.Request, body []byte) error {
	id := r.PathValue("id")
	if err := x.checkTeam(id, "team"); err != nil {
		return err
	}
	e, warnings, err := decodeEndpoint(body)
	if err != nil {
		return err
	}
	e.TeamID = id
	if e, err = s.deps.Admin.Endpoints.Create(r.Context(), e); err != nil {
		return err
	}
	return s.respondEndpoint(x, r, http.StatusCreated, e.ID, warnings)
}

func (s *Server) showEndpoint(x *exchange, r *http.Request) error {
	return s.respondEndpoint(x, r, http.StatusOK, r.PathValue("id"), nil)
}

func (s *Server) replaceEndpoint(x *exchange, r *http.Request, body []byte) error {
	e, warnings, err := decodeEndpoint(body)
	if err != nil {
		return err
	}
	_, err = s.deps.Admin.Endpoints.Update(r.Context(), r.PathValue("id"), func(current *team.Endpoint) error {
		if err := s.checkEndpoint(x, r, *current); err != nil {
			return err
		}
		current.Name, current.Enabled, current.Modes, current.Origins, current.Profile = e.Name, e.Enabled, e.Modes, e.Origins, e.Profile
		return nil
	})
	if err != nil {
		return err
	}
	return s.respondEndpoint(x, r, http.StatusOK, r.PathValue("id"), warnings)
}

func (s *Server) deleteEndpoint(x *exchange, r *http.Request) error {
	return x.noContent(s.deps.Admin.Endpoints.Delete(r.Context(), r.PathValue("id"), func(e team.Endpoint) error {
		return s.checkEndpoint(x, r, e)
	}))
}

// checkEndpoint checks the team and If-Match before a change.
func (s *Server) checkEndpoint(x *exchange, r *http.Request, e team.Endpoint) error {
	if err := x.checkTeam(e.TeamID, "endpoint"); err != nil {
		return err
	}
	return checkMatch(r, s.deps.Endpoints.Deployment.AdminView(e))
}

func (s *Server) findEndpoint(x *exchange, r *http.Request, id string) (team.Endpoint, error) {
	e, err := s.deps.Admin.Endpoints.Store.Endpoint(r.Context(), id)
	if err == nil {
		err = x.checkTeam(e.TeamID, "endpoint")
	}
	return e, err
}

// respondEndpoint sends an endpoint as it is stored, so that the ETag is the same
// after every request. It depends on the endpoint only, not on the warnings.
func (s *Server) respondEndpoint(x *exchange, r *http.Request, status int, id string, warnings []strictjson.Warning) error {
	e, err := s.findEndpoint(x, r, id)
	if err != nil {
		return err
	}
	view := s.deps.Endpoints.Deployment.AdminView(e)
	return x.respondVersion(status, view, struct {
		team.EndpointAdminView
		Warnings []strictjson.Warning `json:"warnings,omitempty"`
	}{view, warnings})
}

// lintBody is the body of POST /api/v1/admin/callbacks/lint.
type lintBody struct {
	Kind       wire.WorkItemKind `json:"kind"`
	Body       jsontext.Value    `json:"body"`
	EndpointID *string           `json:"endpointId"`
	Profile    jsontext.Value    `json:"profile"`

	// Of a streamed answer, whose body is a string.
	ContentType string `json:"contentType"`
	Split       string `json:"split"`
}

// maxEndpointBody has room for the largest gateway profile and the other settings.
const maxEndpointBody = 2 * command.MaxProfileBytes

// maxLintBody has room for the largest callback and a profile.
var maxLintBody = team.DefaultRequestLimits().CallbackBodyBytes + maxEndpointBody

// lintCallback reports what a callback would do. It delivers nothing.
func (s *Server) lintCallback(x *exchange, r *http.Request, body []byte) error {
	in, profile, err := s.decodeLint(r.Context(), body)
	if err == nil && in.EndpointID != nil {
		var e team.Endpoint
		e, err = s.findEndpoint(x, r, *in.EndpointID)
		profile = e.Profile
	}
	if err != nil {
		return err
	}
	done, err := s.waitIfLarge(r.Context(), len(body)) // after the query, which may be slow
	if err != nil {
		return err
	}
	result, err := s.deps.Callbacks.Try(callback.Trial{Kind: in.Kind, Body: in.Body, MediaType: in.ContentType, PerDelta: in.Split == splitNone}, profile)
	if err == nil && len(in.Profile) > 0 {
		result.Warnings = append(result.Warnings, command.LintProfile(in.Profile, "/profile")...)
	}
	done() // a client may be slow to read
	return x.respond(http.StatusOK, result, err)
}

func (s *Server) decodeLint(ctx context.Context, body []byte) (in lintBody, profile wire.GatewayProfile, err error) {
	done, err := s.waitIfLarge(ctx, len(body))
	if err != nil {
		return in, profile, err
	}
	defer done()
	var issues fault.Issues
	if in, err = decodeBody[lintBody](body, &issues); err != nil {
		return in, profile, err
	}
	fault.CheckOneOf(&issues, "/kind", in.Kind, wire.WorkItemKinds)
	if len(in.Body) == 0 {
		issues.Missing("/body", "The callback's body is required.")
	}
	if in.ContentType != "" {
		fault.CheckOneOf(&issues, "/contentType", in.ContentType, []string{callback.NDJSON, callback.EventStream})
		issues.Check(in.Split == "" || in.Split == splitNone || in.Split == splitSentence, "/split", fault.IssueValue, "Use none or sentence.")
		var stream string
		_ = strictjson.Decode(in.Body, &stream, "/body", &issues) // fails only without a body: decodeBody has decoded it
		in.Body = []byte(stream)
	}
	if strictjson.Present(in.Profile) {
		issues.Check(in.EndpointID == nil, "/profile", fault.IssueValue, "Send either endpointId or profile.")
		if err := strictjson.Decode(in.Profile, &profile, "/profile", &issues); err != nil {
			return in, profile, err
		}
		command.CheckProfile(profile, "/profile", &issues)
	}
	return in, profile, issues.Err()
}
