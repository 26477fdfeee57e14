package hostile

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// Limits on the resident memory of an instance, in MB.
const (
	maxDuring = 250
	maxAfter  = 100
)

// target is the built binary with default limits and two tenants.
type target struct {
	*testing.T
	*harness.Process
	instance *harness.Instance
	tenant   harness.Tenant // of the attackers
	other    harness.Tenant // of the bystander
	env      harness.Env
	// Nil on embedded stores, whose data is in the instance's memory and DATA_DIR.
	redis    rueidis.Client
	database *pgx.Conn
}

// startTarget starts a target on Redis and PostgreSQL. Another instance creates the tenants.
func startTarget(t *testing.T, env harness.Env) *target {
	t.Helper()
	stores, _ := harness.RealStores(t)
	a := &target{T: t, env: harness.Merge(stores, env)}
	a.createTenants(harness.Start(t, stores))
	var err error
	if a.database, err = pgx.Connect(t.Context(), a.env["DATABASE_URL"]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.database.Close(context.Background()) })
	a.redis = harness.StoreClient(t, a.env)
	a.instance, a.Process = harness.Serve(t, a.env)
	return a
}

// startEmbedded starts a target on embedded stores.
func startEmbedded(t *testing.T, env harness.Env) *target {
	t.Helper()
	dir := harness.Env{"DATA_DIR": t.TempDir()}
	a := &target{T: t, env: harness.Merge(dir, env)}
	admin := harness.Start(t, dir)
	a.createTenants(admin)
	if err := admin.Stop(); err != nil { // one instance at a time has the directory
		t.Fatal(err)
	}
	a.instance, a.Process = harness.Serve(t, a.env)
	return a
}

// onAllStores runs an attack that reaches the stores on each kind of them, on both at a time:
// it mostly waits until the instance has released memory.
func onAllStores(t *testing.T, env harness.Env, test func(*target)) {
	for name, start := range map[string]func(*testing.T, harness.Env) *target{"Redis and PostgreSQL": startTarget, "embedded": startEmbedded} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(start(t, env))
		})
	}
}

func (a *target) createTenants(admin *harness.Instance) {
	a.Helper()
	a.tenant, a.other = harness.NewTenant(a.T, admin, "tenant"), harness.NewTenant(a.T, admin, "other")
}

// session creates a session of the attackers.
func (a *target) session() (id, token string) {
	a.Helper()
	return a.sessionOf(a.tenant)
}

func (a *target) sessionOf(tenant harness.Tenant) (id, token string) {
	a.Helper()
	return tenant.Session(a.T, a.instance)
}

// connect creates a session and opens its socket.
func (a *target) connect() *harness.Browser {
	a.Helper()
	b, _ := a.tenant.Connect(a.T, a.instance)
	return b
}

// fullSession creates a session whose history has the maximum size.
func (a *target) fullSession() (id, token string) {
	a.Helper()
	b, token := a.tenant.Connect(a.T, a.instance)
	ch := harness.Accept(a.T, harness.ConnectRuntime(a.T, a.instance.URL, a.other.Key))
	b.Cut()
	text := strings.Repeat("x", 60<<10)
	for range 300 {
		harness.SendChat(a.T, ch, fmt.Sprintf(`{"text":%q}`, text))
	}
	return b.Session, token
}

// growth is what an attack may add to the log and the stores, in bytes. The memory of
// Redis is its maximum during the attack. An instance with embedded stores may need that
// much more memory.
type growth struct{ log, redis, database int }

