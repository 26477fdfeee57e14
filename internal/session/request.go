package session

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// maxIdentity bounds the id and the name of an identity.
const maxIdentity = 256

// request is the body of a request for a token. Members it does not have pass
// unread, so that clients may be newer than the service.
type request struct {
	EndpointID      string           `json:"endpointId"`
	Mode            *string          `json:"mode"`
	Identity        *wire.Identifier `json:"identity"`
	TTLSeconds      *int64           `json:"ttlSeconds"`
	MaxSession      *int64           `json:"maxSessionSeconds"`
	DuplicatePolicy *string          `json:"duplicatePolicy"`
	Metadata        jsontext.Value   `json:"metadata"`
}

// wish is a request that is as it should be: a session without id and team, and
// how long it and its token live.
type wish struct {
	session Session
	ttl     time.Duration
	life    time.Duration
	receipt IdempotencyRecord
}

// parseRequest reads a body and the values of the Idempotency-Key header, and
// reports everything wrong with both.
func parseRequest(body []byte, keys []string) (wish, error) {
	var in request
	var issues fault.Issues
	if err := strictjson.Decode(body, &in, "", &issues); err != nil {
		return wish{}, err
	}
	limits := endpoint.PublishedLimits()
	w := wish{session: Session{
		EndpointID:      in.EndpointID,
		Mode:            oneOf(in.Mode, endpoint.Modes, "/mode", &issues),
		Identity:        in.Identity,
		Metadata:        checkMetadata(in.Metadata, limits.MetadataBytes, &issues),
		DuplicatePolicy: oneOf(in.DuplicatePolicy, []DuplicatePolicy{Replace, Reject}, "/duplicatePolicy", &issues),
	}}
	if in.Identity != nil {
		issues.CheckName("/identity/id", in.Identity.ID, maxIdentity)
		issues.CheckName("/identity/name", in.Identity.Name, maxIdentity)
	}
	if in.EndpointID == "" {
		issues.Missing("/endpointId", "endpointId names the endpoint that the session is for.")
	}
	w.life = seconds(in.MaxSession, limits.SessionSeconds, "/maxSessionSeconds", &issues)
	w.ttl = seconds(in.TTLSeconds, limits.TokenTTLSeconds, "/ttlSeconds", &issues)
	switch {
	case in.TTLSeconds == nil:
		w.ttl = min(w.ttl, w.life)
	case w.ttl > w.life && len(issues.List()) == 0:
		issues.Add("/ttlSeconds", fault.IssueTooLarge, "ttlSeconds is not more than maxSessionSeconds, which is %d.", int(w.life.Seconds()))
	}
	w.receipt.Key = checkKey(keys, &issues)
	if err := issues.Err(); err != nil {
		return wish{}, err
	}
	digest, err := strictjson.Digest(body)
	w.receipt.Digest = digest
	return w, err
}

// visible is what an idempotency key is made of.
var visible = regexp.MustCompile(`^[\x21-\x7e]{1,255}$`)

func checkKey(values []string, issues *fault.Issues) string {
	const path = "/header/Idempotency-Key"
	switch {
	case len(values) == 0:
		return ""
	case len(values) > 1:
		issues.Add(path, fault.IssueTooMany, "Give Idempotency-Key once.")
	case !visible.MatchString(values[0]):
		issues.Add(path, fault.IssueValue, "Idempotency-Key has 1 to 255 visible ASCII characters.")
	}
	return values[0]
}

// checkMetadata measures metadata as it is kept: without white space.
func checkMetadata(raw jsontext.Value, most int64, issues *fault.Issues) jsontext.Value {
	strictjson.CheckObject(&raw, "", "/metadata", issues)
	if raw == nil || raw.Kind() != '{' {
		return nil
	}
	raw = slices.Clone(raw)
	if err := raw.Compact(); err != nil || int64(len(raw)) > most {
		issues.Add("/metadata", fault.IssueTooLarge, "metadata has at most %d bytes; this has %d.", most, len(raw))
	}
	return raw
}

func seconds(given *int64, allowed endpoint.Range, path string, issues *fault.Issues) time.Duration {
	n := *cmp.Or(given, new(int64(allowed.Default)))
	fault.CheckRange(issues, path, n, int64(allowed.Min), int64(allowed.Max))
	return time.Duration(n) * time.Second
}

func oneOf[S ~string](given *string, allowed []S, path string, issues *fault.Issues) S {
	if given == nil {
		return allowed[0] // the default
	}
	fault.CheckOneOf(issues, path, S(*given), allowed)
	return S(*given)
}
