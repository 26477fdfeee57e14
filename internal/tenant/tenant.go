// Package tenant says whose data a list may contain.
package tenant

// Filter selects the teams whose data a list contains. The zero value selects no
// team, so that a forgotten filter shows nothing.
type Filter struct {
	id  string
	all bool
}

// Only selects one team. An empty ID selects none.
func Only(teamID string) Filter { return Filter{id: teamID} }

// All selects all teams if the caller manages the platform, and otherwise none.
func All(caller interface{ ManagesPlatform() bool }) Filter {
	return Filter{all: caller.ManagesPlatform()}
}

// Team returns the selected team, which is empty if there is none, or all.
func (f Filter) Team() (id string, all bool) { return f.id, f.all }
