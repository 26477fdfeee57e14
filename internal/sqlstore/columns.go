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

// timestamp stores a time as Unix milliseconds and the zero time as NULL.
type timestamp struct{ *time.Time }

func (t timestamp) Value() (driver.Value, error) {
	if t.IsZero() {
		return nil, nil //nolint:nilnil // NULL
	}
	return t.UnixMilli(), nil
}

func (t timestamp) Scan(from any) error {
	var ms sql.Null[int64]
	if err := ms.Scan(from); err != nil {
		return err
	}
	if *t.Time = (time.Time{}); ms.Valid {
		*t.Time = time.UnixMilli(ms.V).UTC()
	}
	return nil
}

// jsonColumn stores a value as JSON text and nil as NULL.
type jsonColumn[T any] struct{ field *T }

func asJSON[T any](field *T) jsonColumn[T] { return jsonColumn[T]{field} }

func (c jsonColumn[T]) Value() (driver.Value, error) {
	text, err := json.Marshal(*c.field, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", *c.field, err)
	}
	if string(text) == "null" {
		return nil, nil //nolint:nilnil // NULL
	}
	return string(text), nil
}

func (c jsonColumn[T]) Scan(from any) error {
	var text sql.Null[string]
	if err := text.Scan(from); err != nil || !text.Valid {
		return err
	}
	return json.Unmarshal([]byte(text.V), c.field)
}

// digest stores a SHA-256 sum as hex text.
type digest struct{ sum *[32]byte }

func (d digest) Value() (driver.Value, error) { return hex.EncodeToString(d.sum[:]), nil }

func (d digest) Scan(from any) error {
	text, _ := from.(string)
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(d.sum) {
		return errors.New("invalid digest") // without the value, which is secret
	}
	copy(d.sum[:], raw)
	return nil
}
