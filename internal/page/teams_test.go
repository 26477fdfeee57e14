package page_test

import (
	"testing"

	"telapi/internal/auth"
	"telapi/internal/page"
)

func TestOnlyThePlatformSelectsAllTeams(t *testing.T) {
	for _, scope := range auth.Scopes {
		caller := auth.Principal{TeamID: "t", Scopes: []auth.Scope{scope}}
		if id, all := page.OfAllTeams(caller).Team(); id != "" || all != (scope == auth.ManagePlatform) {
			t.Errorf("%s selects team %q, all: %v", scope, id, all)
		}
	}
	for name, f := range map[string]page.Teams{"zero value": {}, "empty ID": page.OfTeam("")} {
		if id, all := f.Team(); id != "" || all {
			t.Errorf("%s selects team %q, all: %v, want none", name, id, all)
		}
	}
}
