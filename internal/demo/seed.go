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

// Demo is what was seeded.
type Demo struct {
	TeamID     string
	EndpointID string
	Key        redact.Secret
}

// card is how the demo is remembered in the data folder. A key cannot be read
// back from the database, and one that changes with every start would break
// the newcomer's second terminal.
type card struct {
	TeamID     string `json:"teamId"`
	EndpointID string `json:"endpointId"`
	KeyID      string `json:"keyId"`
	Key        string `json:"key"`
}

const cardFile = "demo.json"

// Seed returns the demo of the data folder, and makes it where it is not there
// or the database does not know it.
func Seed(ctx context.Context, dataDir string, teams *team.Registry, endpoints *endpoint.Registry, keys *auth.Keyring) (Demo, error) {
	path := filepath.Join(dataDir, cardFile)
	if c, ok := readCard(path); ok {
		known, err := stillKnown(ctx, c, endpoints, keys)
		if err != nil {
			return Demo{}, err
		}
		if known {
			return Demo{c.TeamID, c.EndpointID, redact.Secret(c.Key)}, nil
		}
	}
	t, err := teams.Create(ctx, "Demo team")
	if err != nil {
		return Demo{}, err
	}
	e, err := endpoints.Create(ctx, flow(t.ID))
	if err != nil {
		return Demo{}, err
	}
	k, secret, err := keys.Create(ctx, t.ID, "demo", auth.Scopes, time.Time{})
	if err != nil {
		return Demo{}, err
	}
	if err := writeCard(path, card{t.ID, e.ID, k.ID, secret.Reveal()}); err != nil {
		return Demo{}, err
	}
	return Demo{t.ID, e.ID, secret}, nil
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

func stillKnown(ctx context.Context, c card, endpoints *endpoint.Registry, keys *auth.Keyring) (bool, error) {
	k, err := keys.Show(ctx, c.KeyID)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if _, err = endpoints.Show(ctx, c.EndpointID); fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return k.RevokedAt.IsZero(), err
}

func readCard(path string) (card, bool) {
	var c card
	raw, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(raw, &c) != nil {
		return card{}, false // absent or damaged: made anew
	}
	return c, true
}

func writeCard(path string, c card) error {
	raw, err := json.Marshal(c)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.WriteFile(path, raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("remember the demo key: %w", err)
	}
	return nil
}
