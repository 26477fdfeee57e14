package session

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // TURN servers require HMAC-SHA1, which is not broken
	"encoding/base64"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/strictjson"
	"telapi/internal/team"
)

const maxIdentityLength = 256 // limit for identity.id and identity.name

// tokenBody is the body of a token request. Unknown members are ignored, so
// that newer clients work with an older service.
type tokenBody struct {
	EndpointID      string           `json:"endpointId"`
	Mode            *string          `json:"mode"`
	Identity        *wire.Identifier `json:"identity"`
	TTLSeconds      *int64           `json:"ttlSeconds"`
	MaxSession      *int64           `json:"maxSessionSeconds"`
	DuplicatePolicy *string          `json:"duplicatePolicy"`
	Metadata        jsontext.Value   `json:"metadata"`
}

// tokenParams is a validated token request.
type tokenParams struct {
	session     Session // without IDs and times
	tokenTTL    time.Duration
	lifetime    time.Duration
	idempotency IdempotencyRecord
}

// newSession returns a session with a new ID. Its times are truncated to seconds, as
// in the token.
func (p tokenParams) newSession(teamID string, now time.Time) Session {
	s := p.session
	s.ID, s.TeamID, s.TokenID = wire.SessionPrefix+uuid.Must(uuid.NewV7()).String(), teamID, uuid.NewString()
	s.IssuedAt = now.Truncate(time.Second)
	s.RedeemBy, s.ExpiresAt = s.IssuedAt.Add(p.tokenTTL), s.IssuedAt.Add(p.lifetime)
	return s
}

// parseTokenRequest parses and validates a body and the values of the
// Idempotency-Key header. The error lists the issues of both.
func parseTokenRequest(body []byte, keys []string) (tokenParams, error) {
	var in tokenBody
	var issues fault.Issues
	if err := strictjson.Decode(body, &in, "", &issues); err != nil {
		return tokenParams{}, err
	}
	limits := team.DefaultRequestLimits()
	p := tokenParams{session: Session{
		EndpointID:      in.EndpointID,
		Mode:            oneOf(in.Mode, team.Modes, "/mode", &issues),
		Identity:        in.Identity,
		Metadata:        checkMetadata(in.Metadata, limits.MetadataBytes, &issues),
		DuplicatePolicy: oneOf(in.DuplicatePolicy, []DuplicatePolicy{Replace, Reject}, "/duplicatePolicy", &issues),
	}}
	if in.Identity != nil {
		issues.CheckName("/identity/id", in.Identity.ID, maxIdentityLength)
		issues.CheckName("/identity/name", in.Identity.Name, maxIdentityLength)
	}
	if in.EndpointID == "" {
		issues.Missing("/endpointId", "endpointId is required.")
	}
	p.lifetime = seconds(in.MaxSession, limits.SessionSeconds, "/maxSessionSeconds", &issues)
	p.tokenTTL = seconds(in.TTLSeconds, limits.TokenTTLSeconds, "/ttlSeconds", &issues)
	switch {
	case in.TTLSeconds == nil:
		p.tokenTTL = min(p.tokenTTL, p.lifetime)
	case p.tokenTTL > p.lifetime && len(issues.List()) == 0:
		issues.Add("/ttlSeconds", fault.IssueTooLarge, "ttlSeconds must not exceed maxSessionSeconds, which is %d.", int(p.lifetime.Seconds()))
	}
	p.idempotency.Key = checkIdempotencyKey(keys, &issues)
	if err := issues.Err(); err != nil {
		return tokenParams{}, err
	}
	p.idempotency.Digest = strictjson.Digest(body)
	return p, nil
}

var idempotencyKeyPattern = regexp.MustCompile(`^[\x21-\x7e]{1,255}$`)

func checkIdempotencyKey(values []string, issues *fault.Issues) string {
	const path = "/header/Idempotency-Key"
	switch {
	case len(values) == 0:
		return ""
	case len(values) > 1:
		issues.Add(path, fault.IssueTooMany, "Idempotency-Key must be given once.")
	case !idempotencyKeyPattern.MatchString(values[0]):
		issues.Add(path, fault.IssueValue, "Idempotency-Key must have 1 to 255 visible ASCII characters.")
	}
	return values[0]
}

// checkMetadata validates metadata and returns it as compact JSON. It is stored in
// this form, and maxBytes applies to it.
func checkMetadata(raw jsontext.Value, maxBytes int64, issues *fault.Issues) jsontext.Value {
	strictjson.CheckObject(&raw, "", "/metadata", issues)
	if raw == nil || raw.Kind() != '{' {
		return nil
	}
	raw = slices.Clone(raw)
	if err := raw.Compact(); err != nil || int64(len(raw)) > maxBytes {
		issues.Add("/metadata", fault.IssueTooLarge, "metadata must have at most %d bytes, not %d.", maxBytes, len(raw))
	}
	return raw
}

// seconds validates the given number of seconds and returns it, or the default if it
// is nil.
func seconds(given *int64, allowed team.Range, path string, issues *fault.Issues) time.Duration {
	n := *cmp.Or(given, new(int64(allowed.Default)))
	fault.CheckRange(issues, path, n, int64(allowed.Min), int64(allowed.Max))
	return time.Duration(n) * time.Second
}

// oneOf validates the given value and returns it, or the first allowed value if it is
// nil.
func oneOf[S ~string](given *string, allowed []S, path string, issues *fault.Issues) S {
	if given == nil {
		return allowed[0]
	}
	fault.CheckOneOf(issues, path, S(*given), allowed)
	return S(*given)
}

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
