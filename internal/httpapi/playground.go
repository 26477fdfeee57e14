package httpapi

import (
	"context"
	"io/fs"
	"iter"
	"net/http"
	"path"
	"slices"
	"sync"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/background"
	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/session"
)

// Playground configures the playground and the API reference.
type Playground struct {
	Files  fs.FS // the playground at /playground/
	Docs   fs.FS // the API reference at /docs/
	Config func() PlaygroundConfig
	// Feed opens the timeline of a channel, in batches of JSON lines. ended
	// reports whether its session has ended.
	Feed func(ctx context.Context, channelID string, ended func(context.Context) bool) (iter.Seq[[]byte], error)
	// ChannelTeam returns the team of a channel.
	ChannelTeam func(ctx context.Context, channelID string) (string, error)
	// IssueCredential registers a work item for a callback that the page sends.
	IssueCredential func(ctx context.Context, sessionID string, kind wire.WorkItemKind) (CallbackCredential, error)
	// CancelWorkItem cancels a work item that other answers wait for.
	CancelWorkItem func(ctx context.Context, sessionID, workItemID string) error
}

// CallbackCredential is what the page needs to send one callback.
type CallbackCredential struct {
	Token     string    `json:"token"`
	Path      string    `json:"path"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// PlaygroundConfig is the response of /playground/config.json. Without an API key,
// the page lets the user enter one.
type PlaygroundConfig struct {
	APIKey    string               `json:"apiKey,omitzero"`
	TeamID    string               `json:"teamId,omitzero"`
	Endpoints []PlaygroundEndpoint `json:"endpoints"`
	Phrases   []Phrase             `json:"phrases"`
	// Instances is their number in telapi dev --instances, or zero.
	Instances int `json:"instances,omitzero"`
	// SpeechProviders lists the configured providers. With tone only, the page says
	// that speech is a placeholder.
	SpeechProviders []string `json:"speechProviders,omitempty"`
	// BotURL is where the demo's bot takes questions, so that other runtimes can ask it.
	BotURL string `json:"botUrl,omitzero"`
	// OwnBot is whether the bot is that of telapi dev --bot.
	OwnBot bool `json:"ownBot,omitzero"`
}

// PlaygroundEndpoint is an endpoint that the playground offers.
type PlaygroundEndpoint struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Phrase is a suggestion of what to say to the demo bot, and its effect.
type Phrase struct {
	Say  string `json:"say"`
	Does string `json:"does"`
}

const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
	"media-src 'self' blob:; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// contentTypes maps the extensions of the files that are served to their types.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".json": "application/json",
	".map":  "application/json",
	".svg":  "image/svg+xml",
	".png":  "image/png",
	".txt":  "text/plain; charset=utf-8",
}

// redirectTo redirects to a page. Its path ends with a slash, because the page
// refers to its files relatively.
func redirectTo(page string) handler {
	return func(x *exchange, _ *http.Request) error {
		x.Header().Set("Location", page)
		x.Header().Set("Cache-Control", "no-store")
		x.WriteHeader(http.StatusFound)
		return nil
	}
}

// serveFiles serves the embedded files of a page.
func serveFiles(embedded fs.FS) handler {
	files := map[string]document{}
	names, _ := fs.Glob(embedded, "*")
	for _, name := range names {
		content, err := fs.ReadFile(embedded, name)
		if contentType := contentTypes[path.Ext(name)]; contentType != "" && err == nil {
			files[name] = newDocument(contentType, content)
		}
	}
	files[""] = files["index.html"]
	return func(x *exchange, r *http.Request) error {
		file, ok := files[r.PathValue("file")]
		if !ok {
			return fault.New(fault.NotFound, "File not found.")
		}
		x.Header().Set("Content-Security-Policy", contentSecurityPolicy)
		x.Header().Set("Referrer-Policy", "no-referrer")
		return file.serve(x, r)
	}
}

// playgroundConfig sends the demo's API key only to pages on the same machine.
func (s *Server) playgroundConfig(x *exchange, r *http.Request) error {
	config := s.deps.Playground.Config()
	// In a DNS rebinding attack, a foreign page lets its own name resolve to this machine.
	if !x.client.IsLoopback() || !httpserve.IsLocalHost(r.Host) || isForwarded(r.Header) {
		config.APIKey = ""
	}
	return x.WriteJSON(http.StatusOK, config)
}

// isForwarded reports whether a request went through a proxy or a tunnel. A request
// through a proxy on this machine has a local address, and often a local host name.
func isForwarded(h http.Header) bool {
	return slices.ContainsFunc([]string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"},
		func(name string) bool { return h[name] != nil })
}

// playgroundAccess tells the page what its key can manage, so that it offers nothing else.
func (s *Server) playgroundAccess(x *exchange, _ *http.Request) error {
	return x.WriteJSON(http.StatusOK, struct {
		TeamID string       `json:"teamId"`
		Scopes []auth.Scope `json:"scopes"`
	}{x.principal.TeamID, x.principal.Scopes})
}

// dropSocket disconnects a session's socket to demonstrate how it reconnects.
func (s *Server) dropSocket(x *exchange, r *http.Request) error {
	id := r.PathValue("id")
	if _, err := s.deps.Sessions.Get(r.Context(), x.principal.TeamID, id); err != nil {
		return err
	}
	if s.deps.Instances != nil {
		s.deps.Instances.ForwardToSession(x, s.withForwardedHeaders(r), id, x.Fail)
		return nil
	}
	if !s.sockets.Disconnect(id) {
		return fault.New(fault.NotFound, "This instance has no open socket of the session.")
	}
	return x.noContent(nil)
}

// issueCredential registers a work item, so that the page can send a callback to its
// own session.
func (s *Server) issueCredential(x *exchange, r *http.Request) error {
	var issues fault.Issues
	value, _ := issues.QueryValue(x.params, "kind")
	kind := wire.WorkItemKind(value)
	if !issues.Has("/query/kind") {
		fault.CheckOneOf(&issues, "/query/kind", kind, wire.WorkItemKinds)
	}
	if err := issues.Err(); err != nil {
		return err
	}
	id := r.PathValue("id")
	if _, err := s.deps.Sessions.Get(r.Context(), x.principal.TeamID, id); err != nil {
		return err
	}
	credential, err := s.deps.Playground.IssueCredential(r.Context(), id, kind)
	return x.respond(http.StatusCreated, credential, err)
}

// cancelWorkItem cancels a work item of the session.
func (s *Server) cancelWorkItem(x *exchange, r *http.Request) error {
	id := r.PathValue("id")
	if _, err := s.deps.Sessions.Get(r.Context(), x.principal.TeamID, id); err != nil {
		return err
	}
	return x.noContent(s.deps.Playground.CancelWorkItem(r.Context(), id, r.PathValue("workItemId")))
}

// watched returns the ID of the channel whose timeline the page requests: that of a
// session, or one that a runtime has opened, such as a phone call. ended reports whether
// the session has ended; the end of another channel is an event of its timeline.
func (s *Server) watched(x *exchange, r *http.Request) (id string, ended func(context.Context) bool, err error) {
	var issues fault.Issues
	channelID, ofChannel := issues.QueryValue(x.params, "channelId")
	sessionID, ofSession := issues.QueryValue(x.params, "sessionId")
	switch {
	case ofChannel == ofSession:
		issues.Add("/query", fault.IssueValue, "Give either sessionId or channelId.")
	case ofChannel:
		issues.Check(wire.ValidID(channelID), "/query/channelId", fault.IssueValue, "Must be the ID of a channel.")
	default:
		issues.Check(session.ValidID(sessionID), "/query/sessionId", fault.IssueValue, "Must be the ID of a session.")
	}
	if err := issues.Err(); err != nil {
		return "", nil, err
	}
	if ofChannel {
		team, err := s.deps.Playground.ChannelTeam(r.Context(), channelID)
		if err == nil && team != x.principal.TeamID {
			err = fault.New(fault.NotFound, "Channel not found.")
		}
		return channelID, func(context.Context) bool { return false }, err
	}
	_, err = s.deps.Sessions.Get(r.Context(), x.principal.TeamID, sessionID)
	return sessionID, func(ctx context.Context) bool {
		session, err := s.deps.Sessions.Get(ctx, x.principal.TeamID, sessionID)
		return err == nil && !session.EndedAt.IsZero()
	}, err
}

// credentialInterval is how often the credential of an open feed is checked.
const credentialInterval = 300 * time.Millisecond

// endWhenRejected calls stop when the credential in the header of a request is no longer valid.
func endWhenRejected(ctx context.Context, stop func(), verify func(context.Context, string) (auth.Principal, error)) {
	for background.Sleep(ctx, credentialInterval) == nil {
		if _, err := verify(ctx, inHeader); fault.Is(err, fault.Unauthorized) || fault.Is(err, fault.Forbidden) {
			stop()
			return
		}
	}
}

// feed streams the timeline of a channel as lines of JSON until the channel ends. It
// ends when the credential is revoked.
func (s *Server) feed(x *exchange, r *http.Request) error {
	id, ended, err := s.watched(x, r)
	if err != nil {
		return err
	}
	if err := s.feeds.Take(x.holder, 1); err != nil {
		return err
	}
	defer s.feeds.Return(x.holder, 1)
	ctx, stop := context.WithCancel(x.ctx)        // without the handler timeout of r
	defer context.AfterFunc(s.streamsCtx, stop)() // at shutdown
	var checks sync.WaitGroup
	checks.Go(func() { endWhenRejected(ctx, stop, s.credentialCheck(x, r)) })
	defer func() { stop(); checks.Wait() }()
	batches, err := s.deps.Playground.Feed(ctx, id, ended)
	if err != nil {
		return fault.Unavailable("The key-value store", err)
	}

	h := x.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	x.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	control := http.NewResponseController(x)
	_ = control.SetReadDeadline(time.Time{}) // the request is complete; only a disconnect can follow
	for batch := range batches {
		_ = control.SetWriteDeadline(time.Now().Add(streamWriteTimeout))
		if _, err := x.Write(batch); err != nil || control.Flush() != nil {
			break
		}
	}
	return nil
}
