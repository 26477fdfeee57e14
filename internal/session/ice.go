package session

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // what TURN servers compute; as an HMAC it is not broken
	"encoding/base64"
	"strconv"

	"telapi/internal/config"
	"telapi/internal/redact"
)

// ICEServer is one entry of a browser's RTCConfiguration.
type ICEServer struct {
	URLs       []string `json:"urls"`
	Username   string   `json:"username,omitzero"`
	Credential string   `json:"credential,omitzero"`
}

// ICEConfig is what browsers are given to find a way through networks.
type ICEConfig struct {
	Servers []config.ICEServer
	// Secret is shared with the TURN servers that have no credential of their
	// own.
	Secret redact.Secret
}

// servers lists them for one session. A TURN server that shares the secret takes
// a user name that begins with the moment it ends, and its HMAC for a password,
// so that every session has credentials that end with it.
func (c ICEConfig) servers(s Session) []ICEServer {
	list := make([]ICEServer, len(c.Servers))
	for i, configured := range c.Servers {
		list[i] = ICEServer{configured.URLs, configured.Username, configured.Credential.Reveal()}
		if !configured.NeedsCredential() {
			continue
		}
		list[i].Username = strconv.FormatInt(s.ExpiresAt.Unix(), 10) + ":" + s.ID
		mac := hmac.New(sha1.New, []byte(c.Secret.Reveal()))
		mac.Write([]byte(list[i].Username))
		list[i].Credential = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return list
}
