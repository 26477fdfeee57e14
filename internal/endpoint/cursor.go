package endpoint

import (
	"encoding/base64"
	"strings"

	"github.com/google/uuid"

	"telapi/internal/fault"
)

// cursorVersion lets a later release page by something else and still tell an
// old cursor from garbage.
const cursorVersion = "1:"

// encodeCursor names the place after an endpoint. Clients must not read it.
func encodeCursor(after string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorVersion + after))
}

// decodeCursor notes a cursor that encodeCursor did not make.
func decodeCursor(cursor string, issues *fault.Issues) (after string) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	after, current := strings.CutPrefix(string(raw), cursorVersion)
	id, ours := strings.CutPrefix(after, idPrefix)
	if err != nil || !current || !ours || len(id) != 36 || uuid.Validate(id) != nil {
		issues.Add("/query/cursor", fault.IssueValue, "Use nextCursor of the previous page as it came.")
		return ""
	}
	return after
}
