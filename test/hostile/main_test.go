// Package hostile attacks the service as anyone who can reach it could, and checks
// that memory, processor and disk stay bounded.
package hostile

import (
	"testing"

	"telapi/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
