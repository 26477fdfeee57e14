package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"telapi/internal/auth"
	"telapi/internal/background"
	"telapi/internal/fault"
	"telapi/internal/speech"
)

const (
	warmConcurrency = 4
	warmAttempts    = 10
	warmMaxWait     = 2 * time.Minute // a longer Retry-After, such as for a daily quota, is a failure
)

func (c *cli) speechWarmCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "warm FILE --key KEY", Short: "Synthesize a list of texts in advance",
		Long: `Reads texts from a file, or from standard input if the name is -, one per line: plain text,
or a JSON object as for POST /api/v1/runtime/speech, whose members override the flags.
Cached texts are not synthesized again, so you can repeat the command. It needs a running
server and an API key with the scope CREATE_SPEECH. A --voice that the provider does not
have is an error. It is not checked if the provider does not list its voices, or the key
does not have the scope READ_TEAM_APPS.`,
		Example: `  telapi speech warm prompts.txt --key @key.txt --voice alloy
  echo '{"text":"Guten Tag","voice":"de","provider":"espeak"}' | telapi speech warm - --key tk_…`}
	f := cmd.Flags()
	key := f.String("key", "", "API key, or @FILE with one")
	url := f.String("url", "", "URL of the server (default: from the configuration)")
	defaultFlags := map[string]*string{}
	for _, name := range []string{"voice", "model", "provider", "encoding"} {
		defaultFlags[name] = f.String(name, "", "default "+name)
	}
	offer(cmd, "provider", []string{"espeak", "openai", "tone"})
	oneOf(cmd, "encoding", speech.Encodings)
	cmd.RunE = c.withConfig(func(ctx context.Context, args []string) (any, error) {
		if *url == "" {
			*url = c.baseURL()
		}
		if !strings.HasPrefix(*url, "http://") && !strings.HasPrefix(*url, "https://") {
			return nil, c.usageError("invalid --url %q: use a URL such as http://localhost:3001", *url)
		}
		if file, ok := strings.CutPrefix(*key, "@"); ok {
			content, err := c.readFile(ctx, file)
			if err != nil {
				return nil, err
			}
			*key = strings.TrimSpace(string(content))
		}
		if !auth.ValidKey(*key) {
			return nil, c.usageError("invalid --key: it does not have the form tk_<id>_<secret>. Use a key as telapi key create prints it, or @FILE")
		}
		defaults := map[string]any{}
		for name, value := range defaultFlags {
			if *value != "" {
				defaults[name] = *value
			}
		}
		requests, err := c.readWarmRequests(ctx, args[0], defaults)
		if err != nil {
			return nil, err
		}
		client := &speechClient{url: strings.TrimRight(*url, "/"), key: *key, http: http.Client{
			Timeout:       2 * time.Minute,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // do not send the key elsewhere
		}}
		if voice := *defaultFlags["voice"]; voice != "" {
			if err := c.checkVoice(ctx, client, *defaultFlags["provider"], voice); err != nil {
				return nil, err
			}
		}
		return nil, c.warm(ctx, requests, client)
	})
	return cmd
}

// warmRequest is the request for one line of the file.
type warmRequest struct {
	line int
	body []byte
}

func (r warmRequest) failed(reason string) warmResult {
	return warmResult{Line: r.line, Error: reason, status: "failed"}
}

// readWarmRequests reads the lines of a file. defaults are the members that a line can omit.
func (c *cli) readWarmRequests(ctx context.Context, name string, defaults map[string]any) (list []warmRequest, err error) {
	content, err := c.readFile(ctx, name)
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(content), "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		request := maps.Clone(defaults)
		if line[0] != '{' {
			request["text"] = line
		} else if json.Unmarshal([]byte(line), &request) != nil {
			return nil, c.usageError(`%s: line %d is not valid JSON: use text, or an object such as {"text":"Hello"}`, name, i+1)
		}
		body, err := json.Marshal(request)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", name, i+1, err)
		}
		list = append(list, warmRequest{i + 1, body})
	}
	return list, nil
}

// warmResult is the outcome of one line.
type warmResult struct {
	Line int `json:"line"`
	*speech.Response
	Error  string `json:"error,omitzero"`
	status string // created, cached or failed
}

