package httpapi

import (
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/ratelimit"
	"telapi/internal/session"
	"telapi/internal/strictjson"
	"telapi/internal/team"
)

// Admin holds the dependencies of the administration routes alone.
type Admin struct {
	Teams      *team.Registry
	Keys       *auth.KeyRegistry
	Endpoints  *team.EndpointRegistry
	Limits     *ratelimit.Settings
	Quotas     ratelimit.Granted
	Audit      audit.Store
	Rejections *audit.Rejections
}

const adminPath = "/api/v1/admin/"

// adminRoutes returns the routes of the administration.
func (s *Server) adminRoutes() []Route {
	admin := func(method, path string, scope auth.Scope, handle handler, params ...string) Route {
		return route(method, adminPath+path, scope, ratelimit.API, asActor(handle), params...)
	}
	return []Route{
		admin("GET", "teams", auth.ManagePlatform, s.listTeams, "cursor", "limit"),
		admin("POST", "teams", auth.ManagePlatform, s.withBody(s.createTeam)),
		admin("GET", "teams/{id}", auth.ManageTeam, s.showTeam),
		admin("PATCH", "teams/{id}", auth.ManagePlatform, s.withBody(s.updateTeam)),
		admin("GET", "teams/{id}/keys", auth.ManageTeam, s.listKeys, "cursor", "limit"),
		admin("POST", "teams/{id}/keys", auth.ManageTeam, s.withBody(s.createKey)),
		admin("DELETE", "keys/{id}", auth.ManageTeam, s.revokeKey),
		admin("GET", "teams/{id}/endpoints", auth.ManageTeam, s.listTeamEndpoints, "cursor", "limit"),
		admin("POST", "teams/{id}/endpoints", auth.ManageTeam, s.withBodyOf(maxEndpointBody, s.createEndpoint)),
		admin("GET", "endpoints/{id}", auth.ManageTeam, s.showEndpoint),
		admin("PUT", "endpoints/{id}", auth.ManageTeam, s.withBodyOf(maxEndpointBody, s.replaceEndpoint)),
		admin("DELETE", "endpoints/{id}", auth.ManageTeam, s.deleteEndpoint),
		admin("GET", "limits", auth.ManagePlatform, s.showLimits),
		admin("PUT", "limits", auth.ManagePlatform, s.withBody(s.replaceLimits)),
		admin("GET", "sessions", auth.ManageTeam, s.listSessions, "teamId", "state", "cursor", "limit"),
		admin("DELETE", "sessions/{id}", auth.ManageTeam, s.revokeSession),
		admin("GET", "audit", auth.ManagePlatform, s.listAudit, "teamId", "from", "to", "cursor", "limit"),
		admin("POST", "callbacks/lint", auth.ManageTeam, s.withBodyOf(maxLintBody, s.lintCallback)),
	}
}

// recordRejection adds to the audit log that the caller may not manage what it requested,
// or did not find it, perhaps because it belongs to another team.
func (s *Server) recordRejection(x *exchange, r *http.Request, err error) {
	if !strings.HasPrefix(x.route.Path, adminPath) {
		return
	}
	code := fault.From(err).Code
	if code == fault.Forbidden || code == fault.NotFound && !x.principal.ManagesPlatform() {
		s.deps.Admin.Rejections.Record(x.principal.Actor(), x.principal.TeamID, audit.Attempt{Request: r.Method + " " + r.URL.EscapedPath(), Code: code})
	}
}

// asActor makes the caller the author of a handler's changes.
func asActor(handle handler) handler {
	return func(x *exchange, r *http.Request) error {
		actor := x.principal.Actor()
		x.ctx = audit.WithActor(x.ctx, actor)
		return handle(x, r.WithContext(audit.WithActor(r.Context(), actor)))
	}
}

// checkTeam returns NOT_FOUND unless the caller may manage the team that a resource
// belongs to: callers cannot learn which IDs other teams have.
func (x *exchange) checkTeam(teamID, kind string) error {
	if teamID == x.principal.TeamID || x.principal.ManagesPlatform() {
		return nil
	}
	return fault.New(fault.NotFound, "The %s was not found.", kind)
}

