package sqlstore

import (
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
)

// moment is a time as it is stored: milliseconds since 1970, NULL for the zero
// time.
type moment struct{ of *time.Time }

func (m moment) Value() (driver.Value, error) {
	if m.of.IsZero() {
		return nil, nil //nolint:nilnil // NULL
	}
	return m.of.UnixMilli(), nil
}

func (m moment) Scan(from any) error {
	var ms sql.Null[int64]
	if err := ms.Scan(from); err != nil {
		return err
	}
	if *m.of = (time.Time{}); ms.Valid {
		*m.of = time.UnixMilli(ms.V).UTC()
	}
	return nil
}

// document is a value as JSON text, NULL for nil.
type document[T any] struct{ of *T }

// jsonOf is the document of a noun's field.
func jsonOf[T any](field *T) document[T] { return document[T]{field} }

func (d document[T]) Value() (driver.Value, error) {
	text, err := json.Marshal(*d.of, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", *d.of, err)
	}
	if string(text) == "null" {
		return nil, nil //nolint:nilnil // NULL
	}
	return string(text), nil
}

func (d document[T]) Scan(from any) error {
	var text sql.Null[string]
	if err := text.Scan(from); err != nil || !text.Valid {
		return err
	}
	return json.Unmarshal([]byte(text.V), d.of)
}

// digest is a SHA-256 as hex text.
type digest struct{ of *[32]byte }

func (d digest) Value() (driver.Value, error) { return hex.EncodeToString(d.of[:]), nil }

func (d digest) Scan(from any) error {
	text, _ := from.(string)
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(d.of) {
		return errors.New("the digest is damaged")
	}
	copy(d.of[:], raw)
	return nil
}
