package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"syscall"

	"telapi/internal/config"
	"telapi/internal/media"
	"telapi/internal/pause"
	"telapi/internal/redact"
	"telapi/internal/telemetry"
)

// Media is the media service as a process of its own, or beside the API server
// in telapi dev.
type Media struct {
	cfg         config.Config
	tele        *telemetry.Telemetry
	listener    net.Listener
	certificate *media.Certificate // nil: plain HTTP
	service     *media.Service
}

// NewMedia binds the port and opens the store. Everything it opens is closed when
// it fails, and at the end of Run otherwise.
func NewMedia(ctx context.Context, cfg config.Config, opts Options) (_ *Media, err error) {
	m := &Media{cfg: cfg}
	defer func() {
		if err != nil {
			m.close(ctx)
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
	if m.tele, err = telemetry.New(ctx, telemetryOptions(cfg, opts)); err != nil {
		return nil, fmt.Errorf("start telemetry: %w", err)
	}
	log := m.tele.Logger
	for _, w := range opts.Warnings {
		log.WarnContext(ctx, w.String(), "name", w.Name)
	}
	if cfg.MediaTLSCertFile != "" {
		if m.certificate, err = media.LoadCertificate(cfg.MediaTLSCertFile, cfg.MediaTLSKeyFile, log); err != nil {
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
		Log:            log,
		Registry:       m.tele.Registry,
	})
	if err != nil {
		return nil, err
	}
	if len(uploadTokens(cfg)) == 0 && !m.address().IP.IsLoopback() {
		log.WarnContext(ctx, "MEDIA_UPLOAD_TOKEN is not set: whoever reaches this port can store and delete objects")
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

func (m *Media) address() *net.TCPAddr { return m.listener.Addr().(*net.TCPAddr) }

// URL is where the service is reached from the same machine.
func (m *Media) URL() string {
	scheme, host := "http", "localhost"
	if m.certificate != nil {
		scheme = "https"
	} else if ip := m.address().IP; !ip.IsUnspecified() {
		host = ip.String()
	}
	return fmt.Sprintf("%s://%s", scheme, net.JoinHostPort(host, fmt.Sprint(m.address().Port)))
}

// ReloadCertificate reads the certificate now. It is read again by itself when it
// changes; this is for those who signal.
func (m *Media) ReloadCertificate() {
	if m.certificate == nil {
		return
	}
	if err := m.certificate.Reload(); err != nil {
		m.tele.Logger.Error("the certificate at hand stays", "error", err)
	}
}

// Run serves until ctx ends, drains as the API server does, and lets go of
// everything.
func (m *Media) Run(ctx context.Context) error {
	defer m.close(context.WithoutCancel(ctx))
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var jobs sync.WaitGroup
	jobs.Go(func() { m.service.Run(background) })
	defer jobs.Wait()
	defer stop()

	var secure *tls.Config
	if m.certificate != nil {
		secure = config.ServerTLS()
		secure.GetCertificate = m.certificate.Get
	}
	m.tele.Logger.InfoContext(ctx, "telapi media is listening", "url", m.URL())
	served := make(chan error, 1)
	go func() { served <- m.service.Serve(m.listener, secure) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(background, m.cfg.ShutdownTimeout)
	defer cancel()
	m.service.Drain()
	_ = pause.For(ctx, min(m.cfg.DrainDelay, m.cfg.ShutdownTimeout/2))
	if err := m.service.Shutdown(ctx); err != nil {
		m.tele.Logger.WarnContext(ctx, "requests were cut off at the end of SHUTDOWN_TIMEOUT", "error", err)
	}
	<-served
	return nil
}

func (m *Media) close(ctx context.Context) {
	if m.listener != nil {
		_ = m.listener.Close()
	}
	if m.service != nil {
		m.service.Close()
	}
	endTelemetry(ctx, m.tele)
}
