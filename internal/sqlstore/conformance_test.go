package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/redact"
	"telapi/internal/team"
	"telapi/test/conformance"
	"telapi/test/testkit"
)

// engines are the databases under test. make returns an empty one, and migrated one
// on which Migrate has little to do.
var engines = []struct {
	name           string
	make, migrated func(t *testing.T) Options
}{
	{"SQLite", sqliteOptions, sqliteOptions},
	{"PostgreSQL", func(t *testing.T) Options {
		return Options{DSN: redact.Secret(testkit.SharedPostgres(t).NewDatabase(t))}
	}, migratedPostgres},
}

func sqliteOptions(t *testing.T) Options { return Options{DataDir: t.TempDir()} }

func migratedPostgres(t *testing.T) Options {
	return Options{DSN: redact.Secret(testkit.SharedPostgres(t).Clone(t, func(url string) {
		s, err := Open(Options{DSN: redact.Secret(url)})
		testkit.Must(t, err)
		testkit.Must(t, s.Migrate(t.Context()), s.Close())
	}))}
}

// onEachEngine runs a test on a migrated database of each engine.
func onEachEngine(t *testing.T, test func(t *testing.T, s *Store)) {
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, engine.migrated(t))
			testkit.Must(t, s.Migrate(t.Context()))
			test(t, s)
		})
	}
}

func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// testTime is a time with the precision of stored times, milliseconds.
var testTime = time.Date(2026, 3, 1, 12, 30, 45, 678_000_000, time.UTC)

func newTeam(t *testing.T, s *Store, id string) team.Team {
	t.Helper()
	made := team.Team{ID: id, Name: "Team " + id, CreatedAt: testTime}
	testkit.Must(t, s.CreateTeam(t.Context(), made))
	return made
}

func TestStoreConforms(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		conformance.Mirror(t, s)
		conformance.ReportStore(t, s)
	})
}

func TestUnknownIDIsNotFound(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		for _, id := range []string{"unknown", "", "un\x00known", "un\xffknown", "'; DROP TABLE teams; --"} {
			_, noTeam := s.Team(ctx, id)
			_, noKey := s.Key(ctx, id)
			_, noEndpoint := s.Endpoint(ctx, id)
			for kind, err := range map[string]error{"team": noTeam, "API key": noKey, "endpoint": noEndpoint} {
				if !fault.Is(err, fault.NotFound) || fault.From(err).Message != "The "+kind+" was not found." {
					t.Errorf("%s %q: %v, want NOT_FOUND with the kind of record", kind, id, err)
				}
			}
		}
		_, noUpdate := s.UpdateTeam(ctx, "unknown", nil)
		_, noChange := s.UpdateEndpoint(ctx, "un\x00known", nil)
		for verb, err := range map[string]error{
			"update a team":               noUpdate,
			"update an endpoint":          noChange,
			"revoke a key":                s.RevokeKey(ctx, "unknown", testTime),
			"key of an unknown team":      s.CreateKey(ctx, auth.Key{ID: "k", TeamID: "unknown", CreatedAt: testTime}),
			"endpoint of an unknown team": s.CreateEndpoint(ctx, team.Endpoint{ID: "e", TeamID: "unknown", CreatedAt: testTime, UpdatedAt: testTime}),
		} {
			testkit.WantFault(t, verb, err, fault.NotFound)
		}
	})
}

func TestDuplicateIDIsRejected(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		existing := newTeam(t, s, "t1")
		k := auth.Key{ID: "k1", TeamID: "t1", CreatedAt: testTime}
		e := team.Endpoint{ID: "e1", TeamID: "t1", CreatedAt: testTime, UpdatedAt: testTime}
		testkit.Must(t, s.CreateKey(ctx, k), s.CreateEndpoint(ctx, e))
		for kind, err := range map[string]error{
			"team": s.CreateTeam(ctx, existing), "API key": s.CreateKey(ctx, k), "endpoint": s.CreateEndpoint(ctx, e),
		} {
			if !fault.Is(err, fault.Validation) || fault.From(err).Message != "The ID of this "+kind+" is already in use." {
				t.Errorf("%s: %v, want VALIDATION_ERROR", kind, err)
			}
		}
	})
}

