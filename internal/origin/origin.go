// Package origin normalizes the origins of web pages.
package origin

import (
	"net/url"
	"strings"
)

// Normalize returns an origin as browsers send it: a scheme, a host in lower case, and
// a port unless it is the default. ok is false if s is not an origin.
func Normalize(s string) (origin string, ok bool) {
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
