package strictjson

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Digest tells bodies apart by what they say and not by how it is written.
// Numbers count as they are spelt: no precision is lost on the way.
func Digest(body []byte) (string, error) {
	canonical := jsontext.Value(slices.Clone(body))
	if err := canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return "", fmt.Errorf("canonicalize the body: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

// DigestCompact tells bodies apart by how they are written, but for the white
// space between values. It needs well-formed JSON and, unlike Digest, does not
// read it anew.
func DigestCompact(body []byte) string {
	hash := sha256.New()
	from := 0 // of what is not hashed yet
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case ' ', '\t', '\r', '\n':
			hash.Write(body[from:i])
			from = i + 1
		case '"':
			i = closing(body, i)
		}
	}
	hash.Write(body[from:])
	return hex.EncodeToString(hash.Sum(nil))
}
