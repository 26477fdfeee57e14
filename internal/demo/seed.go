// Package demo owns what a newcomer meets first: a team, an endpoint and a key
// to try the service with, and somebody to talk to: a small call runtime, which
// meets the service through package callruntime alone, and a bot, which meets it
// as any provider does, through the webhook.
package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/team"
)

// Resources are the demo team, endpoint and API key that Seed creates.
type Resources struct {
	TeamID     string        `json:"teamId"`
	EndpointID string        `json:"endpointId"`
	KeyID      string        `json:"keyId"`
	Key        redact.Secret `json:"-"`
}

// card is how the demo is remembered in the data folder. A key cannot be read
// back from the database, and one that changes with every start would break
// the newcomer's second terminal.
type card struct {
	Resources
	Key string `json:"key"`
}

const cardFile = "demo.json"

// Seed returns the demo of the data folder, and makes it where it is not there
// or the database does not know it.
func Seed(ctx context.Context, dataDir string, teams *team.Registry, endpoints *endpoint.Service, keys *auth.KeyRegistry) (Resources, error) {
	path := filepath.Join(dataDir, cardFile)
	var known card
	raw, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(raw, &known) == nil { // absent or damaged: made anew
		k, err := keys.Store.Key(ctx, known.KeyID)
		if err == nil {
			_, err = endpoints.Store.Endpoint(ctx, known.EndpointID)
		}
		switch {
		case err == nil && k.RevokedAt.IsZero():
			known.Resources.Key = redact.Secret(known.Key)
			return known.Resources, nil
		case err != nil && !fault.Is(err, fault.NotFound):
			return Resources{}, err
		}
	}
	t, err := teams.Create(ctx, "Demo team")
	if err != nil {
		return Resources{}, err
	}
	e, err := endpoints.Create(ctx, flow(t.ID))
	if err != nil {
		return Resources{}, err
	}
	k, secret, err := keys.Create(ctx, t.ID, "demo", auth.Scopes, time.Time{})
	if err != nil {
		return Resources{}, err
	}
	made := Resources{t.ID, e.ID, k.ID, secret}
	if raw, err = json.Marshal(card{made, secret.Reveal()}); err == nil {
		err = os.MkdirAll(dataDir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(path, raw, 0o600)
	}
	if err != nil {
		return Resources{}, fmt.Errorf("remember the demo key: %w", err)
	}
	return made, nil
}

// flow is an endpoint that shows every mode, and a policy that permits some
// things and denies others.
func flow(teamID string) endpoint.Endpoint {
	return endpoint.Endpoint{TeamID: teamID, Name: "Demo endpoint", Modes: endpoint.Modes, Profile: wire.GatewayProfile{
		CommandSources: []string{"bot", "external_llm"},
		CommandPolicies: []wire.CommandPolicy{
			{Type: "hangup", Enabled: true, WaitForSilence: true},
			{Type: "transfer", Enabled: true, AllowedTargets: []string{"tel:+4930*", "sip:*@pbx.example"}},
			{Type: "update_dtmf_config", Enabled: true},
			{Type: "update_bot_delay_config", Enabled: true},
		},
	}}
}
