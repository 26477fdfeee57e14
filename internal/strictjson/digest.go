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
