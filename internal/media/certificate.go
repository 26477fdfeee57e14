package media

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// lookAgain is how often, at the most, files are looked at for a new certificate.
const lookAgain = time.Second

// Certificate is a pair of files that is read again when it changes, so that
// renewing it takes no restart.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu     sync.Mutex
	looked time.Time
	seen   [2]version
	failed bool // to read what was seen
	pair   *tls.Certificate
}

// version tells one content of a file from another.
type version struct {
	modified time.Time
	size     int64
}

// LoadCertificate reads the pair for the first time.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log}
	err := c.Reload()
	return c, err
}

// Reload reads the pair now. When it fails, the pair at hand stays.
func (c *Certificate) Reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read(c.versions())
}

func (c *Certificate) read(seen [2]version) error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if c.seen, c.failed = seen, err != nil; err != nil {
		return fmt.Errorf("read the certificate %s and its key %s: %w", c.certFile, c.keyFile, err)
	}
	c.pair = &pair
	return nil
}

// Get is for tls.Config: the newest pair there is.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) >= lookAgain {
		c.looked = now
		// What could not be read is tried again: it may have been for want of a
		// permission or a descriptor, which no file's version tells.
		if seen, before := c.versions(), c.seen; seen != before || c.failed {
			if err := c.read(seen); err == nil {
				c.log.Info("the certificate was read again", "expires", c.pair.Leaf.NotAfter)
			} else if seen != before {
				c.log.Warn("the new certificate cannot be used; the one before stays", "error", err)
			}
		}
	}
	return c.pair, nil
}

func (c *Certificate) versions() (v [2]version) {
	for i, name := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(name); err == nil {
			v[i] = version{info.ModTime(), info.Size()}
		}
	}
	return v
}
