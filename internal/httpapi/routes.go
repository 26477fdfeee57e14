package httpapi

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/ratelimit"
	"telapi/internal/session"
	"telapi/internal/speech"
)

// Route is a row of the route table.
type Route struct {
	Method string
	Path   string
	Scope  auth.Scope     // of the API key or console JWT, unless it is public
	Tier   ratelimit.Tier // of the client's address, unless it is unlimited
	Params []string       // names of the query parameters
	handle handler
}

const (
	public    auth.Scope     = "" // the route needs no API key or console JWT
	unlimited ratelimit.Tier = "" // the route has no rate limit, or checks it itself
)

// handler serves one request. It either writes the response or returns an error,
// which is sent as the error envelope.
type handler func(x *exchange, r *http.Request) error

func route(method, path string, scope auth.Scope, tier ratelimit.Tier, handle handler, params ...string) Route {
	return Route{method, path, scope, tier, params, handle}
}

// PlaygroundPath is the path of the playground page.
const PlaygroundPath = "/playground/"

// Routes returns the routes that the settings enable. Paths that other packages use too
// are constants of the package that defines their meaning.
func (s *Server) Routes() []Route {
	routes := []Route{
		route("GET", "/health", public, unlimited, s.health),
		route("GET", "/metrics", public, unlimited, s.scrape),
		route("POST", wire.WebhooksPath+"bot/{channelId}", public, ratelimit.Webhook, s.webhook(wire.BotItem), "traceId", "parentSpanId", "callId", "split"),
		route("POST", wire.WebhooksPath+"llm/{channelId}/{workItemId}", public, ratelimit.Webhook, s.webhook(wire.LLMItem), "traceId", "parentSpanId", "callId", "split"),
		route("POST", wire.WebhooksPath+"tool/{channelId}/{workItemId}", public, ratelimit.Webhook, s.webhook(wire.ToolItem), "traceId", "parentSpanId", "callId"),
	}
	if !s.deps.APIAccess {
		return routes
	}
	routes = append(append(routes, s.apiRoutes()...), s.adminRoutes()...)
	if s.deps.Playground != nil {
		routes = append(routes, s.playgroundRoutes()...)
		if s.deps.Instances != nil {
			routes = append(routes, s.instanceRoutes()...)
		}
	}
	return routes
}

// apiRoutes returns the routes that FEATURE_API_ACCESS enables, except for adminRoutes.
func (s *Server) apiRoutes() []Route {
	return []Route{
		route("GET", "/openapi.yaml", public, ratelimit.API, newDocument("application/yaml", s.deps.OpenAPI).serve),
		route("GET", "/asyncapi.yaml", public, ratelimit.API, newDocument("application/yaml", s.deps.AsyncAPI).serve),

		route("POST", "/api/v1/sessions/token", auth.CreateCallToken, ratelimit.API, s.withBody(s.issueToken)),
		route("GET", "/api/v1/sessions/{id}", auth.CreateCallToken, ratelimit.API, s.showSession),
		route("DELETE", "/api/v1/sessions/{id}", auth.CreateCallToken, ratelimit.API, s.deleteSession),

		route("GET", session.SocketPath, public, unlimited, s.openSocket, "token", "streamId", "connectionId"),
		route("OPTIONS", session.SocketPath, public, ratelimit.API, preflightSocket),
		route("GET", wire.RuntimePath, public, unlimited, s.openRuntime),

		route("GET", "/api/v1/endpoints", auth.ReadTeamApps, ratelimit.API, s.listEndpoints, "cursor", "limit"),
		route("GET", "/api/v1/runtime/capabilities", auth.ReadTeamApps, ratelimit.API, newDocument("application/json", s.deps.Capabilities).serve),
		route("GET", "/api/v1/runtime/endpoints/{id}", auth.ReadTeamApps, ratelimit.API, s.runtimeEndpoint),
		route("GET", speech.VoicesRoute, auth.ReadTeamApps, ratelimit.API, s.listSpeechProviders),
		route("POST", speech.Route, auth.CreateSpeech, ratelimit.API, s.withBody(s.synthesize)),
		route("GET", speech.Route+"/{name}", auth.ReadTeamApps, ratelimit.API, s.playSpeech),
		route("GET", "/api/v1/usage/tts-characters", auth.ReadTeamUsage, ratelimit.API, s.ttsUsage, "from", "to", "interval", "groupBy"),
	}
}

