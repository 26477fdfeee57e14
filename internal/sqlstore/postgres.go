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

func openPostgres(dsn redact.Secret) (*Store, error) {
	config, err := postgresConfig(dsn)
	if err != nil {
		return nil, err
	}
	db := stdlib.OpenDB(*config)
	// PostgreSQL allows 100 connections by default, which several servers share.
	// A server in its steady state rarely queries.
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16) // a new connection costs PostgreSQL more than a hundred queries
	db.SetConnMaxIdleTime(time.Minute)
	db.SetConnMaxLifetime(30 * time.Minute) // to notice a changed address
	address := config.Host
	if !strings.HasPrefix(address, "/") {
		address = net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	}
	return &Store{write: db, read: db, engine: engine{
		dialect:      goose.DialectPostgres,
		title:        "PostgreSQL at " + address,
		versionTable: "SELECT to_regclass('" + goose.DefaultTablename + "') IS NOT NULL",
		clock:        "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
	}}, nil
}

// sendBatch runs statements in one round trip and one transaction. It calls queue when it
// has a connection. Thousands of round trips of a millisecond each would exceed
// statementTimeout and lock their rows meanwhile.
func sendBatch(ctx context.Context, db *sql.DB, queue func(*pgx.Batch)) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var batch pgx.Batch
	queue(&batch)
	return conn.Raw(func(driver any) error {
		return driver.(*stdlib.Conn).Conn().SendBatch(ctx, &batch).Close()
	})
}

// postgresConfig parses the URL. Its errors never contain a password: a parser's
// own error may quote parts of an unescaped one.
func postgresConfig(dsn redact.Secret) (*pgx.ConnConfig, error) {
	scheme, rest, _ := strings.Cut(dsn.Reveal(), "://")
	if scheme != "postgres" && scheme != "postgresql" {
		return nil, errors.New("DATABASE_URL must start with postgres:// or postgresql://")
	}
	// An unescaped / ? # or @ in a password would make parts of the password the
	// host or the database name, which are logged.
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	address, _, _ := strings.Cut(dsn.Reveal(), "?")
	_, err := pgx.ParseConfig(address)
	if err != nil || strings.Count(authority, "@") > 1 || strings.Contains(rest[len(authority):], "@") {
		return nil, errors.New("invalid DATABASE_URL: percent-encode special characters (@ as %40, / as %2F, ? as %3F, # as %23)")
	}
	config, err := pgx.ParseConfig(dsn.Reveal())
	if err != nil {
		reason := errors.Unwrap(err) // the outer text contains the URL
		if reason == nil {
			reason = errors.New("value out of range")
		}
		return nil, fmt.Errorf("invalid parameter in DATABASE_URL: %w", reason)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = pingTimeout
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "telapi"
	}
	return config, nil
}
