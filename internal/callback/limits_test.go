package callback

import (
	"strings"
	"testing"

	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestMediaTypeOfStream(t *testing.T) {
	for contentType, want := range map[string]string{
		"application/x-ndjson":                     NDJSON,
		"Application/X-NDJSON; charset=\"UTF-8\"":  NDJSON,
		"text/event-stream;charset=utf8;version=1": EventStream,
		"text/event-stream; charset=":              "",
		"text/event-stream; charset=iso-8859-1":    "",
		"text/event-stream; charset":               "",
		"":                                         "",
	} {
		testkit.Equal(t, contentType, MediaType(contentType), want)
	}
}

func TestStreamLimits(t *testing.T) {
	const delta, end = "{\"delta\":\"Yes. \"}\n", "{\"done\":true}\n"
	lines := func(n int) string { return strings.Repeat("\n", n-len(end)) + end }
	for name, tt := range map[string]struct {
		body     string
		perDelta bool
		want     fault.Code // empty: no error
	}{
		"longest":             {lines(MaxStreamBytes), false, ""},
		"too long":            {lines(MaxStreamBytes + 1), false, fault.PayloadTooLarge},
		"most sentences":      {strings.Repeat(delta, MaxParts) + end, false, ""},
		"too many sentences":  {strings.Repeat(delta, MaxParts+1) + end, false, fault.PayloadTooLarge},
		"most deltas":         {strings.Repeat(delta, MaxParts) + end, true, ""},
		"too many deltas":     {strings.Repeat(delta, MaxParts+1), true, fault.PayloadTooLarge},
		"too many, but ended": {lines(100) + strings.Repeat("\n", MaxStreamBytes), false, fault.PayloadTooLarge},
	} {
		if _, s, err := decodeStream(NDJSON, tt.body, 1000, tt.perDelta); tt.want == "" && (err != nil || !s.Done()) || tt.want != "" && !fault.Is(err, tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// The limit applies before the whole text is cut.
func TestTooManySentencesInOneDeltaCostLittle(t *testing.T) {
	for _, unit := range []string{"A!", "[a! "} {
		body := `{"delta":"` + strings.Repeat(unit, (MaxStreamBytes-100)/len(unit)) + `"}` + "\n"
		parts, s, err := decodeStream(NDJSON, body, len(body), false)
		testkit.WantFault(t, unit, err, fault.PayloadTooLarge)
		testkit.Equal(t, unit+": parts", len(parts), MaxParts+1)
		if s.splitter.examined > 8*MaxStreamBytes {
			t.Errorf("%q: examined %d bytes", unit, s.splitter.examined)
		}
	}
}

func TestStreamReportsItsMemory(t *testing.T) {
	s := streamDecoder{line: make([]byte, 0, 1), event: make([]byte, 0, 10), text: make([]byte, 0, 100), splitter: Splitter{buf: make([]byte, 0, 1000)}}
	testkit.Equal(t, "size", s.Size(), 1111)
}
