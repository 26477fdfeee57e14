package strictjson

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
)

type order struct {
	Name  string         `json:"name"`
	Count *int64         `json:"count"`
	Price float64        `json:"price"`
	Open  *bool          `json:"open"`
	Items []item         `json:"items"`
	Free  jsontext.Value `json:"free"`
}

type item struct {
	Key *string `json:"key"`
}

func TestWrongTypesAreReportedWithTheirLocation(t *testing.T) {
	var o order
	var issues fault.Issues
	body := `{"name":1,"count":1.5,"price":"x","open":0,"items":[{"key":"a"},7,{"key":[]}],"free":{"any":[1]}}`
	if err := Decode([]byte(body), &o, "/order", &issues); err != nil {
		t.Fatal(err)
	}
	want := []string{"/order/name", "/order/count", "/order/price", "/order/open", "/order/items/1", "/order/items/2/key"}
	var got []string
	for _, i := range issues.List() {
		got = append(got, i.Path)
		if i.Code != fault.IssueType {
			t.Errorf("%s: code %s, want %s", i.Path, i.Code, fault.IssueType)
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("issues at %v, want %v", got, want)
	}
	if o.Items[2].Key == nil {
		t.Error("a value of the wrong type counts as missing")
	}
	if string(o.Free) != `{"any":[1]}` {
		t.Errorf("raw member is %s, want it unchanged", o.Free)
	}
}

func TestIntegersWithPointOrExponentAreAccepted(t *testing.T) {
	for raw, want := range map[string]int64{"10": 10, "10.0": 10, "1e1": 10, "-0": 0} {
		var o order
		var issues fault.Issues
		if err := Decode([]byte(`{"count":`+raw+`}`), &o, "", &issues); err != nil || issues.Err() != nil {
			t.Errorf("%s: error %v and issues %v, want none", raw, err, issues.Err())
		} else if *o.Count != want {
			t.Errorf("%s was decoded as %d, want %d", raw, *o.Count, want)
		}
	}
	var o order
	var issues fault.Issues
	if err := Decode([]byte(`{"price":1e400}`), &o, "", &issues); err != nil || issues.Err() == nil {
		t.Errorf("number out of range: error %v and issues %v, want only an issue", err, issues.Err())
	}
	for _, raw := range []string{"1e400", "9007199254740993.5", "1e30", "99999999999999999999"} {
		var o order
		var issues fault.Issues
		if err := Decode([]byte(`{"count":`+raw+`}`), &o, "", &issues); err != nil || issues.Err() == nil {
			t.Errorf("%s was accepted as an integer", raw)
		}
	}
}

func TestNullCountsAsAbsent(t *testing.T) {
	var o order
	var issues fault.Issues
	if err := Decode([]byte(`{"name":null,"count":null,"items":null,"price":"x"}`), &o, "", &issues); err != nil {
		t.Fatal(err)
	}
	if n := len(issues.List()); n != 1 || o.Count != nil {
		t.Errorf("%d issues and count %v, want one issue of price and no count", n, o.Count)
	}
}

func TestInvalidJSONIsMalformed(t *testing.T) {
	for name, body := range map[string]string{
		"empty":                       "",
		"truncated":                   `{"name":`,
		"trailing":                    `{} {}`,
		"duplicate key":               `{"name":"a","name":"b"}`,
		"duplicate in free":           `{"free":{"x":{"a":1,"a":2}}}`,
		"duplicate unknown":           `{"zzz":1,"zzz":2}`,
		"escaped duplicate":           `{"free":{"a":1,"\u0061":2}}`,
		"invalid UTF-8":               "{\"name\":\"\xff\"}",
		"lone surrogate":              `{"name":"\ud800"}`,
		"wrong type, truncated":       `{"name":1,"count":`,
		"too deep":                    strings.Repeat("[", 129) + strings.Repeat("]", 129),
		"very deep":                   `{"free":` + strings.Repeat(`{"a":`, 10000) + "1" + strings.Repeat("}", 10001),
		"comment":                     `{"name":"a" /* x */}`,
		"too many objects":            `{"items":[` + strings.Repeat(`{},`, maxObjects-1) + `{}]}`,
		"too many elements":           `{"items":[` + strings.Repeat(`null,`, maxElements+1) + `null]}`,
		"too many members":            `{"free":` + objectWith(maxMembers+1) + `}`,
		"malformed after many issues": `{"items":[` + strings.Repeat(`0,`, 200) + `0`,
	} {
		var o order
		var issues fault.Issues
		if err := Decode([]byte(body), &o, "", &issues); !fault.Is(err, fault.MalformedJSON) {
			t.Errorf("%s: error %v, want %s", name, err, fault.MalformedJSON)
		}
	}
	var o order
	var issues fault.Issues
	if err := Decode([]byte(`{"zzz":1,"zzz":2}`), &o, "", &issues); err == nil || !strings.Contains(err.Error(), "duplicate name at byte 9.") {
		t.Errorf("duplicate name: error %v, want its position, byte 9", err)
	}
	var list []any
	deepest := strings.Repeat("[", 128) + `"[[["` + strings.Repeat("]", 128)
	if err := Decode([]byte(deepest), &list, "", &issues); err != nil {
		t.Errorf("128 levels: %v", err)
	}
}

// objectWith returns an object with n members.
func objectWith(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%d":0`, i)
	}
	return "{" + b.String()[1:] + "}"
}