// playgroundRoutes returns the routes that PLAYGROUND_ENABLED enables.
func (s *Server) playgroundRoutes() []Route {
	playground, docs := serveFiles(s.deps.Playground.Files), serveFiles(s.deps.Playground.Docs)
	return []Route{
		route("GET", "/{$}", public, ratelimit.API, redirectTo(PlaygroundPath)),
		route("GET", "/playground", public, ratelimit.API, redirectTo(PlaygroundPath)),
		route("GET", PlaygroundPath+"{$}", public, ratelimit.API, playground),
		route("GET", PlaygroundPath+"{file}", public, ratelimit.API, playground),
		route("GET", PlaygroundPath+"config.json", public, ratelimit.API, s.playgroundConfig),
		route("GET", PlaygroundPath+"access", auth.ManageTeam, ratelimit.API, s.playgroundAccess),
		route("GET", PlaygroundPath+"feed", auth.ReadTeamApps, ratelimit.API, s.feed, "sessionId", "channelId"),
		route("POST", PlaygroundPath+"sessions/{id}/drop", auth.CreateCallToken, ratelimit.API, s.dropSocket),
		route("POST", PlaygroundPath+"sessions/{id}/credential", auth.CreateCallToken, ratelimit.API, s.issueCredential, "kind"),
		route("DELETE", PlaygroundPath+"sessions/{id}/items/{workItemId}", auth.CreateCallToken, ratelimit.API, s.cancelWorkItem),
		route("GET", "/docs", public, ratelimit.API, redirectTo("/docs/")),
		route("GET", "/docs/{$}", public, ratelimit.API, docs),
		route("GET", "/docs/{file}", public, ratelimit.API, docs),
	}
}

// instanceRoutes returns the routes of telapi dev --instances.
func (s *Server) instanceRoutes() []Route {
	kill := func(_ context.Context, number int) error { return s.deps.Instances.Kill(number) }
	return []Route{
		route("GET", PlaygroundPath+"instances", auth.CreateCallToken, ratelimit.API, s.listInstances, "sessionId"),
		route("GET", PlaygroundPath+"instances/metrics", auth.CreateCallToken, ratelimit.API, s.instanceMetrics),
		route("POST", PlaygroundPath+"instances/{number}/kill", auth.CreateCallToken, ratelimit.API, changeInstance(kill)),
		route("POST", PlaygroundPath+"instances/{number}/start", auth.CreateCallToken, ratelimit.API, changeInstance(s.deps.Instances.Start)),
	}
}

// muxHandler is a handler in the mux. The mux only ever gets an exchange from
// Server.dispatch.
type muxHandler func(x *exchange, r *http.Request)

func (h muxHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h(w.(*exchange), r) }

// newMux builds the mux. Methods are matched here rather than by the mux, so
// that an unsupported method is answered with the error envelope.
func (s *Server) newMux(routes []Route) *http.ServeMux {
	mux := http.NewServeMux()
	byPath := map[string]map[string]*Route{}
	for _, rt := range routes {
		if byPath[rt.Path] == nil {
			byPath[rt.Path] = map[string]*Route{}
		}
		byPath[rt.Path][rt.Method] = &rt
		if rt.Method == http.MethodGet {
			byPath[rt.Path][http.MethodHead] = &rt
		}
	}
	for pattern, methods := range byPath {
		allow := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
		mux.Handle(pattern, muxHandler(func(x *exchange, r *http.Request) {
			switch rt := methods[r.Method]; {
			case rt != nil:
				s.serve(x, r, rt)
			case r.Method == http.MethodOptions && x.fromConsole && r.Header.Get("Access-Control-Request-Method") != "":
				s.preflight(x, allow)
			default:
				s.reject(x, httpserve.MethodNotAllowed(x, allow))
			}
		}))
	}
	mux.Handle("/", muxHandler(s.notFound))
	return mux
}

func (s *Server) notFound(x *exchange, _ *http.Request) {
	hint := "See GET /openapi.yaml for the available paths."
	if !s.deps.APIAccess {
		hint = "This deployment only accepts callbacks under " + wire.WebhooksPath + "."
	}
	s.reject(x, fault.New(fault.NotFound, "Path not found. %s", hint))
}

// reject sends the error of a request that no route handles. It counts against the
// api tier, so that clients cannot get any number of answers. If it cannot be counted,
// the error is sent all the same.
func (s *Server) reject(x *exchange, err error) {
	ctx, cancel := context.WithTimeout(x.ctx, handlerTimeout)
	defer cancel()
	if decision, countErr := s.deps.Limits.Allow(ctx, ratelimit.API, x.client); countErr == nil {
		err = cmp.Or(x.applyLimit(decision, nil), err) // 429 replaces the error
	}
	x.Fail(err)
}

// dispatch sends a request into the mux, except for paths that the mux would
// answer itself with a redirect or plain text.
func (s *Server) dispatch(x *exchange, r *http.Request) {
	x.fromConsole = s.allowConsole(x, r)
	if p := r.URL.Path; !strings.HasPrefix(p, "/") || (p != "/" && path.Clean(p) != strings.TrimSuffix(p, "/")) {
		s.notFound(x, r)
		return
	}
	s.mux.ServeHTTP(x, r)
}