func TestInvalidTextIsRejected(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		for _, text := range []string{"nul\x00", "broken \xc3"} {
			for what, err := range map[string]error{
				"team":    s.CreateTeam(t.Context(), team.Team{ID: "t", Name: text, CreatedAt: testTime}),
				"setting": s.SaveSetting(t.Context(), "limits", []byte(text)),
				"usage":   addNew(t, s, []wire.SpeechReport{{TeamID: "t", Voice: text, At: testTime.UnixMilli()}}),
			} {
				testkit.WantFault(t, fmt.Sprintf("%s %q", what, text), err, fault.Validation)
			}
		}
	})
}

func TestCanceledCallIsNotAnOutage(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, one := s.Team(ctx, "t1")
		_, list := s.Teams(ctx, page.All)
		for what, err := range map[string]error{
			"read": one, "list": list, "ping": s.Ping(ctx),
			"write":   s.CreateTeam(ctx, team.Team{ID: "t1", CreatedAt: testTime}),
			"batch":   s.TouchKeys(ctx, map[string]time.Time{"k": testTime}),
			"connect": s.Connect(ctx),
		} {
			if !errors.Is(err, context.Canceled) || fault.Is(err, fault.ServiceUnavailable) {
				t.Errorf("%s: %v, want context.Canceled", what, err)
			}
		}
	})
}

func TestTimeoutIsUnavailable(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		_, err := s.Team(ctx, "t1")
		if !fault.Is(err, fault.ServiceUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want SERVICE_UNAVAILABLE because of the deadline", err)
		}
	})
}

// startProxy starts a proxy for a server. request and response return the data to pass on
// instead of the data that was received.
func startProxy(t *testing.T, server string, request, response func([]byte) []byte) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			go pass(client, upstream, request)
			go pass(upstream, client, response)
		}
	}()
	return listener.Addr().String()
}

// pass copies data after editing it.
func pass(from, to net.Conn, edit func([]byte) []byte) {
	defer to.Close()
	buffer := make([]byte, 1<<20)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if _, err := to.Write(edit(buffer[:n])); err != nil {
			return
		}
	}
}

// With a round trip of a millisecond, thousands of single updates would exceed
// the timeout.
func TestBatchTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(testkit.SharedPostgres(t).NewDatabase(t))
	testkit.Must(t, err)
	var roundTrips atomic.Int64 // requests that follow a response
	var answered atomic.Bool
	address.Host = startProxy(t, address.Host, func(b []byte) []byte {
		if answered.Swap(false) {
			roundTrips.Add(1)
		}
		return b
	}, func(b []byte) []byte { answered.Store(true); return b })
	s := open(t, Options{DSN: redact.Secret(address.String())})
	testkit.Must(t, s.Migrate(t.Context()))
	newTeam(t, s, "t1")
	testkit.Must(t, s.CreateKey(t.Context(), auth.Key{ID: "k999", TeamID: "t1", CreatedAt: testTime}))
	lastUsed := map[string]time.Time{}
	for i := range 1000 {
		lastUsed[fmt.Sprint("k", i)] = testTime
	}
	before := roundTrips.Load()
	testkit.Must(t, s.TouchKeys(t.Context(), lastUsed))
	if trips := roundTrips.Load() - before; trips > 100 {
		t.Errorf("%d updates took %d round trips, want at most 100", len(lastUsed), trips)
	}
	if k, err := s.Key(t.Context(), "k999"); err != nil || !k.LastUsedAt.Equal(testTime) {
		t.Errorf("key last used at %v, %v; want %v", k.LastUsedAt, err, testTime)
	}
}

func TestBatchIsAtomic(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		testkit.Must(t, s.CreateKey(t.Context(), auth.Key{ID: "k1", TeamID: "t1", CreatedAt: testTime}))
		for name, invalid := range map[string][]any{"constraint violation": {"k1", nil}, "invalid text": {"k\x00", "new"}} {
			_, err := s.execBatch(t.Context(), "rename", `UPDATE api_keys SET name = CAST($2 AS TEXT) WHERE id = $1`, []any{"k1", "new"}, invalid)
			if k, _ := s.Key(t.Context(), "k1"); err == nil || k.Name != "" {
				t.Errorf("%s: error %v, name %q; want an error and no change", name, err, k.Name)
			}
		}
	})
}

func TestStatementAfterClose(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		testkit.Must(t, s.Close())
		if _, err := s.Session(t.Context(), "s1"); err == nil || fault.Is(err, fault.NotFound) {
			t.Errorf("read after Close: %v, want another error than NOT_FOUND", err)
		}
	})
}
