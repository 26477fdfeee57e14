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

// DigestAsWritten tells bodies apart by how they are written, but for the white
// space between values. It needs well-formed JSON and, unlike Digest, does not
// read it anew.
func DigestAsWritten(body []byte) string {
	compact := make([]byte, 0, len(body))
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case ' ', '\t', '\r', '\n':
		case '"':
			end := closing(body, i)
			compact = append(compact, body[i:min(end+1, len(body))]...)
			i = end
		default:
			compact = append(compact, body[i])
		}
	}
	sum := sha256.Sum256(compact)
	return hex.EncodeToString(sum[:])
}
