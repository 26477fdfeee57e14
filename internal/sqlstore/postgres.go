package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"telapi/internal/redact"
)

func openPostgres(dsn redact.Secret) (*sql.DB, engine, error) {
	config, err := postgresConfig(dsn)
	if err != nil {
		return nil, engine{}, err
	}
	db := stdlib.OpenDB(*config)
	// A server hardly queries in its steady state, and PostgreSQL allows 100
	// connections by default: several servers must fit with room to spare.
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16) // opening one costs PostgreSQL more than a hundred queries: a rush must not do so for each
	db.SetConnMaxIdleTime(time.Minute)
	db.SetConnMaxLifetime(30 * time.Minute) // so that a moved address is noticed
	address := config.Host
	if !strings.HasPrefix(address, "/") {
		address = net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	}
	return db, engine{
		dialect:      goose.DialectPostgres,
		title:        "PostgreSQL at " + address,
		versionTable: "SELECT to_regclass('" + goose.DefaultTablename + "') IS NOT NULL",
		clock:        "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
	}, nil
}

// inOneTrip sends a statement with all its sets of values before it waits for the
// first answer: thousands, each waited for, outlast statementTimeout where the
// server is a millisecond away, and hold their rows meanwhile. They are one
// transaction.
func inOneTrip(ctx context.Context, db *sql.DB, query string, sets [][]any) error {
	var batch pgx.Batch
	for _, args := range sets {
		if !storable(args) {
			return errNotStorable
		}
		batch.Queue(query, args...)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return conn.Raw(func(driver any) error {
		return driver.(*stdlib.Conn).Conn().SendBatch(ctx, &batch).Close()
	})
}

// postgresConfig reads the URL. Its errors show nothing of it but a parameter
// that is wrong: a parser that stumbles over an unescaped password quotes it.
func postgresConfig(dsn redact.Secret) (*pgx.ConnConfig, error) {
	scheme, rest, _ := strings.Cut(dsn.Reveal(), "://")
	if scheme != "postgres" && scheme != "postgresql" {
		return nil, errors.New("DATABASE_URL must start with postgres:// or postgresql://")
	}
	// A bare / ? # or @ in a password shifts the parts of a URL, and half of
	// the password would go on as host or database name, into logs as well.
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	address, _, _ := strings.Cut(dsn.Reveal(), "?")
	_, err := pgx.ParseConfig(address)
	if err != nil || strings.Count(authority, "@") > 1 || strings.Contains(rest[len(authority):], "@") {
		return nil, errors.New("DATABASE_URL cannot be read: special characters in it must be percent-encoded (@ as %40, / as %2F, ? as %3F, # as %23)")
	}
	config, err := pgx.ParseConfig(dsn.Reveal())
	if err != nil {
		reason := errors.Unwrap(err) // without the URL, which the outer text has
		if reason == nil {
			reason = errors.New("a value is out of its bounds")
		}
		return nil, fmt.Errorf("DATABASE_URL has a parameter that does not work: %w", reason)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = pingTimeout
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "telapi"
	}
	return config, nil
}
