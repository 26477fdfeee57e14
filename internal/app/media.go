package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"syscall"

	"telapi/internal/config"
	"telapi/internal/media"
	"telapi/internal/redact"
)

// Media is the media service as a process of its own, or beside the API server
// in telapi dev.
type Media struct {
	process
	certificate *media.Certificate // nil: plain HTTP
	service     *media.Service
}

// NewMedia binds the port and opens the store. Everything it opens is closed when
// it fails, and at the end of Run otherwise.
func NewMedia(ctx context.Context, cfg config.Config, opts Options) (_ *Media, err error) {
	m := &Media{process: process{cfg: cfg}}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	host := cfg.MediaHost
	if opts.Development {
		host = cmp.Or(host, "127.0.0.1")
	}
	m.listener, err = bind(ctx, host, cfg.MediaPort, "MEDIA_PORT")
	if errors.Is(err, syscall.EADDRINUSE) && opts.Development && !cfg.IsSet("MEDIA_PORT") {
		m.listener, err = bind(ctx, host, 0, "MEDIA_PORT")
	}
	if err != nil {
		return nil, err
	}
	if err := m.start(ctx, opts); err != nil {
		return nil, err
	}
	if cfg.MediaTLSCertFile != "" {
		if m.certificate, err = media.LoadCertificate(cfg.MediaTLSCertFile, cfg.MediaTLSKeyFile, m.log); err != nil {
			return nil, fmt.Errorf("MEDIA_TLS_CERT_FILE, MEDIA_TLS_KEY_FILE: %w", err)
		}
	}
	m.service, err = media.New(media.Options{
		Root:           cmp.Or(cfg.MediaRoot, filepath.Join(cfg.DataDir, "media")),
		MaxBytes:       int64(cfg.MediaMaxBytes),
		Unsynced:       !cfg.MediaSync,
		MaxObjectBytes: int64(cfg.MediaMaxObjectBytes),
		MemoryBytes:    int64(cfg.MediaMemoryBytes),
		UploadTokens:   uploadTokens(cfg),
		MetricsToken:   cfg.MetricsToken,
		Log:            m.log,
		Registry:       m.tele.Registry,
	})
	if errors.Is(err, syscall.EWOULDBLOCK) && cfg.MediaRoot == "" {
		return nil, fmt.Errorf("another telapi runs on the data folder %s: stop it, or give this one a DATA_DIR of its own", cfg.DataDir)
	}
	if err != nil {
		return nil, err
	}
	if len(uploadTokens(cfg)) == 0 && !m.address().IP.IsLoopback() {
		m.log.WarnContext(ctx, "MEDIA_UPLOAD_TOKEN is not set: whoever reaches this port can store and delete objects")
	}
	m.atEnd(m.service.Close)
	m.jobs = append(m.jobs, m.service.Run)
	if !opts.Development {
		m.jobs = append(m.jobs, m.boundMemory)
	}
	return m, nil
}

func uploadTokens(cfg config.Config) (tokens []redact.Secret) {
	for _, token := range []redact.Secret{cfg.MediaToken, cfg.MediaTokenPrevious} {
		if token != "" {
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// URL is where the service is reached from the same machine.
func (m *Media) URL() string {
	scheme, host := "http", "localhost"
	if m.certificate != nil {
		scheme = "https"
	} else if ip := m.address().IP; !ip.IsUnspecified() {
		host = ip.String()
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(m.address().Port))
}

// Run serves until ctx ends, drains, and lets go of everything.
func (m *Media) Run(ctx context.Context) error {
	defer m.close()
	var secure *tls.Config
	if m.certificate != nil {
		secure = config.ServerTLS()
		secure.GetCertificate = m.certificate.Get
	}
	m.log.InfoContext(ctx, "telapi media is listening", "url", m.URL())
	return m.serve(ctx, func() error { return m.service.Serve(m.listener, secure) }, m.service.Drain, m.service.Shutdown)
}
