package httpapi

import (
	"net/http"
	"net/url"

	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/usage"
)

func (s *Server) listEndpoints(w http.ResponseWriter, r *http.Request, who auth.Principal) error {
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	page, err := s.deps.Endpoints.List(r.Context(), who.TeamID, query)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, page)
}

func (s *Server) ttsUsage(w http.ResponseWriter, r *http.Request, who auth.Principal) error {
	params, err := parseQuery(r)
	if err != nil {
		return err
	}
	q, err := usage.ParseQuery(who.TeamID, params, s.deps.Now())
	if err != nil {
		return err
	}
	report, err := s.deps.Usage.Report(r.Context(), q)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, report)
}

// parseQuery refuses a query string that net/url would silently drop parts of.
func parseQuery(r *http.Request) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		var issues fault.Issues
		issues.Add("/query", fault.IssueValue, "The query string is not well formed.")
		return nil, issues.Err()
	}
	return values, nil
}
