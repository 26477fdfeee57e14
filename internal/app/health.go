package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/background"
	"telapi/internal/config"
	"telapi/internal/httpapi"
)

const (
	healthTimeout  = 3 * time.Second
	maxHealthBytes = 64 << 10
)

// APIServerURL returns the URL of the API server on this machine.
func APIServerURL(cfg config.Config) string { return localURL(cfg.APIScheme(), cfg.Host, cfg.Port) }

// MediaServiceURL returns the URL of the media service on this machine.
func MediaServiceURL(cfg config.Config) string {
	scheme := "http"
	if cfg.MediaTLSCertFile != "" {
		scheme = "https"
	}
	return localURL(scheme, cfg.MediaHost, cfg.MediaPort)
}

// localURL uses an address, unlike config.LocalURL: small containers can't resolve localhost.
func localURL(scheme, host string, port int) string {
	return scheme + "://" + net.JoinHostPort(cmp.Or(host, "127.0.0.1"), strconv.Itoa(port))
}

// CheckHealth requests /health of a server on this machine and returns the status and
// body of the response.
func CheckHealth(ctx context.Context, url string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return 0, nil, fmt.Errorf("check health: %w", err)
	}
	// The certificate is for the public name, and the connection does not leave the machine.
	client := http.Client{Timeout: healthTimeout, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // loopback
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("check health: %w", err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxHealthBytes))
	return resp.StatusCode, body, err
}

// Statuses of a dependency in /health. The server's own is httpapi.Healthy, statusUnavailable or draining.
const (
	statusOK          = "ok"
	statusDegraded    = "degraded"
	statusUnavailable = "unavailable"
	statusDisabled    = "disabled"
)

const (
	probeInterval = time.Second
	retryInterval = 100 * time.Millisecond // while a dependency is unavailable
	probeTimeout  = 2 * time.Second
)

// probe checks one dependency in the background, so that /health never waits for it.
type probe struct {
	name         string // in /health
	label        string // in log messages
	failedStatus string // in /health, while ping fails
	ping         func(context.Context) error
	ok           atomic.Bool
	up           prometheus.Gauge // 1 if ok
}

// run probes until ctx ends and logs when the dependency becomes unavailable or available again.
func (p *probe) run(ctx context.Context, log *slog.Logger) {
	for wasEverOK := false; ctx.Err() == nil; {
		pingCtx, cancel := context.WithTimeout(ctx, probeTimeout)
		err := p.ping(pingCtx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		wasOK := p.ok.Swap(err == nil)
		if err != nil {
			if wasOK {
				log.WarnContext(ctx, p.label+" is unavailable", "error", err)
			}
			p.up.Set(0)
			_ = background.Sleep(ctx, retryInterval)
			continue
		}
		if wasEverOK && !wasOK {
			log.InfoContext(ctx, p.label+" is available again")
		}
		wasEverOK = true
		p.up.Set(1)
		_ = background.Sleep(ctx, probeInterval)
	}
}

// addFullGauge adds a metric that is 1 while the key-value store is full.
func (a *App) addFullGauge(isFull func() bool) {
	promauto.With(a.telemetry.Registry).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "telapi_kv_full", Help: "1 if the key-value store has just rejected a write because it is full, 0 otherwise."},
		func() float64 {
			if isFull() {
				return 1
			}
			return 0
		})
}

// addProbes adds dependencies to /health and to the metrics.
func (a *App) addProbes(probes ...*probe) {
	up := promauto.With(a.telemetry.Registry).NewGaugeVec(prometheus.GaugeOpts{
		Name: "telapi_dependency_up", Help: "1 if the dependency (database, kv or media) answered the last probe, 0 otherwise."}, []string{"dependency"})
	for _, p := range probes {
		p.up = up.WithLabelValues(p.name)
		a.probes = append(a.probes, p)
		a.addJobs(func(ctx context.Context) { p.run(ctx, a.log) })
	}
}

// Health returns the response of /health.
func (a *App) Health() httpapi.Health {
	h := httpapi.Health{
		Status:        httpapi.Healthy,
		Version:       a.opts.Version,
		UptimeSeconds: int64(time.Since(a.started).Seconds()),
		Checks:        map[string]string{"database": statusDisabled, "kv": statusDisabled, "media": statusDisabled},
	}
	for _, p := range a.probes {
		h.Checks[p.name] = p.failedStatus
		if p.ok.Load() {
			h.Checks[p.name] = statusOK
		}
	}
	if a.cfg.FeatureAPIAccess && !a.runtimes.Ready() {
		h.Checks["kv"] = statusUnavailable // call runtimes cannot connect yet
	}
	switch {
	case a.draining.Load():
		h.Status = "draining"
	case h.Checks["kv"] != statusOK,
		a.cfg.FeatureAPIAccess && h.Checks["database"] != statusOK:
		h.Status = statusUnavailable
	}
	return h
}
