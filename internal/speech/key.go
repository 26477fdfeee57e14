package speech

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// keyVersion is part of every key. Whoever changes what a key is made of, or
// how the same inputs are made into sound, changes it too: what is cached under
// the old version is then no longer found, and runs out.
const keyVersion = "telapi-speech-1"

// Key is the hash under which a provider's rendering is kept: over the version,
// the team and every input of the synthesis but the encoding, each with its
// length, so that no two lists of inputs read the same.
func Key(teamID, provider string, sampleRate int, u Utterance) string {
	h := sha256.New()
	for _, part := range []string{
		keyVersion, teamID, provider, u.Model, u.Voice, strconv.FormatFloat(u.Speed, 'g', -1, 64), strconv.Itoa(sampleRate), u.Text,
	} {
		_, _ = fmt.Fprintf(h, "%d:%s,", len(part), part) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil))
}

// BlobPath is where a variant's blob is kept: a shard of the hash's first two
// digits, and the hash itself.
func BlobPath(hash string, e Encoding) string { return hash[:2] + "/" + hash + "." + string(e) }

var hashForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ParseBlobName reads the name of a blob, as it stands in a URL.
func ParseBlobName(name string) (hash string, e Encoding, ok bool) {
	hash, extension, _ := strings.Cut(name, ".")
	for _, e := range Encodings {
		if string(e) == extension && hashForm.MatchString(hash) {
			return hash, e, true
		}
	}
	return "", "", false
}
