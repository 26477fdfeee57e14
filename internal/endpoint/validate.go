package endpoint

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

const (
	idPrefix   = "ep_"
	maxName    = 120
	maxOrigins = 100
)

var idForm = regexp.MustCompile(`^` + idPrefix + `[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// ParseProfile reads a flow's gateway profile and reports everything wrong with
// it. Members this version does not know pass and are kept.
func ParseProfile(data []byte) (p wire.GatewayProfile, err error) {
	var issues fault.Issues
	if err := strictjson.Decode(data, &p, "", &issues); err != nil {
		return p, err
	}
	command.CheckProfile(p, "", &issues)
	return p, issues.Err()
}

// Validate brings an endpoint into its normal form and reports everything wrong
// with it.
func (e *Endpoint) Validate() error {
	var issues fault.Issues
	e.Name = strings.TrimSpace(e.Name)
	if e.Name == "" {
		issues.Add("/name", fault.IssueRequired, "An endpoint has a name.")
	}
	issues.CheckName("/name", e.Name, maxName)
	if e.TeamID == "" {
		issues.Add("/teamId", fault.IssueRequired, "An endpoint belongs to a team.")
	}
	e.Modes = normalModes(e.Modes, &issues)
	e.Origins = normalOrigins(e.Origins, &issues)
	command.CheckProfile(e.Profile, "/gatewayProfile", &issues)
	return issues.Err()
}

// normalModes drops repetitions and puts modes in their usual order.
func normalModes(modes []Mode, issues *fault.Issues) []Mode {
	if len(modes) == 0 {
		issues.Add("/modes", fault.IssueRequired, "An endpoint has at least one mode: webrtc, audio or chat.")
	}
	for i, m := range modes {
		fault.CheckOneOf(issues, fault.Pointer("/modes", i), m, Modes)
	}
	return slices.DeleteFunc(slices.Clone(Modes), func(m Mode) bool { return !slices.Contains(modes, m) })
}

// normalOrigins writes origins as browsers send them, so that comparing them is
// comparing strings.
func normalOrigins(origins []string, issues *fault.Issues) []string {
	if len(origins) > maxOrigins {
		issues.Add("/origins", fault.IssueTooMany, "An endpoint has at most %d origins.", maxOrigins)
		return nil
	}
	var normal []string
	for i, s := range origins {
		origin, ok := normalOrigin(s)
		if !ok {
			issues.Add(fault.Pointer("/origins", i), fault.IssueValue, "An origin is scheme and host alone, such as https://shop.example or http://localhost:8080.")
			continue
		}
		if !slices.Contains(normal, origin) {
			normal = append(normal, origin)
		}
	}
	return normal
}

func normalOrigin(s string) (string, bool) {
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" {
		return "", false
	}
	if strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery || strings.ContainsAny(u.Host, "* ") {
		return "", false
	}
	host := strings.ToLower(u.Host)
	if port := u.Port(); port == "" || u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80" {
		host = strings.TrimSuffix(host, ":"+port)
	}
	return u.Scheme + "://" + host, true
}
