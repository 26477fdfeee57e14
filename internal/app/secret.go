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
	if saved, ok := savedSecret(dataDir); ok {
		return saved, nil
	}
	secret := rand.Text() + rand.Text()
	err := os.MkdirAll(dataDir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(dataDir, secretFile), []byte(secret), 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("save the JWT secret: %w", err)
	}
	return redact.Secret(secret), nil
}

const secretFile = "jwt-secret"

// savedSecret returns the JWT secret that telapi dev keeps in dataDir.
func savedSecret(dataDir string) (secret redact.Secret, ok bool) {
	saved, err := os.ReadFile(filepath.Join(dataDir, secretFile))
	return redact.Secret(saved), err == nil && len(saved) >= auth.MinSecretBytes
}
