package sqlstore

import (
	"context"
	"errors"
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
			if !fault.Is(err, fault.NotFound) {
				t.Errorf("%s: %v, want NOT_FOUND", verb, err)
			}
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
				if !fault.Is(err, fault.Validation) {
					t.Errorf("%s %q: %v, want VALIDATION_ERROR", what, text, err)
				}
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

// errorOf returns the error of a call.
func errorOf[T any](_ T, err error) error { return err }

func wantFault(t *testing.T, what string, err error, want fault.Code) {
	t.Helper()
	if !fault.Is(err, want) {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}
