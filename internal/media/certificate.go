package media

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificateCheckInterval limits how often the files are checked for changes.
const certificateCheckInterval = time.Second

// Certificate is a certificate that is reloaded when its files change, so that
// it can be renewed without a restart.
type Certificate struct {
	files [2]string // certificate and key
	log   *slog.Logger

	mu      sync.Mutex
	checked time.Time
	loaded  [2]fileVersion
	failed  bool // to load that version
	pair    *tls.Certificate
}

type fileVersion struct {
	modified time.Time
	size     int64
}

// LoadCertificate loads a certificate and its key.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{files: [2]string{certFile, keyFile}, log: log}
	return c, c.Reload()
}

// Reload loads the files now. If that fails, the current certificate remains.
func (c *Certificate) Reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.load(c.versions())
}

func (c *Certificate) load(version [2]fileVersion) error {
	pair, err := tls.LoadX509KeyPair(c.files[0], c.files[1])
	if c.loaded, c.failed = version, err != nil; err != nil {
		return fmt.Errorf("load certificate %s with key %s: %w", c.files[0], c.files[1], err)
	}
	c.pair = &pair
	return nil
}

// Get returns the latest certificate. It implements tls.Config.GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.checked) >= certificateCheckInterval {
		c.checked = now
		// A failed load is retried: its cause may be a permission or a lack of
		// descriptors, which don't change the version.
		if version, before := c.versions(), c.loaded; version != before || c.failed {
			if err := c.load(version); err == nil {
				c.log.Info("certificate reloaded", "expires", c.pair.Leaf.NotAfter)
			} else if version != before {
				c.log.Warn("new certificate is invalid; using the previous one", "error", err)
			}
		}
	}
	return c.pair, nil
}

func (c *Certificate) versions() (v [2]fileVersion) {
	for i, name := range c.files {
		if info, err := os.Stat(name); err == nil {
			v[i] = fileVersion{info.ModTime(), info.Size()}
		}
	}
	return v
}
