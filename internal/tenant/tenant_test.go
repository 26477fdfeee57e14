package tenant_test

import (
	"testing"

	"telapi/internal/auth"
	"telapi/internal/tenant"
)

func TestOnlyThePlatformSelectsAllTeams(t *testing.T) {
	for _, scope := range auth.Scopes {
		caller := auth.Principal{TeamID: "t", Scopes: []auth.Scope{scope}}
		if id, all := tenant.All(caller).Team(); id != "" || all != (scope == auth.ManagePlatform) {
			t.Errorf("%s selects team %q, all: %v", scope, id, all)
		}
	}
	for name, f := range map[string]tenant.Filter{"zero value": {}, "empty ID": tenant.Only("")} {
		if id, all := f.Team(); id != "" || all {
			t.Errorf("%s selects team %q, all: %v, want none", name, id, all)
		}
	}
}
