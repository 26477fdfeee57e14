package bot

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// timestampForm matches a date, a time and a time zone in the extended or basic
// format of ISO 8601, which includes RFC 3339. Seconds and the zone's minutes are
// optional. Groups 1 and 2, or 3 and 4, are the date and the time without its
// fraction; group 5 is the zone.
var timestampForm = regexp.MustCompile(
	`^(?:(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d)?)|(\d{8})[Tt](\d{4}(?:\d\d)?))(?:[.,]\d+)?([Zz]|[+-]\d\d(?::?\d\d)?)$`)

// validTimestamp reports whether s is a point in time in RFC 3339 or ISO 8601. A
// leap second is valid at the end of a UTC day.
func validTimestamp(s string) bool {
	groups := timestampForm.FindStringSubmatch(s)
	if groups == nil || len(s) > maxTimestamp {
		return false
	}
	digits := strings.NewReplacer("-", "", ":", "")
	clock := digits.Replace(cmp.Or(groups[2], groups[4]))
	if len(clock) == len("1504") {
		if strings.ContainsAny(s, ".,") {
			return false // fractions of a minute are not supported
		}
		clock += "00"
	}
	seconds, leap := strings.CutSuffix(clock, "60")
	if leap {
		clock = seconds + "59"
	}
	at, err := time.Parse("20060102 150405", digits.Replace(cmp.Or(groups[1], groups[3]))+" "+clock)
	offset, valid := zoneOffset(groups[5])
	at = at.Add(-offset).Add(time.Second)
	return err == nil && valid && (!leap || at.Hour() == 0 && at.Minute() == 0 && at.Second() == 0)
}

// zoneOffset parses a time zone such as Z, +01, +0100 or +01:00.
func zoneOffset(zone string) (time.Duration, bool) {
	if strings.EqualFold(zone, "z") {
		return 0, true
	}
	digits := strings.ReplaceAll(zone[1:], ":", "") + "00"
	hours, _ := strconv.Atoi(digits[:2]) // two digits, as the pattern matched
	minutes, _ := strconv.Atoi(digits[2:4])
	offset := time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute
	if zone[0] == '-' {
		offset = -offset
	}
	return offset, hours < 24 && minutes < 60
}