// warm sends all requests and prints the progress: a bar on a terminal, otherwise
// one line per request.
func (c *cli) warm(ctx context.Context, requests []warmRequest, client *speechClient) error {
	const clearLine = "\r\x1b[K"
	showBar := !c.json && isTerminal(c.Out)
	beforeError := ""
	if showBar {
		beforeError = clearLine
	}
	var mu sync.Mutex
	done, count := 0, map[string]int{} // number of results, in total and by status
	report := func(r warmResult) error {
		mu.Lock()
		defer mu.Unlock()
		done++
		count[r.status]++
		if r.Error != "" && !c.json {
			_, _ = fmt.Fprintf(c.Err, "%sline %d: %s\n", beforeError, r.Line, r.Error)
		}
		if showBar {
			const width = 30
			filled := width * done / len(requests)
			_, err := fmt.Fprintf(c.Out, clearLine+"%s%s %d/%d", strings.Repeat("█", filled), strings.Repeat("░", width-filled), done, len(requests))
			return err
		}
		return c.printAs(r, func(w io.Writer) {
			_, _ = fmt.Fprintf(w, "%d/%d  line %d  %s\n", done, len(requests), r.Line, r.status)
		})
	}
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(warmConcurrency)
	for _, request := range requests {
		workers.Go(func() error {
			result, err := client.synthesize(ctx, request)
			if err != nil {
				return err
			}
			return report(result)
		})
	}
	if err := workers.Wait(); err != nil {
		return err
	}
	if showBar {
		_, _ = fmt.Fprintln(c.Out)
	}
	if !c.json {
		_, _ = fmt.Fprintf(c.Out, "%d created, %d cached, %d failed\n", count["created"], count["cached"], count["failed"])
	}
	if count["failed"] > 0 {
		return errReported
	}
	return nil
}

// speechClient sends speech requests to a running server.
type speechClient struct {
	url, key string
	http     http.Client
}

// synthesize sends one request and retries it as long as the response has
// Retry-After. It returns an error only if all other requests would fail too.
func (s *speechClient) synthesize(ctx context.Context, r warmRequest) (warmResult, error) {
	for attempt := 1; ; attempt++ {
		response := &speech.Response{}
		err := s.do(ctx, http.MethodPost, speech.Route, r.body, response)
		response.Audio = nil // not printed
		failure, rejected := errors.AsType[*fault.Error](err)
		switch {
		case err == nil && response.URL == "":
			return r.failed("synthesized but not cached: the server's media service is unavailable or not configured"), nil
		case err == nil:
			result := warmResult{Line: r.line, Response: response, status: "created"}
			if response.Cached {
				result.status = "cached"
			}
			return result, nil
		case !rejected:
			return warmResult{}, err
		case failure.Code == fault.Forbidden:
			return warmResult{}, fmt.Errorf("%s rejects the API key %s: it does not have the scope CREATE_SPEECH. Create one with telapi key create --team TEAM --scope CREATE_SPEECH", s.url, auth.KeyID(s.key))
		case failure.RetryAfter == 0, failure.RetryAfter > warmMaxWait, attempt == warmAttempts:
			return r.failed(failure.Message), nil
		}
		if err := background.Sleep(ctx, failure.RetryAfter); err != nil {
			return warmResult{}, err
		}
	}
}

// do sends a request and decodes its response. An error response is a *fault.Error.
func (s *speechClient) do(ctx context.Context, method, path string, body []byte, response any) error {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("request speech: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("X-API-Key", s.key)
	resp, err := s.http.Do(req)
	if err != nil {
		return fmt.Errorf("no server at %s: %w. Start it with telapi serve or telapi dev, or set --url", s.url, fault.Reason(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		if err := json.UnmarshalRead(resp.Body, response); err != nil {
			return fmt.Errorf("%s did not return JSON, so it is not a telapi server: check --url", s.url)
		}
		return nil
	}
	var envelope fault.Envelope
	if json.UnmarshalRead(resp.Body, &envelope) != nil || envelope.Error.Code == "" {
		return fmt.Errorf("%s returned status %d, but is not a telapi server: check --url", s.url, resp.StatusCode)
	}
	if envelope.Error.Code == fault.Unauthorized {
		return fmt.Errorf("%s rejects the API key %s: it is unknown, revoked or expired. telapi key list shows the keys of the server in DATA_DIR or DATABASE_URL", s.url, auth.KeyID(s.key))
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	return fault.New(envelope.Error.Code, "%s", envelope.Error.Message).WithRetryAfter(time.Duration(seconds) * time.Second)
}

// checkVoice returns a usage error if the provider, by default the first, does not have the
// voice. It warns if it can't find out.
func (c *cli) checkVoice(ctx context.Context, client *speechClient, provider, voice string) error {
	var list struct {
		Providers []speech.ProviderInfo `json:"providers"`
	}
	if err := client.do(ctx, http.MethodGet, speech.VoicesRoute, nil, &list); err != nil {
		failure, rejected := errors.AsType[*fault.Error](err)
		if !rejected {
			return err
		}
		c.printWarning("--voice %q is not checked: %s", voice, failure.Message)
		return nil
	}
	chosen := slices.IndexFunc(list.Providers, func(p speech.ProviderInfo) bool { return provider == "" || p.Name == provider })
	if chosen < 0 {
		return nil // the server rejects every request, with the reason
	}
	p := list.Providers[chosen]
	base, _, _ := strings.Cut(voice, "+") // a variant, as in de+f3
	switch {
	case len(p.Voices) == 0:
		c.printWarning("--voice %q is not checked: the provider %s does not list its voices", voice, p.Name)
	case !slices.Contains(p.Voices, base):
		return c.usageError("invalid --voice %q: the provider %s has %s", voice, p.Name, joinWords(p.Voices, "and"))
	}
	return nil
}
