package testkit

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// template is the database that Clone copies.
const template = "telapi_template"

// NewDatabase creates an empty database for the test and returns its URL.
func (p *Postgres) NewDatabase(t testing.TB) string {
	t.Helper()
	return p.create(t, "template1")
}

// Clone returns a database like NewDatabase, with the content that prepare, which is
// called once per server, gives to the first one. prepare must close its connections.
func (p *Postgres) Clone(t testing.TB, prepare func(url string)) string {
	t.Helper()
	p.run(t, func(ctx context.Context, conn *pgx.Conn) error {
		// Another process may use the server, too. The lock is released with the connection.
		if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(1)"); err != nil {
			return err
		}
		var ready bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", template).Scan(&ready); err != nil || ready {
			return err
		}
		name := newName()
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
			return err
		}
		prepare(p.url(name))
		_, err := conn.Exec(ctx, "ALTER DATABASE "+name+" RENAME TO "+template)
		return err
	})
	return p.create(t, template)
}

func (p *Postgres) create(t testing.TB, from string) string {
	t.Helper()
	name := newName()
	p.run(t, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+from)
		return err
	})
	if p.binary == "" { // the server outlives the test
		t.Cleanup(func() {
			p.run(t, func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
				return err
			})
		})
	}
	return p.url(name)
}

func newName() string { return "test_" + strings.ToLower(rand.Text()) }

// run calls do with a superuser's connection.
func (p *Postgres) run(t testing.TB, do func(context.Context, *pgx.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		t.Fatalf("connect to PostgreSQL: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := do(ctx, conn); err != nil {
		t.Fatalf("create or drop a database: %v", err)
	}
}
