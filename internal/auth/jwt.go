package auth

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/redact"
)

// SessionAudience marks the tokens of browser sessions. They share the signing
// secret with console JWTs, and this claim is what keeps one from passing as
// the other.
const SessionAudience = "telapi:session"

// MinSecretBytes is the least a signing secret may have; HS256 with less can be
// guessed offline from any one token.
const MinSecretBytes = 32

// MaxSkew is how far the clocks of machines may be apart. A token of a console
// whose clock is ahead must not be refused for being used at once.
const MaxSkew = 2 * time.Second

// maxTokenBytes bounds what is parsed before the signature is known to be good.
const maxTokenBytes = 8 << 10

var (
	teamForm = regexp.MustCompile(`^[A-Za-z0-9._:@|-]{1,128}$`)
	// subjectForm is wide, since the console chooses how it names people; it
	// keeps out what would be blank or break a line where the name is shown.
	subjectForm = regexp.MustCompile(`^[^\pC\s]([^\pC]{0,254}[^\pC\s])?$`)
)

// consoleClaims is what a console JWT must carry, besides exp.
type consoleClaims struct {
	TeamID string   `json:"teamId"`
	Scopes *[]Scope `json:"scopes"`
	jwt.RegisteredClaims
}

// UnmarshalJSON reads claims by their exact names and refuses repeated ones.
// The JWT library's own decoder takes "TEAMID" for teamId and the last of two,
// so that another reader could see other claims in the same signed bytes.
func (c *consoleClaims) UnmarshalJSON(b []byte) error {
	type plain consoleClaims
	return json.Unmarshal(b, (*plain)(c))
}

// Secrets are what JWTs are signed with: Current signs and verifies, Previous,
// if there is one, verifies alone, so that a secret can be changed without an
// outage.
type Secrets struct{ Current, Previous redact.Secret }

// Verifier checks JWTs under the shared secrets, whatever they are for.
type Verifier struct {
	keys   jwt.VerificationKeySet
	parser *jwt.Parser
}

// NewVerifier returns a verifier. Options add checks to those that every token
// has to pass.
func NewVerifier(secrets Secrets, checks ...jwt.ParserOption) *Verifier {
	v := &Verifier{parser: jwt.NewParser(append(checks,
		// Pinned: with "none", an asymmetric family or a key named by
		// the token itself, the sender would choose how to be checked.
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

// strangeHeaders demand extensions, or bring a key along. A token with one of
// them was made to trick somebody, well signed or not.
var strangeHeaders = []string{"crit", "jwk", "jku", "x5c", "x5u"}

// Verify reads the claims of a well-signed token.
func (v *Verifier) Verify(token string, into jwt.Claims) error {
	if len(token) > maxTokenBytes {
		return errors.New("token longer than any that is made")
	}
	parsed, err := v.parser.ParseWithClaims(token, into, func(*jwt.Token) (any, error) { return v.keys, nil })
	if err != nil {
		return err
	}
	for _, name := range strangeHeaders {
		if parsed.Header[name] != nil {
			return errors.New("header " + name + " has no place in a token of ours")
		}
	}
	return nil
}

// ConsoleTokens verifies the web console's JWTs.
type ConsoleTokens struct{ verifier *Verifier }

// NewConsoleTokens returns a verifier for tokens signed with one of the secrets.
func NewConsoleTokens(secrets Secrets, now func() time.Time) *ConsoleTokens {
	return &ConsoleTokens{NewVerifier(secrets, jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(MaxSkew), jwt.WithTimeFunc(now))}
}

// Verify returns who a console JWT speaks for.
func (c *ConsoleTokens) Verify(token string) (Principal, error) {
	var claims consoleClaims
	err := c.verifier.Verify(token, &claims)
	switch {
	case err != nil:
	case slices.Contains(claims.Audience, SessionAudience):
		err = errors.New("a session token is no console token")
	case !subjectForm.MatchString(claims.Subject):
		err = errors.New("claim sub is missing or not a name")
	case !teamForm.MatchString(claims.TeamID):
		err = errors.New("claim teamId is missing or not an id")
	case claims.Scopes == nil:
		err = errors.New("claim scopes is missing")
	}
	if err != nil {
		return Principal{}, unauthorized(fmt.Errorf("verify console token: %w", err))
	}
	return Principal{TeamID: claims.TeamID, Subject: claims.Subject, Scopes: *claims.Scopes}, nil
}
