package httpapi

import (
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/command"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/strictjson"
)

// endpointBody is the body of requests that create or replace an endpoint. The last
// members cannot be changed; they are accepted, so that a client can send what it
// received.
type endpointBody struct {
	Name    string              `json:"name"`
	Enabled *bool               `json:"enabled"` // nil: true
	Modes   []endpoint.Mode     `json:"modes"`
	Origins []string            `json:"origins"`
	Profile wire.GatewayProfile `json:"gatewayProfile"`

	ID           jsontext.Value `json:"id"`
	Capabilities jsontext.Value `json:"capabilities"`
}

// decodeEndpoint decodes and validates everything that can be set.
func decodeEndpoint(body []byte) (endpoint.Endpoint, error) {
	var issues fault.Issues
	in, err := decodeBody[endpointBody](body, &issues)
	if err != nil {
		return endpoint.Endpoint{}, err
	}
	e := endpoint.Endpoint{
		TeamID: "set by the path", Name: in.Name, Enabled: in.Enabled == nil || *in.Enabled, Modes: in.Modes, Origins: in.Origins, Profile: in.Profile,
	}
	e.Check(&issues)
	return e, issues.Err()
}

func (s *Server) listTeamEndpoints(x *exchange, r *http.Request) error {
	id := r.PathValue("id")
	if err := s.findTeam(x, r, id); err != nil {
		return err
	}
	params, err := parseQuery(r)
	if err != nil {
		return err
	}
	found, err := s.deps.Endpoints.List(r.Context(), id, params)
	return x.respond(http.StatusOK, page.Map(found, s.deps.Endpoints.Deployment.AdminView), err)
}

func (s *Server) createEndpoint(x *exchange, r *http.Request, body []byte) error {
	id := r.PathValue("id")
	if err := x.checkTeam(id, "team"); err != nil {
		return err
	}
	e, err := decodeEndpoint(body)
	if err != nil {
		return err
	}
	e.TeamID = id
	if e, err = s.deps.Endpoints.Create(r.Context(), e); err != nil {
		return err
	}
	return s.respondEndpoint(x, r, http.StatusCreated, e.ID)
}

func (s *Server) showEndpoint(x *exchange, r *http.Request) error {
	return s.respondEndpoint(x, r, http.StatusOK, r.PathValue("id"))
}

func (s *Server) replaceEndpoint(x *exchange, r *http.Request, body []byte) error {
	e, err := decodeEndpoint(body)
	if err != nil {
		return err
	}
	_, err = s.deps.Endpoints.Update(r.Context(), r.PathValue("id"), func(current *endpoint.Endpoint) error {
		if err := s.checkEndpoint(x, r, *current); err != nil {
			return err
		}
		current.Name, current.Enabled, current.Modes, current.Origins, current.Profile = e.Name, e.Enabled, e.Modes, e.Origins, e.Profile
		return nil
	})
	if err != nil {
		return err
	}
	return s.respondEndpoint(x, r, http.StatusOK, r.PathValue("id"))
}

func (s *Server) deleteEndpoint(x *exchange, r *http.Request) error {
	return x.noContent(s.deps.Endpoints.Delete(r.Context(), r.PathValue("id"), func(e endpoint.Endpoint) error {
		return s.checkEndpoint(x, r, e)
	}))
}

// checkEndpoint checks the team and If-Match before a change.
func (s *Server) checkEndpoint(x *exchange, r *http.Request, e endpoint.Endpoint) error {
	if err := x.checkTeam(e.TeamID, "endpoint"); err != nil {
		return err
	}
	return checkMatch(r, s.deps.Endpoints.Deployment.AdminView(e))
}

func (s *Server) findEndpoint(x *exchange, r *http.Request, id string) (endpoint.Endpoint, error) {
	e, err := s.deps.Endpoints.Store.Endpoint(r.Context(), id)
	if err == nil {
		err = x.checkTeam(e.TeamID, "endpoint")
	}
	return e, err
}

// respondEndpoint sends an endpoint as it is stored, so that the ETag is the same
// after every request.
func (s *Server) respondEndpoint(x *exchange, r *http.Request, status int, id string) error {
	e, err := s.findEndpoint(x, r, id)
	if err != nil {
		return err
	}
	view := s.deps.Endpoints.Deployment.AdminView(e)
	return x.respondVersion(status, view, view)
}

// lintBody is the body of POST /api/v1/admin/callbacks/lint.
type lintBody struct {
	Kind       wire.WorkItemKind `json:"kind"`
	Body       jsontext.Value    `json:"body"`
	EndpointID *string           `json:"endpointId"`
	Profile    jsontext.Value    `json:"profile"`
}

// maxLintBody has room for the largest callback and a profile.
var maxLintBody = endpoint.DefaultLimits().CallbackBodyBytes + maxBody

// lintCallback reports what a callback would do. It delivers nothing.
func (s *Server) lintCallback(x *exchange, r *http.Request, body []byte) error {
	var issues fault.Issues
	in, err := decodeBody[lintBody](body, &issues)
	if err != nil {
		return err
	}
	fault.CheckOneOf(&issues, "/kind", in.Kind, wire.WorkItemKinds)
	if len(in.Body) == 0 {
		issues.Missing("/body", "The callback's body is required.")
	}
	var profile wire.GatewayProfile
	if strictjson.Present(in.Profile) {
		issues.Check(in.EndpointID == nil, "/profile", fault.IssueValue, "Send either endpointId or profile.")
		if err := strictjson.Decode(in.Profile, &profile, "/profile", &issues); err != nil {
			return err
		}
		command.CheckProfile(profile, "/profile", &issues)
	}
	if err := issues.Err(); err != nil {
		return err
	}
	if in.EndpointID != nil {
		e, err := s.findEndpoint(x, r, *in.EndpointID)
		if err != nil {
			return err
		}
		profile = e.Profile
	}
	result, err := s.tryCallback(r, in, profile)
	if err == nil && len(in.Profile) > 0 {
		result.Warnings = append(result.Warnings, command.LintProfile(in.Profile, "/profile")...)
	}
	return x.respond(http.StatusOK, result, err)
}

// tryCallback decodes a callback. Large ones wait for each other, as in accept.
func (s *Server) tryCallback(r *http.Request, in lintBody, profile wire.GatewayProfile) (callback.DryRun, error) {
	if len(in.Body) > callback.MaxUncheckedBody {
		select {
		case s.largeCallbacks <- struct{}{}:
			defer func() { <-s.largeCallbacks }()
		case <-r.Context().Done():
			return callback.DryRun{}, r.Context().Err()
		}
	}
	return s.deps.Callbacks.Try(in.Kind, in.Body, profile)
}
