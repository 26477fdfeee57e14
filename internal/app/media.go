package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"telapi/internal/config"
	"telapi/internal/media"
	"telapi/internal/redact"
)

// Media is the media service. telapi media runs it alone, telapi dev together with
// the API server.
type Media struct {
	process
	certificate *media.Certificate // nil for plain HTTP
	service     *media.Service
}

// NewMedia binds the port and opens the folder of blobs. If it fails, it closes
// everything it opened. Otherwise Run closes it.
func NewMedia(ctx context.Context, cfg config.Config, opts Options) (_ *Media, err error) {
	m := &Media{process: process{cfg: cfg}}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	host := cfg.MediaHost
	if host == "" && cfg.MediaToken == "" {
		host = "127.0.0.1"
	}
	m.listener, err = listenTCP(ctx, host, cfg.MediaPort, "MEDIA")
	if errors.Is(err, syscall.EADDRINUSE) && opts.Development != nil && !cfg.IsSet("MEDIA_PORT") {
		m.listener, err = listenTCP(ctx, host, 0, "MEDIA")
	}
	if err != nil {
		return nil, err
	}
	m.onClose(func() { _ = m.listener.Close() }) // if NewMedia fails; Shutdown closes it earlier
	if cfg.MediaToken == "" && !m.Address().IP.IsLoopback() {
		return nil, errors.New("MEDIA_UPLOAD_TOKEN is not set: set it, or remove MEDIA_HOST to serve this machine only")
	}
	if err := m.startTelemetry(ctx, opts); err != nil {
		return nil, err
	}
	if cfg.MediaToken == "" && opts.Development == nil {
		m.log.WarnContext(ctx, "MEDIA_UPLOAD_TOKEN is not set: every program on this machine can upload and delete, other machines cannot connect")
	}
	if cfg.MediaTLSCertFile != "" {
		if m.certificate, err = media.LoadCertificate(cfg.MediaTLSCertFile, cfg.MediaTLSKeyFile, m.log); err != nil {
			return nil, fmt.Errorf("MEDIA_TLS_CERT_FILE, MEDIA_TLS_KEY_FILE: %w", err)
		}
	}
	tokens := slices.DeleteFunc([]redact.Secret{cfg.MediaToken, cfg.MediaTokenPrevious}, func(s redact.Secret) bool { return s == "" })
	m.service, err = media.New(media.Options{
		Root:           cmp.Or(cfg.MediaRoot, filepath.Join(cfg.DataDir, "media")),
		MaxBytes:       cfg.MediaMaxBytes,
		Unsynced:       !cfg.MediaSync,
		MaxObjectBytes: int64(cfg.MediaMaxObjectBytes),
		MemoryBytes:    cfg.MediaMemoryBytes,
		UploadTokens:   tokens,
		MetricsToken:   cfg.MetricsToken,
		Log:            m.log,
		Registry:       m.telemetry.Registry,
	})
	if errors.Is(err, syscall.EWOULDBLOCK) && cfg.MediaRoot == "" { // the folder in DATA_DIR is locked
		return nil, fmt.Errorf("another telapi process uses the data directory %s: stop it, or set another DATA_DIR", cfg.DataDir)
	}
	if err != nil {
		return nil, err
	}
	m.onClose(m.service.Close)
	m.addJobs(m.service.Run)
	if opts.Development == nil {
		m.onClose(limitGarbage(cfg.MediaMemoryBytes))
	}
	return m, nil
}

// URL returns the base URL of the service for clients on the same machine. With HTTPS, the
// host is a name, because few certificates are for an address.
func (m *Media) URL() string {
	scheme, host := "http", "localhost"
	if m.certificate != nil {
		scheme = "https"
	} else if ip := m.Address().IP; !ip.IsUnspecified() {
		host = ip.String()
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(m.Address().Port))
}

// Run serves until ctx ends, shuts down gracefully and closes everything NewMedia opened.
func (m *Media) Run(ctx context.Context) error {
	defer m.close()
	var tlsConfig *tls.Config
	if m.certificate != nil {
		tlsConfig = config.ServerTLS()
		tlsConfig.GetCertificate = m.certificate.Get
	}
	m.log.InfoContext(ctx, "telapi media is listening", "url", m.URL())
	return m.serve(ctx, func() error { return m.service.Serve(m.listener, tlsConfig) }, m.service.Drain, m.service.Shutdown)
}
