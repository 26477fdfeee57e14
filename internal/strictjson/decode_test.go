package strictjson

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
	"telapi/test/testkit"
)

type order struct {
	Name  string           `json:"name"`
	Count *int64           `json:"count"`
	Price float64          `json:"price"`
	Open  *bool            `json:"open"`
	Items []item           `json:"items"`
	Free  jsontext.Value   `json:"free"`
	Few   []int64          `json:"few" max:"3"`
	Map   map[string]int64 `json:"map"`
	When  time.Time        `json:"when"`
}

type item struct {
	Key *string `json:"key"`
}

func TestWrongTypesAreReportedWithTheirLocation(t *testing.T) {
	var o order
	var issues fault.Issues
	body := `{"name":1,"count":1.5,"price":"x","open":0,"items":[{"key":"a"},7,{"key":[]}],"free":{"any":[1]},"when":"soon"}`
	testkit.Must(t, Decode([]byte(body), &o, "/order", &issues))
	testkit.Equal(t, "issues at", testkit.IssuePaths(issues.Err()), []string{"/order/name", "/order/count", "/order/price", "/order/open", "/order/items/1", "/order/items/2/key", "/order/when"})
	for _, i := range issues.List() {
		testkit.Equal(t, i.Path+": code", i.Code, fault.IssueType)
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
	testkit.Must(t, Decode([]byte(`{"name":null,"count":null,"items":null,"price":"x"}`), &o, "", &issues))
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
		"malformed after many issues": `{"items":[` + strings.Repeat(`0,`, 200) + `0`,
		"malformed after many items":  `{"items":[` + strings.Repeat(`{},`, maxItems) + `{}],}`,
		"trailing after many items":   `{"items":[` + strings.Repeat(`{},`, maxItems) + `{}]} 1`,
		"duplicate after many items":  `{"items":[` + strings.Repeat(`{},`, maxItems) + `{}],"free":{"a":1,"a":2}}`,
	} {
		var o order
		var issues fault.Issues
		testkit.WantFault(t, name, Decode([]byte(body), &o, "", &issues), fault.MalformedJSON)
	}
	var o order
	var issues fault.Issues
	if err := Decode([]byte(`{"zzz":1,"zzz":2}`), &o, "", &issues); err == nil || !strings.Contains(err.Error(), "duplicate name at byte 9.") {
		t.Errorf("duplicate name: error %v, want its position, byte 9", err)
	}
	var list []any
	deepest := strings.Repeat("[", 128) + `"[[["` + strings.Repeat("]", 128)
	testkit.NoError(t, "128 levels", Decode([]byte(deepest), &list, "", &issues))
}

// list returns an array or object with n items.
func list(brackets, item string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ","+item, i)
	}
	return brackets[:1] + b.String()[1:] + brackets[1:]
}

func TestTooManyItemsAreAnIssue(t *testing.T) {
	for name, tt := range map[string]struct{ body, want string }{
		"items":              {`{"items":` + list("[]", `{"x%d":0}`, maxItems) + `}`, ""},
		"items, one more":    {`{"items":` + list("[]", `{"x%d":0}`, maxItems+1) + `}`, "/order/items: At most 32768 items are allowed. Send fewer."},
		"few, one more":      {`{"few":` + list("[]", `%d`, maxItems+1) + `}`, "/order/few: At most 3 items are allowed. Send fewer."},
		"map, one more":      {`{"map":` + list("{}", `"%d":0`, maxItems+1) + `}`, "/order/map: At most 32768 members are allowed. Send fewer."},
		"all":                {`{"few":` + list("[]", `%d`, maxItems+1) + `,"map":` + list("{}", `"%d":0`, maxItems+1) + `}`, "/order/few: At most 3 items are allowed. Send fewer. /order/map: At most 32768 members are allowed. Send fewer."},
		"members of raw":     {`{"free":[` + list("{}", `"%d":0`, maxItems) + `]}`, ""},
		"raw, one more":      {`{"free":[[` + list("{}", `"%d":0`, maxItems+1) + `]]}`, "/order/free/0/0: At most 32768 members are allowed. Send fewer."},
		"elements of raw":    {`{"free":` + list("[]", `{"x%d":[{}]}`, 2*maxItems) + `}`, ""},
		"unknown, one more":  {list("{}", `"%d":0`, maxItems+1), "/order: At most 32768 members are allowed. Send fewer."},
		"elements of others": {`{"zzz":` + list("[]", `%d`, 2*maxItems) + `}`, ""},
	} {
		var o order
		var issues fault.Issues
		err := Decode([]byte(tt.body), &o, "/order", &issues)
		var got []string
		for _, i := range issues.List() {
			got = append(got, i.String())
		}
		if s := strings.Join(got, " "); s != tt.want || (err != nil) != (s != "") || err != nil && !fault.Is(err, fault.Validation) {
			t.Errorf("%s: error %v with issues %q, want %q", name, err, s, tt.want)
		}
	}
}

