// Package operations tests deployments as docs/operations.md describes them: load
// balancers, restarts, rotations, releases.
package operations

import (
	"testing"

	"telapi/test/boot"
	"telapi/test/servers"
	"telapi/test/site"
)

func TestMain(m *testing.M) { servers.Main(m) }

// installation is a site with a client of its balancer.
type installation struct {
	*site.Site
	t      *testing.T
	public *boot.Instance // the balancer
}

// forEachBalancer runs a test on an installation with each balancer.
func forEachBalancer(t *testing.T, test func(*testing.T, *installation)) {
	t.Helper()
	for _, balancer := range []site.Balancer{site.HAProxy, site.Nginx} {
		t.Run(string(balancer), func(t *testing.T) {
			t.Parallel()
			test(t, install(t, balancer, boot.Database(t)))
		})
	}
}

func install(t *testing.T, balancer site.Balancer, database string) *installation {
	t.Helper()
	s := site.Start(t, site.Options{Balancer: balancer, Env: boot.Env{
		"DATABASE_URL": database, "REDIS_URL": servers.StartRedis(t).URL(), "DRAIN_DELAY": "6s", "SESSION_RECONNECT_JITTER": "500ms",
	}})
	return &installation{Site: s, t: t, public: &boot.Instance{URL: s.URL, Client: s.Client(nil)}}
}
