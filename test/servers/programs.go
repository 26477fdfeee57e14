package servers

import "testing"

// Sox returns the path of sox, against which audio is compared.
func Sox(t testing.TB) string { return need(t, "sox", "sox") }

// Espeak returns the path of the synthesiser espeak-ng.
func Espeak(t testing.TB) string { return need(t, "espeak-ng", "espeak-ng") }
