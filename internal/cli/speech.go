package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"telapi/internal/fault"
	"telapi/internal/sleep"
	"telapi/internal/speech"
)

func (c *cli) speechCommand() *cobra.Command {
	return group("speech", "Spoken text in the media cache", c.speechWarmCommand())
}

func (c *cli) speechWarmCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "warm FILE --key KEY", Short: "Have a list of sentences spoken and kept, before anybody calls", Args: cobra.ExactArgs(1),
		Long: `Reads sentences from a file, or from standard input if the name is -, one on each line: plain
text, or a JSON object as POST /api/v1/runtime/speech takes it, whose members go before the
flags. What is cached already costs nothing, so the command can be repeated. It asks a running
server, with a key that has the scope CREATE_SPEECH.`,
		Example: `  telapi speech warm prompts.txt --key @key.txt --voice alloy
  echo '{"text":"Guten Tag","voice":"de","provider":"espeak"}' | telapi speech warm - --key tk_…`}
	f := cmd.Flags()
	key := f.String("key", "", "an API key, or @FILE that holds one")
	url := f.String("url", "", "where the server is (default: as configured here)")
	choices := map[string]*string{}
	for _, name := range []string{"voice", "model", "provider", "encoding"} {
		choices[name] = f.String(name, "", name+" of sentences that name none")
	}
	needs(cmd, "key")
	cmd.RunE = c.tool(func(ctx context.Context, args []string) error {
		if *url == "" {
			*url = c.baseURL()
		}
		if file, is := strings.CutPrefix(*key, "@"); is {
			content, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("read the key: %w", err)
			}
			*key = strings.TrimSpace(string(content))
		}
		order := map[string]any{}
		for name, value := range choices {
			if *value != "" {
				order[name] = *value
			}
		}
		sentences, err := c.readSentences(ctx, args[0], order)
		if err != nil {
			return err
		}
		client := http.Client{
			Timeout:       2 * time.Minute,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the key goes nowhere else
		}
		return c.warm(ctx, sentences, &speaker{strings.TrimRight(*url, "/") + speech.Route, *key, client})
	})
	return cmd
}

// sentence is one line of a file as the server is asked for it.
type sentence struct {
	line int
	body []byte
}

// readSentences takes what a line does not say from order.
func (c *cli) readSentences(ctx context.Context, name string, order map[string]any) (list []sentence, err error) {
	content, err := c.read(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read sentences: %w", err)
	}
	for i, line := range strings.Split(string(content), "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		full := maps.Clone(order)
		if line[0] != '{' {
			full["text"] = line
		} else if err := json.Unmarshal([]byte(line), &full); err != nil {
			return nil, fmt.Errorf("line %d is not one JSON object: %w", i+1, err)
		}
		body, err := json.Marshal(full)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		list = append(list, sentence{i + 1, body})
	}
	return list, nil
}

// warmed is what came of a line.
type warmed struct {
	Line int `json:"line"`
	*speech.Response
	Error string `json:"error,omitzero"`
}

func (w warmed) state() string {
	switch {
	case w.Error != "":
		return "failed"
	case w.Cached:
		return "there before"
	default:
		return "made"
	}
}

// warm has all sentences spoken, and shows how far it is: with a bar on a
// terminal, elsewhere with a line for each.
func (c *cli) warm(ctx context.Context, sentences []sentence, s *speaker) error {
	p := progress{cli: c, all: len(sentences), count: map[string]int{}}
	screen, isFile := c.Out.(*os.File)
	p.bar = isFile && !c.json && isatty.IsTerminal(screen.Fd())
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(askedAtOnce)
	for _, next := range sentences {
		asking.Go(func() error {
			r, err := s.say(ctx, next)
			if err != nil {
				return err
			}
			return p.show(r)
		})
	}
	if err := asking.Wait(); err != nil {
		return err
	}
	if p.bar {
		_, _ = fmt.Fprintln(c.Out)
	}
	if !c.json {
		_, _ = fmt.Fprintf(c.Out, "%d made, %d there before, %d failed\n", p.count["made"], p.count["there before"], p.count["failed"])
	}
	if p.count["failed"] > 0 {
		return errReported
	}
	return nil
}

// progress shows what came of sentences, one at a time.
type progress struct {
	*cli
	all int
	bar bool

	mu    sync.Mutex
	done  int
	count map[string]int // by state
}

func (p *progress) show(r warmed) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	p.count[r.state()]++
	if r.Error != "" && !p.json {
		_, _ = fmt.Fprintf(p.Err, "%sline %d: %s\n", map[bool]string{true: "\r\x1b[K"}[p.bar], r.Line, r.Error)
	}
	if p.bar {
		const width = 30
		full := width * p.done / p.all
		_, err := fmt.Fprintf(p.Out, "\r\x1b[K%s%s %d/%d", strings.Repeat("█", full), strings.Repeat("░", width-full), p.done, p.all)
		return err
	}
	return p.printAs(r, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%d/%d  line %d  %s\n", p.done, p.all, r.Line, r.state()) })
}

const (
	askedAtOnce = 4
	maxTries    = 10              // of a server that is busy or away
	longestWait = 2 * time.Minute // before the next one: nobody wants to wait for tomorrow's quota
)

// speaker asks a running server for speech.
type speaker struct {
	url, key string
	client   http.Client
}

// say has one sentence spoken, again when the server says that it may be. An error
// is one that every other sentence would meet too.
func (s *speaker) say(ctx context.Context, line sentence) (warmed, error) {
	for try := 1; ; try++ {
		a, err := s.ask(ctx, line.body)
		var refusal *fault.Error
		switch {
		case err == nil && a.URL == "":
			return warmed{Line: line.line, Error: "spoken, but not kept: the server's media service is away, or it has none"}, nil
		case err == nil:
			return warmed{Line: line.line, Response: a}, nil
		case !errors.As(err, &refusal), refusal.Code == fault.Unauthorized, refusal.Code == fault.Forbidden:
			return warmed{}, err
		case refusal.RetryAfter == 0, refusal.RetryAfter > longestWait, try == maxTries:
			return warmed{Line: line.line, Error: refusal.Message}, nil
		}
		if err := sleep.For(ctx, refusal.RetryAfter); err != nil {
			return warmed{}, err
		}
	}
}

// ask returns the server's answer; its refusal is a *fault.Error.
func (s *speaker) ask(ctx context.Context, body []byte) (*speech.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask the server: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-API-Key", s.key)
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the server, which --url names: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		a := &speech.Response{}
		if err := json.UnmarshalRead(resp.Body, a); err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		a.Audio = nil // of no use here
		return a, nil
	}
	var envelope fault.Envelope
	if json.UnmarshalRead(resp.Body, &envelope) != nil || envelope.Error.Code == "" {
		return nil, fmt.Errorf("the server at %s is no telapi: it answered %d", s.url, resp.StatusCode)
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	return nil, fault.New(envelope.Error.Code, "%s", envelope.Error.Message).WithRetryAfter(time.Duration(seconds) * time.Second)
}
