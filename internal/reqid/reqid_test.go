package reqid

import (
	"context"
	"strings"
	"testing"
)

func TestSaneIdIsTakenOver(t *testing.T) {
	for _, id := range []string{"a", "A-1_b.c", strings.Repeat("x", 128)} {
		if got := FromHeader(id); got != id {
			t.Errorf("FromHeader(%q) = %q", id, got)
		}
	}
}

func TestInsaneIdIsReplaced(t *testing.T) {
	for _, id := range []string{"", " ", "a b", "a\nb", "ä", "a/b", "\xff", strings.Repeat("x", 129)} {
		got := FromHeader(id)
		if got == id || got == "" || FromHeader(got) != got {
			t.Errorf("FromHeader(%q) = %q, want a new sane id", id, got)
		}
	}
}

func TestContextCarriesTheId(t *testing.T) {
	if got := From(context.Background()); got != "" {
		t.Errorf("From(empty context) = %q", got)
	}
	if got := From(With(context.Background(), "r1")); got != "r1" {
		t.Errorf("From = %q, want r1", got)
	}
}

func FuzzFromHeader(f *testing.F) {
	f.Add("abc-123")
	f.Add("a\r\nb")
	f.Fuzz(func(t *testing.T, sent string) {
		got := FromHeader(sent)
		if got == "" || len(got) > 128 || FromHeader(got) != got {
			t.Errorf("%q became %q", sent, got)
		}
	})
}
