package session

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // TURN servers require HMAC-SHA1, which is not broken
	"encoding/base64"
	"strconv"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/config"
	"telapi/internal/redact"
)

// ICEConfig holds the STUN and TURN servers for browsers and runtimes.
type ICEConfig struct {
	Servers []config.ICEServer
	// Secret is shared with TURN servers that have no fixed credential.
	Secret redact.Secret
}

// For returns the ICE servers for one side of a session, named user. The entries of
// TURN servers with the shared secret have credentials that expire with the session: the
// user name starts with the expiry time, and the password is an HMAC of the user name.
func (c ICEConfig) For(user string, expires time.Time) []wire.ICEServer {
	list := make([]wire.ICEServer, len(c.Servers))
	for i, configured := range c.Servers {
		list[i] = wire.ICEServer{URLs: configured.URLs, Username: configured.Username, Credential: configured.Credential.Reveal()}
		if !configured.NeedsCredential() {
			continue
		}
		list[i].Username = strconv.FormatInt(expires.Unix(), 10) + ":" + user
		mac := hmac.New(sha1.New, []byte(c.Secret.Reveal()))
		mac.Write([]byte(list[i].Username))
		list[i].Credential = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return list
}
