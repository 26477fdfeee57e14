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

var idPattern = regexp.MustCompile(`^` + idPrefix + `[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// ParseProfile parses a gateway profile. The error lists every issue. Unknown
// members are kept.
func ParseProfile(data []byte) (p wire.GatewayProfile, err error) {
	var issues fault.Issues
	if err := strictjson.Decode(data, &p, "", &issues); err != nil {
		return p, err
	}
	command.CheckProfile(p, "", &issues)
	return p, issues.Err()
}

// Validate normalizes an endpoint. The error lists every issue.
func (e *Endpoint) Validate() error {
	var issues fault.Issues
	e.Name = strings.TrimSpace(e.Name)
	if e.Name == "" {
		issues.Add("/name", fault.IssueRequired, "name is required.")
	}
	issues.CheckName("/name", e.Name, maxName)
	if e.TeamID == "" {
		issues.Add("/teamId", fault.IssueRequired, "teamId is required.")
	}
	e.Modes = normalizeModes(e.Modes, &issues)
	e.Origins = normalizeOrigins(e.Origins, &issues)
	command.CheckProfile(e.Profile, "/gatewayProfile", &issues)
	return issues.Err()
}

// normalizeModes removes duplicates and sorts modes.
func normalizeModes(modes []Mode, issues *fault.Issues) []Mode {
	if len(modes) == 0 {
		issues.Add("/modes", fault.IssueRequired, "modes needs at least one of webrtc, audio and chat.")
	}
	for i, m := range modes {
		fault.CheckOneOf(issues, fault.Pointer("/modes", i), m, Modes)
	}
	return slices.DeleteFunc(slices.Clone(Modes), func(m Mode) bool { return !slices.Contains(modes, m) })
}

// normalizeOrigins returns origins as browsers send them, without duplicates.
func normalizeOrigins(origins []string, issues *fault.Issues) []string {
	if len(origins) > maxOrigins {
		issues.Add("/origins", fault.IssueTooMany, "origins must have at most %d items.", maxOrigins)
		return nil
	}
	var normal []string
	for i, s := range origins {
		origin, ok := normalizeOrigin(s)
		if !ok {
			issues.Add(fault.Pointer("/origins", i), fault.IssueValue, "An origin must be a scheme and a host, such as https://shop.example or http://localhost:8080.")
			continue
		}
		if !slices.Contains(normal, origin) {
			normal = append(normal, origin)
		}
	}
	return normal
}

func normalizeOrigin(s string) (string, bool) {
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
