package auth

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/audit"
	"telapi/internal/redact"
)

// SessionAudience is the audience of call tokens. It distinguishes them from console JWTs,
// as their signing key does.
const SessionAudience = "telapi:session"

// MinSecretBytes is the minimum length of a signing secret. A shorter one can be
// guessed offline from a single token.
const MinSecretBytes = 32

// MaxSkew is the leeway for the times of a token. A new token of a console whose clock
// is a little ahead must be accepted.
const MaxSkew = 2 * time.Second

// maxTokenBytes limits what is parsed before the signature is verified.
const maxTokenBytes = 8 << 10

var (
	teamPattern = regexp.MustCompile(`^[A-Za-z0-9._:@|-]{1,128}$`)
	// subjectPattern rejects only names that are blank or have control characters: the
	// console decides how it names people.
	subjectPattern = regexp.MustCompile(`^[^\pC\s]([^\pC]{0,254}[^\pC\s])?$`)
)

type consoleClaims struct {
	TeamID string   `json:"teamId"`
	Scopes *[]Scope `json:"scopes"`
	jwt.RegisteredClaims
}

// UnmarshalJSON replaces the JWT library's decoding by UnmarshalClaims.
func (c *consoleClaims) UnmarshalJSON(b []byte) error {
	type plain consoleClaims
	return UnmarshalClaims(b, (*plain)(c))
}

// UnmarshalClaims decodes the claims of a token more strictly than the JWT library.
// Names match exactly and occur once: the library accepts "TEAMID" for teamId and
// the last of two duplicates, so that another reader could see different claims in
// the same token. Times are numbers: the library accepts "1800000000", and null
// for a missing claim.
func UnmarshalClaims(b []byte, into any) error { return json.Unmarshal(b, into, strictTimes) }

// strictTimes is created once, because the JSON library has a cache for each such option.
var strictTimes = json.WithUnmarshalers(json.UnmarshalFromFunc(unmarshalTime))

// maxTime is the last second of the year 9999. The conversion of a larger number
// could overflow.
const maxTime = 253402300799

func unmarshalTime(d *jsontext.Decoder, into **jwt.NumericDate) error {
	value, err := d.ReadValue()
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseFloat(string(value), 64)
	switch {
	case value.Kind() != '0' || err != nil || seconds < 0:
		return errors.New("time is not a number of Unix seconds")
	case seconds > maxTime:
		return fmt.Errorf("time %.20s is too large: use Unix seconds, not milliseconds", value)
	}
	*into = jwt.NewNumericDate(time.Unix(int64(seconds), 0))
	return nil
}

// Secrets are the signing secrets of JWTs. Current signs and verifies. Previous
// only verifies, so that the secret can be rotated without an outage.
type Secrets struct{ Current, Previous redact.Secret }

// ForCallTokens returns the secrets of call tokens: HMAC-SHA-256 of a label, with each
// secret as the key. A call token is therefore never signed like a console JWT, and its key
// doesn't reveal the console's.
func (s Secrets) ForCallTokens() Secrets {
	derive := func(secret redact.Secret) redact.Secret {
		if secret == "" {
			return ""
		}
		h := hmac.New(sha256.New, []byte(secret.Reveal()))
		h.Write([]byte("telapi-call-token"))
		return redact.Secret(h.Sum(nil))
	}
	return Secrets{derive(s.Current), derive(s.Previous)}
}

// Verifier verifies JWTs with the shared secrets.
type Verifier struct {
	keys   jwt.VerificationKeySet
	parser *jwt.Parser
}

// NewVerifier returns a verifier with checks beyond those of every token.
func NewVerifier(secrets Secrets, checks ...jwt.ParserOption) *Verifier {
	v := &Verifier{parser: jwt.NewParser(append(checks,
		// Otherwise the sender could choose how its token is verified:
		// with "none", or with a public key as an HMAC secret.
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}),
		jwt.WithStrictDecoding(),
	)...)}
	for _, secret := range []redact.Secret{secrets.Current, secrets.Previous} {
		if secret != "" {
			v.keys.Keys = append(v.keys.Keys, []byte(secret.Reveal()))
		}
	}
	return v
}

// forbiddenHeaders require extensions or provide a verification key. Our tokens
// never have them, so a token that does is an attack.
var forbiddenHeaders = []string{"crit", "jwk", "jku", "x5c", "x5u"}

// Verify verifies a token and stores its claims in into.
func (v *Verifier) Verify(token string, into jwt.Claims) error {
	if len(token) > maxTokenBytes {
		return errors.New("token too long")
	}
	if _, err := v.parser.ParseWithClaims(token, into, func(*jwt.Token) (any, error) { return v.keys, nil }); err != nil {
		return err
	}
	return v.checkHeader(token)
}

// checkHeader rejects forbidden and duplicate members, which the JWT library accepts.
func (v *Verifier) checkHeader(token string) error {
	encoded, _, _ := strings.Cut(token, ".")
	raw, err := v.parser.DecodeSegment(encoded)
	if err != nil {
		return fmt.Errorf("decode header: %w", err)
	}
	var header map[string]jsontext.Value
	if err := json.Unmarshal(raw, &header); err != nil {
		return fmt.Errorf("decode header: %w", err)
	}
	for _, name := range forbiddenHeaders {
		if _, found := header[name]; found {
			return errors.New("forbidden header " + name)
		}
	}
	return nil
}

// ConsoleTokens verifies console JWTs.
type ConsoleTokens struct {
	verifier *Verifier
	maxAge   time.Duration
	now      func() time.Time
}

// NewConsoleTokens returns a verifier of console JWTs that live for maxAge at most.
func NewConsoleTokens(secrets Secrets, maxAge time.Duration, now func() time.Time) *ConsoleTokens {
	return &ConsoleTokens{
		NewVerifier(secrets, jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(MaxSkew), jwt.WithTimeFunc(now)), maxAge, now,
	}
}

// Verify returns the principal of a console JWT. The error describes what is wrong only if
// the signature is valid.
func (c *ConsoleTokens) Verify(token string) (Principal, error) {
	var claims consoleClaims
	err := c.verifier.Verify(token, &claims)
	problem := ""
	switch { // the JWT library checks times after the signature
	case errors.Is(err, jwt.ErrTokenExpired):
		problem = "the JWT has expired (exp). Sign a new one."
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		problem = "nbf or iat is in the future. Compare the clocks of the console and this service."
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		problem = "the claim exp is missing."
	case err != nil:
		return Principal{}, unauthorized(fmt.Errorf("verify console JWT: %w", err))
	case claims.ExpiresAt.After(c.now().Add(c.maxAge + MaxSkew)),
		claims.IssuedAt != nil && claims.ExpiresAt.Sub(claims.IssuedAt.Time) > c.maxAge:
		problem = fmt.Sprintf("it lives longer than JWT_MAX_AGE (%s). Sign one with an earlier exp.", c.maxAge)
	case slices.Contains(claims.Audience, SessionAudience):
		problem = "aud is the audience of call tokens."
	case !subjectPattern.MatchString(claims.Subject):
		problem = "the claim sub is missing or invalid."
	case !teamPattern.MatchString(claims.TeamID):
		problem = "the claim teamId is missing or invalid."
	case claims.Scopes == nil:
		problem = "the claim scopes is missing."
	}
	if problem != "" {
		return Principal{}, signedButInvalid(cmp.Or(err, errors.New(problem)), "%s", problem)
	}
	return Principal{claims.TeamID, claims.Subject, *claims.Scopes, audit.Console}, nil
}
