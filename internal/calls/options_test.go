package calls_test

import (
	"testing"

	"telapi/internal/calls"
)

func TestNewRequiresName(t *testing.T) {
	if _, err := calls.New(calls.Options{}); err == nil {
		t.Error("New accepted options without a name")
	}
}