// attack runs an attack and fails the test if the instance needs too much memory, if
// log or stores grow too much, or if a client that is not involved is not served.
func (a *target) attack(allowed growth, attack func()) {
	a.Helper()
	stopBystander := a.startBystander()
	before := a.measure()
	attack()
	stopBystander()
	after := a.measure()
	for what, grown := range map[string][2]int{
		"log":      {after.log - before.log, allowed.log},
		"Redis":    {after.redis - before.redis, allowed.redis},
		"database": {after.database - before.database, allowed.database},
	} {
		a.Logf("%s: grown by %d KB of %d", what, grown[0]>>10, grown[1]>>10)
		if grown[0] > grown[1] {
			a.Errorf("%s has grown by %d bytes, want at most %d", what, grown[0], grown[1])
		}
	}
	maxDuring, maxAfter := maxDuring, maxAfter
	if a.redis == nil {
		maxDuring, maxAfter = maxDuring+allowed.redis>>20, maxAfter+allowed.redis>>20
	}
	peak := a.memory("VmHWM")
	if peak > maxDuring {
		a.Errorf("memory reached %d MB, want at most %d", peak, maxDuring)
	}
	testkit.Until(a, fmt.Sprintf("memory is at most %d MB again", maxAfter), func() bool { return a.memory("VmRSS") <= maxAfter })
	a.Logf("memory: peak %d MB, now %d MB", peak, a.memory("VmRSS"))
}

// measure returns the sizes of the log and the stores.
func (a *target) measure() growth {
	a.Helper()
	g := growth{log: len(a.Stderr.String())}
	if a.redis == nil {
		files, _ := filepath.Glob(filepath.Join(a.env["DATA_DIR"], "telapi.db*"))
		for _, name := range files {
			if info, err := os.Stat(name); err == nil {
				g.database += int(info.Size())
			}
		}
		return g
	}
	g.redis = a.redisInfo("used_memory_peak")
	testkit.Must(a, a.database.QueryRow(a.Context(), "SELECT pg_database_size(current_database())").Scan(&g.database))
	return g
}

// redisInfo returns a number of the INFO command.
func (a *target) redisInfo(name string) (n int) {
	a.Helper()
	info, err := a.redis.Do(a.Context(), a.redis.B().Info().Build()).ToString()
	testkit.Must(a, err)
	_, value, _ := strings.Cut(info, "\n"+name+":")
	if _, err := fmt.Sscan(value, &n); err != nil {
		a.Fatalf("read %s: %v", name, err)
	}
	return n
}

// memory returns a field of /proc/PID/status in MB, such as VmRSS or VmHWM, which is
// the peak of VmRSS.
func (a *target) memory(field string) int {
	a.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.Cmd.Process.Pid))
	testkit.Must(a, err)
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == field+":" {
			kb, err := strconv.Atoi(fields[1])
			testkit.Must(a, err)
			return kb / 1024
		}
	}
	a.Fatalf("/proc/PID/status has no %s", field)
	return 0
}

// openChannel opens the channel call-1.
func (a *target) openChannel() *callruntime.Channel {
	a.Helper()
	runtime := harness.ConnectRuntime(a.T, a.instance.URL, a.other.Key)
	ch, err := runtime.Open(a.Context(), "call-1", wire.Open{Team: "tm_1", Endpoint: "ep_1"})
	testkit.Must(a, err)
	return ch
}

// item returns a work item. With ScopeChannel, its token may be used more than once.
func (a *target) item(ch *callruntime.Channel, scope wire.Scope) wire.Awaited {
	a.Helper()
	item, err := ch.Await(a.Context(), wire.Await{Scope: scope})
	testkit.Must(a, err)
	return item
}

// startRuntime starts a call runtime that accepts every session and commits all
// entries.
func (a *target) startRuntime() {
	a.Helper()
	runtime := harness.ConnectRuntime(a.T, a.instance.URL, a.other.Key)
	go func() {
		for {
			ch, err := runtime.Accept(a.Context(), wire.Accept{})
			if err != nil {
				return
			}
			go func() {
				for {
					d, err := ch.Receive(a.Context())
					if err != nil || ch.Commit(a.Context(), d.Position) != nil {
						return
					}
				}
			}()
		}
	}()
}

// dial opens a connection that is closed when the test ends.
func (a *target) dial() net.Conn {
	a.Helper()
	_, address, _ := strings.Cut(a.instance.URL, "://")
	conn, err := net.Dial("tcp", address)
	testkit.Must(a, err)
	a.Cleanup(func() { _ = conn.Close() })
	return conn
}

// inParallel runs attack n times, on a few goroutines.
func inParallel(n int, attack func(i int)) {
	const workers = 32
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				attack(i)
			}
		})
	}
	wg.Wait()
}
