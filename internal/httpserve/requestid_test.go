package httpserve

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

func newRequestID(sent string) string {
	return NewRequestID(http.Header{RequestIDHeader: {sent}})
}

func TestValidRequestIDIsKept(t *testing.T) {
	for _, id := range []string{"a", "A-1_b.c", strings.Repeat("x", 128)} {
		if got := newRequestID(id); got != id {
			t.Errorf("NewRequestID(%q) = %q, want the same ID", id, got)
		}
	}
}

func TestInvalidRequestIDIsReplaced(t *testing.T) {
	for _, id := range []string{
		"", " ", "a b", "a\nb", "ä", "a/b", "\xff", strings.Repeat("x", 129),
		"tk_abcdefghijklmnop_abcdefghijklmnopqrstuvwxyz0123456789abcdefg",
	} {
		got := newRequestID(id)
		if got == id || got == "" || newRequestID(got) != got {
			t.Errorf("NewRequestID(%q) = %q, want a new valid ID", id, got)
		}
	}
}

func TestContextCarriesRequestID(t *testing.T) {
	if got := RequestIDFrom(context.Background()); got != "" {
		t.Errorf("RequestIDFrom(empty context) = %q, want none", got)
	}
	if got := RequestIDFrom(WithRequestID(context.Background(), "r1")); got != "r1" {
		t.Errorf("RequestIDFrom = %q, want r1", got)
	}
}

func FuzzNewRequestID(f *testing.F) {
	f.Add("abc-123")
	f.Add("a\r\nb")
	f.Fuzz(func(t *testing.T, sent string) {
		got := newRequestID(sent)
		if got == "" || len(got) > 128 || newRequestID(got) != got {
			t.Errorf("NewRequestID(%q) = %q, want a valid ID of at most 128 characters", sent, got)
		}
	})
}