// teamFilter returns the team in the query parameter teamId. Without it, administrators of
// the platform get all teams, and others their own. The issues of all parameters come
// before NOT_FOUND for a foreign team.
func (x *exchange) teamFilter(issues *fault.Issues) (page.Teams, error) {
	teamID, given := issues.QueryValue(x.params, "teamId")
	issues.Check(!given || auth.ValidTeamID(teamID), "/query/teamId", fault.IssueValue, "Must be the ID of a team.")
	switch err := issues.Err(); {
	case err != nil:
		return page.Teams{}, err
	case given:
		return page.OfTeam(teamID), x.checkTeam(teamID, "team")
	case x.principal.ManagesPlatform():
		return page.OfAllTeams(x.principal), nil
	}
	return page.OfTeam(x.principal.TeamID), nil
}

// respondPage sends the page of a list that the parameters cursor and limit select. id returns
// the cursor after an item, and view the item in the response.
func respondPage[T, V any](x *exchange, validID func(string) bool, read func(page.Query) ([]T, error), id func(T) string, view func(T) V) error {
	var issues fault.Issues
	query := page.Parse(x.params, validID, &issues)
	if err := issues.Err(); err != nil {
		return err
	}
	found, err := page.Read(query, read, id)
	return x.respond(http.StatusOK, page.Map(found, view), err)
}

func (x *exchange) noContent(err error) error {
	if err == nil {
		x.WriteHeader(http.StatusNoContent)
	}
	return err
}

// decodeBody decodes an object and records members that T does not have: a misspelled
// one would silently change nothing.
func decodeBody[T any](body []byte, issues *fault.Issues) (in T, err error) {
	if err := strictjson.Decode(body, &in, "", issues); err != nil {
		return in, err
	}
	for _, w := range strictjson.UnknownMembers(body, in, nil) {
		issues.Add(w.Path, fault.IssueUnknown, "%s", w.Message)
	}
	return in, nil
}

// etagOf returns a strong ETag of the JSON form of v.
func etagOf(v any) (string, error) {
	body, err := json.Marshal(v, json.Deterministic(true))
	return strongETag(body), err
}

// checkMatch returns PRECONDITION_FAILED if If-Match does not have the ETag of the
// current version. It uses the strong comparison (RFC 9110, 13.1.1).
func checkMatch(r *http.Request, current any) error {
	header := r.Header.Values("If-Match")
	if len(header) == 0 {
		return nil
	}
	etag, err := etagOf(current)
	if err != nil || matchesETag(strings.Join(header, ","), etag) {
		return err
	}
	return fault.New(fault.PreconditionFailed, "It was changed since you read it: its ETag is now %s. Read it again, and send this ETag in If-Match.", etag)
}

// respondVersion sends v with the ETag of version, the part of v that If-Match concerns.
func (x *exchange) respondVersion(status int, version, v any) error {
	etag, err := etagOf(version)
	if err != nil {
		return err
	}
	x.Header().Set("ETag", etag)
	return x.WriteJSON(status, v)
}

func (s *Server) showLimits(x *exchange, r *http.Request) error {
	if err := s.deps.Admin.Limits.Reload(r.Context()); err != nil {
		return err
	}
	limits := s.deps.Admin.Limits.Current()
	return x.respondVersion(http.StatusOK, limits, limits)
}

func (s *Server) replaceLimits(x *exchange, r *http.Request, body []byte) error {
	limits, err := ratelimit.ParseLimits(body)
	if err == nil {
		err = s.deps.Admin.Limits.Change(r.Context(), func(current ratelimit.Limits) (ratelimit.Limits, error) {
			return limits, checkMatch(r, current)
		})
	}
	if err != nil {
		return err
	}
	return x.respondVersion(http.StatusOK, limits, limits)
}

func (s *Server) listSessions(x *exchange, r *http.Request) (err error) {
	var issues fault.Issues
	query := session.ParseQuery(x.params, &issues)
	if query.Teams, err = x.teamFilter(&issues); err != nil {
		return err
	}
	sessions, err := s.deps.Sessions.List(r.Context(), query)
	return x.respond(http.StatusOK, sessions, err)
}

func (s *Server) revokeSession(x *exchange, r *http.Request) error {
	return x.noContent(s.deps.Sessions.Revoke(r.Context(), r.PathValue("id"), func(teamID string) error {
		return x.checkTeam(teamID, "session")
	}))
}

func (s *Server) listAudit(x *exchange, r *http.Request) (err error) {
	var issues fault.Issues
	query := audit.ParseQuery(x.params, &issues)
	if query.Teams, err = x.teamFilter(&issues); err != nil {
		return err
	}
	entries, err := audit.List(r.Context(), s.deps.Admin.Audit, query)
	return x.respond(http.StatusOK, entries, err)
}
