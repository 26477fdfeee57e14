package media

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// certificateCheckInterval limits how often the files are read.
const certificateCheckInterval = time.Second

// Certificate is a certificate that is reloaded when its files change, so that
// it can be renewed without a restart.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	checked time.Time
	failure string // of the last load
	pair    *tls.Certificate
}

// LoadCertificate loads a certificate and its key.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log}
	err := c.load()
	return c, err
}

// load reads the files. If that fails, the current certificate remains.
func (c *Certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("load certificate %s with key %s: %w", c.certFile, c.keyFile, err)
	}
	if c.pair != nil && !bytes.Equal(c.pair.Certificate[0], pair.Certificate[0]) {
		c.log.Info("certificate reloaded", "expires", pair.Leaf.NotAfter)
	}
	c.pair, c.failure = &pair, ""
	return nil
}

// Get returns the latest certificate. It implements tls.Config.GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.checked) >= certificateCheckInterval {
		c.checked = now
		if err := c.load(); err != nil && err.Error() != c.failure {
			c.failure = err.Error()
			c.log.Warn("new certificate is invalid; using the previous one", "error", err)
		}
	}
	return c.pair, nil
}
