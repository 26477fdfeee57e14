package docs

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"telapi/internal/channel"
	"telapi/internal/fault"
)

const errorsIntro = `# Errors

<!-- Generated from internal/fault and internal/channel; ` + "`make generate`" + ` rewrites it. -->

Every 4xx and 5xx of the API server is one envelope:

` + "```json" + `
{"error": {"code": "FORBIDDEN", "message": "This needs the scope READ_TEAM_USAGE.", "details": {"requiredScope": "READ_TEAM_USAGE"}, "requestId": "H4YPNE2V6ZQ"}}
` + "```" + `

` + "`code`" + ` is for programs and never changes its meaning, ` + "`message`" + ` is for people,
` + "`requestId`" + ` finds the request in the log. A caller may choose it with the header
` + "`X-Request-Id`" + `. ` + "`details`" + ` of VALIDATION_ERROR lists every issue at once, each with the
place as a JSON Pointer. Two things are not an envelope: ` + "`/health`" + `, which keeps its
own body, and what is no HTTP request at all, which is refused in plain text before
any route is known.

## Answers

| Status | Code | Cause | What to do |
|---|---|---|---|
`

const framesIntro = `
## Error frames of a socket

A frame that a browser sent and that cannot be taken is answered by a frame of type
` + "`error`" + ` with ` + "`code`, `message`, `fatal`" + ` and, in ` + "`relatesTo`" + `, the frame's id. The codes are
those above, and two more:

| Code | Cause | What to do |
|---|---|---|
| TEXT_CHAT_DISABLED | Text chat is switched off for the session. | Hide the input until a control frame enables it. |
| BACKPRESSURE | The runtime has not read what was sent before. | Send the frame again after a while; it was not taken. |

## Close codes of a socket

1012 and 4000 to 4499 ask the browser to come back, 1007 to 1009 and 4500 to 4999 not to.

| Code | Reason |
|---|---|
`

func TestErrorsPageListsEveryCode(t *testing.T) {
	var page strings.Builder
	page.WriteString(errorsIntro)
	for _, e := range fault.Catalogue {
		fmt.Fprintf(&page, "| %d %s | %s | %s | %s |\n", e.Status, http.StatusText(e.Status), e.Code, e.Cause, e.Fix)
	}
	page.WriteString(framesIntro)
	for _, c := range channel.CloseCodes() {
		fmt.Fprintf(&page, "| %d | %s |\n", c, c.Reason())
	}
	generated(t, "docs/errors.md", page.String())
}
