package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"

	"github.com/gorilla/websocket"
	"github.com/redis/rueidis"
)

// peers are the baseline servers. Each runs in its own process.
var peers = map[string]func(rueidis.Client, http.ResponseWriter, *http.Request){
	"greet":   peerGreet,
	"xadd":    peerXadd,
	"forward": peerForward,
	"script":  peerScript,
}

// greeting is the first frame on a socket and also serves as acknowledgement. It
// is about as long as the frames of telapi.
var greeting = []byte(`{"type":"status","sessionId":"ses_00000000-0000-0000-0000-000000000000","messageId":"00000000-0000-0000-0000-000000000000",` +
	`"timestamp":1700000000000,"direction":"to_browser","status":{"event":"ack","messageId":"00000000-0000-0000-0000-000000000000"}}`)

// servePeer runs a baseline server. Its first line of output is its address.
func servePeer(name, redisURL string) {
	opts := must(rueidis.ParseURL(redisURL))
	opts.DisableCache = true
	client := must(rueidis.NewClient(opts))
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	fmt.Println(listener.Addr())
	check(http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { peers[name](client, w, r) })))
}

// startPeer starts bench as a baseline server with the same Redis.
func (s *site) startPeer(name string) *process {
	return start(exec.Command(must(os.Executable()), "-peer", name, "-redis", s.redisURL))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// greet upgrades the connection and sends the first frame.
func greet(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	upgrader := websocket.Upgrader{}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err == nil {
		err = conn.WriteMessage(websocket.TextMessage, greeting)
	}
	return conn, err
}

// peerGreet keeps sockets open.
func peerGreet(_ rueidis.Client, w http.ResponseWriter, r *http.Request) {
	conn, err := greet(w, r)
	for err == nil {
		_, _, err = conn.ReadMessage()
	}
}

// peerXadd appends every frame to the stream of its socket and acknowledges it.
func peerXadd(client rueidis.Client, w http.ResponseWriter, r *http.Request) {
	conn, err := greet(w, r)
	for err == nil {
		var frame []byte
		if _, frame, err = conn.ReadMessage(); err != nil {
			return
		}
		err = client.Do(r.Context(), client.B().Xadd().Key(r.URL.Path).Id("*").FieldValue().
			FieldValue("entry", rueidis.BinaryString(frame)).Build()).Error()
		if err == nil {
			err = conn.WriteMessage(websocket.TextMessage, greeting)
		}
	}
}

// peerForward subscribes to the topic of the socket's path and forwards messages.
func peerForward(client rueidis.Client, w http.ResponseWriter, r *http.Request) {
	conn, err := greet(w, r)
	if err != nil {
		return
	}
	_ = client.Receive(context.Background(), client.B().Subscribe().Channel(r.URL.Path).Build(), func(m rueidis.PubSubMessage) {
		_ = conn.WriteMessage(websocket.TextMessage, []byte(m.Message))
	})
}
