package page

// Teams selects the teams whose data a list contains. The zero value selects no team,
// so that a forgotten selection shows nothing.
type Teams struct {
	id  string
	all bool
}

// OfTeam selects one team. An empty ID selects none.
func OfTeam(teamID string) Teams { return Teams{id: teamID} }

// OfAllTeams selects all teams if the caller manages the platform, and otherwise none.
func OfAllTeams(caller interface{ ManagesPlatform() bool }) Teams {
	return Teams{all: caller.ManagesPlatform()}
}

// Team returns the selected team, which is empty if there is none, or all.
func (t Teams) Team() (id string, all bool) { return t.id, t.all }
