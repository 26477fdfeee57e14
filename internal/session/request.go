package session

import (
	"cmp"
	"regexp"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
	"telapi/internal/team"
)

const maxIdentityLength = 256 // limit for identity.id and identity.name

var duplicatePolicies = []DuplicatePolicy{Replace, Reject}

// tokenBody is the body of a token request. A member that is missing or null has its
// default. Unknown members are ignored, so that newer clients work with an older service.
type tokenBody struct {
	EndpointID      string           `json:"endpointId"`
	Mode            *team.Mode       `json:"mode"`
	Identity        *wire.Identifier `json:"identity"`
	TTLSeconds      *int64           `json:"ttlSeconds"`
	MaxSession      *int64           `json:"maxSessionSeconds"`
	DuplicatePolicy *DuplicatePolicy `json:"duplicatePolicy"`
	Metadata        jsontext.Value   `json:"metadata"`
}

// parseTokenRequest returns the new session that a team requests at a time, and the record of
// the request's idempotency key. The error lists the issues of both.
func parseTokenRequest(r TokenRequest, teamID string, now time.Time) (Session, IdempotencyRecord, error) {
	var in tokenBody
	var issues fault.Issues
	if err := strictjson.Decode(r.Body, &in, "", &issues); err != nil {
		return Session{}, IdempotencyRecord{}, err
	}
	limits := team.DefaultRequestLimits()
	s := Session{
		ID:              wire.SessionPrefix + uuid.Must(uuid.NewV7()).String(),
		TeamID:          teamID,
		EndpointID:      in.EndpointID,
		Mode:            *cmp.Or(in.Mode, &team.Modes[0]),
		Identity:        in.Identity,
		Metadata:        checkMetadata(in.Metadata, limits.MetadataBytes, &issues),
		DuplicatePolicy: *cmp.Or(in.DuplicatePolicy, &duplicatePolicies[0]),
		TokenID:         uuid.NewString(),
		IssuedAt:        now.Truncate(time.Second),
	}
	if s.EndpointID == "" {
		issues.Missing("/endpointId", "endpointId is required.")
	}
	fault.CheckOneOf(&issues, "/mode", s.Mode, team.Modes)
	fault.CheckOneOf(&issues, "/duplicatePolicy", s.DuplicatePolicy, duplicatePolicies)
	if s.Identity != nil {
		issues.CheckName("/identity/id", s.Identity.ID, maxIdentityLength)
		issues.CheckName("/identity/name", s.Identity.Name, maxIdentityLength)
	}
	lifetime := seconds(in.MaxSession, limits.SessionSeconds, "/maxSessionSeconds", &issues)
	tokenTTL := seconds(in.TTLSeconds, limits.TokenTTLSeconds, "/ttlSeconds", &issues)
	switch {
	case in.TTLSeconds == nil:
		tokenTTL = min(tokenTTL, lifetime)
	case tokenTTL > lifetime && !issues.Has("/ttlSeconds") && !issues.Has("/maxSessionSeconds"):
		issues.Add("/ttlSeconds", fault.IssueTooLarge, "ttlSeconds must not exceed maxSessionSeconds, which is %d.", int(lifetime.Seconds()))
	}
	s.RedeemBy, s.ExpiresAt = s.IssuedAt.Add(tokenTTL), s.IssuedAt.Add(lifetime)
	key := checkIdempotencyKey(r.IdempotencyKeys, &issues)
	if err := issues.Err(); err != nil {
		return Session{}, IdempotencyRecord{}, err
	}
	return s, IdempotencyRecord{Key: key, Digest: strictjson.Digest(r.Body), At: now}, nil
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
	strictjson.CheckObject(&raw, "/metadata", issues)
	if raw == nil || raw.Kind() != '{' {
		return nil
	}
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
