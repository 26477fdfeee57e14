package strictjson

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Digest returns a SHA-256 of the canonical form of a body, which does not depend
// on white space, escapes or the order of names. Numbers are not normalized, so
// that no precision is lost.
func Digest(body []byte) (string, error) {
	canonical := jsontext.Value(slices.Clone(body))
	if err := canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return "", fmt.Errorf("canonicalize body: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

// DigestCompact returns a SHA-256 of a body without the white space between
// values. It requires valid JSON and, unlike Digest, does not parse it again.
func DigestCompact(body []byte) string {
	hash := sha256.New()
	from := 0 // start of the bytes that are not hashed yet
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case ' ', '\t', '\r', '\n':
			hash.Write(body[from:i])
			from = i + 1
		case '"':
			i = stringEnd(body, i)
		}
	}
	hash.Write(body[from:])
	return hex.EncodeToString(hash.Sum(nil))
}
