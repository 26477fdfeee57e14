package demo

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

func TestBotFinishesRequestBeforeShutdown(t *testing.T) {
	bot, err := NewBot("http://api.example", http.DefaultClient, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	go func() {
		bot.Run(ctx)
		close(ended)
	}()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", bot.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	question := `{"text":"hello","part":1,"channelId":"c","callback":{"url":"http://api.example/a","token":"t"}}`
	// The bot sends 100 when it starts to read the body.
	_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: bot\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(question))
	responses := bufio.NewReader(conn)
	if line, err := responses.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("response %q, %v; want status 100", line, err)
	}
	stop()
	for err == nil { // until the port is closed
		var other net.Conn
		if other, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", bot.listener.Addr().String()); err == nil {
			_ = other.Close()
		}
	}
	_, _ = fmt.Fprint(conn, question)
	for accepted := false; !accepted; {
		line, err := responses.ReadString('\n')
		if err != nil {
			t.Fatalf("read the response: %v, want status 202", err)
		}
		accepted = strings.Contains(line, "202 Accepted")
	}
	<-ended
}

func TestBotPostsOnlyToAPIAndRetries(t *testing.T) {
	tokens := make(chan string, 2)
	requests := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests++; requests == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		tokens <- r.Header.Get("Token")
	}))
	defer api.Close()
	bot, err := NewBot(api.URL, api.Client(), nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		bot.Run(ctx)
		close(ended)
	}()
	for url, want := range map[string]int{api.URL + "/a": 202, api.URL + "9/a": 400, "http://elsewhere.example/a": 400} {
		body := fmt.Sprintf(`{"text":"hello","part":1,"channelId":"c","callback":{"url":%q,"token":"t"}}`, url)
		response, err := roundTrip(ctx, api.Client(), http.MethodPost, bot.URL(), nil, jsontext.Value(body))
		if err != nil || response.status != want {
			t.Errorf("callback URL %s: status %d, %v; want %d", url, response.status, err, want)
		}
	}
	for range 2 {
		select {
		case token := <-tokens:
			if token != "t" {
				t.Errorf("posted with token %q, want t", token)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("answer was not posted again")
		}
	}
	stop()
	<-ended
}

func TestBotRepeatsTextUnchanged(t *testing.T) {
	const said = "👩\u200d👧 \"שלום\" \\o/"
	if got := smallTalk(said); !strings.HasPrefix(got, `You said "`+said+`".`) {
		t.Errorf("answer %q, want one that repeats %q", got, said)
	}
}
