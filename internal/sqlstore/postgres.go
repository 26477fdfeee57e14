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
		dialect:         goose.DialectPostgres,
		title:           "PostgreSQL at " + address,
		hasVersionTable: "SELECT to_regclass('" + goose.DefaultTablename + "') IS NOT NULL",
		clock:           "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
	}}, nil
}

// sendBatch runs statements in one round trip and one transaction. Thousands of round trips of
// a millisecond each would exceed statementTimeout and lock their rows meanwhile.
func sendBatch(ctx context.Context, db *sql.DB, batch *pgx.Batch) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return conn.Raw(func(driver any) error {
		return driver.(*stdlib.Conn).Conn().SendBatch(ctx, batch).Close()
	})
}

// postgresConfig parses a URL that package config has checked and encoded: the parser's errors
// quote parts of a password with unescaped characters.
func postgresConfig(dsn redact.Secret) (*pgx.ConnConfig, error) {
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
