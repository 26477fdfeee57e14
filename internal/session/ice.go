package session

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // TURN servers require HMAC-SHA1, which is not broken
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

// ICEConfig holds the STUN and TURN servers for browsers.
type ICEConfig struct {
	Servers []config.ICEServer
	// Secret is shared with TURN servers that have no fixed credential.
	Secret redact.Secret
}

// servers returns the ICE servers for one session. A TURN server with the shared
// secret gets credentials that expire with the session: the user name starts with
// the expiry, and the password is its HMAC.
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
