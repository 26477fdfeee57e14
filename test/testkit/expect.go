package testkit

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"telapi/internal/fault"
)

// Equal fails the test if got differs from want; what describes the value. An empty
// slice or map equals nil.
func Equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if equal(got, want) {
		return
	}
	if reflect.TypeFor[T]().Kind() == reflect.String {
		t.Errorf("%s: %q, want %q", what, any(got), any(want))
	} else {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

func equal[T any](got, want T) bool {
	switch a, b := reflect.ValueOf(&got).Elem(), reflect.ValueOf(&want).Elem(); {
	case a.Comparable():
		return any(got) == any(want)
	case a.Kind() == reflect.Slice || a.Kind() == reflect.Map:
		return a.Len() == 0 && b.Len() == 0 || reflect.DeepEqual(got, want)
	default:
		return reflect.DeepEqual(got, want)
	}
}

// Contains fails the test unless a text contains all parts; what describes the text.
func Contains(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: %s, want %q in it", what, text, part)
		}
	}
}

// NoError fails the test if there is an error; what describes the operation. Unlike Must,
// it does not end the test.
func NoError(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// WantError fails the test unless err is, or wraps, want.
func WantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

// WantFault fails the test unless err is a rejection with the code.
func WantFault(t testing.TB, what string, err error, want fault.Code) {
	t.Helper()
	if !fault.Is(err, want) {
		t.Errorf("%s: error %v, want %s", what, err, want)
	}
}

// ErrorOf returns the error of a call.
func ErrorOf[T any](_ T, err error) error { return err }

// Issues returns the paths and codes of the issues of a validation error.
func Issues(err error) (list []string) {
	for _, i := range issues(err) {
		list = append(list, i.Path+" "+i.Code)
	}
	return list
}

// IssuePaths returns the paths of the issues of a validation error.
func IssuePaths(err error) (list []string) {
	for _, i := range issues(err) {
		list = append(list, i.Path)
	}
	return list
}

func issues(err error) []fault.Issue {
	if !fault.Is(err, fault.Validation) {
		return nil
	}
	list, _ := fault.From(err).Details.([]fault.Issue)
	return list
}

// RunBubble runs a subtest in virtual time.
func RunBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// Start runs a function in the background. stop cancels its context and waits for it. So does
// the end of the test.
func Start(t testing.TB, run func(context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}
