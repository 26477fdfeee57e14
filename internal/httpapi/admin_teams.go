package httpapi

import (
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/ratelimit"
	"telapi/internal/strictjson"
	"telapi/internal/team"
)

// teamBody is the body of requests that create or change a team. The last members
// cannot be changed; they are accepted, so that a client can send what it received.
type teamBody struct {
	Name       *string        `json:"name"`
	DailyQuota jsontext.Value `json:"dailyQuota"` // null: the default
	Disabled   *bool          `json:"disabled"`

	ID        jsontext.Value `json:"id"`
	UsedToday jsontext.Value `json:"usedToday"`
	CreatedAt jsontext.Value `json:"createdAt"`
}

// decodeTeam returns a function that applies a body to a team. It checks the body as
// applied to base.
func decodeTeam(body []byte, base team.Team) (apply func(*team.Team), err error) {
	var issues fault.Issues
	in, err := decodeBody[teamBody](body, &issues)
	if err != nil {
		return nil, err
	}
	var quota *int64
	if strictjson.Present(in.DailyQuota) {
		n, ok := strictjson.Integer(in.DailyQuota)
		issues.Check(ok, "/dailyQuota", fault.IssueType, "Must be an integer, or null for the default.")
		quota = &n
	}
	apply = func(t *team.Team) {
		if in.Name != nil {
			t.Name = *in.Name
		}
		if in.DailyQuota != nil {
			t.DailyQuota = quota
		}
		if in.Disabled != nil {
			t.Disabled = *in.Disabled
		}
	}
	apply(&base)
	base.Check(&issues)
	return apply, issues.Err()
}

func (s *Server) listTeams(x *exchange, r *http.Request) error {
	return respondPage(x, team.ValidID, func(q page.Query) (views []team.View, err error) {
		teams, err := s.deps.Admin.Teams.Store.Teams(r.Context(), q)
		if err != nil {
			return nil, err
		}
		var ids []string
		for _, t := range teams {
			ids = append(ids, t.ID)
		}
		used, err := ratelimit.UsedToday(r.Context(), s.deps.Admin.Quotas, ids...)
		for i := range used {
			views = append(views, teams[i].View(&used[i]))
		}
		return views, err
	}, func(v team.View) string { return v.ID }, func(v team.View) team.View { return v })
}

func (s *Server) createTeam(x *exchange, r *http.Request, body []byte) error {
	apply, err := decodeTeam(body, team.Team{})
	if err != nil {
		return err
	}
	var t team.Team
	apply(&t)
	if t, err = s.deps.Admin.Teams.Create(r.Context(), t); err != nil {
		return err
	}
	return s.respondTeam(x, r, http.StatusCreated, t.ID)
}

func (s *Server) showTeam(x *exchange, r *http.Request) error {
	id := r.PathValue("id")
	if err := x.checkTeam(id, "team"); err != nil {
		return err
	}
	return s.respondTeam(x, r, http.StatusOK, id)
}

func (s *Server) updateTeam(x *exchange, r *http.Request, body []byte) error {
	id := r.PathValue("id")
	apply, err := decodeTeam(body, team.Team{Name: "unchanged"}) // a valid team: the body need not have a name
	if err != nil {
		return err
	}
	_, err = s.deps.Admin.Teams.Update(r.Context(), id, func(t *team.Team) error {
		if err := checkMatch(r, t.View(nil)); err != nil {
			return err
		}
		apply(t)
		return nil
	})
	if err != nil {
		return err
	}
	return s.respondTeam(x, r, http.StatusOK, id)
}

// respondTeam sends a team as it is stored, so that the ETag is the same after every
// request. The ETag does not depend on the number of requests today.
func (s *Server) respondTeam(x *exchange, r *http.Request, status int, id string) error {
	t, err := s.deps.Admin.Teams.Store.Team(r.Context(), id)
	if err != nil {
		return err
	}
	used, err := ratelimit.UsedToday(r.Context(), s.deps.Admin.Quotas, t.ID)
	if err != nil {
		return err
	}
	return x.respondVersion(status, t.View(nil), t.View(&used[0]))
}

func (s *Server) listKeys(x *exchange, r *http.Request) error {
	id := r.PathValue("id")
	if err := s.findTeam(x, r, id); err != nil {
		return err
	}
	return respondPage(x, auth.ValidKeyID, func(q page.Query) ([]auth.Key, error) {
		return s.deps.Admin.Keys.Store.Keys(r.Context(), page.OfTeam(id), q)
	}, func(k auth.Key) string { return k.ID }, func(k auth.Key) auth.KeyView { return k.View(s.deps.Now()) })
}

// findTeam returns NOT_FOUND unless the team exists and the caller may manage it.
func (s *Server) findTeam(x *exchange, r *http.Request, id string) error {
	if err := x.checkTeam(id, "team"); err != nil {
		return err
	}
	_, err := s.deps.Admin.Teams.Store.Team(r.Context(), id)
	return err
}

type keyBody struct {
	Name      string       `json:"name"`
	Scopes    []auth.Scope `json:"scopes"`
	ExpiresAt *string      `json:"expiresAt"`
}

func (s *Server) createKey(x *exchange, r *http.Request, body []byte) error {
	id := r.PathValue("id")
	if err := x.checkTeam(id, "team"); err != nil {
		return err
	}
	var issues fault.Issues
	in, err := decodeBody[keyBody](body, &issues)
	if err != nil {
		return err
	}
	k := auth.Key{TeamID: id, Name: in.Name, Scopes: in.Scopes}
	if in.ExpiresAt != nil && !issues.Has("/expiresAt") {
		if k.ExpiresAt, err = time.Parse(time.RFC3339, *in.ExpiresAt); err != nil {
			issues.Add("/expiresAt", fault.IssueValue, "Must be a time such as 2027-01-01T00:00:00Z.")
		}
	}
	k.Check(s.deps.Now(), &issues)
	if err := issues.Err(); err != nil {
		return err
	}
	if err := x.principal.CheckGrant(k.Scopes); err != nil {
		return err
	}
	k, full, err := s.deps.Admin.Keys.Create(r.Context(), k)
	if err != nil {
		return err
	}
	view := k.View(s.deps.Now())
	view.FullKey = full.Reveal()
	return x.WriteJSON(http.StatusCreated, view)
}

func (s *Server) revokeKey(x *exchange, r *http.Request) error {
	id := r.PathValue("id")
	k, err := s.deps.Admin.Keys.Store.Key(r.Context(), id)
	if err == nil {
		err = x.checkTeam(k.TeamID, "API key")
	}
	if err == nil {
		err = s.deps.Admin.Keys.Revoke(r.Context(), id)
	}
	return x.noContent(err)
}
