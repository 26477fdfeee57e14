package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"

	"github.com/gorilla/websocket"
	"github.com/redis/rueidis"
)

// peers are the baseline servers. Each runs in its own process and gets its
// parameter on stdin.
var peers = map[string]func(parameter []byte) (http.HandlerFunc, error){
	"bytes":   peerBytes,
	"greet":   peerGreet,
	"xadd":    peerXadd,
	"forward": peerForward,
	"script":  peerScript,
}

// greeting is the first frame on a socket and also serves as acknowledgement. It
// is about as long as the frames of telapi.
var greeting = []byte(`{"type":"status","sessionId":"ses_00000000-0000-0000-0000-000000000000","messageId":"00000000-0000-0000-0000-000000000000",` +
	`"timestamp":1700000000000,"direction":"to_browser","status":{"event":"ack","messageId":"00000000-0000-0000-0000-000000000000"}}`)

func servePeer(name string) error {
	parameter, err := io.ReadAll(os.Stdin)
	if err != nil {
		return fmt.Errorf("read parameter: %w", err)
	}
	handler, err := peers[name](parameter)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, handler)
}

// startPeer runs a baseline server. Its first line of output is its address.
func startPeer(name string, parameter io.Reader) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find executable: %w", err)
	}
	cmd := exec.Command(self, "-peer", name)
	cmd.Stdin = parameter
	return start(cmd)
}

// peerBytes responds to every request with the body.
func peerBytes(body []byte) (http.HandlerFunc, error) {
	length := strconv.Itoa(len(body))
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", length)
		_, _ = w.Write(body)
	}, nil
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
func peerGreet([]byte) (http.HandlerFunc, error) {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, err := greet(w, r)
		for err == nil {
			_, _, err = conn.ReadMessage()
		}
	}, nil
}

// peerXadd appends every frame to the stream of its socket and acknowledges it.
func peerXadd(redisURL []byte) (http.HandlerFunc, error) {
	client, err := plainRedis(string(redisURL))
	return func(w http.ResponseWriter, r *http.Request) {
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
	}, err
}

// peerForward subscribes to the topic of the socket's path and forwards messages.
func peerForward(redisURL []byte) (http.HandlerFunc, error) {
	client, err := plainRedis(string(redisURL))
	return func(w http.ResponseWriter, r *http.Request) {
		conn, err := greet(w, r)
		if err != nil {
			return
		}
		_ = client.Receive(context.Background(), client.B().Subscribe().Channel(r.URL.Path).Build(), func(m rueidis.PubSubMessage) {
			_ = conn.WriteMessage(websocket.TextMessage, []byte(m.Message))
		})
	}, err
}
