package wire

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// NameValue is one SIP header or query parameter.
type NameValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`

	valueless bool
}

// HasValue tells whether a value was given; an empty one is one.
func (n NameValue) HasValue() bool { return !n.valueless }

// UnmarshalJSONFrom remembers a missing value, which an empty one is not.
func (n *NameValue) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	var members struct {
		Name  string  `json:"name"`
		Value *string `json:"value"`
	}
	if err := json.UnmarshalDecode(dec, &members); err != nil {
		return err
	}
	*n = NameValue{Name: members.Name, valueless: members.Value == nil}
	if members.Value != nil {
		n.Value = *members.Value
	}
	return nil
}

// NameValues are query parameters, which a provider may write as an object or
// as a list. They travel in the form they were given, in the order they were
// given.
type NameValues struct {
	List     []NameValue
	AsObject bool
}

// MarshalJSONTo writes the form the parameters were given in.
func (n NameValues) MarshalJSONTo(enc *jsontext.Encoder) error {
	if !n.AsObject {
		return json.MarshalEncode(enc, n.List)
	}
	if err := enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for _, p := range n.List {
		if err := enc.WriteToken(jsontext.String(p.Name)); err != nil {
			return err
		}
		if err := enc.WriteToken(jsontext.String(p.Value)); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndObject)
}

// UnmarshalJSONFrom reads either form.
func (n *NameValues) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	*n = NameValues{AsObject: dec.PeekKind() == '{'}
	if !n.AsObject {
		return json.UnmarshalDecode(dec, &n.List)
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		var p NameValue
		if err := json.UnmarshalDecode(dec, &p.Name); err != nil {
			return err
		}
		if err := json.UnmarshalDecode(dec, &p.Value); err != nil {
			return err
		}
		n.List = append(n.List, p)
	}
	_, err := dec.ReadToken()
	return err
}
