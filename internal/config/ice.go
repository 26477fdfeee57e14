package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"telapi/internal/redact"
)

// ICEServer is one server by which browsers find a way through networks.
type ICEServer struct {
	URLs       []string      `json:"urls"`
	Username   string        `json:"username"`
	Credential redact.Secret `json:"credential"`
}

// NeedsCredential tells whether a browser must be given a credential for it: TURN
// without one is refused by browsers.
func (s ICEServer) NeedsCredential() bool {
	return s.Username == "" && slices.ContainsFunc(s.URLs, func(u string) bool { return strings.HasPrefix(u, "turn") })
}

// ICEServerList takes WEBRTC_ICE_SERVERS apart.
func (c Config) ICEServerList() ([]ICEServer, error) {
	list, err := parseICEServers(c.ICEServers.Reveal())
	if err != nil {
		return nil, fmt.Errorf("WEBRTC_ICE_SERVERS: %w", err)
	}
	return list, nil
}

// parseICEServers reads a JSON list as in RTCConfiguration, or URLs with commas
// between them, of which the TURN servers are to share TURN_SHARED_SECRET. Its
// errors repeat nothing of the value.
func parseICEServers(value string) ([]ICEServer, error) {
	if value == "" {
		return nil, nil
	}
	list, err := readICEServers(value)
	if err != nil {
		return nil, err
	}
	for _, server := range list {
		if len(server.URLs) == 0 || (server.Username == "") != (server.Credential == "") {
			return nil, errors.New("an entry has no urls, or a username without a credential")
		}
		for _, u := range server.URLs {
			if !iceURL(u) {
				return nil, errors.New("a URL is not stun:, stuns:, turn: or turns: with a host")
			}
		}
	}
	return list, nil
}

func readICEServers(value string) ([]ICEServer, error) {
	if !strings.HasPrefix(value, "[") {
		var stun, turn ICEServer
		for u := range strings.SplitSeq(value, ",") {
			if u = strings.TrimSpace(u); strings.HasPrefix(u, "turn") {
				turn.URLs = append(turn.URLs, u)
			} else {
				stun.URLs = append(stun.URLs, u)
			}
		}
		return slices.DeleteFunc([]ICEServer{stun, turn}, func(s ICEServer) bool { return s.URLs == nil }), nil
	}
	oneOrMore := json.UnmarshalFunc(func(raw []byte, urls *[]string) error {
		*urls = []string{""}
		if json.Unmarshal(raw, &(*urls)[0]) == nil {
			return nil
		}
		return json.Unmarshal(raw, urls)
	})
	var list []ICEServer
	if json.Unmarshal([]byte(value), &list, json.RejectUnknownMembers(true), json.WithUnmarshalers(oneOrMore)) != nil {
		return nil, errors.New("not a JSON list of {urls, username, credential}, urls a string or a list of them")
	}
	return list, nil
}

// iceURL checks the form of RFC 7064 and RFC 7065.
func iceURL(u string) bool {
	scheme, rest, _ := strings.Cut(u, ":")
	a, err := parseAddress(scheme+"://"+rest, []string{"stun", "stuns", "turn", "turns"})
	if err != nil || len(a.hosts) != 1 || a.User != nil || a.Path != "" || strings.Contains(u, "#") {
		return false
	}
	_, query, asked := strings.Cut(rest, "?")
	return !asked || strings.HasPrefix(scheme, "turn") && (query == "transport=udp" || query == "transport=tcp")
}
