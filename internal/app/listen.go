package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"telapi/internal/config"
	"telapi/internal/media"
	"telapi/internal/telemetry"
)

// bind opens a port before anything else is, so that a port in use is the first
// thing an operator hears of. Name is the setting it comes from.
func bind(ctx context.Context, host string, port int, name string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d is in use by another program. Stop that, or choose another port: %s=%d (0 picks a free one): %w", port, name, port+10, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s %d: %w", name, port, err)
	}
	return l, nil
}

func listen(ctx context.Context, cfg config.Config) (net.Listener, error) {
	l, err := bind(ctx, "", cfg.Port, "TELAPI_PORT")
	if err != nil {
		return nil, err
	}
	if !cfg.APITLSEnabled {
		return l, nil
	}
	edge, err := cfg.EdgeTLS()
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return tls.NewListener(l, edge), nil
}

// URL is where this instance listens, as a browser on the same machine would
// reach it.
func (a *App) URL() string {
	scheme := "http"
	if a.cfg.APITLSEnabled {
		scheme = "https"
	}
	return scheme + "://localhost:" + a.port()
}

func (a *App) port() string {
	_, port, _ := net.SplitHostPort(a.listener.Addr().String())
	return port
}

func openMedia(cfg config.Config) (*media.Client, error) {
	if cfg.MediaCacheURL == "" {
		return nil, nil //nolint:nilnil // no media service is a way to run
	}
	roots, err := cfg.MediaCacheCAs()
	if err != nil {
		return nil, err
	}
	return media.NewClient(cfg.MediaCacheURL, cfg.MediaCacheToken, roots)
}

func telemetryOptions(cfg config.Config, opts Options) telemetry.Options {
	return telemetry.Options{
		Level:        cfg.LogLevel,
		Format:       cfg.LogFormat,
		Writer:       opts.Log,
		Export:       cfg.OTelEnabled,
		Endpoint:     cfg.OTLPEndpoint,
		MSISDNDigits: cfg.MSISDNUnmaskedDigits,
		Version:      opts.Version,
	}
}

// listeners hear the announcements of this instance, each its own.
type listeners []interface {
	Up()
	Down(error)
	Message(topic string)
}

func (ls listeners) Up() {
	for _, l := range ls {
		l.Up()
	}
}

func (ls listeners) Down(err error) {
	for _, l := range ls {
		l.Down(err)
	}
}

func (ls listeners) Message(topic string) {
	for _, l := range ls {
		l.Message(topic)
	}
}
