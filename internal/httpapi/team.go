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

// parseQuery rejects a query string that URL.Query would only parse in part.
func parseQuery(r *http.Request) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		var issues fault.Issues
		issues.Add("/query", fault.IssueValue, "Invalid query string.")
		return nil, issues.Err()
	}
	return values, nil
}
