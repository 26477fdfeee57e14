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

// HasValue reports whether a value, possibly empty, was given.
func (n NameValue) HasValue() bool { return !n.valueless }

// UnmarshalJSONFrom distinguishes a missing value from an empty one.
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

// NameValues are query parameters, given as an object or as a list. They keep
// their form and order.
type NameValues struct {
	List     []NameValue
	AsObject bool
}

// MarshalJSONTo encodes the parameters in their original form.
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

// UnmarshalJSONFrom decodes both forms.
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
