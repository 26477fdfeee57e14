package callback

import (
	"cmp"
	"regexp"
	"strings"
	"time"
)

const maxTimestamp = 64 // characters

// timestampForm matches a date, a time and a time zone in the extended or basic
// format of ISO 8601, which includes RFC 3339. Seconds and the zone's minutes are
// optional. Groups 1 and 2, or 3 and 4, are the date and the time without its
// fraction; group 5 is the zone.
var timestampForm = regexp.MustCompile(`^(?:(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d)?)|(\d{8})[Tt](\d{4}(?:\d\d)?))` +
	`(?:[.,]\d+)?([Zz]|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)$`)

// validTimestamp reports whether s is a point in time in RFC 3339 or ISO 8601. A
// leap second is valid at the end of a UTC day.
func validTimestamp(s string) bool {
	if len(s) > maxTimestamp {
		return false
	}
	groups := timestampForm.FindStringSubmatch(s)
	if groups == nil {
		return false
	}
	date := strings.ReplaceAll(cmp.Or(groups[1], groups[3]), "-", "")
	clock := strings.ReplaceAll(cmp.Or(groups[2], groups[4]), ":", "")
	zone := strings.ReplaceAll(groups[5], ":", "")
	switch len(zone) {
	case len("Z"):
		zone = "+0000"
	case len("+07"):
		zone += "00"
	}
	if len(clock) == len("1504") {
		if strings.ContainsAny(s, ".,") {
			return false // fractions of a minute are not supported
		}
		clock += "00"
	}
	clock, leap := strings.CutSuffix(clock, "60")
	if leap {
		clock += "59"
	}
	at, err := time.Parse("20060102 150405 -0700", date+" "+clock+" "+zone)
	return err == nil && (!leap || at.UTC().Format("150405") == "235959")
}
