package strictjson

import (
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// maxSafe is the largest integer that every JSON reader keeps exactly.
const maxSafe = 1<<53 - 1

// Integer reads a JSON number without a fraction, however it is written: 10,
// 10.0 and 1e1 are one value. Integers that other readers would round are not
// taken.
func Integer(raw jsontext.Value) (int64, bool) {
	f, ok := Number(raw)
	if !ok || f != math.Trunc(f) || math.Abs(f) > maxSafe {
		return 0, false
	}
	return int64(f), true
}

// Number reads a JSON number that a float64 can hold.
func Number(raw jsontext.Value) (float64, bool) {
	if raw.Kind() != '0' {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	return f, err == nil
}
