// Package demo contains the demo of telapi dev: a team with an endpoint and an API
// key, a small call runtime that uses only package callruntime, a bot that uses only
// the webhook, and the playground's feed of events.
package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/team"
)

// Resources are the demo team, endpoint and API key that Seed creates.
type Resources struct {
	TeamID     string        `json:"teamId"`
	EndpointID string        `json:"endpointId"`
	KeyID      string        `json:"keyId"`
	Key        redact.Secret `json:"key"`
}

// withSecrets writes secrets to demo.json. The database stores only a hash of the
// key, and a new key at every start would break commands in other terminals.
var withSecrets = json.WithMarshalers(json.MarshalFunc(func(s redact.Secret) ([]byte, error) { return json.Marshal(s.Reveal()) }))

// Seed returns the resources saved in the data directory. It creates those that are
// missing there or in the database. A key that lacks a scope is replaced.
func Seed(ctx context.Context, dataDir string, teams *team.Registry, endpoints *team.EndpointRegistry, keys *auth.KeyRegistry) (Resources, error) {
	path := filepath.Join(dataDir, "demo.json")
	var saved Resources
	var endpoint team.Endpoint
	if raw, err := os.ReadFile(path); err == nil && json.Unmarshal(raw, &saved) == nil {
		key, err := keys.Store.Key(ctx, saved.KeyID)
		if err == nil {
			endpoint, err = endpoints.Store.Endpoint(ctx, saved.EndpointID)
		}
		switch {
		case err == nil && key.RevokedAt.IsZero() && len(key.Scopes) == len(auth.Scopes):
			return saved, nil
		case err != nil && !fault.Is(err, fault.NotFound):
			return Resources{}, err
		}
	}
	if endpoint.ID == "" {
		t, err := teams.Create(ctx, team.Team{Name: "Demo team"})
		if err != nil {
			return Resources{}, err
		}
		if endpoint, err = endpoints.Create(ctx, demoEndpoint(t.ID)); err != nil {
			return Resources{}, err
		}
	}
	key, secret, err := keys.Create(ctx, auth.Key{TeamID: endpoint.TeamID, Name: "demo", Scopes: auth.Scopes})
	if err != nil {
		return Resources{}, err
	}
	created := Resources{endpoint.TeamID, endpoint.ID, key.ID, secret}
	raw, err := json.Marshal(created, withSecrets)
	if err == nil {
		err = os.MkdirAll(dataDir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(path, raw, 0o600)
	}
	if err != nil {
		return Resources{}, fmt.Errorf("save demo key: %w", err)
	}
	return created, nil
}

// demoEndpoint has all modes and a policy that allows some commands and denies others.
func demoEndpoint(teamID string) team.Endpoint {
	return team.Endpoint{TeamID: teamID, Name: "Demo endpoint", Enabled: true, Modes: team.Modes, Profile: wire.GatewayProfile{
		CommandSources: []string{"bot", "external_llm"},
		CommandPolicies: []wire.CommandPolicy{
			{Type: "hangup", Enabled: true, WaitForSilence: true},
			{Type: "transfer", Enabled: true, AllowedTargets: []string{"tel:+4930*", "sip:*@pbx.example"}},
			{Type: "update_dtmf_config", Enabled: true},
			{Type: "update_bot_delay_config", Enabled: true},
			{Type: "emit_event", Enabled: true},
		},
	}}
}