func TestDecodingStopsRecordingAtTheLimit(t *testing.T) {
	var o order
	var issues fault.Issues
	body := `{"items":[` + strings.Repeat(`{"key":0},`, 500) + `{"key":"a"}]}`
	testkit.Must(t, Decode([]byte(body), &o, "", &issues))
	if n := len(issues.List()); n != 100 || !issues.Full() || o.Items[500].Key != nil {
		t.Errorf("%d issues, last key %v; want 100 issues and no value after them", n, o.Items[500].Key)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name":1,"items":[{"key":2}],"free":{}}`))
	f.Add([]byte(`{"count":1e999}`))
	f.Add([]byte("{ \"name\" : \"a \\\\\\\" b\\\\\" , \"items\":[ ], \"\\u0061\":\"\\/\" }"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var o order
		var issues fault.Issues
		if err := Decode(data, &o, "", &issues); err != nil {
			if !fault.Is(err, fault.MalformedJSON) || jsontext.Value(data).IsValid() && strings.Count(string(data), "[")+strings.Count(string(data), "{") <= maxDepth {
				t.Fatalf("%q: unexpected error %v", data, err)
			}
			return
		}
		var same order
		if known, err := DecodeKnown(data, &same, new(fault.Issues)); err != nil || !reflect.DeepEqual(o, same) || known && len(issues.List()) > 0 {
			t.Fatalf("%q: DecodeKnown returned %+v, %v, %v, want %+v", data, same, known, err, o)
		}
	})
}

func TestDigestIgnoresOnlyOrderSpaceAndEscapes(t *testing.T) {
	const body = `{"a":"x y\\\" z\\","b":[1,{"d":2.0,"c":[]}]}`
	for other, same := range map[string]bool{
		body: true,
		"\t{ \"a\" :\r\n\"x y\\\\\\\" z\\\\\" , \"b\":[1, {\"d\":2.0 , \"c\": [ ] } ]}\n": true,
		`{"b":[1,{"c":[],"d":2.0}],"\u0061":"\u0078 y\\\" z\\"}`:                          true,
		`{"a":"xy\\\" z\\","b":[1,{"d":2.0,"c":[]}]}`:                                     false, // white space in a string
		`{"a":"x y\\\" z\\","b":[{"d":2.0,"c":[]},1]}`:                                    false, // order of elements
		`{"a":"x y\\\" z\\","b":[1,{"d":2,"c":[]}]}`:                                      false, // numbers are not normalized
		`{"a":"x y\\\" z\\","b":[1,{"d":2.0,"c":{}}]}`:                                    false,
		`{"a":"x y\\\" z\\","b":[1,{"d":2.0},"c",[]]}`:                                    false,
	} {
		if (Digest([]byte(other)) == Digest([]byte(body))) != same {
			t.Errorf("%s and %s: equal digests %t, want %t", other, body, !same, same)
		}
	}
}

type settings struct {
	Sources  []string       `json:"sources"`
	Policies []policy       `json:"policies"`
	Free     jsontext.Value `json:"free"`
	Default  *policy        `json:"default"`
}

type profile struct {
	settings
	Other jsontext.Value `json:",embed"`
}

type policy struct {
	AllowedTargets []string `json:"allowedTargets"`
}

func TestUnknownMembersAreReportedWithSuggestion(t *testing.T) {
	const value = `{"sources":["a"],"Policies":1,"policies":[{"allowedTarget":[]},{"allowedTargets":["x"],"why":1},7],"free":{"any":1},"default":{"a/b":1},"rules":[]}`
	want := []string{
		`/Policies: "Policies" has no effect. Did you mean "policies"?`,
		`/policies/0/allowedTarget: "allowedTarget" has no effect. Did you mean "allowedTargets"?`,
		`/policies/1/why: "why" has no effect.`,
		`/default/a~1b: "a/b" has no effect.`,
		`/rules: "rules" has no effect.`,
	}
	check := func(name string, warnings []Warning, want []string) {
		var got []string
		for _, w := range warnings {
			got = append(got, w.String())
		}
		testkit.Equal(t, name, got, want)
	}
	check("a type that collects others, all warnings", UnnamedMembers([]byte(value), profile{}, ""), want)
	check("a type that collects others", UnknownMembers([]byte(value), profile{}, nil), nil)
	want[4] += ` Did you mean "policies"?`
	check("a hint", UnknownMembers([]byte(value), settings{}, map[string]string{"rules": "policies"}), want)
}

// objectWith returns an object with n members.
func objectWith(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%d":0`, i)
	}
	return "{" + b.String()[1:] + "}"
}

// Each suggestion compares a name with all known names.
func TestWarningsAreBounded(t *testing.T) {
	for name, value := range map[string]string{
		"members": objectWith(1000),
		"items":   `{"policies":[` + strings.Repeat(`{"x":1},`, 1000) + `{}]}`,
	} {
		testkit.Equal(t, fmt.Sprintf("%s: warnings", name), len(UnnamedMembers(jsontext.Value(value), profile{}, "")), MaxWarnings)
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"action", "actions", 1}, {"kitten", "sitting", 3}, {"abc", "acb", 2},
		{strings.Repeat("a", 65), "a", 64},
	} {
		testkit.Equal(t, fmt.Sprintf("distance of %q and %q", tt.a, tt.b), distance(tt.a, tt.b), tt.want)
	}
}
