package httpapi

import (
	"net/http"
	"net/url"

	"telapi/internal/fault"
	"telapi/internal/usage"
)

func (s *Server) listEndpoints(x *exchange, r *http.Request) error {
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	page, err := s.deps.Endpoints.ListPage(r.Context(), x.principal.TeamID, query)
	if err != nil {
		return err
	}
	return x.WriteJSON(http.StatusOK, page)
}

func (s *Server) ttsUsage(x *exchange, r *http.Request) error {
	params, err := parseQuery(r)
	if err != nil {
		return err
	}
	q, err := usage.ParseQuery(x.principal.TeamID, params, s.deps.Now())
	if err != nil {
		return err
	}
	report, err := s.deps.Usage.Report(r.Context(), q)
	if err != nil {
		return err
	}
	return x.WriteJSON(http.StatusOK, report)
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
