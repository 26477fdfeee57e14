package docs

import (
	"fmt"
	"strings"
	"testing"

	"telapi/internal/channel"
	"telapi/internal/fault"
)

const errorsIntro = `# Errors

<!-- Generated from internal/fault and internal/channel; ` + "`make generate`" + ` rewrites it. -->

Look up an error by its status and code. Every 4xx and 5xx response of the API server and the media service has this body:

` + "```json" + `
{"error": {"code": "FORBIDDEN", "message": "This operation requires the scope READ_TEAM_USAGE, which your credential does not have.", "details": {"requiredScope": "READ_TEAM_USAGE"}, "requestId": "H4YPNE2V6ZQ"}}
` + "```" + `

- ` + "`code`" + ` is for programs. Its meaning never changes. New codes may be added.
- ` + "`message`" + ` is for people. Its text may change: don't parse it.
- ` + "`requestId`" + ` identifies the request in the log. It is the header ` + "`X-Request-Id`" + ` of every response of the API server, and of the media service's errors. Send this header to choose it.
- ` + "`details`" + ` depends on the code. For VALIDATION_ERROR it lists all issues, each with a JSON Pointer.

` + "`/health`" + ` of the API server always returns its own body, even with 503. For a request that is not valid HTTP, the service chooses the
request ID and closes the connection.

## Error codes

| Error | Cause | What to do |
|---|---|---|
`

const framesIntro = `
## WebSocket error frames

If the service rejects a frame, it sends a frame of type ` + "`error`" + `:

` + "```json" + `
{"type": "error", "error": {"code": "BACKPRESSURE", "message": "…", "fatal": false, "relatesTo": "3f1c2c9e-52a7-4b60-9f1e-0c9ad1b5a1de"}}
` + "```" + `

` + "`relatesTo`" + ` is the ID of the rejected frame. If ` + "`fatal`" + ` is true, the service closes the WebSocket.
` + "`code`" + ` is a code from the table above, or:

| Code | Cause | What to do |
|---|---|---|
| TEXT_CHAT_DISABLED | The runtime has disabled text chat. | Hide the input until a control frame enables it. |
| BACKPRESSURE | The runtime doesn't keep up. The frame was not accepted. | Send it again later. |

A runtime gets its errors as replies to its requests ([runtime.md](runtime.md#errors)).

## WebSocket close codes

The close code determines whether to reconnect. The SDK and the libraries for runtimes follow these rules:

- Don't reconnect after 1007, 1008, 1009 and 4500 to 4999.
- Reconnect after every other code, for example 1000, 1002, 1006, 1012 and 4000 to 4499.

Only runtimes get 4500. A browser with an invalid token gets 401 instead of a WebSocket.

| Code | Reason |
|---|---|
`

func TestErrorsPageListsEveryCode(t *testing.T) {
	var page strings.Builder
	page.WriteString(errorsIntro)
	for _, e := range fault.Catalogue {
		fmt.Fprintf(&page, "| %d %s | %s | %s |\n", e.Status, e.Code, e.Cause, e.Fix)
	}
	page.WriteString(framesIntro)
	for _, c := range channel.CloseCodes() {
		fmt.Fprintf(&page, "| %d | %s |\n", c, c.Reason())
	}
	checkGenerated(t, "docs/errors.md", page.String())
}
