package libraries

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/leaks"
	"telapi/test/testkit"
)

// command tells a program to use its library.
type command struct {
	ID      int    `json:"id"`
	Runtime string `json:"runtime"` // names the runtime
	Do      string `json:"do"`
	Channel string `json:"channel"` // names the channel, which is not its ID
	Arg     string `json:"arg"`
}

// result is the program's answer to a command.
type result struct {
	ID      int    `json:"id"`
	OK      any    `json:"ok"`
	Error   string `json:"error"` // a code
	Message string `json:"message"`
}

// failed reports whether the command has failed with a code or message.
func (r result) failed(want string) bool {
	fold := func(text string) string { return strings.ToLower(strings.ReplaceAll(text, "_", " ")) }
	return r.Error != "" && strings.Contains(fold(r.Error+" "+r.Message), fold(want))
}

// library is a program that uses a library, and obeys commands.
type library struct {
	do     func(command) // does not wait
	lastID int
	driver goDriver // of Go

	mu      sync.Mutex
	waiting map[int]chan result
}

// startLibrary starts the program of a language. That of Go is part of the test, for the race
// detector.
func startLibrary(t *testing.T, language string) *library {
	t.Helper()
	l := &library{waiting: map[int]chan result{}}
	if language == "go" {
		before := goleak.IgnoreCurrent()
		t.Cleanup(func() { leaks.Verify(t, before) })
		l.driver = goDriver{runtimes: map[string]*goRuntime{}}
		l.do = func(c command) { l.driver.start(c, l.deliver) }
		return l
	}
	cmd := languages[language](t, "driver")
	in, err := cmd.StdinPipe()
	testkit.Must(t, err)
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	cmd.Stderr, cmd.Env = os.Stderr, append(os.Environ(), cmd.Env...)
	testkit.Must(t, cmd.Start())
	var reading sync.WaitGroup
	reading.Go(func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var r result
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				t.Errorf("the program printed %s", lines.Text())
			}
			l.deliver(r)
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		reading.Wait()
		_ = cmd.Wait()
	})
	l.do = func(c command) {
		line, _ := json.Marshal(c) // of texts
		_, err := in.Write(append(line, '\n'))
		testkit.Must(t, err)
	}
	return l
}

// start starts a command.
func (l *library) start(c command) chan result {
	done := make(chan result, 1)
	l.mu.Lock()
	l.lastID++
	c.ID = l.lastID
	l.waiting[c.ID] = done
	l.mu.Unlock()
	l.do(c)
	return done
}

func (l *library) deliver(r result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[r.ID] <- r
}

// goDriver is the program in Go.
type goDriver struct{ runtimes map[string]*goRuntime }

type goRuntime struct {
	*callruntime.Runtime

	mu       sync.Mutex
	channels map[string]*callruntime.Channel
	calls    map[string]context.CancelFunc
}

// start starts a command. It returns when close is done.
func (d goDriver) start(c command, deliver func(result)) {
	r := d.runtimes[c.Runtime]
	if r == nil {
		r = &goRuntime{channels: map[string]*callruntime.Channel{}, calls: map[string]context.CancelFunc{}}
		d.runtimes[c.Runtime] = r
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.mu.Lock()
	r.calls[fmt.Sprint(c.ID)] = cancel
	channel := r.channels[c.Channel]
	r.mu.Unlock()
	run := func() {
		ok, err := r.run(ctx, c, channel)
		code, message := goError(err)
		deliver(result{ID: c.ID, OK: ok, Error: code, Message: message})
	}
	if c.Do == "start" || c.Do == "close" {
		run()
		return
	}
	go run()
}

// run runs a command. The channel is nil for commands about the runtime.
func (r *goRuntime) run(ctx context.Context, c command, channel *callruntime.Channel) (any, error) {
	switch c.Do {
	case "start":
		var o struct {
			callruntime.Options
			ResumeMs int64
		}
		err := json.Unmarshal([]byte(c.Arg), &o)
		if err == nil {
			o.Resume = time.Duration(o.ResumeMs) * time.Millisecond
			r.Runtime, err = callruntime.New(o.Options)
		}
		return nil, err
	case "abandon":
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls[c.Arg]()
		return nil, nil
	case "close":
		r.Close()
		return nil, nil
	case "report":
		return nil, r.ReportSpeech(ctx, wire.SpeechReport{Characters: 1})
	case "open":
		id, mode, _ := strings.Cut(c.Arg, " ")
		return r.keep(c)(r.Open(ctx, id, wire.Open{Endpoint: "e", Mode: mode}))
	case "accept":
		accept := wire.Accept{}
		if c.Arg != "" {
			accept.AwaitChat = &wire.AwaitChat{Kind: wire.WorkItemKind(c.Arg), TTLMs: new(int64(30_000))}
		}
		return r.keep(c)(r.Accept(ctx, accept))
	case "receive":
		d, err := channel.Receive(ctx)
		switch {
		case errors.Is(err, callruntime.ErrLost):
			return object{"kind": "lost"}, nil
		case errors.Is(err, callruntime.ErrEnded):
			err = errEnded
		}
		received := object{"kind": d.Entry.Kind, "position": d.Position}
		if d.WorkItem != nil {
			received["workItem"] = describe(*d.WorkItem)
		}
		return received, err
	case "commit":
		return nil, channel.Commit(ctx, c.Arg)
	case "send":
		return nil, channel.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(`{"text":"` + c.Arg + `"}`)})
	case "await":
		item, err := channel.Await(ctx, wire.Await{WorkItemID: c.Arg})
		return describe(item), err
	case "cancel":
		return nil, channel.Cancel(ctx, c.Arg)
	case "end":
		return nil, channel.End(ctx, c.Arg)
	case "release":
		return nil, channel.Close(ctx)
	}
	return nil, fmt.Errorf("unknown command %s", c.Do)
}

func describe(item wire.Awaited) object {
	return object{"workItemId": item.WorkItemID, "token": item.Token, "url": item.URL, "deadline": float64(item.Deadline)}
}

// keep returns a function that names a channel.
func (r *goRuntime) keep(c command) func(*callruntime.Channel, error) (any, error) {
	return func(channel *callruntime.Channel, err error) (any, error) {
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.channels[c.Channel] = channel
		return object{"channel": channel.ID, "team": channel.Team}, nil
	}
}

// errEnded is the end of the entries, which is not that of a request.
var errEnded = errors.New("no more entries")

// goError returns the code of an error that programs compare with, or else its text.
func goError(err error) (code, message string) {
	for code, known := range map[string]error{
		"NOT_FOUND": callruntime.ErrNotFound, "CONVERSATION_ENDED": callruntime.ErrEnded, "SESSION_IN_USE": callruntime.ErrClaimed,
		"IDEMPOTENCY_CONFLICT": callruntime.ErrWorkItemExists, "CLAIM_LOST": callruntime.ErrClaimLost, "CLOSED": callruntime.ErrClosed, "CANCELLED": context.Canceled,
		"ENDED": errEnded,
	} {
		if errors.Is(err, known) {
			return code, ""
		}
	}
	switch {
	case err == nil:
		return "", ""
	case errors.Is(err, callruntime.ErrUnauthorized):
		return "UNAUTHORIZED", err.Error()
	}
	return "OTHER", err.Error()
}
