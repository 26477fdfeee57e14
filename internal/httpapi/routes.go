package httpapi

import (
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

// access is the credential that a route requires.
type access string

const (
	public         access = "public"       // no credential
	teamCredential access = "team"         // an API key or a console JWT, with the route's scope
	metricsToken   access = "metricsToken" // METRICS_TOKEN if it is set
)

// flag is the setting that enables a route.
type flag string

const (
	always     flag = "always"
	apiAccess  flag = "FEATURE_API_ACCESS"
	playground flag = "PLAYGROUND_ENABLED" // requires FEATURE_API_ACCESS too
	instances  flag = "--instances"        // of telapi dev; requires the playground too
)

// Route is a route with the names of its query parameters.
type Route struct {
	row
	Params []string
}

// row is one row of the route table.
type row struct {
	Method string
	Path   string
	Access access
	Scope  auth.Scope
	Tier   ratelimit.Tier // empty: not limited
	Flag   flag
	handle handler
}

// handler serves one request. It either writes the response or returns an error,
// which is sent as the error envelope.
type handler func(x *exchange, r *http.Request) error

// PlaygroundPath is the path of the playground page.
const PlaygroundPath = "/playground/"

// traceParams are the query parameters of webhooks.
const traceParams = "?traceId&parentSpanId&callId"

// routes is the route table. That of the administration is in admin.go. Paths that other packages use too are
// constants of the package that defines their meaning. A path is followed by the
// names of its query parameters, as in "?cursor&limit".
func (s *Server) routes() []row {
	rows := []row{
		{"GET", "/health", public, "", "", always, s.health},
		{"GET", "/metrics", metricsToken, "", "", always, s.scrape},
		{"POST", wire.WebhooksPath + "bot/{channelId}" + traceParams + "&split", public, "", ratelimit.Webhook, always, s.webhook(wire.BotItem)},
		{"POST", wire.WebhooksPath + "llm/{channelId}/{workItemId}" + traceParams + "&split", public, "", ratelimit.Webhook, always, s.webhook(wire.LLMItem)},
		{"POST", wire.WebhooksPath + "tool/{channelId}/{workItemId}" + traceParams, public, "", ratelimit.Webhook, always, s.webhook(wire.ToolItem)},

		{"GET", "/openapi.yaml", public, "", ratelimit.API, apiAccess, serveDocument("application/yaml", s.deps.OpenAPI)},
		{"GET", "/asyncapi.yaml", public, "", ratelimit.API, apiAccess, serveDocument("application/yaml", s.deps.AsyncAPI)},

		{"POST", "/api/v1/sessions/token", teamCredential, auth.CreateCallToken, ratelimit.API, apiAccess, s.withBody(s.issueToken)},
		{"GET", "/api/v1/sessions/{id}", teamCredential, auth.CreateCallToken, ratelimit.API, apiAccess, s.showSession},
		{"DELETE", "/api/v1/sessions/{id}", teamCredential, auth.CreateCallToken, ratelimit.API, apiAccess, s.deleteSession},

		{"GET", session.SocketPath + "?token&streamId&connectionId", public, "", "", apiAccess, s.openSocket},
		{"GET", wire.RuntimePath, public, "", "", apiAccess, s.openRuntime},
		{"OPTIONS", session.SocketPath, public, "", ratelimit.API, apiAccess, s.preflightSocket},

		{"GET", "/api/v1/endpoints?cursor&limit", teamCredential, auth.ReadTeamApps, ratelimit.API, apiAccess, s.listEndpoints},
		{"GET", "/api/v1/runtime/capabilities", teamCredential, auth.ReadTeamApps, ratelimit.API, apiAccess, serveDocument("application/json", s.deps.Capabilities)},
		{"GET", "/api/v1/runtime/endpoints/{id}", teamCredential, auth.ReadTeamApps, ratelimit.API, apiAccess, s.runtimeEndpoint},
		{"GET", speech.VoicesRoute, teamCredential, auth.ReadTeamApps, ratelimit.API, apiAccess, s.listSpeechProviders},
		{"POST", speech.Route, teamCredential, auth.CreateSpeech, ratelimit.API, apiAccess, s.withBody(s.synthesize)},
		{"GET", speech.Route + "/{name}", teamCredential, auth.ReadTeamApps, ratelimit.API, apiAccess, s.playSpeech},
		{"GET", "/api/v1/usage/tts-characters?from&to&interval&groupBy", teamCredential, auth.ReadTeamUsage, ratelimit.API, apiAccess, s.ttsUsage},

		{"GET", "/{$}", public, "", ratelimit.API, playground, redirectTo(PlaygroundPath)},
		{"GET", "/playground", public, "", ratelimit.API, playground, redirectTo(PlaygroundPath)},
		{"GET", PlaygroundPath + "{$}", public, "", ratelimit.API, playground, serveFile(s.playgroundFiles)},
		{"GET", PlaygroundPath + "{file}", public, "", ratelimit.API, playground, serveFile(s.playgroundFiles)},
		{"GET", PlaygroundPath + "config.json", public, "", ratelimit.API, playground, s.playgroundConfig},
		{"GET", PlaygroundPath + "access", teamCredential, auth.ManageTeam, ratelimit.API, playground, s.playgroundAccess},
		{"GET", PlaygroundPath + "feed?sessionId&channelId", teamCredential, auth.ReadTeamApps, ratelimit.API, playground, s.feed},
		{"POST", PlaygroundPath + "sessions/{id}/drop", teamCredential, auth.CreateCallToken, ratelimit.API, playground, s.dropSocket},
		{"POST", PlaygroundPath + "sessions/{id}/credential?kind", teamCredential, auth.CreateCallToken, ratelimit.API, playground, s.issueCredential},
		{"DELETE", PlaygroundPath + "sessions/{id}/items/{workItemId}", teamCredential, auth.CreateCallToken, ratelimit.API, playground, s.cancelWorkItem},
		{"GET", PlaygroundPath + "instances?sessionId", teamCredential, auth.CreateCallToken, ratelimit.API, instances, s.listInstances},
		{"GET", PlaygroundPath + "instances/metrics", teamCredential, auth.CreateCallToken, ratelimit.API, instances, s.instanceMetrics},
		{"POST", PlaygroundPath + "instances/{number}/kill", teamCredential, auth.CreateCallToken, ratelimit.API, instances, s.killInstance},
		{"POST", PlaygroundPath + "instances/{number}/start", teamCredential, auth.CreateCallToken, ratelimit.API, instances, s.startInstance},

		{"GET", "/docs", public, "", ratelimit.API, playground, redirectTo("/docs/")},
		{"GET", "/docs/{$}", public, "", ratelimit.API, playground, serveFile(s.docsFiles)},
		{"GET", "/docs/{file}", public, "", ratelimit.API, playground, serveFile(s.docsFiles)},
	}
	for _, rt := range s.adminRoutes() {
		rows = append(rows, row{rt.method, adminPath + rt.path, teamCredential, rt.scope, ratelimit.API, apiAccess, asActor(rt.handle)})
	}
	return rows
}

// Routes returns the routes that are registered under the current flags.
func (s *Server) Routes() []Route {
	var registered []Route
	enabled := map[flag]bool{always: true, apiAccess: s.deps.APIAccess}
	enabled[playground] = s.deps.APIAccess && s.deps.Playground != nil
	enabled[instances] = enabled[playground] && s.deps.Instances != nil
	for _, rt := range s.routes() {
		if enabled[rt.Flag] {
			path, params, _ := strings.Cut(rt.Path, "?")
			rt.Path = path
			registered = append(registered, Route{rt, strings.FieldsFunc(params, func(r rune) bool { return r == '&' })})
		}
	}
	return registered
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
// api tier, so that clients cannot get any number of answers. If the count is not
// available, the error is sent nevertheless.
func (s *Server) reject(x *exchange, err error) {
	ctx, cancel := context.WithTimeout(x.ctx, handlerTimeout)
	defer cancel()
	if decision, countErr := s.deps.Limits.Allow(ctx, ratelimit.API, x.client); countErr == nil {
		if exceeded := x.applyLimit(decision, nil); exceeded != nil {
			err = exceeded
		}
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
