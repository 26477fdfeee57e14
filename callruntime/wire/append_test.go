package wire

import (
	"reflect"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The test covers each member alone and all together. It fails for a member that
// was added to the struct but not to AppendTo.
func TestAppendToEqualsMarshal(t *testing.T) {
	var whole Entry
	fill(reflect.ValueOf(&whole).Elem())
	entries := []Entry{{}, whole}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Entry]()) {
		var e Entry
		reflect.ValueOf(&e).Elem().FieldByIndex(f.Index).Set(reflect.ValueOf(whole).FieldByIndex(f.Index))
		entries = append(entries, e)
	}
	for i := range entries {
		want, err := json.Marshal(&entries[i])
		if err != nil {
			t.Fatal(err)
		}
		if got, err := entries[i].AppendTo([]byte("before ")); err != nil || string(got) != "before "+string(want) {
			t.Errorf("got  %s, %v\nwant %s", got, err, want)
		}
	}
	bad := Entry{Value: jsontext.Value(`{"a":`)}
	if got, err := bad.AppendTo(nil); err == nil {
		t.Errorf("AppendTo accepted invalid JSON: %s", got)
	}
}

func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case jsontext.Value:
		v.SetBytes([]byte(`{ "a" : [1, "x y"] }`))
		return
	case AnyCommand:
		v.Field(0).Set(reflect.ValueOf(&Hangup{CommonFields: CommonFields{Type: "hangup"}, Reason: "done"}))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("\"é\x01\u2028")
	case reflect.Int64:
		v.SetInt(-7)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	}
}
