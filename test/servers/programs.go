package servers

import "testing"

// Sox returns the path of sox, the reference for audio conversions.
func Sox(t testing.TB) string { return need(t, "sox", "sox") }

// Espeak returns the path of espeak-ng.
func Espeak(t testing.TB) string { return need(t, "espeak-ng", "espeak-ng") }
