package callback

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// decodeStream decodes a body that arrives in pieces of n bytes.
func decodeStream(mediaType, body string, n int, perDelta bool) (parts []string, s *streamDecoder, err error) {
	s = newStreamDecoder(wire.LLMItem, "call-1", mediaType, perDelta)
	for piece := range slices.Chunk([]byte(body), n) {
		added, err := s.Write(piece)
		if parts = append(parts, added...); err != nil {
			return parts, s, err
		}
	}
	added, err := s.Close()
	return append(parts, added...), s, err
}

func TestStreamIsDecodedFromAnyPieces(t *testing.T) {
	events := "\uFEFFid: 1\r\nevent: message\r\ndata: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"no\"}}]}\r\n\r\n" +
		"data: {\"choices\":[{\"delta\":{\"content\":null}}]}\n\ndata: {\"choices\":\ndata: [{\"delta\":{\"content\":\"Öl. Es\"}}]}\n\n: ping\n\ndata:[DONE]\n\nignored"
	for name, c := range map[string]struct {
		mediaType, body string
		perDelta        bool
		want            string
	}{
		"NDJSON":       {NDJSON, "\uFEFF\n{\"delta\":\"Öl.\"}\r\n \n{\"delta\":\" Es\",\"x\":1}\n{\"done\":true}\n{", false, "Öl.|Es"},
		"each delta":   {NDJSON, `{"delta":"Öl."}` + "\n" + `{"delta":""}` + "\n" + `{"delta":" Es","done":true}`, true, "Öl.| Es"},
		"event stream": {EventStream, events, false, "Öl.|Es"},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; n <= len(c.body); n++ {
				parts, s, err := decodeStream(c.mediaType, c.body, n, c.perDelta)
				if got := strings.Join(parts, "|"); err != nil || got != c.want || *s.Result().llmContent != "Öl. Es" || s.Result().parts != 2 {
					t.Fatalf("in pieces of %d bytes: %q, %v, want %q", n, got, err, c.want)
				}
			}
		})
	}
}

func TestStreamNamesTheLineOfAnError(t *testing.T) {
	for body, want := range map[string]string{
		"{\"delta\":\"a\"}\n\n{\"delta\":\"b\",\"delta\":\"c\"}\n": "Line 3",
		"{\"delta\":\"\xff\"}\n":                                   "Line 1",
		"[]\n":                                                     "Line 1",
		"{\"delta\":\"a\"}\n{\"done\":1}":                          "Line 2",
		"{\"done\":true,\"commands\":{}}":                          "Line 1",
	} {
		if _, _, err := decodeStream(NDJSON, body, 5, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", body, err, want)
		}
	}
}

func FuzzStream(f *testing.F) {
	for _, body := range []string{"{\"delta\":\"a. B\"}\n{\"done\":true}", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n", "{\"error\":{\"message\":\"x\"}}", "{\"done\":true,\"error\":{\"code\":\"a\",\"message\":\"b\"}}"} {
		f.Add(body, 3, true)
		f.Add(body, 3, false)
	}
	f.Fuzz(func(t *testing.T, body string, n int, events bool) {
		if len(body) == 0 || len(body) > 10_000 {
			return
		}
		mediaType := map[bool]string{true: EventStream, false: NDJSON}[events]
		whole, a, errA := decodeStream(mediaType, body, len(body), false)
		pieces, b, errB := decodeStream(mediaType, body, 1+(n&0xff), false)
		if (errA == nil) != (errB == nil) || errA == nil && !slices.Equal(whole, pieces) || a.Done() != b.Done() {
			t.Errorf("%q: at once %q, %v; in pieces %q, %v", body, whole, errA, pieces, errB)
		}
		if errA != nil && fault.From(errA).Code == fault.Internal {
			t.Errorf("%q: %v", body, errA)
		}
		for _, part := range whole {
			if !utf8.ValidString(part) || part == "" {
				t.Errorf("%q: part %q", body, part)
			}
		}
	})
}
