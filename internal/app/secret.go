package app

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"

	"telapi/internal/auth"
	"telapi/internal/redact"
)

// developmentSecret returns the JWT secret of telapi dev. It generates the secret
// once and keeps it in dataDir, so that tokens stay valid after a restart.
func developmentSecret(dataDir string) (redact.Secret, error) {
	path := filepath.Join(dataDir, "jwt-secret")
	if saved, err := os.ReadFile(path); err == nil && len(saved) >= auth.MinSecretBytes {
		return redact.Secret(saved), nil
	}
	secret := rand.Text() + rand.Text()
	err := os.MkdirAll(dataDir, 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(secret), 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("save the JWT secret: %w", err)
	}
	return redact.Secret(secret), nil
}