func TestLargestStructuresAreAccepted(t *testing.T) {
	for name, body := range map[string]string{
		"objects":  `{"items":[` + strings.Repeat(`{},`, maxObjects-2) + `{}]}`,
		"elements": `{"items":[` + strings.Repeat(`null,`, maxElements) + `null]}`,
		"members":  `{"free":` + objectWith(maxMembers) + `}`,
	} {
		var o order
		var issues fault.Issues
		if err := Decode([]byte(body), &o, "", &issues); err != nil || issues.Err() != nil {
			t.Errorf("%s: error %v and issues %v, want none", name, err, issues.Err())
		}
	}
	var raw jsontext.Value
	var issues fault.Issues
	if err := Decode([]byte(`[`+strings.Repeat(`{"a":0},`, 2*maxElements)+`0]`), &raw, "", &issues); err != nil {
		t.Errorf("raw value: %v, want no limit on its objects", err)
	}
}

func TestDecodingStopsRecordingAtTheLimit(t *testing.T) {
	var o order
	var issues fault.Issues
	body := `{"items":[` + strings.Repeat(`{"key":0},`, 500) + `{"key":"a"}]}`
	if err := Decode([]byte(body), &o, "", &issues); err != nil {
		t.Fatal(err)
	}
	if n := len(issues.List()); n != 100 || !issues.Full() || o.Items[500].Key != nil {
		t.Errorf("%d issues, last key %v; want 100 issues and no value after them", n, o.Items[500].Key)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name":1,"items":[{"key":2}],"free":{}}`))
	f.Add([]byte(`{"count":1e999}`))
	f.Add([]byte("{ \"name\" : \"a \\\\\\\" b\\\\\" , \"items\":[ ] }"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var o order
		var issues fault.Issues
		if err := Decode(data, &o, "", &issues); err != nil {
			var e *fault.Error
			if !errors.As(err, &e) || e.Code != fault.MalformedJSON {
				t.Fatalf("unexpected error %v", err)
			}
			return
		}
		compact := jsontext.Value(slices.Clone(data))
		if err := compact.Compact(); err != nil || DigestCompact(compact) != DigestCompact(data) {
			t.Fatalf("digests of %q and %q differ (error %v), want equal ones", data, compact, err)
		}
	})
}

func TestDigestCompactIgnoresOnlyWhiteSpace(t *testing.T) {
	const body = `{"a":"x y\\\" z\\","b":[1,2.0]}`
	for other, same := range map[string]bool{
		body: true,
		"\t{ \"a\" :\r\n\"x y\\\\\\\" z\\\\\" , \"b\":[1, 2.0 ]}\n": true,
		`{"a":"xy\\\" z\\","b":[1,2.0]}`:                            false, // white space in a string
		`{"a":"x y\\\" z\\","b":[12.0]}`:                            false,
		`{"a":"x y\\\" z\\","b":[1,2]}`:                             false, // numbers are not normalized
		`{"b":[1,2.0],"a":"x y\\\" z\\"}`:                           false,
	} {
		if (DigestCompact([]byte(other)) == DigestCompact([]byte(body))) != same {
			t.Errorf("%s and %s: equal digests %t, want %t", other, body, !same, same)
		}
	}
}
