// Package operations tests deployments as docs/operations.md describes them: load
// balancers, restarts, rotations, releases.
package operations

import (
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// installation is a site with a client of its balancer.
type installation struct {
	*harness.Site
	t      *testing.T
	public *harness.Instance // the balancer
}

// forEachBalancer runs a test on an installation with each balancer.
func forEachBalancer(t *testing.T, test func(*testing.T, *installation)) {
	t.Helper()
	for _, balancer := range []harness.Balancer{harness.HAProxy, harness.Nginx} {
		t.Run(string(balancer), func(t *testing.T) {
			t.Parallel()
			test(t, install(t, balancer, harness.Database(t)))
		})
	}
}

func install(t *testing.T, balancer harness.Balancer, database string) *installation {
	t.Helper()
	s := harness.StartSite(t, harness.SiteOptions{Balancer: balancer, Env: harness.Env{
		"DATABASE_URL": database, "REDIS_URL": testkit.StartRedis(t).URL(), "DRAIN_DELAY": "6s", "SESSION_RECONNECT_JITTER": "500ms",
	}})
	return &installation{Site: s, t: t, public: &harness.Instance{URL: s.URL, Client: s.Client(nil), TLS: s.TLS()}}
}
