package demo

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
)

func TestBotEndsAfterTheQuestionThatItIsBeingAsked(t *testing.T) {
	bot, err := NewBot("http://api.example", http.DefaultClient, nil, slog.New(slog.DiscardHandler))
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
	// It says 100 once it reads the question.
	_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: bot\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(question))
	answers := bufio.NewReader(conn)
	if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("%q, %v", line, err)
	}
	stop()
	for err == nil { // until nobody listens any more
		var other net.Conn
		if other, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", bot.listener.Addr().String()); err == nil {
			_ = other.Close()
		}
	}
	_, _ = fmt.Fprint(conn, question)
	var taken bool
	for !taken {
		line, err := answers.ReadString('\n')
		if err != nil {
			t.Fatalf("not taken: %v", err)
		}
		taken = strings.Contains(line, "202 Accepted")
	}
	<-ended
}
