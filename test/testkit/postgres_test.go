package testkit

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { Main(m) }

func TestPostgresKeepsDataAfterStopAndCrash(t *testing.T) {
	p := StartPostgres(t, PostgresOptions{})
	database := p.NewDatabase(t)
	execute(t, database, "CREATE TABLE kept (id int)")
	p.Stop()
	if _, err := pgx.Connect(t.Context(), database); err == nil {
		t.Fatal("stopped server accepts connections, want an error")
	}
	p.Start(t)
	execute(t, database, "SELECT * FROM kept")
	p.Crash()
	p.Start(t)
	execute(t, database, "SELECT * FROM kept")
}

func TestPostgresOffersTLS(t *testing.T) {
	p := StartPostgres(t, PostgresOptions{CA: NewCA(t), Hosts: []string{"db.example"}})
	conn, err := pgx.Connect(t.Context(), p.URL()+"?sslmode=require")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var encrypted bool
	if err := conn.QueryRow(t.Context(), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted); err != nil || !encrypted {
		t.Fatalf("connection is encrypted: %v (%v), want true", encrypted, err)
	}
}

func TestSharedPostgresClonesPreparedDatabase(t *testing.T) {
	prepared := 0
	prepare := func(url string) {
		prepared++
		execute(t, url, "CREATE TABLE kept (id int)")
	}
	p := StartPostgres(t, PostgresOptions{})
	first, second := p.Clone(t, prepare), p.Clone(t, prepare)
	if first == second || prepared != 1 {
		t.Fatalf("databases %s and %s, prepared %d times; want two and once", first, second, prepared)
	}
	execute(t, first, "DROP TABLE kept")
	execute(t, second, "SELECT * FROM kept")
	execute(t, p.NewDatabase(t), "CREATE TABLE kept (id int)")
}

func TestDatabaseOfSharedPostgresIsDropped(t *testing.T) {
	var database string
	t.Run("test", func(t *testing.T) {
		database = SharedPostgres(t).NewDatabase(t)
		execute(t, database, "SELECT 1")
	})
	if conn, err := pgx.Connect(t.Context(), database); err == nil {
		_ = conn.Close(t.Context())
		t.Fatal("database exists after the test, want an error")
	}
	execute(t, SharedPostgres(t).URL(), "SELECT 1")
}

func execute(t *testing.T, url, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}
