package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"telapi/internal/redact"
)

// ICEServer is a STUN or TURN server.
type ICEServer struct {
	URLs       []string      `json:"urls"`
	Username   string        `json:"username"`
	Credential redact.Secret `json:"credential"`
}

// NeedsCredential reports whether it is a TURN server without a credential, which
// browsers reject.
func (s ICEServer) NeedsCredential() bool {
	return s.Username == "" && slices.ContainsFunc(s.URLs, func(u string) bool { return strings.HasPrefix(u, "turn") })
}

// ICEServerList parses WEBRTC_ICE_SERVERS.
func (c Config) ICEServerList() ([]ICEServer, error) {
	list, err := parseICEServers(c.ICEServers.Reveal())
	if err != nil {
		return nil, fmt.Errorf("WEBRTC_ICE_SERVERS: %w", err)
	}
	return list, nil
}

// parseICEServers parses a JSON list as in RTCConfiguration, or comma-separated
// URLs. Its errors never contain the value, which may hold credentials.
func parseICEServers(value string) ([]ICEServer, error) {
	if value == "" {
		return nil, nil
	}
	var list []ICEServer
	if strings.HasPrefix(value, "[") {
		oneOrMore := json.UnmarshalFunc(func(raw []byte, urls *[]string) error {
			*urls = []string{""}
			if json.Unmarshal(raw, &(*urls)[0]) == nil {
				return nil
			}
			return json.Unmarshal(raw, urls)
		})
		if json.Unmarshal([]byte(value), &list, json.RejectUnknownMembers(true), json.WithUnmarshalers(oneOrMore)) != nil {
			return nil, errors.New("not a JSON list of {urls, username, credential}")
		}
	} else {
		var stun, turn ICEServer // TURN servers share TURN_SHARED_SECRET
		for u := range strings.SplitSeq(value, ",") {
			if u = strings.TrimSpace(u); strings.HasPrefix(u, "turn") {
				turn.URLs = append(turn.URLs, u)
			} else {
				stun.URLs = append(stun.URLs, u)
			}
		}
		list = slices.DeleteFunc([]ICEServer{stun, turn}, func(s ICEServer) bool { return s.URLs == nil })
	}
	for _, server := range list {
		if len(server.URLs) == 0 || (server.Username == "") != (server.Credential == "") {
			return nil, errors.New("an entry lacks urls, or has only one of username and credential")
		}
		for _, u := range server.URLs {
			if !validICEURL(u) {
				return nil, errors.New("contains an invalid URL")
			}
		}
	}
	return list, nil
}

// validICEURL checks the syntax of RFC 7064 and RFC 7065.
func validICEURL(u string) bool {
	scheme, rest, _ := strings.Cut(u, ":")
	a, err := parseAddress(scheme+"://"+rest, []string{"stun", "stuns", "turn", "turns"})
	if err != nil || len(a.hosts) != 1 || a.User != nil || a.Path != "" || strings.Contains(u, "#") {
		return false
	}
	_, query, found := strings.Cut(rest, "?")
	return !found || strings.HasPrefix(scheme, "turn") && (query == "transport=udp" || query == "transport=tcp")
}
