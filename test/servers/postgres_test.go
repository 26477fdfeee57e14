package servers

import (
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { Main(m) }

func TestPostgresKeepsDataAfterStopAndCrash(t *testing.T) {
	p := StartPostgres(t, PostgresOptions{})
	database := p.NewDatabase(t)
	run := func(statement string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), database)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(t.Context()) }()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	run("CREATE TABLE kept (id int)")
	p.Stop()
	if _, err := pgx.Connect(t.Context(), database); err == nil {
		t.Fatal("stopped server accepts connections, want an error")
	}
	p.Start(t)
	run("SELECT * FROM kept")
	p.Crash()
	p.Start(t)
	run("SELECT * FROM kept")
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

func TestSharedPostgresCreatesSeparateDatabases(t *testing.T) {
	first, second := SharedPostgres(t), SharedPostgres(t)
	if first != second {
		t.Fatal("two servers, want one shared server")
	}
	a, _ := url.Parse(first.NewDatabase(t))
	b, _ := url.Parse(first.NewDatabase(t))
	if a.Host != b.Host || a.Path == b.Path {
		t.Errorf("databases %s and %s, want one server and two names", a.Redacted(), b.Redacted())
	}
}
