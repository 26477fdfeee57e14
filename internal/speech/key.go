package speech

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// keyVersion is part of every key. Change it when the inputs of Key change, or
// when the same inputs produce different audio. Recordings with the old version
// are then no longer found.
const keyVersion = "telapi-speech-1"

// Key returns the hash of a recording. It covers the version, the team and all
// inputs of the synthesis except the encoding. Each input is preceded by its
// length, so that different inputs never concatenate to the same text.
func Key(teamID, provider string, sampleRate int, u Utterance) string {
	h := sha256.New()
	for _, part := range []string{
		keyVersion, teamID, provider, u.Model, u.Voice, strconv.FormatFloat(u.Speed, 'g', -1, 64), strconv.Itoa(sampleRate), u.Text,
	} {
		_, _ = fmt.Fprintf(h, "%d:%s,", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// BlobPath returns the path of a variant: a shard named after the first two
// digits of the hash, and the hash with the encoding as extension.
func BlobPath(hash string, e Encoding) string { return hash[:2] + "/" + hash + "." + string(e) }

var hashForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ParseBlobName parses the last element of a BlobPath.
func ParseBlobName(name string) (hash string, e Encoding, ok bool) {
	hash, extension, _ := strings.Cut(name, ".")
	for _, e := range Encodings {
		if string(e) == extension && hashForm.MatchString(hash) {
			return hash, e, true
		}
	}
	return "", "", false
}
