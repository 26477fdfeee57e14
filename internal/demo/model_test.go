package demo

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestModelErrorsAreReadable(t *testing.T) {
	const key = "sk-secret"
	server := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); _, _ = w.Write([]byte(body)) }
	}
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"status":       {server(401, `{"error":"invalid key `+key+`"}`), "the server in DEMO_LLM_URL returned status 401:"},
		"long error":   {server(500, strings.Repeat("x", 10_000)), "…"},
		"not JSON":     {server(200, `<html>`), "no valid response for /v1/chat/completions"},
		"no choices":   {server(200, `{"choices":[]}`), "empty answer"},
		"empty answer": {server(200, `{"choices":[{"message":{"content":" "}}]}`), "empty answer"},
		"endless":      {server(200, strings.Repeat(" ", 2<<20)+`{}`), "no valid response"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, "status 302"},
		"aborted": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "does not answer"},
	} {
		api := httptest.NewServer(tt.handler)
		_, err := NewModel("DEMO_LLM_URL", api.URL+"/v1/", "small", key).complete(t.Context(), nil)
		api.Close()
		if err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 400 || strings.Contains(err.Error(), key) {
			t.Errorf("%s: error %v, want a short one with %q and without the key", name, err, tt.want)
		}
	}
}

func TestLongAnswersAreShortened(t *testing.T) {
	if got := truncate(strings.Repeat("ä", 3000), maxAnswer); len([]rune(got)) != maxAnswer+1 {
		t.Errorf("%d characters, want %d and an ellipsis", len([]rune(got)), maxAnswer)
	}
}

func TestModelIsOptional(t *testing.T) {
	if NewModel("DEMO_LLM_URL", "", "small", "") != nil {
		t.Error("a model without a URL")
	}
	for _, url := range []string{"http://a", "http://a/", "http://a/v1", "http://a/v1/"} {
		if got := NewModel("DEMO_LLM_URL", url, "small", "").URL; got != "http://a" {
			t.Errorf("URL %s becomes %s, want http://a", url, got)
		}
	}
}
